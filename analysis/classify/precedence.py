"""Which finding is the cause: the precedence rules P1 to P20, each a function of its own.

The rules that concern the text of a log are elsewhere, where they act: P3 (wrappers are opened: the rules
match what is inside) and P4 (advice is no evidence) in prepare.py and the rule files, P7 and P19 (numbers
decide) in figures.py, P12 (INFO can be fatal) as ``min_count`` of a rule.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, replace

from analysis.classify.figures import decided
from analysis.classify.findings import Finding
from analysis.classify.rules import Rule, Ruleset

# Without a common clock, what happened first is told by where it was seen.
SOURCE_ORDER = ("task", "deploy", "attestation", "kernel", "engine", "unit", "client")


@dataclass(frozen=True)
class Lost:
    """A finding that is not the cause, and why."""

    finding: Finding
    why: str


@dataclass(frozen=True)
class Ruling:
    """The outcome of all rules: the winner, or None, and what became of the rest."""

    winner: Finding | None
    confirming: tuple[Finding, ...] = ()  # the same class in other logs, one each
    lost: tuple[Lost, ...] = ()
    notes: tuple[Lost, ...] = ()
    recovered: tuple[Lost, ...] = ()
    after: tuple[Lost, ...] = ()


def p7_p19_numbers_decide(findings: Sequence[Finding], rules: Ruleset) -> list[Finding]:
    """The same text stands for several classes; phase and numbers say for which, or clear it."""
    read: list[Finding] = []
    for finding in findings:
        klass = decided(finding) if finding.rule.numbers else finding.rule.id
        if klass is not None:
            read.append(finding if klass == finding.rule.id else _as_class(finding, rules.rules[klass]))
    return read


def _as_class(finding: Finding, rule: Rule) -> Finding:
    phase = rule.phase if finding.phase == finding.rule.phase else finding.phase
    return replace(finding, rule=rule, phase=phase)


def p11_recovered(findings: Sequence[Finding]) -> tuple[list[Finding], list[Lost]]:
    """An error that later progress of the same kind follows is a note."""
    recovered = [Lost(f, "recovered: later progress follows it") for f in findings if f.recovered]
    return [finding for finding in findings if not finding.recovered], recovered


def p13_after_measurement(findings: Sequence[Finding], window_end: float | None) -> tuple[list[Finding], list[Lost]]:
    """A failure after the last request, or after a stop was asked for, keeps the result."""
    before: list[Finding] = []
    after: list[Lost] = []
    for finding in findings:
        if finding.after_stop and finding.rule.phase != "shutdown" and finding.rule.tier != 4:
            after.append(Lost(finding, "after the stop that the log shows"))
        elif window_end is not None and finding.stamp is not None and finding.stamp > window_end:
            after.append(Lost(finding, "after the end of the measurement"))
        else:
            before.append(finding)
    return before, after


def p2_causes_only(findings: Sequence[Finding]) -> tuple[list[Finding], list[Finding], list[Finding]]:
    """Split into causes (tier 1 and 2), pointers (tier 3) and notes (tier 4).

    Consequences that never say why are no rules at all: they are the signs of ``_signs.yaml``.
    """
    causes = [finding for finding in findings if finding.rule.tier in (1, 2)]
    pointers = [finding for finding in findings if finding.rule.tier == 3]
    notes = [finding for finding in findings if finding.rule.tier == 4]
    return causes, pointers, notes


def p9_kill_needs_a_witness(findings: Sequence[Finding]) -> list[Finding]:
    """A bare kill is the host's doing only where kernel or systemd says so: then that finding stays."""
    said = any(f.rule.id in ("proc.host_oom_kill", "unit.stop_timeout") for f in findings)
    return [f for f in findings if not (said and f.rule.id == "proc.killed")]


def p10_hardware_evidence(findings: Sequence[Finding]) -> list[Finding]:
    """A hardware Xid beats the CUDA errors of the same run; an application Xid only confirms them."""
    hardware = [f for f in findings if f.rule.family == "hw" and f.rule.tier == 1]
    if not hardware:
        return list(findings)
    return [f for f in findings if f.rule.family not in ("cuda", "dist", "serve", "gpu")] or hardware


def p6_collective_timeout_is_dated(findings: Sequence[Finding]) -> list[Finding]:
    """A collective timeout is a root only where nothing else was found in any rank."""
    others = [f for f in findings if f.rule.id not in ("dist.nccl.watchdog_timeout", "serve.engine_died")]
    return others or list(findings)


def beaten(finding: Finding, others: Sequence[Finding]) -> Finding | None:
    """The other finding that the specific-beats-general contract (section 9) prefers, if any."""
    for other in others:
        if other.rule.id == finding.rule.id:
            continue
        prefers = any(fnmatch.fnmatch(finding.rule.id, text) for text in other.rule.beats)
        yields = any(fnmatch.fnmatch(other.rule.id, text) for text in finding.rule.yields_to)
        if prefers or yields:
            return other
    return None


def p1_first_in_time(findings: Sequence[Finding]) -> Finding | None:
    """The first finding over all logs: by time where all have one, else by source and place."""
    if not findings:
        return None
    sources = {finding.source for finding in findings}
    firsts = [min((f for f in findings if f.source == source), key=lambda f: f.order) for source in sources]
    if len(firsts) > 1 and all(finding.stamp is not None for finding in firsts):
        return min(firsts, key=lambda f: (f.stamp or 0.0, _source_rank(f.source)))
    return min(firsts, key=lambda f: (_source_rank(f.source), f.source))


def _source_rank(source: str) -> int:
    return next((rank for rank, name in enumerate(SOURCE_ORDER) if name in source), SOURCE_ORDER.index("engine"))


def p17_start_limit_is_left_over(winner: Finding | None, pointers: Sequence[Finding]) -> Finding | None:
    """A start limit is only a pointer: the cause is in the first attempt, maybe of another configuration."""
    if winner is not None:
        return winner
    other = [f for f in pointers if f.rule.id not in ("unit.start_limit_hit", "deploy.unit_start_failed")]
    return _cause(other) or _cause(pointers)


def _cause(findings: Sequence[Finding]) -> Finding | None:
    """First in time, unless a more specific finding is preferred to it."""
    winner = p1_first_in_time(findings)
    seen: set[str] = set()
    while winner is not None and winner.rule.id not in seen:
        seen.add(winner.rule.id)
        better = beaten(winner, findings)
        if better is None or better.rule.id in seen:
            return winner
        winner = p1_first_in_time([f for f in findings if f.rule.id == better.rule.id])
    return winner


def rule_on(findings: Sequence[Finding], rules: Ruleset, window_end: float | None) -> Ruling:
    """Apply the rules in order."""
    findings = p7_p19_numbers_decide(findings, rules)
    findings, recovered = p11_recovered(findings)
    findings, after = p13_after_measurement(findings, window_end)
    causes, pointers, notes = p2_causes_only(findings)
    causes = p9_kill_needs_a_witness(causes)
    first_tier = p10_hardware_evidence([f for f in causes if f.rule.tier == 1])
    second_tier = p6_collective_timeout_is_dated([f for f in causes if f.rule.tier == 2])
    winner = _across_tiers(first_tier, second_tier)
    winner = p17_start_limit_is_left_over(winner, pointers)
    lost = tuple(_lost(f, winner) for f in findings if winner is not None and f.rule.id != winner.rule.id)
    if winner is None and notes:
        winner = _cause(notes)
        lost = ()
    losers = tuple(entry for entry in lost if entry.finding.rule.tier != 4)
    other_notes = tuple(Lost(f, "a note") for f in notes if winner is None or f.rule.id != winner.rule.id)
    confirming = _confirming(winner, findings)
    return Ruling(winner, confirming, losers, other_notes, tuple(recovered), tuple(after))


def _confirming(winner: Finding | None, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The first finding of the winner's class in each of the other logs."""
    if winner is None:
        return ()
    first: dict[str, Finding] = {}
    for finding in findings:
        if finding.rule.id == winner.rule.id and finding.source != winner.source:
            first.setdefault(finding.source, finding)
    return tuple(first.values())


def _across_tiers(first: Sequence[Finding], second: Sequence[Finding]) -> Finding | None:
    """Tier 1 wins, unless a rule of tier 2 says that it beats exactly that class."""
    winner = _cause(first)
    if winner is None:
        return _cause(second)
    better = next((f for f in second if any(fnmatch.fnmatch(winner.rule.id, t) for t in f.rule.beats)), None)
    return better or winner


def _lost(finding: Finding, winner: Finding | None) -> Lost:
    assert winner is not None
    if finding.rule.tier == 3:
        return Lost(finding, "only a pointer (tier 3)")
    if finding.rule.family in ("cuda", "dist") and winner.rule.family == "hw":
        return Lost(finding, "hardware evidence explains it")
    if finding.rule.tier > winner.rule.tier:
        return Lost(finding, f"a generic cause; {winner.rule.id} is specific")
    if beaten(finding, [winner]):
        return Lost(finding, f"{winner.rule.id} is the more specific reading")
    return Lost(finding, f"later than {winner.rule.id}: a consequence, or a second fault")
