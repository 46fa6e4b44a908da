"""Make a report of results: every file of it, in one folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.report import files
from analysis.report.content import Content, content_of
from analysis.report.page import page
from analysis.report.pictures import NAMES, pictures
from analysis.report.summary import summary
from analysis.results import Results


@dataclass(frozen=True)
class Report:
    """A report that was written."""

    content: Content
    folder: Path
    page: Path
    data: dict[str, Any]
    """what report.json holds"""


def folder_of(results: Results, everything: bool) -> Path:
    """Where a report goes by default: into its sweep's folder, or beside what else was read."""
    place = results.path
    if place.is_file():
        return place.with_name(f"{place.name}.report")
    if everything or (place / "sweep.json").is_file() or not results.sweeps:
        return place / "report"
    return place / results.sweeps[0].sweep_id / "report"


def write_report(results: Results, folder: Path) -> Report:
    """Write report.html, PNGs, tables, report.json and summary.md into `folder` (made if missing).

    Raises OSError where the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    content = content_of(results)
    drawn = pictures(results, content.verdicts, content.noise_floor)
    # An earlier report may have had pictures that this one has no data for; nothing else is ours to delete.
    for name in NAMES:
        (folder / f"{name}.png").unlink(missing_ok=True)
    for picture in drawn:
        (folder / f"{picture.name}.png").write_bytes(picture.png)
    tables = [path.name for path in files.write_tables(folder, results, content)]
    names = [*tables, "report.json", "summary.md", *(f"{picture.name}.png" for picture in drawn)]
    data = files.as_json(content, names)
    files.write_json(folder / "report.json", data)
    (folder / "summary.md").write_text(summary(content), encoding="utf-8")
    html = folder / "report.html"
    html.write_text(page(content, drawn, names), encoding="utf-8")
    return Report(content, folder, html, data)
