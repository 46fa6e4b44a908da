"""From the load client's requests and counters to the numbers of a cell; definitions in specsweep/record.py."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from specsweep.engine import Profile
from specsweep.expression import evaluate
from specsweep.record import Acceptance, Category, Cell, Client, Quantiles, Request, Telemetry

#: A p99 of fewer values is their maximum, so it is not given.
P99_FROM = 100


def quantiles(values: Iterable[float | None]) -> Quantiles:
    """Mean, median, p90, p99 (None below 100 values), min and max of the values that are known."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return Quantiles()
    return Quantiles(
        n=len(known),
        mean=statistics.fmean(known),
        median=statistics.median(known),
        p90=_at(known, 0.9),
        p99=_at(known, 0.99) if len(known) >= P99_FROM else None,
        min=known[0],
        max=known[-1],
    )


def _at(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]


def steps_of(request: Request, profile: Profile, method: str) -> float | None:
    """Decode steps of the target for one request; None where the engine does not tell them per request."""
    if request.output_tokens is None:
        return None
    if method == "none":
        return float(request.output_tokens)
    if profile.acceptance is None:
        return None
    names = {
        "output_tokens": request.output_tokens,
        "accepted_tokens": request.accepted_tokens,
        "drafted_tokens": request.drafted_tokens,
        "drafts": request.drafts,
        "steps": request.steps,
        "histogram": request.histogram,
    }
    if any(names.get(name) is None for name in _names_in(profile.acceptance.steps)):
        return None
    value = evaluate(profile.acceptance.steps, names)
    # More accepted than there are tokens: no such number of steps.
    return float(value) if value and value > 0 else None


def _names_in(expression: str) -> list[str]:
    known = ("output_tokens", "accepted_tokens", "drafted_tokens", "drafts", "steps", "histogram")
    return [name for name in known if name in expression]


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    """Counter differences over the window; a counter that went back (another process) is left out."""
    found = {}
    for name, end in after.items():
        start = before.get(name)
        known = isinstance(end, (int, float)) and isinstance(start, (int, float))
        if known and name != "requests_running" and end >= start:
            found[name] = float(end - start)
    return found


def _positions(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[int] | None:
    ends = after.get("accepted_per_position")
    if not ends:
        return None
    starts = list(before.get("accepted_per_position") or [])
    starts += [0] * (len(ends) - len(starts))
    counts = [int(end - start) for end, start in zip(ends, starts, strict=False)]
    return counts if all(count >= 0 for count in counts) else None


def acceptance(
    requests: Sequence[Request], point: Mapping[str, Any], profile: Profile, method: str
) -> Acceptance | None:
    """Acceptance inside the cell: per request where the engine tells it, else from its counters' differences."""
    done = [request for request in requests if request.ok and request.output_tokens]
    if not done:
        return None
    before, after = point.get("counters_before") or {}, point.get("counters_after") or {}
    counted = differences(before, after)
    tokens = sum(request.output_tokens or 0 for request in done)
    by_counters = None
    if profile.metrics and profile.metrics.steps and method != "none":
        try:
            steps = evaluate(profile.metrics.steps, counted)
        except ValueError:
            steps = None
        if steps and counted.get("output_tokens"):
            by_counters = counted["output_tokens"] / steps
    per_request = [(request, steps_of(request, profile, method)) for request in done]
    known = [(request.output_tokens or 0, steps) for request, steps in per_request if steps]
    common: dict[str, Any] = {
        "drafts": _told((request.drafts for request in done), counted.get("drafts")),
        "drafted_tokens": _told((request.drafted_tokens for request in done), counted.get("drafted_tokens")),
        "accepted_tokens": _told((request.accepted_tokens for request in done), counted.get("accepted_tokens")),
        "accepted_per_position": _positions(before, after),
        "histogram": _histogram(done),
        "counters_al": by_counters,
    }
    if common["accepted_tokens"] is not None and common["drafts"]:
        common["length_of_drafted_steps"] = 1 + common["accepted_tokens"] / common["drafts"]
    if len(known) == len(done):
        total = sum(steps for _, steps in known)
        estimator = "no speculation: one token a step" if method == "none" else ""
        if not estimator and profile.acceptance:
            estimator = profile.acceptance.estimator
        return Acceptance(
            estimator=estimator,
            tokens=tokens,
            steps=total,
            al_token_weighted=tokens / total,
            al_request_weighted=statistics.fmean(count / steps for count, steps in known),
            **common,
        )
    if by_counters is not None and profile.metrics:
        steps = counted["output_tokens"] / by_counters
        return Acceptance(
            estimator=profile.metrics.estimator,
            tokens=_whole(counted["output_tokens"]),
            steps=steps,
            al_token_weighted=by_counters,
            **common,
        )
    return None


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _told(by_requests: Iterable[int | None], by_counters: float | None) -> int | None:
    """What the requests told, zero included; the counters' difference where they told nothing."""
    known = _sum(by_requests)
    return _whole(by_counters) if known is None else known


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _histogram(requests: Sequence[Request]) -> list[int] | None:
    rows = [request.histogram for request in requests if request.histogram]
    if not rows:
        return None
    return [sum(row[index] if index < len(row) else 0 for row in rows) for index in range(max(map(len, rows)))]


def categories(requests: Sequence[Request], profile: Profile, method: str) -> dict[str, Category]:
    """The cell's numbers by prompt category."""
    found = {}
    for name in dict.fromkeys(request.category for request in requests):
        done = [request for request in requests if request.category == name and request.ok]
        steps = [steps_of(request, profile, method) for request in done]
        tokens = sum(request.output_tokens or 0 for request in done)
        total = sum(step for step in steps if step)
        tpot = quantiles(request.tpot_ms for request in done)
        found[name] = Category(
            requests=len(done),
            output_tokens=tokens,
            al_token_weighted=tokens / total if total and all(steps) else None,
            tpot_ms=tpot,
            per_user_tok_s=1000 / tpot.median if tpot.median else None,
        )
    return found


def fill(
    cell: Cell, requests: Sequence[Request], point: Mapping[str, Any], profile: Profile, lag_limit_ms: float
) -> None:
    """Put the numbers of one load point into its cell.  `requests` are the measured ones, without the warm-up.

    A load client whose own loop was later than `lag_limit_ms` at p99 was overloaded.
    """
    done = [request for request in requests if request.ok]
    cell.requests_asked = len(requests)
    cell.requests_completed = len(done)
    cell.requests_failed = len(requests) - len(done)
    cell.phantom_successes = sum(request.phantom for request in requests)
    cell.requests_truncated = (
        sum(str(request.finish_reason) in profile.request.truncated_by for request in done)
        if cell.output_mode == "natural"
        else 0
    )
    cell.window_start_unix_s = point.get("window_start_unix_s")
    cell.window_s = point.get("window_s")
    cell.client = Client(
        name=str(point.get("client") or "specsweep"),
        version=str(point.get("client_version", "")),
        lag_ms_p99=point.get("lag_ms_p99"),
        lag_ms_max=point.get("lag_ms_max"),
        cpu_s=point.get("cpu_s"),
        overloaded=(point.get("lag_ms_p99") or 0) > lag_limit_ms,
    )
    cell.counters = differences(point.get("counters_before") or {}, point.get("counters_after") or {})
    if not done or not cell.window_s:
        return
    cell.prompt_tokens_total = _sum(request.prompt_tokens for request in done)
    cell.cached_prompt_tokens = _sum(request.cached_tokens for request in done)
    cell.output_tokens_total = _sum(request.output_tokens for request in done)
    cell.ttft_ms = quantiles(request.ttft_ms for request in done)
    cell.tpot_ms = quantiles(request.tpot_ms for request in done)
    cell.e2e_ms = quantiles(request.e2e_ms for request in done)
    cell.server_time_ms = sum(request.server_ms or 0 for request in done) if all(r.server_ms for r in done) else None
    cell.acceptance = acceptance(requests, point, profile, cell.method)
    cell.categories = categories(requests, profile, cell.method)
    cell.per_user_tok_s = 1000 / cell.tpot_ms.median if cell.tpot_ms.median else None
    cell.running_mean = sum((request.e2e_ms or 0) / 1000 for request in done) / cell.window_s
    if cell.output_tokens_total:
        cell.system_tok_s = cell.output_tokens_total / cell.window_s
        al = cell.acceptance.al_token_weighted if cell.acceptance else None
        if al:
            cell.step_time_ms = 1000 * cell.running_mean * al / cell.system_tok_s


def telemetry(samples: Iterable[Mapping[str, Any]], start_unix_s: float, end_unix_s: float) -> list[Telemetry]:
    """Summary of the samples inside a window, one a GPU."""
    by_gpu: dict[str, list[Mapping[str, Any]]] = {}
    for sample in samples:
        at = sample.get("at_unix_s")
        if isinstance(at, (int, float)) and start_unix_s <= at <= end_unix_s:
            by_gpu.setdefault(f"{sample.get('index')} {sample.get('name')}", []).append(sample)
    return [_telemetry(gpu, rows) for gpu, rows in by_gpu.items()]


def _telemetry(gpu: str, rows: list[Mapping[str, Any]]) -> Telemetry:
    def numbers(name: str) -> list[float]:
        return sorted(value for row in rows if (value := _number(row.get(name))) is not None)

    def of(name: str, how: Callable[[list[float]], float]) -> float | None:
        values = numbers(name)
        return how(values) if values else None

    clocks = numbers("clocks.sm")
    middle = statistics.median(clocks) if clocks else 0.0
    spread = (_at(clocks, 0.95) - _at(clocks, 0.05)) / middle if middle else None
    utilization = of("utilization.gpu", statistics.fmean)
    reasons = {reason for row in rows for reason in throttle_reasons(row.get("clocks_throttle_reasons.active"))}
    return Telemetry(
        gpu=gpu,
        samples=len(rows),
        sm_clock_mhz_median=of("clocks.sm", statistics.median),
        sm_clock_spread=spread,
        memory_clock_mhz_median=of("clocks.mem", statistics.median),
        power_w_mean=of("power.draw", statistics.fmean),
        power_w_max=of("power.draw", max),
        power_limit_w=of("enforced.power.limit", max),
        temperature_c_max=of("temperature.gpu", max),
        utilization_mean=utilization / 100 if utilization is not None else None,
        memory_used_mib_max=of("memory.used", max),
        throttle_reasons=sorted(reasons),
        foreign_processes=sorted({str(item) for row in rows for item in row.get("foreign", [])}),
    )


def _number(value: Any) -> float | None:
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


#: Bits of NVML's clocks event reasons that mean less than full clocks (nvml.h, nvmlClocksEventReasons).
THROTTLE_BITS = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}


def throttle_reasons(mask: Any) -> list[str]:
    """Names of the throttle reasons in nvidia-smi's hexadecimal mask."""
    try:
        bits = int(str(mask), 16)
    except ValueError:
        return []
    return [name for bit, name in THROTTLE_BITS.items() if bits & bit]


def sha256(text: str) -> str:
    """Hash of a text."""
    return hashlib.sha256(text.encode()).hexdigest()
