"""Counters of a Prometheus page, dotted paths, and the recorded pages of a real server."""

from __future__ import annotations

from pathlib import Path

import pytest
from specsweep_agent import metrics, paths

from specsweep import engine, measure
from specsweep.record import Request

DATA = Path(__file__).parents[2] / "data" / "engines"

#: Made up, with everything that the text format allows.
PAGE = r"""# HELP tokens_total Tokens.
# TYPE tokens_total counter
tokens_total{model="a",kind="x"} 10
tokens_total{model="b } {",kind="q\"uo,te\\"} 5.5e1 1700000000000
tokens_total_more 1000
tokens_total 1
drafts_total{model="a"} 8 # {trace_id="abc"} 0.67 1700000000.0
lone_total 3
bad_total NaN
bad_total{a="b"} +Inf
bad_total{a="c"} 7
words_total many
pos_total{position="0"} 9
pos_total{position="10"} 1
pos_total{position="2"} 3
pos_total{position="1"} 5
pos_total{position="all"} 18
empty_total{} 4
  indented_total 1
"""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokens_total", 66.0),
        ("drafts_total", 8.0),
        ("lone_total", 3.0),
        ("bad_total", 7.0),
        ("words_total", None),
        ("empty_total", 4.0),
        ("missing_total", None),
        ("tokens", None),
    ],
)
def test_totals_over_all_labels(name: str, value: float | None) -> None:
    assert metrics.total(PAGE, name) == value
    assert metrics.total(PAGE.replace("\n", "\r\n"), name) == value


def test_labels_and_positions() -> None:
    assert metrics.by_label(PAGE, "tokens_total", "model") == {"a": 10.0, "b } {": 55.0}
    assert metrics.by_label(PAGE, "tokens_total", "nothing") == {}
    assert metrics.by_position(PAGE, "pos_total", "position") == [9, 5, 3, 1]
    assert metrics.by_position(PAGE, "missing", "position") == []
    assert metrics.read(PAGE, {"ours": "lone_total", "other": "missing"}) == {"ours": 3.0}


@pytest.mark.parametrize("page", ["", "\n\n", "<html>tokens_total</html>", "tokens_total", "tokens_total{", "\x00\xff"])
def test_what_is_no_page_has_no_counters(page: str) -> None:
    assert metrics.total(page, "tokens_total") is None
    assert metrics.by_position(page, "tokens_total", "position") == []


def test_the_recorded_counters_give_the_acceptance_length_of_that_load() -> None:
    """SGLang 0.5.17, NGRAM with 8 draft tokens, recorded on an H200 (tests/data/engines/NOTICE)."""
    profile = engine.load("sglang")
    assert profile.metrics is not None
    found = []
    for when in ("before", "after"):
        page = (DATA / f"sglang-0.5.17-ngram.metrics_{when}.txt").read_text()
        found.append(metrics.read(page, profile.metrics.counters))
        assert metrics.total(page, profile.metrics.requests_running or "") == 0
    before, after = found
    assert after["output_tokens"] == 56 + 13408
    assert after["drafts"] == 6435
    point = {"counters_before": before, "counters_after": after}
    request = Request(id="1", prompt_id="1", category="c", sent_s=0.0, ok=True, output_tokens=1)
    acceptance = measure.acceptance([request], point, profile, "ngram")
    assert acceptance is not None
    assert acceptance.counters_al == pytest.approx(
        (13464 - before["output_tokens"]) / (6435 - before.get("drafts", 0)), rel=1e-6
    )
    assert 1 < acceptance.counters_al < 8


def test_the_recorded_baseline_counts_no_draft() -> None:
    page = (DATA / "sglang-0.5.17-none.metrics_after.txt").read_text()
    assert metrics.total(page, "sglang:generation_tokens_total") == 13464
    assert not metrics.total(page, "sglang:spec_verify_calls_total")


DATA_TREE = {"a": [{"b": 1}, {"b": None}, {"c": 3}], "x.y": 1, "n": {"0": "key"}, "l": [[1, 2], [3]]}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("a.0.b", [1]),
        ("a.-1.c", [3]),
        ("a.9.b", []),
        ("a.-4", []),
        ("a.*.b", [1, None]),
        ("n.*", ["key"]),
        ("n.0", ["key"]),
        ("l.*.*", [1, 2, 3]),
        ("l.*.1", [2]),
        ("a.b", []),
        ("missing.*", []),
        ("a.0.b.c", []),
        ("a.--1", []),
    ],
)
def test_dotted_paths(path: str, found: list[object]) -> None:
    assert paths.values(DATA_TREE, path) == found


def test_the_first_value_that_is_there() -> None:
    assert paths.first(DATA_TREE, ["missing", "a.1.b", "a.0.b", "a.2.c"]) == 1
    assert paths.first(DATA_TREE, []) is None
    assert paths.first(None, ["a"]) is None
    assert paths.first({"a": 0}, ["a"]) == 0
