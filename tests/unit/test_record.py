"""Records: what is written is read again, and nothing else is taken for a record."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsweep import record

CELL = {
    "cell_id": "1", "sweep_id": "s", "host": "h", "configuration_id": "c", "label": "none", "engine": "e",
    "method": "none", "budget": 0, "concurrency": 1, "status": "ok",
}  # fmt: skip


def cell(**fields: Any) -> record.Cell:
    return record.Cell(**{**CELL, **fields})


def test_a_cell_comes_back_as_it_was(tmp_path: Path) -> None:
    made = cell(
        status="failed",
        reason='“☃” \\ " \t',
        failure=record.Failure(klass="unknown", evidence=[record.Line(source="engine", line=3, text="x\0y")]),
        settings={"a": 0.1, "b": [1, None], "c": {"d": True}},
        acceptance=record.Acceptance(estimator="e", histogram=[1, 2], al_token_weighted=1.5),
        ttft_ms=record.Quantiles(n=2, mean=1.0),
        categories={"code": record.Category(requests=1, tpot_ms=record.Quantiles(n=1))},
        telemetry=[record.Telemetry(gpu="0", samples=1, throttle_reasons=["hw_slowdown"])],
    )
    path = tmp_path / "deep" / "c1.json"
    record.write(path, made)
    assert record.read(path, record.Cell) == made
    assert path.read_text().endswith("}\n")


@pytest.mark.parametrize(
    "made",
    [
        record.Sweep(sweep_id="s", created_unix_s=1.5, variables={"budgets": [8]}),
        record.Host(sweep_id="s", name="h", gpus=[{"index": "0"}]),
        record.Configuration(
            sweep_id="s", host="h", configuration_id="c", label="l", engine="e", method="m", budget=8, status="pending",
            attestation=record.Attestation(
                verdict="adjusted",
                differences=[record.Difference(name="a", asked=8, effective="4", witness="engine_report")],
            ),
            ready_timeline=[record.ReadyEvent(at_s=0.1, event="refused")],
            phases=[record.Phase(name="load", start_unix_s=1.0, end_unix_s=2.0)],
            service=record.Service(supervisor="systemd", argv=["a b"], properties={"Result": "success"}),
        ),
    ],
    ids=lambda made: type(made).__name__,
)  # fmt: skip
def test_every_kind_of_record_comes_back(tmp_path: Path, made: record.Struct) -> None:
    record.write(tmp_path / "r.json", made)
    assert record.read(tmp_path / "r.json", type(made)) == made


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",)), max_size=10),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(st.characters(exclude_categories=("Cs",)), max_size=5), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


@settings(derandomize=True, deadline=None, max_examples=60, database=None)
@given(st.dictionaries(st.text(st.characters(exclude_categories=("Cs",)), max_size=8), _json, max_size=4))
def test_settings_of_any_kind_survive(tmp_path_factory: pytest.TempPathFactory, chosen: dict[str, Any]) -> None:
    path = tmp_path_factory.getbasetemp() / "property.json"
    record.write(path, cell(settings=chosen))
    assert record.read(path, record.Cell).settings == chosen


def test_a_record_is_replaced_as_a_whole_and_leaves_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "c1.json"
    for status in ("pending", "ok"):
        record.write(path, cell(status=status))
    assert record.read(path, record.Cell).status == "ok"
    assert [item.name for item in tmp_path.iterdir()] == ["c1.json"]


def test_unknown_fields_are_ignored_and_missing_ones_take_their_default(tmp_path: Path) -> None:
    path = tmp_path / "c1.json"
    path.write_text(json.dumps({**CELL, "schema": 1, "of_tomorrow": 1}))
    read = record.read(path, record.Cell)
    assert (read.reached, read.settings, read.attestation) == (True, {}, "unknown")


def refused(path: Path, kind: type[record.Struct] = record.Cell) -> str:
    with pytest.raises(record.RecordError) as caught:
        record.read(path, kind)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text


def test_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c1.json"
    path.write_text(json.dumps({**CELL, "schema": 2}))
    assert "schema 2, this version reads schema 1: use the version that wrote it" in refused(path)


def test_another_schema_is_named_even_where_its_fields_are_others(tmp_path: Path) -> None:
    path = tmp_path / "c1.json"
    path.write_text(json.dumps({"schema": 2, "status": {"word": "ok"}}))
    assert "schema 2, this version reads schema 1: use the version that wrote it" in refused(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"[]", b"8", b'{"cell_id": 1}', b"\xff\xfe", json.dumps({**CELL, "status": "fine"}).encode(),
     json.dumps({**CELL, "budget": "8"}).encode(), json.dumps({**CELL, "schema": "one"}).encode()],
)  # fmt: skip
def test_what_is_no_record_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "c1.json"
    path.write_bytes(content)
    assert "not a cell record of schema 1" in refused(path)


def test_every_cut_of_a_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c1.json"
    record.write(path, cell())
    whole = path.read_bytes().rstrip()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        refused(path)


def test_a_record_that_cannot_be_read(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in refused(tmp_path / "none.json")
    assert "cannot be read: Is a directory" in refused(tmp_path)


# requests

REQUESTS = [
    record.Request(id="1", prompt_id="1", category="c", sent_s=-0.5, warmup=True, ok=True, output_tokens=8),
    record.Request(id="2", prompt_id="2", category="c", sent_s=0.0, error="HTTP 500: “☃”", phantom=True),
    record.Request(id="3", prompt_id="3", category="d", sent_s=0.1, histogram=[1, 0, 2], steps=3.0),
]


def test_requests_come_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "requests" / "c1.jsonl.gz"
    record.write_requests(path, REQUESTS)
    assert list(record.read_requests(path)) == REQUESTS
    record.write_requests(path, [])
    assert list(record.read_requests(path)) == []


def test_a_cut_file_of_requests_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "c1.jsonl.gz"
    record.write_requests(path, REQUESTS * 40)
    whole = path.read_bytes()
    for length in range(1, len(whole), 17):
        path.write_bytes(whole[:length])
        with pytest.raises(record.RecordError, match="cut off or not gzip"):
            list(record.read_requests(path))


def test_a_damaged_file_of_requests_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c1.jsonl.gz"
    many = [
        msgspec.structs.replace(REQUESTS[0], id=str(number), text_sha256="%064x" % number**9) for number in range(99)
    ]
    record.write_requests(path, many)
    whole = path.read_bytes()
    for at in range(40, len(whole), 29):
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        path.write_bytes(bytes(damaged))
        with pytest.raises(record.RecordError):
            list(record.read_requests(path))


def test_a_line_that_is_no_request_is_named(tmp_path: Path) -> None:
    path = tmp_path / "c1.jsonl.gz"
    with gzip.open(path, "wb") as out:
        out.write(msgspec.json.encode(REQUESTS[0]) + b"\n{}\n")
    read = record.read_requests(path)
    assert next(read) == REQUESTS[0]
    with pytest.raises(record.RecordError, match=r"c1\.jsonl\.gz:2: not a request record"):
        next(read)
