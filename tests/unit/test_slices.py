"""Prompt slices: no prompt twice to one server, the same slices for every configuration, balanced categories."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsweep import plan, prompts
from specsweep.prompts import Prompt, PromptError, PromptSet, deal
from specsweep.variables import normalise


def a_set(**sizes: int) -> PromptSet:
    made = [Prompt(f"{name}-{n}", name, f"text {name} {n}") for name, size in sizes.items() for n in range(size)]
    return PromptSet("made", Path("made.jsonl"), "0" * 64, tuple(made))


def positions(slices: list[prompts.Slice]) -> list[int]:
    return [index for part in slices for index in (*part.warmup, *part.load)]


_sizes = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 20)), min_size=1, max_size=5)


@settings(derandomize=True, deadline=None, max_examples=100, database=None)
@given(counts=st.lists(st.integers(1, 30), min_size=1, max_size=5), sizes=_sizes)
def test_no_prompt_is_dealt_twice(counts: list[int], sizes: list[tuple[int, int]]) -> None:
    known = a_set(**{f"c{index}": count for index, count in enumerate(counts)})
    need = sum(map(sum, sizes))
    if need > sum(counts):
        with pytest.raises(PromptError, match=f"need {need} different prompts, made has {sum(counts)}"):
            deal(known, sizes)
        return
    slices = deal(known, sizes)
    assert [(len(part.warmup), len(part.load)) for part in slices] == sizes
    dealt = positions(slices)
    assert len(set(dealt)) == len(dealt)
    assert not any(part.reused for part in slices)


@settings(derandomize=True, deadline=None, max_examples=100, database=None)
@given(counts=st.lists(st.integers(1, 6), min_size=1, max_size=4), sizes=_sizes)
def test_with_reuse_every_prompt_is_dealt_before_one_comes_again_and_marks_are_true(
    counts: list[int], sizes: list[tuple[int, int]]
) -> None:
    known = a_set(**{f"c{index}": count for index, count in enumerate(counts)})
    seen: set[int] = set()
    for part in deal(known, sizes, reuse=True):
        again = False
        for index in (*part.warmup, *part.load):
            if index in seen:
                again = True
                assert len(seen) == sum(counts)
            seen.add(index)
        assert part.reused == again


def test_a_slice_before_the_end_of_the_set_is_not_marked() -> None:
    slices = deal(a_set(a=3, b=3), [(1, 3), (1, 3), (1, 3)], reuse=True)
    assert [part.reused for part in slices] == [False, True, True]


def test_categories_are_balanced_in_every_slice() -> None:
    known = prompts.load("mixed")
    for part in deal(known, [(1, 28), (4, 28), (8, 32)]):
        counts = Counter(known.prompts[index].category for index in part.load)
        assert set(counts) == set(known.categories)
        assert max(counts.values()) - min(counts.values()) <= 1


def test_a_category_that_is_used_up_leaves_its_turns_to_the_others() -> None:
    known = a_set(a=1, b=5)
    [part] = deal(known, [(0, 6)])
    assert sorted(part.load) == list(range(6))


def test_the_error_tells_what_to_do() -> None:
    with pytest.raises(PromptError) as caught:
        deal(a_set(a=3), [(1, 3)])
    assert str(caught.value) == (
        "prompts: the load points need 4 different prompts, made has 3: give a larger set, fewer requests or "
        "concurrencies, or prompts_reuse=true (every cell is then marked)"
    )


def make(**variables: Any) -> plan.Plan:
    return plan.make(normalise({"anchors": False, **variables}))


def test_every_configuration_has_the_same_slices_whatever_else_is_swept() -> None:
    one = make(budgets=[8], concurrencies=[4, 1]).load_points
    other = make(
        budgets=[0, 16, 32], concurrencies=[1, 4], axes={"threads": [1, 2]}, repeats=3, seed=7,
        exclude=[{"budget": 16, "concurrency": 1}],
    ).load_points  # fmt: skip
    assert one == other
    assert [point.concurrency for point in one] == [1, 4]


def test_a_warm_up_is_one_wave_at_the_same_concurrency() -> None:
    for point in make(concurrencies=[1, 4, 16]).load_points:
        assert len(point.warmup_prompts) == point.concurrency
        assert len(point.load_prompts) == point.requests == max(28, 2 * point.concurrency)


def test_a_plan_that_needs_too_many_prompts_is_refused_unless_reuse_is_wanted() -> None:
    with pytest.raises(PromptError, match=r"^prompts: the load points need 1092 different prompts, mixed has"):
        make(concurrencies=[64, 300])
    points = make(concurrencies=[64, 300], prompts_reuse=True).load_points
    assert [point.prompts_reused for point in points] == [False, True]


# files


def a_file(folder: Path, *lines: str, name: str = "mine.jsonl") -> str:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def line(**fields: Any) -> str:
    return json.dumps({"id": "1", "category": "c", "prompt": "text", **fields}, ensure_ascii=False)


def test_a_prompt_keeps_every_character(tmp_path: Path) -> None:
    text = "line\u2028separator \x85 next \x1c line ☃ \ttab"
    loaded = prompts.load(a_file(tmp_path, line(prompt=text), "", line(id="2")))
    assert [prompt.text for prompt in loaded.prompts] == [text, "text"]
    assert loaded.categories == ("c",)
    assert loaded.name == "mine"


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("{", "expected an object with id, category and a prompt's text; got '{'"),
        ("[]", "expected an object"),
        ("8", "expected an object"),
        ('{"id": 1, "category": "c"}', "expected an object"),
        (line(id="2", prompt=None), "expected an object"),
        (line(id="2", prompt=""), "expected an object"),
        (line(id="2", prompt=["a"]), "expected an object"),
        (line(), "the id '1' stands there twice"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, bad: str, why: str) -> None:
    path = a_file(tmp_path, line(), bad)
    with pytest.raises(PromptError) as caught:
        prompts.load(path)
    assert str(caught.value).startswith(f"prompts: {path}:2: {why}")


def test_a_file_that_is_no_prompt_set(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"expected a name in prompts/ \(.*mixed.*\) or a path .*got 'mixd'"):
        prompts.load("mixd")
    with pytest.raises(PromptError, match="Is a directory"):
        prompts.load(str(tmp_path) + "/")
    with pytest.raises(PromptError, match="holds no prompt"):
        prompts.load(a_file(tmp_path, "", " "))
    (tmp_path / "latin.jsonl").write_bytes(line(prompt="é").encode("latin-1"))
    with pytest.raises(PromptError, match=r"expected UTF-8; byte \d+ is none"):
        prompts.load(str(tmp_path / "latin.jsonl"))
