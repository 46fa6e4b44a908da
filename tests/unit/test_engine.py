"""The mechanism of engine profiles: loading, extending, settings, variants, versions, and its small language."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsweep import engine
from specsweep.expression import ExpressionError, evaluate, fill

MINIMAL = """
name: tiny
title: Tiny
commands: [[tiny]]
default_method: none
methods: {none: {}, draft: {arguments: {--budget: "{budget}"}, candidates: budget, verify_width: budget + 1}}
ready: {alive: /health}
request: {path: /g, body: {p: "{prompt}"}, text: [t]}
"""


def profile_of(folder: Path, text: str, name: str = "own.yaml") -> engine.Profile:
    path = folder / name
    path.write_text(text)
    return engine.load(str(path))


# Loading.


def test_an_unknown_engine_is_told_the_known_ones() -> None:
    with pytest.raises(engine.EngineError, match=r"expected one of .*llamacpp.*sglang.*vllm.*; got 'tgi'"):
        engine.load("tgi")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[1", "not a profile"),
        ("- a\n", "expected a mapping, got list"),
        (MINIMAL + "flsuh: {path: /x}\n", "flsuh"),
        (MINIMAL.replace("title: Tiny", "title: 3"), "title"),
        ("extends: nowhere\n", "got 'nowhere'"),
    ],
)
def test_a_bad_profile_is_one_line(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(engine.EngineError) as caught:
        profile_of(tmp_path, text)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_fork_is_a_file_that_extends_another_profile(tmp_path: Path) -> None:
    fork = profile_of(
        tmp_path,
        "extends: sglang\nname: fork\ndefaults: {page_size: 64}\nhelp_texts: []\n"
        "methods: {ngram: {arguments: {--own: '{budget}'}}}\n",
    )
    stock = engine.load("sglang")
    assert (fork.name, fork.title) == ("fork", stock.title)
    assert fork.defaults == {**stock.defaults, "page_size": 64}
    assert fork.help_texts == []
    assert fork.methods["ngram"].arguments == {**stock.methods["ngram"].arguments, "--own": "{budget}"}
    assert fork.methods["eagle"] == stock.methods["eagle"]


def test_a_profile_that_extends_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "loop.yaml"
    with pytest.raises(engine.EngineError, match="cannot extend itself"):
        profile_of(tmp_path, f"extends: {path}\n", "loop.yaml")


# Settings.


@pytest.mark.parametrize(
    ("name", "setting", "reason"),
    [
        ("sglang", "mem_fraction_statik", "did you mean mem_fraction_static"),
        ("llamacpp", "ctx_sise", "did you mean ctx_size"),
        ("vllm", "max_num_seq", "did you mean max_num_seqs"),
    ],
)
def test_a_misspelt_setting_is_found_before_any_host_is_touched(name: str, setting: str, reason: str) -> None:
    with pytest.raises(engine.EngineError, match=reason):
        engine.check_setting(engine.load(name), setting)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("sglang", "mem_fraction_static"),
        ("sglang", "steps"),
        ("sglang", "nccl_nvls_enable"),
        ("sglang", "cuda_graph_max_bs"),  # gone in 0.5.23, there in 0.5.17: the host's help decides
        ("vllm", "prompt_lookup_max"),
        ("llamacpp", "parallel"),
        ("replay", "scenario"),
        ("replay", "replay_speed"),
        ("replay", "mem_fraction_static"),
    ],
)
def test_a_setting_of_the_engine_is_accepted(name: str, setting: str) -> None:
    engine.check_setting(engine.load(name), setting)


def render(profile: engine.Profile, method: str = "draft", flags: Any = (), **given: Any) -> engine.Rendered:
    names = engine.scope(profile, method=method, budget=4, topk=1, settings=given, place={"model": "/m"})
    return engine.render(profile, method, engine.effective_settings(profile, method, given, names), names, flags)


def test_where_a_setting_goes(tmp_path: Path) -> None:
    own = profile_of(
        tmp_path,
        MINIMAL
        + "settings: {a: {flag: --alpha}, b: {env: BETA}, c: {template_only: true}, d: {methods: [none]}}\n"
        + "arguments: {model: '{model}', --json: {c: '{c}', none: '{missing}'}}\n",
    )
    result = render(own, a=1, b=2, c=3, d=4, other_name=[5, 6])
    assert result.arguments == ["/m", "--alpha", "1", "--other-name", "5", "6", "--json", '{"c":3}', "--budget", "4"]
    assert result.environment == {"BETA": "2"}
    assert "--d" in render(own, "none", d=4).flags


def test_the_order_in_which_settings_are_given_makes_no_other_command_line(tmp_path: Path) -> None:
    own = profile_of(tmp_path, MINIMAL + "defaults: {x: 1}\n")
    assert render(own, b=2, a=3) == render(own, a=3, b=2) == render(own, a=3, x=1, b=2)


def test_booleans_follow_what_the_build_knows(tmp_path: Path) -> None:
    own = profile_of(tmp_path, MINIMAL)
    assert render(own, on=True).arguments == ["--on", "--budget", "4"]
    assert render(own, on=False).arguments == ["--budget", "4"]
    assert render(own, flags={"--no-on"}, on=False).arguments == ["--no-on", "--budget", "4"]


def test_json_goes_through_as_one_argument_with_every_character(tmp_path: Path) -> None:
    own = profile_of(tmp_path, MINIMAL + "arguments: {--json: {model: '{model}'}}\n")
    odd = "/m with \"quotes\", 'more', $HOME, %h, {braces} and \\ back"
    names = engine.scope(own, method="draft", budget=4, topk=1, settings={}, place={"model": odd})
    value = engine.render(own, "draft", {}, names).arguments[1]
    assert json.loads(value) == {"model": odd}


def test_a_template_that_cannot_be_filled_names_profile_and_method(tmp_path: Path) -> None:
    own = profile_of(tmp_path, MINIMAL.replace('"{budget}"', '"{budget + missing}"'))
    with pytest.raises(engine.EngineError, match="profile tiny, method draft: 'budget \\+ missing' has no value"):
        render(own)


def test_the_most_specific_fitting_variant_wins(tmp_path: Path) -> None:
    own = profile_of(
        tmp_path,
        MINIMAL.replace("none: {}, ", "none: {}, tree: {}, ")
        + "variants:\n"
        + "  - {name: one, method: tree, when_flags: [--x], arguments: {--x: 1}}\n"
        + "  - {name: two, method: tree, when_flags: [--x, --y], arguments: {--x: 1, --y: 2}}\n",
    )
    chosen = {flags: engine.chosen_variant(own, "tree", set(flags.split())) for flags in ("", "--x", "--x --y", "--z")}
    assert {flags: variant.name if variant else None for flags, variant in chosen.items()} == {
        "": "one",
        "--x": "one",
        "--x --y": "two",
        "--z": "one",
    }


# Versions.


@pytest.mark.parametrize(
    ("condition", "version", "fulfilled"),
    [
        ("*", None, True),
        (">=0.5.20", "0.5.23", True),
        (">=0.5.20", "0.5.3", False),
        (">=0.5.20", "v0.6", True),
        (">=0.5.20,<0.6", "0.6.0", False),
        ("==0.5.17", "0.5.17.post1", True),
        ("==0.5", "0.5.0", True),
        (">0.5.17", "0.5.17+g12ab", False),
        (">=0.5.20", None, False),
        (">=0.5.20", "replay", False),
    ],
)
def test_version_conditions(condition: str, version: str | None, fulfilled: bool) -> None:
    assert engine.version_matches(condition, version) is fulfilled


def test_a_condition_that_is_none_is_refused() -> None:
    with pytest.raises(engine.EngineError, match="is not a version condition"):
        engine.version_matches("newer than 0.5", "0.5.17")


# What the agent compares, with recorded reports.

sys.path.insert(0, str(Path(__file__).parents[2] / "plugins" / "module_utils"))
from specsweep_agent import attest  # noqa: E402

DATA = Path(__file__).parents[1] / "data" / "engines"


@pytest.mark.parametrize(
    ("run", "method", "budget", "expected"),
    [
        ("0.5.17-ngram", "ngram", 8, []),
        ("0.5.17-none", "none", 0, []),
        ("0.5.17-ngram", "ngram", 16, ["adjusted"]),
        ("0.5.17-none", "ngram", 8, ["not_applied", "adjusted"]),
        ("0.5.17-ngram", "none", 0, ["not_applied"]),
    ],
)
def test_the_profile_and_the_agent_read_a_recorded_report_alike(
    run: str, method: str, budget: int, expected: list[str]
) -> None:
    report = json.loads((DATA / f"sglang-{run}.server_info.json").read_text())
    profile = engine.load("sglang")
    place = {"model": report["model_path"], "drafter": None, "address": report["host"], "port": report["port"]}
    asked = {"max_running_requests": 64, "attention_backend": "triton", "random_seed": report["random_seed"]}
    names = engine.scope(
        profile, method=method, budget=budget, topk=4, settings=asked, place={**place, "concurrency_max": 32, "seed": 1}
    )
    result = engine.render(profile, method, engine.effective_settings(profile, method, asked, names), names)
    found = []
    for rule in profile.attest.checks:
        if evaluate(rule.when, names):
            filled = {"name": rule.name, "select": rule.select, "expect": fill(rule.expect, names)}
            if attest.check(filled, report):
                found.append(rule.otherwise)
    assert found == expected
    differences = attest.arguments_report(result.flags, report, profile.attest.ignore)
    assert bool(differences) == (bool(expected) and method != "none")


# The language of the templates.

NAMES = {"budget": 8, "topk": 4, "text": "x", "nothing": None}
ATOMS = st.sampled_from(["budget", "topk", "1", "2.5", "'x'", "nothing", "unknown", "(1, 2)", "True"])
FORBIDDEN = st.sampled_from(
    [
        "().__class__",
        "budget.real",
        "text[0]",
        "{1: 2}",
        "{1, 2}",
        "[x for x in (1, 2)]",
        "(x for x in (1, 2))",
        "lambda: 1",
        "f'{budget}'",
        "(y := 1)",
        "__import__('os')",
        "open('/etc/passwd')",
        "eval('1')",
        "print(1)",
        "max(1, 2, key=str)",
        "min(*(1, 2))",
        "budget @ 2",
        "budget << 2",
        "budget | 2",
        "~budget",
        "+budget",
        "(yield)",
        "budget if",
        "import os",
    ]
)


@given(
    left=ATOMS,
    forbidden=FORBIDDEN,
    frame=st.sampled_from(["{f}", "({f}, {a})", "str({f})", "{a} == ({f})", "not ({f})"]),
)
def test_everything_outside_the_language_is_rejected(left: str, forbidden: str, frame: str) -> None:
    with pytest.raises(ExpressionError):
        evaluate(frame.format(f=forbidden, a=left), NAMES)


@settings(max_examples=300)
@given(st.text(alphabet="budgetopk0123456789+-/%()<>=!.,[]{}'\" \n_:@\\", max_size=24))
def test_any_text_has_a_plain_value_or_is_rejected(text: str) -> None:
    try:
        with warnings.catch_warnings():  # Python warns of odd literals while it parses them
            warnings.simplefilter("ignore")
            value = evaluate(text, NAMES)
    except ExpressionError:
        return
    assert value is None or isinstance(value, (bool, int, float, complex, str, bytes, tuple, type(...)))


@given(budget=st.integers(1, 1024), topk=st.integers(1, 64))
def test_arithmetic_is_that_of_the_numbers(budget: int, topk: int) -> None:
    names = {"budget": budget, "topk": topk}
    assert evaluate("topk > 1 and budget - 1 > topk", names) is (topk > 1 and budget - 1 > topk)
    assert evaluate("budget // topk + 1", names) == budget // topk + 1
    assert evaluate("min(budget, topk) if topk != 1 else -budget", names) == (
        min(budget, topk) if topk != 1 else -budget
    )
    assert fill("{budget}", names) == budget
    assert fill("b{budget}k{topk}", names) == f"b{budget}k{topk}"


def test_and_or_give_truth_not_values() -> None:
    """A trap for who writes a profile: `a or 1` is true, not 1."""
    assert evaluate("nothing or budget", NAMES) is True


def test_a_filled_value_is_not_filled_again() -> None:
    assert fill({"p": "{prompt}"}, {"prompt": "say {budget}"}) == {"p": "say {budget}"}
