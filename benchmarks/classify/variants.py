"""The same failure in other clothes: what a log looks like after journald, exports, terminals and ranks.

Each variant is a function of a log and a seeded random generator; the class of the log must not change.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

LOGS = Path(__file__).parents[2] / "tests" / "data" / "failures"
NOISE_LINES = 10_000
ENGINES = ("sglang", "vllm", "llama.cpp", "trtllm", "other")

CONSEQUENCES = (
    "[2026-06-01 10:30:00] Received sigquit from a child process. It usually means the child failed.",
    "[2026-06-01 10:30:00] SIGQUIT received. signum=None, frame=None. It usually means one child failed.",
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    "Jun 01 10:30:02 host systemd[1]: engine.service: Main process exited, code=exited, status=1/FAILURE",
    "Jun 01 10:30:02 host systemd[1]: engine.service: Failed with result 'exit-code'.",
)


@dataclass(frozen=True)
class Case:
    """A log with its class (tests/data/failures/NOTICE.md says where it comes from)."""

    id: str
    engine: str
    klass: str
    phase: str
    log: str
    insufficient: bool

    @property
    def negative(self) -> bool:
        return self.klass == "none"


def load_cases(path: Path = LOGS / "cases.jsonl") -> list[Case]:
    rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return [
        Case(
            id=row["id"],
            engine=row["engine"],
            klass=row["klass"],
            phase=row["phase"],
            log=row["log"],
            insufficient=row.get("log_only") == "insufficient",
        )
        for row in rows
    ]


def healthy_noise(generator: random.Random, lines: int = NOISE_LINES) -> str:
    """Lines of a real server at work, in their order, over and over."""
    source = (LOGS / "logs" / "h200-healthy-ngram_b8_k4.log").read_text(encoding="utf-8", errors="replace")
    work = [line for line in source.split("\n") if "Decode batch" in line or "HTTP/1.1" in line]
    start = generator.randrange(len(work))
    return "\n".join(work[(start + index) % len(work)] for index in range(lines)) + "\n"


def journald(log: str, _: random.Random) -> bytes:
    return _each(log, lambda line: f"Jun 01 10:14:22 gpu1 engine[4711]: {line}")


def journald_local_month(log: str, _: random.Random) -> bytes:
    return _each(log, lambda line: f"Mär 03 10:14:22 gpu1 engine[4711]: {line}")


def rfc3339(log: str, _: random.Random) -> bytes:
    return _each(log, lambda line: f"2026-06-01T10:14:22.123456789Z {line}")


def journald_json(log: str, _: random.Random) -> bytes:
    record = {"__REALTIME_TIMESTAMP": "1780308862000000", "SYSLOG_IDENTIFIER": "engine", "_PID": "4711"}
    return _each(log, lambda line: json.dumps({**record, "_HOSTNAME": "gpu1", "MESSAGE": line}))


def journald_json_of_bytes(log: str, _: random.Random) -> bytes:
    """A message with control characters is exported as a list of byte values."""

    def exported(line: str) -> str:
        message = list(f"\x1b[31m{line}\x1b[0m".encode())
        return json.dumps({"__REALTIME_TIMESTAMP": "1780308862000000", "MESSAGE": message})

    return _each(log, exported)


def escaped_json(log: str, _: random.Random) -> bytes:
    return json.dumps({"changed": False, "stdout": log}).encode()


def ansi(log: str, _: random.Random) -> bytes:
    return _each(log, lambda line: f"\x1b[36m(RayWorker pid=5085)\x1b[0m {line}")


def ansi_without_esc(log: str, _: random.Random) -> bytes:
    return _each(log, lambda line: f"[36m(RayWorker pid=5085)[0m {line}")


def crlf(log: str, _: random.Random) -> bytes:
    return log.replace("\n", "\r\n").encode()


def progress_bars(log: str, _: random.Random) -> bytes:
    bar = "Capturing batches (bs=64 avail_mem=64.46 GB):   8%|8         | 1/12 [00:00<00:07,  1.43it/s]"
    return _each(log, lambda line: f"{bar}\r{bar}{line}")


def two_ranks(log: str, _: random.Random) -> bytes:
    lines = log.split("\n")
    doubled = (f"(Worker_TP{rank} pid={900 + rank}) {line}" for line in lines for rank in (0, 1))
    return "\n".join(doubled).encode()


def between_a_healthy_rank(log: str, generator: random.Random) -> bytes:
    """Another rank goes on working while this one fails."""
    work = healthy_noise(generator, 64).replace("] Decode", " TP1] Decode").split("\n")
    lines = log.split("\n")
    return "\n".join(part for index, line in enumerate(lines) for part in (line, work[index % 64])).encode()


def json_lines(log: str, _: random.Random) -> bytes:
    return _each(log, lambda line: json.dumps({"ts": "2026-06-01T10:14:22Z", "level": "INFO", "msg": line}))


def container(log: str, _: random.Random) -> bytes:
    return _each(log, lambda line: f"2026-06-01T10:14:22.123456789Z stderr F {line}")


def compose(log: str, _: random.Random) -> bytes:
    return _each(log, lambda line: f"engine-1  | {line}")


def cut_begin(log: str, _: random.Random) -> bytes:
    return log[3:].encode()


def cut_left(log: str, _: random.Random) -> bytes:
    return _each(log, lambda line: line[1:] if line.startswith("[20") else line)


def consequences_after(log: str, _: random.Random) -> bytes:
    return (log.rstrip("\n") + "\n" + "\n".join(CONSEQUENCES) + "\n").encode()


def noise_before(log: str, generator: random.Random) -> bytes:
    return (healthy_noise(generator) + log).encode()


def noise_after(log: str, generator: random.Random) -> bytes:
    return (log.rstrip("\n") + "\n" + healthy_noise(generator)).encode()


def noise_around(log: str, generator: random.Random) -> bytes:
    return (healthy_noise(generator) + log.rstrip("\n") + "\n" + healthy_noise(generator)).encode()


def after_a_huge_line(log: str, _: random.Random) -> bytes:
    return ("x" * 1_500_000 + "\n" + log).encode()


def gzipped(log: str, _: random.Random) -> bytes:
    return gzip.compress(log.encode(), mtime=0)


Variant = Callable[[str, random.Random], bytes]
VARIANTS: tuple[Variant, ...] = (
    journald, journald_local_month, rfc3339, journald_json, journald_json_of_bytes, escaped_json, ansi,
    ansi_without_esc, crlf, progress_bars, two_ranks, between_a_healthy_rank, json_lines, container, compose,
    cut_begin, cut_left, consequences_after, noise_before, noise_after, noise_around, after_a_huge_line,
    gzipped,
)  # fmt: skip

# A log that recovers by later work, or shows a run without a draft, means something else once work is
# added to it; a healthy log with the signs of a failure is no healthy log.
CHANGED_BY_WORK = ("serve.hang.health_failed", "serve.spec.zero_acceptance")


def applies(variant: Variant, case: Case, tier: int | None) -> bool:
    """Whether the variant leaves the meaning of the log as it is."""
    if variant is consequences_after:
        return not case.negative and tier != 4
    if variant is two_ranks:
        return case.engine in ENGINES
    if variant is between_a_healthy_rank and case.engine not in ENGINES:
        return False
    if variant in (noise_after, noise_around, between_a_healthy_rank):
        return case.klass not in CHANGED_BY_WORK
    return True


def variants_of(case: Case, tier: int | None, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of every variant that applies to a case."""
    for variant in VARIANTS:
        if applies(variant, case, tier):
            yield variant.__name__, variant(case.log, random.Random(f"{seed}/{case.id}/{variant.__name__}"))


def _each(log: str, change: Callable[[str], str]) -> bytes:
    return "\n".join(change(line) for line in log.split("\n")).encode()
