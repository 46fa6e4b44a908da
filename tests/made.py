"""Made-up records for tests: short to write, with a truth that the test knows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from analysis.results import Results
from specsweep import record


def cell(
    *,
    budget: int = 8,
    concurrency: int = 1,
    repeat: int = 1,
    tok_s: float | None = 100.0,
    al: float | None = None,
    method: str | None = None,
    **changes: Any,
) -> record.Cell:
    """A made-up cell; budget 0 is the autoregressive baseline."""
    method = method or ("none" if budget == 0 else "ddtree")
    label = changes.pop("label", "none" if method == "none" else f"{method} b{budget}")
    fields: dict[str, Any] = {
        "cell_id": f"{label}/{changes.get('settings', '')}/{changes.get('max_running', '')}/c{concurrency}/r{repeat}",
        "sweep_id": "made",
        "host": "host1",
        "configuration_id": f"id {label} {changes.get('settings', '')} {changes.get('max_running', '')}",
        "label": label,
        "engine": "sglang",
        "engine_version": "made up",
        "model": "made-up-model",
        "method": method,
        "budget": budget,
        "verify_width": budget + 1,
        "candidates": budget,
        "baseline": method == "none",
        "repeat": repeat,
        "concurrency": concurrency,
        "prompts": "made",
        "prompts_sha256": "0" * 64,
        "status": "ok" if tok_s is not None else "failed",
        "system_tok_s": tok_s,
        "per_user_tok_s": tok_s / concurrency if tok_s else None,
        "running_mean": float(concurrency) if tok_s else None,
        "requests_asked": 16,
        "requests_completed": 16 if tok_s else 0,
    }
    if al is not None:
        fields["acceptance"] = record.Acceptance(estimator="made up", al_token_weighted=al, steps=100.0)
        if tok_s:
            fields["step_time_ms"] = concurrency * al / tok_s * 1000
    return record.Cell(**{**fields, **changes})


def results(cells: Iterable[record.Cell], **changes: Any) -> Results:
    """Results that hold these cells, as if loaded."""
    return Results(path=Path("made"), cell_records=list(cells), **changes)


def restarts(values: Iterable[float], **fields: Any) -> list[record.Cell]:
    """One cell per restart, with these system tok/s."""
    return [cell(repeat=number, tok_s=value, **fields) for number, value in enumerate(values, start=1)]
