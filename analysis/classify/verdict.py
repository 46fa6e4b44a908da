"""What a classification says: one verdict for a configuration, with its evidence."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

TERMINAL = "terminal"
RECOVERED = "recovered"
AFTER_MEASUREMENT = "after_measurement"
NO_FAILURE = "none"

NONE = "none"
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Line:
    """One line of evidence: which log, which line (1-based, 0: not a line of a log), and its text."""

    source: str
    line: int
    text: str


@dataclass(frozen=True)
class Alternative:
    """Another class that was found, and why it lost."""

    klass: str
    why: str
    evidence: list[Line] = field(default_factory=list)


@dataclass(frozen=True)
class Note:
    """A finding that is no failure: tier 4, or an error that the run recovered from."""

    klass: str
    kind: str  # "note" | "recovered" | "after_measurement"
    text: str
    evidence: list[Line] = field(default_factory=list)


@dataclass(frozen=True)
class Verdict:
    """The class of one run (ids: docs/failures.md).

    ``klass`` is ``none`` where nothing is to report and ``unknown`` where something failed and no rule
    hit; ``pointer`` marks an answer that only says where to look (tier 3, and ``unknown``).
    ``directions`` maps a swept parameter to ``smaller``, ``larger``, ``=1`` or ``other``.
    """

    klass: str
    tier: int | None = None
    phase: str | None = None
    engine: str | None = None
    rank: str | None = None
    outcome: str = NO_FAILURE
    pointer: bool = False
    evidence: list[Line] = field(default_factory=list)
    fingerprint: str = ""
    advice: str = ""
    directions: dict[str, str] = field(default_factory=dict)
    retry: str = ""
    alternatives: list[Alternative] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """True where the run itself failed: tier 4 and ``none`` are no failures."""
        return self.klass != NONE and self.tier != 4 and self.outcome == TERMINAL

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON form; ids are under ``class``."""
        plain = asdict(self)
        for entry in (*plain["alternatives"], *plain["notes"]):
            entry["class"] = entry.pop("klass")
        return {"class": plain.pop("klass"), **plain}
