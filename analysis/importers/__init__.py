"""Result files of other tools as the same records, each row chosen by what is in it, never by its name.

Every imported cell has origin `imported`, its tool as `source`, and `remarks` on what its file cannot tell.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import msgspec

from analysis.importers import (
    aiperf,
    bench_speculative,
    guidellm,
    inferencex,
    laguna,
    llama_benchy,
    sglang_serving,
    vllm_serve,
    vllm_sweep,
)
from analysis.importers.source import Imported, Importer, Place, Row, read_rows
from specsweep import record

__all__ = ["IMPORTERS", "Imported", "import_path"]

#: The first whose `matches` holds converts a row.
IMPORTERS = cast(
    tuple[Importer, ...],
    (laguna, guidellm, llama_benchy, aiperf, bench_speculative, inferencex, sglang_serving, vllm_serve),
)

_NAMES = ", ".join([importer.TOOL for importer in IMPORTERS] + [vllm_sweep.TOOL])


def import_path(path: Path) -> Imported:
    """Import a file, or every result file of a folder.

    Raises InputError (one line) when nothing in it is a result that an importer knows.
    """
    from analysis.results import InputError, sanitise

    place = path.resolve()
    imported = _directory(path, place.name) if path.is_dir() else _file(path, place.stem)
    if not imported.cells:
        why = imported.problems[0].removeprefix(f"{path}: ") if imported.problems else "no result file in it"
        raise InputError(f"{path}: no results: {why}; expected a results folder of specsweep, or output of {_NAMES}")
    imported.number_restarts()
    _distinct(imported)
    if imported.strangers:
        names = ", ".join(imported.strangers[:4])
        imported.problems.append(f"{path}: {len(imported.strangers)} files in it are no results: {names}, ...")
    for cell in imported.cells:
        sanitise(cell, imported.problems)
    return imported


def _folder(folder: Path, sweep_id: str) -> Imported:
    imported = Imported()
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith(".") or entry.is_symlink():
            continue
        if entry.is_dir():
            # A sweep inside the folder is compared with itself only.
            inside = f"{sweep_id}/{entry.name}" if vllm_sweep.is_sweep(entry) else sweep_id
            imported.extend(_directory(entry, inside))
        elif entry.suffix.lower() in (".json", ".jsonl", ".csv"):
            found = _file(entry, sweep_id)
            if not found.cells and found.strangers:
                found.problems = []
            imported.extend(found)
    return imported


def _directory(folder: Path, sweep_id: str) -> Imported:
    return vllm_sweep.read(folder, sweep_id) if vllm_sweep.is_sweep(folder) else _folder(folder, sweep_id)


def _file(path: Path, sweep_id: str) -> Imported:
    imported = Imported()
    try:
        rows, imported.problems = read_rows(path)
    except OSError as error:
        imported.problems = [f"{path}: cannot be read: {error.strerror}"]
        return imported
    unknown = 0
    for line, row in rows:
        place = Place(path, line, sweep_id)
        importer = next((item for item in IMPORTERS if item.matches(row)), None)
        if importer is None:
            unknown += 1
            if line is not None and len(rows) > 1:
                imported.problems.append(f"{place}: not a result row of a tool known here: skipped")
            continue
        imported.extend(_converted(importer, row, place, imported.problems))
    if unknown == len(rows):
        imported.strangers.append(path.name)
        if rows:
            keys = ", ".join(list(rows[0][1])[:6])
            imported.problems = [f"{path}: its keys are those of no tool known here ({keys})"]
    return imported


def _converted(importer: Importer, row: Row, place: Place, problems: list[str]) -> Imported:
    from analysis.results import too_large

    try:
        found = importer.convert(row, place)
        for cell in found.cells:
            # What the row put in is checked like a record that was read from disk.
            msgspec.convert(msgspec.to_builtins(cell), record.Cell)
            problem = too_large(cell)
            if problem:
                raise ValueError(problem)
        for _, requests in found.requests:
            msgspec.convert(msgspec.to_builtins(requests), list[record.Request])
        return found
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        words = str(error) if not isinstance(error, KeyError) else f"expected a field {error}"
        problems.append(f"{place}: broken {importer.TOOL} row, skipped: {words}")
        return Imported()


def _distinct(imported: Imported) -> None:
    """Give cells of different files with one name different ids."""
    seen: dict[str, int] = {}
    for cell in imported.cells:
        seen[cell.cell_id] = seen.get(cell.cell_id, 0) + 1
        if seen[cell.cell_id] > 1:
            cell.cell_id += f"#{seen[cell.cell_id]}"
