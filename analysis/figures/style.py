"""Colours, markers and axes shared by every picture.

Series differ by colour, marker and line style together, so that a picture survives greyscale and print.
The hues are those of Okabe and Ito's palette, which people with colour-blindness can tell apart.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

STYLE_FILE = Path(__file__).with_name("specsweep.mplstyle")

INK = "#1f2328"
MUTED = "#6b7280"
GRID = "#d8dbe0"

#: Okabe and Ito's hues, in the order in which series take them.
HUES = ("#0072b2", "#d55e00", "#009e73", "#a0519b", "#56b4e9", "#e69f00", "#7a5c3e", "#6b7280")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)))


REPLAY = "replay: a rehearsal, not a measurement"
ONE_RESTART = "one restart a configuration: no verdict"


class Series(NamedTuple):
    """How one series is drawn."""

    color: str
    marker: str
    line: Any


def series(index: int) -> Series:
    """Style of the series number `index` (from 0); the first 32 are all different."""
    return Series(
        HUES[index % len(HUES)],
        MARKERS[index % len(MARKERS)],
        LINES[(index + index // len(HUES)) % len(LINES)],
    )


P = ParamSpec("P")


@functools.cache
def parameters() -> mpl.RcParams:
    """The style file, read once: a report enters it for every set of axes."""
    return mpl.rc_params_from_file(STYLE_FILE, use_default_template=False)


def styled(draw: Callable[P, Axes]) -> Callable[P, Axes]:
    """Run a drawing function under the style file, whatever the caller's own style is."""

    @functools.wraps(draw)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Axes:
        with mpl.rc_context(rc=parameters()):
            return draw(*args, **kwargs)

    return wrapper


def new_axes(width_in: float = 7.2, height_in: float = 3.9) -> Axes:
    """Axes on a figure of its own, outside pyplot: nothing keeps it alive after the caller."""
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    return figure.add_subplot()


def number(value: float) -> str:
    """Three significant digits for people: 0.0123, 4.72, 303, 4,720."""
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    return f"{rounded:,.{max(digits, 0)}f}" if abs(rounded) < 1000 else f"{rounded:,.0f}"


def short(value: float) -> str:
    """Like `number` without trailing zeros, for tick labels: 1, 2.5, 1,200."""
    text = number(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def plain(ax: Axes, axis: str, log: bool) -> None:
    """Plain numbers on one axis (`x` or `y`), linear from 0 or logarithmic with 1-2-5 steps."""
    target = ax.xaxis if axis == "x" else ax.yaxis
    if log:
        getattr(ax, f"set_{axis}scale")("log")
        target.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
        target.set_minor_locator(NullLocator())
    else:
        target.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    target.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def wide_range(values: Sequence[float], factor: float = 12.0) -> bool:
    """Do positive values span so much that a linear axis would hide the small ones?"""
    positive = [value for value in values if value > 0 and math.isfinite(value)]
    return bool(positive) and max(positive) / min(positive) > factor


def start_at(ax: Axes, axis: str, low: float) -> None:
    """Begin one axis (`x` or `y`) at `low`, with room for the markers at its other end."""
    high = float(ax.dataLim.x1 if axis == "x" else ax.dataLim.y1)
    if not math.isfinite(high) or high <= low:
        high = low + 1.0
    getattr(ax, f"set_{axis}lim")(low, high + 0.07 * (high - low))


def legend_beside(ax: Axes, title: str = "") -> None:
    """A legend right of the axes, where it can cover nothing."""
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        ax.legend(
            handles,
            labels,
            title=title or None,
            loc="upper left",
            bbox_to_anchor=(1.01, 1.0),
            borderaxespad=0.0,
        )


def note(ax: Axes, text: str) -> None:
    """One more line under the x label: what the reader must know to read this picture."""
    if text:
        ax.set_xlabel(f"{ax.get_xlabel()}\n{text}")


def gather_notes(axes: Sequence[Axes]) -> list[str]:
    """Take the notes off small multiples; each once, for a line under all of them."""
    found: list[str] = []
    for ax in axes:
        label, *notes = ax.get_xlabel().split("\n")
        ax.set_xlabel(label)
        found += [text for text in notes if text and text not in found]
    return found
