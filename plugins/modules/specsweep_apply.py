#!/usr/bin/python
"""Stop what runs, look that port and GPU are free, write the unit, verify and install it."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.specsweep_agent import guard, host, procfs
from ansible.module_utils.specsweep_agent.ready import describe
from ansible.module_utils.specsweep_agent.service import ServiceError, clean_end, how_it_ended, manager

DOCUMENTATION = r"""
module: specsweep_apply
short_description: Stop the engine and install the unit of the next configuration
options:
  home: {type: path, required: true, description: Folder of specsweep on the host.}
  sweep_id: {type: str, required: true, description: Owner of the lock.}
  lease_s: {type: float, required: true, description: How long the lock lives without a step.}
  service: {type: str, required: true, description: Name of the unit.}
  run: {type: path, required: true, description: Folder of this restart on the host; emptied.}
  unit: {type: str, required: true, description: Text of the unit.}
  environment: {type: str, required: true, description: Text of the environment file.}
  port: {type: int, required: true, description: Port of the engine.}
  stop: {type: dict, required: true, description: What a good stop looks like.}
  gpu_memory_mib: {type: list, elements: int, description: GPU memory in use before the sweep.}
  install: {type: bool, description: Without it the unit that runs is measured as it is.}
  disk_mib: {type: int, description: Free disk that a configuration needs.}
author: specsweep
"""

#: A port is free a moment after its owner ended.
PORT_WAIT_S = 5.0


def wait_for_port(port: int) -> dict | None:
    """None once nobody listens on the port, else who does after the wait."""
    deadline = time.monotonic() + PORT_WAIT_S
    while procfs.listening_inodes(port):
        if time.monotonic() > deadline:
            owner = procfs.port_owner(port)
            return {"pid": owner, "who": describe(owner), "unit": procfs.unit_of(owner) if owner else None}
        time.sleep(0.05)
    return None


def adopt(module: AnsibleModule, service: Any, run: Path, was: dict) -> None:
    """Make the folder of a measurement of what runs already; nothing is stopped or written to the unit."""
    installed = service.installed_unit()
    if was.get("ActiveState") != "active" or installed is None:
        module.fail_json(
            msg=f"{service.name} does not run on this host: start it with playbooks/deploy.yml", step="adopt"
        )
    if run.exists():
        shutil.rmtree(str(run))
    (run / "evidence").mkdir(parents=True)
    written = service.unit_path.stat().st_mtime
    module.exit_json(changed=True, written_unix_s=written, unit=installed, stopped={}, phases=[])


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "path", "required": True},
            "sweep_id": {"type": "str", "required": True},
            "lease_s": {"type": "float", "required": True},
            "service": {"type": "str", "required": True},
            "run": {"type": "path", "required": True},
            "unit": {"type": "str", "required": True},
            "environment": {"type": "str", "required": True},
            "port": {"type": "int", "required": True},
            "stop": {"type": "dict", "required": True},
            "gpu_memory_mib": {"type": "list", "elements": "int", "default": []},
            "disk_mib": {"type": "int", "default": 200},
            "install": {"type": "bool", "default": True},
        }
    )
    given = module.params
    home, run = Path(given["home"]), Path(given["run"])
    service = manager(given["service"], home)
    phases = []
    began = time.time()
    try:
        guard.renew(home, given["sweep_id"], given["lease_s"])
        was = service.properties()
        service.end(guard.CLIENT)
        if given["install"] and was.get("ActiveState") in ("active", "activating", "deactivating"):
            service.stop(float(given["stop"]["timeout_s"]))
        stopped = service.properties()
    except (guard.Locked, ServiceError) as error:
        module.fail_json(msg=str(error), step="stop")
    if not given["install"]:
        adopt(module, service, run, was)
    phases.append({"name": "stop", "start_unix_s": began, "end_unix_s": time.time(), "detail": ""})
    result = {
        "changed": True,
        "stopped": {"was_active": was.get("ActiveState") == "active", "how": how_it_ended(stopped)},
        "phases": phases,
    }
    if result["stopped"]["was_active"]:
        result["stopped"]["clean"] = clean_end(stopped, given["stop"])
    began = time.time()
    holder = wait_for_port(given["port"])
    if holder is not None:
        advice = ""
        if holder["unit"] and holder["unit"].endswith(".service"):
            advice = "; if it may be stopped for the sweep, name it in serve_replaces"
        module.fail_json(
            msg="port %d is held by %s%s" % (given["port"], holder["who"], advice), step="port", holder=holder, **result
        )
    result["gpu"] = host.wait_for_drained(given["gpu_memory_mib"])
    if not result["gpu"]["drained"]:
        module.fail_json(
            msg="GPU memory is still held {:.0f} s after the stop: {} MiB in use, {} before the sweep".format(
                result["gpu"]["waited_s"], result["gpu"]["used_mib"], result["gpu"]["before_mib"]
            ),
            step="gpu",
            **result,
        )
    if run.exists():
        shutil.rmtree(str(run))
    (run / "evidence").mkdir(parents=True)
    free_mib = shutil.disk_usage(str(run)).free // 2**20
    if free_mib < given["disk_mib"]:
        module.fail_json(
            msg="%s: expected %d MiB of free disk, there are %d" % (run, given["disk_mib"], free_mib),
            step="disk",
            **result,
        )
    try:
        service.install(given["unit"], given["environment"])
    except ServiceError as error:
        module.fail_json(msg=str(error), step="unit", **result)
    installed = service.installed_unit() or ""
    (run / "unit.json").write_text(json.dumps({"unit": installed}))
    phases.append({"name": "apply", "start_unix_s": began, "end_unix_s": time.time(), "detail": ""})
    module.exit_json(written_unix_s=time.time(), unit=installed, **result)


if __name__ == "__main__":
    main()
