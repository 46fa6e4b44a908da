"""What machine this is: kernel, system, processors, memory, GPUs, disk."""

from __future__ import annotations

import os
import platform
import shutil
import time
from pathlib import Path
from typing import Any

from .service import ServiceError, booted_with_systemd, run


def home_folder(given: str) -> Path:
    """Folder of specsweep on this host: the given one, else the place of root or of the user."""
    if given:
        return Path(given)
    return Path("/var/lib/specsweep") if os.geteuid() == 0 else Path.home() / ".local/share/specsweep"


def describe(home: Path) -> dict[str, Any]:
    """Facts of the host record (specsweep/record.py: Host)."""
    gpus = gpu_list()
    return {
        "supervisor": "systemd" if booted_with_systemd() else "supervisor",
        "python": platform.python_version(),
        "kernel": platform.release(),
        "os": _os_name(),
        "cpu": _first_value("/proc/cpuinfo", "model name") or platform.processor(),
        "cpu_count": os.cpu_count(),
        "memory_mib": _memory_mib(),
        "gpus": gpus,
        "driver": gpus[0]["driver_version"] if gpus else None,
        "boot_id": _read("/proc/sys/kernel/random/boot_id"),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "disk_free_mib": shutil.disk_usage(str(home)).free // 2**20,
        "now_unix_s": time.time(),
        "home_of_user": str(Path.home()),
        "user": os.environ.get("USER") or str(os.geteuid()),
    }


def gpu_list() -> list[dict[str, Any]]:
    """One entry a GPU from nvidia-smi; empty where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    fields = ["index", "name", "uuid", "driver_version", "memory.total", "memory.used", "power.limit", "clocks.max.sm"]
    try:
        done = run([program, "--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits"], 20)
    except ServiceError:
        return []
    if done.returncode:
        return []
    return [dict(zip(fields, (cell.strip() for cell in line.split(",")))) for line in done.stdout.splitlines() if line]


def gpu_memory_used_mib() -> list[int]:
    """Memory in use, one number a GPU."""
    return [int(gpu["memory.used"]) for gpu in gpu_list() if gpu["memory.used"].isdigit()]


def wait_for_drained(before: list[int], slack_mib: int = 512, limit_s: float = 30.0) -> dict[str, Any]:
    """Wait until the GPUs use no more memory than before the sweep, within the limit; tells what it saw."""
    began = time.monotonic()
    used = gpu_memory_used_mib()
    while used and any(now > then + slack_mib for now, then in zip(used, before)):
        if time.monotonic() - began > limit_s:
            return {"drained": False, "used_mib": used, "before_mib": before, "waited_s": limit_s}
        time.sleep(0.5)
        used = gpu_memory_used_mib()
    return {"drained": True, "used_mib": used, "before_mib": before, "waited_s": time.monotonic() - began}


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _first_value(path: str, key: str) -> str | None:
    for line in _read(path).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None


def _os_name() -> str:
    for line in _read("/etc/os-release").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.split("=", 1)[1].strip('"')
    return platform.platform()


def _memory_mib() -> int | None:
    value = _first_value("/proc/meminfo", "MemTotal")
    return int(value.split()[0]) // 1024 if value else None
