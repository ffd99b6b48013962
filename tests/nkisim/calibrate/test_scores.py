"""Scores against formulas written the other way round, on random data."""

import itertools
import math
import random

import pytest

from nkisim.calibrate.scores import (
    GapBin,
    kendall,
    median_absolute_error,
    order_by_gap,
    signed_error,
    spearman,
)


def _data(seed, count, ties=False):
    rng = random.Random(seed)
    measured = [math.exp(rng.gauss(5, 1)) for _ in range(count)]
    predicted = [m * math.exp(rng.gauss(0, 0.4)) for m in measured]
    if ties:
        predicted = [round(p, -2) + 1 for p in predicted]
    return predicted, measured


def test_errors():
    assert signed_error(120.0, 100.0) == pytest.approx(0.2)
    assert signed_error(50.0, 100.0) == pytest.approx(-0.5)
    assert median_absolute_error([110.0, 50.0, 130.0], [100.0] * 3) == pytest.approx(0.3)
    assert math.isnan(median_absolute_error([], []))


@pytest.mark.parametrize("seed", range(5))
def test_spearman_without_ties_is_the_formula_of_squared_rank_differences(seed):
    predicted, measured = _data(seed, 23)
    rank = {v: i for i, v in enumerate(sorted(predicted))}
    other = {v: i for i, v in enumerate(sorted(measured))}
    squares = sum((rank[p] - other[m]) ** 2 for p, m in zip(predicted, measured, strict=True))
    assert spearman(predicted, measured) == pytest.approx(1 - 6 * squares / (23 * (23**2 - 1)))


def test_spearman_gives_ties_their_mean_rank():
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: covariance 4.5, variances 4.5 and 5.
    assert spearman([1, 5, 5, 9], [1, 2, 3, 4]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    assert math.isnan(spearman([1, 1], [1, 2]))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_kendall_counts_pairs_that_are_apart(seed, ties):
    predicted, measured = _data(seed, 17, ties)
    right = wrong = pairs = 0
    for i, j in itertools.combinations(range(17), 2):
        slow, fast = (i, j) if measured[i] > measured[j] else (j, i)
        if measured[slow] / measured[fast] <= 1.1:
            continue
        pairs += 1
        right += predicted[slow] > predicted[fast]
        wrong += predicted[slow] < predicted[fast]
    found = kendall(predicted, measured)
    assert found.pairs == pairs
    assert found.tau == pytest.approx((right - wrong) / pairs)


def test_kendall_of_measurements_that_are_too_close():
    found = kendall([1, 2, 3], [100, 101, 102])
    assert found.pairs == 0
    assert math.isnan(found.tau)


def test_order_by_gap():
    ladders = [([100, 103, 160], [100, 90, 120]), ([50, 200], [60, 61])]
    bins = order_by_gap(ladders, edges=(0.0, 0.1, 1.0, math.inf))
    # 100:103 wrong by 3 %; 100:160 and 103:160 right by 55-60 %; 50:200 right by 300 %.
    assert [(b.pairs, b.right) for b in bins] == [(1, 0), (2, 2), (1, 1)]
    assert math.isnan(GapBin(0, 1, 0, 0).share)


def test_intervals_are_wilsons():
    # 8 of 10 at 95 %: 0.490 to 0.943.
    low, high = GapBin(0, 1, 10, 8).interval()
    assert [low, high] == pytest.approx([0.490, 0.943], abs=1e-3)
    assert GapBin(0, 1, 0, 0).interval() == (0.0, 1.0)
