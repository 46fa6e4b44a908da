"""Records as tidy frames: one function per frame, columns built whole.

Absent numbers are NaN, absent texts None; an absent number is never 0.  Numbers that a record may leave out
are float64 columns, numbers that every record has are int64 or float64, texts are object columns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import pandas as pd

from specsweep import record

Column = Sequence[Any] | np.ndarray[Any, Any]


def canonical(value: Any) -> str:
    """JSON text with sorted keys: equal settings give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


@cache
def scalar_fields(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Names of the fields of `kind` that hold one value, with "int", "float", "bool" or "text"."""
    fields: dict[str, str] = {}
    for name, hint in get_type_hints(kind).items():
        union = get_origin(hint) in (UnionType, Union)
        parts = [part for part in (get_args(hint) if union else (hint,)) if part is not type(None)]
        optional = union and type(None) in get_args(hint)
        part = parts[0] if len(parts) == 1 else None
        if part is str or get_origin(part) is Literal:
            fields[name] = "text"
        elif part is bool:
            fields[name] = "bool"
        elif part is int:
            fields[name] = "float" if optional else "int"
        elif part is float:
            fields[name] = "float"
    return fields


def _column(values: list[Any], kind: str) -> Column:
    if kind == "int":
        return np.array(values, dtype=np.int64)
    if kind == "bool":
        return np.array(values, dtype=bool)
    if kind == "float":
        return number(values)
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def _frame(columns: dict[str, Column]) -> pd.DataFrame:
    # A bare object array would become pandas' string type, with NaN where we say None.
    return pd.DataFrame(
        {
            name: pd.Series(values, dtype=object) if getattr(values, "dtype", None) == np.dtype(object) else values
            for name, values in columns.items()
        }
    )


def number(values: Iterable[Any]) -> np.ndarray[Any, Any]:
    """float64 column of optional numbers; None becomes NaN."""
    known = [np.nan if value is None else value for value in values]
    try:
        return np.array(known, dtype=np.float64)
    except OverflowError:
        # An integer that no float holds: broken input, and infinite for all purposes.
        return np.array([value if abs(value) < 2**1000 else np.inf for value in known], dtype=np.float64)


def text(values: Iterable[Any]) -> np.ndarray[Any, Any]:
    """Object column; None stays None."""
    return np.asarray(_column(list(values), "text"))


def _scalars(records: Sequence[msgspec.Struct], kind: type[msgspec.Struct]) -> dict[str, Column]:
    return {
        name: _column([getattr(item, name) for item in records], sort) for name, sort in scalar_fields(kind).items()
    }


def _settings(records: Sequence[record.Cell] | Sequence[record.Configuration]) -> dict[str, Column]:
    memo: dict[int, str] = {}
    texts = []
    for item in records:
        key = id(item.settings)
        if key not in memo:
            memo[key] = canonical(item.settings)
        texts.append(memo[key])
    columns: dict[str, Column] = {"settings": text(texts)}
    names = sorted({name for item in records for name in item.settings})
    for name in names:
        columns[f"settings.{name}"] = text(item.settings.get(name) for item in records)
    return columns


def _over(values: Iterable[float | None], how: Callable[[list[float]], float]) -> float | None:
    known = [value for value in values if value is not None]
    return how(known) if known else None


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _gpus(cells: Sequence[record.Cell]) -> dict[str, Column]:
    """Several GPUs as one: mean power and limit, the slowest clock, the worst spread and temperature."""

    def over(name: str, how: Callable[[list[float]], float]) -> np.ndarray[Any, Any]:
        return number(_over((getattr(gpu, name) for gpu in cell.telemetry), how) for cell in cells)

    return {
        "power_w_mean": over("power_w_mean", _mean),
        "power_limit_w": over("power_limit_w", _mean),
        "sm_clock_mhz_median": over("sm_clock_mhz_median", min),
        "sm_clock_spread": over("sm_clock_spread", max),
        "temperature_c_max": over("temperature_c_max", max),
        "utilization_mean": over("utilization_mean", _mean),
        "memory_used_mib_max": over("memory_used_mib_max", max),
        "telemetry_samples": over("samples", min),
        "gpus": np.array([len(cell.telemetry) for cell in cells], dtype=np.int64),
        "throttle_reasons": text(
            ";".join(sorted({reason for gpu in cell.telemetry for reason in gpu.throttle_reasons})) for cell in cells
        ),
        "foreign_processes": text(
            ";".join(sorted({name for gpu in cell.telemetry for name in gpu.foreign_processes})) for cell in cells
        ),
    }


def _quantiles(cells: Sequence[record.Cell]) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    for field in ("ttft_ms", "tpot_ms", "e2e_ms"):
        for part in ("median", "p90", "p99"):
            columns[f"{field}_{part}"] = number(
                getattr(getattr(cell, field), part) if getattr(cell, field) else None for cell in cells
            )
    return columns


_ACCEPTANCE = {
    "al": "al_token_weighted",
    "al_request_weighted": "al_request_weighted",
    "al_counters": "counters_al",
    "al_steps": "steps",
    "length_of_drafted_steps": "length_of_drafted_steps",
    "drafts": "drafts",
    "drafted_tokens": "drafted_tokens",
    "accepted_tokens": "accepted_tokens",
}


def _acceptance(cells: Sequence[record.Cell]) -> dict[str, Column]:
    columns: dict[str, Column] = {
        name: number(getattr(cell.acceptance, field) if cell.acceptance else None for cell in cells)
        for name, field in _ACCEPTANCE.items()
    }
    columns["al_estimator"] = text(cell.acceptance.estimator if cell.acceptance else None for cell in cells)
    columns["al_scope"] = text(cell.acceptance.scope if cell.acceptance else None for cell in cells)
    return columns


def failure_columns(items: Sequence[record.Cell] | Sequence[record.Configuration]) -> dict[str, Column]:
    """failure_class is `unknown` where something failed and nobody said why."""
    return {
        "failure_class": text(
            item.failure.klass if item.failure else ("unknown" if item.status == "failed" else None) for item in items
        ),
        "failure_phase": text(item.failure.phase if item.failure else None for item in items),
        "failure_tier": number(item.failure.tier if item.failure else None for item in items),
        "failure_outcome": text(item.failure.outcome if item.failure else None for item in items),
        "fingerprint": text(item.failure.fingerprint if item.failure else None for item in items),
    }


def cells_frame(cells: Sequence[record.Cell]) -> pd.DataFrame:
    """One row per cell.

    Every scalar field of record.Cell under its own name (units in the names), then: `remarks` ("; "-joined),
    {ttft,tpot,e2e}_ms_{median,p90,p99}, al* and the draft counts of record.Acceptance, failure_*,
    fingerprint, client_*, the telemetry over the cell's GPUs, `settings` as canonical JSON and one
    `settings.NAME` each, batch_product_running = running_mean x verify_width,
    batch_product_max = max_running x verify_width, power_fraction = power_w_mean / power_limit_w.
    """
    columns = _scalars(cells, record.Cell)
    columns["remarks"] = text("; ".join(cell.remarks) for cell in cells)
    columns |= _quantiles(cells)
    columns |= _acceptance(cells)
    columns |= failure_columns(cells)
    columns["client_overloaded"] = np.array(
        [bool(cell.client and cell.client.overloaded) for cell in cells], dtype=bool
    )
    columns["client_lag_ms_p99"] = number(cell.client.lag_ms_p99 if cell.client else None for cell in cells)
    columns |= _gpus(cells)
    columns |= _settings(cells)
    frame = _frame(columns)
    frame["batch_product_running"] = frame["running_mean"] * frame["verify_width"]
    frame["batch_product_max"] = frame["max_running"] * frame["verify_width"]
    frame["power_fraction"] = frame["power_w_mean"] / frame["power_limit_w"].where(frame["power_limit_w"] > 0)
    return frame


#: Columns of a cell that the frames below repeat, so that they can be grouped without a merge.
CELL_KEYS = (
    "sweep_id",
    "host",
    "configuration_id",
    "label",
    "cell_id",
    "method",
    "budget",
    "topk",
    "verify_width",
    "concurrency",
    "repeat",
    "anchor",
    "status",
)


def _cell_keys(cells: Sequence[record.Cell], rows: Sequence[int]) -> dict[str, Column]:
    kinds = scalar_fields(record.Cell)
    return {name: _column([getattr(cells[row], name) for row in rows], kinds[name]) for name in CELL_KEYS}


def categories_frame(cells: Sequence[record.Cell]) -> pd.DataFrame:
    """One row per cell and prompt category: the keys of the cell, then `category`, requests, output_tokens,
    al, per_user_tok_s (median over requests), tpot_ms_{n,mean,median,p90,p99}."""
    rows: list[int] = []
    names: list[str] = []
    entries: list[record.Category] = []
    for row, cell in enumerate(cells):
        for name, entry in cell.categories.items():
            rows.append(row)
            names.append(name)
            entries.append(entry)
    columns = _cell_keys(cells, rows)
    columns["category"] = text(names)
    columns["requests"] = np.array([entry.requests for entry in entries], dtype=np.int64)
    columns["output_tokens"] = np.array([entry.output_tokens for entry in entries], dtype=np.int64)
    columns["al"] = number(entry.al_token_weighted for entry in entries)
    columns["per_user_tok_s"] = number(entry.per_user_tok_s for entry in entries)
    for part in ("n", "mean", "median", "p90", "p99"):
        columns[f"tpot_ms_{part}"] = number(
            getattr(entry.tpot_ms, part) if entry.tpot_ms else None for entry in entries
        )
    return _frame(columns)


def positions_frame(cells: Sequence[record.Cell]) -> pd.DataFrame:
    """One row per cell and draft position (0-based): accepted (count), steps (steps with a draft where the
    source counts them, else all steps), rate = accepted / steps: unconditional, so it falls with position."""
    rows: list[int] = []
    positions: list[int] = []
    accepted: list[int] = []
    steps: list[float | None] = []
    for row, cell in enumerate(cells):
        if cell.acceptance is None or not cell.acceptance.accepted_per_position:
            continue
        drafted = cell.acceptance.drafts if cell.acceptance.drafts is not None else cell.acceptance.steps
        for position, count in enumerate(cell.acceptance.accepted_per_position):
            rows.append(row)
            positions.append(position)
            accepted.append(count)
            steps.append(drafted)
    columns = _cell_keys(cells, rows)
    columns["position"] = np.array(positions, dtype=np.int64)
    columns["accepted"] = np.array(accepted, dtype=np.int64)
    columns["steps"] = number(steps)
    frame = _frame(columns)
    frame["rate"] = frame["accepted"] / frame["steps"].where(frame["steps"] > 0)
    return frame


def configurations_frame(items: Sequence[record.Configuration]) -> pd.DataFrame:
    """One row per restart: the scalars of record.Configuration (ready_s, overhead_s, status, ...), failure_*,
    `attestation` (verdict), `restarts` (NRestarts of the unit), settings, `remarks`."""
    columns = _scalars(items, record.Configuration)
    columns["attestation"] = text(item.attestation.verdict if item.attestation else "unknown" for item in items)
    columns |= failure_columns(items)
    columns["restarts"] = number(restarts_of(item) for item in items)
    columns["remarks"] = text("; ".join(item.remarks) for item in items)
    columns |= _settings(items)
    return _frame(columns)


def restarts_of(item: record.Configuration) -> float | None:
    """How often the supervisor restarted the unit by itself, where it says."""
    value = item.service.properties.get("NRestarts") if item.service else None
    return float(value) if value and value.isdigit() else None


_RESTART_KEYS = ("sweep_id", "host", "configuration_id", "label", "repeat", "anchor", "position")


def _rows_of(
    items: Sequence[record.Configuration], entries: Callable[[record.Configuration], Sequence[Any]]
) -> tuple[dict[str, Column], list[Any]]:
    rows: list[record.Configuration] = []
    found: list[Any] = []
    for item in items:
        for entry in entries(item):
            rows.append(item)
            found.append(entry)
    kinds = scalar_fields(record.Configuration)
    return {name: _column([getattr(row, name) for row in rows], kinds[name]) for name in _RESTART_KEYS}, found


def phases_frame(items: Sequence[record.Configuration]) -> pd.DataFrame:
    """Time line: one row per phase of a restart: keys, name, start_unix_s, end_unix_s, duration_s, detail."""
    columns, phases = _rows_of(items, lambda item: item.phases)
    columns["name"] = text(phase.name for phase in phases)
    columns["start_unix_s"] = number(phase.start_unix_s for phase in phases)
    columns["end_unix_s"] = number(phase.end_unix_s for phase in phases)
    columns["detail"] = text(phase.detail for phase in phases)
    frame = _frame(columns)
    frame["duration_s"] = frame["end_unix_s"] - frame["start_unix_s"]
    return frame


def ready_frame(items: Sequence[record.Configuration]) -> pd.DataFrame:
    """Readiness time line: keys, at_s (from the restart), event, detail."""
    columns, events = _rows_of(items, lambda item: item.ready_timeline)
    columns["at_s"] = number(event.at_s for event in events)
    columns["event"] = text(event.event for event in events)
    columns["detail"] = text(event.detail for event in events)
    return _frame(columns)


def differences_frame(items: Sequence[record.Configuration]) -> pd.DataFrame:
    """Settings that the engine runs with another value: keys, name, asked, effective, witness."""
    columns, found = _rows_of(items, lambda item: item.attestation.differences if item.attestation else ())
    columns["name"] = text(entry.name for entry in found)
    columns["asked"] = text(entry.asked for entry in found)
    columns["effective"] = text(entry.effective for entry in found)
    columns["witness"] = text(entry.witness for entry in found)
    return _frame(columns)


def requests_frame(batches: Sequence[tuple[record.Cell, Sequence[record.Request]]]) -> pd.DataFrame:
    """One row per request: the keys of its cell, then the scalars of record.Request (id, prompt_id, category,
    warmup, sent_s, ttft_ms, e2e_ms, tpot_ms, tokens, steps, drafts, ok, error, ...) and `al` = tokens per
    step."""
    cells = [cell for cell, _ in batches]
    counts = [len(requests) for _, requests in batches]
    flat = [request for _, requests in batches for request in requests]
    columns: dict[str, Column] = {
        name: np.repeat(np.asarray(values), counts) for name, values in _cell_keys(cells, range(len(cells))).items()
    }
    columns |= _scalars(flat, record.Request)
    frame = _frame(columns)
    frame["al"] = frame["output_tokens"] / frame["steps"].where(frame["steps"] > 0)
    return frame
