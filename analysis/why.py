"""Why a configuration is faster or slower: throughput = running sequences x acceptance length / step time.

Everything is relative to the same reference as in `analysis.verdicts`.  The break-even acceptance length is
the one at which a configuration would be as fast as its reference, were its running sequences and its step
time what they are: AL / throughput ratio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis import verdicts as judge
from analysis.results import Results
from analysis.statistics import Interval, median
from analysis.verdicts import CONFIGURATION, SAME_WORK, Rules, compare_restarts, per_restart, percent, row_key

#: Columns of the decomposition, after the keys.
FACTORS = (
    "label",
    "configuration_id",
    "reference",
    "reference_kind",
    "restarts",
    "system_tok_s",
    "running",
    "running_from",
    "al",
    "al_scope",
    "step_time_ms",
    "throughput_ratio",
    "running_ratio",
    "al_ratio",
    "step_time_ratio",
    "break_even_al",
    "direction",
    "previous_budget",
    "doubling_gain",
    "doubling_low",
    "doubling_high",
    "verdict",
    "sentence",
)

#: A step of the budget by less than this factor says nothing of a doubling.
LEAST_DOUBLING = 1.5


def word(ratio: float, margin: float) -> str:
    """up, down, unchanged or unknown."""
    if not math.isfinite(ratio):
        return "unknown"
    if ratio > 1 + margin:
        return "up"
    return "down" if ratio < 1 - margin else "unchanged"


def direction(al_ratio: float, throughput_ratio: float, margin: float = 0.01, verdict: str = "") -> str:
    """Acceptance and throughput against the reference, in words.

    >>> direction(1.73, 0.78)
    'acceptance up, throughput down'
    >>> direction(0.74, 0.67)
    'both down'
    """
    acceptance, throughput = word(al_ratio, margin), word(throughput_ratio, margin)
    if verdict == "tie":
        throughput = "unchanged"
    elif verdict == "underpowered":
        throughput = "not told apart"
    if acceptance == throughput and acceptance in ("up", "down", "unchanged"):
        return f"both {acceptance}"
    return f"acceptance {acceptance}, throughput {throughput}"


def with_factors(cells: pd.DataFrame) -> pd.DataFrame:
    """Cells with the three factors filled in where they follow from the record, as `running`, `running_from`,
    `length` (AL; 1 for the autoregressive baseline) and `step_ms`; NaN where the source has too little."""
    filled = cells.copy()
    measured = filled["running_mean"].notna()
    filled["running"] = filled["running_mean"].where(measured, filled["concurrency"].astype(float))
    filled["running_from"] = np.where(measured, "measured", "concurrency")
    plain = filled["method"].eq("none") & filled["al"].isna()
    filled["length"] = filled["al"].mask(plain, 1.0)
    step = filled["running"] * filled["length"] / filled["system_tok_s"] * 1000.0
    filled["step_ms"] = filled["step_time_ms"].where(filled["step_time_ms"].notna(), step)
    return filled


def decomposition(results: Results, verdicts: pd.DataFrame | None = None, rules: Rules | None = None) -> pd.DataFrame:
    """One row per configuration and load point that was measured: SAME_WORK, CONFIGURATION, FACTORS.

    Levels (`running`, `al`, `step_time_ms`, `system_tok_s`) are medians over restarts; ratios are geometric
    means over the restarts that both have (so that throughput = running x AL / step time holds for them
    exactly).  doubling_gain: relative gain per doubling of the budget, from the largest measured budget that is
    smaller by LEAST_DOUBLING or more.
    """
    rules = rules or Rules()
    table = judge.verdicts(results, rules=rules) if verdicts is None else verdicts
    verdict_of = {row_key(row): (row["verdict"], row["reference_kind"]) for row in table.to_dict("records")}
    cells = with_factors(results.cells)
    found: list[dict[str, Any]] = []
    for group in judge.groups(cells):
        if not judge.usable(group.cells):
            continue
        verdict, kind = verdict_of.get(row_key(group.keys), ("no verdict", group.reference_kind))
        found.append(_factors(group, verdict, kind))
    _add_doublings(found, cells, rules)
    for row in found:
        row["direction"] = direction(row["al_ratio"], row["throughput_ratio"], rules.margin, row["verdict"])
        row["sentence"] = _sentence(row)
    return pd.DataFrame(found, columns=[*SAME_WORK, *CONFIGURATION, *FACTORS])


def _factors(group: judge.Group, verdict: str, kind: str) -> dict[str, Any]:
    good = judge.usable(group.cells)
    own = {name: per_restart(group.cells, name) for name in ("system_tok_s", "running", "length")}
    levels = {name: median(list(values.values())) for name, values in own.items()}
    row: dict[str, Any] = {
        **group.keys,
        "label": good[0]["label"],
        "configuration_id": good[0]["configuration_id"],
        "reference": None if group.reference is None else group.reference[0]["label"],
        "reference_kind": kind,
        "restarts": len(own["system_tok_s"]),
        "system_tok_s": levels["system_tok_s"],
        "running": levels["running"],
        "running_from": good[0]["running_from"],
        "al": levels["length"],
        "al_scope": good[0]["al_scope"],
        "step_time_ms": median([row["step_ms"] for row in good]),
        "verdict": verdict,
        "previous_budget": math.nan,
        "doubling_gain": math.nan,
        "doubling_low": math.nan,
        "doubling_high": math.nan,
    }
    ratios = dict.fromkeys(("system_tok_s", "running", "length"), math.nan)
    if group.reference is not None and judge.usable(group.reference):
        other = {name: per_restart(group.reference, name) for name in own}
        ratios = {name: _ratio(own[name], other[name]) for name in own}
    row["throughput_ratio"], row["running_ratio"] = ratios["system_tok_s"], ratios["running"]
    row["al_ratio"] = ratios["length"]
    row["step_time_ratio"] = ratios["running"] * ratios["length"] / ratios["system_tok_s"]
    row["break_even_al"] = levels["length"] / ratios["system_tok_s"]
    return row


def _ratio(own: dict[int, float], other: dict[int, float]) -> float:
    shared = sorted(own.keys() & other.keys())
    if not own or not other:
        return math.nan
    if shared:
        return math.exp(float(np.mean([math.log(own[key] / other[key]) for key in shared])))
    return math.exp(float(np.mean(np.log(list(own.values())))) - float(np.mean(np.log(list(other.values())))))


def _add_doublings(found: list[dict[str, Any]], cells: pd.DataFrame, rules: Rules) -> None:
    budgets: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in found:
        if row["budget"] > 0 and row["method"] != "none":
            key = row_key({**row, "budget": 0, "verify_width": 0})
            budgets.setdefault(key, []).append(row)
    restarts = judge.restarts_of_rows(cells, "system_tok_s")
    for rows in budgets.values():
        rows.sort(key=lambda row: row["budget"])
        for row in rows:
            smaller = [other for other in rows if other["budget"] * LEAST_DOUBLING <= row["budget"]]
            if not smaller:
                continue
            before = smaller[-1]
            interval, _ = compare_restarts(restarts[row_key(row)], restarts[row_key(before)], rules.level)
            doublings = math.log2(row["budget"] / before["budget"])
            row["previous_budget"] = float(before["budget"])
            row["doubling_gain"] = interval.estimate ** (1 / doublings) - 1
            row["doubling_low"] = interval.low ** (1 / doublings) - 1
            row["doubling_high"] = interval.high ** (1 / doublings) - 1


def _sentence(row: dict[str, Any]) -> str:
    where = f"budget {row['budget']} at concurrency {row['concurrency']}"
    if row["reference_kind"] == "itself":
        return f"{row['label']} at concurrency {row['concurrency']}: what the others are compared with"
    if not math.isfinite(row["throughput_ratio"]):
        return f"{row['label']}: {where}: nothing to compare with"
    change = percent(row["throughput_ratio"])
    if not math.isfinite(row["break_even_al"]):
        said = f"{row['label']}: {where}: {change} throughput; the source has no acceptance"
    else:
        said = (
            f"{row['label']}: {where} needs AL {row['break_even_al']:.2g}, measured {row['al']:.2g}: "
            f"{row['direction']} ({change})"
        )
        if abs(row["break_even_al"] - row["al"]) < 0.05 * row["al"]:
            said = (
                f"{row['label']}: {where} needs AL {row['break_even_al']:.2f}, measured {row['al']:.2f}: "
                f"{row['direction']} ({change})"
            )
        said += f"; one step takes {row['step_time_ratio']:.2f} times as long as {row['reference']}'s"
        if row["al_scope"] not in ("cell", None):
            said += f"; this AL is not of the cell alone ({row['al_scope']})"
        if row["running_from"] != "measured":
            said += "; running sequences taken as the concurrency"
    if row["verdict"] == "no verdict":
        said += "; one restart: no verdict"
    return said


def pays_until(verdicts: pd.DataFrame, rules: Rules | None = None) -> pd.DataFrame:
    """Up to which concurrency each configuration pays: SAME_WORK less concurrency, CONFIGURATION, label,
    pays_until (NaN: not at the smallest), first_not (smallest concurrency where it does not), smallest,
    largest (concurrencies asked for), basis (verdicts, one restart, none), sentence.

    It pays where the verdict is better; with one restart, where the ratio exceeds the margin, and the
    sentence says that this is no verdict.
    """
    rules = rules or Rules()
    several_hosts = verdicts["host"].nunique() > 1
    keys = [name for name in (*SAME_WORK, *CONFIGURATION) if name != "concurrency"]
    found = []
    for key, rows in verdicts.groupby(keys, sort=False, dropna=False):
        if rows["baseline"].any() or rows["reference_kind"].eq("itself").any():
            continue
        ladder = rows.sort_values("concurrency").to_dict("records")
        if several_hosts:
            ladder = [{**row, "label": f"{row['host']}, {row['label']}"} for row in ladder]
        found.append({**dict(zip(keys, key, strict=True)), **_ladder(ladder, rules)})
    columns = [*keys, "label", "configuration_id", "pays_until", "first_not", "smallest", "largest", "basis"]
    return pd.DataFrame(found, columns=[*columns, "sentence"])


def _pays(row: dict[Any, Any], rules: Rules) -> str:
    verdict = row["verdict"]
    if verdict == "no verdict" and row["origin"] != "replay":
        return "better" if row["ratio"] > 1 + rules.margin else "not better"
    return str(verdict)


def _ladder(ladder: Sequence[dict[Any, Any]], rules: Rules) -> dict[str, Any]:
    states = [_pays(row, rules) for row in ladder]
    until, first_not = math.nan, None
    for row, state in zip(ladder, states, strict=True):
        if state != "better":
            first_not = row
            break
        until = float(row["concurrency"])
    single = any(row["verdict"] == "no verdict" for row in ladder)
    label = ladder[0]["label"]
    smallest, largest = ladder[0]["concurrency"], ladder[-1]["concurrency"]
    known = [row for row in ladder if row["n"] > 0]
    if known and all(row["verdict"] == "no baseline" for row in known):
        basis, said = "none", f"{label}: no baseline of the same kind to compare with"
    elif not known and ladder[0]["origin"] == "replay":
        basis, said = "none", f"{label}: a rehearsal, so no verdict"
    elif not known:
        basis, said = "none", f"{label}: nothing measured ({_state_words(ladder[0])})"
    else:
        basis = "one restart" if single else "verdicts"
        said = _ladder_words(label, ladder, states, until, first_not)
        if single:
            said += "; one restart: no verdict"
    return {
        "label": label,
        "configuration_id": ladder[0]["configuration_id"],
        "pays_until": until,
        "first_not": math.nan if first_not is None else float(first_not["concurrency"]),
        "smallest": smallest,
        "largest": largest,
        "basis": basis,
        "sentence": said,
    }


def _ladder_words(
    label: str,
    ladder: Sequence[dict[Any, Any]],
    states: Sequence[str],
    until: float,
    first_not: dict[Any, Any] | None,
) -> str:
    largest = ladder[-1]["concurrency"]
    if first_not is None:
        if len(ladder) == 1:
            return f"{label}: pays at concurrency {largest}, the only one measured"
        return f"{label}: pays at every concurrency measured, up to {largest}"
    what = _state_words(first_not)
    if math.isnan(until):
        where = f"{label}: does not pay at concurrency {first_not['concurrency']} ({what})"
    else:
        where = f"{label}: pays until concurrency {until:.0f}; at {first_not['concurrency']}: {what}"
    later = [
        row["concurrency"]
        for row, state in zip(ladder, states, strict=True)
        if state == "better" and row["concurrency"] > first_not["concurrency"]
    ]
    if later:
        where += f"; but pays again at {', '.join(str(value) for value in later)}"
    return where


def _state_words(row: dict[Any, Any]) -> str:
    if row["verdict"] in ("better", "worse", "tie", "no verdict") and math.isfinite(row["ratio"]):
        return f"{percent(row['ratio'])}" + (", a tie" if row["verdict"] == "tie" else "")
    if row["verdict"] == "underpowered":
        return f"{percent(row['ratio'])}, not told apart with {row['n']} restarts"
    klass = row["failure_class"]
    return str(row["verdict"]) + (f", {klass}" if isinstance(klass, str) and klass else "")


CATEGORY_KEYS = (*SAME_WORK, *CONFIGURATION)


def _category_verdict(group: judge.Group, interval: Interval, rules: Rules) -> str:
    if group.reference_kind == "itself":
        return "baseline" if group.cells[0]["baseline"] else "reference"
    return judge.decide(interval, rules.margin) if interval.n else "no baseline"


def by_category(results: Results, metric: str = "per_user_tok_s", rules: Rules | None = None) -> pd.DataFrame:
    """One row per configuration, load point and prompt category: CATEGORY_KEYS, label, category, restarts,
    value (median over restarts of `metric`, a column of `categories`), al, reference, ratio to the reference
    in the same category with its interval (low, high) over restarts and verdict, al_ratio.  The category ``
    holds all prompts together."""
    rules = rules or Rules()
    cells, categories = results.cells, results.categories
    keys = ["sweep_id", "host", "cell_id", "repeat", "configuration_id"]
    values: dict[tuple[Any, ...], dict[str, tuple[float, float]]] = {}
    rows = zip(
        *(categories[name] for name in keys),
        categories["category"],
        categories[metric],
        categories["al"],
        strict=True,
    )
    for *key, category, value, al in rows:
        values.setdefault(tuple(key), {})[category] = (float(value), float(al))
    pooled = zip(*(cells[name] for name in keys), cells[metric], cells["al"], strict=True)
    for *key, value, al in pooled:
        values.setdefault(tuple(key), {})[""] = (float(value), float(al))

    def of(cells_of: list[judge.Row]) -> tuple[dict[str, dict[int, float]], dict[str, dict[int, float]]]:
        speed: dict[str, dict[int, float]] = {}
        length: dict[str, dict[int, float]] = {}
        for row in judge.usable(cells_of):
            key = tuple(row[name] for name in keys)
            for category, (value, al) in values.get(key, {}).items():
                if value > 0:
                    speed.setdefault(category, {})[int(key[3])] = value
                if al > 0:
                    length.setdefault(category, {})[int(key[3])] = al
        return speed, length

    found = []
    for group in judge.groups(cells):
        speed, length = of(group.cells)
        base_speed, base_length = of(group.reference) if group.reference is not None else ({}, {})
        for category in sorted(speed):
            restarts = speed[category]
            lengths = length.get(category, {})
            interval, _ = compare_restarts(restarts, base_speed.get(category, {}), rules.level)
            found.append(
                {
                    **group.keys,
                    "label": group.cells[0]["label"],
                    "category": category,
                    "restarts": len(restarts),
                    "value": float(np.median(list(restarts.values()))),
                    "al": float(np.median(list(lengths.values()))) if lengths else math.nan,
                    "reference": None if group.reference is None else group.reference[0]["label"],
                    "ratio": interval.estimate,
                    "low": interval.low,
                    "high": interval.high,
                    "verdict": _category_verdict(group, interval, rules),
                    "al_ratio": _ratio(lengths, base_length.get(category, {})),
                }
            )
    columns = [*CATEGORY_KEYS, "label", "category", "restarts", "value", "al", "reference", "ratio"]
    columns += ["low", "high", "verdict", "al_ratio"]
    return pd.DataFrame(found, columns=columns)


def category_orders(results: Results, metric: str = "per_user_tok_s") -> pd.DataFrame:
    """How budgets rank, per prompt category and for all prompts pooled (category ``).

    One row per host, method, top-k, concurrency and category: budgets, levels (how many settings of the
    server this was seen at), `chain` (from small to large budget: < faster at every level, > slower at every
    level, ~ it depends on the level), consistent (no ~), orders (how many different rankings the levels give),
    drop_budget and drop (the largest step down that holds at every level, relative), sentence.
    """
    table = by_category(results, metric)
    keys = [name for name in CATEGORY_KEYS if name not in ("budget", "verify_width", "max_running", "settings")]
    table = table.loc[table["budget"].gt(0) & table["method"].ne("none")]
    found = []
    for key, rows in table.groupby([*keys, "category"], sort=False, dropna=False):
        wide = rows.pivot_table(
            index=["max_running", "settings"], columns="budget", values="value", dropna=False
        ).dropna()
        if wide.shape[1] < 2 or wide.empty:
            continue
        found.append({**dict(zip([*keys, "category"], key, strict=True)), **_chain(wide)})
    columns = [*keys, "category", "budgets", "levels", "chain", "consistent", "orders", "drop_budget", "drop"]
    frame = pd.DataFrame(found, columns=columns)
    frame["sentence"] = [_order_words(row) for row in frame.to_dict("records")]
    return frame


def _chain(wide: pd.DataFrame) -> dict[str, Any]:
    budgets = [int(str(budget)) for budget in wide.columns]
    values = wide.to_numpy(dtype=np.float64)
    text, marks = str(budgets[0]), []
    drop, drop_budget = 0.0, math.nan
    for index in range(1, len(budgets)):
        steps = values[:, index] / values[:, index - 1]
        mark = "<" if (steps > 1).all() else ">" if (steps < 1).all() else "~"
        marks.append(mark)
        text += f" {mark} {budgets[index]}"
        change = float(np.median(steps)) - 1
        if mark == ">" and change < drop:
            drop, drop_budget = change, float(budgets[index])
    return {
        "budgets": budgets,
        "levels": len(wide),
        "chain": text,
        "consistent": "~" not in marks,
        "orders": len({tuple(np.argsort(row)) for row in values}),
        "drop_budget": drop_budget,
        "drop": drop if drop < 0 else math.nan,
    }


def _order_words(row: dict[Any, Any]) -> str:
    name = f"category {row['category']}" if row["category"] else "all prompts pooled"
    levels = f"at all {row['levels']} settings" if row["levels"] > 1 else "at the one setting measured"
    said = f"{name}, concurrency {row['concurrency']}: budgets {row['chain']} {levels}"
    if row["levels"] > 1 and row["orders"] > 1:
        said = f"{name}, concurrency {row['concurrency']}: budgets {row['chain']}; {row['orders']} rankings at "
        said += f"{row['levels']} settings"
    if math.isfinite(row["drop"]):
        said += f" (a collapse of {-row['drop']:.0%} at {row['drop_budget']:.0f})" if row["drop"] < -0.1 else ""
    return said


def headlines(results: Results, rules: Rules | None = None, most: int = 8) -> list[str]:
    """What a reader must know first, a sentence each, the most important first."""
    rules = rules or Rules()
    table = judge.verdicts(results, rules=rules)
    factors = decomposition(results, table, rules)
    lines: list[str] = []
    if results.cells.empty:
        return ["nothing was measured"]
    if results.cells["origin"].eq("replay").any():
        lines.append("a rehearsal from a recording: nothing here was measured, and no verdict is given")
    measured = table.loc[table["n"].gt(0)]
    if not measured.empty and measured["n"].max() <= 1 and not measured["origin"].eq("replay").all():
        lines.append("one restart: no verdict; repeat the sweep with repeats=6 or more for one")
    best = judge.winners(table, results, rules=rules)
    told = best["standing"].ne("no verdict") & best["candidates"].gt(0)
    lines += list(best.loc[told].sort_values("concurrency", kind="stable")["sentence"])[:most]
    pays = pays_until(table, rules)
    lines += _pays_lines(pays, most)
    lost = factors.loc[factors["direction"].isin(["acceptance up, throughput down", "both down"])]
    lines += list(lost.sort_values("throughput_ratio")["sentence"])[:3]
    lines += _doubling_lines(factors)[:3]
    lines += _category_lines(results)
    moved = judge.drift(results)
    large = moved.loc[moved["change"].abs().gt(2 * rules.margin)]
    lines += [f"drift: {text}" for text in large["sentence"]][:3]
    failed = _failure_line(results)
    if failed:
        lines.append(failed)
    lines += judge.what_differs(results, rules)
    return lines


def _pays_lines(pays: pd.DataFrame, most: int) -> list[str]:
    """The sentences of `pays_until`; configurations of which the same is said share one."""
    ranked = pays.sort_values("pays_until", ascending=False, kind="stable", na_position="last")
    said: dict[str, list[str]] = {}
    for label, text in zip(ranked["label"], ranked["sentence"], strict=True):
        said.setdefault(text.removeprefix(f"{label}: "), []).append(label)
    lines = []
    for text, labels in said.items():
        names = ", ".join(labels[:6]) + (f" and {len(labels) - 6} more" if len(labels) > 6 else "")
        lines.append(f"{names}: {text}")
    left = len(lines) - most
    return [*lines[:most], f"and {left} more like these in the table"] if left > 0 else lines


def _doubling_lines(factors: pd.DataFrame) -> list[str]:
    """The last doubling of the budget at each load point, where it was shown to bring nothing."""
    lines = []
    last = factors.loc[factors["previous_budget"].notna()]
    for _, rows in last.groupby(["sweep_id", "host", "method", "concurrency"], sort=False, dropna=False):
        row = rows.sort_values("budget", kind="stable").iloc[-1]
        if row["doubling_high"] < 0:
            lines.append(
                f"at concurrency {row['concurrency']}: from budget {row['previous_budget']:.0f} to "
                f"{row['budget']} throughput falls by {-row['doubling_gain']:.1%} per doubling"
            )
    return lines


def _category_lines(results: Results) -> list[str]:
    """Categories that rank the budgets alike at every setting where the pooled prompts do not."""
    if results.categories.empty:
        return []
    orders = category_orders(results)
    lines = []
    for _, rows in orders.groupby(["sweep_id", "host", "method", "concurrency"], sort=False, dropna=False):
        pooled = rows.loc[rows["category"].eq("")]
        if pooled.empty or pooled["orders"].iloc[0] < 2:
            continue
        clearer = rows.loc[rows["category"].ne("") & rows["orders"].lt(pooled["orders"].iloc[0])]
        if not clearer.empty:
            lines.append(f"{pooled['sentence'].iloc[0]}, while {'; '.join(clearer['sentence'])}")
    return lines


def _failure_line(results: Results) -> str:
    failed = results.cells.loc[results.cells["status"].eq("failed")]
    if failed.empty:
        return ""
    classes = failed.groupby("failure_class", sort=False)["label"].agg(lambda labels: sorted(set(labels)))
    parts = [
        f"{name} ({', '.join(labels[:4])}{' and more' if len(labels) > 4 else ''})" for name, labels in classes.items()
    ]
    return f"{len(failed)} of {len(results.cells)} cells failed: {'; '.join(parts)}"
