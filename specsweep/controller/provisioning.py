"""Bring to a host what it lacks: wheels of the load client and the embedded engine, and the embedded model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specsweep import embedded, record
from specsweep import engine as engines
from specsweep.controller.step import Step, StepFailed


class ProvisionStep(Step):
    """Install missing parts into the host's folder; returns the model's path on the host."""

    needs = ("sweep_folder", "home")
    takes = ("command", "model", "wheels")

    def do(self, arguments: dict[str, Any]) -> dict[str, Any]:
        folder = Path(arguments["sweep_folder"])
        sweep = record.read(folder / "sweep.json", record.Sweep)
        path = folder / self.host / "host.json"
        host = record.read(path, record.Host)
        profile = engines.load(sweep.variables["engine"])
        if host.facts.get("engine_python_error"):
            raise StepFailed(
                f"engine_python: {host.facts['engine_python']} on {self.host}: {host.facts['engine_python_error']}"
            )
        candidates = [arguments["command"]] if arguments.get("command") else profile.commands
        is_embedded = any("specsweep_agent.llama_server" in command for command in candidates)
        needed = ["aiohttp"]
        needed += ["xllamacpp"] if is_embedded else []
        needed += ["supervisor"] if host.supervisor == "supervisor" else []
        missing = [name for name in needed if name not in host.facts["engine_python_modules"]]
        changed = False
        if missing:
            archive = embedded.site_archive(
                missing,
                host.facts["engine_python_version"],
                host.facts["machine"],
                host.facts["libc"],
                str(arguments.get("wheels") or ""),
            )
            changed |= self._send(archive, arguments["home"], unpack=True)
        model = str(arguments.get("model") or sweep.variables["model"])
        if not model and is_embedded:
            local = embedded.model()
            if self._connection.transport == "local":
                model = str(local)
            else:
                changed |= self._send(local, arguments["home"], unpack=False)
                model = f"{arguments['home']}/models/{local.name}"
        if not model and profile.replay:
            model = "replay-model"
        if not model:
            raise StepFailed(f"model: expected a path or model id for the engine {profile.name}; it is not set")
        return {"changed": changed, "installed": missing, "model": model}

    def _send(self, file: Path, home: str, *, unpack: bool) -> bool:
        """Copy a file to the host unless it is there already, by name and size."""
        question = {"home": home, "name": file.name, "size": file.stat().st_size, "unpack": unpack}
        if self.call("specsweep_provision", question)["present"]:
            return False
        folder = self._make_tmp_path()
        try:
            remote = self._connection._shell.join_path(folder, file.name)
            self._transfer_file(str(file), remote)
            self._fixup_perms2([folder, remote])
            self.call("specsweep_provision", {**question, "source": remote})
        finally:
            self._remove_tmp_path(folder)
        return True
