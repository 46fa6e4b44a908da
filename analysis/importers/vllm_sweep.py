"""The folder of `vllm bench sweep serve`: SERVE-*-BENCH-*/run=N.json, *.failure.json.

A configuration's folder name spells its parameters; a folder without a run failed or never ran, and the
files do not tell which.  Runs of one folder share a server: they are one restart.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analysis.importers import vllm_serve
from analysis.importers.source import Imported, Place, Row, cell, fail, read_rows, whole

TOOL = "vllm bench sweep"
_FOLDER = re.compile(r"^(?:SERVE-(?P<serve>.*)-)?BENCH-(?P<bench>.*)$", re.DOTALL)


def is_sweep(folder: Path) -> bool:
    """Does this folder hold a sweep, or only the failure of its server?"""
    names = [entry.name for entry in folder.iterdir()]
    return any(_FOLDER.match(name) for name in names) or any(
        name.startswith("SERVE-") and name.endswith("failure.json") for name in names
    )


def read(folder: Path, sweep_id: str) -> Imported:
    """Every run of the sweep; failures become failed cells."""
    imported = Imported()
    for entry in sorted(folder.iterdir()):
        found = _FOLDER.match(entry.name)
        if entry.is_dir() and found:
            _read_combination(entry, found["serve"] or "", found["bench"], sweep_id, imported)
        elif entry.is_file() and entry.name.endswith("failure.json"):
            failure = _failure(entry, imported)
            if failure is not None:
                _add_failed(entry, failure, _overrides(entry.stem, failure), 0, sweep_id, imported)
    return imported


def _read_combination(folder: Path, serve: str, bench: str, sweep_id: str, imported: Imported) -> None:
    overrides = _from_name(serve)
    runs = 0
    for path in sorted(folder.glob("run=*.json")):
        runs += 1
        if path.name.endswith(".failure.json"):
            failure = _failure(path, imported)
            if failure is not None:
                asked = whole((failure.get("bench_overrides") or {}).get("max_concurrency"))
                given = failure.get("serve_overrides") or overrides
                _add_failed(path, failure, given, asked or _concurrency(bench), sweep_id, imported)
            continue
        for line, row in _rows(path, imported):
            place = Place(path, line, sweep_id)
            known = identity({**overrides, **_serve_keys(row)}, row)
            try:
                made = vllm_serve.run(row, place, known)
            except (KeyError, TypeError, ValueError) as error:
                imported.problems.append(f"{place}: {error}")
                continue
            made.source = TOOL
            made.cell_id = f"{folder.name}/{path.name}"
            imported.add(made, launch=folder.name)
    if not runs:
        place = Place(folder, None, sweep_id)
        made = cell(
            place,
            TOOL,
            **identity(overrides, {}),
            concurrency=_concurrency(bench),
            prompts="not recorded",
            cell_id=folder.name,
        )
        imported.add(fail(made, "a folder without a run: it failed or never ran, the files do not tell which"))


def _rows(path: Path, imported: Imported) -> Iterator[tuple[int | None, Row]]:
    rows, problems = read_rows(path)
    imported.problems += problems
    yield from rows


def _failure(path: Path, imported: Imported) -> Row | None:
    try:
        loaded = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        imported.problems.append(f"{path}: broken failure file: {error}")
        return None
    return loaded if isinstance(loaded, dict) else {}


def _add_failed(path: Path, failure: Row, overrides: Row, concurrency: int, sweep_id: str, imported: Imported) -> None:
    made = cell(
        Place(path, None, sweep_id),
        TOOL,
        **identity(dict(overrides), {}),
        concurrency=concurrency,
        prompts="not recorded",
        cell_id=f"{path.parent.name}/{path.name}",
    )
    where = "" if concurrency else " (before any load: its load points are not in the file)"
    words = " ".join(str(failure.get("error") or "no reason in the file").split())
    imported.add(fail(made, f"{failure.get('error_type') or 'error'}: {words}{where}"))


def identity(overrides: dict[str, Any], row: Row) -> dict[str, Any]:
    """The configuration from what the sweep overrode."""
    given = {name.lstrip("-").replace("-", "_"): value for name, value in overrides.items()}
    speculative = given.pop("speculative_config", None)
    speculative = _literal(speculative) if isinstance(speculative, str) else speculative
    base = {"engine": "vllm", "model": str(row.get("model_id") or given.pop("model", "") or "")}
    running = whole(given.pop("max_num_seqs", None))
    settings = {name: value for name, value in given.items() if not name.startswith("_")}
    extra = "".join(f" {name}={value}" for name, value in settings.items())
    extra += f" max-num-seqs={running}" if running else ""
    if not isinstance(speculative, dict):
        return {
            **base,
            "label": f"none{extra}",
            "method": "none",
            "budget": 0,
            "verify_width": 1,
            "baseline": True,
            "max_running": running,
            "settings": settings,
        }
    budget = whole(speculative.get("num_speculative_tokens")) or 0
    method = str(speculative.get("method") or "draft_model")
    more = {k: v for k, v in speculative.items() if k not in ("method", "num_speculative_tokens", "model")}
    return {
        **base,
        "label": f"{method} b{budget}{extra}",
        "method": method,
        "drafter": speculative.get("model"),
        "budget": budget,
        "candidates": budget,
        "verify_width": budget + 1,
        "max_running": running,
        "settings": {**settings, **more},
    }


def _serve_keys(row: Row) -> dict[str, Any]:
    return {name: row[name] for name in ("speculative_config", "max_num_seqs") if name in row}


def _overrides(stem: str, failure: Row) -> Row:
    return failure.get("serve_overrides") or _from_name(stem.removeprefix("SERVE-").removesuffix("-failure"))


def _from_name(name: str) -> dict[str, Any]:
    """`-max_num_seqs=64-speculative_config={...}` as a dict; values are Python literals where they can be."""
    found: dict[str, Any] = {}
    for part in re.split(r"-(?=[A-Za-z_]+=)", name):
        key, equals, value = part.partition("=")
        if equals:
            found[key] = _literal(value)
    return found


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _concurrency(bench: str) -> int:
    found = re.search(r"(?:max_concurrency=|c(?=\d))(\d+)", bench)
    return int(found[1]) if found else 0
