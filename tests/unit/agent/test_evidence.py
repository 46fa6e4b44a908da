"""Evidence: whole, compressed, and without secrets."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specsweep_agent import evidence, redact

# secrets


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "--hf-token", "token", "accessToken", "GITHUB_TOKEN_2", "OPENAI_API_KEY",
     "--api-key", "apikey", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "--ssl-keyfile-password", "PRIVATE-KEY", "COOKIE",
     "Authorization", "client_secret"],
)  # fmt: skip
def test_a_telling_name(name: str) -> None:
    assert redact.is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    ["TOKENIZERS_PARALLELISM", "--tokenizer-path", "--max-total-tokens", "--speculative-num-draft-tokens", "n_tokens",
     "--speculative-token-map", "--max-prefill-tokens", "PATH", "--model-path", "--served-model-name"],
)  # fmt: skip
def test_a_name_that_only_speaks_of_tokens(name: str) -> None:
    """Hiding `false` or 65536 everywhere would spoil every log."""
    assert not redact.is_secret_name(name)


def test_values_of_variables_and_flags() -> None:
    found = redact.secret_values(
        {"HF_TOKEN": "hf-value-1", "TOKENIZERS_PARALLELISM": "false", "API_KEY": "abc", "EMPTY_TOKEN": ""},
        ["engine", "--api-key", "flag-value", "--token=equals-value", "--max-total-tokens", "65536", "--hf-token",
         "--next", "--cookie"],
    )  # fmt: skip
    assert sorted(found) == ["equals-value", "flag-value", "hf-value-1"]


def test_a_secret_inside_a_longer_one_leaves_nothing_behind() -> None:
    secrets = redact.secret_values({"A_TOKEN": "abcd", "B_TOKEN": "abcdefgh"}, [])
    assert redact.clean(b"x abcdefgh y abcd", secrets) == b"x [redacted] y [redacted]"


@pytest.mark.parametrize(
    "shape",
    ["hf_" + "a" * 30, "sk-" + "a1" * 15, "ghp_" + "A" * 36, "AKIA" + "B" * 16, "xoxb-1234567890-abc",
     "Bearer abcdefgh.ijkl=="],
)  # fmt: skip
def test_shapes_of_credentials_whatever_they_are_called(shape: str) -> None:
    cleaned = redact.clean(f"header {shape} tail".encode(), [])
    assert redact.MASK.encode() in cleaned
    assert shape.split()[-1].encode() not in cleaned
    assert cleaned.startswith(b"header ")
    assert cleaned.endswith(b" tail")


def test_what_has_no_such_shape_stays() -> None:
    plain = "sk-short hf_short task-1 risk-assessment bearer x --max 65536 \xff".encode("latin-1")
    assert redact.clean(plain, []) == plain


# a journal


def journal(tmp_path: Path, *entries: Any) -> tuple[bytes, bytes]:
    source, own, about = tmp_path / "j", tmp_path / "own", tmp_path / "about"
    lines = [entry if isinstance(entry, bytes) else json.dumps(entry).encode() for entry in entries]
    source.write_bytes(b"\n".join(lines) + b"\n")
    evidence.split_journal(source, own, about)
    return own.read_bytes(), about.read_bytes()


def test_the_programs_lines_and_those_about_it(tmp_path: Path) -> None:
    own, about = journal(
        tmp_path,
        {"MESSAGE": "engine up", "SYSLOG_IDENTIFIER": "engine", "_PID": "7"},
        {"MESSAGE": "Main process exited", "SYSLOG_IDENTIFIER": "systemd", "_PID": "1",
         "__REALTIME_TIMESTAMP": "1700000000123456"},
        {"MESSAGE": list(b"\xff\x1b[31mbinary"), "SYSLOG_IDENTIFIER": "engine"},
        {"MESSAGE": None},
        {"MESSAGE": ["first", "second"]},
        {"MESSAGE": [list(b"\xfe"), "text"]},
        {"MESSAGE": ""},
        {"MESSAGE": "“☃”\nof two lines"},
        b"-- No entries --",
        b"",
    )  # fmt: skip
    assert own.split(b"\n") == [
        b"engine up", b"\xff\x1b[31mbinary", b"", b"first", b"second", b"\xfe", b"text", b"", "“☃”".encode(),
        b"of two lines", b"",
    ]  # fmt: skip
    assert about == b"2023-11-14T22:13:20Z systemd: Main process exited\n"


# packing


def blocks(data: bytes) -> list[bytes]:
    return list(evidence._lines(io.BytesIO(data)))


@pytest.mark.parametrize(
    "data",
    [b"", b"\n", b"no end", b"a\nb", b"x" * (5 << 20), b"x" * (5 << 20) + b"\nrest", (b"y" * 999 + b"\n") * 3000,
     b"\n" * (1 << 20), b"a" * ((1 << 20) - 1) + b"\n" + b"b"],
    ids=lambda data: f"{len(data)} bytes",
)  # fmt: skip
def test_no_byte_is_lost_between_blocks(data: bytes) -> None:
    found = blocks(data)
    assert b"".join(found) == data
    if max(map(len, data.split(b"\n"))) < 1 << 20:
        assert all(block.endswith(b"\n") for block in found[:-1])


@settings(derandomize=True, deadline=None, max_examples=60, database=None)
@given(st.binary(max_size=400))
def test_a_packed_log_has_every_byte_but_the_secrets(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("packed") / "engine.log"
    path.write_bytes(data + b"\nkey=topsecret\n")
    packed = evidence._packed(path, ["topsecret"])
    assert packed.name == "engine.log.gz"
    assert not path.exists()
    assert gzip.decompress(packed.read_bytes()) == redact.clean(data, []) + b"\nkey=[redacted]\n"


class Service:
    """A made-up service manager with a log."""

    def properties(self) -> dict[str, str]:
        return {"Result": "success"}

    def write_log(self, _: str, path: Path) -> None:
        path.write_bytes(LOG)


LOG = b"".join(
    b"line %d \xff topsecret %s\n" % (n, random.Random(n).randbytes(40).hex().encode()) for n in range(20000)
)


def test_everything_of_a_run_travels_and_no_secret(tmp_path: Path) -> None:
    (tmp_path / "requests").mkdir()
    (tmp_path / "points").mkdir()
    with gzip.open(tmp_path / "requests/c1.jsonl.gz", "wt") as out:
        out.write(json.dumps({"id": "1", "error": "HTTP 401: topsecret is no key"}) + "\n")
    (tmp_path / "points/c1.json").write_text('{"id": "c1", "key": "topsecret"}')
    (tmp_path / "points/c1.json.tmp").write_text("half")
    (tmp_path / "status.json").write_text('{"reason": "topsecret"}')
    (tmp_path / "job.json").write_text('{"headers": "topsecret"}')
    (tmp_path / "load_client.log").write_text("a topsecret trace\n")
    argv = ["engine", "--api-key", "topsecret", "--budget", "8"]
    for _ in range(2):  # a lost connection may have it collected twice
        found = evidence.collect(Service(), tmp_path, "id", 0.0, redact.secret_values({}, argv), argv)
        with tarfile.open(found["bundle"]) as tar:
            files = {member.name: tar.extractfile(member).read() for member in tar.getmembers()}  # type: ignore[union-attr]
        text = {name: gzip.decompress(data) if name.endswith(".gz") else data for name, data in files.items()}
        assert {"evidence/engine.log.gz", "evidence/argv.json", "evidence/properties.json", "requests/c1.jsonl.gz",
                "points/c1.json", "status.json", "load_client.log.gz"} <= set(text)  # fmt: skip
        assert not any("job.json" in name or name.endswith(".tmp") for name in text)
        assert not [name for name, data in text.items() if b"topsecret" in data]
        assert text["evidence/engine.log.gz"] == LOG.replace(b"topsecret", b"[redacted]")
        assert json.loads(text["evidence/argv.json"]) == ["engine", "--api-key", "[redacted]", "--budget", "8"]
        assert json.loads(text["requests/c1.jsonl.gz"])["error"] == "HTTP 401: [redacted] is no key"
        assert found["bytes"] == Path(found["bundle"]).stat().st_size
