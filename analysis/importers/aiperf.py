"""NVIDIA AIPerf: `profile_export_aiperf.json`, one run; metrics are {unit, avg, p50, ...}."""

from __future__ import annotations

from typing import Any

from analysis.importers.source import Imported, Place, Row, RowError, cell, finite, per_user, positive, settle, whole
from specsweep import record

TOOL = "AIPerf"
_TO_MS = {"ms": 1.0, "s": 1000.0, "sec": 1000.0, "us": 0.001, "ns": 1e-6}


def matches(row: Row) -> bool:
    metadata = row.get("metadata")
    if isinstance(metadata, dict) and "benchmark_phase" in metadata and "metrics" in row:
        return True
    return _is_metric(row.get("request_latency")) and (
        "input_config" in row or "error_summary" in row or _is_metric(row.get("output_token_throughput"))
    )


def convert(row: Row, place: Place) -> Imported:
    if "metadata" in row and "metrics" in row:
        raise RowError("a per-request record of AIPerf; expected its profile_export_aiperf.json")
    completed = whole(_value(row, "request_count")) or 0
    failed = _failed(row)
    concurrency = _find(row.get("input_config"), "concurrency")
    remarks = ["the file does not say which server, speculation or settings it measured: compared with nothing"]
    if not whole(concurrency):
        remarks.append("no concurrency in its input_config: 1 is given")
    tpot = _quantiles(row.get("inter_token_latency"), completed)
    duration = positive(_value(row, "benchmark_duration"))
    model = _model(row)
    made = cell(
        place,
        TOOL,
        label=model or place.path.stem,
        engine="not recorded",
        model=model,
        method="unknown",
        budget=0,
        settings={"file": place.path.parent.name} if place.path.parent.name else {},
        concurrency=whole(concurrency) or 1,
        prompts="not recorded",
        window_s=duration,
        requests_asked=completed + failed,
        requests_completed=completed,
        requests_failed=failed,
        output_tokens_total=whole(_value(row, "total_output_tokens") or _value(row, "total_osl")),
        system_tok_s=positive(_value(row, "output_token_throughput")),
        ttft_ms=_quantiles(row.get("time_to_first_token"), completed),
        tpot_ms=tpot,
        e2e_ms=_quantiles(row.get("request_latency"), completed),
        per_user_tok_s=per_user(tpot),
        remarks=remarks,
    )
    if made.system_tok_s is None and duration and made.output_tokens_total:
        made.system_tok_s = made.output_tokens_total / duration
        made.remarks.append("throughput computed here: output tokens / benchmark duration")
    if row.get("was_cancelled"):
        made.remarks.append("the run was cancelled before its end")
    imported = Imported()
    imported.add(settle(made))
    return imported


def _is_metric(value: Any) -> bool:
    return isinstance(value, dict) and "avg" in value


def _value(row: Row, name: str) -> float | None:
    metric = row.get(name)
    return finite(metric.get("avg")) if isinstance(metric, dict) else finite(metric)


def _failed(row: Row) -> int:
    counted = whole(_value(row, "error_request_count"))
    if counted is not None:
        return counted
    summary = row.get("error_summary")
    return sum(whole(item.get("count")) or 0 for item in summary) if isinstance(summary, list) else 0


def _quantiles(metric: Any, completed: int) -> record.Quantiles | None:
    if not isinstance(metric, dict):
        return None
    unit = str(metric.get("unit") or "ms")
    if unit not in _TO_MS:
        raise RowError(f"expected a time in one of {', '.join(_TO_MS)}, got unit {unit!r}")
    scaled = {
        name: None if finite(metric.get(key)) is None else float(metric[key]) * _TO_MS[unit]
        for name, key in (("mean", "avg"), ("median", "p50"), ("p90", "p90"), ("min", "min"), ("max", "max"))
    }
    p99 = finite(metric.get("p99"))
    if p99 is not None and completed >= 100:
        scaled["p99"] = p99 * _TO_MS[unit]
    return record.Quantiles(n=completed, **scaled)


def _find(tree: Any, name: str) -> Any:
    """The first value of that name in nested settings, whose layout changes between versions."""
    if isinstance(tree, dict):
        if name in tree and not isinstance(tree[name], (dict, list)):
            return tree[name]
        for value in tree.values():
            found = _find(value, name)
            if found is not None:
                return found
    return None


def _model(row: Row) -> str:
    endpoint = (row.get("input_config") or {}).get("endpoint") or {}
    names = endpoint.get("model_names")
    return str(names[0]) if isinstance(names, list) and names else ""
