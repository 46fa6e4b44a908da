"""Find the places of a block that hold an anchor: by Hyperscan, or by plain Python with the same answers.

Both look for fixed lower-case texts without regard to case (ASCII), over a whole block at once. Where
Hyperscan is missing, lines that differ only in digits are looked at once: serving logs repeat
themselves, so little is left to search.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

# An anchor that hits again and again says nothing new; a scan keeps this many of each in a block.
HITS_PER_BLOCK = 64
# Lines that are remembered to hold no anchor (a few megabytes at most, and one block more).
MOST_HARMLESS = 10_000
LONGEST_HARMLESS = 400

Hit = tuple[int, int]  # end offset in the block, number of the anchor

_LOWER = bytes(range(256)).lower()
_DIGITS = b"0123456789"


class Prefilter(Protocol):
    """Finds anchors in a block."""

    name: str

    def hits(self, block: bytes) -> list[Hit]:
        """Ends of the first and the last hits of each anchor in the block, in order."""
        ...


def make_prefilter(anchors: list[str], name: str = "auto") -> Prefilter:
    """``name``: ``hyperscan``, ``python``, or ``auto`` for the fastest that is installed."""
    if name in ("auto", "hyperscan"):
        try:
            return HyperscanPrefilter(anchors)
        except ImportError:
            if name == "hyperscan":
                raise
    return PythonPrefilter(anchors)


class HyperscanPrefilter:
    """All anchors in one automaton."""

    name = "hyperscan"

    def __init__(self, anchors: list[str]) -> None:
        import hyperscan

        self._database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        self._database.compile(
            expressions=[anchor.encode() for anchor in anchors],
            ids=list(range(len(anchors))),
            elements=len(anchors),
            flags=[hyperscan.HS_FLAG_CASELESS] * len(anchors),
            literal=True,
        )

    def hits(self, block: bytes) -> list[Hit]:
        if not block:
            return []
        ends: dict[int, list[int]] = {}

        def note(number: int, _start: int, end: int, _flags: int, _context: Any) -> None:
            ends.setdefault(number, []).append(end)

        self._database.scan(block, match_event_handler=note)
        return _kept(ends.items())


class PythonPrefilter:
    """The same by the standard library alone."""

    name = "python"

    def __init__(self, anchors: list[str]) -> None:
        self._anchors = [anchor.encode() for anchor in anchors]
        self._undigited = [anchor.translate(None, _DIGITS) for anchor in self._anchors]
        self._harmless: set[bytes] = set()  # lines without digits that hold no anchor

    def hits(self, block: bytes) -> list[Hit]:
        unknown = set(block.translate(_LOWER, _DIGITS).split(b"\n")) - self._harmless
        kinds = b"\n".join(unknown)
        present = {undigited for undigited in self._undigited if undigited and undigited in kinds}
        low = b""
        ends: dict[int, list[int]] = {}
        for number, (anchor, undigited) in enumerate(zip(self._anchors, self._undigited, strict=True)):
            if undigited and undigited not in present:
                continue
            low = low or block.translate(_LOWER)
            found = _ends(low, anchor)
            if found:
                ends[number] = found
        if len(self._harmless) < MOST_HARMLESS:
            short = (line for line in unknown if len(line) < LONGEST_HARMLESS)
            self._harmless.update(line for line in short if not any(text in line for text in present))
        return _kept(ends.items())


def _ends(block: bytes, anchor: bytes) -> list[int]:
    ends: list[int] = []
    at = block.find(anchor)
    while at >= 0:
        ends.append(at + len(anchor))
        at = block.find(anchor, at + 1)
    return ends


def _kept(ends: Iterable[tuple[int, list[int]]]) -> list[Hit]:
    """The first and last hits of each anchor, ordered by place and number."""
    kept: list[Hit] = []
    half = HITS_PER_BLOCK // 2
    for number, places in ends:
        few = places if len(places) <= HITS_PER_BLOCK else places[:half] + places[-half:]
        kept.extend((place, number) for place in few)
    return sorted(kept)
