"""Plan the sweep: validate every variable, expand the grid, write sweep.json; touches no host."""

from __future__ import annotations

import getpass
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
from ansible.utils.vars import load_extra_vars

from specsweep import plan as plans
from specsweep import predict, record
from specsweep.controller import group
from specsweep.controller.step import Step, StepFailed, plain
from specsweep.variables import ALIASES, BY_NAME, VariableError, misspelt, normalise


class PlanStep(Step):
    """Returns the sweep's id and folder, the plan as text, and one item a restart for the play's loop."""

    takes = ("folder", "only", "load_driver")

    def do(self, arguments: dict[str, Any]) -> dict[str, Any]:
        extra = dict(load_extra_vars(self._loader))
        complaint = misspelt(name for name in extra if not name.startswith(("ansible_", "_")))
        if complaint:
            raise VariableError(complaint)
        names = {name: name for name in BY_NAME} | ALIASES
        given = {
            ours: self._templar.template(self.variables[name]) for name, ours in names.items() if name in self.variables
        }
        if arguments.get("only"):
            given = {"baseline": False, "anchors": False, **given}
        variables = normalise(plain(given), raw_params=str(extra.get("_raw_params", "")))
        # A cross-check has a driver of its own, which no variable can ask for.
        variables["load_driver"] = arguments.get("load_driver") or variables["load_driver"]
        plan = plans.make(variables)
        if arguments.get("only") and len(plan.restarts) != 1:
            many = ", ".join(item.label for item in plan.configurations)
            raise StepFailed(
                f"budgets: expected values that make one configuration, such as budgets=16; they make {many}"
            )
        everyone = plain(self.variables["ansible_play_hosts_all"])
        led = group.followers(everyone, self.variables["hostvars"])
        if led and arguments.get("only"):
            raise StepFailed("serve_follows: one engine over several hosts can be swept, not deployed; run sweep.yml")
        leader_of = {name: leader for leader, names in led.items() for name in names}
        hosts = [name for name in everyone if name not in leader_of]
        results = Path(variables["sweep_results"])
        if not results.is_absolute():
            results = Path(arguments.get("folder") or ".") / results
        plan.predicted_s = predict.seconds(plan, variables, results)
        text = plans.as_text(plan, hosts)
        answer: dict[str, Any] = {
            "changed": False,
            "text": text,
            "plan_only": variables["sweep_plan_only"],
            "strict": variables["sweep_strict"],
            "replay": plan.replay,
            "followers": led,
            "leader_of": leader_of,
            "restarts": [],
        }
        if variables["sweep_plan_only"]:
            return answer
        now = time.time()
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
        sweep_id = f"{stamp}-{plans.digest([plan.configurations, variables, now])[:4]}"
        folder = results / sweep_id
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise StepFailed(
                f"sweep_results: expected a folder that can be written; got {str(results)!r}: {error.strerror}"
            ) from None
        record.write(
            folder / "sweep.json",
            record.Sweep(
                sweep_id=sweep_id,
                created_unix_s=now,
                origin="replay" if plan.replay else "measured",
                specsweep_version=_version("specsweep"),
                controller={
                    "host": platform.node(),
                    "user": getpass.getuser(),
                    "python": platform.python_version(),
                    "ansible_core": _version("ansible-core"),
                },
                variables=variables,
                hosts=hosts,
                plan=msgspec.to_builtins(plan),
            ),
        )
        labels = {item.key: item.label for item in plan.configurations}
        answer.update(
            changed=True,
            sweep_id=sweep_id,
            sweep_folder=str(folder.resolve()),
            results=str(results.resolve()),
            restarts=[
                {
                    "position": restart.position,
                    "of": len(plan.restarts),
                    "label": labels[restart.configuration],
                    "role": f"anchor, {restart.anchor}" if restart.anchor else f"block {restart.repeat}",
                }
                for restart in plan.restarts
            ],
        )
        return answer


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
