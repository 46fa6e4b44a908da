#!/usr/bin/python
"""Restart the engine, wait until it generates, and attest that it runs what was asked."""

from __future__ import annotations

import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.specsweep_agent import attest, generate, guard, ready
from ansible.module_utils.specsweep_agent.service import ServiceError, manager

DOCUMENTATION = r"""
module: specsweep_ready
short_description: Restart the engine, wait until our own process generates, and attest
options:
  home: {type: path, required: true, description: Folder of specsweep on the host.}
  sweep_id: {type: str, required: true, description: Owner of the lock.}
  lease_s: {type: float, required: true, description: How long the lock lives without a step.}
  service: {type: str, required: true, description: Name of the unit.}
  run: {type: path, required: true, description: Folder of this restart on the host.}
  url: {type: str, required: true, description: Address of the engine, seen from the host.}
  headers: {type: dict, description: HTTP headers, for an engine with a key.}
  ready: {type: dict, required: true, description: The profile's rules of readiness.}
  dialect: {type: dict, required: true, description: The profile's form of a request.}
  body: {type: dict, required: true, description: Body of the first generation.}
  timeout_s: {type: float, required: true, description: Longest wait.}
  attest: {type: dict, required: true, description: The profile's checks, filled for this configuration.}
  wanted: {type: dict, required: true, description: Unit, arguments and environment as rendered.}
  restart: {type: bool, description: Restart first; without it only wait and attest.}
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
            "url": {"type": "str", "required": True},
            "headers": {"type": "dict", "default": {}},
            "ready": {"type": "dict", "required": True},
            "dialect": {"type": "dict", "required": True},
            "body": {"type": "dict", "required": True},
            "timeout_s": {"type": "float", "required": True},
            "attest": {"type": "dict", "required": True},
            "wanted": {"type": "dict", "required": True},
            "restart": {"type": "bool", "default": True},
        }
    )
    given = module.params
    home, run = Path(given["home"]), Path(given["run"])
    service = manager(given["service"], home)
    began_unix_s = time.time()
    try:
        guard.renew(home, given["sweep_id"], given["lease_s"])
        started = time.monotonic()
        if given["restart"]:
            service.restart()
    except guard.Locked as error:
        module.fail_json(msg=str(error), step="lock")
    except ServiceError as error:
        properties = service.properties()
        module.fail_json(
            msg=str(error), step="restart", properties=properties, invocation_id=properties.get("InvocationID", "")
        )
    first = service.properties()
    waited = ready.wait(
        service,
        given["url"],
        given["ready"],
        given["dialect"],
        generate.with_prompt(given["body"], generate.PROMPT),
        given["headers"],
        given["timeout_s"],
        started,
    )
    phases = [{"name": "ready", "start_unix_s": began_unix_s, "end_unix_s": time.time(), "detail": waited["outcome"]}]
    result = {
        "changed": given["restart"],
        "outcome": waited["outcome"],
        "reason": waited["reason"],
        "ready_s": waited["ready_s"],
        "timeline": waited["timeline"],
        "invocation_id": first.get("InvocationID") or waited["properties"].get("InvocationID", ""),
        "main_pid": int(first.get("MainPID") or 0),
        "restarted_unix_s": began_unix_s,
        "properties": waited["properties"],
        "detected_unix_s": time.time() if waited["outcome"] == "failed" else None,
        "generated": waited["generated"],
        "phases": phases,
        "attestation": {"verdict": "unknown", "witnesses": [], "differences": []},
    }
    if waited["outcome"] == "wrong_process":
        result["attestation"]["verdict"] = "wrong_process"
        result["attestation"]["witnesses"] = [
            {"name": "port_owner", "verdict": "wrong_process", "detail": waited["reason"]}
        ]
    if waited["outcome"] != "ready":
        module.fail_json(msg=waited["reason"], step="ready", **result)
    began = time.time()
    properties = service.properties()
    witnesses = attest.main_process(given["wanted"], properties, service.installed_unit(), service.pids(), given["url"])
    heard, differences, pages = attest.engine_report(
        given["url"], given["attest"], given["wanted"]["flags"], given["headers"]
    )
    witnesses.append(heard)
    for path, page in pages.items():
        name = "report" + path.split("?")[0].replace("/", "-") + ".txt"
        (run / "evidence" / name).write_text(page)
    verdict = attest.verdict(witnesses)
    result["attestation"] = {"verdict": verdict, "witnesses": witnesses, "differences": differences}
    phases.append({"name": "attest", "start_unix_s": began, "end_unix_s": time.time(), "detail": verdict})
    if verdict in ("not_applied", "wrong_process"):
        reason = "; ".join(
            "{name}: {detail}".format(**witness) for witness in witnesses if witness["verdict"] == verdict
        )
        module.fail_json(msg="{}: {}".format(verdict.replace("_", " "), reason), step="attest", **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
