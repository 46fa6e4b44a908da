"""Which program wrote a log."""

from __future__ import annotations

import re

_MARKS = (
    ("sglang", re.compile(r"sglang|sgl_kernel|sgl-|#running-req|Scheduler hit an exception|\bTP\d+\] ")),
    ("vllm", re.compile(r"\bvllm\b|EngineCore|APIServer pid=|Worker_TP|vLLM|RayWorkerVllm|VllmWorker")),
    ("llama.cpp", re.compile(r"llama_|llama-server|LLAMA_ARG|ggml|gguf_|\.gguf|\d+\.\d\d\.\d{3}\.\d{3} [IWED] ")),
    ("trtllm", re.compile(r"TensorRT-LLM|tensorrt_llm|Executor creation failed")),
    ("ansible", re.compile(r"PLAY \[|TASK \[|fatal: \[|UNREACHABLE! =>|FAILED! =>|ansible")),
    ("kernel", re.compile(r"NVRM: |oom-kill:|invoked oom-killer|Out of memory: Killed process")),
    ("systemd", re.compile(r"systemd\[\d+\]|\.service: ")),
    ("driver", re.compile(r"NVML|nvidia-smi|Clocks (?:Event|Throttle) Reasons")),
)
# A play or a unit's journal quotes the engine; the engine never quotes them.
_FRAMES = ("ansible",)


def engine_of(text: str) -> str | None:
    """``sglang``, ``vllm``, ``llama.cpp``, ``trtllm``, ``ansible``, ``kernel``, ``systemd``, ``driver``."""
    counts = {name: len(pattern.findall(text)) for name, pattern in _MARKS}
    for frame in _FRAMES:
        if counts[frame] >= 2:
            return frame
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] else None
