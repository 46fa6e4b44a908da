"""Sweep variables: every form in which Ansible hands a value over, and one clear line for what cannot be used."""

from __future__ import annotations

import datetime
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsweep.variables import BY_NAME, VARIABLES, VariableError, as_markdown, misspelt, normalise


def complaint(given: dict[str, Any], raw_params: str = "") -> str:
    """The one line with which a value is refused."""
    with pytest.raises(VariableError) as caught:
        normalise(given, raw_params)
    text = str(caught.value)
    assert len(text.splitlines()) == 1, text
    assert text.isprintable(), text
    assert len(text) < 700, text
    return text


# forms that are accepted


@pytest.mark.parametrize(
    "came",
    [
        pytest.param("[8,16,32]", id="-e budgets=[8,16,32]"),
        pytest.param("[8, 16, 32]", id="quoted, with spaces"),
        pytest.param("8,16,32", id="-e budgets=8,16,32"),
        pytest.param("8 16 32", id="spaces"),
        pytest.param(" [ 8 , 16 , 32 ] ", id="padded"),
        pytest.param('["8","16","32"]', id="quoted items"),
        pytest.param([8, 16, 32], id="JSON or a file"),
        pytest.param(["8", "16", "32"], id="texts in a file"),
        pytest.param((8, 16, 32), id="from Python"),
    ],
)
def test_a_list_arrives_in_many_forms(came: Any) -> None:
    assert normalise({"budgets": came})["budgets"] == [8, 16, 32]


@pytest.mark.parametrize("came", ["8", "[8]", 8, [8], "+8", "08"])
def test_one_value_is_a_list_of_one(came: Any) -> None:
    assert normalise({"budgets": came})["budgets"] == [8]


def test_zero_is_a_budget_and_no_topk() -> None:
    assert normalise({"budgets": "0"})["budgets"] == [0]
    assert "0 is less than 1" in complaint({"topks": "[0]"})
    assert "0 is less than 1" in complaint({"concurrencies": [0]})


# values that are refused


@pytest.mark.parametrize(
    "came",
    [
        "[8,x]", "[]", "", "[8,", "8]", "[[8,16]]", "[8],[16]", "-8", "[8,-8]", "8; reboot", "$(reboot)", "8,8",
        "[8,08]", "8.5", "1e3", "1e400", "nan", "inf", "true", "0x8", "8\n16;x", "acht", "٨x", "[8,,16]", "8,", ",8",
        True, [True], 8.0, [8.5], math.nan, math.inf, None, [None], [[8, 16]], [8, 8], ["8", 8], {"a": 8}, [{}], [],
        [10**5000], 10**5000, "9" * 5000,
    ],
    ids=lambda came: type(came).__name__,
)  # fmt: skip
def test_a_wrong_budget_is_one_line_with_name_value_and_what_is_accepted(came: Any) -> None:
    text = complaint({"budgets": came})
    assert text.startswith("budgets: expected whole numbers of at least 0, such as [8,16,32]")
    assert "; got '" in text or '; got "' in text


def test_the_value_that_came_is_shown_as_it_came() -> None:
    assert "got '[8,x]'" in complaint({"budgets": "[8,x]"})
    assert "got 'a\\nb'" in complaint({"budgets": "a\nb"})
    assert "got 'NAME'" in complaint({"budgets": "NAME"})
    assert "'NAME' is not a whole number" in complaint({"budgets": "NAME"})


def test_what_spaces_cut_off_is_named() -> None:
    text = complaint({"budgets": "[8,"}, raw_params="16, 32]")
    assert text.startswith("budgets:")
    assert "'16, 32]'" in text
    assert "-e 'budgets=[8,16]'" in text


def test_a_whole_value_with_something_cut_off_is_refused_too() -> None:
    """`-e budgets=8 -e 'concurrencies=1 4'` leaves a valid 1 behind."""
    text = complaint({"concurrencies": "1"}, raw_params="4")
    assert "'4' belongs to no variable" in text


@pytest.mark.parametrize("name", ["\r", "\x0b", "\x0c", "\x85", "\u2028", "\n"])
def test_line_breaks_of_any_kind_are_no_text(name: str) -> None:
    assert "line break" in complaint({"model": f"a{name}b"})


@pytest.mark.parametrize(
    ("name", "came", "why"),
    [
        ("repeats", "0", "0 is less than 1"),
        ("repeats", "two", "'two' is not a whole number"),
        ("output_tokens", 1, "1 is less than 2"),
        ("seed", "-1", "-1 is less than 0"),
        ("baseline", "maybe", "neither true nor false"),
        ("anchors", "often", "neither true nor false"),
        ("order", "reverse", "none of random, given"),
        ("output_mode", ["exact"], "none of exact, natural"),
        ("temperature", "nan", "is not a number of at least 0"),
        ("temperature", "1e400", "is not a number of at least 0"),
        ("temperature", True, "is not a number"),
        ("temperature", 10**5000, "is not a number"),
        ("ready_timeout_s", "soon", "is not a number"),
        ("ready_timeout_s", 0.5, "at least 1"),
        ("ready_timeout_s", math.nan, "at least 0"),
        ("ready_timeout_s", False, "not a number"),
        ("methods", "a b;c", "'b;c' is not a name"),
        ("methods", "ngram ngram", "twice"),
        ("model", None, "not a text"),
        ("model", ["a"], "not a text"),
        ("model", "a\0b", "line break"),
        ("axes", "[1,2]", "not a mapping"),
        ("axes", "{a: 1}", "values of 'a' are not a list"),
        ("axes", {"a": []}, "empty"),
        ("axes", {"a": [1, 1]}, "twice"),
        ("axes", {"a b": [1]}, "'a b' is not a name"),
        ("axes", {"a-b": [1], "a_b": [2]}, "twice"),
        ("axes", "{a: [1", "neither JSON nor YAML"),
        ("settings", "a: b: c", "neither JSON nor YAML"),
        ("settings", "8", "not a mapping"),
        ("settings", {"a": math.nan}, "not a number that can be passed on"),
        ("settings", {"a": datetime.date(2026, 1, 1)}, "cannot be passed on"),
        ("settings", "a: 2026-01-01", "cannot be passed on"),
        ("settings", "a: {1: x, b: y, null: z}", "cannot be passed on"),
        ("settings", "a: !!timestamp x", "neither JSON nor YAML"),
        ("settings", "a: !!bool x", "neither JSON nor YAML"),
        ("settings", "a: !!python/object/apply:os.system [reboot]", "neither JSON nor YAML"),
        ("settings", "[" * 5000, "neither JSON nor YAML"),
        ("linked", "[8]", "not a list of mappings"),
        ("linked", [{}], "not a list of mappings"),
        ("exclude", "budget", "not a list of mappings"),
        ("exclude", {"budget": [16, 32]}, "one value"),
    ],
    ids=lambda part: part if isinstance(part, str) and len(part) < 30 else type(part).__name__,
)
def test_every_variable_says_what_is_wrong(name: str, came: Any, why: str) -> None:
    text = complaint({name: came})
    assert text.startswith(f"{name}: expected {BY_NAME[name].accepts}; got ")
    assert why in text


# mappings


@pytest.mark.parametrize(
    "came",
    [
        '{"max_running_requests": [64, 128]}',
        "{max_running_requests: [64, 128]}",
        "max-running-requests: [64, 128]",
        {"max_running_requests": [64, 128]},
        {"max-running-requests": (64, 128)},
    ],
)
def test_axes_come_as_json_yaml_or_data(came: Any) -> None:
    assert normalise({"axes": came})["axes"] == {"max_running_requests": [64, 128]}


def test_mappings_keep_types_and_fold_structures_into_json() -> None:
    came = '{"a": 0.30, "b": true, "c": "x", "d": {"z": 1, "y": [2]}}'
    assert normalise({"settings": came})["settings"] == {"a": 0.3, "b": True, "c": "x", "d": '{"y":[2],"z":1}'}


def test_one_mapping_is_a_list_of_one() -> None:
    for name in ("linked", "exclude"):
        assert normalise({name: '{"budget": 64}'})[name] == [{"budget": 64}]
        assert normalise({name: [{"budget": 64}, {"topk": 2}]})[name] == [{"budget": 64}, {"topk": 2}]
        assert normalise({name: ""})[name] == []


def test_true_and_one_are_two_values_of_an_axis() -> None:
    assert normalise({"axes": {"overlap": [True, 1, False, 0]}})["axes"]["overlap"] == [True, 1, False, 0]


def test_a_null_setting_leaves_the_default_out_and_is_not_the_word_null() -> None:
    assert normalise({"settings": {"page_size": None}})["settings"] == {"page_size": None}


# defaults, spelling, documentation


def test_defaults_are_normal_forms_of_themselves() -> None:
    assert normalise(normalise({})) == normalise({})


def test_a_default_that_a_caller_changes_stays_the_default() -> None:
    normalise({})["budgets"].append(99)
    normalise({})["axes"]["x"] = [1]
    assert 99 not in normalise({})["budgets"]
    assert normalise({})["axes"] == {}


def test_other_names_are_ignored() -> None:
    assert normalise({"serve_port": 1}) == normalise({})


def test_truth_in_the_words_of_ansible() -> None:
    for word in ("true", "True", "yes", "on", "1", 1, True):
        assert normalise({"baseline": word})["baseline"] is True
    for word in ("false", "No", "off", "0", 0, False):
        assert normalise({"baseline": word})["baseline"] is False
    assert normalise({"anchors": "AUTO"})["anchors"] == "auto"


def test_a_misspelt_name_gets_the_near_one() -> None:
    text = misspelt(["serve_port", "budgest"])
    assert text is not None
    assert text.startswith("budgest: no such sweep variable; did you mean budgets (")
    assert misspelt(["budgets", "serve_port", "ansible_user", "x"]) is None


def test_every_variable_is_documented() -> None:
    rows = [line for line in as_markdown().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [variable.name for variable in VARIABLES]
    assert all(variable.accepts and variable.meaning.endswith(".") for variable in VARIABLES)


# whatever comes


_scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=30)
    | st.text(alphabet="[]{},:;'\"-!&*?|>%@`\\ \n\t#0123456789aeNAMx.~=<", max_size=25)
    | st.binary(max_size=5)
    | st.dates()
)
_anything = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_scalars, inner, max_size=4),
    max_leaves=8,
)


@settings(derandomize=True, deadline=None, max_examples=250, database=None)
@given(name=st.sampled_from(sorted(BY_NAME)), came=_anything, rest=st.just("") | st.text(max_size=8))
def test_nothing_but_a_variable_error_ever_comes_out(name: str, came: Any, rest: str) -> None:
    try:
        values = normalise({name: came}, rest)
    except VariableError as error:
        assert len(str(error).splitlines()) == 1
        assert str(error).startswith((f"{name}: ", "-e: "))
    else:
        json.dumps(values, allow_nan=False)
        assert normalise({name: values[name]})[name] == values[name]


@settings(derandomize=True, deadline=None, max_examples=100, database=None)
@given(st.lists(st.integers(min_value=0, max_value=10**6), min_size=1, max_size=6, unique=True))
def test_all_forms_of_a_list_mean_the_same(numbers: list[int]) -> None:
    text = ",".join(map(str, numbers))
    forms = [numbers, text, f"[{text}]", f"[{text.replace(',', ', ')}]", json.dumps(numbers), list(map(str, numbers))]
    assert [normalise({"budgets": form})["budgets"] for form in forms] == [numbers] * len(forms)
