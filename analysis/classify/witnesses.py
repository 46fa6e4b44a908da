"""What others saw of the same run, beside its logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LogInput = Path | str | bytes | Iterable[bytes]


@dataclass
class Witnesses:
    """All optional: what is not known is left out, never guessed.

    ``unit``: properties as ``systemctl show`` prints them (Result, ExecMainCode, ExecMainStatus,
    NRestarts, NeedDaemonReload, ActiveState, SubState). ``wanted`` and ``effective``: arguments by
    name. ``window``: begin and end of the measurement, unix seconds (log lines without
    a zone are taken as UTC). ``gpu_memory_before``: used MiB by
    GPU before the start. ``stopped_by_us``: a stop that was asked for is never a failure.
    """

    unit: Mapping[str, str] = field(default_factory=dict)
    wanted: Mapping[str, Any] = field(default_factory=dict)
    effective: Mapping[str, Any] = field(default_factory=dict)
    kernel_log: LogInput | None = None
    sent: int | None = None
    completed: int | None = None
    failed: int | None = None
    errors: list[str] = field(default_factory=list)
    gpu_memory_before: Mapping[str, float] = field(default_factory=dict)
    task_result: Mapping[str, Any] = field(default_factory=dict)
    window: tuple[float, float] | None = None
    attestation: str | None = None
    stopped_by_us: bool = False
