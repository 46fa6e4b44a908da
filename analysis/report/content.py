"""What a report says, as plain data: the page, the terminal, the summary and the JSON all print this."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from analysis import ceiling, why
from analysis import verdicts as judging
from analysis.figures import panels
from analysis.report import words
from analysis.results import Failed, Results
from specsweep import record

STATUSES = ("ok", "failed", "invalid", "not_applied", "skipped", "pending")
STATUS_WORDS = {"not_applied": "not applied"}


@dataclass(frozen=True)
class Row:
    """One line of the table: a budget at one concurrency, over its restarts."""

    variant: str
    budget: int
    concurrency: int
    baseline: bool
    status: str
    """worst status of its cells, in words"""
    detail: str
    """failure class, or why it does not count"""
    restarts: int
    """restarts with a number"""
    system_tok_s: float | None = None
    per_user_tok_s: float | None = None
    al: float | None = None
    step_time_ms: float | None = None
    ttft_ms: float | None = None
    speedup: float | None = None
    """system tok/s over that of the baseline, as the verdict has it"""
    low: float | None = None
    high: float | None = None
    verdict: str = ""
    sentence: str = ""
    replay: bool = False


@dataclass(frozen=True)
class Cause:
    """Why one configuration is faster or slower at one concurrency: factors relative to its reference."""

    label: str
    budget: int
    concurrency: int
    throughput: float | None
    running: float | None
    al: float | None
    step_time: float | None
    needs_al: float | None
    """acceptance length at which it would be as fast as its reference"""
    measured_al: float | None
    doubling: str
    """gain in throughput of the last doubling of the budget"""
    direction: str


@dataclass(frozen=True)
class FailureCard:
    """One distinct failure and everything it hit."""

    anchor: str
    klass: str
    count: int
    phase: str
    outcome: str
    pointer: bool
    advice: str
    directions: list[str]
    retry: str
    evidence: list[record.Line]
    hit: list[str]
    reasons: list[str]
    alternatives: list[str]
    notes: list[str]
    folders: list[str]


@dataclass(frozen=True)
class Uncounted:
    """Cells that were run or planned and carry no verdict, by status and reason."""

    status: str
    reason: str
    cells: list[str]


@dataclass(frozen=True)
class Overhead:
    """Time of one restart beside measuring."""

    name: str
    ready_s: float | None
    measured_s: float | None
    overhead_s: float | None
    status: str


@dataclass
class Content:
    """Everything a report prints."""

    title: str
    facts: list[tuple[str, str]]
    """what this was: sweep, host, engine, model ..."""
    counts: dict[str, int]
    """cells by status"""
    notices: list[str]
    """what a reader must know before any number"""
    answers: list[str] = field(default_factory=list)
    """which budget pays, up to which concurrency, by how much, how sure"""
    rows: list[Row] = field(default_factory=list)
    failures: list[FailureCard] = field(default_factory=list)
    uncounted: list[Uncounted] = field(default_factory=list)
    adjusted: list[dict[str, str]] = field(default_factory=list)
    ceilings: list[ceiling.Ceiling] = field(default_factory=list)
    overheads: list[Overhead] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    verdicts: pd.DataFrame = field(default_factory=pd.DataFrame)
    """as of `analysis.verdicts.verdicts`"""
    factors: pd.DataFrame = field(default_factory=pd.DataFrame)
    """as of `analysis.why.decomposition`"""
    causes: list[Cause] = field(default_factory=list)
    noise_floor: float | None = None
    """largest relative spread of anything that should not have moved, halved; None where nothing says"""

    @property
    def something_failed(self) -> bool:
        """Did anything that was measured end without a number that stands?"""
        return any(self.counts.get(status) for status in ("failed", "invalid", "not_applied"))


def content_of(results: Results) -> Content:
    """Everything that a report on these results says."""
    cells = results.cells
    frame = judging.verdicts(results)
    factors = why.decomposition(results, frame)
    return Content(
        title=_title(results),
        facts=_facts(results),
        counts={status: int(cells["status"].eq(status).sum()) for status in STATUSES},
        notices=_notices(cells),
        answers=_answers(results),
        rows=table(cells, frame),
        failures=failure_cards(results),
        uncounted=_uncounted(cells),
        adjusted=_adjusted(results.differences),
        ceilings=_ceilings(cells),
        overheads=_overheads(results),
        problems=list(results.problems),
        verdicts=frame,
        factors=factors,
        causes=_causes(factors),
        noise_floor=_noise_floor(results),
    )


def _ceilings(cells: pd.DataFrame) -> list[ceiling.Ceiling]:
    """Each ceiling once, with all the places that say the same."""
    said: dict[str, list[ceiling.Ceiling]] = {}
    for one in ceiling.ceilings(cells) if len(cells) else []:
        said.setdefault(one.sentence, []).append(one)
    return [dataclasses.replace(same[0], where=words.listed([one.where for one in same], 4)) for same in said.values()]


def _answers(results: Results) -> list[str]:
    """The first screen.  With one restart the categories come first: there the sweep says most."""
    general, categories = _sentences(why.headlines(results)), _by_category(results)
    return categories + general if restarts(results.cells) <= 1 else general + categories


def _sentences(lines: Iterable[str]) -> list[str]:
    """The words of the analysis as sentences of a page; what a notice says already is left out.

    A line that begins with a label keeps its case: labels are names.
    """
    said = ("one restart: no verdict", "a rehearsal from a recording")
    kept = [line for line in lines if line and not line.startswith(said)]
    return [line[0].upper() + line[1:] if line.startswith(("at ", "and ", "nothing ")) else line for line in kept]


def _by_category(results: Results) -> list[str]:
    """What the prompt categories saw, over all budgets: a range, so that no budget is named the winner."""
    if results.categories.empty:
        return []
    frame = why.by_category(results)
    frame = frame[frame["category"].ne("") & frame["budget"].ne(0) & frame["ratio"].notna()]
    lines = []
    place = [*judging.SAME_WORK, "method", "topk", "max_running"]
    telling = [name for name in ("host", "model", "topk", "max_running") if frame[name].nunique() > 1]
    for _, rows in list(panels.groups(frame, place, sort=False))[:MOST_CATEGORY_LINES]:
        seen = [
            (name, float(own["ratio"].min()), float(own["ratio"].max()))
            for name, own in panels.groups(rows, "category")
        ]
        if len(seen) < 2:
            continue
        seen.sort(key=lambda entry: -entry[2])
        budgets = panels.budgets(rows)
        span = f"budget {budgets[0]}" if len(budgets) == 1 else f"budgets {budgets[0]} to {budgets[-1]}"
        first = rows.iloc[0]
        which = [str(first["method"]), *(panels.word(name, first[name]) for name in telling)]
        parts = [f"{name} {_range(low, high)}" for name, low, high in seen]
        lines.append(
            f"Per-user speed against the baseline, {', '.join(which)}, at concurrency {first['concurrency']}, "
            f"{span}: {words.listed(parts, 6)} ({_samples(results.categories, rows)} a category and cell)."
        )
    return lines


def _samples(categories: pd.DataFrame, rows: pd.DataFrame) -> str:
    """How many requests a category and cell of these rows had."""
    concurrency = int(rows["concurrency"].iloc[0])
    here = categories["configuration_id"].isin(_ids(categories, rows)) & categories["concurrency"].eq(concurrency)
    counts = categories.loc[here & categories["status"].eq("ok"), "requests"]
    low, high = int(counts.min()), int(counts.max())
    return words.plural(low, "request") if low == high else f"{low} to {high} requests"


def _ids(categories: pd.DataFrame, rows: pd.DataFrame) -> set[str]:
    labels = set(rows["label"])
    return set(categories.loc[categories["label"].isin(labels), "configuration_id"])


#: Most places of which the first screen tells the categories.
MOST_CATEGORY_LINES = 4


def _range(low: float, high: float) -> str:
    if words.number(low) == words.number(high):
        return f"{words.number(low)}×"
    return f"{words.number(low)}× to {words.number(high)}×"


def _noise_floor(results: Results) -> float | None:
    frame = judging.noise_floor(results)
    anchors = frame[frame["source"].eq("anchors")]["spread"].dropna()
    return float(anchors.max()) / 2 if len(anchors) else None


def _title(results: Results) -> str:
    names = [sweep.sweep_id for sweep in results.sweeps] or sorted(set(results.cells["sweep_id"]))
    names = [name for name in names if name]
    return words.listed(names, 3) or results.path.name


def _distinct(values: Iterable[Any]) -> list[str]:
    return [str(value) for value in dict.fromkeys(values) if not words.missing(value) and str(value)]


def _facts(results: Results) -> list[tuple[str, str]]:
    cells = results.cells
    facts = []
    started = [sweep.created_unix_s for sweep in results.sweeps]
    if started:
        when = datetime.datetime.fromtimestamp(min(started), datetime.UTC)
        facts.append(("started", when.strftime("%Y-%m-%d %H:%M UTC")))
    ends = [sweep.finished_unix_s for sweep in results.sweeps if sweep.finished_unix_s is not None]
    if len(results.sweeps) == 1 and ends:
        facts.append(("took", words.duration(ends[0] - started[0])))
    machines = {host.name: host for host in results.hosts}
    hosts = []
    for name in _distinct(cells["host"]):
        host = machines.get(name)
        gpus = [str(gpu.get("name", "GPU")) for gpu in host.gpus] if host else []
        parts = [f"{gpus.count(gpu)}× {gpu}" for gpu in dict.fromkeys(gpus)]
        if host and not parts and host.cpu:
            parts = [host.cpu + (f", {host.cpu_count} CPUs" if host.cpu_count else "")]
        hosts.append(f"{name} ({', '.join(parts)})" if parts else name)
    if hosts:
        facts.append(("host" if len(hosts) == 1 else "hosts", words.listed(hosts, 6)))
    engines = cells[["engine", "engine_version"]].drop_duplicates() if len(cells) else cells
    names = [f"{row['engine']} {row['engine_version'] or ''}".strip() for row in panels.rows(engines)]
    for label, values in (
        ("engine", _distinct(names)),
        ("model", _distinct(cells["model"])),
        ("drafter", _distinct(cells["drafter"])),
        ("prompts", _distinct(cells["prompts"])),
        ("source", [name for name in _distinct(cells["source"]) if name != "specsweep"]),
    ):
        if values:
            facts.append((label, words.listed(values, 4)))
    return facts


def restarts(cells: pd.DataFrame) -> int:
    """Most restarts that any speculative configuration has (blocks only)."""
    rows = panels.measured(panels.in_blocks(cells))
    rows = rows[~panels.is_baseline(rows)]
    if rows.empty:
        return 0
    each = rows.groupby(["sweep_id", "host", "configuration_id"], dropna=False)["repeat"].nunique()
    return int(each.max())


def _notices(cells: pd.DataFrame) -> list[str]:
    notices = []
    replays = int(cells["origin"].eq("replay").sum())
    if replays:
        notices.append(f"{words.plural(replays, 'cell')} of {len(cells):,}: {words.REPLAY}.")
    if restarts(cells) == 1:
        notices.append(words.ONE_RESTART)
    imported = cells[cells["origin"].eq("imported")]
    if len(imported):
        tools = words.listed(_distinct(imported["source"]), 3)
        notices.append(f"Imported from {tools}: the definitions and the care are those of that tool.")
    notices += _remarks(cells["remarks"][cells["remarks"].astype(bool)])
    if cells["prompts_reused"].any():
        amount = int(cells["prompts_reused"].sum())
        notices.append(
            f"{words.plural(amount, 'cell')} sent a prompt twice to one server: acceptance may be flattered."
        )
    return notices


_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def _remarks(remarks: pd.Series[str], most: int = 5) -> list[str]:
    """Remarks of cells, those that differ in their numbers only as one with the range of its first number."""
    alike: dict[str, list[str]] = {}
    for text in remarks:
        alike.setdefault(_NUMBER.sub("#", text), []).append(text)
    said = []
    for texts in sorted(alike.values(), key=len, reverse=True)[:most]:
        text = texts[0]
        firsts = sorted({float(found[0]) for one in texts if (found := _NUMBER.search(one))})
        if len(firsts) > 1:
            text = _NUMBER.sub(f"{firsts[0]:g} to {firsts[-1]:g}", text, count=1)
        said.append(f"{words.plural(len(texts), 'cell')}: {text}")
    return said


def table(cells: pd.DataFrame, frame: pd.DataFrame) -> list[Row]:
    """One row per variant, budget and concurrency; anchors are left out."""
    judged = {tuple(row[key] for key in _JUDGED_BY): row for row in panels.rows(frame)}
    found: list[Row] = []
    for panel in panels.panels(cells):
        # Plain rows from here on: thousands of small frames would take seconds.
        groups: dict[tuple[int, int], list[dict[str, Any]]] = {}
        for row in panels.rows(panel.cells[list(_OF_A_ROW)]):
            groups.setdefault((int(row["budget"]), int(row["concurrency"])), []).append(row)
        # A panel without a number needs no baseline to compare it with.
        alone = not any(row["status"] == "ok" and not _is_baseline(row) for rows in groups.values() for row in rows)
        for key in sorted(groups):
            rows = groups[key]
            if alone and len(groups) > 1 and _is_baseline(rows[0]):
                continue
            verdict = judged.get(tuple(rows[0][name] for name in _JUDGED_BY), {})
            found.append(_row(panel.title, rows, verdict))
    return found


_JUDGED_BY = ("sweep_id", "host", "configuration_id", "concurrency")
_OF_A_ROW = (
    *_JUDGED_BY,
    "method",
    "budget",
    "baseline",
    "repeat",
    "origin",
    "status",
    "reason",
    "failure_class",
    "system_tok_s",
    "per_user_tok_s",
    "al",
    "step_time_ms",
    "ttft_ms_median",
)


def _is_baseline(row: dict[str, Any]) -> bool:
    return bool(row["baseline"]) or row["method"] == "none"


def _number(value: Any) -> float | None:
    return None if words.missing(value) else float(value)


def _row(variant: str, rows: list[dict[str, Any]], verdict: dict[str, Any]) -> Row:
    counts = collections.Counter(row["status"] for row in rows)
    order = ("failed", "not_applied", "invalid", "pending", "skipped", "ok")
    worst = next(status for status in order if counts[status])
    status = STATUS_WORDS.get(worst, worst)
    if worst != "ok" and counts[worst] < len(rows):
        status = f"{status} {counts[worst]} of {len(rows)}"
    detail = ""
    if worst != "ok":
        column = "failure_class" if worst == "failed" else "reason"
        detail = words.listed(_distinct(row[column] for row in rows if row["status"] == worst), 2)
    good = [row for row in rows if row["status"] == "ok"]

    def median(column: str) -> float | None:
        values = [row[column] for row in good if not words.missing(row[column])]
        return float(statistics.median(values)) if values else None

    said = str(verdict.get("verdict", ""))
    return Row(
        variant=variant,
        budget=int(rows[0]["budget"]),
        concurrency=int(rows[0]["concurrency"]),
        baseline=any(_is_baseline(row) for row in rows),
        status=status,
        detail=detail,
        restarts=len({row["repeat"] for row in good}),
        system_tok_s=median("system_tok_s"),
        per_user_tok_s=median("per_user_tok_s"),
        al=median("al"),
        step_time_ms=median("step_time_ms"),
        ttft_ms=median("ttft_ms_median"),
        speedup=_number(verdict.get("ratio")),
        low=_number(verdict.get("low")),
        high=_number(verdict.get("high")),
        verdict="" if said in STATUSES else said,
        sentence=str(verdict.get("sentence", "")),
        replay=any(row["origin"] == "replay" for row in rows),
    )


def _causes(factors: pd.DataFrame) -> list[Cause]:
    """The factors of every configuration that has a reference with a number."""
    rows = [
        row
        for row in panels.rows(factors)
        if row["reference_kind"] != "itself" and not words.missing(row["throughput_ratio"])
    ]
    rows.sort(key=lambda row: (row["host"], row["method"], row["budget"], row["concurrency"]))
    several_hosts = len({row["host"] for row in rows}) > 1
    return [
        Cause(
            label=f"{row['host']}: {row['label']}" if several_hosts else str(row["label"]),
            budget=int(row["budget"]),
            concurrency=int(row["concurrency"]),
            throughput=_number(row["throughput_ratio"]),
            running=_number(row["running_ratio"]),
            al=_number(row["al_ratio"]),
            step_time=_number(row["step_time_ratio"]),
            needs_al=_number(row["break_even_al"]),
            measured_al=_number(row["al"]),
            doubling=_doubling(row),
            direction=str(row["direction"]),
        )
        for row in rows
    ]


def _doubling(row: dict[str, Any]) -> str:
    if words.missing(row["doubling_gain"]):
        return ""
    said = f"{100 * row['doubling_gain']:+.1f} % from {row['previous_budget']:.0f}"
    if words.missing(row["doubling_low"]) or words.missing(row["doubling_high"]):
        return said
    return f"{said} ({100 * row['doubling_low']:+.1f} to {100 * row['doubling_high']:+.1f})"


def failure_cards(results: Results) -> list[FailureCard]:
    """Distinct failures by fingerprint, those that hit most first."""
    groups: dict[str, list[Failed]] = {}
    for one in results.failures:
        groups.setdefault(one.failure.fingerprint or one.failure.klass, []).append(one)
    known = {(one.sweep_id, one.host, one.configuration_id, one.repeat) for one in results.failures}
    for cell in results.cell_records:
        key = (cell.sweep_id, cell.host, cell.configuration_id, cell.repeat)
        if cell.status == "failed" and cell.failure is None and key not in known:
            unnamed = Failed(
                failure=record.Failure(klass="unknown"), sweep_id=cell.sweep_id, host=cell.host,
                configuration_id=cell.configuration_id, label=cell.label, budget=cell.budget, repeat=cell.repeat,
                concurrency=cell.concurrency, reason=cell.reason, folder=None,
            )  # fmt: skip
            groups.setdefault(f"unknown: {cell.reason}", []).append(unnamed)
    cards = [_card(f"failure-{index}", members) for index, members in enumerate(groups.values(), start=1)]
    return sorted(cards, key=lambda card: -card.count)


def _card(anchor: str, members: list[Failed]) -> FailureCard:
    first = max(members, key=lambda one: len(one.failure.evidence))
    failure = first.failure
    several_hosts = len({one.host for one in members}) > 1
    hit: dict[str, list[str]] = {}
    for one in members:
        name = f"{one.host}: {one.label}" if several_hosts else one.label
        hit.setdefault(name, [])
        if one.concurrency is not None and f"c{one.concurrency}" not in hit[name]:
            hit[name].append(f"c{one.concurrency}")
    return FailureCard(
        anchor=anchor,
        klass=failure.klass,
        count=len(members),
        phase=(failure.phase or "").replace("_", " "),
        outcome=failure.outcome,
        pointer=failure.pointer,
        advice=failure.advice,
        directions=[f"{name}: {way}" for name, way in failure.directions.items()],
        retry=failure.retry,
        evidence=failure.evidence,
        hit=[f"{name} ({' '.join(loads)})" if loads else name for name, loads in hit.items()],
        reasons=_distinct(one.reason for one in members)[:5],
        alternatives=[_phrase(entry) for entry in failure.alternatives],
        notes=[_phrase(entry) for entry in failure.notes],
        folders=_distinct(str(one.folder) for one in members if one.folder)[:5],
    )


def _phrase(entry: dict[str, Any]) -> str:
    klass = entry.get("class") or entry.get("klass") or ""
    rest = "; ".join(
        f"{name} {value}"
        for name, value in entry.items()
        if name not in ("class", "klass") and value not in (None, "", [])
    )
    return f"{klass}: {rest}" if klass and rest else str(klass or rest)


def _uncounted(cells: pd.DataFrame) -> list[Uncounted]:
    found = []
    rest = cells[cells["status"].isin(["invalid", "not_applied", "skipped", "pending"])]
    for (status, reason), rows in panels.groups(rest, ["status", "reason"], sort=False):
        names: dict[str, list[str]] = {}
        for row in panels.rows(rows[["label", "concurrency"]].drop_duplicates()):
            names.setdefault(str(row["label"]), []).append(f"c{row['concurrency']}")
        found.append(
            Uncounted(
                STATUS_WORDS.get(status, status),
                "" if words.missing(reason) else str(reason),
                [f"{label} ({' '.join(loads)})" for label, loads in names.items()],
            )
        )
    return found


def _adjusted(differences: pd.DataFrame) -> list[dict[str, str]]:
    if differences.empty:
        return []
    columns = ["label", "name", "asked", "effective", "witness"]
    rows = differences[columns].astype(str).drop_duplicates()
    return [{name: str(value) for name, value in row.items()} for row in panels.rows(rows)]


def _overheads(results: Results) -> list[Overhead]:
    configurations = results.configurations
    if configurations.empty:
        return []
    phases = results.phases
    keys = ["sweep_id", "host", "configuration_id", "repeat", "anchor"]
    measuring = phases[phases["name"].isin(["measure", "warmup"])]
    spent = measuring.fillna({"anchor": ""}).groupby(keys)["duration_s"].sum().to_dict()
    several_hosts = configurations["host"].nunique() > 1
    found = []
    for row in panels.rows(configurations.sort_values(["sweep_id", "host", "position"], kind="stable")):
        anchor = row["anchor"] if isinstance(row["anchor"], str) else ""
        name = f"{row['host']}: {row['label']}" if several_hosts else str(row["label"])
        name += f", {anchor} anchor" if anchor else (f", restart {row['repeat']}" if row["repeat"] > 1 else "")
        key = (row["sweep_id"], row["host"], row["configuration_id"], row["repeat"], anchor)
        status = STATUS_WORDS.get(row["status"], row["status"])
        found.append(Overhead(name, row["ready_s"], spent.get(key), row["overhead_s"], status))
    return found
