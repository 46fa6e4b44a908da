"""Classify one run from its logs and the other witnesses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from analysis.classify.engines import engine_of
from analysis.classify.figures import equal_numbers
from analysis.classify.findings import Finding, LogFindings, find, task_passed_over
from analysis.classify.fingerprint import fingerprint
from analysis.classify.pointer import best_pointer, first_exception
from analysis.classify.precedence import Lost, Ruling, rule_on
from analysis.classify.prefilter import Prefilter, make_prefilter
from analysis.classify.rules import Ruleset, load_rules
from analysis.classify.scan import Scan, scan
from analysis.classify.source import blocks
from analysis.classify.stamps import seconds_of_unix
from analysis.classify.verdict import (
    AFTER_MEASUREMENT,
    NO_FAILURE,
    NONE,
    RECOVERED,
    TERMINAL,
    UNKNOWN,
    Alternative,
    Line,
    Note,
    Verdict,
)
from analysis.classify.witness_findings import remarks, unit_failed, witness_logs, witnessed
from analysis.classify.witnesses import LogInput, Witnesses

ALTERNATIVES_SHOWN = 6
# Pointers at an exception that no rule knows.
WRAPPERS = ("serve.spec.crash", "ready.warmup_failed", "serve.engine_died")
_END = re.compile(
    r"sigquit|SIGQUIT|crashed with exit code -(?:9|15)|Main process exited|Failed with result|EngineDead|engine dead"
)
EVIDENCE_SHOWN = 6


def classify(logs: Mapping[str, LogInput], witnesses: Witnesses | None = None, prefilter: str = "auto") -> Verdict:
    """The class of one run.

    ``logs``: source name (engine, kernel, client, unit, ...) to a path, bytes, or pieces of bytes.
    ``prefilter``: ``auto``, ``hyperscan`` or ``python``; the answer is the same.
    Raises source.UnusableLog where a log cannot be read.
    """
    witnesses = witnesses or Witnesses()
    rules = load_rules()
    scanner = _prefilter(prefilter)
    inputs: dict[str, LogInput] = dict(logs)
    for name, text in witness_logs(witnesses).items():
        inputs.setdefault(name, text)
    read = [find(name, scan(blocks(log), rules, scanner), rules) for name, log in inputs.items()]
    return _verdict(read, witnesses, rules)


def classify_files(paths: Iterable[Path | str], prefilter: str = "auto") -> list[tuple[str, Verdict]]:
    """One verdict for each file: they are independent logs. The source's name is the file's."""
    return [(str(path), classify({_source_name(path): path}, prefilter=prefilter)) for path in paths]


def _source_name(path: Path | str) -> str:
    return "stdin" if str(path) == "-" else Path(path).name


@cache
def _prefilter(name: str) -> Prefilter:
    return make_prefilter(load_rules().anchors, name)


def _verdict(read: Sequence[LogFindings], witnesses: Witnesses, rules: Ruleset) -> Verdict:
    window_end = seconds_of_unix(witnesses.window[1]) if witnesses.window else None
    findings = [finding for log in read for finding in log.findings]
    if witnesses.stopped_by_us:
        findings = [finding for finding in findings if not _ended_by_us(finding)]
    findings += witnessed(witnesses, findings, rules, self_killed=any("self_kill" in log.signs for log in read))
    ruling = rule_on(findings, rules, window_end)
    engine = engine_of("\n".join(_sample(log) for log in read))
    notes = _notes(ruling) + remarks(witnesses)
    consequences = _signs("consequence", read, ruling, stopped_by_us=witnesses.stopped_by_us)
    ended = bool(consequences) or unit_failed(witnesses)
    if ruling.winner is not None and not (ruling.winner.rule.tier == 4 and ended):
        found = _found(ruling.winner, ruling, engine, notes)
        return _opened(found, read) if found.klass in WRAPPERS else found
    causes_after = [entry.finding for entry in ruling.after if entry.finding.rule.tier in (1, 2)]
    if causes_after:
        return _found(causes_after[0], ruling, engine, notes, AFTER_MEASUREMENT)
    signs = consequences + _signs("trace", read, ruling, stopped_by_us=witnesses.stopped_by_us)
    if signs or ended:
        tier_4 = [_note("note", Lost(ruling.winner, "a note"))] if ruling.winner is not None else []
        return _unknown(read, signs, engine, tier_4 + notes)
    outcome = RECOVERED if ruling.recovered else NO_FAILURE
    return Verdict(NONE, engine=engine, outcome=outcome, notes=notes, fingerprint="none")


def _opened(verdict: Verdict, read: Sequence[LogFindings]) -> Verdict:
    """P3: a class that only says where an exception surfaced shows the exception, and is grouped by it."""
    pointer = first_exception(read)
    if pointer is None:
        return verdict
    return replace(
        verdict,
        evidence=_distinct([*verdict.evidence[: EVIDENCE_SHOWN - 1], *pointer.lines]),
        fingerprint=fingerprint(verdict.klass, pointer.basis),
        advice=f"{pointer.advice} {verdict.advice}",
    )


def _sample(log: LogFindings) -> str:
    return log.scan.head[:16_000].decode("utf-8", "replace") + log.sample[:16_000]


def _found(winner: Finding, ruling: Ruling, engine: str | None, notes: list[Note], outcome: str = TERMINAL) -> Verdict:
    rule = winner.rule
    evidence = _distinct([*winner.evidence, *(line for f in ruling.confirming for line in f.evidence)])
    if outcome == TERMINAL and rule.tier == 4:
        outcome = NO_FAILURE
    advice, retry = rule.advice, rule.retry
    if rule.numbers == "profiling_race" and equal_numbers(winner):
        advice, retry = "Both numbers are equal: not a race but a fault of this vLLM; use another version.", "no"
    directions = dict(rule.directions)
    if other := _opposite(rule.directions, ruling):
        advice += f" But {other} asks for the opposite: this configuration does not fit; make it smaller."
    return Verdict(
        klass=rule.id,
        tier=rule.tier,
        phase=winner.phase or rule.phase,
        engine=engine,
        rank=winner.rank or None,
        outcome=outcome,
        pointer=rule.tier == 3,
        evidence=evidence[:EVIDENCE_SHOWN],
        fingerprint=fingerprint(rule.id, winner.text),
        advice=advice,
        directions=directions,
        retry=retry,
        alternatives=_alternatives(ruling),
        notes=notes,
    )


def _opposite(directions: Mapping[str, str], ruling: Ruling) -> str | None:
    """P8: a second finding that wants the same parameter moved the other way."""
    wanted = {"smaller": "larger", "larger": "smaller"}
    for entry in ruling.lost:
        for name, direction in entry.finding.rule.directions.items():
            if name in directions and directions[name] == wanted.get(direction):
                return entry.finding.rule.id
    return None


def _alternatives(ruling: Ruling) -> list[Alternative]:
    shown: dict[str, Alternative] = {}
    for entry in ruling.lost:
        finding = entry.finding
        shown.setdefault(finding.rule.id, Alternative(finding.rule.id, entry.why, list(finding.evidence)))
    return list(shown.values())[:ALTERNATIVES_SHOWN]


def _notes(ruling: Ruling) -> list[Note]:
    kinds = (("note", ruling.notes), ("recovered", ruling.recovered), ("after_measurement", ruling.after))
    shown: dict[tuple[str, str], Note] = {}
    for kind, entries in kinds:
        for entry in entries:
            shown.setdefault((kind, entry.finding.rule.id), _note(kind, entry))
    return list(shown.values())


def _note(kind: str, entry: Lost) -> Note:
    rule = entry.finding.rule
    text = rule.advice if kind == "note" else f"{rule.cause}: {entry.why}"
    return Note(rule.id, kind, text, list(entry.finding.evidence))


def _ended_by_us(finding: Finding) -> bool:
    """Findings that a stop of ours explains; a crash by the engine's own fault is none of them."""
    if finding.rule.id == "serve.engine_died":
        return "crashed" not in finding.text and "Fatal" not in finding.text
    return finding.rule.id == "proc.killed"


def _signs(kind: str, read: Sequence[LogFindings], ruling: Ruling, *, stopped_by_us: bool) -> list[Line]:
    """Signs of a failure that no rule explains; those that a stop or a recovery explains do not count."""
    signs: list[Line] = []
    for log in read:
        for line in log.signs.get(kind, []):
            after_stop = log.stop_line is not None and line.line >= abs(log.stop_line)
            ended = stopped_by_us and _END.search(line.text)
            passed = kind == "trace" and (log.scan.last_work > line.line or ruling.recovered)
            passed = passed or task_passed_over(log, line.line, line.text)
            if not (after_stop or ended or passed):
                signs.append(line)
    return signs


def _unknown(read: Sequence[LogFindings], signs: list[Line], engine: str | None, notes: list[Note]) -> Verdict:
    pointer = best_pointer(read, signs)
    evidence = _distinct([*pointer.lines, *signs[:2]])
    return Verdict(
        UNKNOWN,
        phase=pointer.phase,
        engine=engine,
        rank=None,
        outcome=TERMINAL,
        pointer=True,
        evidence=evidence[:EVIDENCE_SHOWN],
        fingerprint=fingerprint(UNKNOWN, pointer.basis),
        advice=pointer.advice,
        retry="once",
        notes=notes,
    )


def _distinct(lines: Iterable[Line]) -> list[Line]:
    return list({(line.source, line.line, line.text): line for line in lines}.values())


__all__ = ["Scan", "classify", "classify_files"]
