"""The sweep as it went: anchors, power and clocks, time line."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.patches import Patch, Rectangle

from analysis.figures import panels, style

#: Phases in the order of one configuration; hue and hatch tell them apart in greyscale too.
PHASES = {
    "stop": ("#c9cdd3", ""),
    "apply": ("#8b93a0", "//"),
    "load": ("#f2c14e", ""),
    "ready": ("#f2c14e", "xx"),
    "attest": ("#a0519b", ""),
    "warmup": ("#56b4e9", "//"),
    "measure": ("#0072b2", ""),
    "collect": ("#009e73", "\\\\"),
    "wait": ("#ffffff", ".."),
}
OTHER_PHASE = ("#d8b7a0", "")


def _minutes(cells: pd.DataFrame) -> pd.Series[float]:
    start = cells["window_start_unix_s"].astype(float)
    return (start - start.min()) / 60.0


@style.styled
def drift(cells: pd.DataFrame, ax: Axes | None = None, noise_floor: float | None = None) -> Axes:
    """System tok/s of the anchors over the sweep, relative to their median, one line a concurrency.

    `noise_floor`: relative half-width (0.02 = 2 %) to draw as a band, where it was measured.
    """
    ax = ax or style.new_axes()
    anchors = panels.measured(cells[panels.blank(cells, "anchor").notna()]).dropna(subset=["window_start_unix_s"])
    anchors = anchors.assign(minute=_minutes(anchors))
    for index, (concurrency, line) in enumerate(panels.groups(anchors, "concurrency")):
        how = style.series(index)
        line = line.sort_values("minute")
        relative = (line["system_tok_s"] / line["system_tok_s"].median() - 1) * 100
        ax.plot(
            line["minute"],
            relative,
            color=how.color,
            marker=how.marker,
            linestyle=how.line,
            label=f"{concurrency:.0f}",
        )
    ax.axhline(0.0, color=style.MUTED, linewidth=0.9, zorder=1)
    label = "time since the first anchor (min)"
    if noise_floor is not None:
        ax.axhspan(-100 * noise_floor, 100 * noise_floor, color=style.GRID, alpha=0.6, zorder=0)
        label += f"\nband: noise floor ±{style.number(100 * noise_floor)} %"
    if panels.replayed(cells):
        label += f"\n{style.REPLAY}"
    low, high = ax.get_ylim()
    edge = max(abs(low), abs(high), 1.0)
    ax.set_ylim(-edge, edge)
    style.plain(ax, "x", False)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:+g} %" if value else "0 %")
    ax.set_xlabel(label)
    ax.set_ylabel("tok/s against own median")
    style.legend_beside(ax, "concurrency")
    return ax


MOST_MARKERS = 1500


def _scatter(cells: pd.DataFrame, ax: Axes, column: str) -> None:
    rows = cells.dropna(subset=[column, "window_start_unix_s"])
    rows = rows.assign(minute=_minutes(rows))
    # Thousands of markers make a page of megabytes: an image of them does as well.
    raster = len(rows) > MOST_MARKERS
    for index, (concurrency, line) in enumerate(panels.groups(rows, "concurrency")):
        how = style.series(index)
        good, void = line[line["status"].eq("ok")], line[line["status"].eq("invalid")]
        ax.plot(
            good["minute"],
            good[column],
            color=how.color,
            marker=how.marker,
            linestyle="none",
            label=f"{concurrency:.0f}",
            rasterized=raster,
        )
        ax.plot(
            void["minute"],
            void[column],
            color=style.MUTED,
            marker=how.marker,
            linestyle="none",
            fillstyle="none",
        )
    style.plain(ax, "x", False)
    style.plain(ax, "y", False)
    label = "start of the measured window (min since the first)\nhollow: invalid cells"
    if panels.replayed(cells):
        label += f"\n{style.REPLAY}"
    ax.set_xlabel(label)


@style.styled
def power(cells: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Mean GPU power in each measured window, with the power limit."""
    ax = ax or style.new_axes()
    _scatter(cells, ax, "power_w_mean")
    limits = panels.blank(cells, "power_limit_w").dropna()
    for limit in sorted(set(limits))[:3]:
        ax.axhline(limit, color=style.INK, linewidth=1.0, linestyle=(0, (4, 2)))
        ax.annotate(
            f"limit {style.number(limit)} W",
            (1.0, limit),
            (-2, -10),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            fontsize=7.5,
            color=style.MUTED,
        )
    ax.set_ylim(bottom=0, top=max([*limits, *cells["power_w_mean"].dropna()]) * 1.05)
    ax.set_ylabel("mean GPU power (W)")
    style.legend_beside(ax, "concurrency")
    return ax


@style.styled
def clocks(cells: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Median SM clock in each measured window."""
    ax = ax or style.new_axes()
    _scatter(cells, ax, "sm_clock_mhz_median")
    ax.set_ylim(0, 1.08 * float(cells["sm_clock_mhz_median"].max()))
    ax.set_ylabel("median SM clock (MHz)")
    style.legend_beside(ax, "concurrency")
    return ax


#: More restarts than this are drawn from a common zero.
MOST_IN_TIME = 12


@style.styled
def timeline(phases: pd.DataFrame, ax: Axes | None = None, most: int = 40) -> Axes:
    """One bar a restart, coloured by phase; the overhead of each at the right.

    Up to a dozen bars stand where they were in time; more of them all start at 0, to be compared.

    `phases`: rows of `Results.phases` with `label`, and `overhead_s` and `position` of the restart where
    known.  Only the first `most` restarts are drawn, and the axes say so.
    """
    restarts = panels.groups(phases, ["sweep_id", "host", "configuration_id", "repeat", "anchor"], sort=False)
    order = sorted(restarts, key=lambda item: item[1]["start_unix_s"].min())
    shown = order[:most]
    ax = ax or style.new_axes(8.0, max(1.8, 0.26 * len(shown) + 1.2))
    aligned = len(order) > MOST_IN_TIME
    begin = float(phases["start_unix_s"].min())
    zeros = [float(rows["start_unix_s"].min()) if aligned else begin for _, rows in shown]
    end = max(float(rows["end_unix_s"].max()) - zero for (_, rows), zero in zip(shown, zeros, strict=True))
    unit, scale = ("min", 60.0) if end > 300 else ("s", 1.0)
    labels = []
    several_hosts = phases["host"].nunique() > 1
    bars: dict[str, list[Rectangle]] = {}
    for index, ((_, host, configuration, repeat, anchor), rows) in enumerate(shown):
        for phase in panels.rows(rows):
            start, stop = ((float(phase[name]) - zeros[index]) / scale for name in ("start_unix_s", "end_unix_s"))
            bar = Rectangle((start, index - 0.36), stop - start, 0.72)
            bars.setdefault(str(phase["name"]), []).append(bar)
        name = str(rows["label"].iloc[0]) if "label" in rows else str(configuration)
        which = f", {anchor} anchor" if isinstance(anchor, str) else f", restart {repeat:.0f}"
        suffix = which if isinstance(anchor, str) or repeat > 1 else ""
        labels.append(f"{host}: {name}{suffix}" if several_hosts else f"{name}{suffix}")
        overhead = panels.blank(rows, "overhead_s").dropna()
        if len(overhead):
            ax.annotate(
                f"overhead {style.number(float(overhead.iloc[0]))} s",
                (1.0, index),
                (4, 0),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                va="center",
                fontsize=7.5,
                color=style.MUTED,
                annotation_clip=False,
            )
    ax.set_yticks(range(len(labels)), [name if len(name) <= 40 else name[:39] + "…" for name in labels])
    for name, pieces in bars.items():
        color, hatch = PHASES.get(name, OTHER_PHASE)
        # One artist a phase: hundreds of bars would be hundreds of patches to lay out and to draw.
        drawn = PatchCollection(pieces, facecolor=color, hatch=hatch, edgecolor="#6b7280", linewidth=0.3, label=name)
        drawn.set_in_layout(False)
        ax.add_collection(drawn, autolim=False)
    ax.set_ylim(len(shown) - 0.4, -0.6)
    ax.grid(False, axis="y")
    ax.set_xlim(0, end / scale * 1.01)
    style.plain(ax, "x", False)
    rest = f"\nfirst {most} of {len(order)} restarts" if len(order) > most else ""
    since = "each restart" if aligned else "the sweep"
    ax.set_xlabel(f"time since the start of {since} ({unit}){rest}")
    if panels.replayed(phases):
        style.note(ax, style.REPLAY)
    names = [name for name in PHASES if name in bars] + sorted(set(bars) - set(PHASES))
    handles = [
        Patch(
            facecolor=PHASES.get(name, OTHER_PHASE)[0],
            hatch=PHASES.get(name, OTHER_PHASE)[1],
            edgecolor="#6b7280",
            linewidth=0.3,
            label="warm-up" if name == "warmup" else name,
        )
        for name in names
    ]
    ax.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=len(handles),
        columnspacing=1.1,
        handlelength=1.4,
        borderaxespad=0.2,
    )
    return ax
