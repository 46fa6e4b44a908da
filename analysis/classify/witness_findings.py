"""Findings that no log line shows: unit properties, the client's counts, the attestation, the task."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from analysis.classify.findings import Finding
from analysis.classify.rules import Ruleset
from analysis.classify.verdict import Line, Note
from analysis.classify.witnesses import LogInput, Witnesses

KILLED = ("2", "killed")
DUMPED = ("3", "dumped")
# A GPU that holds more than this before the start is not ours (MiB; a CUDA context takes about 500).
FOREIGN_MIB = 1_024.0
_SPECULATION = ("speculative", "spec_", "spec-", "draft")


def witnessed(witnesses: Witnesses, found: Sequence[Finding], rules: Ruleset, *, self_killed: bool) -> list[Finding]:
    """Findings from everything but the logs.

    ``self_killed``: the log shows that the engine, or systemd after its time limit, sent the kill (P9).
    """
    pairs = [
        *_of_unit(witnesses, self_killed=self_killed),
        *_of_attestation(witnesses, found),
        *_of_client(witnesses),
        *_of_memory(witnesses, found),
    ]
    return [_finding(rules, klass, source, text) for klass, source, text in pairs]


def witness_logs(witnesses: Witnesses) -> dict[str, LogInput]:
    """The witnesses that are texts, as logs: kernel messages, the client's errors, a task's result."""
    texts: dict[str, LogInput] = {}
    if witnesses.kernel_log is not None:
        texts["kernel"] = witnesses.kernel_log
    if witnesses.errors:
        texts["client errors"] = "\n".join(witnesses.errors).encode()
    if witnesses.task_result:
        texts["task"] = _task_line(witnesses.task_result).encode()
    return texts


def _task_line(result: Mapping[str, Any]) -> str:
    """An Ansible result as its default output shows it."""
    body = json.dumps(dict(result), default=str)
    if result.get("unreachable"):
        return f"fatal: [host]: UNREACHABLE! => {body}"
    if result.get("failed") or result.get("rc", 0) not in (0, None):
        return f"fatal: [host]: FAILED! => {body}"
    return f"{'changed' if result.get('changed') else 'ok'}: [host] => {body}"


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


def _of_unit(witnesses: Witnesses, *, self_killed: bool) -> list[tuple[str, str, str]]:
    unit = witnesses.unit
    if not unit:
        return []
    shown = " ".join(f"{name}={unit[name]}" for name in sorted(unit) if unit[name])
    classes = [*_of_unit_file(unit)]
    if not witnesses.stopped_by_us:
        classes += _of_unit_end(unit, self_killed=self_killed)
    return [(klass, "unit", shown) for klass in classes]


def _of_unit_file(unit: Mapping[str, str]) -> Iterator[str]:
    if unit.get("NeedDaemonReload") == "yes":
        yield "unit.daemon_reload_needed"
    by_result = {
        "oom-kill": "proc.host_oom_kill",
        "start-limit-hit": "unit.start_limit_hit",
        "resources": "unit.envfile_missing",
    }
    if klass := by_result.get(unit.get("Result", "")):
        yield klass
    by_status = {"203": "unit.exec_not_found", "200": "unit.chdir_failed", "217": "unit.user_missing"}
    if unit.get("Result") == "exit-code" and (klass := by_status.get(unit.get("ExecMainStatus", ""))):
        yield klass


def _of_unit_end(unit: Mapping[str, str], *, self_killed: bool) -> Iterator[str]:
    """What the way that the main process ended says, where nobody of ours ended it."""
    result, status = unit.get("Result", ""), unit.get("ExecMainStatus", "")
    code = unit.get("ExecMainCode", "")
    if result == "timeout":
        starting = unit.get("SubState", "").startswith("start") or status in ("", "0")
        yield "unit.start_timeout" if starting else "unit.stop_timeout"
        return
    if result == "oom-kill":
        return
    by_signal = code in (*KILLED, *DUMPED) or result in ("signal", "core-dump")
    if (by_signal and status in ("9", "KILL")) or status == "137":
        if not self_killed:
            yield "proc.killed"
    elif by_signal or (unit.get("ActiveState") == "inactive" and result in ("", "success")):
        yield "serve.engine_died"


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
