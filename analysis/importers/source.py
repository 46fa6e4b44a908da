"""What every importer gets and gives: rows of one file, cells with what must be known about them."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from analysis.lines import bounded_lines
from specsweep import record

#: A file that is one JSON document is read whole; a larger one is refused.
LARGEST_DOCUMENT_BYTES = 1024 * 1024 * 1024

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Place:
    """Where a row came from."""

    path: Path
    line: int | None
    sweep_id: str
    """name of what was loaded: rows of one load are compared with each other"""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" if self.line else str(self.path)


@dataclass
class Imported:
    """What was read."""

    cells: list[record.Cell] = field(default_factory=list)
    requests: list[tuple[record.Cell, list[record.Request]]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    launches: list[Any] = field(default_factory=list)
    """of each cell: what tells one launch of its server from the next; None when the file cannot tell"""
    strangers: list[str] = field(default_factory=list)
    """files of a folder that are no results"""

    def add(self, cell: record.Cell, requests: list[record.Request] | None = None, launch: Any = None) -> None:
        self.cells.append(cell)
        self.launches.append(launch)
        if requests:
            self.requests.append((cell, requests))

    def extend(self, other: Imported) -> None:
        self.cells += other.cells
        self.requests += other.requests
        self.problems += other.problems
        self.launches += other.launches
        self.strangers += other.strangers

    def number_restarts(self) -> None:
        """Number the restarts of every cell; rows that cannot be told apart are one restart, and say so."""
        seen: dict[tuple[str, int, str], list[Any]] = {}
        alike: dict[tuple[Any, ...], list[record.Cell]] = {}
        for made, launch in zip(self.cells, self.launches, strict=True):
            load_point = (made.configuration_id, made.concurrency, made.prompts)
            known = seen.setdefault(load_point, [])
            if launch not in known:
                known.append(launch)
            made.repeat = known.index(launch) + 1
            alike.setdefault((*load_point, made.repeat, launch is None), []).append(made)
        for (*_, unknown), cells in alike.items():
            if len(cells) > 1:
                why = "that do not say which launch of the server they measured" if unknown else "of one server"
                for made in cells:
                    made.remarks.append(f"one of {len(cells)} rows {why}: they count as one restart")


class RowError(ValueError):
    """A row that its importer cannot use; the message says what is missing."""


class Importer(Protocol):
    """One module per source."""

    TOOL: str

    def matches(self, row: Row) -> bool:
        """Is this row of that tool?  Looks at its keys only."""

    def convert(self, row: Row, place: Place) -> Imported:
        """The row's cells.  Raises RowError, KeyError, TypeError or ValueError for a broken row."""


def read_rows(path: Path) -> tuple[list[tuple[int | None, Row]], list[str]]:
    """Rows of a JSON, JSON lines or CSV file with their line numbers, and what was wrong.

    A JSON document is one row, a list of objects a row each.  `Infinity` and `NaN` are read as numbers.
    """
    first = _first_line(path)
    if not first:
        return [], [f"{path}: empty"]
    if not first.startswith((b"{", b"[")):
        return _csv_rows(path)
    if _is_object(first):
        return _json_lines(path)
    rows, problem = _document(path)
    if rows is not None:
        return rows, []
    lines, problems = _json_lines(path)
    return (lines, problems) if lines else ([], [problem])


def _first_line(path: Path) -> bytes:
    with path.open("rb") as stream:
        for _, line in bounded_lines(stream):
            if line is None:
                return b"{"
            if line.strip():
                return line.strip()
    return b""


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _json_lines(path: Path) -> tuple[list[tuple[int | None, Row]], list[str]]:
    rows: list[tuple[int | None, Row]] = []
    problems = []
    with path.open("rb") as stream:
        for number, line in bounded_lines(stream):
            if line is None:
                problems.append(f"{path}:{number}: line too long for a result row: skipped")
                continue
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                problems.append(f"{path}:{number}: broken row, skipped: {error}")
                continue
            if isinstance(row, dict):
                rows.append((number, row))
            else:
                problems.append(f"{path}:{number}: expected a JSON object, got {type(row).__name__}: skipped")
    return rows, problems


def _document(path: Path) -> tuple[list[tuple[int | None, Row]] | None, str]:
    size = path.stat().st_size
    if size > LARGEST_DOCUMENT_BYTES:
        return None, f"{path}: {size / 2**20:.0f} MiB in one JSON document: too large"
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        return None, f"{path}: broken JSON: {error}"
    if isinstance(document, dict):
        return [(None, document)], ""
    if isinstance(document, list) and document and all(isinstance(item, dict) for item in document):
        return [(None, item) for item in document], ""
    return None, f"{path}: expected a JSON object or a list of objects"


def _csv_rows(path: Path) -> tuple[list[tuple[int | None, Row]], list[str]]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        return [], [f"{path}: neither JSON nor CSV text"]
    try:
        reader = csv.DictReader(io.StringIO(text))
        rows: list[tuple[int | None, Row]] = [
            (reader.line_num, {str(key): _number(value) for key, value in row.items()}) for row in reader
        ]
    except csv.Error:
        rows = []
    if not rows or len(rows[0][1]) < 2:
        return [], [f"{path}: neither JSON nor CSV"]
    return rows, []


def _number(text: Any) -> Any:
    try:
        return float(text)
    except (TypeError, ValueError):
        return text


def finite(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def positive(value: Any) -> float | None:
    """A positive finite number, or None: zeros of these tools mean "nothing"."""
    known = finite(value)
    return known if known is not None and known > 0 else None


def whole(value: Any) -> int | None:
    """A whole number, or None."""
    known = finite(value)
    return int(known) if known is not None else None


def need(row: Row, name: str) -> float:
    """A finite number that the row must have."""
    value = finite(row.get(name))
    if value is None:
        raise RowError(f"expected a number in {name}, got {row.get(name)!r}")
    return value


def digest(*parts: Any) -> str:
    """Identity of a configuration that was imported."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def quantiles(row: Row, name: str, completed: int, factor: float = 1.0, suffix: str = "_ms") -> record.Quantiles | None:
    """Quantiles from the fields {mean,median,p90,p99}_NAME; p99 only from 100 requests on."""
    parts = {part: finite(row.get(f"{part}_{name}{suffix}")) for part in ("mean", "median", "p90", "p99")}
    if completed < 100:
        parts["p99"] = None
    if all(value is None for value in parts.values()):
        return None
    scaled = {part: None if value is None else value * factor for part, value in parts.items()}
    return record.Quantiles(n=completed, **scaled)


def of_values(values: Sequence[float]) -> record.Quantiles | None:
    """Quantiles of raw values."""
    ordered = sorted(values)
    n = len(ordered)
    if not n:
        return None
    return record.Quantiles(
        n=n,
        mean=statistics.fmean(ordered),
        median=statistics.median(ordered),
        p90=ordered[min(n - 1, math.ceil(0.9 * n) - 1)],
        p99=ordered[math.ceil(0.99 * n) - 1] if n >= 100 else None,
        min=ordered[0],
        max=ordered[-1],
    )


def cell(place: Place, tool: str, **fields: Any) -> record.Cell:
    """A cell of another tool: origin imported, its status still open (`settle` decides it)."""
    identity = digest(
        tool,
        *(fields.get(name) for name in ("engine", "engine_version", "model", "method", "budget", "topk")),
        fields.get("max_running"),
        fields.get("settings"),
    )
    concurrency = fields.pop("concurrency")
    line = place.line or 0
    return record.Cell(
        cell_id=fields.pop("cell_id", f"{place.path.name}:{line}:c{concurrency}"),
        sweep_id=place.sweep_id,
        host=fields.pop("host", "not recorded"),
        configuration_id=identity,
        origin="imported",
        source=tool,
        concurrency=concurrency,
        status="ok",
        **fields,
    )


def settle(made: record.Cell) -> record.Cell:
    """Decide the status of an imported cell by the same rules as our own: a failure is never a zero."""
    if made.requests_completed == 0:
        fail(made, "no request completed", "bench.all_requests_failed")
    elif made.phantom_successes:
        made.status = "invalid"
        made.reason = f"{made.phantom_successes} requests came back as successes without output"
    elif made.requests_failed:
        made.status = "invalid"
        made.reason = f"{made.requests_failed} of {made.requests_asked} requests failed"
        made.failure = record.Failure(klass="bench.partial_failure")
    elif made.system_tok_s is None:
        made.status = "invalid"
        made.reason = "requests completed, but the file has no output throughput"
    return made


def fail(made: record.Cell, reason: str, klass: str = "unknown") -> record.Cell:
    """Mark a cell as failed: its zeros are no measurements and are dropped."""
    made.status = "failed"
    made.reason = reason
    made.failure = record.Failure(klass=klass)
    made.system_tok_s = made.per_user_tok_s = made.step_time_ms = made.running_mean = None
    made.ttft_ms = made.tpot_ms = made.e2e_ms = made.acceptance = None
    made.output_tokens_total = None
    return made


def per_user(tpot_ms: record.Quantiles | None) -> float | None:
    """Per-user tok/s from the median TPOT."""
    median = positive(tpot_ms.median) if tpot_ms else None
    return 1000.0 / median if median else None


def step_time(made: record.Cell) -> None:
    """Fill in the step time where running sequences, AL and throughput are all there."""
    al = made.acceptance.al_token_weighted if made.acceptance else None
    if al is None and made.method == "none":
        al = 1.0
    if al and made.running_mean and made.system_tok_s:
        made.step_time_ms = made.running_mean * al / made.system_tok_s * 1000.0
