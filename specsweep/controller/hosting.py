"""Take a host for the sweep, find its engine, give it back; and give it up when it cannot be used."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from specsweep import engine as engines
from specsweep import outcome, record
from specsweep.controller import runfolder
from specsweep.controller.step import AGENT, Step, StepFailed

#: How long a lock lives between two steps when the controller is gone.
LEASE_S = 180.0


class HostStep(Step):
    """Lock, agent, guard, facts.  Writes host.json."""

    needs = ("sweep_id", "sweep_folder", "service")
    takes = ("home", "replaces", "engine_python", "reconnect_timeout_s")

    def do(self, arguments: dict[str, Any]) -> dict[str, Any]:
        sweep = record.read(Path(arguments["sweep_folder"]) / "sweep.json", record.Sweep)
        profile = engines.load(sweep.variables["engine"])
        sent = time.time()
        answer = self.call(
            "specsweep_host",
            {
                "home": arguments.get("home") or "",
                "files": {**agent_files(), **engine_files(profile)},
                "sweep_id": arguments["sweep_id"],
                "service": arguments["service"],
                "replaces": arguments.get("replaces") or [],
                "lease_s": LEASE_S,
                "engine_python": arguments.get("engine_python") or "",
            },
            tries_s=float(arguments.get("reconnect_timeout_s") or 0),
        )
        received = time.time()
        facts = answer["facts"]
        offset = facts.pop("now_unix_s") - (sent + received) / 2
        known = {name: facts[name] for name in record.Host.__struct_fields__ if name in facts}
        python = answer["python"]
        host = record.Host(
            sweep_id=arguments["sweep_id"],
            name=self.host,
            # The module's own time is part of the difference, so the offset is known to about its half.
            clock_offset_s=round(offset, 3) if abs(offset) > (received - sent) / 2 else 0.0,
            facts={
                **{name: value for name, value in facts.items() if name not in known},
                "home": answer["home"],
                "engine_python": python.get("path"),
                "engine_python_version": python.get("version"),
                "engine_python_modules": python.get("modules", []),
                "engine_python_error": python.get("error"),
                "gpu_memory_before_mib": answer["gpu_memory_mib"],
                "ran_before": answer["before"],
                "replaced": answer["replaced"],
            },
            **known,
        )
        record.write(Path(arguments["sweep_folder"]) / self.host / "host.json", host)
        return {"changed": answer["changed"], "home": answer["home"], "python": python, "facts": facts}


def agent_files() -> dict[str, str]:
    """The agent's files, by their place in the host's folder."""
    return {f"agent/specsweep_agent/{path.name}": path.read_text() for path in sorted(AGENT.glob("*.py"))}


def engine_files(profile: engines.Profile) -> dict[str, str]:
    """Files that a profile needs on the host, by their place there."""
    if profile.files is None:
        return {}
    folder = engines.ENGINES / profile.files
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {f"files/{profile.files}/{path.relative_to(folder)}": path.read_text() for path in found}


class EngineStep(Step):
    """Find the engine's command, version and flags, and the identity of model and drafter."""

    needs = ("sweep_folder",)
    takes = ("command", "environment", "model", "drafter")

    def do(self, arguments: dict[str, Any]) -> dict[str, Any]:
        folder = Path(arguments["sweep_folder"])
        sweep = record.read(folder / "sweep.json", record.Sweep)
        path = folder / self.host / "host.json"
        host = record.read(path, record.Host)
        profile = engines.load(sweep.variables["engine"])
        place = {"engine_python": host.facts["engine_python"] or "python3"}
        commands = [arguments["command"]] if arguments.get("command") else engines.commands(profile, place)
        environment = engine_environment(host, arguments.get("environment") or {})
        model = str(arguments.get("model") or sweep.variables["model"])
        drafter = str(arguments.get("drafter") or sweep.variables["drafter"])
        answer = self.call(
            "specsweep_engine",
            {
                "commands": commands,
                "environment": environment,
                "help": profile.help,
                "version": engines.version_question(profile, place),
                "paths": {"model": model, "drafter": drafter},
            },
        )
        host.engine = profile.name
        host.engine_version = answer["version"]
        host.engine_command = answer["command"]
        host.engine_flags_sha256 = answer["flags_sha256"]
        host.facts.update(flags=answer["flags"], identities=answer["identities"], model=model, drafter=drafter)
        record.write(path, host)
        return {"changed": False, "command": answer["command"], "version": answer["version"]}


def engine_environment(host: record.Host, given: dict[str, Any]) -> dict[str, str]:
    """Environment that every engine process of this host gets: ours first, the user's wins."""
    home = host.facts["home"]
    ours = {"PYTHONPATH": f"{home}/agent:{home}/site", "HOME": host.facts.get("home_of_user") or home}
    return {**ours, **{str(name): str(value) for name, value in given.items()}}


class GiveUpStep(Step):
    """A host that cannot be used: every cell of the plan is recorded as failed, with the reason."""

    needs = ("sweep_folder", "reason")
    takes = ("step",)

    def do(self, arguments: dict[str, Any]) -> dict[str, Any]:
        folder = Path(arguments["sweep_folder"])
        sweep = record.read(folder / "sweep.json", record.Sweep)
        path = folder / self.host / "host.json"
        if path.exists():
            host = record.read(path, record.Host)
        else:
            host = record.Host(sweep_id=sweep.sweep_id, name=self.host)
            record.write(path, host)
        reason = str(arguments["reason"])
        failure = outcome.from_step(str(arguments.get("step") or ""), reason) or outcome.from_task(reason)
        plan = runfolder.load_plan(sweep)
        by_key = {item.key: item for item in plan.configurations}
        for restart in plan.restarts:
            run = runfolder.create(sweep, folder, host, by_key[restart.configuration], restart)
            for folder_of in filter(None, (run, runfolder.tool_run(run))):
                configuration, cells = folder_of.configuration(), folder_of.cells()
                outcome.settle_cells(
                    configuration, cells, status="failed", reason=reason, failure=failure, reached=None
                )
                folder_of.save(configuration, cells)
            run.forget_state()
        return {"changed": True, "gave_up": True, "reason": reason, "cells": plan.cells}


class RestoreStep(Step):
    """Start what ran before the sweep, drop the lock."""

    takes = ("home", "sweep_id", "keep", "deployed", "reconnect_timeout_s")

    def do(self, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._restore(arguments)
        except StepFailed as failure:
            if not failure.result.get("lost"):
                raise
            # The guard on the host does it when the lease runs out.
            return {"changed": False, "restored": False, "reason": str(failure), "later": True}

    def _restore(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return self.call(
            "specsweep_restore",
            {
                "home": arguments.get("home") or "",
                "sweep_id": arguments.get("sweep_id") or "",
                "keep": arguments.get("keep", False),
                "deployed": arguments.get("deployed", False),
            },
            tries_s=float(arguments.get("reconnect_timeout_s") or 0),
        )
