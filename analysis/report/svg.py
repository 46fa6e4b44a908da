"""A matplotlib figure as SVG that follows the page: its colours become CSS variables."""

from __future__ import annotations

import io
import re
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from analysis.figures import style

#: Fixed colour of a picture -> CSS variable of the page (report.css gives both themes).
VARIABLES = {
    style.INK: "ink",
    style.MUTED: "muted",
    style.GRID: "grid",
    **{hue: f"hue-{index}" for index, hue in enumerate(style.HUES) if hue != style.MUTED},
}
_COLOR = re.compile(r"#[0-9a-f]{6}\b")
_ID = re.compile(r' id="([^"]*)"')
_USED = re.compile(r'(?:url\(#|href="#)([^)"]*)')


def themed(figure: Figure, name: str) -> str:
    """The figure as an `<svg>` element whose ids are its own, for a page that holds many."""
    buffer = io.BytesIO()
    figure.set_dpi(72)
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(buffer, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue().decode()
    text = text[text.index("<svg") :]
    used = set(_USED.findall(text))
    text = _ID.sub(lambda found: found.group(0) if found.group(1) in used else "", text)
    text = text.replace("<svg ", '<svg role="img" ', 1)
    text = text.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")
    return _COLOR.sub(_variable, text)


def _variable(found: re.Match[str]) -> str:
    name = VARIABLES.get(found.group(0))
    return f"var(--{name}, {found.group(0)})" if name else found.group(0)
