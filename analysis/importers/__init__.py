"""Result files of other tools as the same records."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from specsweep import record


@dataclass
class Imported:
    """What one importer read."""

    cells: list[record.Cell] = field(default_factory=list)
    requests: list[tuple[record.Cell, list[record.Request]]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def import_path(path: Path) -> Imported:
    """Import a file or a folder; raises InputError (one line) when no importer knows it."""
    from analysis.results import InputError

    raise InputError(f"{path}: no results found; expected a results folder")
