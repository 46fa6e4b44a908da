"""python -m analysis.report RESULTS: the table, the page, the pictures, the tables.

Exit status: 0 done; 1 with --strict when something that was measured failed; 2 unusable input.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn


class _Parser(argparse.ArgumentParser):
    """Wrong arguments get one line, like every other wrong input."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see --help\n")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = _Parser(
        prog="python -m analysis.report",
        description="Say which budget pays, up to which concurrency, how sure that is, and why the others failed.",
    )
    made.add_argument("results", metavar="RESULTS", type=Path,
                      help="results folder, one sweep of it, or another tool's result file")  # fmt: skip
    made.add_argument("-o", "--output", metavar="DIR", type=Path,
                      help="where the report goes (default: report/ in the sweep's folder)")  # fmt: skip
    made.add_argument("--all", action="store_true", help="all sweeps of the folder (default: the newest)")
    made.add_argument("--json", action="store_true", help="print the report as JSON instead of the table")
    made.add_argument("--strict", action="store_true",
                      help="exit 1 when a cell failed, was invalid or not applied")  # fmt: skip
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    options = parser().parse_args(arguments)
    # Imported only here: --help must not wait for pandas and matplotlib.
    from analysis.report.build import folder_of, write_report
    from analysis.report.terminal import show
    from analysis.results import InputError, load

    try:
        results = load(options.results, "all" if options.all else None)
    except InputError as error:
        print(f"analysis.report: {error}", file=sys.stderr)
        return 2
    if results.cells.empty:
        why = results.problems[0] if results.problems else "expected cell records"
        print(f"analysis.report: {options.results}: no cell could be read: {why}", file=sys.stderr)
        return 2
    folder = options.output or folder_of(results, options.all)
    try:
        report = write_report(results, folder)
    except OSError as error:
        where = error.filename or folder
        print(f"analysis.report: {where}: {error.strerror}; choose a folder with -o DIR", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(report.data, allow_nan=False, ensure_ascii=False))
    else:
        show(report.content, str(report.page))
    return 1 if options.strict and report.content.something_failed else 0


if __name__ == "__main__":
    sys.exit(main())
