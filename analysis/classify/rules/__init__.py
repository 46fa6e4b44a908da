"""The rules, one YAML file per family, and how they are read.

A rule's expressions are Python regular expressions in which a space stands for any white space, line
ends included (messages wrap). ``any``: one of them makes the finding. ``before`` and ``after``: all of
them must match earlier, or later, in the same log. ``unless``: none may match on the finding's line.
``together``: lists of expressions that must stand on one line, near each other, in any order, for other
versions word the same thing otherwise; ``<name>`` in them stands for the alternatives of ``_words.yaml``.
``recovered_by``: a later match turns the finding into a note. Case is ignored, except inside
``(?-i:...)``; see docs/failures.md for the rest of the fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from analysis.classify.anchors import anchors_of, spaces_match_wraps
from analysis.classify.together import AND, Together, anchors_together

FOLDER = Path(__file__).parent
PHASES = (
    "deploy",
    "unit_start",
    "model_load",
    "graph_capture",
    "warmup",
    "readiness",
    "serving_under_load",
    "benchmark_client",
    "shutdown",
)
DIRECTIONS = ("smaller", "larger", "=1", "other")
_FIELDS = {
    "id", "tier", "phase", "any", "together", "before", "after", "unless", "min_count", "recovered_by", "numbers",
    "beats", "yields_to", "cause", "advice", "retry", "directions", "witness", "examples",
    "counter_examples",
}  # fmt: skip


class BadRule(ValueError):
    """A rule file does not say what a rule needs; the message names the file, the rule and the field."""


@dataclass(frozen=True)
class Rule:
    """One class of failure and the texts that show it."""

    id: str
    tier: int
    phase: str | None
    any: tuple[str, ...]
    cause: str
    advice: str
    retry: str
    together: tuple[tuple[str, ...], ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    recovered_by: tuple[str, ...] = ()
    min_count: int = 1
    numbers: str = ""
    beats: tuple[str, ...] = ()
    yields_to: tuple[str, ...] = ()
    directions: Mapping[str, str] = field(default_factory=dict)
    witness: str = ""
    examples: tuple[str, ...] = ()
    counter_examples: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        return self.id.split(".", 1)[0]


@dataclass(frozen=True)
class Family:
    """The rules of one file."""

    name: str
    title: str
    rules: tuple[Rule, ...]


@dataclass(frozen=True)
class Expression:
    """One expression of a rule, of a phase marker, or of a sign of failure."""

    number: int
    source: str
    owner: str  # rule id, phase name, or kind of sign
    role: str  # "any" | "before" | "after" | "recovered_by" | "phase" | "sign"
    together: tuple[str, ...] = ()

    @property
    def loose(self) -> bool:
        """Words in any order: of two findings on one line the exact one is preferred."""
        return bool(self.together)

    @cached_property
    def pattern(self) -> re.Pattern[str] | Together:
        if self.together:
            return Together(self.together)
        return re.compile(spaces_match_wraps(self.source), re.IGNORECASE)

    @cached_property
    def anchors(self) -> frozenset[str]:
        return anchors_together(self.together) if self.together else anchors_of(self.source)


@dataclass(frozen=True)
class Ruleset:
    """All rules, phase markers and signs of failure, with what the prefilter needs."""

    families: tuple[Family, ...]
    expressions: tuple[Expression, ...]

    @cached_property
    def rules(self) -> dict[str, Rule]:
        return {rule.id: rule for family in self.families for rule in family.rules}

    @cached_property
    def anchors(self) -> list[str]:
        """Every anchor once, in a fixed order."""
        return sorted({anchor for expression in self.expressions for anchor in expression.anchors})

    @cached_property
    def expressions_of_anchor(self) -> list[tuple[int, ...]]:
        """For each anchor, the numbers of the expressions that it stands for."""
        owners: dict[str, list[int]] = {anchor: [] for anchor in self.anchors}
        for expression in self.expressions:
            for anchor in expression.anchors:
                owners[anchor].append(expression.number)
        return [tuple(owners[anchor]) for anchor in self.anchors]


@cache
def load_rules() -> Ruleset:
    """The rules beside this file. Raises BadRule."""
    families = tuple(_family(path) for path in sorted(FOLDER.glob("*.yaml")) if path.stem[0] != "_")
    return Ruleset(families, tuple(_expressions(families)))


def _expressions(families: tuple[Family, ...]) -> Iterator[Expression]:
    near = {(rule.id, AND.join(words)): words for f in families for rule in f.rules for words in rule.together}
    for number, (source, owner, role) in enumerate(_sources(families)):
        yield Expression(number, source, owner, role, near.get((owner, source), ()))


def _sources(families: tuple[Family, ...]) -> Iterator[tuple[str, str, str]]:
    for family in families:
        for rule in family.rules:
            for role in ("any", "before", "after", "recovered_by"):
                for source in getattr(rule, role):
                    yield source, rule.id, role
    for phase, sources in _yaml(FOLDER / "_phases.yaml").items():
        for source in sources:
            yield source, phase, "phase"
    for sign, sources in _yaml(FOLDER / "_signs.yaml").items():
        for source in sources:
            yield source, sign, "sign"


def _yaml(path: Path) -> Any:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with path.open(encoding="utf-8") as handle:
        return yaml.load(handle, Loader=loader)


@cache
def _words() -> dict[str, str]:
    words: dict[str, str] = _yaml(FOLDER / "_words.yaml")
    return words


def _in_words(expression: str) -> str:
    """The expression with the alternatives for each ``<name>``."""
    for name, alternatives in _words().items():
        expression = expression.replace(f"<{name}>", f"(?:{alternatives})")
    return expression


def _family(path: Path) -> Family:
    content = _yaml(path)
    return Family(path.stem, content["title"], tuple(_rule(path, entry) for entry in content["rules"]))


def _rule(path: Path, entry: dict[str, Any]) -> Rule:
    name = f"{path.name}: {entry.get('id', 'a rule without id')}"
    if unknown := set(entry) - _FIELDS:
        raise BadRule(f"{name}: unknown field {min(unknown)}; known: {', '.join(sorted(_FIELDS))}")
    if missing := {"id", "tier", "cause", "advice", "retry"} - set(entry):
        raise BadRule(f"{name}: {min(missing)} is missing")
    if entry.get("phase") not in (None, *PHASES):
        raise BadRule(f"{name}: phase {entry['phase']!r}; expected one of {', '.join(PHASES)}")
    if not entry.get("any") and not entry.get("together") and not entry.get("witness"):
        raise BadRule(f"{name}: needs expressions (any) or the witness that shows it")
    for parameter, direction in entry.get("directions", {}).items():
        if direction not in DIRECTIONS:
            raise BadRule(f"{name}: direction of {parameter} is {direction!r}; expected {DIRECTIONS}")
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    together = tuple(tuple(map(_in_words, words)) for words in entry.get("together", ()))
    expressions = (*fields.pop("any", ()), *map(AND.join, together))
    return Rule(**{"phase": None, **fields, "any": expressions, "together": together})
