"""Several expressions that must stand near each other on one line, in any order.

One regular expression for all orders would backtrack without bound; here the first expression is found
in linear time, and the others are looked for in the characters around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from analysis.classify.anchors import NoAnchor, anchors_of, spaces_match_wraps, worth

# How far from the first expression the others may stand.
NEAR_CHARACTERS = 160
# Between the expressions in the text that names a whole list.
AND = " <and> "


@dataclass(frozen=True)
class Near:
    """What was found, as a match of the standard library tells it."""

    text: str
    begin: int
    finish: int

    def start(self) -> int:
        return self.begin

    def end(self) -> int:
        return self.finish

    def group(self) -> str:
        return self.text[self.begin : self.finish]


class Together:
    """Behaves as a compiled expression, as far as the rules need it."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self._first, *self._others = (re.compile(spaces_match_wraps(word), re.IGNORECASE) for word in words)

    def finditer(self, text: str) -> Iterator[Near]:
        begin_of_line = 0
        for line in text.split("\n"):
            end_of_line = begin_of_line + len(line)
            yield from self._in_line(text, begin_of_line, end_of_line)
            begin_of_line = end_of_line + 1

    def _in_line(self, text: str, begin_of_line: int, end_of_line: int) -> Iterator[Near]:
        """At most one of a line: a second would say the same."""
        for first in self._first.finditer(text, begin_of_line, end_of_line):
            low, high = max(begin_of_line, first.start() - NEAR_CHARACTERS), first.end() + NEAR_CHARACTERS
            spans = [first.span()]
            for other in self._others:
                found = other.finditer(text, low, min(end_of_line, high))
                free = (m.span() for m in found if all(m.end() <= a or m.start() >= b for a, b in spans))
                span = next(free, None)
                if span is None:
                    break
                spans.append(span)
            else:
                yield Near(text, min(a for a, _ in spans), max(b for _, b in spans))
                return

    def search(self, text: str) -> Near | None:
        return next(self.finditer(text), None)


def anchors_together(words: tuple[str, ...]) -> frozenset[str]:
    """The anchors of the expression that is rarest in a log. Raises NoAnchor where none has any."""
    found = []
    for word in words:
        try:
            found.append(anchors_of(word))
        except NoAnchor:
            continue
    if not found:
        raise NoAnchor(f"no fixed text in {' and '.join(words)!r}: add some")
    return max(found, key=worth)
