"""One step of a sweep on one host, as an Ansible action.

A lost connection never takes the host out of the play: the step fails with `lost: true`, so that the rescue and
always parts of the play run and the next configuration starts.  A failure is one line.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase

#: Between two tries to reach a host again.
RECONNECT_EVERY_S = 2.0

AGENT = Path(__file__).parents[2] / "plugins" / "module_utils" / "specsweep_agent"


class StepFailed(Exception):
    """A step that failed; `result` goes to the user and to the next steps."""

    def __init__(self, message: str, **result: Any) -> None:
        super().__init__(message)
        self.result = result


class Step(ActionBase):  # type: ignore[misc]
    """Base of the steps.  A subclass has `needs` (required arguments), `takes` (others) and `do`."""

    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()

    def run(self, tmp: str | None = None, task_vars: Mapping[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments: dict[str, Any] = plain(self._task.args)
        missing = [name for name in self.needs if name not in arguments]
        unknown = [name for name in arguments if name not in (*self.needs, *self.takes)]
        if missing or unknown:
            raise AnsibleActionFail(f"{self._task.action}: missing arguments {missing}, unknown arguments {unknown}")
        self.variables = task_vars or {}
        try:
            result.update(self.do(arguments))
        except StepFailed as failure:
            result.update(failed=True, msg=str(failure), **failure.result)
        except ValueError as error:
            # Our own errors (variables, plans, profiles, records) are ValueErrors with one line for the user.
            result.update(failed=True, msg=str(error))
        return result

    def cleanup(self, force: bool = False) -> None:
        """Leave no temporary folder; a host that cannot be reached any more keeps its own."""
        with contextlib.suppress(AnsibleError):
            super().cleanup(force)

    def do(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Do the step; returns what the task's result holds.  Raises StepFailed."""
        raise NotImplementedError

    @property
    def host(self) -> str:
        return str(plain(self.variables["inventory_hostname"]))

    def call(self, module: str, arguments: Mapping[str, Any], *, tries_s: float = 0.0) -> dict[str, Any]:
        """Run a module on the host.

        A lost connection is tried again for `tries_s` (only for modules that may run twice), then StepFailed
        with `lost`.  A failed module is StepFailed with the module's result.
        """
        deadline = time.monotonic() + tries_s
        while True:
            try:
                answer = self._execute_module(module_name=module, module_args=dict(arguments), task_vars=self.variables)
            except AnsibleConnectionFailure as error:
                reason = first_line(error)
                if time.monotonic() >= deadline:
                    raise StepFailed(f"{self.host} cannot be reached: {reason}", step="lost", lost=True) from None
                # Its own failure says nothing new: the next try will tell.
                with contextlib.suppress(AnsibleError):
                    self._connection.reset()
                time.sleep(min(RECONNECT_EVERY_S, max(0.1, deadline - time.monotonic())))
                continue
            except AnsibleError as error:
                raise StepFailed(f"{self.host}: {first_line(error)}", step="task") from None
            answer.pop("invocation", None)
            answer.pop("_ansible_parsed", None)
            if answer.get("unreachable"):
                answer.pop("unreachable")
                if time.monotonic() >= deadline:
                    raise StepFailed(f"{self.host} cannot be reached: {answer.get('msg')}", step="lost", lost=True)
                continue
            if answer.get("failed"):
                message = one_line(str(answer.pop("msg", "")) or str(answer.get("module_stderr", "")))
                answer.pop("failed")
                answer.pop("exception", None)
                answer.setdefault("step", "task")
                raise StepFailed(message or f"{module} failed without a message", **plain(answer))
            return dict(plain(answer))


def plain(data: Any) -> Any:
    """Plain data of Ansible's tagged values, which serialisers other than its own refuse."""
    return json.loads(json.dumps(data, default=str))


def first_line(error: BaseException) -> str:
    return one_line(str(getattr(error, "message", None) or error))


def one_line(text: str) -> str:
    """The telling line of a message: the last one that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:600] if lines else ""
