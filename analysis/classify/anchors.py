"""The literal texts without which an expression cannot match: what the prefilter looks for.

A set of anchors belongs to each expression: a line that holds none of them cannot be where it matches.
Following Cox, "Regular Expression Matching with a Trigram Index" (2012), in its simplest form: the best
run of literal characters that every match must contain, or one for each branch of an alternation.
Anchors are lower case and stay inside one line; a message that wraps over two lines is found by either
half of its words.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

_parser: Any = importlib.import_module("re._parser")

SHORTEST = 4
# Characters that JSON and the shell escape differently: no anchor crosses them.
_BREAKS = frozenset('"\\\n\r\t')
_WORD_GAP = "\x00"
# What healthy logs repeat all the time: taken as an anchor only where nothing better is in sight.
_COMMON = frozenset(
    (
        "attention", "available", "backend", "batch", "buffer", "cache", "checkpoint", "compil", "context",
        "cuda graph", "decod", "device", "draft", "engine", "error", "failed", "graph", "health", "invalid",
        "kv cache", "limit", "loading", "memory", "model", "prefill", "process", "prompt", "request",
        "scheduler", "server", "service", "slots", "speculati", "speculative", "speculative_", "start",
        "support", "target", "timeout", "token", "tokenizer", "tokens", "unknown", "usage", "usage:", "value",
        "worker",
    )
)  # fmt: skip


class NoAnchor(ValueError):
    """An expression that could match without any fixed text: it would slow every log down."""


def spaces_match_wraps(expression: str) -> str:
    """Let each run of spaces (outside a character class) match any white space, line ends included.

    An optional space (followed by ``?`` or ``*``) matches any white space or none.
    """
    parts: list[str] = []
    in_class = False
    position = 0
    while position < len(expression):
        char = expression[position]
        if char == "\\":
            parts.append(expression[position : position + 2])
            position += 2
            continue
        if char == "[":
            in_class = True
        elif char == "]":
            in_class = False
        if char == " " and not in_class:
            while expression[position + 1 : position + 2] == " ":
                position += 1
            optional = expression[position + 1 : position + 2] in ("?", "*")
            parts.append(r"\s*" if optional else r"\s+")
            position += optional
        else:
            parts.append(char)
        position += 1
    return "".join(parts)


def anchors_of(expression: str) -> frozenset[str]:
    """Anchors of an expression (as written, spaces not yet replaced). Raises NoAnchor."""
    tree = _parser.parse(spaces_match_wraps(expression))
    found = _required(tree)
    if not found:
        raise NoAnchor(f"no fixed text of {SHORTEST} characters in {expression!r}: add some")
    return frozenset(half for text in found for half in _halves(text))


def _required(tree: Any) -> frozenset[str]:
    """The best of the literal runs and alternations that stand in sequence in a parsed expression."""
    candidates: list[frozenset[str]] = []
    run = ""
    for op, argument in tree:
        name = str(op)
        if name == "LITERAL" and chr(argument) not in _BREAKS:
            run += chr(argument).lower()
            continue
        if name == "MAX_REPEAT" and _is_gap(argument):
            run += _WORD_GAP
            continue
        candidates.extend(_as_set(run))
        run = ""
        if name == "SUBPATTERN":
            candidates.append(_required(argument[-1]))
        elif name == "BRANCH":
            branches = [_required(branch) for branch in argument[1]]
            if all(branches):
                candidates.append(frozenset().union(*branches))
        elif name in ("MAX_REPEAT", "MIN_REPEAT") and argument[0] >= 1:
            candidates.append(_required(argument[2]))
    candidates.extend(_as_set(run))
    return max(candidates, key=worth, default=frozenset())


def _is_gap(argument: Any) -> bool:
    low, _high, body = argument
    return bool(low == 1 and len(body) == 1 and str(body[0]) == "(IN, [(CATEGORY, CATEGORY_SPACE)])")


def _as_set(run: str) -> list[frozenset[str]]:
    text = run.strip(_WORD_GAP)
    return [frozenset([text])] if len(text) >= SHORTEST else []


def worth(found: frozenset[str]) -> tuple[int, int]:
    """How good anchors are: the length of the shortest, and fewer before more."""
    shortest = min((SHORTEST if text.replace(_WORD_GAP, " ") in _COMMON else len(text) for text in found), default=0)
    return (min(shortest, 12), -len(found))


def _halves(text: str) -> list[str]:
    """Two overlapping halves of a message of three words or more: one break cannot split both."""
    words = re.split(_WORD_GAP, text)
    middle = len(words) // 2
    halves = [" ".join(words[: middle + 1]), " ".join(words[middle:])]
    if len(words) < 3 or min(len(half) for half in halves) < 9 or _COMMON.intersection(halves):
        return [" ".join(words)]
    return halves
