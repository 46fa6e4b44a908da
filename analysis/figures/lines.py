"""Lines against the budget: throughput, acceptance length, step time, per-category speed-up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd
from matplotlib.axes import Axes

from analysis.figures import panels, style

BUDGET = "budget (the engine's own knob)"


def _positions(values: list[int]) -> dict[int, int]:
    """Equal steps whatever the values: budgets 0, 4, 16, 64 all stay readable."""
    return {value: index for index, value in enumerate(values)}


def _restarts_note(n: pd.Series[int]) -> str:
    """What the points and bars are, in one line."""
    most, least = int(n.max()), int(n.min())
    if most == 1:
        return style.ONE_RESTART
    count = f"{least}" if least == most else f"{least} to {most}"
    return f"median of {count} restarts; bars: lowest to highest restart"


def _notes(ax: Axes, cells: pd.DataFrame, label: str, *notes: str) -> None:
    ax.set_xlabel(label)
    for text in notes:
        style.note(ax, text)
    if panels.replayed(cells):
        style.note(ax, style.REPLAY)


#: Most tick labels that stay readable side by side.
MOST_TICKS = 12


def _tick_labels(cells: pd.DataFrame, column: str, values: list[int]) -> list[str]:
    """Tick labels; a second line names the concurrencies without a number.  Of many, only some are written."""
    step = -(-len(values) // MOST_TICKS)
    labels = []
    for index, value in enumerate(values):
        if index % step:
            labels.append("")
            continue
        label = str(value)
        if column == "budget" and value == 0:
            label += "\nbaseline"
        rows = cells[panels.blank(cells, column).eq(value)]
        for status in ("failed", "not_applied", "invalid"):
            bad = rows[rows["status"].eq(status)]
            if bad.empty:
                continue
            label += "\n✕"
            if len(values) <= 6:
                label += f" {status.replace('_', ' ')}"
                if len(bad) < len(rows):
                    which = [f"c{level}" for level in panels.concurrencies(bad)]
                    label += "\n" + " ".join(which[:3]) + (" …" if len(which) > 3 else "")
        labels.append(label)
    return labels


def _draw(
    ax: Axes,
    rows: pd.DataFrame,
    by: str,
    names: Callable[[object], str],
    positions: dict[int, int],
    x: str,
    levels: Sequence[object] | None,
) -> None:
    """One line a value of `by`; `rows` has the columns of `panels.over_restarts`.

    `levels`: all values of `by` that small multiples have together, so that each keeps its look.
    """
    groups = panels.groups(rows, by)
    levels = list(levels) if levels is not None else [value for value, _ in groups]
    shift = 0.03 if len(groups) > 1 and (rows["n"] > 1).any() else 0.0
    for value, line in groups:
        index = levels.index(value)
        how = style.series(index)
        line = line.sort_values(x)
        where = [positions[int(v)] + shift * (index - (len(levels) - 1) / 2) for v in line[x]]
        spread = [line["median"] - line["low"], line["high"] - line["median"]] if (line["n"] > 1).any() else None
        ax.errorbar(
            where,
            line["median"],
            yerr=spread,
            color=how.color,
            marker=how.marker,
            linestyle=how.line,
            capsize=3,
            elinewidth=1.1,
            label=names(value),
            markeredgecolor=how.color,
        )


def _finish(ax: Axes, cells: pd.DataFrame, column: str, positions: dict[int, int]) -> None:
    labelled = zip(positions.values(), _tick_labels(cells, column, list(positions)), strict=True)
    ticks = [(position, label) for position, label in labelled if label]
    ax.set_xticks([position for position, _ in ticks], [label for _, label in ticks])
    ax.set_xlim(-0.4, max(len(positions) - 0.6, 0.4))
    ax.grid(False, axis="x")


@style.styled
def throughput(cells: pd.DataFrame, ax: Axes | None = None, levels: Sequence[object] | None = None) -> Axes:
    """System output tokens per second against the budget, one line a concurrency.

    `cells`: one panel of `Results.cells`.  The faint level lines are the baseline of each concurrency.
    """
    ax = ax or style.new_axes()
    rows = panels.over_restarts(panels.in_blocks(cells), ["concurrency", "budget"], "system_tok_s")
    positions = _positions(panels.budgets(cells))
    _draw(ax, rows, "concurrency", lambda c: f"{c:.0f}", positions, "budget", levels)
    levels = list(levels) if levels is not None else panels.concurrencies(rows)
    for row in panels.rows(rows[rows["budget"].eq(0)]):
        color = style.series(levels.index(row["concurrency"])).color
        ax.axhline(row["median"], color=color, linewidth=0.9, alpha=0.45, zorder=1)
    log = style.wide_range(rows["median"].tolist())
    style.plain(ax, "y", log)
    if not log:
        style.start_at(ax, "y", 0.0)
    _finish(ax, cells, "budget", positions)
    ax.set_ylabel("system output tok/s")
    _notes(ax, cells, BUDGET, _restarts_note(rows["n"]))
    style.legend_beside(ax, "concurrency")
    return ax


@style.styled
def acceptance_length(cells: pd.DataFrame, ax: Axes | None = None, levels: Sequence[object] | None = None) -> Axes:
    """Acceptance length (token-weighted) against the budget, one line a concurrency."""
    ax = ax or style.new_axes()
    rows = panels.over_restarts(panels.in_blocks(cells), ["concurrency", "budget"], "al")
    positions = _positions(panels.budgets(cells))
    _draw(ax, rows, "concurrency", lambda c: f"{c:.0f}", positions, "budget", levels)
    ax.axhline(1.0, color=style.MUTED, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)
    style.plain(ax, "y", False)
    style.start_at(ax, "y", min(0.9, float(rows["median"].min()) * 0.95))
    _finish(ax, cells, "budget", positions)
    ax.set_ylabel("acceptance length (tokens/step)")
    _notes(ax, cells, BUDGET, _restarts_note(rows["n"]))
    style.legend_beside(ax, "concurrency")
    return ax


@style.styled
def step_time(cells: pd.DataFrame, ax: Axes | None = None, levels: Sequence[object] | None = None) -> Axes:
    """Time of one decode step against the verify width, one line a concurrency."""
    ax = ax or style.new_axes()
    rows = panels.over_restarts(panels.in_blocks(cells), ["concurrency", "verify_width"], "step_time_ms")
    positions = _positions(panels.budgets(cells, "verify_width"))
    _draw(ax, rows, "concurrency", lambda c: f"{c:.0f}", positions, "verify_width", levels)
    log = style.wide_range(rows["median"].tolist())
    style.plain(ax, "y", log)
    if not log:
        style.start_at(ax, "y", 0.0)
    _finish(ax, cells, "verify_width", positions)
    ax.set_ylabel("step time (ms)")
    meaning = "width: tokens that the target checks per sequence and step; 1 = baseline"
    _notes(ax, cells, "verify width (tokens)", meaning, _restarts_note(rows["n"]))
    style.legend_beside(ax, "concurrency")
    return ax


@style.styled
def category_speedup(categories: pd.DataFrame, ax: Axes | None = None, levels: Sequence[object] | None = None) -> Axes:
    """Per-user tok/s relative to the baseline against the budget, one line a prompt category.

    `categories`: rows of `Results.categories` for one concurrency.
    """
    ax = ax or style.new_axes()
    rows = panels.speedups(categories, "per_user_tok_s", ("category",))
    rows = rows.assign(median=rows["ratio"], low=rows["ratio"], high=rows["ratio"])
    positions = _positions(panels.budgets(categories))
    origin = rows[["category"]].drop_duplicates().assign(budget=0, median=1.0, low=1.0, high=1.0, n=1)
    line_rows = pd.concat([origin, rows]) if 0 in positions else rows
    _draw(ax, line_rows.assign(n=1), "category", str, positions, "budget", levels)
    ax.axhline(1.0, color=style.INK, linewidth=1.0, zorder=1)
    log = style.wide_range(rows["ratio"].tolist(), 6.0)
    style.plain(ax, "y", log)
    low, high = ax.get_ylim()
    ax.set_ylim(low if log else min(low, 0.9), max(high, 1.1))
    low, high = ax.get_ylim()
    ax.axhspan(low, 1.0, color=style.GRID, alpha=0.35, linewidth=0, zorder=0)
    ax.set_ylim(low, high)
    _finish(ax, categories, "budget", positions)
    ax.set_ylabel("per-user tok/s ÷ baseline")
    requests = panels.measured(categories)["requests"]
    shade = "shaded: slower than the baseline"
    sample = f"{_span(requests)} a category and cell"
    _notes(ax, categories, BUDGET, shade, sample, _restarts_note(rows["n"]))
    style.legend_beside(ax, "category")
    return ax


@style.styled
def category_speed(categories: pd.DataFrame, ax: Axes | None = None, levels: Sequence[object] | None = None) -> Axes:
    """Per-user tok/s against the budget, one line a prompt category: for results without a baseline.

    `categories`: rows of `Results.categories` for one concurrency.
    """
    ax = ax or style.new_axes()
    rows = panels.over_restarts(categories, ["category", "budget"], "per_user_tok_s")
    positions = _positions(panels.budgets(categories))
    _draw(ax, rows, "category", str, positions, "budget", levels)
    log = style.wide_range(rows["median"].tolist())
    style.plain(ax, "y", log)
    if not log:
        style.start_at(ax, "y", 0.0)
    _finish(ax, categories, "budget", positions)
    ax.set_ylabel("per-user output tok/s")
    sample = f"{_span(panels.measured(categories)['requests'])} a category and cell"
    _notes(ax, categories, BUDGET, sample, _restarts_note(rows["n"]))
    style.legend_beside(ax, "category")
    return ax


@style.styled
def category_acceptance(
    categories: pd.DataFrame, ax: Axes | None = None, levels: Sequence[object] | None = None
) -> Axes:
    """Acceptance length against the budget, one line a prompt category (rows of `Results.categories`)."""
    ax = ax or style.new_axes()
    rows = panels.over_restarts(categories, ["category", "budget"], "al")
    positions = _positions(panels.budgets(categories))
    _draw(ax, rows, "category", str, positions, "budget", levels)
    ax.axhline(1.0, color=style.MUTED, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)
    style.plain(ax, "y", False)
    style.start_at(ax, "y", min(0.9, float(rows["median"].min()) * 0.95))
    _finish(ax, categories, "budget", positions)
    ax.set_ylabel("acceptance length (tokens/step)")
    _notes(ax, categories, BUDGET, _restarts_note(rows["n"]))
    style.legend_beside(ax, "category")
    return ax


def _span(values: pd.Series[int]) -> str:
    low, high = int(values.min()), int(values.max())
    if low == high:
        return f"{low} request{'s' * (low != 1)}"
    return f"{low} to {high} requests"


@style.styled
def acceptance_by_position(
    positions: pd.DataFrame, ax: Axes | None = None, levels: Sequence[object] | None = None
) -> Axes:
    """Share of drafts accepted at each draft position, one line a budget.

    `positions`: rows of `Results.positions` with `budget`, for one concurrency.
    """
    ax = ax or style.new_axes()
    rows = positions.dropna(subset=["rate"]).groupby(["budget", "position"])["rate"].median().reset_index()
    levels = list(levels) if levels is not None else panels.budgets(rows)
    for budget, line in panels.groups(rows, "budget"):
        how = style.series(levels.index(budget))
        ax.plot(
            line["position"] + 1,
            line["rate"] * 100,
            color=how.color,
            marker=how.marker,
            linestyle=how.line,
            label=f"{budget:.0f}",
            markersize=4.5,
        )
    style.plain(ax, "y", False)
    style.plain(ax, "x", False)
    ax.set_ylim(0, 102)
    ax.set_xlim(left=0.5)
    ax.set_ylabel("drafts accepted up to here (%)")
    _notes(ax, positions, "draft position")
    style.legend_beside(ax, "budget")
    return ax


@style.styled
def acceptance_histogram(
    histograms: pd.DataFrame, ax: Axes | None = None, levels: Sequence[object] | None = None
) -> Axes:
    """Share of steps that accepted exactly k drafted tokens, one line a budget.

    `histograms`: rows with `budget`, `accepted` (k) and `steps` (how many) for one concurrency.
    """
    ax = ax or style.new_axes()
    counts = histograms.groupby(["budget", "accepted"])["steps"].sum().reset_index()
    levels = list(levels) if levels is not None else panels.budgets(counts)
    for budget, line in panels.groups(counts, "budget"):
        how = style.series(levels.index(budget))
        share = 100 * line["steps"] / line["steps"].sum()
        ax.plot(
            line["accepted"],
            share,
            color=how.color,
            marker=how.marker,
            linestyle=how.line,
            label=f"{budget:.0f}",
            markersize=4.5,
        )
    style.plain(ax, "y", False)
    style.plain(ax, "x", False)
    style.start_at(ax, "y", 0.0)
    ax.set_ylabel("steps (%)")
    steps = [int(line["steps"].sum()) for _, line in panels.groups(counts, "budget")]
    sample = f"{min(steps):,} to {max(steps):,} steps a budget" if len(steps) > 1 else f"{steps[0]:,} steps"
    _notes(ax, histograms, "drafted tokens accepted in one step", sample)
    style.legend_beside(ax, "budget")
    return ax
