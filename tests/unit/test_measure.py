"""From requests and counters to the numbers of a cell."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsweep import engine, measure
from specsweep.record import Cell, Request

LLAMACPP = engine.load("llamacpp")
SGLANG = engine.load("sglang")
VLLM = engine.load("vllm")


def request(**fields: Any) -> Request:
    given = {"id": "1", "prompt_id": "1", "category": "code", "sent_s": 0.0, "ok": True, **fields}
    return Request(**given)


def cell(**fields: Any) -> Cell:
    given = {
        "cell_id": "1", "sweep_id": "s", "host": "h", "configuration_id": "c", "label": "l", "engine": "llamacpp",
        "method": "ngram-mod", "budget": 8, "concurrency": 2, "status": "pending", **fields,
    }  # fmt: skip
    return Cell(**given)


# quantiles


def test_quantiles_of_nothing_and_of_one() -> None:
    assert measure.quantiles([]) == measure.quantiles([None]) == measure.Quantiles()
    one = measure.quantiles([5.0, None])
    assert (one.n, one.mean, one.median, one.p90, one.p99, one.min, one.max) == (1, 5, 5, 5, None, 5, 5)


def test_p99_only_from_a_hundred_values() -> None:
    assert measure.quantiles(range(1, 100)).p99 is None
    hundred = measure.quantiles(range(100, 0, -1))
    assert (hundred.p90, hundred.p99, hundred.max, hundred.median) == (90, 99, 100, 50.5)
    # Values that are not known do not count.
    assert measure.quantiles([*range(99), None]).p99 is None


@settings(derandomize=True, deadline=None, max_examples=100, database=None)
@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=150))
def test_a_percentile_is_the_smallest_value_that_enough_do_not_exceed(values: list[float]) -> None:
    found = measure.quantiles(values)
    for share, value in ((0.9, found.p90), (0.99, found.p99)):
        if value is None:
            continue
        assert sum(other <= value for other in values) >= share * len(values) - 1e-9
        assert sum(other < value for other in values) < share * len(values)


# acceptance length, by each estimator


def test_llamacpp_counts_the_steps_without_a_draft() -> None:
    done = [
        request(output_tokens=128, accepted_tokens=64, drafted_tokens=100),
        request(output_tokens=128, accepted_tokens=0, drafted_tokens=0),
    ]
    found = measure.acceptance(done, {}, LLAMACPP, "ngram-mod")
    assert found is not None
    assert (found.tokens, found.steps) == (256, 64 + 128)
    assert found.al_token_weighted == pytest.approx(256 / 192)
    assert found.al_request_weighted == pytest.approx((2 + 1) / 2)
    assert "tokens - accepted" in found.estimator
    assert (found.accepted_tokens, found.drafted_tokens) == (64, 100)


def test_the_length_of_drafted_steps_goes_by_another_name() -> None:
    """Ten drafts accepted 150 tokens; most steps had no draft."""
    point = {"counters_before": {"drafts": 5}, "counters_after": {"drafts": 15}}
    found = measure.acceptance([request(output_tokens=540, accepted_tokens=150)], point, LLAMACPP, "ngram-mod")
    assert found is not None
    assert found.length_of_drafted_steps == pytest.approx(16.0)
    assert found.al_token_weighted == pytest.approx(540 / 390)


def test_sglang_divides_by_its_verify_calls_and_checks_by_its_counters() -> None:
    done = [request(output_tokens=100, steps=40), request(output_tokens=50, steps=50)]
    point = {
        "counters_before": {"output_tokens": 1000.0, "drafts": 10.0},
        "counters_after": {"output_tokens": 1150.0, "drafts": 85.0},
    }
    found = measure.acceptance(done, point, SGLANG, "ngram")
    assert found is not None
    assert found.al_token_weighted == pytest.approx(150 / 90)
    assert found.al_request_weighted == pytest.approx((2.5 + 1) / 2)
    assert found.counters_al == pytest.approx(2.0)
    assert "spec_verify_ct" in found.estimator


def test_vllm_tells_by_counters_only() -> None:
    assert VLLM.metrics is not None
    before = dict.fromkeys(VLLM.metrics.counters, 100.0)
    after = {**before, "output_tokens": 400.0, "drafts": 200.0, "accepted_tokens": 250.0, "drafted_tokens": 500.0}
    point = {"counters_before": before, "counters_after": after}
    found = measure.acceptance([request(output_tokens=300)], point, VLLM, "ngram")
    assert found is not None
    assert found.al_request_weighted is None
    assert found.al_token_weighted == found.counters_al == pytest.approx(300 / (300 - 150))
    assert (found.tokens, found.drafts) == (300, 100)
    # Only the steps that had a draft, so another number than the acceptance length.
    assert found.length_of_drafted_steps == pytest.approx(2.5)


def test_without_speculation_every_step_is_one_token() -> None:
    found = measure.acceptance([request(output_tokens=7), request(output_tokens=9)], {}, SGLANG, "none")
    assert found is not None
    assert (found.al_token_weighted, found.al_request_weighted, found.steps) == (1.0, 1.0, 16)
    assert found.estimator == "no speculation: one token a step"


def test_one_request_without_its_numbers_makes_the_requests_no_witness() -> None:
    done = [request(output_tokens=100, steps=40), request(output_tokens=50)]
    assert measure.acceptance(done, {}, SGLANG, "ngram") is None
    point = {
        "counters_before": {"output_tokens": 0, "drafts": 0},
        "counters_after": {"output_tokens": 150, "drafts": 75},
    }
    found = measure.acceptance(done, point, SGLANG, "ngram")
    assert found is not None
    assert (found.al_token_weighted, found.al_request_weighted) == (2.0, None)


@pytest.mark.parametrize("accepted", [128, 200])
def test_impossible_counts_are_no_acceptance(accepted: int) -> None:
    """As many accepted as there are tokens leave no step; a negative number of steps is none either."""
    done = [request(output_tokens=128, accepted_tokens=accepted)]
    assert measure.steps_of(done[0], LLAMACPP, "ngram-mod") is None
    assert measure.acceptance(done, {}, LLAMACPP, "ngram-mod") is None


def test_a_counted_zero_is_a_zero() -> None:
    done = [request(output_tokens=8, accepted_tokens=0, drafted_tokens=0)]
    found = measure.acceptance(done, {}, LLAMACPP, "ngram-mod")
    assert found is not None
    assert (found.drafted_tokens, found.accepted_tokens, found.drafts) == (0, 0, None)


def test_failed_requests_are_in_no_acceptance() -> None:
    done = [request(output_tokens=10, accepted_tokens=5), request(ok=False, output_tokens=100, accepted_tokens=0)]
    found = measure.acceptance(done, {}, LLAMACPP, "ngram-mod")
    assert found is not None
    assert found.al_token_weighted == 2.0
    assert measure.acceptance([request(ok=False, output_tokens=100)], {}, LLAMACPP, "none") is None


def test_histograms_of_different_length_add_up() -> None:
    done = [request(output_tokens=4, steps=2, histogram=[1, 1]), request(output_tokens=6, steps=3, histogram=[1, 0, 2])]
    found = measure.acceptance(done, {}, SGLANG, "ngram")
    assert found is not None
    assert found.histogram == [2, 1, 2]


# counters


def test_counters_that_went_back_are_left_out() -> None:
    before = {"output_tokens": 500, "drafts": 10, "requests_running": 0, "text": "x", "new": None}
    after = {"output_tokens": 20, "drafts": 15, "requests_running": 3, "text": "y", "new": 4, "later": 1}
    assert measure.differences(before, after) == {"drafts": 5.0}


def test_not_a_number_is_no_difference() -> None:
    assert measure.differences({"a": math.nan, "b": 1.0}, {"a": 1.0, "b": math.nan}) == {}


def test_counts_per_position_are_differences_too() -> None:
    def positions(before: list[int] | None, after: list[int] | None) -> list[int] | None:
        point = {
            "counters_before": {"accepted_per_position": before},
            "counters_after": {"accepted_per_position": after},
        }
        found = measure.acceptance([request(output_tokens=8, accepted_tokens=4)], point, LLAMACPP, "ngram-mod")
        assert found is not None
        return found.accepted_per_position

    assert positions([3, 1], [10, 5]) == [7, 4]
    assert positions([], [10, 5]) == [10, 5]
    assert positions(None, [10, 5, 1]) == [10, 5, 1]
    assert positions([3], [10, 5]) == [7, 5]
    assert positions([3, 1], [2, 5]) is None
    assert positions([3, 1], None) is None


# the cell


def measured(**point: Any) -> dict[str, Any]:
    return {"window_s": 10.0, "window_start_unix_s": 1.0, "lag_ms_p99": 2.0, "client_version": "1", **point}


TWO = [
    request(category="code", output_tokens=100, accepted_tokens=50, prompt_tokens=10, cached_tokens=0, e2e_ms=8000.0,
            ttft_ms=100.0, tpot_ms=79.8, server_ms=7900.0),
    request(category="text", output_tokens=100, accepted_tokens=0, prompt_tokens=12, cached_tokens=3, e2e_ms=10000.0,
            ttft_ms=200.0, tpot_ms=98.99, server_ms=9900.0),
]  # fmt: skip


def test_the_numbers_of_a_cell() -> None:
    made = cell()
    measure.fill(made, TWO, measured(), LLAMACPP, 100.0)
    assert (made.requests_asked, made.requests_completed, made.requests_failed) == (2, 2, 0)
    assert made.system_tok_s == pytest.approx(20.0)
    assert made.running_mean == pytest.approx(1.8)
    assert made.per_user_tok_s == pytest.approx(1000 / ((79.8 + 98.99) / 2))
    assert (made.prompt_tokens_total, made.cached_prompt_tokens, made.output_tokens_total) == (22, 3, 200)
    assert made.server_time_ms == pytest.approx(17800.0)
    assert made.client is not None
    assert made.client.overloaded is False
    assert made.categories["code"].al_token_weighted == pytest.approx(2.0)
    assert made.categories["text"].al_token_weighted == pytest.approx(1.0)


@settings(derandomize=True, deadline=None, max_examples=60, database=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(2, 400), st.integers(0, 300), st.floats(1, 1e5)).filter(lambda row: row[1] < row[0]),
        min_size=1, max_size=12,
    ),
    window_s=st.floats(0.1, 1e4),
)  # fmt: skip
def test_running_sequences_times_al_over_step_time_is_the_system_speed(
    rows: list[tuple[int, int, float]], window_s: float
) -> None:
    done = [request(output_tokens=n, accepted_tokens=k, e2e_ms=ms, tpot_ms=1.0) for n, k, ms in rows]
    made = cell()
    measure.fill(made, done, measured(window_s=window_s), LLAMACPP, 100.0)
    # From the definitions, not from the record: steps a second of one sequence, over all that ran.
    steps = sum(n - k for n, k, _ in rows)
    tokens = sum(n for n, _, _ in rows)
    busy_s = sum(ms for _, _, ms in rows) / 1000
    assert made.step_time_ms == pytest.approx(1000 * busy_s / steps)
    assert made.acceptance is not None
    assert made.acceptance.al_token_weighted is not None
    assert made.running_mean is not None
    speed = made.running_mean * made.acceptance.al_token_weighted / (made.step_time_ms / 1000)
    assert speed == pytest.approx(tokens / window_s) == pytest.approx(made.system_tok_s)


def test_a_cell_without_an_answer_has_counts_and_no_numbers() -> None:
    made = cell()
    failed = [request(ok=False, error="x", phantom=True), request(ok=False, error="y")]
    measure.fill(made, failed, measured(), LLAMACPP, 100.0)
    assert (made.requests_asked, made.requests_completed, made.requests_failed, made.phantom_successes) == (2, 0, 2, 1)
    assert (made.system_tok_s, made.ttft_ms, made.acceptance, made.output_tokens_total) == (None, None, None, None)


def test_a_client_that_was_late_is_overloaded() -> None:
    made = cell()
    measure.fill(made, TWO, measured(lag_ms_p99=100.5), LLAMACPP, 100.0)
    assert made.client is not None
    assert made.client.overloaded is True


def test_truncation_counts_only_where_the_end_is_natural() -> None:
    cut = [request(output_tokens=8, finish_reason="limit"), request(output_tokens=5, finish_reason="eos")]
    for mode, expected in (("natural", 1), ("exact", 0)):
        made = cell(output_mode=mode)
        measure.fill(made, cut, measured(), LLAMACPP, 100.0)
        assert made.requests_truncated == expected


def test_a_server_time_is_given_only_where_every_request_has_one() -> None:
    made = cell()
    measure.fill(made, [TWO[0], request(output_tokens=5, accepted_tokens=0)], measured(), LLAMACPP, 100.0)
    assert made.server_time_ms is None


# GPU telemetry


@pytest.mark.parametrize(
    ("mask", "reasons"),
    [
        ("0x0000000000000000", []),
        ("0x0000000000000001", []),
        ("0x0000000000000004", ["sw_power_cap"]),
        ("0x0000000000000008", ["hw_slowdown"]),
        ("0x0000000000000048", ["hw_slowdown", "hw_thermal_slowdown"]),
        ("0x00000000000000A4", ["sw_power_cap", "sw_thermal_slowdown", "hw_power_brake_slowdown"]),
        ("0x0000000000000112", []),
        ("[N/A]", []),
        ("Not Active", []),
        ("", []),
        (None, []),
    ],
)
def test_throttle_bits(mask: Any, reasons: list[str]) -> None:
    assert measure.throttle_reasons(mask) == reasons


def sample(at: float, **fields: Any) -> dict[str, Any]:
    return {"at_unix_s": at, "index": "0", "name": "H200", **fields}


def test_telemetry_is_that_of_the_window() -> None:
    rows = [
        sample(0, **{"clocks.sm": "100", "clocks_throttle_reasons.active": "0x8"}),
        sample(1, **{"clocks.sm": "1000", "power.draw": "400.5", "utilization.gpu": "50"}),
        sample(2, **{"clocks.sm": "2000", "power.draw": "[N/A]", "utilization.gpu": "100", "foreign": [7]}),
        sample(2, index="1", **{"clocks.sm": "1", "clocks_throttle_reasons.active": "0x4"}),
        sample(3, **{"clocks.sm": "9000"}),
        {"index": "0", "name": "H200"},
    ]
    first, second = measure.telemetry(rows, 0.5, 2.5)
    assert (first.gpu, first.samples, first.sm_clock_mhz_median, first.power_w_max) == ("0 H200", 2, 1500, 400.5)
    assert first.sm_clock_spread == pytest.approx(1000 / 1500)
    assert (first.utilization_mean, first.throttle_reasons, first.foreign_processes) == (0.75, [], ["7"])
    assert (second.gpu, second.throttle_reasons) == ("1 H200", ["sw_power_cap"])


@pytest.mark.parametrize("clocks", [["0", "0"], ["0", "0", "1500"], [], ["[N/A]"]])
def test_a_gpu_that_sleeps_has_no_spread(clocks: list[str]) -> None:
    rows = [sample(1, **{"clocks.sm": clock}) for clock in clocks] or [sample(1)]
    [found] = measure.telemetry(rows, 0, 2)
    assert found.sm_clock_spread is None


def test_no_sample_is_no_telemetry() -> None:
    assert measure.telemetry([], 0, 1) == []
