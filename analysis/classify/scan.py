"""Read a log once, block by block, and keep only the pieces that the rules must look at.

Every byte goes through the prefilter; around each hit a window of a few kilobytes is kept, with the
number of its first line. A line longer than a block is read in such windows too. Memory stays bounded:
an anchor that hits again and again keeps its first windows and the scan's last ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from analysis.classify.acceptance import AcceptanceSample, samples_of
from analysis.classify.prefilter import Hit, Prefilter
from analysis.classify.rules import Ruleset

CONTEXT_BYTES = 6_000
LARGEST_WINDOW = 64_000
HEAD_BYTES = 65_536
TAIL_BYTES = 16_384
# Windows that one expression may claim before only the last windows of the log are kept.
WINDOWS_PER_EXPRESSION = 40
LAST_WINDOWS = 24

# Lines that only a server at work prints; they are frequent, so first and last are enough.
AT_WORK = (b"Decode batch", b"Prefill batch", b'" 200', b"Avg generation throughput: ", b"print_timing: ")
# Of those, the ones that a warm-up prints as well.
ALSO_WARM_UP = (b"Prefill batch", b'" 200')


@dataclass(frozen=True)
class Window:
    """A piece of the log: its place, its first line, and the expressions that may match in it."""

    start: int  # byte offset in the log
    first_line: int
    raw: bytes
    expressions: frozenset[int]


@dataclass
class Scan:
    """What one pass over a log kept."""

    windows: list[Window] = field(default_factory=list)
    size: int = 0
    lines: int = 0
    head: bytes = b""
    tail: bytes = b""
    first_work: int = 0  # line; 0: none
    last_work: int = 0
    first_serving: int = 0
    last_serving: int = 0
    acceptance: list[AcceptanceSample] = field(default_factory=list)

    @property
    def tail_first_line(self) -> int:
        return self.lines - self.tail.count(b"\n") + 1


def scan(blocks: Iterable[bytes], rules: Ruleset, prefilter: Prefilter) -> Scan:
    """One pass over a log given as blocks of bytes."""
    result = Scan()
    keeper = _WindowKeeper(rules)
    work = _WorkSeen()
    start = 0  # offset of the region in the log
    first_line = 1
    handled = 0  # hits that end at or before this offset of the region were handled before
    for region, last in _regions(blocks):
        limit = len(region) if last else len(region) - CONTEXT_BYTES
        hits = [hit for hit in prefilter.hits(region) if handled < hit[0] <= limit]
        for window in _windows(region, start, first_line, hits, rules):
            keeper.keep(window)
        work.note(region, first_line)
        result.acceptance.extend(samples_of(region, first_line))
        if not result.head:
            result.head = region[:HEAD_BYTES]
        result.tail = region[-TAIL_BYTES:]
        advance = len(region) if last else max(0, limit - CONTEXT_BYTES)
        first_line += region.count(b"\n", 0, advance)
        start += advance
        handled = limit - advance
    result.size = start
    result.lines = first_line - 1 + (1 if result.tail and not result.tail.endswith(b"\n") else 0)
    result.windows = keeper.windows()
    result.first_work, result.last_work = work.first(serving=False), work.last(serving=False)
    result.first_serving, result.last_serving = work.first(serving=True), work.last(serving=True)
    return result


def _regions(blocks: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Blocks that overlap by two contexts, so that each hit has its context on both sides."""
    carry = b""
    ahead: bytes | None = None
    for block in blocks:
        if not block:
            continue
        if ahead is not None:
            region = carry + ahead
            if len(region) < 4 * CONTEXT_BYTES:
                ahead = ahead + block
                continue
            yield region, False
            carry = region[-2 * CONTEXT_BYTES :]
        ahead = block
    if ahead is not None:
        yield carry + ahead, True


def _windows(region: bytes, start: int, first_line: int, hits: list[Hit], rules: Ruleset) -> Iterator[Window]:
    counted, line = 0, first_line
    for group in _groups(hits):
        begin = _line_begin(region, max(0, group[0][0] - CONTEXT_BYTES))
        end = _line_end(region, min(len(region), group[-1][0] + CONTEXT_BYTES))
        if begin >= counted:
            line += region.count(b"\n", counted, begin)
        else:
            line -= region.count(b"\n", begin, counted)
        counted = begin
        expressions = frozenset(number for _, anchor in group for number in rules.expressions_of_anchor[anchor])
        yield Window(start + begin, line, region[begin:end], expressions)


def _groups(hits: list[Hit]) -> Iterator[list[Hit]]:
    group: list[Hit] = []
    for hit in hits:
        near = group and hit[0] - group[-1][0] < CONTEXT_BYTES and hit[0] - group[0][0] < LARGEST_WINDOW
        if group and not near:
            yield group
            group = []
        group.append(hit)
    if group:
        yield group


def _line_begin(region: bytes, wanted: int) -> int:
    """The begin of a line at or before the place, or the place itself inside a very long line."""
    found = region.rfind(b"\n", max(0, wanted - CONTEXT_BYTES), wanted)
    return found + 1 if found >= 0 else (0 if wanted <= CONTEXT_BYTES else wanted)


def _line_end(region: bytes, wanted: int) -> int:
    found = region.find(b"\n", wanted, wanted + CONTEXT_BYTES)
    return found if found >= 0 else min(len(region), wanted + CONTEXT_BYTES)


class _WorkSeen:
    """First and last line that a server at work printed; lines are counted only where they are needed."""

    def __init__(self) -> None:
        self._first: dict[bool, int] = {}  # serving only: line
        self._last: dict[bool, tuple[bytes, int, int]] = {}  # serving only: region, its first line, offset

    def note(self, region: bytes, first_line: int) -> None:
        for literal in AT_WORK:
            first = region.find(literal)
            if first < 0:
                continue
            for serving in (False,) if literal in ALSO_WARM_UP else (False, True):
                self._note(serving, region, first_line, first, region.rfind(literal))

    def _note(self, serving: bool, region: bytes, first_line: int, first: int, last: int) -> None:
        line = self._first.get(serving)
        if line is None or line >= first_line:
            here = first_line + region.count(b"\n", 0, first)
            self._first[serving] = here if line is None else min(line, here)
        known = self._last.get(serving)
        if known is None or known[1] < first_line or known[2] < last:
            self._last[serving] = (region, first_line, last)

    def first(self, *, serving: bool) -> int:
        return self._first.get(serving, 0)

    def last(self, *, serving: bool) -> int:
        if serving not in self._last:
            return 0
        region, first_line, offset = self._last[serving]
        return first_line + region.count(b"\n", 0, offset)


class _WindowKeeper:
    """Keeps the first windows of each expression and the last of all."""

    def __init__(self, rules: Ruleset) -> None:
        self._left = [WINDOWS_PER_EXPRESSION] * len(rules.expressions)
        self._first: list[Window] = []
        self._last: deque[Window] = deque(maxlen=LAST_WINDOWS)

    def keep(self, window: Window) -> None:
        wanted = [number for number in window.expressions if self._left[number] > 0]
        if not wanted:
            self._last.append(window)
            return
        for number in wanted:
            self._left[number] -= 1
        self._first.append(window)

    def windows(self) -> list[Window]:
        return sorted([*self._first, *self._last], key=lambda window: window.start)
