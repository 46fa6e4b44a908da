"""Megabytes a second of one core on a healthy log with one failure in it, beside grep and drain3.

CPU seconds are what is compared: other programs on the machine stretch the wall clock. Reading the file
counts (system time).
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from variants import LOGS, load_cases

from analysis.classify import classify
from analysis.classify.rules import load_rules

FAULT_AT = 0.7  # of the log
EXPECTED = "cuda.cublas.execution_failed"


def write_log(path: Path, megabytes: int) -> None:
    """A made-up long run: the recorded lines of a real server at work repeated, one failure at 70 %."""
    source = (LOGS / "logs" / "h200-healthy-ngram_b8_k4.log").read_bytes().split(b"\n")
    ready = next(index for index, line in enumerate(source) if b"fired up" in line)
    marks = (b"Decode batch", b"Prefill batch", b"HTTP/1.1")
    block = b"\n".join([line for line in source if any(mark in line for mark in marks)] * 30) + b"\n"
    fault = next(case for case in load_cases() if case.id == "sgl-cublas-exec-failed-19081").log.encode()
    written, failed = 0, False
    with path.open("wb") as handle:
        handle.write(b"\n".join(source[: ready + 1]) + b"\n")
        for turn in range(10**9):
            if written >= megabytes * 1_000_000:
                return
            changed = block.replace(b"(token/s): 1", b"(token/s): %d" % (1 + turn % 97))
            written += handle.write(changed)
            if not failed and written > FAULT_AT * megabytes * 1_000_000:
                failed = bool(handle.write(fault + b"\n"))


def measure(path: Path, prefilter: str) -> dict[str, float | str]:
    """In a process of its own, so that its peak of memory is its own."""
    command = [sys.executable, __file__, str(path), prefilter]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, float | str] = json.loads(done.stdout)
    return result


def grep(path: Path) -> tuple[float, int, int]:
    """CPU seconds of ``grep -c -E -f`` with the expressions that POSIX can express, and how many those are."""
    sources = [e.source for e in load_rules().expressions if e.role in ("any", "before", "after") and not e.loose]
    usable = [text for text in map(_posix, sources) if text is not None]
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as patterns:
        patterns.write("\n".join(usable) + "\n")
        patterns.flush()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = ["grep", "-c", "-a", "-E", "-f", patterns.name, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, env={"LC_ALL": "C"}, check=False)
        if done.returncode == 2:
            raise RuntimeError(f"grep refused the expressions: {done.stderr.strip()}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return cpu_s, len(usable), len(sources)


def _posix(source: str) -> str | None:
    """The expression in POSIX extended syntax, or None where it has no equivalent."""
    if re.search(r"\(\?[!=<]|\\n|\(\?s:|[?*+}]\?", source.replace(r"[^\n]", ".")):
        return None
    text = source.replace(r"[^\n]", ".").replace(r"\d", "[0-9]")
    text = re.sub(r"\(\?(?:[is])?:", "(", text)
    return re.sub(r"\[([^\]]*)\\w([^\]]*)\]", r"[\1A-Za-z0-9_\2]", text)


def drain(path: Path, megabytes: int) -> float | None:
    """CPU seconds of drain3 for the first megabytes of a log; None where it is not installed."""
    try:
        from drain3 import TemplateMiner
    except ImportError:
        return None
    with path.open("rb") as handle:
        lines = handle.read(megabytes * 1_000_000).decode("utf-8", "replace").split("\n")
    miner = TemplateMiner()
    began = time.process_time()
    for line in lines:
        miner.add_log_message(line)
    return time.process_time() - began


if __name__ == "__main__":
    log, name = Path(sys.argv[1]), sys.argv[2]
    start, start_cpu = time.perf_counter(), time.process_time()
    verdict = classify({"engine": log}, prefilter=name)
    elapsed_s, cpu_s = time.perf_counter() - start, time.process_time() - start_cpu
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"class": verdict.klass, "elapsed_s": elapsed_s, "cpu_s": cpu_s, "peak_mb": peak_mb}))
