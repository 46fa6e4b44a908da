"""Quality, invariance, grouping and speed of the classifier: ``python benchmarks/classify/run.py``.

Run from the repository's root. ``--size-mb`` sets the size of the log for the speed (1000);
``--skip-speed`` leaves the speed out. ``--cases PATH`` measures only the quality on other cases
(JSON lines with ``id``, ``klass`` and ``log``), such as tests/data/failures/reworded.jsonl.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median

from grouping import compare
from quality import invariance, quality
from speed import EXPECTED, drain, grep, measure, write_log

from analysis.classify import classify


def print_quality() -> None:
    result = quality()
    print(f"cases that show their cause: {result.cases}, of which {result.negatives} are healthy")
    print(f"  exact class {result.exact / result.cases:.1%}, family {result.family / result.cases:.1%}, ", end="")
    print(f"phase {result.phase / result.cases:.1%}, false alarms {result.false_alarms}")
    for line in result.wrong:
        print(f"  wrong: {line}")


def print_quality_of(path: Path) -> None:
    """Exact class, family and false alarms on a file of JSON lines; every miss with its answer."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if not rows:
        raise ValueError("no case in it")
    answers = [(row["id"], row["klass"], classify({"log": row["log"].encode()}).klass) for row in rows]
    exact = sum(got == wanted for _, wanted, got in answers)
    family = sum(got.split(".")[0] == wanted.split(".")[0] for _, wanted, got in answers)
    healthy = [got for _, wanted, got in answers if wanted == "none"]
    print(f"{path}: {len(answers)} cases, of which {len(healthy)} are healthy")
    print(f"  exact class {exact} ({exact / len(answers):.1%}), ", end="")
    print(f"family {family} ({family / len(answers):.1%}), false alarms {sum(got != 'none' for got in healthy)}")
    for name, wanted, got in answers:
        if got != wanted:
            print(f"  wrong: {name}: {wanted} read as {got}")


def print_invariance() -> None:
    result = invariance()
    print(f"variants: {result.variants}, same class {result.same / result.variants:.2%}")
    for name, count in result.changed.most_common():
        print(f"  changed by {name}: {count}")


def print_grouping() -> None:
    for grouping in compare():
        print(f"grouping as if unknown, by {grouping.name}: ", end="")
        print(f"{grouping.together:.1%} of pairs of one failure together, {grouping.apart:.1%} of two apart")


def print_speed(megabytes: int, repeats: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log, quarter = Path(folder) / "log", Path(folder) / "quarter"
        write_log(log, megabytes)
        write_log(quarter, megabytes // 4)
        for name in ("hyperscan", "python"):
            whole = [measure(log, name) for _ in range(repeats)]
            part = [measure(quarter, name) for _ in range(repeats)]
            right = all(run["class"] == EXPECTED for run in whole + part)
            size_mb = log.stat().st_size / 1e6
            cpu_s = median(float(run["cpu_s"]) for run in whole)
            growth = cpu_s / median(float(run["cpu_s"]) for run in part)
            wall_s = median(float(run["elapsed_s"]) for run in whole)
            peak_mb = max(float(run["peak_mb"]) for run in whole)
            print(f"{name}: median of {repeats} runs {size_mb / cpu_s:.0f} MB per CPU second ", end="")
            print(f"({size_mb / wall_s:.0f} MB/s on the clock) on {megabytes} MB, peak {peak_mb:.0f} MB, ", end="")
            print(f"4 times the log takes {growth:.1f} times as long, class {'right' if right else 'WRONG'}")
        seconds, used, total = grep(quarter)
        print(
            f"grep -E -f, {used} of {total} expressions: {quarter.stat().st_size / 1e6 / seconds:.0f} MB per CPU second"
        )
        sample_mb = min(20, megabytes)
        drained = drain(log, sample_mb)
        print("drain3: not installed" if drained is None else f"drain3: {sample_mb / drained:.1f} MB per CPU second")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size-mb", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--skip-speed", action="store_true")
    parser.add_argument("--cases", type=Path, help="JSON lines of id, klass, log: only their quality")
    options = parser.parse_args()
    if options.cases:
        try:
            print_quality_of(options.cases)
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"{options.cases}: expected JSON lines of id, klass and log, came {error!r}", file=sys.stderr)
            return 2
        return 0
    print_quality()
    print_invariance()
    print_grouping()
    if not options.skip_speed:
        print_speed(options.size_mb, options.repeats)
    return 0


if __name__ == "__main__":
    sys.exit(main())
