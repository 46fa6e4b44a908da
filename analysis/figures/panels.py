"""Which rows of `Results.cells` belong in one picture, and what they are compared with.

A *panel* holds cells that differ only in budget, concurrency, repeat and status: the two axes of most
pictures.  Everything else that varies (host, method, top-k, any swept setting) makes another panel.  The
baseline of a panel is in it, at budget 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

#: What cells of one panel share, beside the settings that vary.
SAME_WORK = ("sweep_id", "host", "engine", "source", "model", "prompts", "output_tokens")
VARIANT = ("method", "topk", "drafter")


@dataclass(frozen=True)
class Panel:
    """Cells for one set of axes."""

    title: str
    """what sets this panel apart from the others, `` when there is one"""
    cells: pd.DataFrame
    key: tuple[Any, ...] = ()


def rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as plain dicts."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def groups(frame: pd.DataFrame, by: str | list[str], sort: bool = True) -> list[tuple[Any, pd.DataFrame]]:
    """`frame.groupby(by)` as a list; missing keys make groups of their own."""
    return [(key, group) for key, group in frame.groupby(by, sort=sort, dropna=False)]


def blank(frame: pd.DataFrame, column: str) -> pd.Series[Any]:
    """The column, or missing values where the frame has none."""
    return frame[column] if column in frame else pd.Series([None] * len(frame), index=frame.index, dtype=object)


def is_baseline(cells: pd.DataFrame) -> pd.Series[bool]:
    """True for rows of the autoregressive baseline."""
    return blank(cells, "baseline").eq(True) | blank(cells, "method").eq("none")


def in_blocks(cells: pd.DataFrame) -> pd.DataFrame:
    """Cells of the plan's blocks: anchors only show drift."""
    return cells[blank(cells, "anchor").isna()]


def measured(cells: pd.DataFrame) -> pd.DataFrame:
    """Cells whose numbers stand: status ok."""
    return cells[cells["status"].eq("ok")]


def replayed(cells: pd.DataFrame) -> bool:
    """Is any of these cells a rehearsal from a recording?"""
    return bool(blank(cells, "origin").eq("replay").any())


def _vary(cells: pd.DataFrame, columns: list[str]) -> list[str]:
    """Columns that differ within these rows, less those that an earlier one already explains."""
    kept: list[str] = []
    for column in columns:
        values = blank(cells, column).astype(str)
        if values.nunique() < 2:
            continue
        if kept:
            groups = cells[kept].astype(str).agg("\x1f".join, axis=1)
            if values.groupby(groups).nunique().max() < 2:
                continue
        kept.append(column)
    return kept


def varying_settings(cells: pd.DataFrame) -> list[str]:
    """Setting columns (and `max_running`) that differ between speculative cells."""
    names = sorted(str(column) for column in cells.columns if str(column).startswith("settings."))
    if "max_running" in cells:
        names.append("max_running")
    return _vary(cells[~is_baseline(cells)], names)


def word(column: str, value: Any) -> str:
    """One value that sets cells apart, for a title: `top-k 4`, `max running 128`, `gpu1`."""
    name = column.removeprefix("settings.").replace("_", " ")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if column == "topk":
        return f"top-k {value}"
    if column in ("host", "method", "engine", "model", "drafter", "prompts"):
        return str(value)
    if column == "output_tokens":
        return f"{value} output tokens"
    return f"{name} {value}"


def panels(cells: pd.DataFrame) -> list[Panel]:
    """Split cells into panels, in the order of what sets them apart.  Anchors are left out."""
    cells = _hashable_settings(in_blocks(cells))
    base = is_baseline(cells)
    speculative = cells[~base]
    if speculative.empty:
        return [Panel("", cells)] if len(cells) else []
    settings = varying_settings(cells)
    by = _vary(speculative, [column for column in SAME_WORK if column in cells])
    by += [column for column in _vary(speculative, list(VARIANT)) if column not in by]
    by += [column for column in settings if column not in by]
    if not by:
        return [Panel("", cells)]
    found = []
    for key, own in groups(speculative, by, sort=False):
        values = dict(zip(by, key, strict=True))
        title = ", ".join(word(column, value) for column, value in values.items() if not _missing(value))
        work = {column: value for column, value in values.items() if column in SAME_WORK}
        found.append(Panel(title, pd.concat([_baseline_of(cells[base], work, values, settings), own]), tuple(key)))
    # Numbers in their order (top-k 2 before 10), names in theirs.
    return sorted(found, key=lambda panel: tuple(_sortable(value) for value in panel.key))


def _hashable_settings(cells: pd.DataFrame) -> pd.DataFrame:
    """Settings that are lists or mappings (graph batch sizes, JSON options) as text, to group by."""
    structured = {
        str(column): cells[column].map(lambda value: str(value) if isinstance(value, (list, dict)) else value)
        for column in cells.columns
        if str(column).startswith("settings.")
        and cells[column].map(lambda value: isinstance(value, (list, dict))).any()
    }
    return cells.assign(**structured) if structured else cells


def _sortable(value: Any) -> tuple[int, float, str]:
    if _missing(value):
        return 0, 0.0, ""
    return (1, float(value), "") if isinstance(value, (int, float)) else (2, 0.0, str(value))


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and pd.isna(value))


def _baseline_of(
    baseline: pd.DataFrame, work: dict[str, Any], values: dict[str, Any], settings: list[str]
) -> pd.DataFrame:
    """The baseline for a panel: same host and work; same settings too where the baseline has them."""
    found = baseline
    for column, value in work.items():
        if not _missing(value):
            found = found[found[column].eq(value)]
    for column in settings:
        wanted: Any = values.get(column)
        same = found if _missing(wanted) else found[found[column].eq(wanted)]
        found = same if len(same) else found
    return found


def of_cells(frame: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """Rows of `Results.categories` or `.positions` that belong to these cells, with their `origin`."""
    keys = ["sweep_id", "host", "configuration_id", "repeat", "cell_id"]
    wanted = in_blocks(cells)[[*keys, "origin"]].drop_duplicates(keys)
    return in_blocks(frame).merge(wanted, on=keys, how="inner")


def spread(values: list[int], most: int) -> list[int]:
    """At most `most` of the values, evenly spread, the first and the last among them."""
    if len(values) <= most:
        return values
    step = (len(values) - 1) / (most - 1)
    return [values[round(index * step)] for index in range(most)]


def budgets(cells: pd.DataFrame, column: str = "budget") -> list[int]:
    """Budgets (or another integer column) of the panel in order, failed ones included."""
    return sorted({int(value) for value in blank(cells, column).dropna()})


def concurrencies(cells: pd.DataFrame) -> list[int]:
    """Concurrencies of the panel in order."""
    return sorted({int(value) for value in cells["concurrency"].dropna()})


def over_restarts(cells: pd.DataFrame, by: list[str], value: str) -> pd.DataFrame:
    """Median, lowest and highest restart of `value`, and the number of restarts `n`, per group.

    Repeats inside one restart count once (their median): the restart is the unit of replication.
    """
    usable = measured(cells).dropna(subset=[value])
    restart = [column for column in ("sweep_id", "host", "configuration_id", "repeat") if column in usable]
    if usable.empty:
        return pd.DataFrame(columns=[*by, "median", "low", "high", "n"])
    each = usable.groupby([*by, *(column for column in restart if column not in by)], dropna=False)[value].median()
    grouped = each.groupby(level=by, dropna=False)
    return pd.DataFrame(
        {"median": grouped.median(), "low": grouped.min(), "high": grouped.max(), "n": grouped.size()}
    ).reset_index()


def speedups(cells: pd.DataFrame, value: str = "system_tok_s", by: tuple[str, ...] = ("concurrency",)) -> pd.DataFrame:
    """Ratio of each budget's median to the baseline's median: columns `by`, budget, ratio, n, n_baseline."""
    columns = [*by, "budget", "ratio", "n", "n_baseline"]
    base = is_baseline(cells)
    there = over_restarts(cells[base], list(by), value).set_index(list(by))
    here = over_restarts(cells[~base], [*by, "budget"], value)
    if there.empty or here.empty:
        return pd.DataFrame(columns=columns)
    joined = here.join(there[["median", "n"]].add_suffix("_baseline"), on=list(by), how="inner")
    joined = joined.assign(ratio=joined["median"] / joined["median_baseline"])
    return joined[columns].reset_index(drop=True)
