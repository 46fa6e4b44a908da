#!/usr/bin/python
"""Start the load client on the host, or find the one that runs, and watch it and the engine to the end.

The client outlives this module: when the connection is lost, the same call finds it again and waits on.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.specsweep_agent import guard, procfs
from ansible.module_utils.specsweep_agent.service import ServiceError, atomic_write, how_it_ended, manager

DOCUMENTATION = r"""
module: specsweep_load
short_description: Load the engine at every load point of a configuration
options:
  home: {type: path, required: true, description: Folder of specsweep on the host.}
  sweep_id: {type: str, required: true, description: Owner of the lock.}
  lease_s: {type: float, required: true, description: How long the lock lives without a step.}
  service: {type: str, required: true, description: Name of the unit.}
  run: {type: path, required: true, description: Folder of this restart on the host.}
  python: {type: str, required: true, description: Python with aiohttp.}
  main_pid: {type: int, required: true, description: Main process of the engine when it was attested.}
  job: {type: dict, required: true, description: The load client's job.}
author: specsweep
"""

POLL_S = 0.05
UNIT_EVERY_S = 0.25
#: How long the client may take to write what it has after it was told to end.
CLIENT_END_S = 10.0
MANAGER_LATE_S = 2.0


def read_status(run: Path) -> dict:
    try:
        return json.loads((run / "status.json").read_text())
    except (OSError, ValueError):
        return {}


def engine_trouble(main_pid: int, properties: dict) -> str:
    """Why the engine is not the one that was attested; empty while it is."""
    if properties.get("ActiveState") != "active":
        return how_it_ended(properties)
    now = int(properties.get("MainPID") or 0)
    if (main_pid and now != main_pid) or int(properties.get("NRestarts") or 0) > 0:
        return "the engine was restarted while measuring (main process %d, now %d)" % (main_pid, now)
    return ""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "path", "required": True},
            "sweep_id": {"type": "str", "required": True},
            "lease_s": {"type": "float", "required": True},
            "service": {"type": "str", "required": True},
            "run": {"type": "path", "required": True},
            "python": {"type": "str", "required": True},
            "main_pid": {"type": "int", "required": True},
            "job": {"type": "dict", "required": True},
        }
    )
    given = module.params
    home, run = Path(given["home"]), Path(given["run"])
    service = manager(given["service"], home)
    try:
        guard.renew(home, given["sweep_id"], given["lease_s"])
        if not (run / "job.json").exists():
            job = dict(
                given["job"],
                folder=str(run),
                service={"name": given["service"], "home": str(home), "main_pid": given["main_pid"]},
            )
            atomic_write(run / "job.json", json.dumps(job), 0o600)
            environment = {"PYTHONPATH": os.pathsep.join([str(home / "agent"), str(home / "site")])}
            argv = [given["python"], "-m", "specsweep_agent.load_client", str(run / "job.json")]
            service.spawn(guard.CLIENT, argv, environment, run / "load_client.log")
    except guard.Locked as error:
        module.fail_json(msg=str(error), step="lock")
    except ServiceError as error:
        module.fail_json(msg=str(error), step="client")
    began = time.monotonic()
    next_look = 0.0
    trouble = ""
    detected_unix_s = None
    while True:
        status = read_status(run)
        if status.get("state", "running") != "running":
            break
        now = time.monotonic()
        if status and not procfs.alive(status["pid"]):
            time.sleep(POLL_S)
            status = read_status(run)
            if status.get("state") == "running":
                status.update(state="broken", reason="the load client ended without a word")
            break
        if not status and now - began > 30:
            status = {"state": "broken", "reason": "the load client did not start", "points": {}, "phases": []}
            break
        gone = bool(given["main_pid"]) and not procfs.alive(given["main_pid"])
        if gone or now >= next_look:
            properties = service.properties()
            next_look = now + UNIT_EVERY_S
            trouble = engine_trouble(given["main_pid"], properties)
            if trouble:
                detected_unix_s = time.time()
                break
        time.sleep(POLL_S)
    if trouble:
        # The client writes what it has; the properties are read again when systemd has settled.
        service.end(guard.CLIENT)
        deadline = time.monotonic() + CLIENT_END_S
        while procfs.alive(status.get("pid", 0) or -1) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        status = dict(read_status(run) or status, state="engine_ended", reason=trouble)
    properties = service.properties()
    state = status.get("state")
    # The client may see the end of the engine a moment before the service manager does.
    deadline = time.monotonic() + (MANAGER_LATE_S if state == "interrupted" else 0.0)
    while not trouble:
        trouble = engine_trouble(given["main_pid"], properties)
        if trouble:
            state, status["reason"] = "engine_ended", trouble
            detected_unix_s = detected_unix_s or time.time()
        elif time.monotonic() > deadline:
            break
        else:
            time.sleep(POLL_S)
            properties = service.properties()
    reached = status.get("point")
    if status.get("points", {}).get(reached) == "done":
        reached = None
    log = run / "load_client.log"
    tail = log.read_text(errors="replace").strip().splitlines()[-1:] if log.exists() else []
    result = {
        "changed": True,
        "state": state,
        "reason": status.get("reason", ""),
        "points": status.get("points", {}),
        "reached": reached,
        "phases": status.get("phases", []),
        "properties": properties,
        "detected_unix_s": detected_unix_s,
    }
    if state == "broken":
        result["reason"] = "; ".join([result["reason"], *tail])
    if state != "done":
        module.fail_json(msg=result["reason"] or f"the load client: {state}", step="load", **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
