"""The Laguna DFlash sweep: one JSON a cell (budget K x max-num-seqs) with two shapes of rows in one list.

Rows of concurrency 1 carry their own speed; rows of concurrency 4 carry an aggregate and a list of workers.
Streamed rows only: the unstreamed twins have no time to first token.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from analysis.importers.source import Imported, Place, Row, cell, finite, of_values, settle
from specsweep import record

TOOL = "Laguna sweep"


def matches(row: Row) -> bool:
    return isinstance(row.get("rows"), (list, int)) and isinstance(row.get("cell"), dict) and "K" in row["cell"]


def convert(row: Row, place: Place) -> Imported:
    imported = Imported()
    rows = [item for item in row["rows"] if isinstance(item, dict)]
    for concurrency in sorted({int(item["concurrency"]) for item in rows}):
        here = [item for item in rows if item["concurrency"] == concurrency]
        made, requests = _cell(row, here, concurrency, place)
        imported.add(settle(made), requests)
    return imported


def _cell(report: Row, rows: Sequence[Row], concurrency: int, place: Place) -> tuple[record.Cell, list[record.Request]]:
    budget, running = int(report["cell"]["K"]), int(report["cell"]["max_num_seqs"])
    streams = [(item, item) for item in rows if item.get("method") == "stream"]
    streams += [(item, worker) for item in rows for worker in item.get("workers") or []]
    requests = [_request(number, item, answer) for number, (item, answer) in enumerate(streams)]
    done = [request for request in requests if request.ok]
    speeds = [1000.0 / request.tpot_ms for request in done if request.tpot_ms]
    aggregates = [value for value in (finite(item.get("aggregate_tok_s")) for item in rows) if value]
    remarks = ["acceptance is in the server's log, not in this file"]
    if aggregates:
        system: float | None = statistics.median(aggregates)
        remarks.append(f"throughput: median of {len(aggregates)} batches of {concurrency} requests")
    else:
        busy = sum(request.e2e_ms or 0.0 for request in done) / 1000.0
        system = sum(request.output_tokens or 0 for request in done) / busy if busy else None
        remarks.append("throughput: output tokens of the streamed requests / the sum of their times")
    made = cell(
        place,
        TOOL,
        label=f"dflash b{budget} max-num-seqs={running}",
        engine="vllm",
        model=str(report.get("model") or ""),
        method="dflash",
        budget=budget,
        candidates=budget,
        verify_width=budget + 1,
        max_running=running,
        concurrency=concurrency,
        cell_id=f"K{budget} s{running} c{concurrency}",
        prompts=_prompts(report),
        requests_asked=len(requests),
        requests_completed=len(done),
        requests_failed=len(requests) - len(done),
        output_tokens_total=sum(request.output_tokens or 0 for request in done),
        system_tok_s=system,
        per_user_tok_s=statistics.median(speeds) if speeds else None,
        running_mean=1.0 if concurrency == 1 else None,
        ttft_ms=of_values([request.ttft_ms for request in done if request.ttft_ms is not None]),
        tpot_ms=of_values([request.tpot_ms for request in done if request.tpot_ms is not None]),
        e2e_ms=of_values([request.e2e_ms for request in done if request.e2e_ms is not None]),
        categories=_categories(done),
        remarks=remarks,
    )
    return made, requests


def _prompts(report: Row) -> str:
    matrix = report.get("short_matrix") or {}
    depths = "/".join(str(depth) for depth in matrix.get("depths") or [])
    return f"{report.get('protocol') or 'hermes'} depths {depths}"


def _request(number: int, item: Row, answer: Row) -> record.Request:
    speed = finite(answer.get("decode_tok_s"))
    ok = bool(answer.get("ok")) and speed is not None and speed > 0
    total = finite(answer.get("total_s"))
    where = (item.get("category"), item.get("target_depth"), item.get("gen"))
    return record.Request(
        id=str(number),
        prompt_id="/".join(str(part) for part in where),
        category=str(item.get("category") or ""),
        sent_s=0.0,
        ttft_ms=finite(answer.get("ttft_ms")),
        e2e_ms=None if total is None else total * 1000.0,
        tpot_ms=1000.0 / speed if ok and speed else None,
        prompt_tokens=_int(answer.get("prompt_tokens")),
        output_tokens=_int(answer.get("completion_tokens")),
        ok=ok,
        error=None if ok else str(answer.get("error") or "no speed in the row"),
    )


def _int(value: Any) -> int | None:
    known = finite(value)
    return None if known is None else int(known)


def _categories(done: Sequence[record.Request]) -> dict[str, record.Category]:
    found: dict[str, list[record.Request]] = {}
    for request in done:
        found.setdefault(request.category, []).append(request)
    return {
        name: record.Category(
            requests=len(requests),
            output_tokens=sum(request.output_tokens or 0 for request in requests),
            tpot_ms=of_values([request.tpot_ms for request in requests if request.tpot_ms]),
            per_user_tok_s=statistics.median([1000.0 / request.tpot_ms for request in requests if request.tpot_ms]),
        )
        for name, requests in found.items()
        if any(request.tpot_ms for request in requests)
    }
