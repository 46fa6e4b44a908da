"""Is a configuration faster than the baseline, and how sure is that?

The unit of replication is the restart.  Restarts of a configuration are compared with the baseline restart of
the same block (the same `repeat`), so that slow drift cancels; the interval is that of
`analysis.statistics.paired_ratio`.  Only cells of one sweep, host, engine version, model, prompt set, output
length and temperature are ever compared: `what_differs` says what else is in the results.

Verdicts: better, worse (the interval excludes 1), tie (the interval lies within the margin), underpowered (the
restarts do not tell), no verdict (one restart, or a rehearsal), no baseline, not comparable (the outputs were
truncated differently), baseline, reference (what the others are compared with where no baseline was asked
for), and the status of configurations without a number: failed, invalid,
not_applied, skipped, pending.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from analysis import statistics
from analysis.results import Results
from analysis.statistics import Interval, median


@dataclass(frozen=True)
class Rules:
    """Settings of a verdict."""

    margin: float = 0.01
    """smallest relative difference that matters: inside it is a tie"""
    level: float = statistics.LEVEL
    truncation: float = 0.05
    """largest difference of truncation rates that is still comparable"""


#: Cells are compared only where all of these are equal.
SAME_WORK = (
    "sweep_id",
    "host",
    "source",
    "engine",
    "engine_version",
    "model",
    "prompts_sha256",
    "prompts",
    "prompts_reused",
    "output_mode",
    "output_tokens",
    "temperature",
    "concurrency",
)

#: What makes two configurations different.
CONFIGURATION = ("method", "drafter", "budget", "topk", "max_running", "settings", "verify_width")

#: Columns of the verdict frame, in order.
COLUMNS = (
    *SAME_WORK,
    *CONFIGURATION,
    "label",
    "configuration_id",
    "candidates",
    "baseline",
    "origin",
    "reference",
    "reference_kind",
    "status",
    "failure_class",
    "n",
    "n_baseline",
    "pairs",
    "value",
    "value_low",
    "value_high",
    "value_baseline",
    "ratio",
    "low",
    "high",
    "interval_method",
    "scatter",
    "verdict",
    "restarts_needed",
    "more_restarts",
    "sentence",
)


#: A cell or a verdict as a plain dict: thousands of small groups are slow as frames.
Row = dict[str, Any]


@dataclass(frozen=True)
class Group:
    """The cells of one configuration at one load point, and those it is compared with."""

    keys: Row
    cells: list[Row]
    reference: list[Row] | None
    reference_kind: str
    """baseline; smallest width (no baseline was asked for); itself; none"""


def in_blocks(cells: pd.DataFrame) -> pd.DataFrame:
    """Cells of the plan's blocks: anchors measure drift and enter no verdict."""
    return cells.loc[cells["anchor"].isna()]


def rows_of(cells: pd.DataFrame) -> list[Row]:
    """Cells as plain dicts, without the columns of single settings."""
    columns = [str(name) for name in cells.columns if not str(name).startswith("settings.")]
    values = zip(*(cells[name].tolist() for name in columns), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in values]


def groups(cells: pd.DataFrame) -> Iterator[Group]:
    """Every configuration at every load point with its reference, in the order of the frame."""
    panels: dict[RowKey, dict[RowKey, list[Row]]] = {}
    for row in rows_of(in_blocks(cells)):
        work = _key(row, SAME_WORK)
        panels.setdefault(work, {}).setdefault(_key(row, CONFIGURATION), []).append(row)
    for work, found in panels.items():
        shared = dict(zip(SAME_WORK, work, strict=True))
        configurations = [(dict(zip(CONFIGURATION, key, strict=True)), rows) for key, rows in found.items()]
        for keys, rows in configurations:
            reference, kind = _reference(keys, rows, configurations)
            yield Group({**shared, **keys}, rows, reference, kind)


Configurations = list[tuple[Row, list[Row]]]


def _reference(keys: Row, rows: list[Row], configurations: Configurations) -> tuple[list[Row] | None, str]:
    if rows[0]["baseline"]:
        return rows, "itself"
    baselines = [item for item in configurations if item[1][0]["baseline"]]
    if baselines:
        fitting = [item for item in baselines if _fits(keys, item[0])]
        if not fitting:
            return None, "none"
        # Most settings in common; a baseline may lack those that only speculation has.
        best = max(fitting, key=lambda item: (_same_running(keys, item[0]), len(_settings(item[0]["settings"]))))
        return best[1], "baseline"
    if keys["method"] == "unknown":
        return None, "none"
    alike = [item for item in configurations if _same_axes(keys, item[0])]
    known = [item for item in configurations if item[0]["method"] != "unknown"]
    # Where every configuration has settings of its own, the smallest of all is what the others add to.
    rivals = alike if len(alike) > 1 else known
    smallest = min(rivals, key=lambda item: _width(item[0]))
    if smallest[1] is rows:
        return rows, "itself"
    return smallest[1], "smallest width"


@lru_cache(maxsize=4096)
def _settings(text: str) -> dict[str, Any]:
    loaded = json.loads(text)
    return loaded if isinstance(loaded, dict) else {}


def _fits(keys: dict[str, Any], baseline: dict[str, Any]) -> bool:
    own, theirs = _settings(keys["settings"]), _settings(baseline["settings"])
    if any(name in own and own[name] != value for name, value in theirs.items()):
        return False
    return _same_running(keys, baseline) or baseline["max_running"] is None or keys["max_running"] is None


def _same_running(keys: dict[str, Any], other: dict[str, Any]) -> bool:
    return bool(keys["max_running"] == other["max_running"])


def _same_axes(keys: dict[str, Any], other: dict[str, Any]) -> bool:
    return bool(
        keys["method"] == other["method"] and _same_running(keys, other) and keys["settings"] == other["settings"]
    )


def _width(keys: dict[str, Any]) -> tuple[float, float, float]:
    width, topk = keys["verify_width"], keys["topk"]
    return (math.inf if width is None else float(width), float(keys["budget"]), topk or 0.0)


def usable(rows: Sequence[Row]) -> list[Row]:
    """Cells with a number that may be compared: ok, not a rehearsal."""
    return [row for row in rows if row["status"] == "ok" and row["origin"] != "replay"]


def usable_cells(cells: pd.DataFrame) -> pd.DataFrame:
    """`usable` for a frame."""
    return cells.loc[cells["status"].eq("ok") & cells["origin"].ne("replay")]


def per_restart(rows: Sequence[Row], metric: str) -> dict[int, float]:
    """One number a restart (by `repeat`): the median of what was measured inside it."""
    found: dict[int, list[float]] = {}
    for row in usable(rows):
        value = row[metric]
        if value > 0 and math.isfinite(value):
            found.setdefault(int(row["repeat"]), []).append(float(value))
    return {repeat: median(values) for repeat, values in found.items()}


def compare_restarts(
    own: dict[int, float], other: dict[int, float], level: float = statistics.LEVEL
) -> tuple[Interval, list[tuple[float, float]]]:
    """Ratio own / other: paired by block where at least two blocks have both, else unpaired."""
    pairs = [(own[repeat], other[repeat]) for repeat in sorted(own) if repeat in other]
    if len(pairs) >= 2 or (len(own) == len(other) == len(pairs) == 1):
        return statistics.paired_ratio(pairs, level), pairs
    return statistics.unpaired_ratio(list(own.values()), list(other.values()), level), pairs


RowKey = tuple[Any, ...]


def _key(row: Mapping[Any, Any], names: Sequence[str]) -> RowKey:
    values = (row[name] for name in names)
    return tuple(None if isinstance(value, float) and math.isnan(value) else value for value in values)


def row_key(row: Mapping[Any, Any]) -> RowKey:
    """What identifies a row of the frames here: SAME_WORK and CONFIGURATION, absent numbers as None."""
    return _key(row, (*SAME_WORK, *CONFIGURATION))


def restarts_of_rows(cells: pd.DataFrame, metric: str) -> dict[RowKey, dict[int, float]]:
    """`per_restart` of every configuration and load point, by `row_key`."""
    found: dict[RowKey, list[Row]] = {}
    for row in rows_of(in_blocks(cells)):
        found.setdefault(row_key(row), []).append(row)
    return {key: per_restart(rows, metric) for key, rows in found.items()}


def decide(interval: Interval, margin: float) -> str:
    """The verdict that an interval of a ratio allows."""
    if not interval.known:
        return "no verdict"
    if interval.low >= 1 - margin and interval.high <= 1 + margin:
        return "tie"
    if interval.low > 1:
        return "better"
    if interval.high < 1:
        return "worse"
    return "underpowered"


def truncation_rate(rows: Sequence[Row]) -> float:
    """Truncated requests / completed ones; NaN without completed requests or with exact lengths."""
    natural = [row for row in rows if row["output_mode"] == "natural"]
    completed = sum(row["requests_completed"] for row in natural)
    return sum(row["requests_truncated"] for row in natural) / completed if completed else math.nan


def verdicts(results: Results, metric: str = "system_tok_s", rules: Rules | None = None) -> pd.DataFrame:
    """One row per configuration and load point: COLUMNS.

    metric: a column of `cells` where more is better.  `value` is the median over restarts with its
    distribution-free interval (from 6 restarts), `ratio` that to the reference with its interval [low, high],
    `scatter` the sd of one restart's log ratio, `restarts_needed` how many restarts would find a difference of
    the size seen (at least the margin) with a probability of 0.8, `more_restarts` what is missing of them.
    """
    rules = rules or Rules()
    rows = [_row(group, metric, rules) for group in groups(results.cells)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _row(group: Group, metric: str, rules: Rules) -> dict[str, Any]:
    cells = group.cells
    own = per_restart(cells, metric)
    value = statistics.median_interval(list(own.values()), rules.level)
    first = cells[0]
    row: dict[str, Any] = {
        **group.keys,
        "label": first["label"],
        "configuration_id": first["configuration_id"],
        "candidates": first["candidates"],
        "baseline": bool(first["baseline"]),
        "origin": first["origin"],
        "reference": None if group.reference is None else group.reference[0]["label"],
        "reference_kind": group.reference_kind,
        "status": _status(cells),
        "failure_class": _most([row["failure_class"] for row in cells if row["failure_class"]]),
        "n": len(own),
        "n_baseline": 0,
        "pairs": 0,
        "value": value.estimate,
        "value_low": value.low,
        "value_high": value.high,
        "value_baseline": math.nan,
        "ratio": math.nan,
        "low": math.nan,
        "high": math.nan,
        "interval_method": None,
        "scatter": math.nan,
        "restarts_needed": math.nan,
        "more_restarts": math.nan,
    }
    if group.reference is not None:
        _compare(row, own, cells, group, metric, rules)
    else:
        row["verdict"] = "no baseline" if own else row["status"]
    row["sentence"] = sentence(row, metric)
    return row


def _compare(
    row: dict[str, Any], own: dict[int, float], cells: list[Row], group: Group, metric: str, rules: Rules
) -> None:
    assert group.reference is not None
    other = per_restart(group.reference, metric)
    row["n_baseline"] = len(other)
    if other:
        row["value_baseline"] = median(list(other.values()))
    if row["origin"] == "replay":
        row["verdict"] = "no verdict"
    elif not own:
        row["verdict"] = row["status"]
    elif group.reference_kind == "itself":
        row["verdict"] = "baseline" if row["baseline"] else "reference"
        row["ratio"] = 1.0
    elif not other:
        row["verdict"] = "no baseline"
    else:
        interval, pairs = compare_restarts(own, other, rules.level)
        row["pairs"] = len(pairs)
        row["ratio"], row["low"], row["high"] = interval.estimate, interval.low, interval.high
        row["interval_method"] = interval.method
        row["scatter"] = statistics.scatter(pairs)
        here, there = truncation_rate(usable(cells)), truncation_rate(usable(group.reference))
        if abs(here - there) > rules.truncation:
            row["verdict"] = "not comparable"
            row["reference_truncation"], row["truncation"] = there, here
        else:
            row["verdict"] = decide(interval, rules.margin)
        if row["verdict"] == "underpowered" and math.isfinite(row["scatter"]):
            seen = max(abs(math.log(interval.estimate)), math.log1p(rules.margin))
            needed = statistics.restarts_for(seen, row["scatter"], rules.level)
            if needed is not None:
                # It was not enough so far, whatever the estimate of the scatter says.
                row["restarts_needed"] = max(needed, len(pairs) + 1)
                row["more_restarts"] = row["restarts_needed"] - len(pairs)


def _status(rows: Sequence[Row]) -> str:
    """ok when anything was measured, else the commonest status."""
    statuses = [row["status"] for row in rows]
    return "ok" if "ok" in statuses else str(_most(statuses))


def _most(values: Sequence[Any]) -> Any:
    return Counter(values).most_common(1)[0][0] if values else None


_NAMES = {
    "system_tok_s": ("system tok/s", "faster", "slower"),
    "per_user_tok_s": ("per-user tok/s", "faster", "slower"),
    "al": ("acceptance length", "longer", "shorter"),
}


def percent(ratio: float) -> str:
    """+3.1 % or -12 %: two significant digits or a tenth of a percent."""
    change = (ratio - 1) * 100
    return f"{change:+.0f} %" if abs(change) >= 10 else f"{change:+.1f} %"


def sentence(row: dict[str, Any], metric: str = "system_tok_s") -> str:
    """The row in words."""
    name = _NAMES.get(metric, (metric, "higher", "lower"))[0]
    where = f"{row['label']} at concurrency {row['concurrency']}"
    verdict = row["verdict"]
    against = f"{row['reference']}" if row["reference"] else "the baseline"
    if verdict in ("baseline", "reference"):
        return f"{where}: {row['value']:.4g} {name}, what the others are compared with"
    if verdict in ("failed", "invalid", "not_applied", "skipped", "pending", "ok"):
        why = f" ({row['failure_class']})" if row["failure_class"] else ""
        words = {
            "not_applied": "the engine ran another configuration",
            "invalid": "measured, but void",
            "pending": "never measured: the sweep did not get there",
            "skipped": "skipped by the plan",
            "ok": f"no {name} in the record",
        }
        return f"{where}: {words.get(verdict, 'failed')}{why}"
    if verdict == "no baseline":
        return f"{where}: {row['value']:.4g} {name}, no baseline of the same kind to compare with"
    if row["origin"] == "replay":
        return f"{where}: a rehearsal from a recording: no verdict"
    seen = f"{percent(row['ratio'])} {name} against {against}"
    if verdict == "no verdict":
        return f"{where}: {seen}; one restart: no verdict"
    span = f"{percent(row['low'])} to {percent(row['high'])}, {row['n']} restarts"
    if verdict == "not comparable":
        return (
            f"{where}: {seen}, but {row['truncation']:.0%} of its outputs were cut at the cap against "
            f"{row['reference_truncation']:.0%}: not comparable"
        )
    if verdict == "tie":
        return f"{where}: a tie with {against} ({span})"
    if verdict == "underpowered":
        if math.isfinite(row["more_restarts"]):
            more = f"about {row['more_restarts']:.0f} more would settle a difference of this size"
        else:
            more = f"more than {statistics.MOST_RESTARTS} restarts would be needed"
        return f"{where}: cannot tell from {against} ({span}); {more}"
    return f"{where}: {verdict}, {seen} ({span})"


def winners(
    frame: pd.DataFrame, results: Results, metric: str = "system_tok_s", rules: Rules | None = None
) -> pd.DataFrame:
    """The fastest configuration of each load point, and whether to believe it.

    frame: from `verdicts`.  One row per host and load point (of the first sweep that measured it): SAME_WORK,
    label, budget, topk, ratio, low, high, candidates (how many it was picked from), `standing`, tied_with,
    sentence.  standing: confirmed (better in restarts of a later sweep, measured after it was picked),
    not yet confirmed (picked out of many: the best of many is flattered by luck), better (the only candidate),
    none (nothing is better than the baseline), no verdict (one restart).
    """
    rules = rules or Rules()
    order = {sweep.sweep_id: sweep.created_unix_s for sweep in results.sweeps}
    found = []
    load_point = [name for name in SAME_WORK if name != "sweep_id"]
    restarts = restarts_of_rows(results.cells, metric)
    for key, rows in frame.groupby(load_point, sort=False, dropna=False):
        sweeps = sorted(rows["sweep_id"].unique(), key=lambda name: (order.get(name, 0.0), str(name)))
        first = rows.loc[rows["sweep_id"].eq(sweeps[0])]
        later = rows.loc[~rows["sweep_id"].eq(sweeps[0])]
        found.append({**dict(zip(load_point, key, strict=True)), **_winner(first, later, restarts, rules)})
    columns = [*SAME_WORK, "label", "configuration_id", "budget", "topk", "ratio", "low", "high", "value"]
    return pd.DataFrame(found, columns=[*columns, "candidates", "standing", "tied_with", "sentence"])


def _winner(
    first: pd.DataFrame,
    later: pd.DataFrame,
    restarts: dict[RowKey, dict[int, float]],
    rules: Rules,
) -> dict[str, Any]:
    where = f"at concurrency {first['concurrency'].iloc[0]}"
    empty = {"sweep_id": first["sweep_id"].iloc[0], "candidates": 0, "tied_with": ""}
    rivals = first.loc[first["ratio"].notna() & first["reference_kind"].ne("itself") & first["n"].gt(0)]
    if rivals.empty:
        return {**empty, "standing": "none", "sentence": f"{where}: nothing was measured beside a baseline"}
    if not rivals["verdict"].isin(["better", "worse", "tie", "underpowered"]).any():
        text = f"{where}: one restart: no verdict, no winner"
        if rivals["origin"].eq("replay").all():
            text = f"{where}: a rehearsal: no verdict, no winner"
        return {**empty, "candidates": len(rivals), "standing": "no verdict", "sentence": text}
    better = rivals.loc[rivals["verdict"].eq("better")]
    if better.empty:
        text = f"{where}: nothing is shown to be better than {rivals['reference'].iloc[0]}"
        return {**empty, "candidates": len(rivals), "standing": "none", "sentence": text}
    best = better.sort_values("value", kind="stable").iloc[-1]
    tied = [str(row["label"]) for _, row in rivals.iterrows() if _ties(best, row, restarts, rules)]
    row = {
        **{name: best[name] for name in ("label", "configuration_id", "budget", "topk", "ratio", "low", "high")},
        "value": best["value"],
        "sweep_id": best["sweep_id"],
        "candidates": len(rivals),
        "tied_with": "; ".join(tied),
    }
    again = later.loc[later["configuration_id"].eq(best["configuration_id"])]
    if again["verdict"].eq("better").any():
        row["standing"] = "confirmed"
        note = "confirmed by restarts measured after it was picked"
    elif len(rivals) > 1:
        row["standing"] = "not yet confirmed"
        note = f"picked out of {len(rivals)}: not yet confirmed, measure it afresh"
    else:
        row["standing"] = "better"
        note = "the only candidate"
    also = f"; not told apart from {', '.join(tied[:4])}" if tied else ""
    row["sentence"] = (
        f"{where}: {best['label']}, {percent(best['ratio'])} ({percent(best['low'])} to "
        f"{percent(best['high'])}); {note}{also}"
    )
    return row


def _ties(
    best: pd.Series[Any],
    row: pd.Series[Any],
    restarts: dict[RowKey, dict[int, float]],
    rules: Rules,
) -> bool:
    """Is this rival not shown to be slower than the best?"""

    own, top = row_key(row.to_dict()), row_key(best.to_dict())
    if own == top:
        return False
    interval, _ = compare_restarts(restarts.get(own, {}), restarts.get(top, {}), rules.level)
    return not (interval.known and interval.high < 1)


def drift(results: Results, metric: str = "system_tok_s") -> pd.DataFrame:
    """How much the anchors changed during the sweep.

    One row per host, anchored configuration and load point: sweep_id, host, label, concurrency, anchors (how
    many), first, last (values of `metric`, by the time of their windows), change (relative), sentence.
    """
    rows = [row for row in usable(rows_of(results.cells)) if row["anchor"] and row[metric] > 0]
    found: dict[RowKey, list[Row]] = {}
    for row in rows:
        found.setdefault(row_key(row), []).append(row)
    table = []
    for anchors in found.values():
        anchors.sort(key=lambda row: row["window_start_unix_s"] if row["window_start_unix_s"] > 0 else 0.0)
        first, last = anchors[0], anchors[-1]
        if first is last:
            continue
        change = last[metric] / first[metric] - 1
        table.append(
            {
                **{name: first[name] for name in ("sweep_id", "host", "label", "concurrency")},
                "anchors": len(anchors),
                "first": first[metric],
                "last": last[metric],
                "change": change,
                "sentence": f"{first['label']} at concurrency {first['concurrency']} on {first['host']}: "
                f"{percent(1 + change)} from the first anchor to the last",
            }
        )
    columns = ["sweep_id", "host", "label", "concurrency", "anchors", "first", "last", "change", "sentence"]
    return pd.DataFrame(table, columns=columns)


@dataclass(frozen=True)
class Noise:
    """How much a number moves when nothing was changed."""

    host: str
    label: str
    concurrency: int
    source: str
    """anchors (the baseline measured again during the sweep), restarts (of one configuration), or
    null factor NAME (a setting that should not matter at this concurrency)"""
    n: int
    spread: float
    """(max - min) / mean"""
    sd: float
    """of the logarithms"""


def noise_floor(results: Results, metric: str = "system_tok_s") -> pd.DataFrame:
    """The noise floor as measured: one row per configuration, load point and source, columns of Noise.

    A null factor is found, not guessed: `max_running` where its values are all at least the concurrency, so
    that the server never reaches it.
    """
    cells = usable_cells(results.cells)
    rows: list[Noise] = []
    drifting = [*SAME_WORK, "configuration_id", "label"]
    for key, group in cells.groupby(drifting, sort=False, dropna=False):
        keys = dict(zip(drifting, key, strict=True))
        anchored = group["anchor"].notna()
        if anchored.any():
            rows.append(_noise(keys, "anchors", list(group[metric])))
        else:
            rows.append(_noise(keys, "restarts", list(per_restart(rows_of(group), metric).values())))
    null = [name for name in (*SAME_WORK, *CONFIGURATION) if name != "max_running"]
    blocks = in_blocks(cells)
    wide = blocks.loc[blocks["max_running"].ge(blocks["concurrency"])]
    for key, group in wide.groupby(null, sort=False, dropna=False):
        if group["max_running"].nunique() < 2:
            continue
        keys = dict(zip(null, key, strict=True))
        keys["label"] = group["label"].iloc[0]
        medians = [float(level[metric].median()) for _, level in group.groupby("max_running")]
        rows.append(_noise(keys, "null factor max_running", medians))
    kept = [row for row in rows if row.n > 1]
    return pd.DataFrame([vars(row) for row in kept], columns=list(Noise.__dataclass_fields__))


def _noise(keys: dict[str, Any], source: str, values: Sequence[float]) -> Noise:
    known = statistics.finite(values)
    return Noise(
        host=str(keys["host"]),
        label=str(keys["label"]),
        concurrency=int(keys["concurrency"]),
        source=source,
        n=len(known),
        spread=statistics.spread(known),
        sd=statistics.relative_sd(known),
    )


def prompt_ratios(results: Results, rules: Rules | None = None) -> pd.DataFrame:
    """Per-user speed against the reference, paired by prompt, one row per restart.

    Where both sent the same prompts: ratio = geometric mean over prompts of reference TPOT / own TPOT, with a
    bootstrap interval over prompts.  That interval describes this restart only; a verdict needs restarts.
    Columns: sweep_id, host, label, configuration_id, budget, concurrency, repeat, reference, prompts, ratio,
    low, high.
    """
    rules = rules or Rules()
    prompts = _log_tpot(results.requests)
    found = []
    for group in groups(results.cells):
        if group.reference is None or group.reference_kind == "itself":
            continue
        own, other = _prompts_of(group.cells, prompts), _prompts_of(group.reference, prompts)
        for repeat in sorted(own.keys() & other.keys()):
            shared = own[repeat].keys() & other[repeat].keys()
            if not shared:
                continue
            blocks = [[other[repeat][prompt] - own[repeat][prompt]] for prompt in sorted(shared)]
            interval = statistics.mean_interval_by_block(blocks, rules.level, draws=500)
            found.append(
                {
                    "sweep_id": group.keys["sweep_id"],
                    "host": group.keys["host"],
                    "label": group.cells[0]["label"],
                    "configuration_id": group.cells[0]["configuration_id"],
                    "budget": group.keys["budget"],
                    "concurrency": group.keys["concurrency"],
                    "repeat": repeat,
                    "reference": group.reference[0]["label"],
                    "prompts": len(shared),
                    "ratio": math.exp(interval.estimate),
                    "low": math.exp(interval.low),
                    "high": math.exp(interval.high),
                }
            )
    columns = ["sweep_id", "host", "label", "configuration_id", "budget", "concurrency", "repeat"]
    return pd.DataFrame(found, columns=[*columns, "reference", "prompts", "ratio", "low", "high"])


def paired_by_prompt(results: Results, rules: Rules | None = None) -> pd.DataFrame:
    """Verdicts on per-user speed from the prompt-paired ratio of each restart (one number a restart).

    Columns: sweep_id, host, label, configuration_id, budget, concurrency, reference, restarts, prompts (fewest),
    ratio, low, high, verdict.
    """
    rules = rules or Rules()
    keys = ["sweep_id", "host", "label", "configuration_id", "budget", "concurrency", "reference"]
    found = []
    for key, rows in prompt_ratios(results, rules).groupby(keys, sort=False, dropna=False):
        interval = statistics.paired_ratio([(value, 1.0) for value in rows["ratio"]], rules.level)
        found.append(
            {
                **dict(zip(keys, key, strict=True)),
                "restarts": len(rows),
                "prompts": int(rows["prompts"].min()),
                "ratio": interval.estimate,
                "low": interval.low,
                "high": interval.high,
                "verdict": decide(interval, rules.margin),
            }
        )
    return pd.DataFrame(found, columns=[*keys, "restarts", "prompts", "ratio", "low", "high", "verdict"])


CellKey = tuple[str, str, str, int]


def _log_tpot(requests: pd.DataFrame) -> dict[CellKey, dict[str, float]]:
    """Of each cell: the mean log TPOT of each prompt."""
    good = requests.loc[requests["ok"] & ~requests["warmup"] & requests["tpot_ms"].gt(0)]
    sums: dict[CellKey, dict[str, list[float]]] = {}
    cells = zip(good["sweep_id"], good["host"], good["cell_id"], good["repeat"], strict=True)
    values = zip(cells, good["prompt_id"], np.log(good["tpot_ms"].to_numpy()), strict=True)
    for key, prompt, value in values:
        sums.setdefault(key, {}).setdefault(prompt, []).append(float(value))
    return {key: {prompt: sum(logs) / len(logs) for prompt, logs in prompts.items()} for key, prompts in sums.items()}


def _prompts_of(rows: Sequence[Row], prompts: dict[CellKey, dict[str, float]]) -> dict[int, dict[str, float]]:
    keys = [(row["sweep_id"], row["host"], row["cell_id"], row["repeat"]) for row in usable(rows)]
    return {int(key[3]): prompts[key] for key in keys if key in prompts}


_DIFFERENCES = {
    "host": "hosts",
    "source": "tools",
    "engine": "engines",
    "engine_version": "engine versions",
    "model": "models",
    "drafter": "drafters",
    "prompts_sha256": "prompt sets",
    "output_mode": "output modes",
    "output_tokens": "output lengths",
    "temperature": "temperatures",
}


def what_differs(results: Results, rules: Rules | None = None) -> list[str]:
    """One line for everything that keeps results apart: it was not pooled."""
    rules = rules or Rules()
    cells = results.cells
    lines: list[str] = []
    if cells.empty:
        return lines
    ran = cells[~cells["status"].isin(("skipped", "pending"))]
    for column, name in _DIFFERENCES.items():
        # What was never sent has no version of its own; a measured cell without one has.
        values = cells[column].dropna() if column != "engine_version" else ran[column].fillna("not recorded")
        values = values.loc[values.ne("")] if values.dtype == object else values
        if values.nunique() > 1 and column != "drafter":
            shown = [_short(value) for value in values.unique()[:4]]
            more = f" and {values.nunique() - 4} more" if values.nunique() > 4 else ""
            lines.append(f"{values.nunique()} {name}, compared separately: {', '.join(shown)}{more}")
    unnamed = int(cells["prompts_sha256"].eq("").sum())
    if unnamed and not cells["prompts_sha256"].eq("").all():
        lines.append(f"{unnamed} cells do not say which prompts they used: not compared with the others")
    rates = [truncation_rate(usable(group.cells)) for group in groups(cells)]
    known = [rate for rate in rates if math.isfinite(rate)]
    if known and max(known) - min(known) > rules.truncation:
        lines.append(
            f"truncation rates from {min(known):.0%} to {max(known):.0%}: cells that differ by more than "
            f"{rules.truncation:.0%} get no verdict"
        )
    return lines


def _short(value: Any) -> str:
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    return text if len(text) <= 24 else text[:12] + "..."
