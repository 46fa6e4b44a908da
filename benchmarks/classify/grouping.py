"""Unknown failures: does one failure get one name, and another failure another?

Every failing case is taken as if no rule knew it, and written several times with other numbers, ranks,
hosts and paths. Groups come from the classifier's fingerprint and, where it is installed, from drain3 on
the same lines.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import combinations

from variants import Case, load_cases

from analysis.classify.findings import find
from analysis.classify.pointer import Pointer, best_pointer
from analysis.classify.prefilter import make_prefilter
from analysis.classify.rules import load_rules
from analysis.classify.scan import scan

REWRITINGS = 6


@dataclass(frozen=True)
class Grouping:
    """Pairs of rewritten logs: of one failure found together, and of two failures kept apart."""

    name: str
    together: float
    apart: float


def rewritten(case: Case, generator: random.Random) -> str:
    """The log with other numbers, another host and another rank."""

    def other(match: re.Match[str]) -> str:
        digits = "".join(str(generator.randrange(10)) for _ in match.group())
        return match.group()[0] + digits[1:] if len(digits) > 1 else match.group()

    text = re.sub(r"(?<![A-Za-z_\d])\d{2,}(?![A-Za-z_])", other, case.log)
    text = re.sub(r"\bTP\d\b", f"TP{generator.randrange(8)}", text)
    return text.replace("/opt/venv", f"/srv/env{generator.randrange(100)}")


def pointer_of(log: str) -> Pointer:
    rules = load_rules()
    read = find("log", scan(iter([log.encode()]), rules, make_prefilter(rules.anchors, "python")), rules)
    signs = [line for lines in read.signs.values() for line in lines]
    return best_pointer([read], signs)


def compare() -> list[Grouping]:
    """Both ways on the same logs."""
    generator = random.Random(5)
    cases = [case for case in load_cases() if not case.negative and not case.insufficient]
    logs = [(case, pointer_of(rewritten(case, generator))) for case in cases for _ in range(REWRITINGS)]
    groupings = [_scored("fingerprint", logs, lambda pointer: pointer.basis)]
    try:
        from drain3 import TemplateMiner
    except ImportError:
        return groupings
    miner = TemplateMiner()
    clusters = {
        id(pointer): miner.add_log_message(pointer.lines[0].text if pointer.lines else "")["cluster_id"]
        for _, pointer in logs
    }
    groupings.append(_scored("drain3", logs, lambda pointer: clusters[id(pointer)]))
    return groupings


def _scored(name: str, logs: list[tuple[Case, Pointer]], key: Callable[[Pointer], Hashable]) -> Grouping:
    keys = [(case, key(pointer)) for case, pointer in logs]
    same = [one == two for (a, one), (b, two) in combinations(keys, 2) if a.id == b.id]
    different = [one != two for (a, one), (b, two) in combinations(keys, 2) if a.klass != b.klass]
    return Grouping(name, sum(same) / len(same), sum(different) / len(different))
