"""Acceptance of drafts as a log reports it, over the whole run and not in a single line.

Single lines ``accept len: 1.02, accept rate: 0.00`` occur in healthy logs; a draft is useless when
(nearly) every line says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Of each block this many pieces of this size are read; small logs are read whole.
PIECES = 8
PIECE_BYTES = 16_384
NEARLY_ALL = 0.9
_LINES = re.compile(
    rb"accept len: (?P<length>\d+\.\d+), accept rate: (?P<rate>\d+\.\d+)"
    rb"|draft acceptance(?: rate)?\s*= (?P<fraction>\d+\.\d+) \(\s*\d+ accepted\s*/\s*(?P<drafted>\d+) gen"
    rb"|Draft acceptance rate: (?P<old>\d\.\d+).{0,120}?Number of draft tokens: (?P<old_drafted>\d+)"
    rb"|Accepted: (?P<new>\d+) tokens, Drafted: (?P<new_drafted>\d+) tokens"
)


@dataclass(frozen=True)
class AcceptanceSample:
    """One report of the engine: its line, and whether (nearly) no draft was accepted."""

    line: int
    useless: bool
    drafted: int  # tokens, 0 where the line does not say


def samples_of(region: bytes, first_line: int) -> list[AcceptanceSample]:
    """Reports in pieces spread evenly over a block."""
    if b"accept" not in region and b"Accept" not in region:
        return []
    samples: list[AcceptanceSample] = []
    line, counted = first_line, 0
    stride = max(PIECE_BYTES, len(region) // PIECES)
    for begin in range(0, len(region), stride):
        for match in _LINES.finditer(region, begin, begin + PIECE_BYTES):
            line += region.count(b"\n", counted, match.start())
            counted = match.start()
            samples.append(_sample(match, line))
    return samples


def _sample(match: re.Match[bytes], line: int) -> AcceptanceSample:
    groups = match.groupdict()
    if groups["length"]:
        useless = float(groups["length"]) < 1.05 and float(groups["rate"]) < 0.02
        return AcceptanceSample(line, useless, 0)
    drafted = int(groups["drafted"] or groups["old_drafted"] or groups["new_drafted"])
    if groups["new"]:
        rate = int(groups["new"]) / drafted if drafted else 1.0
    else:
        rate = float(groups["fraction"] or groups["old"])
    return AcceptanceSample(line, drafted > 0 and rate < 0.005, drafted)


def useless_draft(samples: list[AcceptanceSample]) -> int:
    """The line that shows a useless draft, or 0: nine of ten reports, and more than one line's chance."""
    useless = [sample for sample in samples if sample.useless]
    enough = len(useless) >= 2 or any(sample.drafted >= 100 for sample in useless)
    if not enough or len(useless) < NEARLY_ALL * len(samples):
        return 0
    return useless[-1].line
