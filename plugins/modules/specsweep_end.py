#!/usr/bin/python
"""End the engine on this host, because a rank on another one is gone and it would wait for it for ever."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.specsweep_agent.service import manager

DOCUMENTATION = r"""
module: specsweep_end
short_description: Kill the unit of an engine whose other rank is gone
options:
  home: {type: path, required: true, description: Folder of specsweep on the host.}
  service: {type: str, required: true, description: Name of the unit.}
  for_s: {type: float, description: Also if it is started within so many seconds.}
author: specsweep
"""

POLL_S = 0.2


def kill(pids: set) -> bool:
    """Kill these processes; whether there was one."""
    found = False
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
            found = True
        except OSError:
            continue
    return found


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "path", "required": True},
            "service": {"type": "str", "required": True},
            "for_s": {"type": "float", "default": 0.0},
        }
    )
    given = module.params
    service = manager(given["service"], Path(given["home"]))
    was = service.properties().get("ActiveState", "")
    deadline = time.monotonic() + given["for_s"]
    ended = False
    while True:
        # The step that starts it may be under way: what was ended once is not started again.
        if service.properties().get("ActiveState") in ("active", "activating"):
            ended = kill(service.pids())
        if ended or was == "failed" or time.monotonic() >= deadline:
            break
        time.sleep(POLL_S)
    module.exit_json(changed=ended, was=was)


if __name__ == "__main__":
    main()
