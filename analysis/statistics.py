"""Small pure functions on numbers: intervals, sample sizes, noise floors.

Every comparison works on logarithms, so that a ratio and its inverse are treated alike, and every sample is
one restart of the engine: requests and repeats inside one restart are not independent, and enter as one number.

Intervals are distribution-free where the sample allows it at the level asked for (from 6 pairs, or 4 against
4, for 95 %): Wilcoxon's signed-rank and rank-sum intervals around the Hodges-Lehmann estimate.  Smaller
samples get Student's t (Welch's for two samples) on logarithms, which assumes that restarts scatter
log-normally; `method` says which it was.  A bootstrap over two to five restarts is not offered: its intervals
are too short there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import stats

Array = np.ndarray[Any, np.dtype[np.float64]]

LEVEL = 0.95
POWER = 0.8

#: Restarts beyond which "more restarts" is no longer advice.
MOST_RESTARTS = 200


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval; `low` and `high` are NaN where the sample has none."""

    estimate: float
    low: float
    high: float
    n: int
    method: str

    @property
    def known(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)


def finite(values: Sequence[float] | Array) -> Array:
    """The finite values as float64."""
    array = np.asarray(values, dtype=np.float64)
    return array[np.isfinite(array)]


def median(values: Sequence[float]) -> float:
    """Median of the finite values; NaN when there is none."""
    ordered = sorted(value for value in values if math.isfinite(value))
    middle = len(ordered) // 2
    if not ordered:
        return math.nan
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def median_interval(values: Sequence[float] | Array, level: float = LEVEL) -> Interval:
    """Distribution-free interval of a median from order statistics (the sign test's inversion).

    For 95 % it needs 6 values; below that the interval is unknown and says so.
    """
    ordered = np.sort(finite(values))
    n = len(ordered)
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0, "no values")
    middle = float(np.median(ordered))
    rank = _median_rank(n, level)
    if rank < 1:
        return Interval(middle, math.nan, math.nan, n, f"{n} values are too few")
    return Interval(middle, float(ordered[rank - 1]), float(ordered[n - rank]), n, "order statistics")


@lru_cache(maxsize=512)
def _median_rank(n: int, level: float) -> int:
    """Largest rank k, counted from 1, with P(Binomial(n, 1/2) < k) <= (1 - level) / 2; 0 when none has."""
    rank = int(stats.binom.ppf((1 - level) / 2, n, 0.5))
    while rank > 0 and stats.binom.cdf(rank - 1, n, 0.5) > (1 - level) / 2:
        rank -= 1
    return rank


@lru_cache(maxsize=4096)
def _t_quantile(probability: float, df: float) -> float:
    return float(stats.t.ppf(probability, df))


@lru_cache(maxsize=512)
def _signed_rank_cut(n: int, level: float) -> int:
    """How many of the smallest Walsh averages to leave out on each side; -1 when n is too small."""
    if n > 60:
        mean, sd = n * (n + 1) / 4, math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
        return math.floor(mean - float(stats.norm.ppf((1 + level) / 2)) * sd) - 1
    ways = np.zeros(n * (n + 1) // 2 + 1)
    ways[0] = 1.0
    for rank in range(1, n + 1):
        ways[rank:] = ways[rank:] + ways[:-rank]
    return _largest_tail(ways / 2.0**n, level)


@lru_cache(maxsize=512)
def _rank_sum_cut(n: int, m: int, level: float) -> int:
    """The same for the n x m differences of two samples."""
    if n * m > 1600:
        mean, sd = n * m / 2, math.sqrt(n * m * (n + m + 1) / 12)
        return math.floor(mean - float(stats.norm.ppf((1 + level) / 2)) * sd) - 1
    # Coefficients of the Gaussian binomial: ways to reach each value of U.
    ways = np.zeros(n * m + 1)
    ways[0] = 1.0
    for step in range(1, n + 1):
        ways = _times(ways, m + step)
        ways = _divided(ways, step)
    return _largest_tail(ways / ways.sum(), level)


def _times(ways: Array, power: int) -> Array:
    """Multiply by (1 - q^power), cut to the same length."""
    shifted = np.zeros_like(ways)
    if power < len(ways):
        shifted[power:] = ways[:-power]
    return ways - shifted


def _divided(ways: Array, power: int) -> Array:
    """Divide by (1 - q^power)."""
    out = ways.copy()
    for index in range(power, len(out)):
        out[index] += out[index - power]
    return out


def _largest_tail(probabilities: Array, level: float) -> int:
    tail = np.cumsum(probabilities)
    # A hair of slack: the sums are exact fractions, the floats are not.
    below = np.flatnonzero(tail <= (1 - level) / 2 + 1e-12)
    return int(below[-1]) if len(below) else -1


def _t_half_width(sd: float, n: float, df: float, level: float) -> float:
    return _t_quantile((1 + level) / 2, df) * sd / math.sqrt(n)


def paired_ratio(pairs: Sequence[tuple[float, float]], level: float = LEVEL) -> Interval:
    """Ratio first / second over pairs of restarts that were measured in the same block.

    Pairs with a value that is not finite and positive are left out.  One pair gives an estimate, no interval.
    """
    logs = np.array([math.log(a) - math.log(b) for a, b in pairs if _positive(a) and _positive(b)])
    return _exponential(_location(logs, level))


def unpaired_ratio(first: Sequence[float], second: Sequence[float], level: float = LEVEL) -> Interval:
    """Ratio of two samples of restarts that were not measured in the same blocks."""
    a = np.log([value for value in first if _positive(value)])
    b = np.log([value for value in second if _positive(value)])
    n, m = len(a), len(b)
    if not n or not m:
        return Interval(math.nan, math.nan, math.nan, 0, "no values")
    differences = np.sort(np.subtract.outer(a, b).ravel())
    cut = _rank_sum_cut(n, m, level)
    if cut >= 0:
        middle = float(np.median(differences))
        found = Interval(middle, float(differences[cut]), float(differences[-1 - cut]), min(n, m), "rank sum")
        return _exponential(found)
    middle = float(a.mean() - b.mean())
    if n < 2 or m < 2:
        return _exponential(Interval(middle, math.nan, math.nan, min(n, m), "one restart"))
    va, vb = float(a.var(ddof=1)) / n, float(b.var(ddof=1)) / m
    spread = va + vb
    if spread == 0:
        return _exponential(Interval(middle, middle, middle, min(n, m), "Welch's t"))
    df = spread**2 / (va**2 / (n - 1) + vb**2 / (m - 1))
    half = _t_quantile((1 + level) / 2, df) * math.sqrt(spread)
    return _exponential(Interval(middle, middle - half, middle + half, min(n, m), "Welch's t"))


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _location(values: Array, level: float) -> Interval:
    n = len(values)
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0, "no values")
    if n == 1:
        return Interval(float(values[0]), math.nan, math.nan, 1, "one restart")
    cut = _signed_rank_cut(n, level)
    if cut >= 0:
        rows, columns = np.triu_indices(n)
        walsh = np.sort((values[rows] + values[columns]) / 2)
        return Interval(float(np.median(walsh)), float(walsh[cut]), float(walsh[-1 - cut]), n, "signed rank")
    middle = float(values.mean())
    half = _t_half_width(float(values.std(ddof=1)), n, n - 1, level)
    return Interval(middle, middle - half, middle + half, n, "Student's t")


def _exponential(interval: Interval) -> Interval:
    def back(value: float) -> float:
        return math.exp(min(value, 700.0)) if not math.isnan(value) else math.nan

    return Interval(back(interval.estimate), back(interval.low), back(interval.high), interval.n, interval.method)


def scatter(pairs: Sequence[tuple[float, float]]) -> float:
    """Sample standard deviation of the log ratios of pairs; NaN for fewer than two."""
    logs = [math.log(a) - math.log(b) for a, b in pairs if _positive(a) and _positive(b)]
    return float(np.std(logs, ddof=1)) if len(logs) > 1 else math.nan


def restarts_for(difference: float, sd: float, level: float = LEVEL, power: float = POWER) -> int | None:
    """Restarts (pairs) with which a log-ratio `difference` would be found with probability `power`.

    sd: standard deviation of one pair's log ratio.  From the t distribution.  None beyond MOST_RESTARTS.
    """
    difference = abs(difference)
    if not (_positive(difference) and math.isfinite(sd)):
        return None
    if sd <= 0:
        return 2
    for n in range(2, MOST_RESTARTS + 1):
        df = n - 1
        needed = _t_quantile((1 + level) / 2, df) + _t_quantile(power, df)
        if needed * sd / math.sqrt(n) <= difference:
            return n
    return None


def mean_interval_by_block(
    blocks: Sequence[Sequence[float]], level: float = LEVEL, draws: int = 2000, seed: int = 0
) -> Interval:
    """Percentile bootstrap of a mean that draws whole blocks (prompts), never single values.

    For many blocks inside one restart: it describes that restart and says nothing of the next.  Fewer than 8
    blocks have no interval.
    """
    means = [(float(np.sum(finite(block))), len(finite(block))) for block in blocks]
    sums = np.array([total for total, count in means if count])
    counts = np.array([count for _, count in means if count], dtype=np.float64)
    if not len(sums):
        return Interval(math.nan, math.nan, math.nan, 0, "no values")
    middle = float(sums.sum() / counts.sum())
    if len(sums) < 8:
        return Interval(middle, math.nan, math.nan, len(sums), f"{len(sums)} blocks are too few")
    chosen = np.random.default_rng(seed).integers(0, len(sums), size=(draws, len(sums)))
    drawn = sums[chosen].sum(axis=1) / counts[chosen].sum(axis=1)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(middle, float(low), float(high), len(sums), "block bootstrap")


def spread(values: Sequence[float] | Array) -> float:
    """(max - min) / mean of values that should be equal; NaN for fewer than two."""
    known = finite(values)
    if len(known) < 2 or known.mean() <= 0:
        return math.nan
    return float((known.max() - known.min()) / known.mean())


def relative_sd(values: Sequence[float] | Array) -> float:
    """Sample standard deviation of the logarithms; NaN for fewer than two."""
    known = finite(values)
    known = known[known > 0]
    return float(np.std(np.log(known), ddof=1)) if len(known) > 1 else math.nan


def false_rate_bound(trials: int, rate: float, sigmas: float = 3.0) -> float:
    """Largest observed share of `trials` that is still compatible with a true rate of `rate`."""
    return rate + sigmas * math.sqrt(rate * (1 - rate) / trials)
