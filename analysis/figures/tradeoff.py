"""What a user gets against what the machine gives."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from analysis.figures import panels, style


def pareto_front(points: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    """Rows that no other row beats on both columns (larger is better), from small to large `x`."""
    ordered = points.dropna(subset=[x, y]).sort_values([x, y], ascending=[False, False])
    best = ordered[y].cummax()
    first = ordered[y].eq(best) & ~best.duplicated()
    return ordered[first].iloc[::-1]


#: Budgets with a line of their own; the points of more are small and grey.
MOST_LINES = 8


@style.styled
def pareto(cells: pd.DataFrame, ax: Axes | None = None, levels: Sequence[object] | None = None) -> Axes:
    """System against per-user tok/s, one line a budget along the concurrencies, with the Pareto front.

    `levels`: the budgets that get a line (default: up to MOST_LINES of them).
    """
    ax = ax or style.new_axes()
    rows = panels.in_blocks(cells)
    by = ["budget", "concurrency"]
    system = panels.over_restarts(rows, by, "system_tok_s")
    user = panels.over_restarts(rows, by, "per_user_tok_s")
    points = system[[*by, "median", "n"]].merge(user[[*by, "median"]], on=by, suffixes=("_system", "_user"))
    front = pareto_front(points, "median_user", "median_system")
    ax.plot(
        front["median_user"],
        front["median_system"],
        color=style.GRID,
        linewidth=6,
        zorder=1,
        solid_capstyle="round",
        label="Pareto front",
    )
    levels = list(levels) if levels is not None else panels.spread(panels.budgets(points), MOST_LINES)
    for budget, line in panels.groups(points, "budget"):
        if budget not in levels:
            continue
        how = style.series(levels.index(budget))
        name = "0 (baseline)" if budget == 0 else f"{budget:.0f}"
        ax.plot(
            line["median_user"],
            line["median_system"],
            color=how.color,
            marker=how.marker,
            linestyle=how.line,
            label=name,
        )
    others = points[~points["budget"].isin(levels)]
    if len(others):
        ax.plot(
            others["median_user"],
            others["median_system"],
            color=style.MUTED,
            marker=".",
            markersize=4,
            linestyle="none",
            zorder=1.5,
            label=f"{others['budget'].nunique()} other budgets",
        )
    # One name a concurrency: neighbouring budgets would print it over itself.
    for point in panels.rows(front.drop_duplicates("concurrency", keep="last")):
        ax.annotate(
            f"c{point['concurrency']:.0f}",
            (point["median_user"], point["median_system"]),
            (5, 5),
            textcoords="offset points",
            fontsize=7.5,
            color=style.MUTED,
        )
    for axis, column in (("x", "median_user"), ("y", "median_system")):
        log = style.wide_range(points[column].tolist())
        style.plain(ax, axis, log)
        if not log:
            style.start_at(ax, axis, 0.0)
    note = style.ONE_RESTART if points["n"].max() == 1 else "medians over restarts"
    label = f"per-user output tok/s\npoints on the front carry their concurrency (c); {note}"
    if panels.replayed(cells):
        label += f"\n{style.REPLAY}"
    ax.set_xlabel(label)
    ax.set_ylabel("system output tok/s")
    style.legend_beside(ax, "budget")
    return ax
