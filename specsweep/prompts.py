"""Prompt sets and their slices.

A prompt set is a file of JSON lines with `id`, `category` and `prompt`.  Inside one restart of the engine every
warm-up and load point gets prompts that this process has not seen, the same ones in every configuration:
n-gram drafters and prefix caches remember.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

PROMPTS = Path(__file__).parent.parent / "prompts"


class PromptError(ValueError):
    """A prompt set that cannot be used; the message is one line for the user."""


@dataclass(frozen=True)
class Prompt:
    id: str
    category: str
    text: str


@dataclass(frozen=True)
class PromptSet:
    name: str
    path: Path
    sha256: str
    prompts: tuple[Prompt, ...]

    @property
    def categories(self) -> tuple[str, ...]:
        """Categories in order of first appearance."""
        return tuple(dict.fromkeys(prompt.category for prompt in self.prompts))


def load(name: str) -> PromptSet:
    """The prompt set of a name in prompts/ or of a path.  Raises PromptError with one line."""
    path = Path(name) if "/" in name or name.endswith(".jsonl") else PROMPTS / f"{name}.jsonl"
    try:
        data = path.read_bytes()
    except OSError as error:
        known = ", ".join(sorted(file.stem for file in PROMPTS.glob("*.jsonl"))) or "none"
        raise PromptError(
            f"prompts: expected a name in prompts/ ({known}) or a path to JSON lines; got {name!r}: {error.strerror}"
        ) from None
    prompts: list[Prompt] = []
    seen: set[str] = set()
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise PromptError(f"prompts: {path}: expected UTF-8; byte {error.start} is none: convert the file") from None
    # Not splitlines: JSON lets U+2028 and its like stand inside a string.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
            prompt = Prompt(str(item["id"]), str(item["category"]), item["prompt"])
            if not isinstance(prompt.text, str) or not prompt.text:
                raise ValueError
        except (ValueError, TypeError, KeyError, RecursionError):
            raise PromptError(
                f"prompts: {path}:{number}: expected an object with id, category and a prompt's text; got {line[:60]!r}"
            ) from None
        if prompt.id in seen:
            raise PromptError(f"prompts: {path}:{number}: the id {prompt.id!r} stands there twice")
        seen.add(prompt.id)
        prompts.append(prompt)
    if not prompts:
        raise PromptError(f"prompts: {path} holds no prompt")
    return PromptSet(path.stem, path, hashlib.sha256(data).hexdigest(), tuple(prompts))


@dataclass(frozen=True)
class Slice:
    """Prompts of one load point, as positions in the set."""

    warmup: tuple[int, ...]
    load: tuple[int, ...]
    reused: bool
    """a prompt of this slice was sent before to the same server"""


def deal(prompts: PromptSet, sizes: list[tuple[int, int]], *, reuse: bool = False) -> list[Slice]:
    """Deal (warm-up, load) sizes, one pair a load point, from the set; categories take turns.

    Every prompt is dealt once.  When the set is used up PromptError says how many are needed, or with `reuse`
    the set begins again and the slices are marked.
    """
    need = sum(warmup + load for warmup, load in sizes)
    if need > len(prompts.prompts) and not reuse:
        raise PromptError(
            f"prompts: the load points need {need} different prompts, {prompts.name} has {len(prompts.prompts)}: "
            "give a larger set, fewer requests or concurrencies, or prompts_reuse=true (every cell is then marked)"
        )
    queues = {
        category: [index for index, prompt in enumerate(prompts.prompts) if prompt.category == category]
        for category in prompts.categories
    }
    used = dict.fromkeys(queues, 0)
    order = list(queues)
    reused = False

    def take(count: int) -> tuple[int, ...]:
        nonlocal reused
        taken: list[int] = []
        turn = 0
        while len(taken) < count:
            category = order[turn % len(order)]
            turn += 1
            fresh = used[category] < len(queues[category])
            if not fresh and any(used[other] < len(queues[other]) for other in order):
                continue
            reused = reused or not fresh
            taken.append(queues[category][used[category] % len(queues[category])])
            used[category] += 1
        return tuple(taken)

    slices: list[Slice] = []
    for warmup, load_count in sizes:
        before = reused
        slices.append(Slice(take(warmup), take(load_count), reused or before))
    return slices
