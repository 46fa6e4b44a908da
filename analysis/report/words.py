"""Numbers and cells in words, the same in the page, the terminal and the summary."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

REPLAY = "replay: a rehearsal, not a measurement"
ONE_RESTART = (
    "One restart a configuration: no verdict. What follows was seen once; restarts of one configuration often "
    "differ by more than budgets do. Run with more repeats before you choose."
)


def missing(value: Any) -> bool:
    """None, NaN, infinity: nothing to print."""
    return value is None or value != value or (isinstance(value, float) and math.isinf(value))


def number(value: Any, unit: str = "") -> str:
    """Three significant digits with a unit, `–` for what is not there: 4,720, 303, 4.72, 0.0123."""
    if missing(value):
        return "–"
    value = float(value)
    if value == 0:
        text = "0"
    else:
        digits = 2 - math.floor(math.log10(abs(value)))
        rounded = round(value, digits)
        text = f"{rounded:,.{max(0, 2 - math.floor(math.log10(abs(rounded))))}f}"
    return f"{text} {unit}" if unit else text


def count(value: Any) -> str:
    """A whole number, or `–`."""
    return "–" if missing(value) else f"{int(value):,}"


def duration(seconds: Any) -> str:
    """4.2 s, 3 min 20 s, 2 h 5 min."""
    if missing(seconds):
        return "–"
    if seconds < 60:
        return number(seconds, "s")
    minutes, rest = divmod(round(float(seconds)), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def plural(amount: int, noun: str) -> str:
    """1 cell, 2 cells."""
    return f"{amount:,} {noun}" if amount == 1 else f"{amount:,} {noun}s"


def listed(items: Iterable[str], most: int = 8) -> str:
    """a, b, c and 5 more."""
    everything = list(items)
    shown = everything[:most]
    rest = len(everything) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def bytes_of(amount: int) -> str:
    """Size for people: 12.3 kB, 4.56 MB."""
    size, unit = float(amount), "B"
    for larger in ("kB", "MB", "GB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return number(size, unit)
