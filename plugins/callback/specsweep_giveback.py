"""Give the hosts back when a sweep is interrupted: Ctrl-C ends Ansible without its always parts."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from pathlib import Path

from ansible import context
from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: specsweep_giveback
type: aggregate
short_description: Run playbooks/restore.yml when a sweep is interrupted
description: Starts with the first host that is taken and ends with the play's own end.
"""

RESTORE = Path(__file__).parents[2] / "playbooks" / "restore.yml"


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "specsweep_giveback"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._pid = os.getpid()
        self._taken = False
        self._sweep_id = ""
        atexit.register(self._give_back)

    def v2_playbook_on_task_start(self, task, is_conditional) -> None:
        if task.action.rpartition(".")[2] == "specsweep_host":
            self._taken = True

    def v2_runner_on_ok(self, result) -> None:
        if result.task.action.rpartition(".")[2] == "specsweep_plan":
            self._sweep_id = str(result.result.get("sweep_id") or "")

    def v2_playbook_on_stats(self, stats) -> None:
        self._taken = False

    def _give_back(self) -> None:
        if not self._taken or os.getpid() != self._pid:
            return
        print("interrupted: giving the hosts back", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "ansible", "playbook", str(RESTORE)]
        for inventory in context.CLIARGS.get("inventory") or ():
            command += ["-i", inventory]
        if context.CLIARGS.get("subset"):
            command += ["--limit", context.CLIARGS["subset"]]
        for extra in context.CLIARGS.get("extra_vars") or ():
            command += ["-e", extra]
        # Only what this sweep holds: a host that refused us belongs to another one.
        command += ["-e", f"restore_sweep_id={self._sweep_id or 'none'}"]
        # Pipes of its own: Ansible refuses our stdout, which the interrupt may have left non-blocking.
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=300,
        )
        print(done.stdout, end="", file=sys.stderr, flush=True)
        if done.returncode:
            print(f"the hosts could not all be given back: run {' '.join(command)}", file=sys.stderr, flush=True)
