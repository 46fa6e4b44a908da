"""``python -m analysis.classify LOG... [--json] [--strict]``"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from analysis.classify.classifier import classify_files
from analysis.classify.source import UnusableLog
from analysis.classify.verdict import Verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """0: done; 1: something failed and --strict was given; 2: unusable input."""
    options = _parser().parse_args(arguments)
    failed = False
    for path in options.logs:
        try:
            name, verdict = classify_files([path], options.prefilter)[0]
        except UnusableLog as error:
            print(f"classify: {error}", file=sys.stderr)
            return 2
        failed = failed or verdict.failed
        text = json.dumps({"path": name, **verdict.to_dict()}) if options.json else _readable(name, verdict)
        try:
            print(text, flush=True)
        except BrokenPipeError:  # `| head`: nothing is left to say, also not at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
    return 1 if failed and options.strict else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.classify",
        description="Say what made each log's run fail. Text, journald JSON, gzip or zstd; - is standard input.",
        epilog="Exit status: 0 done, 1 something failed (with --strict), 2 unusable input.",
    )
    parser.add_argument("logs", nargs="+", metavar="LOG", help="a log file; several are independent runs")
    parser.add_argument("--json", action="store_true", help="one JSON object a file")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if any log shows a failure")
    parser.add_argument(
        "--prefilter",
        choices=("auto", "hyperscan", "python"),
        default="auto",
        help="how candidate lines are found; the answers are the same (default: auto)",
    )
    return parser


def _readable(path: str, verdict: Verdict) -> str:
    lines = [f"{path}: {verdict.klass}"]
    about = [verdict.phase, verdict.engine, verdict.rank, verdict.outcome, "pointer" if verdict.pointer else None]
    lines[0] += "  (" + ", ".join(part for part in about if part) + ")"
    lines += [f"  {line.source}:{line.line}: {line.text[:300]}" for line in verdict.evidence]
    if verdict.advice:
        lines.append(f"  advice: {verdict.advice}")
    if verdict.retry:
        lines.append(f"  retry: {verdict.retry}")
    lines += [f"  not {other.klass}: {other.why}" for other in verdict.alternatives]
    lines += [f"  {note.kind} {note.klass}: {note.text}" for note in verdict.notes]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
