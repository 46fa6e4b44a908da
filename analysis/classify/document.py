"""Write docs/failures.md from the rules: ``python -m analysis.classify.document [FILE]``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from analysis.classify.rules import Family, Rule, load_rules

DOCUMENT = Path(__file__).parents[2] / "docs" / "failures.md"
_TIERS = {1: "cause", 2: "generic cause", 3: "pointer", 4: "note"}
_INTRODUCTION = """\
# Failures, and what to do about each

Generated from `analysis/classify/rules/` by `python -m analysis.classify.document`; edit the rules.

`python -m analysis.classify LOG...` names one of these classes for the log of a failed run. A **cause**
(tier 1) is what went wrong; a **generic cause** (tier 2) is named only where no cause of tier 1 was
found; a **pointer** (tier 3) says where to look; a **note** (tier 4) is no failure, but the result may
mean something else than it seems. `unknown` means that something failed and no rule knows it, `none` that
there is nothing to report.

Parameters: `budget` is the tree or draft budget, `top_k` the breadth of a tree, `max_running` the largest
number of running sequences, `mem_fraction` the static share of GPU memory, `tp` the tensor parallel size.
The rows of a verifying launch are running sequences x verify width, so `budget` and `max_running` can
stand in for each other.

To add a class, add one entry to the file of its family: `id`, `tier`, `phase`, expressions (`any`), `cause`,
`advice`, `retry`, and at least one example and one counter-example, which the tests run. A space in an
expression matches any white space, line ends included, and case is ignored. `together` lists expressions that
must stand near each other on one line, in any order (`<name>`: the alternatives of `_words.yaml`). `before` and
`after` must match earlier or later in the same log, `unless` must not match on the same line, `recovered_by`
turns an error into a note if it matches later, `min_count` asks for several lines, `numbers` names a
decision in `figures.py`, `beats` and `yields_to` say which other class is the better reading.
"""


def document() -> str:
    """The whole text of docs/failures.md."""
    families = sorted(load_rules().families, key=lambda family: family.title)
    parts = [_INTRODUCTION, *(line for family in families for line in _family(family))]
    return "\n".join(parts).rstrip() + "\n"


def _family(family: Family) -> Iterator[str]:
    yield f"## {family.title} (`{family.name}`)\n"
    for rule in family.rules:
        yield from _rule(rule)


def _rule(rule: Rule) -> Iterator[str]:
    yield f"### `{rule.id}`\n"
    where = f", {rule.phase.replace('_', ' ')}" if rule.phase else ""
    yield f"{rule.cause[0].upper()}{rule.cause[1:]} ({_TIERS[rule.tier]}{where}).\n"
    yield f"- What to do: {rule.advice}"
    yield f"- Retry: {rule.retry}"
    if rule.directions:
        moves = ", ".join(f"`{name}` {direction}" for name, direction in rule.directions.items())
        yield f"- Swept parameters: {moves}"
    if rule.witness:
        yield f"- Also shown by: {rule.witness}"
    if rule.examples:
        yield "\n```text"
        yield _shortened(rule.examples[0])
        yield "```"
    yield ""


def _shortened(example: str) -> str:
    return "\n".join(line if len(line) <= 160 else line[:157] + "..." for line in example.split("\n"))


def main(arguments: Sequence[str]) -> int:
    target = Path(arguments[0]) if arguments else DOCUMENT
    try:
        target.write_text(document(), encoding="utf-8")
    except OSError as error:
        print(f"document: {target}: cannot be written ({error.strerror})", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
