"""Values at dotted paths of decoded JSON: `a.0.b`; `*` stands for every item."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_INDEX = re.compile(r"-?[0-9]+")


def values(data: Any, path: str) -> list[Any]:
    """All values at a path; empty where there is none."""
    found = [data]
    for part in path.split("."):
        below: list[Any] = []
        for item in found:
            if part == "*":
                below += list(item.values()) if isinstance(item, dict) else item if isinstance(item, list) else []
            elif isinstance(item, dict) and part in item:
                below.append(item[part])
            elif isinstance(item, list) and _INDEX.fullmatch(part) and -len(item) <= int(part) < len(item):
                below.append(item[int(part)])
        found = below
    return found


def first(data: Any, paths: Iterable[str]) -> Any:
    """The first value that is not None at any of the paths, else None."""
    for path in paths:
        for value in values(data, path):
            if value is not None:
                return value
    return None
