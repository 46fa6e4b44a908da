"""The plan: grid, what is skipped, what runs once, the order, the anchors, and the plan as text."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsweep import plan, predict, record
from specsweep.engine import EngineError
from specsweep.plan import Plan, PlanError
from specsweep.variables import normalise


def make(**variables: Any) -> Plan:
    return plan.make(normalise({"anchors": False, **variables}))


def labels(made: Plan) -> list[str]:
    return [item.label for item in made.configurations]


def order(made: Plan) -> list[str]:
    by_key = {item.key: item.label for item in made.configurations}
    return [by_key[restart.configuration] for restart in made.restarts]


# the grid


def test_the_baseline_comes_by_itself_and_zero_is_the_same_one() -> None:
    expected = ["none", "ngram-mod b8 k1", "ngram-mod b16 k1"]
    assert labels(make(budgets=[8, 16])) == expected
    assert labels(make(budgets=[0, 8, 16])) == expected
    assert labels(make(budgets=[16, 0, 8], baseline=False)) == ["none", "ngram-mod b16 k1", "ngram-mod b8 k1"]
    assert labels(make(budgets=[8], baseline=False)) == ["ngram-mod b8 k1"]


def test_the_method_none_is_the_baseline() -> None:
    assert labels(make(methods=["none"], baseline=False)) == ["none"]
    assert labels(make(methods=["none", "ngram-simple"], budgets=[8], baseline=False)) == ["none", "ngram-simple b8 k1"]


def test_budgets_topks_and_axes_make_every_combination() -> None:
    made = make(
        engine="sglang",
        model="m",
        budgets=[8, 16],
        topks=[1, 4],
        axes={"max_running_requests": [64, 128], "page_size": [1]},
        baseline=False,
    )
    found = {(item.budget, item.topk, item.settings["max_running_requests"]) for item in made.configurations}
    assert found == {(budget, topk, running) for budget in (8, 16) for topk in (1, 4) for running in (64, 128)}
    assert len(made.configurations) == 8
    assert "ngram b16 k4 max_running_requests=128 page_size=1" in labels(made)
    assert {item.max_running for item in made.configurations} == {64, 128}


def test_an_axis_multiplies_the_baseline_too() -> None:
    made = make(budgets=[8], axes={"threads": [1, 2]})
    assert [item.settings["threads"] for item in made.configurations if item.baseline] == [1, 2]


def test_linked_settings_move_together() -> None:
    linked = [{"threads": 1, "batch_size": 64}, {"threads": 2, "batch_size": 128}]
    made = make(budgets=[8], linked=linked, baseline=False)
    assert [(item.settings["threads"], item.settings["batch_size"]) for item in made.configurations] == [
        (1, 64),
        (2, 128),
    ]


def test_a_null_setting_leaves_the_flag_out() -> None:
    assert "ngram_match" in make(budgets=[8], baseline=False).configurations[0].settings
    made = make(budgets=[8], baseline=False, settings={"ngram_match": None})
    assert "ngram_match" not in made.configurations[0].settings


def test_width_and_candidates_of_a_budget() -> None:
    [llamacpp] = make(budgets=[16], baseline=False).configurations
    assert (llamacpp.candidates, llamacpp.verify_width) == (16, 17)
    [sglang] = make(engine="sglang", model="m", budgets=[16], baseline=False).configurations
    assert (sglang.candidates, sglang.verify_width) == (15, 16)
    [none] = make(budgets=[0]).configurations
    assert (none.candidates, none.verify_width, none.baseline) == (0, 1, True)


# skipped, excluded, run once


def test_a_tree_is_skipped_for_llamacpp_with_its_reason() -> None:
    made = make(budgets=[8], topks=[1, 4], concurrencies=[1, 2])
    assert labels(made) == ["none", "ngram-mod b8 k1"]
    assert [(cell.label, cell.concurrency) for cell in made.skipped] == [
        ("ngram-mod b8 k4", 1),
        ("ngram-mod b8 k4", 2),
    ]
    assert all("no tree" in cell.reason and "top-k 1" in cell.reason for cell in made.skipped)


def test_a_method_without_its_drafter_is_skipped() -> None:
    made = make(methods=["draft-simple"], budgets=[8])
    assert labels(made) == ["none"]
    assert {cell.reason for cell in made.skipped} == {"the method draft-simple needs a draft model: set drafter"}


def test_excluded_configurations_and_cells() -> None:
    made = make(
        budgets=[8, 16],
        concurrencies=[1, 2, 4],
        exclude=[{"budget": 16, "concurrency": 4}, {"concurrency": "2", "method": "none"}, {"budget": 8}],
    )
    assert [(item.label, item.load_points) for item in made.configurations] == [
        ("none", ["c1", "c4"]),
        ("ngram-mod b16 k1", ["c1", "c2"]),
    ]
    assert Counter((cell.label, cell.reason) for cell in made.skipped) == {
        ("none", "excluded: concurrency 2, method none"): 1,
        ("ngram-mod b16 k1", "excluded: budget 16, concurrency 4"): 1,
        ("ngram-mod b8 k1", "excluded: budget 8"): 3,
    }
    assert made.cells == 4


def test_exclusion_by_a_setting_that_came_as_text() -> None:
    made = make(budgets=[8], axes='{"threads": [1, 2]}', exclude='{"threads": "2"}')
    assert {item.settings["threads"] for item in made.configurations} == {1}


def test_every_cell_of_the_grid_is_measured_or_skipped() -> None:
    made = make(budgets=[0, 8, 16], topks=[1, 2], concurrencies=[1, 2, 4], exclude=[{"budget": 16, "concurrency": 4}])
    measured = {(item.label, point) for item in made.configurations for point in item.load_points}
    skipped = {(cell.label, f"c{cell.concurrency}") for cell in made.skipped}
    assert not measured & skipped
    assert len(measured) + len(skipped) == (1 + 2 * 2) * 3


EAGLE = {"engine": "sglang", "model": "m", "drafter": "d", "methods": ["eagle"], "baseline": False}


def test_requests_that_resolve_to_the_same_command_run_once() -> None:
    """SGLang's EAGLE with one branch takes steps + 1 draft tokens, whatever the budget says."""
    made = make(**EAGLE, budgets=[4, 8, 16], topks=[1], settings={"steps": 5})
    [only] = made.configurations
    assert only.verify_width == 6
    assert only.requests_of == ["eagle b4 k1 steps=5", "eagle b8 k1 steps=5", "eagle b16 k1 steps=5"]
    assert "also asked as eagle b8 k1 steps=5; eagle b16 k1 steps=5" in plan.as_text(made, ["h"])


def test_a_cell_that_one_of_two_equal_requests_excludes_is_still_measured() -> None:
    made = make(
        **EAGLE,
        budgets=[4, 8],
        settings={"steps": 5},
        concurrencies=[1, 2, 4],
        exclude=[{"budget": 4, "concurrency": 2}, {"budget": 8, "concurrency": 4}],
    )
    assert made.configurations[0].load_points == ["c1", "c2", "c4"]
    assert made.skipped == []


def test_with_a_tree_the_budget_counts_again() -> None:
    made = make(**EAGLE, budgets=[8, 16], topks=[4], settings={"steps": 5})
    assert [item.verify_width for item in made.configurations] == [8, 16]


def test_nothing_left_says_why() -> None:
    with pytest.raises(PlanError, match=r"^budgets: nothing is left to run: llama.cpp's server drafts a chain"):
        make(budgets=[8], topks=[2], baseline=False)
    with pytest.raises(PlanError, match=r"^budgets: nothing is left to run: excluded: budget 8$"):
        make(budgets=[8], exclude={"budget": 8}, baseline=False)


def test_labels_are_unique_also_where_the_engine_word_is_the_same() -> None:
    made = make(budgets=[8], linked=[{"threads": 1}, {"threads": 2}], axes={"verbosity": [3, 4]})
    assert len(set(labels(made))) == len(made.configurations) == 8


# names that do not exist


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"axes": {"max_runing_requests": [1]}}, r"^axes: max_runing_requests: .*did you mean .*max_running_requests"),
        ({"settings": {"page_sise": 1}}, r"^settings: page_sise: .*did you mean page_size"),
        ({"linked": [{"tp_sise": 1}]}, r"^linked: tp_sise: .*did you mean .*tp_size"),
        ({"exclude": [{"buget": 1}]}, r"^exclude: buget: "),
        ({"methods": ["ngrm"]}, r"^methods: expected methods of sglang \(none, ngram, .*did you mean ngram\?$"),
        ({"methods": ["zzz"]}, r"^methods: expected methods of sglang \(none, ngram, .*got 'zzz'$"),
        ({"axes": {"page_size": [1]}, "settings": {"page_size": 2}}, "^axes: page_size is also in settings or linked"),
        ({"axes": {"page_size": [1]}, "linked": [{"page_size": 2}]}, "^axes: page_size is also in settings or linked"),
    ],
)
def test_an_unknown_name_is_one_line_with_near_matches(variables: dict[str, Any], line: str) -> None:
    with pytest.raises(PlanError, match=line) as caught:
        make(engine="sglang", model="m", **variables)
    assert "\n" not in str(caught.value)


def test_an_unknown_engine_names_the_known_ones() -> None:
    with pytest.raises(EngineError, match=r"expected one of .*llamacpp.*sglang.*got 'lamacpp'"):
        make(engine="lamacpp")


# order, repeats, anchors


def test_the_order_is_seeded_and_stable() -> None:
    budgets = [1, 2, 4, 8, 16, 32]
    assert order(make(budgets=budgets, seed=1)) == order(make(budgets=budgets, seed=1))
    orders = {tuple(order(make(budgets=budgets, seed=seed))) for seed in range(8)}
    assert len(orders) > 4
    # Pinned: a sweep that is planned again must run in the order that its record tells.
    assert order(make(budgets=[2, 4, 8], seed=1)) == ["ngram-mod b8 k1", "none", "ngram-mod b4 k1", "ngram-mod b2 k1"]


def test_given_is_the_order_of_the_user() -> None:
    assert order(make(budgets=[16, 2, 8], order="given")) == ["none", *(f"ngram-mod b{b} k1" for b in (16, 2, 8))]


@settings(derandomize=True, deadline=None, max_examples=25, database=None)
@given(
    budgets=st.lists(st.integers(0, 64), min_size=1, max_size=7, unique=True),
    repeats=st.integers(1, 4),
    seed=st.integers(0, 2**32),
    anchors=st.sampled_from(["auto", False, True]),
)
def test_every_block_holds_every_configuration_once(
    budgets: list[int], repeats: int, seed: int, anchors: str | bool
) -> None:
    made = make(budgets=budgets, repeats=repeats, seed=seed, anchors=anchors)
    keys = {item.key for item in made.configurations}
    assert [restart.position for restart in made.restarts] == list(range(1, len(made.restarts) + 1))
    plain = [restart for restart in made.restarts if restart.anchor is None]
    assert [restart.repeat for restart in plain] == sorted(restart.repeat for restart in plain)
    for repeat in range(1, repeats + 1):
        block = [restart.configuration for restart in plain if restart.repeat == repeat]
        assert len(block) == len(keys)
        assert set(block) == keys
    assert len(plain) == repeats * len(keys)


def test_blocks_are_shuffled_on_their_own() -> None:
    made = make(budgets=[1, 2, 4, 8, 16], repeats=4)
    blocks = [
        tuple(restart.configuration for restart in made.restarts if restart.repeat == repeat) for repeat in range(1, 5)
    ]
    assert len(set(blocks)) > 1


def anchors_of(made: Plan) -> list[tuple[int, str]]:
    return [(restart.position, restart.anchor) for restart in made.restarts if restart.anchor]


def test_anchors_come_from_six_configurations_on() -> None:
    assert anchors_of(make(budgets=[1, 2, 4, 8], anchors="auto")) == []
    made = make(budgets=[1, 2, 4, 8, 16], anchors="auto")
    assert anchors_of(made) == [(1, "start"), (5, "middle"), (9, "end")]
    baseline = next(item.key for item in made.configurations if item.baseline)
    assert {restart.configuration for restart in made.restarts if restart.anchor} == {baseline}
    assert {restart.repeat for restart in made.restarts if restart.anchor} == {0}
    assert anchors_of(make(budgets=[1, 2, 4, 8, 16], anchors=False)) == []


def test_anchors_can_be_wanted_with_few_configurations() -> None:
    assert [name for _, name in anchors_of(make(budgets=[8], anchors=True))] == ["start", "middle", "end"]
    assert [name for _, name in anchors_of(make(budgets=[0], anchors=True))] == ["start", "end"]


def test_anchors_need_a_baseline() -> None:
    with pytest.raises(PlanError, match=r"^anchors: expected a baseline"):
        make(budgets=[8], baseline=False, anchors=True)
    assert anchors_of(make(budgets=[1, 2, 4, 8, 16, 32, 64], baseline=False, anchors="auto")) == []


# identity


def test_the_key_follows_what_the_engine_gets_and_nothing_else() -> None:
    first = make(budgets=[8], baseline=False).configurations[0]
    assert make(budgets=[8, 16], baseline=False, seed=1, repeats=3).configurations[0].key == first.key
    assert make(budgets=[16], baseline=False).configurations[0].key != first.key
    assert make(budgets=[8], baseline=False, settings={"threads": 2}).configurations[0].key != first.key
    same = {"engine": "llamacpp", "engine_version": "b1", "model": "m", "drafter": None, "prompts_sha256": "p"}
    known = plan.configuration_id(first, **same)
    for name, other in (("engine_version", "b2"), ("model", "n"), ("drafter", "d"), ("prompts_sha256", "q")):
        assert plan.configuration_id(first, **{**same, name: other}) != known


# text and prediction


def test_the_plan_as_text() -> None:
    made = make(budgets=[8], topks=[1, 2], concurrencies=[1, 40], repeats=2, order="given")
    text = plan.as_text(made, ["gpu1", "gpu2"])
    assert text.splitlines()[0].startswith("engine llamacpp, prompts mixed (")
    assert "2 configurations:" in text
    assert "load points: concurrency 1 (28 requests), 40 (80 requests)" in text
    assert "4 restarts on 2 hosts, in this order:" in text
    assert "    3 none (block 2)" in text
    assert "8 cells on each host, 16 in all" in text
    assert "skipped (2): llama.cpp's server drafts a chain" in text
    assert "predicted time: unknown, nothing comparable was measured before" in text
    assert "1 configuration:" in plan.as_text(make(budgets=[0]), ["h"])


def test_the_plan_tells_the_anchors() -> None:
    text = plan.as_text(make(budgets=[1, 2, 4, 8, 16], anchors="auto"), ["h"])
    assert "(anchor, start)" in text
    assert "(anchor, end)" in text


def measured_before(results: Path, *, engine: str = "llamacpp", status: record.Status = "ok") -> None:
    """One made-up past: 100 s a restart besides measuring, 20 ms a token of one user."""
    folder = results / "20260101-000000-aaaa"
    where = folder / "here" / "none" / "r1"
    cell = record.Cell(
        cell_id="1", sweep_id="s", host="here", configuration_id="c", label="none", engine=engine, method="none",
        budget=0, concurrency=2, status=status, window_s=10.0, requests_completed=10, output_tokens_total=1000,
    )  # fmt: skip
    past = record.Configuration(
        sweep_id="s", host="here", configuration_id="c", label="none", engine=engine, method="none", budget=0,
        status=status, cells=["cells/c2.json"],
        phases=[
            record.Phase(name="load", start_unix_s=0, end_unix_s=100),
            record.Phase(name="measure", start_unix_s=100, end_unix_s=150),
        ],
    )  # fmt: skip
    record.write(folder / "sweep.json", record.Sweep(sweep_id="s", created_unix_s=0.0))
    record.write(where / "configuration.json", past)
    record.write(where / "cells" / "c2.json", cell)


def predicted(results: Path, **variables: Any) -> float | None:
    given = normalise({"anchors": False, "requests": 10, "output_tokens": 100, "concurrencies": [2], **variables})
    return predict.seconds(plan.make(given), given, results)


def test_a_time_is_predicted_only_after_a_past(tmp_path: Path) -> None:
    assert predicted(tmp_path / "nowhere") is None
    assert predicted(tmp_path) is None
    measured_before(tmp_path)
    # 100 s fixed; 10 requests in waves of 2 and one warm-up wave, each 100 tokens of 20 ms.
    assert predicted(tmp_path, budgets=[0]) == pytest.approx(100 + (10 / 2 + 1) * 100 * 0.02)
    assert predicted(tmp_path, budgets=[0], repeats=3) == pytest.approx(3 * 112)


@pytest.mark.parametrize("other", [{"engine": "sglang"}, {"status": "failed"}])
def test_another_engine_or_a_failed_cell_is_no_past(tmp_path: Path, other: dict[str, Any]) -> None:
    measured_before(tmp_path, **other)
    assert predicted(tmp_path, budgets=[0]) is None


def test_an_unreadable_past_is_passed_over(tmp_path: Path) -> None:
    measured_before(tmp_path)
    broken = tmp_path / "20260102-000000-bbbb"
    record.write(broken / "sweep.json", record.Sweep(sweep_id="t", created_unix_s=0.0))
    (broken / "h/c/r").mkdir(parents=True)
    (broken / "h/c/r/configuration.json").write_text("{")
    assert predicted(tmp_path, budgets=[0]) is not None
    made = make(budgets=[0])
    made.predicted_s = 150.0
    assert "predicted time: 2.5 minutes, from what was measured before" in plan.as_text(made, ["h"])
