"""Verdicts on made data whose truth is known."""

import math

import numpy as np
import pytest

from analysis import results as loading
from analysis import statistics, verdicts
from benchmarks.make_results import Plan, Truth, write_sweep
from specsweep import record
from tests.made import cell, restarts, results


def only(frame, **wanted):
    for name, value in wanted.items():
        frame = frame[frame[name] == value]
    assert len(frame) == 1, frame
    return frame.iloc[0]


def planted(tmp_path, repeats, gain, seed=11):
    """A made sweep in which budget 8 is `gain` times as fast as the baseline, step for step."""
    plan = Plan(budgets=(8,), concurrencies=(8,), repeats=repeats, request_files=False, seed=seed)
    truth = Truth(al_gain=0.0, width_ms=0.0, request_sd=0.0, gain=lambda method, *_: gain if method != "none" else 1.0)
    return loading.load(write_sweep(tmp_path, plan, truth))


def test_a_planted_gain_of_three_percent_is_found_with_enough_restarts(tmp_path):
    row = only(verdicts.verdicts(planted(tmp_path, 10, 1.03)), budget=8)
    assert row["verdict"] == "better"
    assert row["low"] < 1.03 < row["high"]
    assert row["interval_method"] == "signed rank"


def test_the_same_gain_is_underpowered_with_two_restarts(tmp_path):
    row = only(verdicts.verdicts(planted(tmp_path, 2, 1.03)), budget=8)
    assert row["verdict"] == "underpowered"
    assert row["restarts_needed"] >= 3
    assert row["more_restarts"] == row["restarts_needed"] - 2
    assert "more would settle" in row["sentence"]


def test_two_restarts_are_almost_never_enough_for_three_percent():
    """Not one lucky seed: at this scatter two restarts find 3 % in few of 300 sweeps, ten in nearly all."""
    rng = np.random.default_rng(2)
    found = {2: 0, 10: 0}
    for n in found:
        for _ in range(300):
            pairs = [(1.03 * math.exp(rng.normal(0, 0.006)), math.exp(rng.normal(0, 0.006))) for _ in range(n)]
            found[n] += verdicts.decide(statistics.paired_ratio(pairs), 0.01) == "better"
    assert found[2] < 0.4 * 300
    assert found[10] > 0.95 * 300


@pytest.mark.parametrize("n", [2, 3, 6, 10])
def test_a_thousand_null_comparisons_give_few_false_betters(n):
    rng = np.random.default_rng(100 + n)
    wrong = 0
    for _ in range(1000):
        pairs = [(math.exp(rng.normal(0, 0.02)), math.exp(rng.normal(0, 0.02))) for _ in range(n)]
        wrong += verdicts.decide(statistics.paired_ratio(pairs), 0.01) == "better"
    assert wrong / 1000 <= statistics.false_rate_bound(1000, 0.05)


def test_a_thousand_null_comparisons_through_the_frames():
    """The same through the whole of `verdicts`: 1000 configurations that are the baseline in disguise."""
    rng = np.random.default_rng(42)
    cells = []
    for number in range(250):
        fields = {"host": f"host{number}"}
        cells += restarts(100 * np.exp(rng.normal(0, 0.02, 5)), budget=0, **fields)
        for budget in (2, 4, 8, 16):
            cells += restarts(100 * np.exp(rng.normal(0, 0.02, 5)), budget=budget, **fields)
    frame = verdicts.verdicts(results(cells))
    frame = frame[frame["verdict"] != "baseline"]
    assert len(frame) == 1000
    # Four comparisons share a baseline, so they are not independent: three sigmas of 250, not of 1000.
    assert frame["verdict"].eq("better").mean() <= statistics.false_rate_bound(250, 0.05)
    assert set(frame["verdict"]) >= {"underpowered"}


def test_equal_things_with_enough_restarts_are_a_tie():
    rng = np.random.default_rng(9)
    cells = restarts(100 * np.exp(rng.normal(0, 0.004, 12)), budget=0)
    cells += restarts(100 * np.exp(rng.normal(0, 0.004, 12)), budget=8)
    row = only(verdicts.verdicts(results(cells)), budget=8)
    assert row["verdict"] == "tie"


def test_one_restart_gives_no_verdict_and_no_winner():
    data = results([cell(budget=0, tok_s=100.0), cell(budget=8, tok_s=300.0)])
    frame = verdicts.verdicts(data)
    row = only(frame, budget=8)
    assert row["verdict"] == "no verdict"
    assert row["ratio"] == pytest.approx(3.0)
    assert "one restart: no verdict" in row["sentence"]
    assert list(verdicts.winners(frame, data)["standing"]) == ["no verdict"]


def test_repeats_inside_one_restart_are_one_number():
    """A hundred measurements of one restart are still one restart."""
    cells = [cell(budget=0, tok_s=100.0 + n / 10, cell_id=f"a{n}") for n in range(100)]
    cells += [cell(budget=8, tok_s=103.0 + n / 10, cell_id=f"b{n}") for n in range(100)]
    row = only(verdicts.verdicts(results(cells)), budget=8)
    assert (row["n"], row["verdict"]) == (1, "no verdict")


def test_blocks_cancel_a_drift_that_would_hide_the_gain():
    """Every restart is 5 % slower than the one before; only pairing by block shows the gain of 2 %."""
    drift = 0.95 ** np.arange(8)
    wobble = np.array([1.001, 0.999, 1.0, 1.002, 0.998, 1.001, 0.999, 1.0])
    cells = restarts(100 * drift, budget=0) + restarts(102 * drift * wobble, budget=8)
    row = only(verdicts.verdicts(results(cells)), budget=8)
    assert row["verdict"] == "better"
    apart = statistics.unpaired_ratio(list(102 * drift * wobble), list(100 * drift))
    assert verdicts.decide(apart, 0.01) == "underpowered"


def test_hosts_prompts_and_versions_are_never_pooled():
    cells = restarts([100.0, 101.0, 99.0], budget=0)
    for change in (
        {"host": "host2"},
        {"prompts_sha256": "1" * 64},
        {"engine_version": "another"},
        {"temperature": 1.0},
        {"output_tokens": 4096},
        {"sweep_id": "another"},
        {"prompts_reused": True},
    ):
        data = results(cells + restarts([150.0, 151.0, 149.0], budget=8, **change))
        row = only(verdicts.verdicts(data), budget=8)
        assert row["reference_kind"] != "baseline", change
        assert row["verdict"] in ("no baseline", "reference"), change
    data = results(cells + restarts([150.0], budget=8, host="host2", engine_version="another"))
    said = " ".join(verdicts.what_differs(data))
    assert "2 hosts" in said and "2 engine versions" in said


def test_different_truncation_is_not_comparable():
    natural = {"output_mode": "natural", "output_tokens": 512}
    cells = restarts([100.0, 101.0], budget=0, requests_truncated=0, **natural)
    cells += restarts([150.0, 151.0], budget=8, requests_truncated=8, **natural)
    data = results(cells)
    row = only(verdicts.verdicts(data), budget=8)
    assert row["verdict"] == "not comparable"
    assert "50%" in row["sentence"].replace(" ", "")
    assert any("truncation" in line for line in verdicts.what_differs(data))


def test_a_replay_never_gets_a_verdict():
    cells = restarts([100.0, 101.0, 99.0], budget=0, origin="replay")
    cells += restarts([200.0, 201.0, 199.0], budget=8, origin="replay")
    data = results(cells)
    frame = verdicts.verdicts(data)
    assert set(frame["verdict"]) <= {"no verdict"}
    assert frame["ratio"].isna().all()
    assert not verdicts.winners(frame, data)["standing"].isin(["better", "confirmed", "not yet confirmed"]).any()


def test_a_replayed_number_enters_nothing():
    """Rehearsed cells beside measured ones change no number of the measured ones."""
    cells = restarts([100.0, 101.0], budget=0) + restarts([150.0, 151.0], budget=8)
    replayed = [cell(budget=8, repeat=3, tok_s=900.0, origin="replay", al=9.0)]
    alone, beside = results(cells), results(cells + replayed)
    assert only(verdicts.verdicts(beside), budget=8)["value"] == only(verdicts.verdicts(alone), budget=8)["value"]
    assert verdicts.noise_floor(beside).equals(verdicts.noise_floor(alone))


def test_failed_invalid_and_pending_keep_their_rows():
    failure = record.Failure(klass="cuda.oom")
    cells = restarts([100.0, 100.0], budget=0)
    cells += [
        cell(budget=16, tok_s=None, failure=failure),
        cell(budget=32, tok_s=120.0, status="invalid"),
        cell(budget=64, tok_s=None, status="pending"),
    ]
    frame = verdicts.verdicts(results(cells))
    found = dict(zip(frame["budget"], frame["verdict"], strict=True))
    assert found == {0: "baseline", 16: "failed", 32: "invalid", 64: "pending"}
    assert "cuda.oom" in only(frame, budget=16)["sentence"]


def test_a_failed_baseline_is_said():
    row = only(verdicts.verdicts(results([cell(budget=0, tok_s=None), cell(budget=8)])), budget=8)
    assert row["verdict"] == "no baseline"


def test_anchors_enter_no_verdict_and_make_the_noise_floor():
    cells = restarts([100.0, 100.0], budget=0) + restarts([120.0, 121.0], budget=8)
    cells += [cell(budget=0, tok_s=value, repeat=0, anchor=name) for name, value in (("start", 90.0), ("end", 110.0))]
    data = results(cells)
    assert only(verdicts.verdicts(data), budget=0)["n"] == 2
    floor = verdicts.noise_floor(data)
    row = only(floor, source="anchors")
    assert (row["n"], row["spread"]) == (4, pytest.approx(0.2))


def test_drift_is_measured_by_the_anchors(tmp_path):
    truth = Truth(drift=0.06, restart_sd=0.0, request_sd=0.0)
    plan = Plan(repeats=3, anchors=("start", "middle", "end"), request_files=False)
    data = loading.load(write_sweep(tmp_path, plan, truth))
    moved = verdicts.drift(data)
    assert list(moved["anchors"]) == [3, 3, 3]
    assert moved["change"].to_numpy() == pytest.approx(-0.06, abs=0.002)
    assert "-6.0 % from the first anchor to the last" in moved["sentence"].iloc[0]


def test_a_winner_of_many_is_confirmed_only_by_a_later_sweep():
    def sweep(sweep_id, speeds):
        cells = restarts([100.0, 101.0, 99.0], budget=0, sweep_id=sweep_id)
        for budget, speed in speeds.items():
            cells += restarts([speed, speed * 1.01, speed * 0.99], budget=budget, sweep_id=sweep_id)
        return cells

    sweeps = [record.Sweep(sweep_id="first", created_unix_s=1.0), record.Sweep(sweep_id="second", created_unix_s=2.0)]
    first = results(sweep("first", {8: 150.0, 16: 170.0}), sweeps=sweeps)
    picked = verdicts.winners(verdicts.verdicts(first), first).iloc[0]
    assert (picked["budget"], picked["standing"]) == (16, "not yet confirmed")
    assert "picked out of 2" in picked["sentence"]
    again = results(sweep("first", {8: 150.0, 16: 170.0}) + sweep("second", {16: 168.0}), sweeps=sweeps)
    assert verdicts.winners(verdicts.verdicts(again), again).iloc[0]["standing"] == "confirmed"
    flop = results(sweep("first", {8: 150.0, 16: 170.0}) + sweep("second", {16: 99.0}), sweeps=sweeps)
    assert verdicts.winners(verdicts.verdicts(flop), flop).iloc[0]["standing"] == "not yet confirmed"


def test_the_winner_names_rivals_that_it_is_not_told_apart_from():
    cells = restarts([100.0, 101.0, 99.0], budget=0)
    cells += restarts([150.0, 152.0, 148.0], budget=8) + restarts([151.0, 149.0, 153.0], budget=16)
    cells += restarts([120.0, 121.0, 119.0], budget=32)
    data = results(cells)
    row = verdicts.winners(verdicts.verdicts(data), data).iloc[0]
    assert row["budget"] == 16
    assert row["tied_with"] == "ddtree b8"


def test_settings_find_the_baseline_that_fits():
    cells = [cell(budget=0, tok_s=tok, settings={"x": x}, max_running=64) for x, tok in ((1, 100.0), (2, 200.0))]
    cells.append(cell(budget=8, tok_s=300.0, settings={"x": 2, "only_speculative": 5}, max_running=64))
    row = only(verdicts.verdicts(results(cells)), budget=8)
    assert row["ratio"] == pytest.approx(1.5)


def test_without_any_baseline_the_smallest_width_is_the_reference():
    cells = restarts([100.0, 101.0], budget=4) + restarts([120.0, 121.0], budget=8)
    frame = verdicts.verdicts(results(cells))
    assert only(frame, budget=4)["verdict"] == "reference"
    row = only(frame, budget=8)
    assert (row["reference"], row["reference_kind"]) == ("ddtree b4", "smallest width")


def test_pairing_by_prompt_finds_what_mixed_prompts_hide(tmp_path):
    """Prompts differ wildly, restarts little: paired by prompt the ratio of one restart is tight."""
    plan = Plan(budgets=(8,), concurrencies=(4,), repeats=3, requests=40, anchors=())
    truth = Truth(
        al_gain=0.0,
        width_ms=0.0,
        restart_sd=0.002,
        request_sd=0.01,
        gain=lambda method, *_: 1.05 if method != "none" else 1.0,
    )
    data = loading.load(write_sweep(tmp_path, plan, truth))
    ratios = verdicts.prompt_ratios(data)
    assert list(ratios["repeat"]) == [1, 2, 3]
    assert (ratios["prompts"] == 40).all()
    assert ratios["low"].lt(1.06).all() and ratios["high"].gt(1.04).all()
    row = verdicts.paired_by_prompt(data).iloc[0]
    assert (row["verdict"], row["restarts"]) == ("better", 3)
