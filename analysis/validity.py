"""Telemetry and records that void a cell: what was measured was not what was asked.

A void cell is `invalid`: shown in grey, in no verdict.  A window with too few samples is `unobserved`: its
numbers stand, and nobody vouches for the clocks.  The default limits are those of public benchmarks:
30 busy samples and a clock spread of 5 % (mudler/vllm.cpp#2005), 92 C (where a neighbour's scatter tripled in
rmagur1203's notes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from specsweep import record

Verdict = Literal["valid", "invalid", "unobserved"]

#: Reasons of nvidia-smi that slow the clocks by force.
HARD_REASONS = frozenset({"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"})


@dataclass(frozen=True)
class Limits:
    """When a cell is void."""

    least_busy_samples: float = 30
    """samples x mean utilization below this: unobserved"""
    clock_spread: float = 0.05
    """largest (p95 - p5) / median of the SM clock"""
    temperature_c: float = 92.0
    power_limit: float = 0.01
    """largest relative difference from the power limit that this host's other cells ran under"""
    throttle_reasons: frozenset[str] = HARD_REASONS
    foreign_tokens: float = 0.05
    """largest relative excess of the server's count of output tokens over ours"""
    power_cap_voids: bool = False
    """does a binding software power cap void a cell?  It may bind all the time on a host that is set so."""


@dataclass(frozen=True)
class Validity:
    """The verdict and its reasons, one phrase each; `remarks` void nothing but should be known."""

    verdict: Verdict
    reasons: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def normalised(reason: str) -> str:
    """nvidia-smi's names without the prefix that differs by driver version, in snake case."""
    short = reason.strip().lower().replace(" ", "_")
    for prefix in ("clocks_throttle_reasons.", "clocks_event_reasons."):
        short = short.removeprefix(prefix)
    return short


def judge(
    cell: record.Cell,
    limits: Limits | None = None,
    restarts: float | None = None,
    usual_power_limit_w: float | None = None,
) -> Validity:
    """Is a measured cell what it says it is?

    restarts: how often the unit was restarted by its supervisor; usual_power_limit_w: the limit that most
    cells of this host ran under.
    """
    limits = limits or Limits()
    reasons = _of_the_run(cell, limits, restarts)
    remarks: list[str] = []
    thin: list[str] = []
    for gpu in cell.telemetry:
        reasons += [f"{gpu.gpu}: foreign process {name}" for name in gpu.foreign_processes]
        busy = gpu.samples * (1.0 if gpu.utilization_mean is None else gpu.utilization_mean)
        if busy < limits.least_busy_samples:
            thin.append(f"{gpu.gpu}: {busy:.0f} busy samples, {limits.least_busy_samples:.0f} are needed to judge")
            continue
        found, noted = _of_the_gpu(gpu, limits, usual_power_limit_w)
        reasons += found
        remarks += noted
    if reasons:
        return Validity("invalid", tuple(reasons), tuple(remarks))
    if not cell.telemetry:
        return Validity("unobserved", ("no GPU telemetry",), tuple(remarks))
    if thin:
        return Validity("unobserved", tuple(thin), tuple(remarks))
    return Validity("valid", (), tuple(remarks))


def _of_the_run(cell: record.Cell, limits: Limits, restarts: float | None) -> list[str]:
    reasons = []
    if restarts:
        reasons.append(f"the unit was restarted {restarts:.0f} times by its supervisor")
    if cell.phantom_successes:
        reasons.append(f"{cell.phantom_successes} requests came back as successes without output")
    if cell.client is not None and cell.client.overloaded:
        reasons.append("the load client was overloaded")
    counted, ours = cell.counters.get("output_tokens"), cell.output_tokens_total
    if counted is not None and ours and counted > ours * (1 + limits.foreign_tokens):
        reasons.append(f"requests not ours: the server made {counted:.0f} tokens in the window, {ours} of them for us")
    return reasons


def _of_the_gpu(
    gpu: record.Telemetry, limits: Limits, usual_power_limit_w: float | None
) -> tuple[list[str], list[str]]:
    reasons: list[str] = []
    remarks: list[str] = []
    throttled = {normalised(reason) for reason in gpu.throttle_reasons}
    forced = sorted(throttled & limits.throttle_reasons)
    if forced:
        reasons.append(f"{gpu.gpu}: throttled ({', '.join(forced)})")
    if "sw_power_cap" in throttled:
        (reasons if limits.power_cap_voids else remarks).append(f"{gpu.gpu}: the power cap was binding")
    if gpu.sm_clock_spread is not None and gpu.sm_clock_spread > limits.clock_spread:
        reasons.append(
            f"{gpu.gpu}: SM clock spread {gpu.sm_clock_spread:.1%}, at most {limits.clock_spread:.0%} is allowed"
        )
    if gpu.temperature_c_max is not None and gpu.temperature_c_max > limits.temperature_c:
        reasons.append(f"{gpu.gpu}: {gpu.temperature_c_max:.0f} C, at most {limits.temperature_c:.0f} C is allowed")
    limit = gpu.power_limit_w
    if limit and usual_power_limit_w and abs(limit / usual_power_limit_w - 1) > limits.power_limit:
        reasons.append(f"{gpu.gpu}: power limit {limit:.0f} W, this host's other cells had {usual_power_limit_w:.0f} W")
    return reasons, remarks


def usual_power_limits(cells: Sequence[record.Cell]) -> dict[tuple[str, str], float]:
    """Of each sweep and host: the power limit that most of its GPU windows ran under."""
    counts: dict[tuple[str, str], dict[float, int]] = {}
    for cell in cells:
        for gpu in cell.telemetry:
            if gpu.power_limit_w:
                seen = counts.setdefault((cell.sweep_id, cell.host), {})
                seen[gpu.power_limit_w] = seen.get(gpu.power_limit_w, 0) + 1
    return {key: max(seen, key=lambda limit: (seen[limit], limit)) for key, seen in counts.items()}


def apply(
    cells: Sequence[record.Cell],
    restarts: dict[tuple[str, str, str, int, str | None], float],
    limits: Limits | None = None,
) -> list[Validity | None]:
    """Judge every cell that is `ok`; a void one becomes `invalid` with its reasons (in place).

    restarts: of each restart (by `analysis.results.restart_key`), how often its unit was restarted.
    Returns one entry a cell; None for a cell that was not measured.
    """
    usual = usual_power_limits(cells)
    found: list[Validity | None] = []
    for cell in cells:
        if cell.status != "ok":
            found.append(None)
            continue
        if cell.attestation in ("not_applied", "wrong_process"):
            cell.status = "not_applied"
            cell.reason = cell.reason or f"attestation: {cell.attestation}"
            found.append(None)
            continue
        key = (cell.sweep_id, cell.host, cell.configuration_id, cell.repeat, cell.anchor)
        validity = judge(cell, limits, restarts.get(key), usual.get((cell.sweep_id, cell.host)))
        if validity.verdict == "invalid":
            cell.status = "invalid"
            cell.reason = "; ".join(validity.reasons)
        found.append(validity)
    return found
