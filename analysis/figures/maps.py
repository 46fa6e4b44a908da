"""Maps over budget and concurrency: speed-up, and what failed where."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.patches import Patch, Rectangle

from analysis.figures import panels, style


def _grid(ax: Axes, columns: list[int], rows: list[int]) -> None:
    """Frame of a map: budget to the right, concurrency upwards."""
    step = -(-len(columns) // 16)
    labels = ["0\nbaseline" if value == 0 else str(value) for value in columns]
    ax.set_xticks(range(0, len(columns), step), labels[::step])
    ax.set_yticks(range(len(rows)), [str(value) for value in rows])
    ax.set_xlim(-0.5, len(columns) - 0.5)
    ax.set_ylim(-0.5, len(rows) - 0.5)
    ax.grid(False)
    ax.tick_params(length=0)
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.set_xlabel("budget (the engine's own knob)")
    ax.set_ylabel("concurrency")


def _tile(
    ax: Axes, x: int, y: int, color: str, text: str, hatch: str = "", ink: str = "#000000", size: float = 8.0
) -> None:
    tile = Rectangle((x - 0.48, y - 0.47), 0.96, 0.94, facecolor=color, edgecolor="#9aa0a8", linewidth=0.5, hatch=hatch)
    ax.add_patch(tile)
    # A patch of plain fill keeps the hatch from running through the words.
    behind = {"facecolor": color, "edgecolor": "none", "pad": 1.2} if hatch else None
    words = ax.text(x, y, text, ha="center", va="center", fontsize=size, color=ink, linespacing=1.15, bbox=behind)
    # What lies inside the axes need not be asked for its size when the figure is laid out.
    tile.set_in_layout(False)
    words.set_in_layout(False)


def _contrast(color: Any) -> str:
    """Black or white, whichever reads on this colour."""
    red, green, blue = mpl.colors.to_rgb(color)
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "#ffffff"


#: With more columns than this, tiles hold signs instead of words.
MOST_WORDY = 8
SIGNS = {"better": "▲", "worse": "▼", "tie": "=", "underpowered": "?"}


def _size(columns: list[int]) -> float:
    """Font size that fits a tile of a map with so many columns."""
    return 8.0 if len(columns) <= MOST_WORDY else 6.0


@style.styled
def speedup_map(ratios: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """System tok/s relative to the baseline at the same concurrency, number in every tile.

    `ratios`: rows with `budget`, `concurrency`, `ratio`, `n` (restarts) of one panel: of
    `analysis.verdicts.verdicts` (then the verdict is written too) or of `panels.speedups`.  Brown is slower,
    purple faster; a budget without a measured pair has an empty tile.
    """
    columns = [budget for budget in panels.budgets(ratios) if budget != 0]
    levels = panels.concurrencies(ratios)
    known = ratios[ratios["ratio"].notna() & ratios["budget"].ne(0)]
    ax = ax or style.new_axes(max(4.8, 1.1 * len(columns) + 1.6), max(2.4, 0.62 * len(levels) + 1.3))
    spread = max(1.05, float(known["ratio"].map(lambda ratio: max(ratio, 1 / ratio)).max()))
    norm = TwoSlopeNorm(1.0, 1 / spread, spread)
    colors = mpl.colormaps["PuOr"]
    alone = bool(known["n"].max() == 1)
    many = len(columns) > MOST_WORDY
    for row in panels.rows(known):
        color = mpl.colors.to_hex(colors(float(norm(row["ratio"]))))
        said = str(row.get("verdict", ""))
        verdict = "" if alone else f"\n{SIGNS.get(said, '')}" if many else f"\n{said} n={row['n']:.0f}"
        where = columns.index(int(row["budget"])), levels.index(int(row["concurrency"]))
        _tile(ax, *where, color, f"{style.number(row['ratio'])}×{verdict}", ink=_contrast(color), size=_size(columns))
    _grid(ax, columns, levels)
    # Results of other tools often have no baseline: then the smallest width is what others are compared with.
    alone_kind = panels.blank(known, "reference_kind").eq("smallest width").any()
    against = "the smallest verify width (no baseline was measured)" if alone_kind else "baseline"
    style.note(ax, f"number: system tok/s ÷ {against}")
    if alone:
        style.note(ax, style.ONE_RESTART)
    elif many:
        least, most = int(known["n"].min()), int(known["n"].max())
        style.note(ax, f"{least if least == most else f'{least} to {most}'} restarts")
        style.note(ax, ", ".join(f"{sign} {word}" for word, sign in SIGNS.items()))
    else:
        style.note(ax, "n: restarts")
    if panels.replayed(ratios):
        style.note(ax, style.REPLAY)
    return ax


#: Pale fills that take black text in light, dark and print; hatches tell them apart in greyscale.
STATUS_FILL = {
    "ok": ("#d5e8f5", ""),
    "invalid": ("#cfd2d6", "///"),
    "not_applied": ("#e3d3ec", "\\\\\\"),
    "skipped": ("#f3f4f6", ""),
    "pending": ("#ffffff", "..."),
}
CLASS_FILLS = (
    ("#f4b183", "xx"),
    ("#f2d388", "--"),
    ("#e79a9a", "++"),
    ("#c9d8a2", "||"),
    ("#d8b7a0", "oo"),
    ("#c9b8d8", "**"),
)


def failure_families(cells: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """Fill and hatch for each first word of the failure classes (cuda, mem, ...), the commonest first."""
    failed = cells[cells["status"].eq("failed")]
    family = panels.blank(failed, "failure_class").fillna("unknown").astype(str).str.split(".").str[0]
    return {str(name): CLASS_FILLS[index % len(CLASS_FILLS)] for index, name in enumerate(family.value_counts().index)}


def _cut_class(klass: str) -> str:
    """A class on short lines: cuda.cublas.execution_failed -> cuda / cublas / execution_failed."""
    parts = klass.split(".")
    lines = parts if len(parts) < 4 else [parts[0], ".".join(parts[1:-1]), parts[-1]]
    return "\n".join(line if len(line) <= 18 else line[:17] + "…" for line in lines)


@style.styled
def failure_map(
    cells: pd.DataFrame, ax: Axes | None = None, families: dict[str, tuple[str, str]] | None = None
) -> Axes:
    """Every cell of the plan by status and failure class; system tok/s in those that ran.

    `families`: fills from `failure_families` of all panels, so that small multiples share one legend.
    """
    cells = panels.in_blocks(cells)
    columns, levels = panels.budgets(cells), panels.concurrencies(cells)
    ax = ax or style.new_axes(max(4.2, 1.15 * len(columns) + 1.2), max(2.4, 0.62 * len(levels) + 1.5))
    families = failure_families(cells) if families is None else families
    seen: dict[str, tuple[str, str]] = {}
    failed = cells[cells["status"].eq("failed")]
    died_under_load = set(failed.loc[panels.blank(failed, "reached").ne(False), "budget"])
    for (budget, concurrency), rows in panels.groups(cells, ["budget", "concurrency"]):
        status, text, (color, hatch), name = _judge(rows, families, budget in died_under_load)
        seen[name] = (color, hatch)
        if status != "ok" and len(columns) > MOST_WORDY:
            text = "✕" if status == "failed" else status[:3]
        size = _size(columns) if status == "ok" or len(columns) > MOST_WORDY else 6.6
        _tile(ax, columns.index(int(budget)), levels.index(int(concurrency)), color, text, hatch, size=size)
    _grid(ax, columns, levels)
    style.note(ax, "numbers: system tok/s")
    if panels.replayed(cells):
        style.note(ax, style.REPLAY)
    _legend(ax, seen)
    return ax


def _legend(ax: Axes, seen: dict[str, tuple[str, str]]) -> None:
    """Legend of a failure map, beside it."""
    handles = [
        Patch(facecolor=color, edgecolor="#9aa0a8", hatch=hatch, label=name) for name, (color, hatch) in seen.items()
    ]
    ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0)


def _judge(
    rows: pd.DataFrame, families: dict[str, tuple[str, str]], died_under_load: bool
) -> tuple[str, str, tuple[str, str], str]:
    """Status, text, fill and legend name of one tile over its repeats: the worst outcome gives the colour."""
    counts = rows["status"].value_counts()
    total = len(rows)
    for status in ("failed", "not_applied", "invalid", "pending", "skipped", "ok"):
        if status not in counts:
            continue
        bad = int(counts[status])
        share = f"\n{bad} of {total}" if status != "ok" and total > 1 and bad < total else ""
        if status == "failed":
            failed = rows[rows["status"].eq("failed")]
            klass = str(panels.blank(failed, "failure_class").fillna("unknown").mode().iloc[0])
            family = klass.split(".")[0]
            reached = panels.blank(failed, "reached")
            text = "not reached" if died_under_load and reached.eq(False).all() else _cut_class(klass)
            return status, text + share, families.get(family, CLASS_FILLS[0]), f"failed: {family}"
        if status == "ok":
            return status, style.number(float(rows["system_tok_s"].median())), STATUS_FILL["ok"], "ran"
        word = status.replace("_", " ")
        return status, word + share, STATUS_FILL[status], word
    return "pending", "?", STATUS_FILL["pending"], "pending"
