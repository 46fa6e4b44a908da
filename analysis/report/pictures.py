"""All pictures of a report: which there are, of which cells, and how to read them."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from analysis import figures
from analysis.figures import maps, panels, style, tradeoff
from analysis.report import svg
from analysis.results import Results

#: Most small multiples in one picture, and most of maps with many columns.
MOST_PANELS = 6
MOST_WIDE_MAPS = 3
#: Width that small multiples share, in inches.
WIDEST_IN = 12.0


#: Every picture that a report can have.
NAMES = (
    "throughput",
    "category_speedup",
    "category_speed",
    "category_acceptance",
    "speedup_map",
    "acceptance_length",
    "step_time",
    "pareto",
    "failure_map",
    "acceptance_by_position",
    "acceptance_histogram",
    "drift",
    "power",
    "clocks",
    "timeline",
)


@dataclass(frozen=True)
class Picture:
    """One picture of the report."""

    name: str
    title: str
    caption: str
    """how to read it"""
    svg: str
    png: bytes


@dataclass(frozen=True)
class Part:
    """The rows for one set of axes, and what sets them apart."""

    title: str
    rows: pd.DataFrame


Draw = Callable[[pd.DataFrame, Axes, Sequence[object]], Axes]


def pictures(results: Results, verdicts: pd.DataFrame, noise_floor: float | None = None) -> list[Picture]:
    """Every picture that these results have the data for."""
    cells = results.cells
    if cells.empty:
        return []
    found = panels.panels(cells)
    parts = [Part(panel.title, panel.cells) for panel in found]
    made = [
        _lines("throughput", "System throughput against budget", parts, "system_tok_s", figures.throughput,
               "One line a concurrency, from the baseline (budget 0) on; the thin level lines continue the "
               "baseline. Above its thin line, a budget pays."),
        *_by_category(results.categories, found),
        _speedups(verdicts, found),
        _lines("acceptance_length", "Acceptance length against budget", parts, "al", figures.acceptance_length,
               "Tokens committed per decode step of the target, token-weighted, the bonus token and steps "
               "without a draft counted. A longer acceptance pays only if the step does not get slower by more."),
        _lines("step_time", "Step time against verify width", parts, "step_time_ms", figures.step_time,
               "Running sequences × acceptance length ÷ system tok/s: what one decode step costs."),
        _pareto(parts),
        _failure_map(parts),
        *_by_position(results.positions, found),
        _histograms(results, found),
        _drift(cells, noise_floor),
        _gpu(cells, "power_w_mean", "power", "GPU power in the measured windows", figures.power,
             "Mean over the window, by the start of the window. Far below the limit, the GPU waits for "
             "something else."),
        _gpu(cells, "sm_clock_mhz_median", "clocks", "SM clock in the measured windows", figures.clocks,
             "Median over the window. A clock that falls during the sweep moves every later number."),
        _timeline(results),
    ]  # fmt: skip
    return [picture for picture in made if picture is not None]


def _has(rows: pd.DataFrame, column: str) -> bool:
    return column in rows and bool(panels.measured(rows)[column].notna().any())


def _levels(parts: list[Part], column: str) -> list[object]:
    return sorted({value for part in parts for value in part.rows[column].dropna()})


def _budgets(parts: list[Part]) -> list[object]:
    """Budgets that get a line of their own where a line is a budget: not more than can be told apart."""
    every = sorted({int(value) for part in parts for value in part.rows["budget"].dropna()})
    return list(panels.spread(every, tradeoff.MOST_LINES))


def _lines(
    name: str,
    title: str,
    parts: list[Part],
    column: str,
    draw: Callable[..., Axes],
    caption: str,
    by: str = "concurrency",
) -> Picture | None:
    usable = [part for part in parts if _has(part.rows, column)]
    # One point a line tells nothing: at least two positions are needed.
    usable = [part for part in usable if part.rows.loc[part.rows[column].notna(), "budget"].nunique() > 1]
    levels = _levels(usable, by)
    return _multiples(name, title, caption, usable, lambda rows, ax, _: draw(rows, ax=ax, levels=levels), by)


def _multiples(
    name: str,
    title: str,
    caption: str,
    parts: list[Part],
    draw: Draw,
    legend: str = "",
    width_in: float = 3.7,
    height_in: float = 3.1,
    alone: tuple[float, float] = (7.4, 3.9),
    most: int = MOST_PANELS,
) -> Picture | None:
    """One set of axes a part, up to `most`, with one legend and the notes once."""
    if not parts:
        return None
    shown = parts[:most]
    columns = max(1, min(len(shown), 3, int(WIDEST_IN // width_in)))
    lines = math.ceil(len(shown) / columns)
    with mpl.rc_context(rc=style.parameters()):
        size = alone if len(shown) == 1 else (width_in * columns + 1.2, height_in * lines + 0.5)
        figure = Figure(figsize=size, layout="constrained")
        axes = []
        for index, part in enumerate(shown, start=1):
            ax = figure.add_subplot(lines, columns, index)
            draw(part.rows, ax, [])
            ax.set_title(part.title, fontsize=8.5, fontweight="normal")
            axes.append(ax)
        notes = style.gather_notes(axes)
        if len(parts) > len(shown):
            notes.append(f"first {len(shown)} of {len(parts)} panels; all rows are in the table")
        if len(axes) > 1:
            _shared_legend(figure, axes, legend)
            _outer_labels(axes, columns)
        if notes:
            figure.supxlabel("\n".join(_wrapped(notes, size[0])), fontsize=8, color=style.MUTED)
        return _rendered(figure, name, title, caption)


def _wrapped(notes: list[str], width_in: float) -> list[str]:
    """Notes joined while they fit on one line of the figure."""
    most = int(width_in * 15)
    lines: list[str] = []
    for text in notes:
        if lines and len(lines[-1]) + len(text) + 3 <= most:
            lines[-1] += f" · {text}"
        else:
            lines.append(text)
    return lines


def _shared_legend(figure: Figure, axes: list[Axes], title: str) -> None:
    handles: dict[str, Any] = {}
    for ax in axes:
        own = ax.get_legend()
        if own is None:
            continue
        if not title:
            title = own.get_title().get_text()
        # Those of the axes keep their markers; a map has only the legend's own patches.
        found: list[Any]
        found, labels = ax.get_legend_handles_labels()
        if not found:
            found, labels = list(own.legend_handles), [text.get_text() for text in own.get_texts()]
        for handle, label in zip(found, labels, strict=True):
            handles.setdefault(label, handle)
        own.remove()
    if handles:
        figure.legend(handles.values(), handles.keys(), title=title or None, loc="outside right upper")


def _outer_labels(axes: list[Axes], columns: int) -> None:
    """Axis labels only at the left and the bottom of the grid."""
    for index, ax in enumerate(axes):
        if index % columns:
            ax.set_ylabel("")
        if index + columns < len(axes):
            ax.set_xlabel("")


def _rendered(figure: Figure, name: str, title: str, caption: str) -> Picture:
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    # Straight to the canvases: `savefig` draws everything twice.  The first draw does the layout, the second
    # file keeps it.
    figure.set_facecolor("white")
    figure.set_dpi(mpl.rcParams["savefig.dpi"])
    png = io.BytesIO()
    draw: Any = FigureCanvasAgg(figure)
    draw.print_png(png, metadata={"Software": None}, pil_kwargs={"compress_level": 4})
    figure.set_layout_engine("none")
    figure.set_facecolor("none")
    return Picture(name, title, caption, svg.themed(figure, name), png.getvalue())


def _by_category(categories: pd.DataFrame, found: list[panels.Panel]) -> list[Picture | None]:
    """Speed-up and acceptance by prompt category, one panel a concurrency."""
    if categories.empty or categories["category"].nunique() < 2:
        return []
    parts = []
    for panel in found:
        rows = panels.of_cells(categories, panel.cells)
        levels = panels.concurrencies(panels.measured(rows))
        levels = panels.spread(levels, 4 if len(found) == 1 else 2)
        for concurrency in levels:
            title = ", ".join(word for word in (panel.title, f"concurrency {concurrency}") if word)
            parts.append(Part(title, rows[rows["concurrency"].eq(concurrency)]))
    with_pairs = [part for part in parts if len(panels.speedups(part.rows, "per_user_tok_s", ("category",)))]
    # Without a baseline the speeds themselves still show what a median over mixed prompts hides.
    alone = [] if with_pairs else parts
    return [
        _lines("category_speed", "Per-user speed by prompt category", alone, "per_user_tok_s",
               figures.category_speed,
               "No baseline was measured. A median over mixed prompts hides how the categories differ.",
               "category"),
        _lines("category_speedup", "Per-user speed by prompt category, relative to the baseline", with_pairs,
               "per_user_tok_s", figures.category_speedup,
               "1 is the baseline of the same category. Text that repeats its prompt gains; open text can "
               "lose. A median over mixed prompts hides this.", "category"),
        _lines("category_acceptance", "Acceptance length by prompt category", parts, "al",
               figures.category_acceptance,
               "Why the categories differ: how many tokens a step commits in each.", "category"),
    ]  # fmt: skip


def _histograms(results: Results, found: list[panels.Panel]) -> Picture | None:
    """Histogram of accepted tokens a step, at the smallest concurrency of each panel."""
    keys = ("sweep_id", "host", "configuration_id", "repeat", "cell_id")
    counted = pd.DataFrame(
        [
            {**{key: getattr(cell, key) for key in keys}, "anchor": cell.anchor, "budget": cell.budget,
             "concurrency": cell.concurrency, "accepted": accepted, "steps": steps}
            for cell in results.cell_records
            if cell.status == "ok" and cell.acceptance is not None
            for accepted, steps in enumerate(cell.acceptance.histogram or [])
        ]
    )  # fmt: skip
    if counted.empty:
        return None
    parts = []
    for panel in found:
        rows = panels.of_cells(counted, panel.cells)
        for concurrency in panels.concurrencies(rows)[:1]:
            title = ", ".join(word for word in (panel.title, f"concurrency {concurrency}") if word)
            parts.append(Part(title, rows[rows["concurrency"].eq(concurrency)]))
    levels = _budgets(parts)
    parts = [Part(part.title, part.rows[part.rows["budget"].isin(levels)]) for part in parts]
    return _multiples(
        "acceptance_histogram",
        "Accepted tokens a step",
        "How many drafted tokens the target accepted in one step. Weight at 0 is work for nothing; weight at the "
        "right end says that a larger budget could gain.",
        parts,
        lambda rows, ax, _: figures.acceptance_histogram(rows, ax=ax, levels=levels),
        "budget",
    )


def _rows_of_panel(frame: pd.DataFrame, panel: panels.Panel) -> pd.DataFrame:
    """Rows of the verdict frame that belong to a panel."""
    keys = ["sweep_id", "host", "configuration_id", "concurrency"]
    return frame.merge(panel.cells[keys].drop_duplicates(), on=keys, how="inner")


def _speedups(verdicts: pd.DataFrame, found: list[panels.Panel]) -> Picture | None:
    parts = []
    for panel in found:
        rows = _rows_of_panel(verdicts, panel)
        if (rows["ratio"].notna() & rows["budget"].ne(0)).any():
            parts.append(Part(panel.title, rows))
    width, height, most = _map_size(parts)
    return _multiples(
        "speedup_map",
        "Speed-up over the baseline",
        "System tok/s over that of the baseline at the same concurrency. Purple is faster, brown slower.",
        parts,
        lambda rows, ax, _: figures.speedup_map(rows, ax=ax),
        width_in=width,
        height_in=height,
        alone=(width + 1.0, height + 0.9),
        most=most,
    )


def _map_size(parts: list[Part]) -> tuple[float, float, int]:
    """Width and height of one map in inches, and how many of them a picture holds."""
    columns = max((part.rows["budget"].nunique() for part in parts), default=1)
    levels = max((part.rows["concurrency"].nunique() for part in parts), default=1)
    many = columns > maps.MOST_WORDY
    width = min(0.42 * columns + 1.0, WIDEST_IN - 1.5) if many else max(3.7, 1.15 * columns + 0.6)
    return width, max(2.4, (0.36 if many else 0.62) * levels + 1.0), MOST_WIDE_MAPS if many else MOST_PANELS


def _pareto(parts: list[Part]) -> Picture | None:
    usable = [part for part in parts if _has(part.rows, "system_tok_s") and _has(part.rows, "per_user_tok_s")]
    usable = [part for part in usable if panels.measured(part.rows)["budget"].nunique() > 1]
    levels = _budgets(usable)
    return _multiples(
        "pareto",
        "Per-user against system throughput",
        "Right is better for one user, up for the machine. What lies on the pale band is beaten by nothing else.",
        usable,
        lambda rows, ax, _: figures.pareto(rows, ax=ax, levels=levels),
        "budget",
        alone=(7.4, 4.6),
    )


def _failure_map(parts: list[Part]) -> Picture | None:
    # What the plan skipped is told in words; a map is for what was run.
    interesting = [part for part in parts if not part.rows["status"].isin(["ok", "skipped"]).all()]
    if not interesting:
        return None
    families = maps.failure_families(pd.concat([part.rows for part in interesting]))
    width, height, most = _map_size(interesting)
    return _multiples(
        "failure_map",
        "What ran and what failed",
        "Every cell of the plan: system tok/s where it ran, else the status or the failure class.",
        interesting,
        lambda rows, ax, _: figures.failure_map(rows, ax=ax, families=families),
        width_in=width,
        height_in=height,
        alone=(width + 2.0, height + 0.9),
        most=most,
    )


def _by_position(positions: pd.DataFrame, found: list[panels.Panel]) -> list[Picture | None]:
    if positions.empty:
        return []
    parts = []
    for panel in found:
        rows = panels.of_cells(positions, panel.cells)
        rows = rows[rows["status"].eq("ok") & rows["rate"].notna()]
        for concurrency in panels.concurrencies(rows)[:1]:
            title = ", ".join(word for word in (panel.title, f"concurrency {concurrency}") if word)
            parts.append(Part(title, rows[rows["concurrency"].eq(concurrency)]))
    levels = _budgets(parts)
    parts = [Part(part.title, part.rows[part.rows["budget"].isin(levels)]) for part in parts]
    return [
        _multiples(
            "acceptance_by_position",
            "Acceptance by draft position",
            "Share of drafts whose tokens were accepted up to this position. Where it nears 0, more budget "
            "buys nothing.",
            parts,
            lambda rows, ax, _: figures.acceptance_by_position(rows, ax=ax, levels=levels),
            "budget",
        )
    ]


def _drift(cells: pd.DataFrame, noise_floor: float | None) -> Picture | None:
    anchors = panels.measured(cells[cells["anchor"].notna()])
    if anchors.groupby(["host", "concurrency"]).size().max() is None or len(anchors) < 2:
        return None
    parts = [
        Part(str(host) if anchors["host"].nunique() > 1 else "", rows) for host, rows in panels.groups(anchors, "host")
    ]
    return _multiples(
        "drift",
        "Drift of the anchors",
        "The same configuration measured again during the sweep: what moves here is not an effect of a budget.",
        parts,
        lambda rows, ax, _: figures.drift(rows, ax=ax, noise_floor=noise_floor),
        "concurrency",
        alone=(7.4, 3.4),
    )


def _gpu(
    cells: pd.DataFrame, column: str, name: str, title: str, draw: Callable[..., Axes], caption: str
) -> Picture | None:
    rows = cells[cells[column].notna() & cells["window_start_unix_s"].notna()]
    if rows.empty:
        return None
    parts = [Part(str(host) if rows["host"].nunique() > 1 else "", part) for host, part in panels.groups(rows, "host")]
    return _multiples(
        name, title, caption, parts, lambda part, ax, _: draw(part, ax=ax), "concurrency", alone=(7.4, 3.4)
    )


def _timeline(results: Results) -> Picture | None:
    phases = results.phases
    if phases.empty:
        return None
    keys = ["sweep_id", "host", "configuration_id", "repeat"]
    overheads = results.configurations[[*keys, "anchor", "overhead_s", "origin"]]
    joined = phases.assign(anchor_key=phases["anchor"].fillna("")).merge(
        overheads.assign(anchor_key=overheads["anchor"].fillna(""))
        .drop(columns="anchor")
        .drop_duplicates([*keys, "anchor_key"]),
        on=[*keys, "anchor_key"],
        how="left",
    )
    with mpl.rc_context(rc=style.parameters()):
        ax = figures.timeline(joined)
        figure = ax.get_figure(root=True)
        assert figure is not None
        return _rendered(
            figure,
            "timeline",
            "Time line of the sweep",
            "One bar a restart of the engine. Overhead: wall time less engine start less measuring.",
        )
