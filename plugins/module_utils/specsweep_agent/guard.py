"""The lock of a sweep on this host, what ran before it, and the guard that gives it back.

    python -m specsweep_agent.guard HOME

The guard is a small process that waits beside the sweep.  Every step of the sweep renews a lease; when the lease
runs out (the controller died, was killed, or lost this host for good) the guard ends engine and load client and
starts what ran before.  `restore` does the same at the regular end.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from .service import ServiceError, Systemd, atomic_write, manager

CLIENT = "specsweep-load"
GUARD = "specsweep-guard"
#: What a deployment keeps of its lease, so that it can be ended.
DEPLOYED = "deployed.json"


class Locked(Exception):
    """Another sweep owns this host; the message says which."""


def _lease(home: Path) -> Path:
    return home / "lease.json"


def read_lease(home: Path) -> dict[str, Any] | None:
    return _read(_lease(home))


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def acquire(home: Path, sweep_id: str, service_name: str, replaces: list[str], seconds: float) -> dict[str, Any]:
    """Take the lock of this host and note what runs, so that it can be given back.

    Raises Locked while another sweep's lease is alive.  An expired one is restored first.
    """
    home.mkdir(parents=True, exist_ok=True)
    # Two sweeps that ask at the same moment must not both find the host free.
    with (home / "lease.lock").open("w") as alone:
        fcntl.flock(alone, fcntl.LOCK_EX)
        return _acquire(home, sweep_id, service_name, replaces, seconds)


def _acquire(home: Path, sweep_id: str, service_name: str, replaces: list[str], seconds: float) -> dict[str, Any]:
    lease = read_lease(home)
    if lease and lease["sweep_id"] != sweep_id:
        left = lease["expires_unix_s"] - time.time()
        if left > 0:
            raise Locked(
                "sweep {} owns this host for another {:.0f} s (lock: {}); ".format(
                    lease["sweep_id"], left, _lease(home)
                )
                + "end it, wait, or run playbooks/restore.yml"
            )
        restore(home)
        lease = None
    if lease is None:
        lease = {"sweep_id": sweep_id, "service": service_name, "before": snapshot(home, service_name, replaces)}
    lease["expires_unix_s"] = time.time() + seconds
    atomic_write(_lease(home), json.dumps(lease))
    return lease


def renew(home: Path, sweep_id: str, seconds: float) -> None:
    """Keep the lease alive for at least so long (0: whoever holds it).  Raises Locked when it is not ours."""
    if seconds <= 0:
        return
    lease = read_lease(home)
    if lease is None or lease["sweep_id"] != sweep_id:
        owner = "sweep {}".format(lease["sweep_id"]) if lease else "nobody: the guard gave the host back"
        raise Locked(f"the lock of this host is not ours any more, it belongs to {owner}")
    lease["expires_unix_s"] = time.time() + seconds
    atomic_write(_lease(home), json.dumps(lease))


def snapshot(home: Path, service_name: str, replaces: list[str]) -> dict[str, Any]:
    """What runs before the sweep: our own unit from an earlier deployment, and the units it replaces."""
    service = manager(service_name, home)
    properties = service.properties()
    before: dict[str, Any] = {"unit": None, "environment": None, "active": False, "replaced": []}
    if properties.get("LoadState") == "loaded" and properties.get("ActiveState") in ("active", "activating"):
        before["active"] = True
    installed = service.installed_unit()
    if installed is not None:
        before["unit"] = installed
        if service.environment_path.exists():
            before["environment"] = service.environment_path.read_text()
    if isinstance(service, Systemd):
        for name in replaces:
            if _unit(name, home).properties().get("ActiveState") in ("active", "activating"):
                before["replaced"].append(name)
    return before


def restore(home: Path, deployed: bool = False) -> dict[str, Any]:
    """End engine and load client, put back what ran before, drop the lock.  Safe to call twice.

    With `deployed` a deployment is ended too, where no sweep holds the host.  What cannot be started again is told
    in `problems`; the lock is dropped all the same.
    """
    lease = read_lease(home)
    if lease is None and deployed:
        lease = _read(home / DEPLOYED)
    if lease is None:
        return {"restored": False, "reason": "no sweep holds this host"}
    service = manager(lease["service"], home)
    service.end(CLIENT)
    service.stop(60.0)
    before = lease["before"]
    told: list[str] = []
    problems: list[str] = []
    try:
        if before["unit"] is None:
            service.remove()
        else:
            _put_back(service, before)
            if before["active"]:
                told.append(lease["service"])
    except ServiceError as error:
        problems.append(str(error))
    for name in before["replaced"]:
        try:
            _unit(name, home).restart()
            told.append(name)
        except ServiceError as error:
            problems.append(str(error))
    kept = _lease(home) if _lease(home).exists() else home / DEPLOYED
    kept.replace(home / "lease.last.json")
    return {"restored": True, "sweep_id": lease["sweep_id"], "started": told, "problems": problems}


def _unit(name: str, home: Path) -> Systemd:
    return Systemd(name.removesuffix(".service"), home)


def _put_back(service: Any, before: dict[str, Any]) -> None:
    """Install the unit of an earlier deployment again, and start it if it ran."""
    if isinstance(service, Systemd):
        service.install(before["unit"], before["environment"] or "")
    else:
        program = json.loads(before["environment"] or before["unit"])
        environment = program.pop("environment", {})
        service.install(json.dumps(program), json.dumps(environment))
    if before["active"]:
        service.restart()


def release(home: Path) -> dict[str, Any]:
    """Drop the lock and leave the engine running: a deployment, not a sweep."""
    lease = read_lease(home)
    if lease is None:
        return {"restored": False, "reason": "no sweep holds this host"}
    before = lease["before"]["unit"]
    measured_only = before is not None and before == manager(lease["service"], home).installed_unit()
    # What was only measured is still the deployment that it was: ending it brings back what ran before *that*.
    kept = "lease.last.json" if measured_only and (home / DEPLOYED).exists() else DEPLOYED
    _lease(home).replace(home / kept)
    return {"restored": True, "sweep_id": lease["sweep_id"], "started": [], "kept": lease["service"]}


def stop_replaced(home: Path, lease: dict[str, Any]) -> None:
    for name in lease["before"]["replaced"]:
        _unit(name, home).stop(120.0)


def main() -> int:
    home = Path(sys.argv[1])
    sweep_id = (read_lease(home) or {}).get("sweep_id")
    while True:
        lease = read_lease(home)
        if lease is None or lease["sweep_id"] != sweep_id:
            return 0
        if time.time() > lease["expires_unix_s"]:
            print(f"the lease of sweep {sweep_id} ran out: giving the host back", flush=True)
            print(json.dumps(restore(home)), flush=True)
            return 0
        time.sleep(1.0)


def start(home: Path, lease: dict[str, Any], python: str) -> None:
    """Start the guard beside the sweep."""
    service = manager(lease["service"], home)
    environment = {"PYTHONPATH": os.pathsep.join([str(home / "agent"), str(home / "site")])}
    service.spawn(GUARD, [python, "-m", "specsweep_agent.guard", str(home)], environment, home / "guard.log")


if __name__ == "__main__":
    sys.exit(main())
