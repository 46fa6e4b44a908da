# ruff: noqa: E501 -- log lines are kept whole
"""Reading: prefilters that agree, blocks and windows, compressed and broken inputs, time limits."""

from __future__ import annotations

import gzip
import io
import json
import random
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from analysis.classify import classify
from analysis.classify.__main__ import main
from analysis.classify.prefilter import HITS_PER_BLOCK, make_prefilter
from analysis.classify.rules import load_rules
from analysis.classify.scan import scan
from analysis.classify.source import UnusableLog, blocks

FAULT = b"RuntimeError: CUDA error: an illegal memory access was encountered\n"
HEALTHY = b"[2026-06-01 10:12:06 TP0] Decode batch, #running-req: 125, accept len: 2.61, accept rate: 0.54, cuda graph: True\n"


def both() -> list[str]:
    pytest.importorskip("hyperscan")
    return ["hyperscan", "python"]


def test_prefilters_find_the_same_places(logs: Path) -> None:
    anchors = load_rules().anchors
    first, second = (make_prefilter(anchors, name) for name in both())
    for path in logs.glob("*.log"):
        block = path.read_bytes()
        assert first.hits(block) == second.hits(block), path.name
    noisy = bytes(random.Random(7).randrange(256) for _ in range(50_000)) + FAULT * 300
    assert first.hits(noisy) == second.hits(noisy)
    assert len(first.hits(FAULT * 300)) <= 10 * HITS_PER_BLOCK


def test_prefilters_give_the_same_verdicts(variants: ModuleType) -> None:
    fast, slow = both()
    for case in variants.load_cases():
        log = {"log": case.log.encode()}
        assert classify(log, prefilter=fast) == classify(log, prefilter=slow), case.id


@pytest.mark.parametrize("size", [1, 7, 1_000, 30_000, 100_000])
def test_the_size_of_the_blocks_changes_nothing(size: int) -> None:
    log = HEALTHY * 900 + FAULT + HEALTHY * 900
    pieces = [log[at : at + size] for at in range(0, len(log), size)]
    assert classify({"log": iter(pieces)}) == classify({"log": log})


def test_line_numbers_across_blocks() -> None:
    log = HEALTHY * 5_000 + FAULT + HEALTHY * 5_000
    pieces = [log[at : at + 65_536] for at in range(0, len(log), 65_536)]
    verdict = classify({"log": pieces})
    assert [(line.line, line.text) for line in verdict.evidence] == [(5_001, FAULT.decode().strip())]


def test_a_fault_in_every_place_of_a_region_is_found() -> None:
    for before in range(0, 60_000, 4_999):
        log = b"x" * before + b"\n" + FAULT + b"y\n" * 20_000
        pieces = [log[at : at + 25_000] for at in range(0, len(log), 25_000)]
        assert classify({"log": pieces}).evidence[0].line == 2, before


def test_lines_over_a_megabyte_are_read_in_windows() -> None:
    log = b"a" * 3_000_000 + FAULT.strip() + b"b" * 3_000_000 + b"\nnext\n"
    verdict = classify({"log": log})
    assert verdict.klass == "cuda.illegal_address"
    assert verdict.evidence[0].line == 1
    assert "illegal memory access" in verdict.evidence[0].text
    assert len(verdict.evidence[0].text) < 1_100


def test_a_line_of_200_megabytes_in_bounded_memory() -> None:
    def line() -> Iterator[bytes]:
        for _ in range(100):
            yield b"z" * 2_000_000
        yield FAULT

    tracemalloc.start()
    verdict = classify({"log": line()})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert verdict.klass == "cuda.illegal_address"
    assert peak < 60_000_000


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"\n",
        b"\x00" * 100_000,
        bytes(range(256)) * 400,
        b"\xff\xfe\xfa" * 999,
        b"\xf0\x28\x8c\x28\n" * 50,
        b"\r" * 5_000,
    ],
    ids=["empty", "newline", "zeros", "binary", "bom", "invalid utf-8", "carriage returns"],
)
def test_junk_gives_an_answer(junk: bytes) -> None:
    assert classify({"log": junk}).klass == "none"
    assert classify({"log": junk + b"\n" + FAULT}).klass == "cuda.illegal_address"


def test_random_junk_gives_an_answer() -> None:
    generator = random.Random(3)
    for _ in range(50):
        classify({"log": generator.randbytes(generator.randrange(20_000))})


def test_gzip_and_zstd_directly_and_cut_ones_as_far_as_they_go(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    log = HEALTHY * 50_000 + FAULT
    packed = {"a.gz": gzip.compress(log), "a.zst": zstandard.ZstdCompressor().compress(log)}
    for name, raw in packed.items():
        (tmp_path / name).write_bytes(raw)
        assert classify({"log": tmp_path / name}).evidence[0].line == 50_001
    early = gzip.compress(FAULT + random.Random(1).randbytes(200_000))
    assert classify({"log": early[:-1_000]}).klass == "cuda.illegal_address"
    with pytest.raises(UnusableLog, match="gzip"):
        classify({"log": b"\x1f\x8b\x08broken"})


def test_without_the_optional_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hyperscan", None)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert make_prefilter(["some text"], "auto").name == "python"
    with pytest.raises(ImportError):
        make_prefilter(["some text"], "hyperscan")
    with pytest.raises(UnusableLog, match="zstandard"):
        classify({"log": b"\x28\xb5\x2f\xfd" + b"x" * 100})


def test_utf_16() -> None:
    assert classify({"log": FAULT.decode().encode("utf-16")}).klass == "cuda.illegal_address"


def test_journald_json_lines_keep_their_numbers() -> None:
    records = [{"__REALTIME_TIMESTAMP": "1780308862000000", "_HOSTNAME": "h", "SYSLOG_IDENTIFIER": "e", "_PID": "7", "MESSAGE": text}
               for text in ("ok", "two\nlines", FAULT.decode().strip())]  # fmt: skip
    raw = "\n".join(json.dumps(record) for record in records) + "\nnot json\n"
    verdict = classify({"log": raw.encode()})
    assert (verdict.klass, verdict.evidence[0].line) == ("cuda.illegal_address", 3)
    assert next(blocks(raw.encode())).count(b"\n") == 4


def test_many_repeats_of_one_error_stay_bounded() -> None:
    log = b"".join(b"zmq.error.ZMQError: Too many open files %d\n" % number for number in range(200_000))
    began = time.perf_counter()
    result = scan(blocks(log), load_rules(), make_prefilter(load_rules().anchors))
    assert sum(len(window.raw) for window in result.windows) < 8_000_000
    assert time.perf_counter() - began < 5
    assert classify({"log": log}).klass == "proc.fd_limit"


def test_no_expression_backtracks_catastrophically() -> None:
    """Lines made of each rule's own words, repeated and torn, within a time limit for each expression."""
    rules = load_rules()
    generator = random.Random(11)
    words = sorted({word for rule in rules.rules.values() for text in rule.examples for word in text.split()})
    lines = [" ".join(generator.choices(words, k=800)) for _ in range(3)]
    lines += ["a" * 9_000, " " * 9_000, "(" * 5_000, "File x\n" * 3_000, '"rc": 255' * 2_000, "\n" * 9_000]
    for expression in rules.expressions:
        own = min(expression.anchors)
        for line in [*lines, (own + " ") * 800, own.replace(" ", "\n") * 800]:
            began = time.process_time()
            for match in expression.pattern.finditer(line[:9_000]):
                assert match.end() >= match.start()
            assert time.process_time() - began < 0.5, expression.source


# --- the command ----------------------------------------------------------------------------------------


def test_json_is_one_object_a_file(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(logs / "h200-tp2_on_one_gpu.log"), str(logs / "h200-healthy-ar.log")]
    assert main([*paths, "--json"]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["path"] == paths[0]
    assert first["class"] == "config.device_count"
    assert first["evidence"][0]["line"] == 31
    assert {
        "phase",
        "advice",
        "retry",
        "alternatives",
        "tier",
        "outcome",
        "fingerprint",
        "pointer",
        "engine",
        "rank",
    } <= set(first)
    assert (second["class"], second["evidence"]) == ("none", [])


def test_exit_codes(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed, healthy = str(logs / "h200-bad_flag.log"), str(logs / "h200-healthy-ar.log")
    assert main([failed]) == 0
    assert main([failed, "--strict"]) == 1
    assert main([healthy, "--strict"]) == 0
    assert main([str(tmp_path / "missing.log")]) == 2
    assert main([failed, "--prefilter", "python"]) == 0
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "missing.log" in error
    assert main([str(tmp_path)]) == 2


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(FAULT)))
    assert main(["-", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["class"] == "cuda.illegal_address"


def test_a_reader_that_closes_early_is_no_error(logs: Path) -> None:
    command = f"{sys.executable} -m analysis.classify {logs}/h200-*.log --json | head -c 10"
    root = Path(__file__).parents[3]
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, cwd=root, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_loads_no_rules_and_nothing_heavy() -> None:
    program = "import sys, analysis.classify; print(sorted({'pandas', 'numpy', 'yaml', 'hyperscan', 'zstandard'} & set(sys.modules)))"
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root, check=True)
    assert done.stdout.strip() == "[]"
