"""Counters of a Prometheus text page."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

#: Labels end at the first brace outside quotes: an exemplar behind the value has braces of its own.
_SAMPLE = re.compile(r'^([a-zA-Z_:][\w:]*)\s*(?:\{((?:[^"{}]|"(?:[^"\\]|\\.)*")*)\})?\s+(\S+)')
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def _samples(page: str, name: str) -> Iterator[tuple[str, float]]:
    """(labels, value) of every sample of a metric; what is no finite number is no count."""
    for line in page.split("\n"):
        match = _SAMPLE.match(line) if line.startswith(name) else None
        if match and match[1] == name:
            try:
                value = float(match[3])
            except ValueError:
                continue
            if math.isfinite(value):
                yield match[2] or "", value


def total(page: str, name: str) -> float | None:
    """Sum of a metric over its label sets; None where the page does not have it."""
    values = [value for _, value in _samples(page, name)]
    return sum(values) if values else None


def by_label(page: str, name: str, label: str) -> dict[str, float]:
    """Sums of a metric by the value of one label."""
    sums: dict[str, float] = {}
    for labels, count in _samples(page, name):
        value = dict(_LABEL.findall(labels)).get(label)
        if value is not None:
            sums[value] = sums.get(value, 0.0) + count
    return sums


def by_position(page: str, name: str, label: str) -> list[int]:
    """Counts by draft position 0, 1, ...; empty where the page has none."""
    sums = by_label(page, name, label)
    positions = sorted((int(position), count) for position, count in sums.items() if position.isdigit())
    return [int(count) for _, count in positions]


def read(page: str, counters: dict[str, str]) -> dict[str, float]:
    """The profile's counters by our names, those that the page has."""
    found = {ours: total(page, theirs) for ours, theirs in counters.items()}
    return {name: value for name, value in found.items() if value is not None}
