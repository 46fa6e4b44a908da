"""The best place to look when no rule knows the failure: the first exception, not the last line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from analysis.classify.findings import LogFindings
from analysis.classify.fingerprint import masked
from analysis.classify.prepare import PreparedLine, prepare
from analysis.classify.verdict import Line

_EXCEPTION = re.compile(
    r"^\s*(?:[A-Za-z_][\w.]*\.)?(?P<name>[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Failure|Fault|Timeout)\w*)(?::|\s*$)"
)
_LOUD = re.compile(r"\b(?:error|fatal|failed|abort(?:ed)?|panic|exception)\b|terminate called", re.IGNORECASE)
_TRACE = re.compile(r"Traceback \(most recent call last\)")
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line \d+, in (?P<function>\S+)')
_CONSEQUENCE = re.compile(
    r"sigquit|SIGQUIT|Engine core initialization failed|EngineDead|kill_process_tree|crashed with exit code|"
    r"Main process exited|Failed with result|Job for |ServerDisconnected|Connection (?:refused|reset)"
)


@dataclass(frozen=True)
class Pointer:
    """Where to look, and what groups the same unknown failure over cells."""

    lines: list[Line] = field(default_factory=list)
    basis: str = ""
    advice: str = ""
    phase: str | None = None


def best_pointer(read: Sequence[LogFindings], signs: Sequence[Line]) -> Pointer:
    """The first exception with its innermost frame; else the first loud line; else the sign itself."""
    if pointer := first_exception(read):
        return pointer
    for log in read:
        for lines in _pieces(log):
            if pointer := _loud(log.source, lines):
                return pointer
    if signs:
        advice = "The log shows that something ended, not why: look at the other logs of the same time."
        return Pointer([signs[0]], masked(signs[0].text), advice)
    return Pointer([], "no line", "No log line tells why: look at the kernel's messages and the unit's journal.")


def first_exception(read: Sequence[LogFindings]) -> Pointer | None:
    """The first exception under a traceback that is no mere consequence."""
    found = (_exception(log.source, lines) for log in read for lines in _pieces(log))
    return next((pointer for pointer in found if pointer is not None), None)


def _pieces(log: LogFindings) -> list[list[PreparedLine]]:
    pieces = [prepare(window.raw, window.first_line) for window in log.scan.windows]
    pieces.append(prepare(log.scan.tail, log.scan.tail_first_line))
    return pieces


def _exception(source: str, lines: list[PreparedLine]) -> Pointer | None:
    frame = ""
    traced = False
    for line in lines:
        if _TRACE.search(line.text):
            traced = True
        if match := _FRAME.match(line.text):
            frame = f"{match['file'].rsplit('/', 1)[-1]}:{match['function']}"
        elif (found := _EXCEPTION.match(line.text)) and (traced or frame) and not _CONSEQUENCE.search(line.text):
            shown = Line(source, line.number, line.shown[:1000])
            advice = f"No rule knows this failure; its first exception is {found['name']}"
            advice += f" in {frame}." if frame else "."
            return Pointer([shown], masked(f"{line.text} {frame}"), advice)
    return None


def _loud(source: str, lines: list[PreparedLine]) -> Pointer | None:
    for line in lines:
        if _LOUD.search(line.text) and not _CONSEQUENCE.search(line.text):
            shown = Line(source, line.number, line.shown[:1000])
            advice = "No rule knows this failure; this is the first line that speaks of one."
            return Pointer([shown], masked(line.text), advice)
    return None
