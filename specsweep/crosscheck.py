"""Our client's and a native tool's numbers of the same service, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specsweep.record import Cell, Quantiles

#: Further apart than this, the two did not measure the same thing; less is noise of one short run each.
ALIKE = 0.1


def _median(values: Quantiles | None) -> float | None:
    return values.median if values else None


def _al(cell: Cell) -> float | None:
    return cell.acceptance.al_token_weighted if cell.acceptance else None


ROWS: tuple[tuple[str, Callable[[Cell], float | None]], ...] = (
    ("system tok/s", lambda cell: cell.system_tok_s),
    ("TTFT ms, median", lambda cell: _median(cell.ttft_ms)),
    ("TPOT ms, median", lambda cell: _median(cell.tpot_ms)),
    ("completed", lambda cell: float(cell.requests_completed)),
    ("acceptance length", _al),
)


def table(ours: Sequence[Cell], theirs: Sequence[Cell]) -> str:
    """Text: at every concurrency one line a number with both values and theirs / ours.

    A cell that is not `ok` shows its status and reason, and no ratio is made of it.
    """
    by_concurrency = {cell.concurrency: cell for cell in theirs}
    lines = []
    for mine in ours:
        other = by_concurrency[mine.concurrency]
        lines.append(
            f"concurrency {mine.concurrency}, {mine.requests_asked} requests each, of {mine.output_tokens} tokens"
        )
        lines.append(f"  {'':18} {'specsweep':>12} {other.source:>26} {'ratio':>7}")
        both = mine.status == "ok" and other.status == "ok"
        for name, value in ROWS:
            left, right = value(mine), value(other)
            ratio = f"{right / left:.3f}" if both and left and right is not None else ""
            apart = both and left and right is not None and abs(right / left - 1) > ALIKE
            lines.append(f"  {name:18} {_shown(left):>12} {_shown(right):>26} {ratio:>7}{' apart' if apart else ''}")
        for cell in (mine, other):
            if cell.status != "ok":
                lines.append(f"  {cell.source}: {cell.status}: {cell.reason}")
            lines += [f"  {cell.source}: {remark}" for remark in cell.remarks]
    lines.append(f"apart: by more than {ALIKE:.0%}; one run each, on prompts of its own: some per cent are noise")
    return "\n".join(lines)


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value == int(value) else f"{value:.3g}" if value < 100 else f"{value:.1f}"
