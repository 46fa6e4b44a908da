"""GuideLLM's report (version 2): `benchmarks[]`, every metric for four populations; ours is `successful`.

Its time_per_output_token includes the wait for the first token; the TPOT of these records is its
inter_token_latency, a mean of each request.
"""

from __future__ import annotations

from typing import Any

from analysis.importers.source import Imported, Place, Row, cell, finite, per_user, positive, settle, whole
from specsweep import record

TOOL = "GuideLLM"


def matches(row: Row) -> bool:
    metadata = row.get("metadata")
    return isinstance(row.get("benchmarks"), list) and isinstance(metadata, dict) and "guidellm_version" in metadata


def convert(row: Row, place: Place) -> Imported:
    imported = Imported()
    for number, benchmark in enumerate(row["benchmarks"]):
        try:
            imported.add(_benchmark(row, benchmark, number, place))
        except (KeyError, TypeError, ValueError) as error:
            imported.problems.append(f"{place}: benchmark {number}: {error!r}: skipped")
    return imported


def _benchmark(report: Row, benchmark: Row, number: int, place: Place) -> record.Cell:
    metrics, strategy = benchmark["metrics"], benchmark["config"]["strategy"]
    totals = metrics["request_totals"]
    completed, errored = int(totals["successful"]), int(totals["errored"])
    incomplete = int(totals.get("incomplete") or 0)
    remarks = [
        "the file does not say which server, speculation or settings it measured: compared with nothing",
        "TPOT is GuideLLM's inter_token_latency (a mean of each request)",
    ]
    if incomplete:
        remarks.append(f"{incomplete} requests were cut off at the end and are left out")
    tokens = _of(metrics, "output_token_count", "total_sum")
    duration = positive(benchmark.get("duration"))
    rate = tokens / duration if tokens and duration else None
    if rate:
        remarks.append("throughput computed here: output tokens of successful requests / duration")
    tpot = _quantiles(metrics, "inter_token_latency_ms", completed)
    spec = (report.get("config") or {}).get("spec") or {}
    model = str((spec.get("backend") or {}).get("model") or "")
    return settle(
        cell(
            place,
            TOOL,
            cell_id=f"{place.path.name}:{number}",
            label=model or place.path.stem,
            engine="not recorded",
            model=model,
            method="unknown",
            budget=0,
            concurrency=_concurrency(strategy, metrics, remarks),
            prompts=f"not recorded, {strategy.get('type_')} {strategy.get('rate') or ''}".strip(),
            window_start_unix_s=finite(benchmark.get("start_time")),
            window_s=duration,
            requests_asked=completed + errored,
            requests_completed=completed,
            requests_failed=errored,
            output_tokens_total=whole(tokens),
            system_tok_s=rate,
            running_mean=positive(_of(metrics, "request_concurrency", "mean")),
            ttft_ms=_quantiles(metrics, "time_to_first_token_ms", completed),
            tpot_ms=tpot,
            e2e_ms=_quantiles(metrics, "request_latency", completed, 1000.0),
            per_user_tok_s=per_user(tpot),
            remarks=remarks,
        )
    )


def _concurrency(strategy: Row, metrics: Row, remarks: list[str]) -> int:
    kind = strategy.get("type_")
    if kind == "synchronous":
        return 1
    if kind == "concurrent":
        asked = whole(strategy.get("streams")) or whole(strategy.get("max_concurrency"))
        if asked:
            return asked
    rate = finite(strategy.get("rate"))
    shape = f"an open loop ({kind}" + (f", {rate:g} requests/s)" if rate is not None else ")")
    remarks.append(f"{shape}: the concurrency is the measured mean, rounded up")
    return max(1, round(_of(metrics, "request_concurrency", "mean") or 1))


def _of(metrics: Row, name: str, part: str) -> float | None:
    population: Any = (metrics.get(name) or {}).get("successful") or {}
    return finite(population.get(part))


def _quantiles(metrics: Row, name: str, completed: int, factor: float = 1.0) -> record.Quantiles | None:
    population = (metrics.get(name) or {}).get("successful")
    if not population or not completed:
        return None
    percentiles = population.get("percentiles") or {}

    def scaled(value: Any) -> float | None:
        known = finite(value)
        return None if known is None else known * factor

    return record.Quantiles(
        n=completed,
        mean=scaled(population.get("mean")),
        median=scaled(population.get("median")),
        p90=scaled(percentiles.get("p90")),
        p99=scaled(percentiles.get("p99")) if completed >= 100 else None,
        min=scaled(population.get("min")),
        max=scaled(population.get("max")),
    )
