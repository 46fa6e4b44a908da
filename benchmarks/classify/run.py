"""Quality, invariance, grouping and speed of the classifier: ``python benchmarks/classify/run.py``.

Run from the repository's root. ``--size-mb`` sets the size of the log for the speed (1000);
``--skip-speed`` leaves the speed out.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from grouping import compare
from quality import invariance, quality
from speed import EXPECTED, drain, grep, measure, write_log


def print_quality() -> None:
    result = quality()
    print(f"cases that show their cause: {result.cases}, of which {result.negatives} are healthy")
    print(f"  exact class {result.exact / result.cases:.1%}, family {result.family / result.cases:.1%}, ", end="")
    print(f"phase {result.phase / result.cases:.1%}, false alarms {result.false_alarms}")
    for line in result.wrong:
        print(f"  wrong: {line}")


def print_invariance() -> None:
    result = invariance()
    print(f"variants: {result.variants}, same class {result.same / result.variants:.2%}")
    for name, count in result.changed.most_common():
        print(f"  changed by {name}: {count}")


def print_grouping() -> None:
    for grouping in compare():
        print(f"grouping as if unknown, by {grouping.name}: ", end="")
        print(f"{grouping.together:.1%} of pairs of one failure together, {grouping.apart:.1%} of two apart")


def print_speed(megabytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log, quarter = Path(folder) / "log", Path(folder) / "quarter"
        write_log(log, megabytes)
        write_log(quarter, megabytes // 4)
        for name in ("hyperscan", "python"):
            whole, part = measure(log, name), measure(quarter, name)
            right = "right" if whole["class"] == part["class"] == EXPECTED else f"WRONG: {whole['class']}"
            speed = log.stat().st_size / 1e6 / float(whole["elapsed_s"])
            growth = float(whole["elapsed_s"]) / float(part["elapsed_s"])
            print(f"{name}: {speed:.0f} MB/s on {megabytes} MB, peak {float(whole['peak_mb']):.0f} MB, ", end="")
            print(f"4 times the log takes {growth:.1f} times as long, class {right}")
        seconds, used, total = grep(quarter)
        print(f"grep -E -f, {used} of {total} expressions: {quarter.stat().st_size / 1e6 / seconds:.0f} MB/s")
        sample_mb = min(20, megabytes)
        drained = drain(log, sample_mb)
        print("drain3: not installed" if drained is None else f"drain3: {sample_mb / drained:.1f} MB/s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size-mb", type=int, default=1000)
    parser.add_argument("--skip-speed", action="store_true")
    options = parser.parse_args()
    print_quality()
    print_invariance()
    print_grouping()
    if not options.skip_speed:
        print_speed(options.size_mb)
    return 0


if __name__ == "__main__":
    sys.exit(main())
