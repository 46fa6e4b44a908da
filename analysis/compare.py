"""Compare the same cells of two sweeps: two engine versions, two drivers, two hosts.

    python -m analysis.compare A B [--json] [--strict]

A and B are results folders, sweep folders or another tool's result files.  Every cell gets a verdict on B
against A: better, worse, tie, underpowered, no verdict (one restart), broken (ran in A, fails in B), fixed,
failed in both, not comparable, only in A, only in B.  Exit status: 0; 1 with --strict when a cell is worse or
broken; 2 when the input is unusable or nothing in A and B is the same.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from analysis.results import Results
    from analysis.verdicts import Rules

#: What makes a cell of A and a cell of B the same.
SAME_CELL = (
    "method",
    "budget",
    "topk",
    "max_running",
    "settings",
    "concurrency",
    "output_mode",
    "output_tokens",
    "temperature",
)

#: What may differ between A and B, and is said.
CONTEXT = ("host", "engine", "engine_version", "model", "drafter", "prompts", "prompts_sha256", "source")

WORSE = ("worse", "broken")


@dataclass(frozen=True)
class CellVerdict:
    """One cell of both sweeps; ratio = B / A of `metric`, None where there is none."""

    label: str
    host: str
    concurrency: int
    verdict: str
    a: float | None
    b: float | None
    restarts_a: int
    restarts_b: int
    ratio: float | None
    low: float | None
    high: float | None
    sentence: str


@dataclass
class Comparison:
    """All cells, what differs between the sweeps, and counts by verdict."""

    metric: str
    differs: list[str] = field(default_factory=list)
    cells: list[CellVerdict] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def summary(self) -> dict[str, int]:
        return dict(Counter(cell.verdict for cell in self.cells))

    @property
    def got_worse(self) -> bool:
        return any(cell.verdict in WORSE for cell in self.cells)


def compare(a: Results, b: Results, metric: str = "system_tok_s", rules: Rules | None = None) -> Comparison:
    """Compare B with A, cell by cell."""
    from analysis import verdicts

    rules = rules or verdicts.Rules()
    by_host, notes = _hosts(a, b)
    names = (*SAME_CELL, *_shared(a, b), *(("host",) if by_host else ()))
    left, right = _by_cell(a, names), _by_cell(b, names)
    found = Comparison(metric=metric, differs=_differs(a, b) + notes)
    found.problems = [f"A: {line}" for line in a.problems] + [f"B: {line}" for line in b.problems]
    for key in [*left, *(key for key in right if key not in left)]:
        found.cells.append(_cell(left.get(key, []), right.get(key, []), metric, rules))
    return found


def _hosts(a: Results, b: Results) -> tuple[bool, list[str]]:
    """Are cells matched host by host?  One host against another one is a comparison of hosts."""
    mine, theirs = set(a.cells["host"]), set(b.cells["host"])
    if len(mine) == len(theirs) == 1:
        return False, []
    only = sorted(mine ^ theirs)
    return True, [f"hosts in one of the sweeps only, not compared: {', '.join(only)}"] if only else []


def _shared(a: Results, b: Results) -> list[str]:
    """What must be equal too because A and B have some of it in common: cells of two prompt sets, models or
    engines are never pooled.  Where A and B have nothing in common, that is the difference to be judged."""
    kept = []
    for name in ("prompts_sha256", "prompts", "model", "engine", "drafter"):
        mine, theirs = set(_values(a, name)), set(_values(b, name))
        if mine & theirs and (len(mine) > 1 or len(theirs) > 1):
            kept.append(name)
    return kept


def _by_cell(results: Results, names: Sequence[str]) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    from analysis import verdicts

    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in verdicts.rows_of(verdicts.in_blocks(results.cells)):
        values = (row[name] for name in names)
        key = tuple(None if isinstance(value, float) and math.isnan(value) else value for value in values)
        found.setdefault(key, []).append(row)
    return found


def _differs(a: Results, b: Results) -> list[str]:
    lines = []
    for name in CONTEXT:
        mine, theirs = _values(a, name), _values(b, name)
        if mine != theirs:
            lines.append(f"{name}: {', '.join(mine) or 'not recorded'} -> {', '.join(theirs) or 'not recorded'}")
    return lines


def _values(results: Results, name: str) -> list[str]:
    return sorted({str(value) for value in results.cells[name].dropna().unique() if str(value)})


def _cell(a: list[dict[str, Any]], b: list[dict[str, Any]], metric: str, rules: Rules) -> CellVerdict:
    from analysis import statistics, verdicts

    first = (b or a)[0]
    before, after = verdicts.per_restart(a, metric), verdicts.per_restart(b, metric)
    interval = statistics.unpaired_ratio(list(after.values()), list(before.values()), rules.level)
    why_not = _not_comparable(a, b, rules)
    if not a or not b:
        verdict = "only in B" if not a else "only in A"
    elif before and after:
        verdict = "not comparable" if why_not else verdicts.decide(interval, rules.margin)
    else:
        verdict = _without_numbers(a, b, bool(before), bool(after))
    compared = bool(before and after) and not why_not
    return CellVerdict(
        label=str(first["label"]),
        host=str(first["host"]),
        concurrency=int(first["concurrency"]),
        verdict=verdict,
        a=_known(statistics.median(list(before.values()))),
        b=_known(statistics.median(list(after.values()))),
        restarts_a=len(before),
        restarts_b=len(after),
        ratio=_known(interval.estimate) if compared else None,
        low=_known(interval.low) if compared else None,
        high=_known(interval.high) if compared else None,
        sentence=_sentence(first, verdict, interval, before, after, why_not or _reason(a, b)),
    )


def _not_comparable(a: list[dict[str, Any]], b: list[dict[str, Any]], rules: Rules) -> str:
    from analysis import verdicts

    if not a or not b:
        return ""
    for name, words in (("prompts_sha256", "prompt sets"), ("prompts", "prompts"), ("model", "models")):
        if {row[name] for row in a} != {row[name] for row in b}:
            return f"the {words} differ"
    here, there = verdicts.truncation_rate(verdicts.usable(a)), verdicts.truncation_rate(verdicts.usable(b))
    if abs(here - there) > rules.truncation:
        return f"{here:.0%} of A's outputs were cut at the cap and {there:.0%} of B's"
    return ""


def _without_numbers(a: list[dict[str, Any]], b: list[dict[str, Any]], before: bool, after: bool) -> str:
    def failed(rows: list[dict[str, Any]]) -> bool:
        return any(row["status"] in ("failed", "invalid", "not_applied") for row in rows)

    if any(row["origin"] == "replay" for row in a + b):
        return "no verdict"
    if before and failed(b):
        return "broken"
    if after and failed(a):
        return "fixed"
    return "failed in both" if failed(a) and failed(b) else "not measured"


def _reason(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> str:
    for rows in (b, a):
        for row in rows:
            if row["status"] != "ok":
                return str(row["failure_class"] or row["reason"] or row["status"])
    return ""


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _sentence(
    row: dict[str, Any], verdict: str, interval: Any, before: dict[int, float], after: dict[int, float], reason: str
) -> str:
    from analysis.verdicts import percent

    where = f"{row['label']} at concurrency {row['concurrency']}"
    if verdict in ("better", "worse", "tie", "underpowered"):
        span = f"{percent(interval.low)} to {percent(interval.high)}"
        return f"{where}: {verdict}, {percent(interval.estimate)} ({span}; {len(before)} and {len(after)} restarts)"
    if verdict == "no verdict" and before and after:
        return f"{where}: {percent(interval.estimate)}; one restart: no verdict"
    return f"{where}: {verdict}" + (f" ({reason})" if reason else "")


def as_text(found: Comparison) -> str:
    """The comparison for people: what differs, cells from bad to good, a summary."""
    order = {name: place for place, name in enumerate(("broken", "worse", "not comparable", "underpowered"))}
    lines = [f"differs: {line}" for line in found.differs]
    lines += [f"problem: {line}" for line in found.problems]
    lines += [cell.sentence for cell in sorted(found.cells, key=lambda cell: order.get(cell.verdict, len(order)))]
    counts = ", ".join(f"{count} {name}" for name, count in sorted(found.summary.items()))
    lines.append(f"{len(found.cells)} cells: {counts}")
    judged = sum(cell.verdict in ("better", "worse", "tie", "underpowered") for cell in found.cells)
    if judged >= 20:
        lines.append(
            f"of {judged} equal cells about {math.ceil(judged * 0.025)} would look worse by chance alone: measure "
            "a single one again before acting on it"
        )
    return "\n".join(lines)


class _Parser(argparse.ArgumentParser):
    """Wrong arguments get one line, like every other wrong input."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = _Parser(
        prog="python -m analysis.compare",
        description="Compare the same cells of two sweeps: better, worse, tie or underpowered.",
    )
    parser.add_argument("a", metavar="A", help="results before")
    parser.add_argument("b", metavar="B", help="results after")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a cell is worse or broken")
    parser.add_argument("--metric", default="system_tok_s", choices=("system_tok_s", "per_user_tok_s"))
    parser.add_argument("--margin", type=float, default=0.01, help="relative difference that does not matter")
    options = parser.parse_args(arguments)

    from analysis.results import InputError, load
    from analysis.verdicts import Rules

    if not 0 <= options.margin < 1:
        return _refuse(f"--margin: expected a fraction from 0 to 1, got {options.margin:g}")
    try:
        found = compare(load(options.a), load(options.b), options.metric, Rules(margin=options.margin))
    except InputError as error:
        return _refuse(str(error))
    if not any(cell.verdict not in ("only in A", "only in B") for cell in found.cells):
        return _refuse(f"{options.a} and {options.b} have no cell in common: expected the same configurations")
    if options.json:
        plain = {**asdict(found), "summary": found.summary, "got_worse": found.got_worse}
        print(json.dumps(plain, indent=1, allow_nan=False))
    else:
        print(as_text(found))
    return 1 if options.strict and found.got_worse else 0


def _refuse(message: str) -> int:
    print(f"analysis.compare: {' '.join(message.split())}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
