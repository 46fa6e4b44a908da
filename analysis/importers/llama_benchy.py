"""llama-benchy: `benchmarks[]` with the values of its repeats, which share one server."""

from __future__ import annotations

from typing import Any

from analysis.importers.source import Imported, Place, Row, cell, finite, of_values, settle
from specsweep import record

TOOL = "llama-benchy"


def matches(row: Row) -> bool:
    benchmarks = row.get("benchmarks")
    return "latency_mode" in row and isinstance(benchmarks, list)


def convert(row: Row, place: Place) -> Imported:
    imported = Imported()
    for number, benchmark in enumerate(row["benchmarks"]):
        try:
            imported.add(_benchmark(row, benchmark, number, place))
        except (KeyError, TypeError, ValueError) as error:
            imported.problems.append(f"{place}: benchmark {number}: {error!r}: skipped")
    return imported


def _benchmark(report: Row, benchmark: Row, number: int, place: Place) -> record.Cell:
    speeds = of_values(_values(benchmark["tg_throughput"]))
    users = _values(benchmark.get("tg_req_throughput"))
    model = str(report.get("model") or "")
    runs = len(users)
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
            concurrency=int(benchmark["concurrency"]),
            prompts=f"{benchmark.get('prompt_size')} tokens, context {benchmark.get('context_size')}",
            output_tokens=int(benchmark["response_size"]),
            requests_asked=runs,
            requests_completed=runs if speeds else 0,
            system_tok_s=speeds.median if speeds else None,
            ttft_ms=of_values(_values(benchmark.get("e2e_ttft"))),
            tpot_ms=of_values([1000.0 / value for value in users]),
            per_user_tok_s=_median(users),
            remarks=[
                "the file does not say which server, speculation or settings it measured: compared with nothing",
                "throughput of the generation phase only: the time of the prompts is outside",
                f"median of {speeds.n if speeds else 0} repeats on one server",
                "the file does not say how many requests failed",
            ],
        )
    )


def _values(metric: Any) -> list[float]:
    if not isinstance(metric, dict):
        return []
    listed = metric.get("values") or [metric.get("mean")]
    known = [finite(value) for value in listed]
    return [value for value in known if value is not None and value > 0]


def _median(values: list[float]) -> float | None:
    quantiles = of_values(values)
    return quantiles.median if quantiles else None
