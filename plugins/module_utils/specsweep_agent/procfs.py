"""What /proc tells about processes and listening sockets.  Without /proc every answer is "not known" (None)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")


def available() -> bool:
    return (PROC / "self" / "stat").exists()


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    state = _stat(pid)
    if state is not None:
        return state[0] not in ("Z", "X")
    if available():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on (the name before it may hold spaces and brackets)."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def command_line(pid: int) -> list[str] | None:
    try:
        data = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return None
    return [part.decode(errors="replace") for part in data.rstrip(b"\0").split(b"\0")] if data else None


def environment(pid: int) -> dict[str, str] | None:
    try:
        data = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    pairs = (part.decode(errors="replace").partition("=") for part in data.split(b"\0") if part)
    return {name: value for name, _, value in pairs}


def start_time(pid: int) -> float | None:
    """Unix time at which the process started, to 10 ms."""
    state = _stat(pid)
    if state is None:
        return None
    try:
        boot = next(line for line in (PROC / "stat").read_text().splitlines() if line.startswith("btime"))
        # btime is a whole second; the uptime clock gives the fraction.
        uptime = float((PROC / "uptime").read_text().split()[0])
    except (OSError, StopIteration):
        return None
    import time

    now_boot = time.time() - uptime
    boot_time = now_boot if abs(now_boot - int(boot.split()[1])) < 2 else float(boot.split()[1])
    return boot_time + int(state[19]) / os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> set[int]:
    """The process and everything below it."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir() if available() else ():
        if entry.name.isdigit():
            state = _stat(int(entry.name))
            if state:
                children.setdefault(int(state[1]), []).append(int(entry.name))
    found, todo = {pid}, [pid]
    while todo:
        for child in children.get(todo.pop(), []):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found


def group(leader: int) -> set[int]:
    """Processes of a process group; a child stays in it when its parent ends."""
    found = set()
    for entry in PROC.iterdir() if available() else ():
        if entry.name.isdigit():
            state = _stat(int(entry.name))
            if state and int(state[2]) == leader and state[0] not in ("Z", "X"):
                found.add(int(entry.name))
    return found


def listening_inodes(port: int) -> set[str]:
    """Inodes of the TCP sockets that listen on a port."""
    inodes = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes


def port_owner(port: int, candidates: Iterable[int] | None = None) -> int | None:
    """PID of a process that listens on the port: of `candidates`, else of all we may look into.

    None: nobody listens, or the owner belongs to somebody else.
    """
    inodes = listening_inodes(port)
    if not inodes:
        return None
    wanted = {f"socket:[{inode}]" for inode in inodes}
    if candidates is None:
        candidates = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]
    for pid in candidates:
        try:
            descriptors = list((PROC / str(pid) / "fd").iterdir())
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                if str(descriptor.readlink()) in wanted:
                    return pid
            except OSError:
                continue
    return None


def unit_of(pid: int) -> str | None:
    """systemd unit of a process, from its cgroup."""
    try:
        text = (PROC / str(pid) / "cgroup").read_text()
    except OSError:
        return None
    for line in text.splitlines():
        for part in reversed(line.split(":", 2)[2].split("/")):
            if part.endswith((".service", ".scope")):
                return part
    return None
