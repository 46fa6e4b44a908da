#!/usr/bin/python
"""Collect the evidence of one restart into one file on the host: whole, compressed, secrets taken out."""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.specsweep_agent import evidence, guard, host, redact
from ansible.module_utils.specsweep_agent.service import manager

DOCUMENTATION = r"""
module: specsweep_collect
short_description: Collect log, kernel messages, reports and results of one restart
options:
  home: {type: path, required: true, description: Folder of specsweep on the host.}
  sweep_id: {type: str, required: true, description: Owner of the lock.}
  lease_s: {type: float, required: true, description: How long the lock lives without a step.}
  service: {type: str, required: true, description: Name of the unit.}
  run: {type: path, required: true, description: Folder of this restart on the host.}
  invocation_id: {type: str, description: The run of the unit whose journal is wanted.}
  start_unix_s: {type: float, required: true, description: Start of the window for kernel messages.}
  argv: {type: list, elements: str, description: Command line.}
  environment: {type: dict, description: Environment, to know its secrets.}
author: specsweep
"""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "path", "required": True},
            "sweep_id": {"type": "str", "required": True},
            "lease_s": {"type": "float", "required": True},
            "service": {"type": "str", "required": True},
            "run": {"type": "path", "required": True},
            "invocation_id": {"type": "str", "default": ""},
            "start_unix_s": {"type": "float", "required": True},
            "argv": {"type": "list", "elements": "str", "default": []},
            "environment": {"type": "dict", "default": {}},
        }
    )
    given = module.params
    home, run = host.home_folder(given["home"]), Path(given["run"])
    try:
        guard.renew(home, given["sweep_id"], given["lease_s"])
    except guard.Locked as error:
        module.fail_json(msg=str(error), step="lock")
    run.mkdir(parents=True, exist_ok=True)
    secrets = redact.secret_values(given["environment"], given["argv"])
    service = manager(given["service"], home)
    # A client that is still there belongs to a measurement that was given up.
    service.end(guard.CLIENT)
    found = evidence.collect(service, run, given["invocation_id"], given["start_unix_s"], secrets, given["argv"])
    module.exit_json(changed=True, **found)


if __name__ == "__main__":
    main()
