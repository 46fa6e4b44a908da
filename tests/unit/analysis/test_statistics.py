"""Intervals hold what they promise, on data whose answer is known."""

import math

import numpy as np
import pytest
from scipy import stats

from analysis import statistics


def test_a_median_has_an_interval_from_six_values_on():
    assert not statistics.median_interval([1, 2, 3, 4, 5]).known
    six = statistics.median_interval([3, 1, 2, 6, 5, 4])
    assert (six.low, six.estimate, six.high) == (1, 3.5, 6)


def test_median_interval_covers_the_median():
    rng = np.random.default_rng(7)
    hits = 0
    for _ in range(1000):
        interval = statistics.median_interval(rng.exponential(size=15))
        hits += interval.low <= math.log(2) <= interval.high
    assert hits / 1000 >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / 1000)


@pytest.mark.parametrize("n", [6, 7, 10, 15])
def test_signed_rank_interval_agrees_with_scipys_exact_test(n):
    """The interval excludes 1 exactly when the exact signed-rank test rejects at 5 %."""
    rng = np.random.default_rng(n)
    decided = 0
    for _ in range(200):
        logs = rng.normal(0.7, 1.0, n)
        interval = statistics.paired_ratio([(math.exp(value), 1.0) for value in logs])
        excluded = not interval.low <= 1 <= interval.high
        assert excluded == (stats.wilcoxon(logs, method="exact").pvalue <= 0.05)
        decided += excluded
    assert 0 < decided < 200


@pytest.mark.parametrize(("n", "m"), [(4, 4), (5, 8), (10, 7)])
def test_rank_sum_interval_agrees_with_scipys_exact_test(n, m):
    rng = np.random.default_rng(n * 31 + m)
    decided = 0
    for _ in range(200):
        a, b = rng.normal(1.3, 1.0, n), rng.normal(0.0, 1.0, m)
        interval = statistics.unpaired_ratio(np.exp(a), np.exp(b))
        excluded = not interval.low <= 1 <= interval.high
        assert excluded == (stats.mannwhitneyu(a, b, method="exact").pvalue <= 0.05)
        decided += excluded
    assert 0 < decided < 200


def test_small_samples_use_students_t_and_say_so():
    pairs = [(1.03, 1.0), (1.05, 1.0), (1.01, 1.0)]
    logs = np.log([1.03, 1.05, 1.01])
    low, high = stats.t.interval(0.95, 2, loc=logs.mean(), scale=stats.sem(logs))
    interval = statistics.paired_ratio(pairs)
    assert interval.method == "Student's t"
    assert (interval.low, interval.high) == pytest.approx((math.exp(low), math.exp(high)))


def test_one_restart_has_an_estimate_and_no_interval():
    interval = statistics.paired_ratio([(2.0, 1.0)])
    assert interval.estimate == pytest.approx(2.0)
    assert not interval.known


def test_values_that_cannot_be_are_left_out():
    interval = statistics.paired_ratio([(2.0, 1.0), (math.nan, 1.0), (1.0, -3.0), (math.inf, 1.0), (2.0, 1.0)])
    assert interval.n == 2
    assert interval.estimate == pytest.approx(2.0)
    assert statistics.unpaired_ratio([], [1.0]).n == 0


def test_restarts_for_keeps_its_promise():
    """With as many restarts as it asks for, a gain of that size is found in about 80 % of seeded sweeps."""
    sd, gain = 0.02, 0.015
    needed = statistics.restarts_for(gain, sd)
    assert needed is not None
    rng = np.random.default_rng(3)
    found = 0
    for _ in range(1000):
        logs = rng.normal(gain, sd, needed)
        found += bool(stats.ttest_1samp(logs, 0.0).pvalue < 0.05 and logs.mean() > 0)
    assert 0.72 <= found / 1000 <= 0.88


def test_restarts_for_says_when_no_number_helps():
    assert statistics.restarts_for(0.0001, 0.2) is None
    assert statistics.restarts_for(0.0, 0.2) is None


def test_block_bootstrap_needs_blocks_not_values():
    few = statistics.mean_interval_by_block([[1.0] * 1000, [2.0] * 1000])
    assert not few.known
    rng = np.random.default_rng(5)
    hits = 0
    for seed in range(200):
        effects = rng.normal(0.0, 1.0, 30)
        blocks = [list(effect + rng.normal(0.0, 0.1, 20)) for effect in effects]
        interval = statistics.mean_interval_by_block(blocks, draws=400, seed=seed)
        hits += interval.low <= 0.0 <= interval.high
    # Drawing single values instead of blocks would cover the truth in about a third of these.
    assert hits / 200 >= 0.87


def test_spread_of_equal_things():
    assert statistics.spread([9.0, 10.0, 11.0]) == pytest.approx(0.2)
    assert math.isnan(statistics.spread([9.0]))
