#!/usr/bin/python
"""Start a unit that answers no requests, or look at it for a while; keeps the lock meanwhile."""

from __future__ import annotations

import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.specsweep_agent import guard, procfs
from ansible.module_utils.specsweep_agent.service import ServiceError, how_it_ended, manager

DOCUMENTATION = r"""
module: specsweep_watch
short_description: Start the unit of a follower, or watch it
options:
  home: {type: path, required: true, description: Folder of specsweep on the host.}
  sweep_id: {type: str, required: true, description: Owner of the lock.}
  lease_s: {type: float, required: true, description: How long the lock lives without a step.}
  service: {type: str, required: true, description: Name of the unit.}
  restart: {type: bool, description: Restart the unit first.}
  watch_s: {type: float, description: Watch for so long, in seconds; less when the unit ends.}
author: specsweep
"""

POLL_S = 0.1


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "path", "required": True},
            "sweep_id": {"type": "str", "required": True},
            "lease_s": {"type": "float", "required": True},
            "service": {"type": "str", "required": True},
            "restart": {"type": "bool", "default": False},
            "watch_s": {"type": "float", "default": 0.0},
        }
    )
    given = module.params
    home = Path(given["home"])
    service = manager(given["service"], home)
    began_unix_s = time.time()
    try:
        guard.renew(home, given["sweep_id"], given["lease_s"])
        if given["restart"]:
            service.restart()
    except guard.Locked as error:
        module.fail_json(msg=str(error), step="lock")
    except ServiceError as error:
        module.fail_json(msg=str(error), step="restart", properties=service.properties())
    properties = service.properties()
    pid = int(properties.get("MainPID") or 0)
    deadline = time.monotonic() + given["watch_s"]
    while pid and procfs.alive(pid) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    if given["watch_s"]:
        properties = service.properties()
    ended = properties.get("ActiveState") not in ("active", "activating", "reloading")
    module.exit_json(
        changed=given["restart"],
        ended=ended,
        reason=how_it_ended(properties) if ended else "",
        properties=properties,
        began_unix_s=began_unix_s,
        now_unix_s=time.time(),
    )


if __name__ == "__main__":
    main()
