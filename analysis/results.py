"""Load results: a results folder, one sweep of it, or the files of another tool, as tidy frames."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pandas as pd

from analysis import frames, validity
from analysis.lines import bounded_lines
from analysis.validity import Limits, Validity
from specsweep import record


class InputError(ValueError):
    """Input that cannot be used; the message is one clear line."""


@dataclass(frozen=True)
class Failed:
    """One failure and where it hit.  `concurrency` is None when the restart itself failed."""

    failure: record.Failure
    sweep_id: str
    host: str
    configuration_id: str
    label: str
    budget: int
    repeat: int
    concurrency: int | None
    reason: str
    folder: Path | None
    """folder of the restart's record, where its evidence lies; None for imported results"""


@dataclass
class Results:
    """Everything measured, as tidy frames (columns: the docstrings of analysis.frames).

    `cells`, `categories`, `positions`, `requests` (read when first used), `configurations`, `phases`,
    `ready`, `differences` are DataFrames; `failures`, `hosts`, `sweeps` hold records.  `problems` are
    one-line strings: what could not be read or should not be believed.
    """

    path: Path
    cell_records: list[record.Cell] = field(repr=False)
    configuration_records: list[record.Configuration] = field(default_factory=list, repr=False)
    hosts: list[record.Host] = field(default_factory=list)
    sweeps: list[record.Sweep] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    folders: dict[tuple[str, str, str, int, str | None], Path] = field(default_factory=dict, repr=False)
    """folder of each restart, by `restart_key`"""
    imported_requests: list[tuple[record.Cell, list[record.Request]]] = field(default_factory=list, repr=False)

    validities: list[Validity | None] = field(default_factory=list, repr=False)
    """of each cell record; None where nothing was measured"""

    @cached_property
    def cells(self) -> pd.DataFrame:
        """One row per cell: analysis.frames.cells_frame, and `validity` (valid, invalid, unobserved or None)
        with `validity_reasons` ("; "-joined)."""
        frame = frames.cells_frame(self.cell_records)
        known = self.validities or [None] * len(self.cell_records)
        frame["validity"] = frames.text(item.verdict if item else None for item in known)
        frame["validity_reasons"] = frames.text(
            "; ".join((*item.reasons, *item.remarks)) if item else "" for item in known
        )
        return frame.copy()

    @cached_property
    def categories(self) -> pd.DataFrame:
        return frames.categories_frame(self.cell_records)

    @cached_property
    def positions(self) -> pd.DataFrame:
        return frames.positions_frame(self.cell_records)

    @cached_property
    def configurations(self) -> pd.DataFrame:
        return frames.configurations_frame(self.configuration_records)

    @cached_property
    def phases(self) -> pd.DataFrame:
        return frames.phases_frame(self.configuration_records)

    @cached_property
    def ready(self) -> pd.DataFrame:
        return frames.ready_frame(self.configuration_records)

    @cached_property
    def differences(self) -> pd.DataFrame:
        return frames.differences_frame(self.configuration_records)

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row per request, read from the cells' request files; broken lines go to `problems`."""
        batches: list[tuple[record.Cell, Sequence[record.Request]]] = list(self.imported_requests)
        for cell in self.cell_records:
            folder = self.folders.get(restart_key(cell))
            if cell.requests_file and folder:
                path = folder / cell.requests_file
                found = list(_requests_of(path, self.problems))
                there = sum(not request.warmup for request in found)
                if there < cell.requests_completed:
                    counted = cell.requests_completed
                    self.problems.append(
                        f"{path}: {there} requests, its cell counts {counted} completed: some are missing"
                    )
                batches.append((cell, found))
        return frames.requests_frame(batches)

    @cached_property
    def failures(self) -> list[Failed]:
        """One per failed restart, and one per failed cell whose failure is not that of its restart."""
        found = [
            self._failed(item, None)
            for item in self.configuration_records
            if item.failure is not None and item.status != "ok"
        ]
        down = {(one.sweep_id, one.host, one.configuration_id, one.repeat, one.failure.klass) for one in found}
        for cell in self.cell_records:
            if cell.failure is None:
                continue
            key = (cell.sweep_id, cell.host, cell.configuration_id, cell.repeat, cell.failure.klass)
            if key not in down:
                found.append(self._failed(cell, cell.concurrency))
        return found

    def _failed(self, item: record.Cell | record.Configuration, concurrency: int | None) -> Failed:
        return Failed(
            failure=item.failure or record.Failure(klass="unknown"),
            sweep_id=item.sweep_id,
            host=item.host,
            configuration_id=item.configuration_id,
            label=item.label,
            budget=item.budget,
            repeat=item.repeat,
            concurrency=concurrency,
            reason=item.reason,
            folder=self.folders.get(restart_key(item)),
        )


def restart_key(item: record.Cell | record.Configuration) -> tuple[str, str, str, int, str | None]:
    """What identifies one restart."""
    return item.sweep_id, item.host, item.configuration_id, item.repeat, item.anchor


def load(path: str | os.PathLike[str], sweep: str | None = None, limits: Limits | None = None) -> Results:
    """Load results.

    path: a results folder (of sweep folders), one sweep folder, or a file or folder of another tool.
    sweep: which sweep of a results folder: its id, "all", or None for the newest.
    limits: when telemetry voids a cell (analysis.validity).
    Raises InputError with one clear line when there is nothing usable.
    """
    place = Path(path)
    if not place.exists():
        raise InputError(f"{place}: no such file or folder; expected a results folder or a result file")
    if place.is_file():
        return _foreign(place)
    if _is_sweep(place):
        if sweep not in (None, "all", place.name):
            raise InputError(f"{place}: this is sweep {place.name}, not {sweep}; give its parent folder")
        return _own(place, [place], limits)
    folders = [entry for entry in sorted(place.iterdir()) if entry.is_dir() and _is_sweep(entry)]
    if not folders:
        return _foreign(place)
    return _own(place, _chosen(place, folders, sweep), limits)


def _foreign(place: Path) -> Results:
    from analysis.importers import import_path

    imported = import_path(place)
    return Results(
        path=place,
        cell_records=sorted(imported.cells, key=_order),
        problems=imported.problems,
        imported_requests=imported.requests,
    )


def _is_sweep(folder: Path) -> bool:
    if (folder / "sweep.json").is_file():
        return True
    # A sweep that was cut off before its first record was complete still has its restarts.
    return next(folder.glob("*/*/*/configuration.json"), None) is not None


def _chosen(place: Path, folders: list[Path], sweep: str | None) -> list[Path]:
    if sweep == "all":
        return folders
    if sweep is not None:
        named = [folder for folder in folders if folder.name == sweep]
        if not named:
            names = ", ".join(folder.name for folder in folders)
            raise InputError(f"{place}: no sweep {sweep}; there are: {names}")
        return named
    return [max(folders, key=lambda folder: (_created(folder), folder.name))]


def _created(folder: Path) -> float:
    try:
        return record.read(folder / "sweep.json", record.Sweep).created_unix_s
    except record.RecordError:
        return folder.stat().st_mtime


def _own(place: Path, folders: list[Path], limits: Limits | None) -> Results:
    results = Results(path=place, cell_records=[])
    for folder in folders:
        _read_sweep(folder, results)
    results.cell_records = _without_duplicates(results.cell_records, results.problems)
    results.cell_records.sort(key=_order)
    pending = Counter((cell.sweep_id, cell.host) for cell in results.cell_records if cell.status == "pending")
    for (sweep_id, host), number in sorted(pending.items()):
        results.problems.append(f"{sweep_id}: {number} cells on {host} are still pending: the sweep did not end")
    for cell in results.cell_records:
        sanitise(cell, results.problems)
    restarted: dict[tuple[str, str, str, int, str | None], float] = {}
    for item in results.configuration_records:
        count = frames.restarts_of(item)
        if count is not None:
            restarted[restart_key(item)] = count
    results.validities = validity.apply(results.cell_records, restarted, limits)
    return results


def _folders(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        return sorted(Path(entry.path) for entry in entries if entry.is_dir())


def _read_sweep(folder: Path, results: Results) -> None:
    try:
        results.sweeps.append(record.read(folder / "sweep.json", record.Sweep))
    except record.RecordError as error:
        results.problems.append(str(error))
    for host in _folders(folder):
        if (host / "host.json").is_file():
            try:
                results.hosts.append(record.read(host / "host.json", record.Host))
            except record.RecordError as error:
                results.problems.append(str(error))
        for configuration in _folders(host):
            for restart in _folders(configuration):
                _read_restart(restart, results)
    _add_skipped(folder.name, results)


def _add_skipped(sweep_id: str, results: Results) -> None:
    """Cells that the plan skipped have no record of their own: a row each, on every host."""
    sweep = next((item for item in results.sweeps if item.sweep_id == sweep_id), None)
    if sweep is None:
        return
    there = {(cell.host, cell.label, cell.concurrency) for cell in results.cell_records if cell.sweep_id == sweep_id}
    for host in sweep.hosts:
        like = next((cell for cell in results.cell_records if cell.host == host), None)
        for number, skipped in enumerate(sweep.plan.get("skipped") or []):
            try:
                key = (host, skipped["label"], skipped["concurrency"])
                if key in there:
                    continue
                there.add(key)
                results.cell_records.append(_skipped_cell(sweep, host, number, skipped, like))
            except (KeyError, TypeError) as error:
                results.problems.append(f"{sweep_id}: skipped cell {number} of the plan is unreadable: {error!r}")


def _skipped_cell(
    sweep: record.Sweep, host: str, number: int, skipped: dict[str, Any], like: record.Cell | None
) -> record.Cell:
    return record.Cell(
        cell_id=f"skipped-{number}",
        sweep_id=sweep.sweep_id,
        host=host,
        configuration_id=f"skipped-{skipped['label']}",
        label=skipped["label"],
        origin=sweep.origin,
        engine=like.engine if like else str(sweep.plan.get("engine", "")),
        engine_version=like.engine_version if like else None,
        model=like.model if like else "",
        prompts=like.prompts if like else "",
        prompts_sha256=like.prompts_sha256 if like else "",
        output_mode=like.output_mode if like else "exact",
        output_tokens=like.output_tokens if like else None,
        temperature=like.temperature if like else None,
        method=skipped["method"],
        budget=skipped["budget"],
        topk=skipped["topk"],
        settings=skipped.get("settings") or {},
        baseline=skipped["method"] == "none",
        concurrency=skipped["concurrency"],
        status="skipped",
        reason=skipped["reason"],
        reached=False,
    )


def _read_restart(folder: Path, results: Results) -> None:
    item: record.Configuration | None = None
    try:
        item = _bounded(folder / "configuration.json", record.Configuration)
        _check_phases(item, results.problems)
        results.configuration_records.append(item)
        results.folders[restart_key(item)] = folder
    except record.RecordError as error:
        results.problems.append(str(error))
    paths = {path.name: path for path in (folder / "cells").glob("*.json") if not path.name.startswith(".")}
    listed = [Path(name).name for name in item.cells] if item else []
    for name in listed:
        if name not in paths:
            results.problems.append(f"{folder / 'cells' / name}: listed by its configuration but missing")
    for name in sorted(paths):
        try:
            cell = _bounded(paths[name], record.Cell)
        except record.RecordError as error:
            results.problems.append(str(error))
            continue
        results.cell_records.append(cell)
        results.folders.setdefault(restart_key(cell), folder)


_Restart = TypeVar("_Restart", record.Cell, record.Configuration)


def _bounded(path: Path, kind: type[_Restart]) -> _Restart:
    """Read a record whose whole numbers fit a column of int64."""
    found = record.read(path, kind)
    problem = too_large(found)
    if problem:
        raise record.RecordError(f"{path}: {problem}")
    return found


def too_large(item: record.Cell | record.Configuration) -> str:
    """Which whole number does not fit a column of int64, in words; empty when all do."""
    for name, sort in frames.scalar_fields(type(item)).items():
        value = getattr(item, name)
        if sort == "int" and abs(value) >= 2**63:
            return f"{name} is {_short(value)}, which cannot be"
    if isinstance(item, record.Cell):
        counts = [count for entry in item.categories.values() for count in (entry.requests, entry.output_tokens)]
        counts += (item.acceptance.accepted_per_position if item.acceptance else None) or []
        largest = max(counts, default=0)
        if largest >= 2**63:
            return f"a count is {_short(largest)}, which cannot be"
    return ""


def _short(value: int) -> str:
    return f"{value:.3g}" if abs(value) < 10**300 else "a number of more than 300 digits"


def _check_phases(item: record.Configuration, problems: list[str]) -> None:
    """Leave out phases that end before they start: the clock jumped."""
    problems += [
        f"{item.sweep_id}: phase {phase.name} of {item.label} on {item.host} ends before it starts "
        f"({phase.end_unix_s - phase.start_unix_s:g} s): the clock jumped, left out"
        for phase in item.phases
        if phase.end_unix_s < phase.start_unix_s
    ]
    item.phases = [phase for phase in item.phases if phase.end_unix_s >= phase.start_unix_s]


def _without_duplicates(cells: list[record.Cell], problems: list[str]) -> list[record.Cell]:
    """Keep one record a cell: a final one before a pending one, then the later window."""
    kept: dict[tuple[object, ...], record.Cell] = {}
    for cell in cells:
        key = (*restart_key(cell), cell.cell_id)
        other = kept.get(key)
        if other is None:
            kept[key] = cell
            continue
        problems.append(
            f"{cell.sweep_id}: cell {cell.cell_id} ({cell.label} c{cell.concurrency} repeat {cell.repeat} on "
            f"{cell.host}) is there twice: the later one is used"
        )
        if _rank(cell) >= _rank(other):
            kept[key] = cell
    return list(kept.values())


def _order(cell: record.Cell) -> tuple[object, ...]:
    configuration = (not cell.baseline, cell.method, cell.budget, cell.topk or 0, cell.label)
    return (cell.sweep_id, cell.host, *configuration, cell.concurrency, cell.anchor or "", cell.repeat)


def _rank(cell: record.Cell) -> tuple[bool, float]:
    return cell.status != "pending", cell.window_start_unix_s or 0.0


#: Fields that cannot be zero or less in a cell that was measured.
_POSITIVE = ("window_s", "system_tok_s", "per_user_tok_s", "running_mean", "step_time_ms")


def sanitise(cell: record.Cell, problems: list[str]) -> None:
    """Drop numbers that cannot be (negative times, infinite rates, AL below 1), saying so in `problems`."""

    def drop(name: str, value: float) -> None:
        problems.append(
            f"{cell.sweep_id}: {cell.label} c{cell.concurrency} repeat {cell.repeat} on {cell.host}: "
            f"{name} is {value:g}, which cannot be: left out"
        )

    for name in _POSITIVE:
        value = getattr(cell, name)
        if value is not None and not (value > 0 and math.isfinite(value)):
            drop(name, value)
            setattr(cell, name, None)
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        quantiles = getattr(cell, name)
        if quantiles is None:
            continue
        for part in ("mean", "median", "p90", "p99", "min", "max"):
            value = getattr(quantiles, part)
            if value is not None and not (value >= 0 and math.isfinite(value)):
                drop(f"{name} {part}", value)
                setattr(quantiles, part, None)
    if cell.acceptance is not None:
        for name in ("al_token_weighted", "al_request_weighted", "counters_al"):
            value = getattr(cell.acceptance, name)
            # 0.999: a counter that is read a moment late may miss a token.
            if value is not None and not (value >= 0.999 and math.isfinite(value)):
                drop(name, value)
                setattr(cell.acceptance, name, None)


_REQUEST = msgspec.json.Decoder(record.Request)


def _requests_of(path: Path, problems: list[str]) -> Iterator[record.Request]:
    """Requests of one file; a broken line or a cut-off file is a problem, the rest is used."""
    try:
        with gzip.open(path, "rb") as stream:
            for number, line in bounded_lines(stream):  # type: ignore[arg-type]
                if line is None:
                    problems.append(f"{path}:{number}: line too long for a request record: skipped")
                    continue
                try:
                    request = _REQUEST.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    problems.append(f"{path}:{number}: not a request record: {error}")
                    continue
                for name in ("ttft_ms", "e2e_ms", "tpot_ms"):
                    value = getattr(request, name)
                    if value is not None and value < 0:
                        problems.append(f"{path}:{number}: {name} is {value:g}, which cannot be: left out")
                        setattr(request, name, None)
                yield request
    except (OSError, EOFError, zlib.error) as error:
        problems.append(f"{path}: cut off or unreadable: {error}")


def measured(cells: pd.DataFrame) -> pd.DataFrame:
    """The rows of `cells` that carry numbers to compare: status ok, not a rehearsal, a throughput."""
    usable = cells["status"].eq("ok") & cells["origin"].ne("replay") & cells["system_tok_s"].notna()
    return cells.loc[usable]
