"""The report in a terminal: 80 columns are enough, and a pipe gets the same without colours."""

from __future__ import annotations

import shutil
import sys
from typing import TextIO

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from analysis.report import words
from analysis.report.content import Content, Row

#: Most lines of the table; the rest is in cells.csv.
MOST_ROWS = 120
_STYLES = {"failed": "red", "invalid": "yellow", "not applied": "magenta", "skipped": "dim", "pending": "dim"}


def show(content: Content, page: str, stream: TextIO | None = None) -> None:
    """Print the table, what must be known about it, and where the page is."""
    stream = stream or sys.stdout
    width = None if stream.isatty() else max(80, shutil.get_terminal_size((80, 24)).columns)
    console = Console(file=stream, width=width, highlight=False, soft_wrap=False)
    console.print(Text(content.title, style="bold"))
    console.print(_counts(content))
    for notice in content.notices:
        console.print(Text(f"! {notice}", style="yellow"))
    console.print()
    for left_out in _left_out(content.rows):
        console.print(Text(left_out, style="dim"))
    kept = [row for row in content.rows if row.status != "skipped"]
    for index, variant in enumerate(dict.fromkeys(row.variant for row in kept)):
        rows = [row for row in kept if row.variant == variant]
        shown = rows[: max(0, MOST_ROWS - index * 8)]
        if shown:
            console.print(_table(variant, shown))
        if len(rows) > len(shown):
            console.print(f"… {words.plural(len(rows) - len(shown), 'more row')} of {escape(variant)} in cells.csv")
    for answer in content.answers:
        console.print(Text(f"• {answer}"))
    for card in content.failures[:10]:
        console.print(Text.assemble((f"✕ {card.klass}", "red"), f" ×{card.count}: {words.listed(card.hit, 4)}"))
        if card.evidence:
            line = card.evidence[0]
            console.print(Text(f"  {line.source}:{line.line}: {line.text[:300]}", style="dim"))
        if card.advice:
            console.print(Text(f"  {card.advice}"))
    for entry in content.ceilings:
        console.print(Text(f"▲ {entry.sentence}"))
    for problem in content.problems[:10]:
        console.print(Text(f"! {problem}", style="yellow"))
    if len(content.problems) > 10:
        console.print(f"! {len(content.problems) - 10} more problems in the report")
    console.print()
    # The path is last and on one line of its own, to be copied or read by a script.
    console.print(Text(f"Report: {page}"), soft_wrap=True)


def _left_out(rows: list[Row]) -> list[str]:
    """What the plan skipped, one line a reason; the page lists every cell."""
    reasons: dict[str, int] = {}
    for row in rows:
        if row.status == "skipped":
            reasons[row.detail] = reasons.get(row.detail, 0) + 1
    lines = [f"skipped, {words.plural(count, 'cell')}: {reason}" for reason, count in reasons.items()]
    return lines if len(lines) <= 4 else [*lines[:3], f"skipped for {len(lines) - 3} more reasons: see the report"]


def _counts(content: Content) -> Text:
    parts = [f"{amount:,} {status.replace('_', ' ')}" for status, amount in content.counts.items() if amount]
    return Text("cells: " + ", ".join(parts))


def _table(variant: str, rows: list[Row]) -> Table:
    table = Table(title=escape(variant) if variant else None, title_justify="left", box=None, pad_edge=False)
    table.add_column("budget", justify="right")
    table.add_column("conc.", justify="right")
    table.add_column("tok/s", justify="right")
    table.add_column("per user", justify="right")
    table.add_column("AL", justify="right")
    table.add_column("× base", justify="right")
    table.add_column("n", justify="right")
    table.add_column("verdict or status", overflow="fold")
    for row in rows:
        table.add_row(
            str(row.budget),
            str(row.concurrency),
            words.number(row.system_tok_s),
            words.number(row.per_user_tok_s),
            words.number(row.al),
            words.number(row.speedup),
            str(row.restarts),
            _status(row),
        )
    return table


def _status(row: Row) -> Text:
    if not row.status.startswith("ok"):
        style = next((style for name, style in _STYLES.items() if row.status.startswith(name)), "")
        return Text(f"{row.status}: {row.detail}" if row.detail else row.status, style=style)
    text = "baseline" if row.baseline else row.verdict
    return Text(f"{text} (replay)" if row.replay else text)
