"""The files beside the page: the numbers that were drawn, as CSV, Parquet and JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from analysis.report import words
from analysis.report.content import Content
from analysis.results import Results

#: Version of report.json.
SCHEMA = 1


def write_tables(folder: Path, results: Results, content: Content) -> list[Path]:
    """cells.csv and cells.parquet, and CSV of what else was drawn, where there is any."""
    cells = results.cells
    written = [folder / "cells.csv", folder / "cells.parquet"]
    cells.to_csv(written[0], index=False)
    _uniform(cells).to_parquet(written[1], index=False)
    others = {
        "verdicts": content.verdicts,
        "factors": content.factors,
        "categories": results.categories,
        "positions": results.positions,
        "phases": results.phases,
    }
    for name, frame in others.items():
        if len(frame):
            written.append(folder / f"{name}.csv")
            frame.to_csv(written[-1], index=False)
    return written


def _uniform(frame: pd.DataFrame) -> pd.DataFrame:
    """Parquet has one type a column: settings with mixed values become text."""
    texts = [column for column in frame.columns if frame[column].dtype == object]
    mixed = {
        column: frame[column].map(lambda value: None if words.missing(value) else str(value))
        for column in texts
        if frame[column].dropna().map(type).nunique() > 1
        or frame[column].map(lambda value: isinstance(value, (dict, list))).any()
    }
    return frame.assign(**mixed) if mixed else frame


def as_json(content: Content, written: list[str]) -> dict[str, Any]:
    """The report as plain data; absent numbers are null."""
    plain = asdict(content)
    for name in ("verdicts", "factors"):
        plain[name] = getattr(content, name).to_dict("records")
    for card, original in zip(plain["failures"], content.failures, strict=True):
        card["evidence"] = msgspec.to_builtins(original.evidence)
    whole: dict[str, Any] = clean({"schema": SCHEMA, **plain, "files": written})
    return whole


def clean(value: Any) -> Any:
    """Plain JSON types: NaN and infinity become None, NumPy scalars Python ones."""
    if isinstance(value, dict):
        return {str(key): clean(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(entry) for entry in value]
    if value is None or isinstance(value, (str, bool)):
        return value
    if hasattr(value, "item"):
        return clean(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return value
    return None if value != value else str(value)


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write the report's JSON."""
    path.write_text(json.dumps(data, indent=1, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8")
