"""The report as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
from pathlib import Path

import jinja2
from markupsafe import Markup

from analysis.report import words
from analysis.report.content import Content
from analysis.report.pictures import Picture

HERE = Path(__file__).parent


def page(content: Content, pictures: list[Picture], files: list[str]) -> str:
    """The whole page.  Every text of a record is escaped; only our own pictures, style and script are not."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(
        number=words.number, duration=words.duration, plural=words.plural, count=words.count, listed=words.listed
    )
    return environment.get_template("report.html.j2").render(
        content=content,
        pictures=[(picture, Markup(picture.svg)) for picture in pictures],
        files=files,
        style=Markup((HERE / "report.css").read_text(encoding="utf-8")),
        script=Markup((HERE / "report.js").read_text(encoding="utf-8")),
        replay=words.REPLAY,
        icon=_icon(),
    )


def _icon() -> str:
    """A favicon inside the page, so that opening it asks no server for one."""
    drawing = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" rx="3" '
        'fill="#0072b2"/><path d="M3 12 6 8l3 2 4-6" fill="none" stroke="#fff" stroke-width="2"/></svg>'
    )
    return "data:image/svg+xml;base64," + base64.b64encode(drawing.encode()).decode()
