#!/usr/bin/python
"""Take the host's lock, lay the agent's files on it, start the guard, and say what machine this is."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.specsweep_agent import guard, host
from ansible.module_utils.specsweep_agent.service import ServiceError, atomic_write, manager

DOCUMENTATION = r"""
module: specsweep_host
short_description: Take the lock of a host for a sweep and describe the host
description:
  - Takes the lock, notes what runs before the sweep, lays the agent on the host, starts the guard.
options:
  home: {type: path, description: Folder of specsweep on the host; chosen by user when empty.}
  files: {type: dict, required: true, description: Place in the folder to text of agent and engine files.}
  sweep_id: {type: str, required: true, description: Owner of the lock.}
  service: {type: str, required: true, description: Name of the unit.}
  replaces: {type: list, elements: str, description: Units that are stopped for the sweep and started after it.}
  lease_s: {type: float, required: true, description: How long the lock lives without a step.}
  engine_python: {type: str, description: Python of engine and load client.}
  stop_replaced: {type: bool, description: Stop the replaced units now.}
author: specsweep
"""

PROBE = (
    "import importlib.util as u, sys; "
    "print(sys.version_info[0], sys.version_info[1], *[n for n in %r if u.find_spec(n)])"
)
MODULES = ["aiohttp", "xllamacpp", "supervisor"]


def lay(folder: Path, files: dict) -> bool:
    """Write the files that differ; whether any did."""
    changed = False
    for name, text in files.items():
        path = folder / name
        digest = hashlib.sha256(text.encode()).digest()
        if not path.exists() or hashlib.sha256(path.read_bytes()).digest() != digest:
            atomic_write(path, text)
            changed = True
    return changed


def probe_python(python: str, home: Path) -> dict:
    """Version of a Python and which of the modules that we may need it has (with our own folder beside)."""
    environment = dict(os.environ, PYTHONPATH=str(home / "site"))
    try:
        done = subprocess.run(
            [python, "-c", PROBE % MODULES], capture_output=True, text=True, timeout=60, env=environment, check=False
        )
    except OSError as error:
        return {"path": python, "error": error.strerror}
    if done.returncode:
        return {"path": python, "error": (done.stderr.strip().splitlines() or ["it failed"])[-1]}
    major, minor, *found = done.stdout.split()
    return {"path": python, "version": f"{major}.{minor}", "modules": found}


def forget_old_runs(folder: Path, sweep_id: str) -> None:
    """Drop what earlier sweeps left here: it was fetched.  The last one stays, for playbooks/collect.yml."""
    others = sorted((path for path in folder.glob("*") if path.name != sweep_id), key=lambda path: path.stat().st_mtime)
    for path in others[:-1]:
        shutil.rmtree(str(path), ignore_errors=True)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "path", "default": ""},
            "files": {"type": "dict", "required": True},
            "sweep_id": {"type": "str", "required": True},
            "service": {"type": "str", "required": True},
            "replaces": {"type": "list", "elements": "str", "default": []},
            "lease_s": {"type": "float", "required": True},
            "engine_python": {"type": "str", "default": ""},
            "stop_replaced": {"type": "bool", "default": True},
        }
    )
    given = module.params
    home = host.home_folder(given["home"])
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        module.fail_json(msg=f"{home}: expected a folder that can be written: {error.strerror}")
    changed = lay(home, given["files"])
    python = given["engine_python"] or sys.executable
    try:
        lease = guard.acquire(home, given["sweep_id"], given["service"], given["replaces"], given["lease_s"])
        if given["stop_replaced"]:
            guard.stop_replaced(home, lease)
        guard.start(home, lease, sys.executable)
        forget_old_runs(home / "runs", given["sweep_id"])
        service = manager(given["service"], home)
    except (guard.Locked, ServiceError) as error:
        module.fail_json(msg=str(error))
    facts = host.describe(home)
    facts["supervisor"] = service.kind
    module.exit_json(
        changed=changed,
        home=str(home),
        facts=facts,
        python=probe_python(python, home),
        before=lease["before"]["active"],
        replaced=lease["before"]["replaced"],
        gpu_memory_mib=host.gpu_memory_used_mib(),
    )


if __name__ == "__main__":
    main()
