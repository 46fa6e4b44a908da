"""The report as Markdown for a pull request."""

from __future__ import annotations

import html
import re

from analysis.report import words
from analysis.report.content import Content

MOST_ROWS = 60
_SPECIAL = re.compile(r"([\\`*_{}\[\]|#~])")


def plain(text: str) -> str:
    """Text that Markdown shows as it is, on one line: no markup, no HTML, no mention of a user."""
    escaped = _SPECIAL.sub(r"\\\1", html.escape(" ".join(text.split()), quote=False))
    # A zero-width space: names in a log must not notify anybody.
    return escaped.replace("@", "@\u200b")


def summary(content: Content) -> str:
    """A short Markdown text: notices, answers, table, failures."""
    lines = [f"## Speculative decoding sweep {plain(content.title)}", ""]
    lines.append(", ".join(f"{name} {plain(value)}" for name, value in content.facts))
    lines.append("")
    lines += [
        f"> **{plain(notice)}**" if index == 0 else f"> {plain(notice)}  "
        for index, notice in enumerate(content.notices)
    ]
    lines.append("")
    lines += [f"- {plain(answer)}" for answer in content.answers]
    lines += ["", "| budget | concurrency | system tok/s | per-user tok/s | AL | × baseline | restarts | verdict |"]
    lines.append("|---:|---:|---:|---:|---:|---:|---:|---|")
    variant = ""
    for row in content.rows[:MOST_ROWS]:
        if row.variant != variant:
            variant = row.variant
            lines.append(f"| **{plain(variant)}** | | | | | | | |")
        said = row.status if row.status != "ok" else ("baseline" if row.baseline else row.verdict)
        said += f": {row.detail}" if row.detail else ""
        said += f" ({words.REPLAY})" if row.replay else ""
        cells = [
            str(row.budget),
            str(row.concurrency),
            *(words.number(value) for value in (row.system_tok_s, row.per_user_tok_s, row.al, row.speedup)),
            str(row.restarts),
            plain(said),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    if len(content.rows) > MOST_ROWS:
        lines += ["", f"{len(content.rows) - MOST_ROWS} more rows in cells.csv."]
    if content.failures:
        lines += ["", "**Failures**", ""]
        lines += [
            f"- {plain(card.klass)} ({card.count}): {plain(words.listed(card.hit, 6))}. {plain(card.advice)}"
            for card in content.failures
        ]
    if content.ceilings:
        lines += ["", "**Ceiling**", ""]
        lines += [f"- {plain(entry.sentence)}" for entry in content.ceilings]
    if content.problems:
        lines += ["", f"{words.plural(len(content.problems), 'problem')} while reading: see report.html."]
    return "\n".join(lines) + "\n"
