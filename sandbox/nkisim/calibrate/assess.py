"""Scores of predictions on one machine: per row, per ladder, and in all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nkisim.calibrate.predict import Case
from nkisim.calibrate.scores import (
    GapBin,
    Kendall,
    kendall,
    median_absolute_error,
    order_by_gap,
    signed_error,
    spearman,
)

BAND_SHARE = 2 / 3
"""Share of the measured kernels whose error lies within the band."""
Prediction = Callable[[int], float]
"""Microseconds of the case with this number."""


@dataclass(frozen=True, slots=True)
class Scores:
    """How good one set of predictions is."""

    median_error: float
    """Signed."""
    median_absolute_error: float
    spearman: float
    """Over all kernels whose absolute time counts."""
    kendall: float
    """Mean over ladders."""
    ladders: Mapping[str, Kendall]
    sweeps: Mapping[str, Kendall]
    """Fine sweeps, not part of the mean."""
    order: Sequence[GapBin]
    rows: int
    """Rows whose absolute time counts."""
    band: float
    """Two thirds of the absolute errors are at most this; NaN without rows."""


def assess(cases: Sequence[Case], predict: Prediction) -> Scores:
    """Return the scores of `predict` on the cases that enter scores."""
    absolute = [i for i, case in enumerate(cases) if case.is_scored and case.row.is_absolute]
    predicted = [predict(i) for i in absolute]
    measured = [cases[i].row.latency_us for i in absolute]
    errors = [signed_error(p, m) for p, m in zip(predicted, measured, strict=True)]
    ladders = {name: kendall(*pair) for name, pair in _ladders(cases, predict, False).items()}
    sweeps = {name: kendall(*pair) for name, pair in _ladders(cases, predict, True).items()}
    taus = [found.tau for found in ladders.values() if found.pairs]
    return Scores(
        median_error=float(np.median(errors)) if errors else math.nan,
        median_absolute_error=median_absolute_error(predicted, measured),
        spearman=spearman(predicted, measured) if len(errors) > 1 else math.nan,
        kendall=float(np.mean(taus)) if taus else math.nan,
        ladders={name: found for name, found in ladders.items() if found.pairs},
        sweeps={name: found for name, found in sweeps.items() if found.pairs},
        order=order_by_gap(list(_ladders(cases, predict, False).values())),
        rows=len(errors),
        band=float(np.quantile(np.abs(errors), BAND_SHARE)) if errors else math.nan,
    )


def _ladders(
    cases: Sequence[Case], predict: Prediction, sweeps: bool
) -> dict[str, tuple[list[float], list[float]]]:
    """Return predictions and measurements by ladder; sweeps hold one version's settings."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for i, case in enumerate(cases):
        if case.is_scored and case.row.ladder and case.binding.is_sweep == sweeps:
            pair = found.setdefault(case.row.ladder, ([], []))
            pair[0].append(predict(i))
            pair[1].append(case.row.latency_us)
    return found
