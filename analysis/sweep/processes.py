"""End a family of processes as a whole: Ansible's workers and their modules are in sessions of their own, and
killing the playbook alone would leave them at work."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

#: After SIGKILL a process is gone within moments, unless the kernel holds it.
GONE_WITHIN_S = 5.0


def family(mark: str) -> set[int]:
    """Processes whose command line holds `mark`, and all their descendants; never this process."""
    table = _table()
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    left = [pid for pid, (_, command) in table.items() if mark in command and pid != os.getpid()]
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left += children.get(pid, [])
    return found - {os.getpid()}


def end(mark: str) -> None:
    """Kill the family of `mark`.

    Each member is stopped before any is killed: one that ran on could start another, and a killed parent's
    children can no longer be told from strangers.
    """
    stopped: set[int] = set()
    while fresh := family(mark) - stopped:
        stopped |= fresh
        for pid in fresh:
            _send(pid, signal.SIGSTOP)
    for pid in stopped:
        _send(pid, signal.SIGKILL)
    deadline = time.monotonic() + GONE_WITHIN_S
    while stopped & _alive() and time.monotonic() < deadline:
        time.sleep(0.02)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        # Gone already, or of another account (become): giving the host back ends those.
        return


def _alive() -> set[int]:
    # A zombie has an empty command line: it is dead, only its parent has not looked yet.
    return {pid for pid, (_, command) in _table().items() if command}


def _table() -> dict[int, tuple[int, str]]:
    """Parent and command line of every process."""
    if not Path("/proc/self/stat").exists():
        return _table_of_ps()
    table: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # The name stands in brackets and may hold spaces and brackets: the rest follows the last one.
            parent = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (OSError, ValueError, IndexError):
            continue
        table[int(entry.name)] = (parent, command.strip())
    return table


def _table_of_ps() -> dict[int, tuple[int, str]]:
    done = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,command="], capture_output=True, text=True, errors="replace", check=False
    )
    table: dict[int, tuple[int, str]] = {}
    for line in done.stdout.splitlines():
        pid, parent, *command = line.split(None, 2)
        text = command[0] if command else ""
        table[int(pid)] = (int(parent), "" if text.endswith("<defunct>") else text)
    return table
