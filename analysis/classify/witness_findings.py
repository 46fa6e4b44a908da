"""Findings that no log line shows: unit properties, the client's counts, the attestation, the task."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.classify.findings import Finding
from analysis.classify.rules import Ruleset
from analysis.classify.verdict import Line, Note
from analysis.classify.witnesses import Witnesses

KILLED = ("2", "killed")
DUMPED = ("3", "dumped")
# A GPU that holds more than this before the start is not ours (MiB; a CUDA context takes about 500).
FOREIGN_MIB = 1_024.0
_SPECULATION = ("speculative", "spec_", "spec-", "draft")


def witnessed(witnesses: Witnesses, found: Sequence[Finding], rules: Ruleset, *, stopped: bool) -> list[Finding]:
    """Findings from everything but the logs. ``stopped``: somebody asked the engine to stop."""
    pairs = [
        *_of_unit(witnesses, stopped=stopped),
        *_of_attestation(witnesses, found),
        *_of_client(witnesses),
        *_of_memory(witnesses, found),
    ]
    return [_finding(rules, klass, source, text) for klass, source, text in pairs]


def unit_failed(witnesses: Witnesses) -> bool:
    """Whether the unit's properties alone say that it failed, and nobody asked for the end."""
    unit = witnesses.unit
    if witnesses.stopped_by_us or not unit:
        return False
    return unit.get("ActiveState") == "failed" or unit.get("Result", "success") not in ("success", "")


def remarks(witnesses: Witnesses) -> list[Note]:
    """What makes a result doubtful without being a failure of the engine (P14, P15)."""
    notes: list[Note] = []
    restarts = witnesses.unit.get("NRestarts", "0")
    if restarts not in ("", "0"):
        text = f"NRestarts={restarts}: the unit restarted by itself; a result over a restart is void."
        notes.append(Note("unit.restarted", "note", text, [Line("unit", 0, f"NRestarts={restarts}")]))
    return notes


def _of_unit(witnesses: Witnesses, *, stopped: bool) -> list[tuple[str, str, str]]:
    unit = witnesses.unit
    if not unit:
        return []
    found: list[tuple[str, str, str]] = []
    shown = " ".join(f"{name}={unit[name]}" for name in sorted(unit) if unit[name])
    result, state = unit.get("Result", ""), unit.get("ActiveState", "")
    if unit.get("NeedDaemonReload") == "yes":
        found.append(("unit.daemon_reload_needed", "unit", shown))
    if result == "oom-kill":
        found.append(("proc.host_oom_kill", "unit", shown))
    if result == "start-limit-hit":
        found.append(("unit.start_limit_hit", "unit", shown))
    if result == "resources":
        found.append(("unit.envfile_missing", "unit", shown))
    if witnesses.stopped_by_us:
        return found
    if result == "timeout":
        late = unit.get("SubState", "") in ("start", "start-pre", "auto-restart") or not unit.get("ExecMainStatus")
        found.append(("unit.start_timeout" if late else "unit.stop_timeout", "unit", shown))
    status = unit.get("ExecMainStatus", "")
    by_status = {"203": "unit.exec_not_found", "200": "unit.chdir_failed", "217": "unit.user_missing"}
    if result == "exit-code" and status in by_status:
        found.append((by_status[status], "unit", shown))
    killed = unit.get("ExecMainCode", "") in KILLED or result == "signal"
    if killed and status in ("9", "KILL", "137") and result != "oom-kill" and not stopped:
        found.append(("proc.killed", "unit", shown))
    elif (killed or unit.get("ExecMainCode", "") in DUMPED or result == "core-dump") and result != "oom-kill":
        found.append(("serve.engine_died", "unit", shown))
    ended_well = state == "inactive" and result in ("", "success") and unit.get("SubState", "dead") == "dead"
    if ended_well and not stopped:
        found.append(("serve.engine_died", "unit", shown))
    return found


def _of_attestation(witnesses: Witnesses, found: Sequence[Finding]) -> list[tuple[str, str, str]]:
    state = witnesses.attestation
    if state == "wrong_process":
        return [("deploy.not_applied.stale_process", "attestation", "another process answers on the port")]
    if state == "adjusted":
        return [("config.spec.silently_adjusted", "attestation", _differences(witnesses))]
    if state != "not_applied":
        return []
    if any(finding.rule.tier == 1 for finding in found) or witnesses.unit.get("NeedDaemonReload") == "yes":
        return []
    differing = _differing(witnesses)
    if _speculation_wanted(witnesses) and (not differing or any(_is_speculation(name) for name in differing)):
        return [("config.spec.silently_off", "attestation", _differences(witnesses))]
    if not differing:
        return [("config.spec.silently_off", "attestation", "asked for speculation, no draft was counted")]
    return [("deploy.not_applied.stale_process", "attestation", _differences(witnesses))]


def _is_speculation(name: str) -> bool:
    return any(mark in name.lower() for mark in _SPECULATION)


def _speculation_wanted(witnesses: Witnesses) -> bool:
    return any(_is_speculation(name) and value for name, value in witnesses.wanted.items())


def _differing(witnesses: Witnesses) -> dict[str, tuple[object, object]]:
    effective = witnesses.effective
    return {
        name: (value, effective[name])
        for name, value in witnesses.wanted.items()
        if name in effective and str(effective[name]) != str(value)
    }


def _differences(witnesses: Witnesses) -> str:
    differing = _differing(witnesses)
    if not differing:
        return "the running service differs from what was asked"
    return "; ".join(f"{name}: asked {asked}, runs {runs}" for name, (asked, runs) in differing.items())


def _of_client(witnesses: Witnesses) -> list[tuple[str, str, str]]:
    sent, completed = witnesses.sent, witnesses.completed
    if not sent or completed is None:
        return []
    text = f"{completed} of {sent} requests completed"
    if witnesses.errors:
        text += f"; first error: {witnesses.errors[0][:300]}"
    if completed == 0:
        return [("bench.all_requests_failed", "client", text)]
    if completed < sent:
        return [("bench.partial_failure", "client", text)]
    return []


def _of_memory(witnesses: Witnesses, found: Sequence[Finding]) -> list[tuple[str, str, str]]:
    """Memory that was taken before the start explains an engine that ran out of it."""
    taken = {gpu: mib for gpu, mib in witnesses.gpu_memory_before.items() if mib > FOREIGN_MIB}
    starved = any(f.rule.id.startswith(("mem.gpu.", "cuda.cublas.alloc", "cuda.cublas.not_init")) for f in found)
    if not taken or not starved:
        return []
    text = ", ".join(f"GPU {gpu}: {mib:.0f} MiB used before the start" for gpu, mib in sorted(taken.items()))
    return [("proc.gpu_occupied", "attestation", text)]


def _finding(rules: Ruleset, klass: str, source: str, text: str) -> Finding:
    rule = rules.rules[klass]
    line = Line(source, 0, text)
    phase = "serving_under_load" if klass == "serve.engine_died" else rule.phase
    return Finding(rule, source, 0.0, 0, text, text, "", (line,), phase=phase)
