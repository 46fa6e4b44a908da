"""SGLang's `bench_speculative.py` and SpecForge: rows of batch size, steps, top-k, draft tokens and speed.

The script launches a server for every configuration, so a row is a restart; with steps, top-k and draft
tokens empty the server was launched elsewhere, and nothing says how.
"""

from __future__ import annotations

from typing import Any

from analysis.importers.source import Imported, Place, Row, RowError, cell, positive, settle, step_time, whole
from specsweep import record

TOOL = "bench_speculative"
_SHAPE = ("steps", "topk", "num_draft_tokens")


def matches(row: Row) -> bool:
    return "batch_size" in row and all(name in row for name in _SHAPE) and _length(row) is not _ABSENT


_ABSENT = object()


def _length(row: Row) -> Any:
    return row.get("acc_length", row.get("accept_length", _ABSENT))


def convert(row: Row, place: Place) -> Imported:
    speed = next((row[name] for name in ("throughput", "speed", "tok_s") if name in row), None)
    if speed is None:
        raise RowError("expected throughput, speed or tok_s, got none of them")
    batch = whole(row.get("batch_size"))
    if not batch:
        raise RowError(f"expected a batch size, got {row.get('batch_size')!r}")
    steps, topk, tokens = (whole(row.get(name)) for name in _SHAPE)
    remarks = ["the row does not say how many requests failed", "running sequences are not in the row"]
    known = steps is not None and tokens is not None
    plain = known and not tokens
    if not known:
        remarks.append("the server was launched elsewhere: its settings are not in the row")
    if positive(row.get("step_time")):
        remarks.append("the row has a step time of its own; ours follows from speed, AL and batch size")
    method = "none" if plain else "speculative" if known else "unknown"
    label = "none" if plain else f"({steps},{topk},{tokens})" if known else place.path.stem
    length = positive(_length(row))
    made = cell(
        place,
        TOOL,
        label=label,
        engine="sglang",
        model="",
        method=method,
        budget=tokens or 0,
        topk=topk,
        verify_width=tokens or 1 if known else None,
        candidates=(tokens or 1) - 1 if known else None,
        settings={"steps": steps} if known and not plain else {"file": place.path.stem} if not known else {},
        baseline=plain,
        concurrency=batch,
        prompts=str(row.get("benchmark") or "not recorded"),
        window_s=positive(row.get("duration")),
        output_tokens_total=whole(row.get("completion_tokens")),
        # The script has no count of requests; a row with a speed completed at least its batch.
        requests_asked=batch,
        requests_completed=batch if positive(speed) else 0,
        system_tok_s=positive(speed),
        acceptance=record.Acceptance(
            estimator="tool: completion tokens / verify calls", scope="cell", al_token_weighted=length
        )
        if length
        else None,
        remarks=remarks,
    )
    step_time(made)
    imported = Imported()
    # A row with settings is a server of its own.
    imported.add(settle(made), launch=str(place) if known else None)
    return imported
