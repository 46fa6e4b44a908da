"""What became of a restart and of its cells: status, reason and failure class from everything that was seen.

The rules are those of docs/record.md: a cause beats its effect, a stop that we asked for is never a failure,
and a cell that ended in anything but `ok` keeps one sentence that says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from analysis.classify import Witnesses, classify
from analysis.classify.rules import load_rules
from specsweep.record import Attestation, Cell, Configuration, Failure, Line, Status

#: Steps of ours that fail with a known cause, before any log exists.
CLASS_OF_STEP = {
    "port": "proc.port_in_use",
    "gpu": "proc.gpu_occupied",
    "disk": "proc.disk_full",
    "lost": "deploy.ssh_unreachable",
    "flags": "config.arg.unrecognized",
}
PHASE_OF_STEP = {
    "lost": "deploy",
    "port": "unit_start",
    "gpu": "unit_start",
    "disk": "unit_start",
    "flags": "deploy",
}


def from_step(step: str, message: str) -> Failure | None:
    """The failure of a step that knows its own cause, else None."""
    klass = CLASS_OF_STEP.get(step)
    if klass is None:
        return None
    return Failure(
        klass=klass,
        tier=1,
        phase=PHASE_OF_STEP[step],
        evidence=[Line(source="task", line=1, text=message)],
        fingerprint=klass,
        advice=advice_of(klass),
        retry="after" if step in ("port", "gpu", "disk") else "once",
    )


def from_attestation(attestation: Attestation | None, reason: str) -> Failure | None:
    """The failure where another process or an older definition runs; None where the engine's log must tell."""
    if attestation is None:
        return None
    against = [item for item in attestation.witnesses if item.verdict in ("not_applied", "wrong_process")]
    names = {item.name for item in against}
    if not names & {"unit", "command_line", "environment", "start_time", "port_owner"}:
        return None
    reload = any("not reloaded" in item.detail for item in against)
    klass = "unit.daemon_reload_needed" if reload else "deploy.not_applied.stale_process"
    return Failure(
        klass=klass,
        tier=1,
        phase="deploy",
        evidence=[Line(source="task", line=1, text=reason)],
        fingerprint=klass,
        advice=advice_of(klass),
        retry="after",
    )


def advice_of(klass: str) -> str:
    """The advice of a class, from the classifier's rules."""
    rule = load_rules().rules.get(klass)
    return rule.advice if rule else ""


def look(evidence: Path, witnesses: Witnesses, client_log: str = "") -> Failure | None:
    """Classify what was collected; None when there is nothing to report.

    `client_log` is the log of a native load tool, inside `evidence`.
    """
    logs = {}
    if client_log and (evidence / client_log).exists():
        logs["client"] = evidence / client_log
    for source, name in (("engine", "engine.log"), ("unit", "unit.log"), ("kernel", "kernel.log")):
        for path in (evidence / f"{name}.gz", evidence / name):
            if path.exists() and path.stat().st_size:
                logs[source] = path
                break
    verdict = classify(logs, witnesses)
    if verdict.klass == "none":
        return None
    data = verdict.to_dict()
    data["klass"] = verdict.klass
    return msgspec.convert({**data, "evidence": [_line(item) for item in data.get("evidence", [])]}, Failure)


def _line(item: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "source": str(item.get("source", "")),
        "line": int(item.get("line") or 0),
        "text": str(item.get("text", "")),
    }


def swept_differences(attestation: Attestation | None, swept: Mapping[str, Any]) -> list[str]:
    """Adjusted settings that the sweep is about, in words; empty when only side settings were adjusted."""
    if attestation is None:
        return []
    return [
        f"{item.name}: asked {item.asked}, the engine runs {item.effective}"
        for item in attestation.differences
        if item.name in swept
    ]


def settle_cells(
    configuration: Configuration,
    cells: list[Cell],
    *,
    status: Status,
    reason: str,
    failure: Failure | None,
    reached: str | None,
) -> None:
    """Give every cell that has no final status the one of its restart.

    `reached` is the load point at which it happened (None: before any was sent); later ones were never sent.
    """
    for cell in cells:
        if cell.status != "pending":
            continue
        cell.status = status
        cell.failure = failure
        cell.reached = f"c{cell.concurrency}" == reached
        cell.reason = reason if cell.reached or reached is None else f"not reached: {reason}"
    if status not in ("ok", "pending"):
        configuration.status, configuration.reason, configuration.failure = status, reason, failure


def judge_cell(cell: Cell, point: Mapping[str, Any]) -> None:
    """Status of a load point that was measured to its end."""
    if point.get("failed"):
        cell.status = "failed"
        cell.reason = str(point["failed"])
    elif cell.requests_completed == 0:
        cell.status = "failed"
        cell.reason = f"none of {cell.requests_asked} requests was answered"
    elif cell.phantom_successes:
        cell.status = "invalid"
        cell.reason = f"{cell.phantom_successes} answers only looked like successes"
    elif cell.requests_failed:
        cell.status = "invalid"
        cell.reason = f"{cell.requests_failed} of {cell.requests_asked} requests failed"
    elif point.get("void"):
        cell.status = "invalid"
        cell.reason = str(point["void"])
    elif point.get("running_before"):
        cell.status = "invalid"
        cell.reason = f"{point['running_before']:g} requests that are not ours were running before the load"
    elif cell.client and cell.client.overloaded:
        cell.status = "invalid"
        cell.reason = f"the load client was overloaded: its own loop was {cell.client.lag_ms_p99:.0f} ms late at p99"
    else:
        cell.status = "ok"
    cell.remarks += point.get("remarks") or []
    if point.get("warmup_failed"):
        cell.remarks.append(f"{point['warmup_failed']} warm-up requests failed")
    if str(point.get("flush", "")).startswith("not flushed"):
        cell.remarks.append(f"the cache was {point['flush']}")
    if cell.cached_prompt_tokens:
        cell.remarks.append(f"{cell.cached_prompt_tokens} prompt tokens came from the cache")


def from_task(reason: str) -> Failure:
    """The failure of a host that could not be used, from Ansible's own message."""
    verdict = classify({}, Witnesses(task_result={"msg": reason, "failed": True}))
    klass = verdict.klass if verdict.klass != "none" else "unknown"
    return Failure(
        klass=klass,
        tier=verdict.tier,
        phase="deploy",
        evidence=[Line(source="task", line=1, text=reason)],
        fingerprint=verdict.fingerprint or klass,
        advice=verdict.advice,
        retry=verdict.retry,
        pointer=verdict.pointer,
    )
