"""Where the same text means different things, its numbers decide (rules P7 and P19)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analysis.classify.findings import Finding

# More than a CUDA context, and more than a driver and its services keep of a GPU: somebody else's memory.
FOREIGN_GIB = 3.0
FOREIGN_SHARE = 0.15

_FREE_OF_TOTAL = re.compile(
    r"(?P<free>\d+(?:\.\d+)?)\s*(?:GiB|GB)?\s*(?:/|of|out of)\s*(?P<total>\d+(?:\.\d+)?)\s*(?:GiB|GB|\))"
)
_BY_TORCH = re.compile(r"(?P<size>[\d.]+)\s+(?P<unit>bytes|KiB|MiB|GiB)\s+is\s+allocated\s+by\s+PyTorch")
_TOTAL = re.compile(r"total\s+capacity\s+of\s+(?P<total>[\d.]+)\s+GiB")
_RACE = re.compile(r"free\s+memory\s+(?P<first>[\d.]+)\s+GiB,?\s+current\s+free\s+memory\s+(?P<then>[\d.]+)")
_GIB = {"bytes": 2**-30, "KiB": 2**-20, "MiB": 2**-10, "GiB": 1.0}
_SENT = re.compile(
    rb"(?:\d+%\|[^\n|]*\|\s*\d+/(?P<bar>\d+) \[|num[_-]prompts?[=: ]+(?P<asked>\d+)"
    rb"|Total requests:\s+(?P<total>\d+))"
)
_SUCCESSFUL = re.compile(r"Successful\s+requests:\s+(?P<count>\d+)")
_IN_CAPTURE = re.compile(r"[Cc]apture\s+(?:[\w-]+\s+){0,3}(?:cuda|CUDA)\s+graphs?\s+failed", re.DOTALL)
_IN_CAPTURE_FRAMES = re.compile(r"cuda_graph_runner\.py|in capture\b|capture_model|_capture_graph|Capturing batches")
_BEFORE_WEIGHTS = re.compile(r"mem_get_info|MemorySnapshot|init_device|init_torch_distributed")
_LOADING = re.compile(r"load_model|load_weights|create_weights|model_loader|loader\.py")


def decided(finding: Finding) -> str | None:
    """The class that the numbers and the place of a finding stand for; None where they clear it."""
    kind = finding.rule.numbers
    if kind == "startup_budget":
        return _startup(finding)
    if kind == "partial":
        return finding.rule.id if _partial(finding) else None
    if kind == "gpu_oom":
        return _gpu_oom(finding)
    return finding.rule.id


def equal_numbers(finding: Finding) -> bool:
    """Whether a profiling race printed the same number twice: then it is a bug, not a race."""
    match = _RACE.search(finding.text + finding.window[-600:])
    return bool(match) and match is not None and match["first"] == match["then"]


def requests_sent(raw: bytes) -> int | None:
    """How many requests the client sent, by its progress bar or its arguments."""
    counts = [int(next(filter(None, match.groups()))) for match in _SENT.finditer(raw)]
    return max(counts, default=None)


def _partial(finding: Finding) -> bool:
    """Fewer successes than requests. A result with no count to compare with is suspected only where the
    number is none that people ask for (not a multiple of 4 or 5): benchmarks are sent in round numbers.
    """
    match = _SUCCESSFUL.search(finding.text)
    if match is None:
        return True
    count = int(match["count"])
    if finding.sent is not None and finding.sent >= count:
        return 0 < count < finding.sent
    return count > 10 and count % 4 != 0 and count % 5 != 0


def _startup(finding: Finding) -> str:
    match = _FREE_OF_TOTAL.search(finding.text)
    if match:
        total, gone = float(match["total"]), float(match["total"]) - float(match["free"])
        if gone > max(FOREIGN_GIB, FOREIGN_SHARE * total):
            return "proc.gpu_occupied"
    return finding.rule.id


def _gpu_oom(finding: Finding) -> str:
    following = finding.following
    text = finding.text + following[:1500]
    if _held_by_others(text):
        return "proc.gpu_occupied"
    frames = finding.window[-2500:]
    if _IN_CAPTURE.search(frames) or _IN_CAPTURE.search(following[:2500]):
        return "mem.gpu.oom_capture"
    if finding.phase == "graph_capture" or _IN_CAPTURE_FRAMES.search(frames[-1500:]):
        return "mem.gpu.oom_capture"
    if _BEFORE_WEIGHTS.search(frames[-700:]) and finding.phase in (None, "unit_start", "serving_under_load"):
        return "proc.gpu_occupied.releasing"
    if finding.phase in ("model_load", "unit_start") or _LOADING.search(frames[-1500:]):
        return "mem.gpu.oom_load"
    return "mem.gpu.oom_runtime"


def _held_by_others(text: str) -> bool:
    """Out of memory while torch itself holds (nearly) nothing of a GPU that is larger."""
    match = _BY_TORCH.search(text)
    if match is None:
        return False
    held_gib = float(match["size"]) * _GIB[match["unit"]]
    total = _TOTAL.search(text)
    return held_gib == 0 or (held_gib < 0.05 and total is not None and float(total["total"]) > 4)
