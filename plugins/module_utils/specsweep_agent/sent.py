"""Prompts that the engine's process has been sent: drafters and caches remember them over measurements."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from . import procfs
from .service import atomic_write


def mark(home: Path, main_pid: int, prompts: Iterable[str]) -> int | None:
    """Note prompts as sent to this process; how many it had been sent before (None: no process to ask)."""
    started = procfs.start_time(main_pid) if main_pid else None
    if started is None:
        return None
    path = home / "prompts_sent.json"
    try:
        known = json.loads(path.read_text())
        # A process id comes again; the time of its start is reckoned, and not the same to the last digit.
        same = known["pid"] == main_pid and abs(known["started_unix_s"] - started) < 1
        before = set(known["sha256"]) if same else set()
    except (OSError, ValueError, KeyError, TypeError):
        before = set()
    these = {hashlib.sha256(prompt.encode()).hexdigest()[:16] for prompt in prompts}
    noted = {"pid": main_pid, "started_unix_s": started, "sha256": sorted(before | these)}
    atomic_write(path, json.dumps(noted))
    return len(before & these)
