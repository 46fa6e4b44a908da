"""Render a configuration and put it on the host as a unit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specsweep import engine as engines
from specsweep import record
from specsweep.controller import runfolder
from specsweep.controller.group import without_cells
from specsweep.controller.hosting import LEASE_S, engine_environment
from specsweep.controller.runfolder import RunFolder
from specsweep.controller.step import Step, StepFailed
from specsweep.systemd import environment_file, quote


class RenderStep(Step):
    """Make the restart's records (pending) and render its command line; touches no host."""

    needs = ("sweep_folder", "position", "address", "port")
    takes = ("environment", "names", "follows")

    def do(self, arguments: dict[str, Any]) -> dict[str, Any]:
        folder = Path(arguments["sweep_folder"])
        sweep = record.read(folder / "sweep.json", record.Sweep)
        host = record.read(folder / self.host / "host.json", record.Host)
        plan = runfolder.load_plan(sweep)
        restart = plan.restarts[int(arguments["position"]) - 1]
        configuration = next(item for item in plan.configurations if item.key == restart.configuration)
        run = runfolder.create(sweep, folder, host, configuration, restart)
        if arguments.get("follows"):
            without_cells(run)
        profile = engines.load(sweep.variables["engine"])
        names = engines.scope(
            profile,
            method=configuration.method,
            budget=configuration.budget,
            topk=configuration.topk,
            settings=configuration.settings,
            place=place(profile, sweep, host, arguments),
        )
        flags = set(host.facts["flags"])
        rendered = engines.render(profile, configuration.method, configuration.settings, names, flags)
        environment = {**engine_environment(host, arguments.get("environment") or {}), **rendered.environment}
        argv = [*host.engine_command, *rendered.arguments]
        stop = engines.stop_rule(profile, host.engine_version)
        state = run.note(
            argv=argv,
            environment=environment,
            flags=rendered.flags,
            names={name: value for name, value in names.items() if _plain(value)},
            missing_flags=engines.missing_flags(rendered, flags),
            stop=json.loads(json.dumps({key: getattr(stop, key) for key in stop.__struct_fields__})),
            url=profile.url.format(address=arguments["address"], port=arguments["port"]),
            port=int(arguments["port"]),
        )
        return {
            "changed": False,
            "run": str(run.path),
            "name": configuration.label,
            "argv": [quote(argument) for argument in argv],
            "environment": environment_file(environment),
            "stop": state["stop"],
            "restart": f"{restart.position}/{len(plan.restarts)}",
        }


def place(
    profile: engines.Profile, sweep: record.Sweep, host: record.Host, arguments: dict[str, Any]
) -> dict[str, Any]:
    """Names of a profile's templates that belong to this host and sweep, not to the configuration."""
    return {
        "model": host.facts["model"],
        "drafter": host.facts["drafter"] or None,
        "address": arguments["address"],
        "port": int(arguments["port"]),
        "engine_python": host.facts["engine_python"],
        "home": host.facts["home"],
        "concurrency_max": max(sweep.variables["concurrencies"]),
        "output_tokens": sweep.variables["output_tokens"],
        "seed": sweep.variables["seed"],
        "files": f"{host.facts['home']}/files/{profile.files}" if profile.files else None,
        **(arguments.get("names") or {}),
    }


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))


class ApplyStep(Step):
    """Stop what runs, verify and install the unit."""

    needs = ("run", "unit", "service", "home")
    takes = ("reconnect_timeout_s", "disk_mib", "install")

    def do(self, arguments: dict[str, Any]) -> dict[str, Any]:
        run = RunFolder(arguments["run"])
        state = run.state()
        if state["missing_flags"]:
            missing = " ".join(state["missing_flags"])
            raise self.failed(run, f"this build of the engine does not know {missing} (its --help was read)", "flags")
        host = record.read(run.path.parents[1] / "host.json", record.Host)
        configuration = run.configuration()
        remote = f"{arguments['home']}/runs/{configuration.sweep_id}/{run.path.parent.name}/{run.path.name}"
        unit = str(arguments["unit"])
        environment = environment_file(state["environment"])
        if host.supervisor == "supervisor":
            unit = json.dumps(
                {
                    "argv": state["argv"],
                    "directory": "/",
                    "kill_mode": state["stop"]["kill_mode"],
                    "stop_timeout_s": state["stop"]["timeout_s"],
                },
                indent=1,
                sort_keys=True,
            )
            environment = json.dumps(state["environment"])
        folder = run.path / "unit"
        folder.mkdir(exist_ok=True)
        (folder / ("engine.service" if host.supervisor != "supervisor" else "engine.supervisor.json")).write_text(unit)
        try:
            answer = self.call(
                "specsweep_apply",
                {
                    "home": arguments["home"],
                    "sweep_id": configuration.sweep_id,
                    "lease_s": LEASE_S + float(state["stop"]["timeout_s"]),
                    "service": arguments["service"],
                    "run": remote,
                    "unit": unit,
                    "environment": environment,
                    "port": state["port"],
                    "stop": state["stop"],
                    "gpu_memory_mib": host.facts["gpu_memory_before_mib"],
                    "disk_mib": int(arguments.get("disk_mib") or 200),
                    "install": arguments.get("install", True),
                },
                tries_s=float(arguments.get("reconnect_timeout_s") or 0),
            )
        except StepFailed as failure:
            run.add_phases(failure.result.get("phases", []))
            raise self.failed(run, str(failure), **failure.result) from None
        run.add_phases(answer["phases"])
        run.note(
            remote=remote, written_unix_s=answer["written_unix_s"], unit_text=answer["unit"], stopped=answer["stopped"]
        )
        return {"changed": True, "stopped": answer["stopped"]}

    @staticmethod
    def failed(run: RunFolder, message: str, step: str = "", **result: Any) -> StepFailed:
        """Keep why, for the record that `collect` writes."""
        run.note(failed={"at": "apply", "step": step, "reason": message, "properties": result.get("properties", {})})
        return StepFailed(message, step=step, lost=bool(result.get("lost")))
