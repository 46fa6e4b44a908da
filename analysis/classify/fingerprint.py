"""A short name that the same failure has in every cell, on every rank, on every host.

Numbers, addresses, paths and ranks go; the words of the message stay. For faults that surface at
unrelated places between runs (illegal addresses, hardware) only the class counts.
"""

from __future__ import annotations

import hashlib
import re

CLASS_ALONE = ("cuda.illegal_address", "cuda.launch_failure", "gpu.rocm", "hw.", "proc.killed", "serve.hang", "unit.")

_VARIABLE = (
    (re.compile(r"0x[0-9a-fA-F]+"), "<hex>"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "<uuid>"),
    (re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,64}\b"), "<hex>"),
    (re.compile(r"(?:/[\w.@+-]+)+/([\w.@+-]+)"), r"<path>/\1"),
    (re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b"), "<address>"),
    (re.compile(r"\b(?:TP|DP|PP|EP|[Rr]ank ?)\d+\b"), "<rank>"),
    (re.compile(r"\d+(?:[.,]\d+)*"), "<n>"),
    (re.compile(r"\s+"), " "),
)


def masked(text: str) -> str:
    """The text without what changes from run to run."""
    for pattern, replacement in _VARIABLE:
        text = pattern.sub(replacement, text)
    return text.strip()[:200]


def fingerprint(klass: str, text: str) -> str:
    """``class:eight hex digits`` of a class and the masked message."""
    basis = "" if klass.startswith(CLASS_ALONE) else masked(text)
    return f"{klass}:{hashlib.sha256(f'{klass}|{basis}'.encode()).hexdigest()[:8]}"
