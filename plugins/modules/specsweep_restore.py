#!/usr/bin/python
"""Give a host back: end engine and load client, start what ran before the sweep, drop the lock."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.specsweep_agent import guard, host
from ansible.module_utils.specsweep_agent.service import ServiceError, manager

DOCUMENTATION = r"""
module: specsweep_restore
short_description: Start what ran before the sweep
options:
  home: {type: path, description: Folder of specsweep on the host.}
  keep: {type: bool, description: Drop the lock and leave the engine running.}
  deployed: {type: bool, description: End a deployment too, where no sweep holds the host.}
  sweep_id: {type: str, description: Only if this sweep holds the host; any when empty.}
author: specsweep
"""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "path", "default": ""},
            "sweep_id": {"type": "str", "default": ""},
            "keep": {"type": "bool", "default": False},
            "deployed": {"type": "bool", "default": False},
        }
    )
    home = host.home_folder(module.params["home"])
    lease = guard.read_lease(home)
    wanted = module.params["sweep_id"]
    if lease and wanted and lease["sweep_id"] != wanted:
        module.exit_json(changed=False, restored=False, reason="sweep {} holds this host".format(lease["sweep_id"]))
    try:
        told = guard.release(home) if module.params["keep"] else guard.restore(home, module.params["deployed"])
    except ServiceError as error:
        module.fail_json(msg=f"the host could not be given back: {error}")
    if told["restored"] and lease:
        # It would notice by itself within a second; a host that was given back has no process of ours at once.
        manager(lease["service"], home).end(guard.GUARD)
    module.exit_json(changed=told["restored"], **told)


if __name__ == "__main__":
    main()
