"""The fixed prompt set: its form, its balance, and that no prompt repeats another's text.

N-gram drafters keep what they have seen in every request, so text that two prompts share would raise
the measured acceptance without any merit of the configuration under test.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

PROMPTS = Path(__file__).parents[2] / "prompts" / "mixed.jsonl"
CATEGORIES = ("code_edit", "extraction", "question", "translation")
MIN_PER_CATEGORY = 96
WINDOW_CHARS = 60
# Characters, not tokens: about 3 to 4 of them make one token of the demo's tokenizer.
LENGTH_BOUNDS = {
    "code_edit": (350, 1200),
    "extraction": (100, 420),
    "question": (50, 260),
    "translation": (80, 260),
}
# The fixed wording that frames a file or a sentence; everything else must differ from prompt to prompt.
CODE_FRAME = re.compile(
    r'\A<file name="A">\n(?P<old>.+)\n</file>\n<file name="B" copy of="A" identical="yes">\n(?P<new>.+)\Z', re.DOTALL
)
TRANSLATION_FRAME = re.compile(
    r"\ATranslate into (?P<language>[A-Z][a-z]+), then go on with the story in (?P=language)\.\n"
    r"English: (?P<english>.+)\n(?P=language): (?P<opening>.+)\Z"
)

Prompt = dict[str, str]


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    return [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]


def own_text(prompt: Prompt) -> list[str]:
    """The parts of a prompt outside the fixed instruction wording."""
    text = prompt["prompt"]
    if prompt["category"] == "code_edit":
        frame = CODE_FRAME.match(text)
        assert frame, f"{prompt['id']}: not two framed files"
        return [frame["old"], frame["new"]]
    if prompt["category"] == "translation":
        frame = TRANSLATION_FRAME.match(text)
        assert frame, f"{prompt['id']}: not a framed sentence"
        return [frame["english"], frame["opening"]]
    return [text]


def shared_windows(prompts: list[Prompt]) -> list[tuple[str, str, str]]:
    """(first id, second id, text) of each window that two prompts of one category share."""
    seen: dict[tuple[str, str], str] = {}
    shared = []
    for prompt in prompts:
        for part in own_text(prompt):
            for start in range(len(part) - WINDOW_CHARS + 1):
                window = part[start : start + WINDOW_CHARS]
                owner = seen.setdefault((prompt["category"], window), prompt["id"])
                if owner != prompt["id"]:
                    shared.append((owner, prompt["id"], window))
    return shared


def test_every_line_has_exactly_the_three_fields(prompts: list[Prompt]) -> None:
    for number, prompt in enumerate(prompts, 1):
        assert sorted(prompt) == ["category", "id", "prompt"], f"line {number}"
        assert all(isinstance(value, str) for value in prompt.values()), f"line {number}"


def test_each_category_has_enough_prompts(prompts: list[Prompt]) -> None:
    counts = Counter(prompt["category"] for prompt in prompts)
    assert set(counts) == set(CATEGORIES)
    assert min(counts.values()) >= MIN_PER_CATEGORY
    assert len(set(counts.values())) == 1


def test_categories_go_round_robin(prompts: list[Prompt]) -> None:
    expected = [CATEGORIES[index % len(CATEGORIES)] for index in range(len(prompts))]
    assert [prompt["category"] for prompt in prompts] == expected


def test_ids_are_unique_and_name_category_and_place(prompts: list[Prompt]) -> None:
    for index, prompt in enumerate(prompts):
        assert prompt["id"] == f"{prompt['category']}-{index // len(CATEGORIES) + 1:03d}"
    assert len({prompt["id"] for prompt in prompts}) == len(prompts)


def test_prompts_are_distinct(prompts: list[Prompt]) -> None:
    assert len({prompt["prompt"] for prompt in prompts}) == len(prompts)


def test_no_two_prompts_of_a_category_share_a_window(prompts: list[Prompt]) -> None:
    assert shared_windows(prompts) == []


def test_a_shared_window_would_be_found(prompts: list[Prompt]) -> None:
    question = next(prompt for prompt in prompts if prompt["category"] == "question")
    copy = {"id": "question-copy", "category": "question", "prompt": "First: " + question["prompt"]}
    assert {pair[:2] for pair in shared_windows([question, copy])} == {(question["id"], "question-copy")}


def test_lengths_stay_in_bounds(prompts: list[Prompt]) -> None:
    for prompt in prompts:
        low, high = LENGTH_BOUNDS[prompt["category"]]
        assert low <= len(prompt["prompt"]) <= high, prompt["id"]


def test_no_prompt_ends_in_white_space(prompts: list[Prompt]) -> None:
    """After a line break the demo's model closes the file; it goes on copying from inside a line."""
    for prompt in prompts:
        assert prompt["prompt"] == prompt["prompt"].rstrip(), prompt["id"]


def test_a_code_edit_opens_file_b_as_file_a_but_for_one_change(prompts: list[Prompt]) -> None:
    """Take the common start and the common end off: one short change is left of each opening."""
    for prompt in prompts:
        if prompt["category"] != "code_edit":
            continue
        old, new = own_text(prompt)
        start = 0
        while start < len(new) and old[start] == new[start]:
            start += 1
        assert start < len(new), f"{prompt['id']}: nothing was changed"
        # The opening's end must be text of file A that follows the change.
        tail = max(
            (size for size in range(1, len(new) - start + 1) if new[-size:] in old[start:]),
            default=0,
        )
        assert tail >= 20, prompt["id"]
        assert len(new) - start - tail <= 40, prompt["id"]
        end_in_old = old.index(new[-tail:], start) + tail
        assert len(old) - end_in_old >= 150, f"{prompt['id']}: too little is left to copy"
