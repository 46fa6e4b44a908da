"""Run the exact rules over the windows that a scan kept."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from analysis.classify.acceptance import useless_draft
from analysis.classify.anchors import spaces_match_wraps
from analysis.classify.figures import requests_sent
from analysis.classify.prepare import PreparedLine, newest_first, prepare
from analysis.classify.rules import Expression, Rule, Ruleset
from analysis.classify.scan import Scan, Window
from analysis.classify.verdict import Line

SHOWN_CHARACTERS = 1_000
# Rules of these phases keep their own phase; for the others the log's markers know better.
OWN_PHASE = {"deploy", "unit_start", "readiness", "benchmark_client", "shutdown"}
_AT_WORK = re.compile(r'(?:Decode|Prefill) batch|HTTP/1\.1" 200|Avg generation throughput')
# A program's own name and its complaint, within the last lines of the log.
_PARSER_ERROR = re.compile(r"\s*(?:[\w./-]{1,60}(?: [\w-]{1,30})?: )?error: \S")
LAST_WORDS = 3
LAST_BYTES = 2_000
_STARTED = re.compile(r"Application startup complete")
NEARBY_CHARACTERS = 3_000
_TASK_ERROR = re.compile(r"fatal: \[|FAILED! =>|UNREACHABLE! =>|\[ERROR\]: Task failed")


@dataclass(frozen=True)
class Finding:
    """A rule that matched, where, and what stands around it."""

    rule: Rule
    source: str
    order: float  # place in the log, oldest first
    line: int
    text: str  # what matched, prepared
    window: str  # the prepared text before it, match included, up to some kilobytes
    following: str
    evidence: tuple[Line, ...]
    rank: str = ""
    stamp: float | None = None
    phase: str | None = None
    recovered: bool = False
    after_stop: bool = False
    count: int = 1
    loose: bool = False  # found by words in any order
    sent: int | None = None  # requests sent, where the log around it says so


@dataclass
class LogFindings:
    """Everything that one log said."""

    source: str
    scan: Scan
    findings: list[Finding] = field(default_factory=list)
    signs: dict[str, list[Line]] = field(default_factory=dict)
    stop_line: float | None = None
    reversed: bool = False
    sample: str = ""  # prepared text, for telling the engine


@dataclass(frozen=True)
class _Match:
    expression: Expression
    order: float
    line: PreparedLine
    last: PreparedLine
    text: str
    window: str
    following: str
    raw: bytes


def find(source: str, scan: Scan, rules: Ruleset) -> LogFindings:
    """All findings of one log, oldest first, with phase, rank and recovery."""
    prepared = [(window, prepare(window.raw, window.first_line)) for window in scan.windows]
    backwards = newest_first(_stamps(scan, prepared))
    sign = -1.0 if backwards else 1.0
    matches: dict[tuple[int, int, str], _Match] = {}
    for window, lines in prepared:
        ordered = _turned(lines) if backwards else lines
        for match in _matches(ordered, window, rules, sign):
            key = (match.expression.number, match.line.number, match.line.shown + match.text[:200])
            matches.setdefault(key, match)
    ordered_matches = sorted(matches.values(), key=lambda match: match.order)
    result = LogFindings(source, scan, reversed=backwards)
    result.sample = "\n".join(line.shown for _, lines in prepared[:20] for line in lines[:80])
    phases = _Phases(scan, [m for m in ordered_matches if m.expression.role == "phase"], sign)
    progress = _Progress(scan, ordered_matches, sign)
    result.stop_line = phases.stop
    for match in ordered_matches:
        if match.expression.role == "sign":
            result.signs.setdefault(match.expression.owner, []).append(_evidence(source, match)[0])
    by_role = _by_role(ordered_matches)
    for rule in rules.rules.values():
        result.findings.extend(_findings_of(rule, by_role, phases, progress, source, scan, sign))
    if line := useless_draft(scan.acceptance):
        result.findings.append(_zero_acceptance(rules.rules["serve.spec.zero_acceptance"], source, line))
    _note_final_error(result)
    result.findings = _exact_first(result.findings)
    result.findings = [_with_task_outcome(finding, result) for finding in result.findings]
    result.findings.sort(key=lambda finding: finding.order)
    return result


def _exact_first(findings: list[Finding]) -> list[Finding]:
    """Words in any order say nothing new of a line that an exact expression knows."""
    exact: dict[int, int] = {}
    for finding in findings:
        if not finding.loose:
            exact[finding.line] = min(finding.rule.tier, exact.get(finding.line, finding.rule.tier))
    return [f for f in findings if not f.loose or exact.get(f.line, f.rule.tier + 1) > f.rule.tier]


def _note_final_error(result: LogFindings) -> None:
    """A log that ends with an argument parser's complaint has failed, whatever usage text stands before it."""
    before, end = result.scan.tail[:-LAST_BYTES], result.scan.tail[-LAST_BYTES:]
    first_line = result.scan.tail_first_line + before.count(b"\n")
    lines = [line for line in prepare(end, first_line) if line.text.strip()]
    for line in lines[-LAST_WORDS:]:
        if _PARSER_ERROR.match(line.text):
            shown = Line(result.source, line.number, line.shown[:SHOWN_CHARACTERS])
            result.signs.setdefault("consequence", []).append(shown)


def task_passed_over(result: LogFindings, line: int, text: str) -> bool:
    """Whether an Ansible error was ignored or rescued: by the task, or as the whole run's recap says (P11)."""
    if not _TASK_ERROR.search(text):
        return False
    ignored = any(sign.line == line for sign in result.signs.get("ignored", []))
    clean = "recap_clean" in result.signs and "recap_failed" not in result.signs
    return ignored or clean


def _with_task_outcome(finding: Finding, result: LogFindings) -> Finding:
    shown = finding.evidence[0].text if finding.evidence else ""
    if finding.recovered or not task_passed_over(result, finding.line, shown):
        return finding
    return replace(finding, recovered=True)


def _stamps(scan: Scan, prepared: list[tuple[Window, list[PreparedLine]]]) -> list[float]:
    ends = [*prepare(scan.head, 1)[:200], *prepare(scan.tail, 1)[-60:]]
    inner = [line for _, lines in prepared for line in lines] if scan.size < 1_000_000 else []
    return [line.stamp for line in (inner or ends) if line.stamp is not None]


def _turned(lines: list[PreparedLine]) -> list[PreparedLine]:
    return sorted(lines, key=lambda line: -line.number)


def _matches(lines: list[PreparedLine], window: Window, rules: Ruleset, sign: float) -> Iterator[_Match]:
    wanted = [rules.expressions[number] for number in sorted(window.expressions)]
    for part in _streams(lines):
        text = "\n".join(line.text for line in part)
        starts: list[int] = []
        at = 0
        for line in part:
            starts.append(at)
            at += len(line.text) + 1
        for expression in wanted:
            for found in expression.pattern.finditer(text):
                index = bisect.bisect_right(starts, found.start()) - 1
                last = bisect.bisect_right(starts, max(found.start(), found.end() - 1)) - 1
                order = sign * part[index].number + 1e-6 * index
                end = found.end()
                before = text[max(0, end - NEARBY_CHARACTERS) : end]
                after = text[end : end + NEARBY_CHARACTERS]
                first, final = part[index], part[last]
                yield _Match(expression, order, first, final, found.group(), before, after, window.raw)


def _streams(lines: list[PreparedLine]) -> Iterator[list[PreparedLine]]:
    """The lines as they stand, without those of a rank at work, and for each of several ranks alone."""
    yield lines
    idle = [line for line in lines if not _AT_WORK.search(line.text)]
    if len(idle) < len(lines):
        yield idle
    ranks = {line.rank for line in lines if line.rank}
    if len(ranks) > 1:
        for rank in sorted(ranks):
            yield [line for line in lines if line.rank == rank]


def _by_role(matches: Iterable[_Match]) -> dict[tuple[str, str, str], list[_Match]]:
    """Matches by (rule, role, expression)."""
    grouped: dict[tuple[str, str, str], list[_Match]] = {}
    for match in matches:
        expression = match.expression
        grouped.setdefault((expression.owner, expression.role, expression.source), []).append(match)
    return grouped


def _findings_of(
    rule: Rule,
    by_role: dict[tuple[str, str, str], list[_Match]],
    phases: _Phases,
    progress: _Progress,
    source: str,
    scan: Scan,
    sign: float,
) -> Iterator[Finding]:
    hits = sorted(
        (match for text in rule.any for match in by_role.get((rule.id, "any", text), ())),
        key=lambda match: match.order,
    )
    hits = [match for match in hits if not _excluded(rule, match)]
    hits = [match for match in hits if _in_context(rule, match, by_role)]
    if len({(match.line.number, match.line.shown) for match in hits}) < rule.min_count:
        return
    recoveries = [
        match.order for text in rule.recovered_by for match in by_role.get((rule.id, "recovered_by", text), ())
    ]
    for match in hits:
        phase = phase_by_frames(match.window, match.following, phases.at(match.order))
        own = rule.phase in OWN_PHASE or phase is None or phase == "shutdown"
        yield Finding(
            rule=rule,
            source=source,
            order=match.order,
            line=match.line.number,
            text=match.text,
            window=match.window,
            following=match.following,
            evidence=_evidence(source, match),
            rank=match.line.rank,
            stamp=match.line.stamp,
            phase=rule.phase if own and rule.phase else phase,
            recovered=any(order >= match.order for order in recoveries)
            or (bool(rule.recovered_by) and _works_after(rule, match, scan, sign))
            or (_passes(rule) and progress.follows(match.order)),
            after_stop=phases.stop is not None and match.order > phases.stop,
            count=len(hits),
            loose=match.expression.loose,
            sent=requests_sent(match.raw) if rule.numbers == "partial" else None,
        )


def _excluded(rule: Rule, match: _Match) -> bool:
    around = match.line.text + "\n" + match.text
    return any(re.search(spaces_match_wraps(text), around, re.IGNORECASE) for text in rule.unless)


def _in_context(rule: Rule, match: _Match, by_role: dict[tuple[str, str, str], list[_Match]]) -> bool:
    earlier = all(
        any(other.order <= match.order for other in by_role.get((rule.id, "before", text), ())) for text in rule.before
    )
    later = all(
        any(other.order >= match.order for other in by_role.get((rule.id, "after", text), ())) for text in rule.after
    )
    return earlier and later


def _works_after(rule: Rule, match: _Match, scan: Scan, sign: float) -> bool:
    """Rules that name ``<work>`` recover by any later line of a server at work."""
    return "<work>" in rule.recovered_by and sign > 0 and scan.last_work > match.line.number


def _passes(rule: Rule) -> bool:
    """Whether a start that went well after all makes this error a note (P11).

    Not where the server is healthy and yet is not what was asked for (swept settings, drafter, deployment,
    leftovers of another run), nor for hardware, nor for what is found after the start.
    """
    if rule.tier not in (1, 2) or rule.phase not in ("unit_start", "model_load", "graph_capture", "warmup"):
        return False
    return rule.family in ("mem", "jit", "cuda", "hub", "env", "attn", "dist") or rule.id == "model.path_missing"


class _Progress:
    """Where a server that had said an error became ready after all, and then worked."""

    def __init__(self, scan: Scan, matches: list[_Match], sign: float) -> None:
        markers = [match for match in matches if match.expression.role == "phase"]
        ready = [m.order for m in markers if m.expression.owner == "serving_under_load" and m.order < scan.last_work]
        started = [m.order for m in markers if _STARTED.search(m.text) and m.order < scan.last_serving]
        self._ready = sorted(ready + started) if sign > 0 else []
        begins = [m.order for m in markers if m.expression.owner == "unit_start"]
        signs = [match for match in matches if match.expression.role == "sign"]
        ends = [m.order for m in signs if m.expression.owner in ("consequence", "start")]
        self._ends = sorted(begins + ends)

    def follows(self, order: float) -> bool:
        """Ready and at work later, with no end and no new start between: P18 keeps a first attempt's error."""
        at = bisect.bisect_right(self._ready, order)
        if at == len(self._ready):
            return False
        end = bisect.bisect_right(self._ends, order)
        return end == len(self._ends) or self._ends[end] > self._ready[at]


def _evidence(source: str, match: _Match) -> tuple[Line, ...]:
    first = Line(source, match.line.number, _shown(match.line.shown, match.text))
    if match.last.number == match.line.number:
        return (first,)
    return (first, Line(source, match.last.number, _shown(match.last.shown, match.text[-80:])))


def _shown(text: str, matched: str) -> str:
    if len(text) <= SHOWN_CHARACTERS:
        return text
    at = max(0, text.find(matched[:40]))
    begin = max(0, min(at - SHOWN_CHARACTERS // 3, len(text) - SHOWN_CHARACTERS))
    piece = text[begin : begin + SHOWN_CHARACTERS]
    return ("... " if begin else "") + piece + (" ..." if begin + SHOWN_CHARACTERS < len(text) else "")


def _zero_acceptance(rule: Rule, source: str, line: int) -> Finding:
    text = "nearly every report of this run says that no draft was accepted"
    return Finding(rule, source, line, line, text, text, "", (Line(source, line, text),), phase=rule.phase)


_FRAMES = (
    ("graph_capture", re.compile(r"cuda_graph_runner\.py|in (?:capture|capture_model|init_\w*cuda_graphs?)\b")),
    ("model_load", re.compile(r"in (?:load_model|load_weights|init_device)\b|model_loader|weight_utils")),
    (
        "serving_under_load",
        re.compile(r"in (?:event_loop\w*|run_batch|forward_batch_\w+|run_busy_loop|verify)\b|in forward\b"),
    ),
)


def phase_by_frames(window: str, following: str, marked: str | None) -> str | None:
    """The phase that the frames of a traceback tell, where the markers before it do not know better."""
    frames = window[-2000:] + following[:1000]
    if marked in (None, "model_load"):
        return next((phase for phase, pattern in _FRAMES if pattern.search(frames)), marked)
    return marked


class _Phases:
    """The phase at each place of a log, by the markers before it."""

    def __init__(self, scan: Scan, markers: list[_Match], sign: float) -> None:
        events = [(match.order, match.expression.owner) for match in markers]
        ready = [order for order, phase in events if phase == "serving_under_load"]
        if scan.first_serving:
            events.append((sign * scan.first_serving, "serving_under_load"))
        elif scan.first_work and not ready and not any(phase == "warmup" for _, phase in events):
            events.append((sign * scan.first_work, "serving_under_load"))
        events.sort()
        self._orders = [order for order, _ in events]
        self._names = [phase for _, phase in events]
        stops = [order for order, phase in events if phase == "shutdown"]
        starts = [order for order, phase in events if phase in ("unit_start", "model_load")]
        self.stop = next((order for order in stops if not any(start > order for start in starts)), None)

    def at(self, order: float) -> str | None:
        index = bisect.bisect_right(self._orders, order) - 1
        return self._names[index] if index >= 0 else None
