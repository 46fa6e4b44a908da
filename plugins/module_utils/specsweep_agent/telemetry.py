"""GPU telemetry once a second, where nvidia-smi exists: clocks, power, temperature, throttling, who is on the GPU."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Callable

FIELDS = (
    "index",
    "uuid",
    "name",
    "clocks.sm",
    "clocks.mem",
    "power.draw",
    "enforced.power.limit",
    "temperature.gpu",
    "utilization.gpu",
    "memory.used",
    "clocks_throttle_reasons.active",
)
#: The older name of the last field, for drivers that no longer know it.
RENAMED = "clocks_event_reasons.active"


class Telemetry(threading.Thread):
    """Writes telemetry.jsonl: one object a sample and GPU, `at_unix_s` from this host's clock."""

    def __init__(self, path: Path, engine_pids: Callable[[], set[int]], every_s: float = 1.0) -> None:
        super().__init__(daemon=True)
        self.path = path
        self.engine_pids = engine_pids
        self.every_s = every_s
        self.over = threading.Event()
        self.program: str | None = shutil.which("nvidia-smi")
        self.fields = list(FIELDS)

    def _query(self, what: str, fields: list[str]) -> list[list[str]] | None:
        if self.program is None:
            return None
        try:
            done = subprocess.run(
                [self.program, "--query-{}={}".format(what, ",".join(fields)), "--format=csv,noheader,nounits"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=10,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode:
            return None
        return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]

    def run(self) -> None:
        if self.program is None:
            return
        if self._query("gpu", self.fields) is None:
            self.fields[-1] = RENAMED
        with self.path.open("a") as out:
            while not self.over.is_set():
                began = time.time()
                rows = self._query("gpu", self.fields) or []
                apps = self._query("compute-apps", ["gpu_uuid", "pid", "process_name", "used_memory"]) or []
                ours = self.engine_pids()
                for row in rows:
                    sample: Any = dict(zip(FIELDS, row))
                    foreign = [app[1] + " " + app[2] for app in apps if app[0] == row[1] and _foreign(app[1], ours)]
                    sample.update(at_unix_s=round(began, 3), foreign=foreign)
                    out.write(json.dumps(sample) + "\n")
                out.flush()
                self.over.wait(max(0.05, self.every_s - (time.time() - began)))

    def stop(self) -> None:
        self.over.set()
        if self.is_alive():
            self.join(12)


def _foreign(pid: str, ours: set[int]) -> bool:
    """A process that is visible here and is not the engine's; one of another pid namespace cannot be judged."""
    return pid.isdigit() and bool(ours) and int(pid) not in ours and Path(f"/proc/{pid}").exists()
