"""Fetch the evidence of a restart, and write its final records: nothing ends without a status."""

from __future__ import annotations

import gzip
import json
import shutil
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from analysis.classify import Witnesses
from specsweep import engine as engines
from specsweep import measure, outcome, record
from specsweep.controller import runfolder
from specsweep.controller.group import Meeting
from specsweep.controller.hosting import LEASE_S
from specsweep.controller.measuring import TOOL_POINT
from specsweep.controller.runfolder import RunFolder
from specsweep.controller.step import Step, StepFailed, one_line

#: Begins the error of requests whose tool left no result (native_load.records).
LOST = "its result is lost"


class CollectStep(Step):
    """Collect on the host, fetch, settle.  Runs always; an unreachable host is waited for, then recorded."""

    needs = ("run", "service", "home")
    takes = ("reconnect_timeout_s", "lease")

    def do(self, arguments: dict[str, Any]) -> dict[str, Any]:
        run = RunFolder(arguments["run"])
        state = run.state()
        began = time.time()
        properties: dict[str, str] = {}
        lost = ""
        if "remote" in state:
            try:
                answer = self.call(
                    "specsweep_collect",
                    {
                        "home": arguments["home"],
                        "sweep_id": run.configuration().sweep_id,
                        "lease_s": LEASE_S if arguments.get("lease", True) else 0,
                        "service": arguments["service"],
                        "run": state["remote"],
                        "invocation_id": state.get("invocation_id", ""),
                        "start_unix_s": state.get("restarted_unix_s", state["began_unix_s"]),
                        "argv": state["argv"],
                        "environment": state["environment"],
                    },
                    tries_s=float(arguments.get("reconnect_timeout_s") or 0),
                )
                properties = answer["properties"]
                self._fetch(answer["bundle"], run)
            except StepFailed as failure:
                lost = str(failure)
        run.add_phases([{"name": "collect", "start_unix_s": began, "end_unix_s": time.time(), "detail": ""}])
        tool_run = part_the_tools(run)
        configuration, cells = _settled(run, properties, lost)
        if tool_run:
            cells += _settled(tool_run, properties, lost)[1]
        return {
            "changed": True,
            "name": configuration.label,
            "status": configuration.status,
            "reason": configuration.reason,
            "cells": [
                {
                    "concurrency": cell.concurrency,
                    "source": cell.source,
                    "status": cell.status,
                    "system_tok_s": cell.system_tok_s,
                    "al": cell.acceptance.al_token_weighted if cell.acceptance else None,
                    "class": cell.failure.klass if cell.failure else None,
                    "reason": cell.reason,
                }
                for cell in cells
            ],
            "overhead_s": configuration.overhead_s,
        }

    def _fetch(self, remote: str, run: RunFolder) -> None:
        local = run.path / ".bundle.tar"
        try:
            self._connection.fetch_file(remote, str(local))
            with tarfile.open(local) as tar:
                tar.extractall(run.path, filter="data")
        except (OSError, tarfile.TarError) as error:
            raise StepFailed(f"the evidence could not be fetched: {one_line(str(error))}") from None
        finally:
            local.unlink(missing_ok=True)


def _settled(
    run: RunFolder, properties: Mapping[str, str], lost: str
) -> tuple[record.Configuration, list[record.Cell]]:
    try:
        return settle(run, properties, lost)
    except Exception as error:
        # A fault of our own must not lose the configuration, nor the ones after it.
        return give_up(run, f"specsweep could not settle this configuration: {error!r}")


def part_the_tools(run: RunFolder) -> RunFolder | None:
    """Move what the native tool of a cross-check measured into its own folder, with what both share copied."""
    tool_run = runfolder.tool_run(run)
    if tool_run is None:
        return None
    for path in sorted(run.path.glob(f"*/{TOOL_POINT}c*")):
        # Its log, command and result file keep together under the load point's name.
        place = tool_run.path / path.parent.name / path.name.removeprefix(TOOL_POINT)
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_dir():
            shutil.rmtree(place)
        path.replace(place)
    for source in (run.evidence, *run.path.glob("telemetry.jsonl.gz")):
        if source.is_dir():
            shutil.copytree(source, tool_run.path / source.name, dirs_exist_ok=True)
        elif source.is_file():
            shutil.copy2(source, tool_run.path / source.name)
    state = run.state()
    failed = state.get("failed")
    if failed and failed.get("reached"):
        # At our client's own load point: the tool's was not reached.
        mine, _, point = failed["reached"].partition(TOOL_POINT)
        state["failed"] = {**failed, "reached": point if not mine else "none of the tool's"}
    for name in ("tool_run", "remote", "phases", "stopped"):
        state.pop(name, None)
    tool_run.note(**state)
    configuration, ours = tool_run.configuration(), run.configuration()
    configuration.attestation, configuration.ready_s = ours.attestation, ours.ready_s
    record.write(tool_run.path / "configuration.json", configuration)
    return tool_run


def settle(
    run: RunFolder, properties: Mapping[str, str], lost: str = ""
) -> tuple[record.Configuration, list[record.Cell]]:
    """Write the final records of a restart from everything that is known, and return them."""
    state = run.state()
    configuration, cells = run.configuration(), run.cells()
    sweep = record.read(run.sweep_folder / "sweep.json", record.Sweep)
    profile = engines.load(sweep.variables["engine"])
    failed: dict[str, Any] = state.get("failed") or {}
    lag_limit_ms = sweep.variables["client_lag_limit_ms"]
    for cell in cells:
        cell.attestation = configuration.attestation.verdict if configuration.attestation else "unknown"
        ended_here = failed.get("reached") == f"c{cell.concurrency}"
        _measured(run, cell, profile, lag_limit_ms, ended_here)
    _restart_status(run, configuration, cells, state, properties, lost, failed)
    if configuration.status == "ok":
        _what_the_log_says_of_a_good_run(run, configuration, state, properties)
    for cell in cells:
        if cell.status in ("failed", "invalid") and cell.failure is None:
            cell.failure = _cell_failure(run, cell, properties)
    configuration.service = _service(run, state, properties)
    configuration.phases = msgspec.convert(state.get("phases", []), list[record.Phase])
    configuration.overhead_s = _overhead(configuration, state)
    configuration.failure_known_unix_s = failed.get("detected_unix_s")
    if state.get("stopped", {}).get("clean") is False:
        configuration.remarks.append(
            f"the engine before this one did not stop as its profile expects: {state['stopped']['how']}"
        )
    for name in ("points", "status.json", "bundle.tar"):
        path = run.path / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    _move_loose_evidence(run)
    run.save(configuration, cells)
    run.forget_state()
    return configuration, cells


def give_up(run: RunFolder, reason: str) -> tuple[record.Configuration, list[record.Cell]]:
    """Final records where settling failed: every pending cell is failed with the reason, the evidence stays."""
    configuration, cells = run.configuration(), run.cells()
    failure = record.Failure(klass="unknown", evidence=[record.Line(source="task", line=1, text=reason)])
    outcome.settle_cells(configuration, cells, status="failed", reason=reason, failure=failure, reached=None)
    run.save(configuration, cells)
    return configuration, cells


def _measured(
    run: RunFolder, cell: record.Cell, profile: engines.Profile, lag_limit_ms: float, ended_here: bool
) -> None:
    """Numbers of a load point that the client began, and its status unless the engine ended in it."""
    point_id = f"c{cell.concurrency}"
    point_path = run.path / "points" / f"{point_id}.json"
    requests_path = run.path / "requests" / f"{point_id}.jsonl.gz"
    if not point_path.exists() or not requests_path.exists():
        return
    point = json.loads(point_path.read_text())
    requests = list(record.read_requests(requests_path))
    measured = [request for request in requests if not request.warmup]
    cell.requests_file = f"requests/{point_id}.jsonl.gz"
    if point.get("no_drafts") or not measured:
        return
    measure.fill(cell, measured, point, profile, lag_limit_ms)
    if point.get("prompts_seen"):
        cell.prompts_reused = True
        cell.remarks.append(f"{point['prompts_seen']} of its prompts had been sent to this process before: AL too high")
    if cell.window_start_unix_s is not None and cell.window_s is not None:
        end = cell.window_start_unix_s + cell.window_s
        cell.telemetry = measure.telemetry(_samples(run), cell.window_start_unix_s, end)
    if not point.get("interrupted") and not ended_here:
        outcome.judge_cell(cell, point)


def _samples(run: RunFolder) -> list[dict[str, Any]]:
    for folder in (run.path, run.evidence):
        path = folder / "telemetry.jsonl.gz"
        if path.exists():
            with gzip.open(path, "rt") as lines:
                return [json.loads(line) for line in lines if line.strip()]
    return []


def _restart_status(
    run: RunFolder,
    configuration: record.Configuration,
    cells: list[record.Cell],
    state: Mapping[str, Any],
    properties: Mapping[str, str],
    lost: str,
    failed: Mapping[str, Any],
) -> None:
    pending = [cell for cell in cells if cell.status == "pending"]
    if not failed and not pending:
        configuration.status = "ok"
        return
    if not failed and not lost:
        failed = {"at": "load", "reason": "the measurement ended before this load point was done"}
    blamed = state.get("blamed")
    if blamed:
        # Another rank of this engine failed first; what became of this one is its effect.
        failed = {"reached": failed.get("reached"), "reason": blamed["reason"]}
    step, reason = str(failed.get("step") or ""), str(failed.get("reason") or lost)
    if not pending and step == "lost":
        # The connection was lost while the client went on: everything was measured.
        configuration.status = "ok"
        configuration.remarks.append(f"the connection was lost while measuring: {reason}")
        return
    status: record.Status = "failed"
    failure: record.Failure | None = msgspec.convert(blamed["failure"], record.Failure) if blamed else None
    if failed.get("outcome") in ("wrong_process", "not_applied", "adjusted") or step == "attest":
        status = "not_applied"
    if failed.get("outcome") == "engine_ended" and "restarted while measuring" in reason:
        status = "invalid"
    if step == "lost" or (lost and not failed):
        failure = outcome.from_step("lost", reason)
    failure = failure or outcome.from_step(step, reason)
    if failure is None and status == "not_applied":
        failure = outcome.from_attestation(configuration.attestation, reason)
    if failure is None:
        failure = outcome.look(run.evidence, _witnesses(configuration, state, properties, failed))
    if failure is None and status == "failed":
        failure = record.Failure(klass="unknown", evidence=[record.Line(source="task", line=1, text=reason)])
    outcome.settle_cells(
        configuration,
        cells,
        status=status,
        reason=_sentence(reason, failure),
        failure=failure,
        reached=failed.get("reached"),
    )
    if status == "failed" and cells and not pending:
        # Everything was measured, then the engine ended: the results stand, the restart says what came after.
        configuration.status = "ok"
        configuration.reason = ""
        configuration.remarks.append(f"after the measurement: {reason}")


def _what_the_log_says_of_a_good_run(
    run: RunFolder,
    configuration: record.Configuration,
    state: Mapping[str, Any],
    properties: Mapping[str, str],
) -> None:
    """Warnings of a restart that went well: kept as its failure class, the status stays `ok`."""
    found = outcome.look(run.evidence, _witnesses(configuration, state, properties, {}))
    if found is not None:
        configuration.failure = found
        shown = found.evidence[0].text[:160] if found.evidence else found.advice
        configuration.remarks.append(f"{found.klass} in the log of a run that went well: {shown}")


def _sentence(reason: str, failure: record.Failure | None) -> str:
    return f"{failure.klass}: {reason}" if failure and failure.klass not in reason else reason


def _witnesses(
    configuration: record.Configuration,
    state: Mapping[str, Any],
    properties: Mapping[str, str],
    failed: Mapping[str, Any],
) -> Witnesses:
    attestation = configuration.attestation
    verdict = attestation.verdict if attestation else None
    if failed.get("outcome") == "not_applied":
        verdict = "not_applied"
    return Witnesses(
        unit=dict(failed.get("properties") or properties or state.get("properties") or {}),
        wanted=dict(state.get("flags") or {}),
        effective={item.name: item.effective for item in attestation.differences} if attestation else {},
        task_result={"msg": str(failed.get("reason", ""))},
        attestation=verdict,
    )


def _cell_failure(run: RunFolder, cell: record.Cell, properties: Mapping[str, str]) -> record.Failure | None:
    errors = []
    if cell.requests_file:
        errors = [request.error for request in record.read_requests(run.path / cell.requests_file) if request.error]
    # Results that a tool lost say nothing about its requests.
    lost = bool(errors) and all(error.startswith(LOST) for error in errors)
    witnesses = Witnesses(
        unit=dict(properties),
        sent=None if lost else cell.requests_asked,
        completed=None if lost else cell.requests_completed,
        failed=None if lost else cell.requests_failed,
        errors=[] if lost else errors[:20],
        attestation=cell.attestation,
    )
    found = outcome.look(run.evidence, witnesses, f"c{cell.concurrency}/tool.log.gz")
    if found is None and lost:
        evidence = [record.Line(source="client", line=1, text=cell.reason)]
        return record.Failure(klass="unknown", phase="benchmark_client", evidence=evidence)
    if found is None and cell.requests_failed:
        klass = "bench.all_requests_failed" if not cell.requests_completed else "bench.partial_failure"
        evidence = [record.Line(source="client", line=index, text=text) for index, text in enumerate(errors[:3], 1)]
        found = record.Failure(
            klass=klass, tier=3 if not cell.requests_completed else 4, phase="benchmark_client",
            evidence=evidence, fingerprint=klass, advice=outcome.advice_of(klass),
        )  # fmt: skip
    return found


def _service(run: RunFolder, state: Mapping[str, Any], properties: Mapping[str, str]) -> record.Service:
    host = record.read(run.path.parents[1] / "host.json", record.Host)
    argv_path = run.evidence / "argv.json"
    argv = json.loads(argv_path.read_text()) if argv_path.exists() else []
    unit = state.get("unit_text", "")
    supervisor: Any = host.supervisor or "none"
    return record.Service(
        supervisor=supervisor,
        unit=unit,
        unit_sha256=measure.sha256(unit) if unit else "",
        argv=argv,
        environment_names=sorted(state.get("environment", {})),
        invocation_id=state.get("invocation_id", ""),
        main_pid=state.get("main_pid"),
        started_unix_s=state.get("restarted_unix_s"),
        properties=dict(properties),
    )


def _overhead(configuration: record.Configuration, state: Mapping[str, Any]) -> float | None:
    """Wall time of this restart on the controller's clock, less engine start, less warm-up and measuring."""
    if not configuration.phases:
        return None
    spent = sum(
        phase.end_unix_s - phase.start_unix_s
        for phase in configuration.phases
        if phase.name in ("ready", "warmup", "measure")
    )
    wall: float = time.time() - state["began_unix_s"]
    return round(wall - spent, 3)


def _move_loose_evidence(run: RunFolder) -> None:
    for name in ("telemetry.jsonl.gz", "load_client.log.gz"):
        path = run.path / name
        if path.exists():
            if path.stat().st_size > 60:
                path.replace(run.evidence / name)
            else:
                path.unlink()


class FinishStep(Step):
    """Close the sweep: skipped cells get their records, and the result is counted."""

    needs = ("sweep_folder",)
    takes = ()

    def do(self, arguments: dict[str, Any]) -> dict[str, Any]:
        folder = Path(arguments["sweep_folder"])
        sweep = record.read(folder / "sweep.json", record.Sweep)
        write_skipped(folder, sweep)
        Meeting(folder).close()
        sweep.finished_unix_s = time.time()
        record.write(folder / "sweep.json", sweep)
        counts: dict[str, int] = {}
        for path in sorted(folder.glob("*/*/*/cells/*.json")):
            cell = record.read(path, record.Cell)
            counts[cell.status] = counts.get(cell.status, 0) + 1
        strict = sweep.variables["sweep_strict"]
        bad = sum(counts.get(status, 0) for status in ("failed", "invalid", "not_applied"))
        pending = counts.get("pending", 0)
        summary = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        answer = {"changed": True, "counts": counts, "summary": summary, "strict": strict, "bad": bad}
        if pending:
            raise StepFailed(f"{pending} cells have no final status: {summary}", **answer)
        return answer


def write_skipped(folder: Path, sweep: record.Sweep) -> None:
    """Records of what the plan left out, so that no cell is a missing row."""
    plan = sweep.plan
    by_label: dict[str, list[dict[str, Any]]] = {}
    for item in plan["skipped"]:
        by_label.setdefault(item["label"], []).append(item)
    for host in sweep.hosts:
        path = folder / host / "host.json"
        known = record.read(path, record.Host) if path.exists() else record.Host(sweep_id=sweep.sweep_id, name=host)
        identities = known.facts.get("identities", {})
        for label, items in by_label.items():
            first = items[0]
            shared: dict[str, Any] = {
                "sweep_id": sweep.sweep_id,
                "host": host,
                "configuration_id": "skipped-" + measure.sha256(label)[:16],
                "label": label,
                "origin": sweep.origin,
                "engine": plan["engine"],
                "engine_version": known.engine_version,
                "model": str(identities.get("model") or sweep.variables["model"]),
                "method": first["method"],
                "budget": first["budget"],
                "topk": first["topk"],
                "settings": first["settings"],
                "baseline": first["method"] == "none",
                "status": "skipped",
            }
            run = RunFolder(folder / host / ("skipped-" + measure.sha256(label)[:8]) / "skipped")
            cells = [
                record.Cell(
                    cell_id=f"{shared['configuration_id']}-{host}-c{item['concurrency']}",
                    concurrency=item["concurrency"],
                    prompts=plan["prompts"],
                    prompts_sha256=plan["prompts_sha256"],
                    output_mode=sweep.variables["output_mode"],
                    output_tokens=sweep.variables["output_tokens"],
                    reason=item["reason"],
                    reached=False,
                    **shared,
                )
                for item in items
            ]
            configuration = record.Configuration(
                reason=first["reason"], cells=[f"cells/c{item['concurrency']}.json" for item in items], **shared
            )
            run.save(configuration, cells)


class UnsettledStep(Step):
    """Restarts of this host that an interrupted sweep left without final records."""

    needs = ("folder",)
    takes = ("sweep",)

    def do(self, arguments: dict[str, Any]) -> dict[str, Any]:
        results = Path(arguments["folder"])
        wanted = str(arguments.get("sweep") or "*")
        found = sorted(path.parent for path in results.glob(f"{wanted}/{self.host}/*/*/.state.json"))
        return {"changed": False, "runs": [str(path) for path in found]}
