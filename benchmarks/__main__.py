"""Run every benchmark: `make bench`.  Each also runs alone; benchmarks/README.md says how."""

from __future__ import annotations

import os
import subprocess
import sys

COMMANDS = (
    ("classifier", ["benchmarks/classify/run.py"]),
    ("report", ["benchmarks/report/measure.py"]),
    ("sweep", ["-m", "benchmarks.sweep"]),
)


def main() -> int:
    failed = 0
    for name, command in COMMANDS:
        print(f"== {name}", flush=True)
        if name == "sweep" and os.geteuid() != 0:
            print("not run: booting a host needs root (sudo .venv/bin/python -m benchmarks.sweep)")
            continue
        failed |= subprocess.run([sys.executable, *command], check=False).returncode
    return failed


if __name__ == "__main__":
    sys.exit(main())
