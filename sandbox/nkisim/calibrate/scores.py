"""How good predictions are: errors, rank correlations, and how often the order is right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
PAIR_GAP = 0.10
"""Pairs of a ladder count if one measurement exceeds the other by more than this share."""
GAP_EDGES = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0, math.inf)
"""Bins of the predicted gap."""


@dataclass(frozen=True, slots=True)
class Kendall:
    """Agreement of order within one ladder."""

    tau: float
    """(right - wrong) / pairs; NaN if no pair counts."""
    pairs: int


@dataclass(frozen=True, slots=True)
class GapBin:
    """How often the predicted order is right, for pairs whose predictions differ by so much."""

    low: float
    high: float
    pairs: int
    right: int

    @property
    def share(self) -> float:
        """Share of pairs in the right order; NaN without pairs."""
        return self.right / self.pairs if self.pairs else math.nan

    def interval(self, z: float = 1.96) -> tuple[float, float]:
        """Return Wilson's interval of the share."""
        if not self.pairs:
            return 0.0, 1.0
        n, p = self.pairs, self.share
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        reach = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return max(0.0, middle - reach), min(1.0, middle + reach)


def signed_error(predicted: float, measured: float) -> float:
    """Return how much too large a prediction is, as a share of the measurement."""
    return predicted / measured - 1.0


def median_absolute_error(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Return the median of the absolute relative errors; NaN without rows."""
    errors = [abs(signed_error(p, m)) for p, m in zip(predicted, measured, strict=True)]
    return float(np.median(errors)) if errors else math.nan


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the rank correlation; equal values share their mean rank.  NaN if undefined."""
    x, y = _ranks(np.asarray(a, dtype=np.float64)), _ranks(np.asarray(b, dtype=np.float64))
    x, y = x - x.mean() if len(x) else x, y - y.mean() if len(y) else y
    norm = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / norm if norm > 0 else math.nan


def kendall(
    predicted: Sequence[float], measured: Sequence[float], *, gap: float = PAIR_GAP
) -> Kendall:
    """Return the agreement of order over the pairs whose measurements are `gap` apart.

    Equal predictions count as neither right nor wrong.
    """
    balance = pairs = 0
    for p, q in _pairs(predicted, measured, gap):
        pairs += 1
        balance += (p > q) - (p < q)
    return Kendall(balance / pairs if pairs else math.nan, pairs)


def order_by_gap(
    ladders: Sequence[tuple[Sequence[float], Sequence[float]]],
    edges: Sequence[float] = GAP_EDGES,
) -> list[GapBin]:
    """Return how often the order is right, binned by the gap between the two predictions.

    Args:
        ladders: (predicted, measured) of each ladder; all pairs within a ladder count whose
            measurements differ.
        edges: Bins of the gap: larger prediction over smaller one, minus 1.
    """
    counts, right = [0] * (len(edges) - 1), [0] * (len(edges) - 1)
    for predicted, measured in ladders:
        for p, q in _pairs(predicted, measured, 0.0):
            gap = max(p, q) / min(p, q) - 1.0
            at = next(i for i in range(len(counts)) if gap < edges[i + 1])
            counts[at] += 1
            right[at] += p > q
    return [GapBin(edges[i], edges[i + 1], counts[i], right[i]) for i in range(len(counts))]


def _pairs(
    predicted: Sequence[float], measured: Sequence[float], gap: float
) -> list[tuple[float, float]]:
    """Return (prediction of the slower one, of the faster one) of each pair that counts."""
    rows = list(zip(predicted, measured, strict=True))
    found = []
    for i, (p, m) in enumerate(rows):
        for q, n in rows[i + 1 :]:
            if max(m, n) > min(m, n) * (1.0 + gap):
                found.append((p, q) if m > n else (q, p))
    return found


def _ranks(values: Floats) -> Floats:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2.0)[inverse], dtype=np.float64)
