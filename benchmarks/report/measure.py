"""Time and memory of the report command on made results.

    python benchmarks/report/measure.py [--folder DIR] [--repeats N]

Makes three results folders (kept in DIR for the next run), runs the command on each in a process of its own, and
prints a table: wall time of the whole command (imports included), peak memory of its process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.make_results import Plan, Truth, plan_of_cells, write_sweep


@dataclass(frozen=True)
class Case:
    """One results folder and what it may cost."""

    name: str
    plan: Plan
    most_s: float
    most_mib: float | None


def cases() -> list[Case]:
    """1,000 cells with 1 GB of raw logs; 10,000 cells deep (many restarts) and wide (many configurations)."""
    thousand = plan_of_cells(1000, Plan(sweep_id="cells-1000"))
    restarts = thousand.repeats * (1 + len(thousand.budgets) * len(thousand.topks)) + len(thousand.anchors)
    wide = Plan(
        sweep_id="cells-10000-wide",
        budgets=tuple(range(2, 26)),
        topks=(1, 2, 3, 4, 6, 8, 10, 12, 14, 16),
        concurrencies=(1, 2, 4, 8, 16, 32, 64, 128),
        repeats=5,
        requests=8,
    )
    deep = plan_of_cells(10_000, Plan(sweep_id="cells-10000-deep", requests=8))
    return [
        Case("1,000 cells, 1 GB of logs", replace(thousand, log_mib=1024.0 / restarts), 10.0, 600.0),
        Case("10,000 cells, many restarts", deep, 60.0, None),
        Case("10,000 cells, many configurations", wide, 60.0, None),
    ]


def run(command: list[str]) -> tuple[float, float, float]:
    """Wall time and processor time in s, and peak resident memory in MiB, of one command."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.perf_counter() - start
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {process.returncode}")
    return wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Make what is missing, measure, print; exit 1 when a limit was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--folder", type=Path, help="where made results are kept (default: a temporary folder)")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        missed = _help(max(options.repeats, 5))
        for case in cases():
            results = folder / case.plan.sweep_id
            if not (results / case.plan.sweep_id / "sweep.json").exists():
                write_sweep(results, case.plan, Truth(largest_product=128 * 20))
            cells = sum(1 for _ in results.glob("*/*/*/*/cells/*.json"))
            command = [sys.executable, "-m", "analysis.report", str(results), "-o", str(folder / "report")]
            taken = [run(command) for _ in range(options.repeats)]
            wall_s, cpu_s, mib = _summary(taken)
            late = wall_s > case.most_s or (case.most_mib is not None and mib > case.most_mib)
            missed |= late
            limit = f"{case.most_s:g} s" + (f", {case.most_mib:g} MiB" if case.most_mib else "")
            mark = "MISSED" if late else "ok"
            print(
                f"| {case.name} | {cells:,} | {wall_s:.1f} s | {cpu_s:.1f} s | {mib:.0f} MiB | {limit} | {mark} |",
                flush=True,
            )
    return int(missed)


def _summary(taken: list[tuple[float, float, float]]) -> tuple[float, float, float]:
    """Medians of the times, the largest memory."""
    walls, cpus, peaks = zip(*taken, strict=True)
    return statistics.median(walls), statistics.median(cpus), max(peaks)


def _help(repeats: int) -> bool:
    commands = {
        "import analysis": [sys.executable, "-c", "import analysis"],
        "analysis.report --help": [sys.executable, "-m", "analysis.report", "--help"],
    }
    taken = {name: [run(command) for _ in range(repeats)] for name, command in commands.items()}
    missed = False
    print("| what | cells | wall time | processor time | peak memory | limit | |")
    print("|---|---:|---:|---:|---:|---:|---|")
    for name, runs in taken.items():
        wall_s, cpu_s, mib = _summary(runs)
        missed |= wall_s > 0.3
        mark = "MISSED" if wall_s > 0.3 else "ok"
        print(f"| `{name}` | | {wall_s:.2f} s | {cpu_s:.2f} s | {mib:.0f} MiB | 0.3 s | {mark} |", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())
