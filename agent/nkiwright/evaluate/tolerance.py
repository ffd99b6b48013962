"""The tolerance rule: element by element, scaled to the reference and the dtype.

An element passes if |error| ≤ rtol·|reference| + c·eps(dtype)·s, where s is the rms of the
reference over its row (or what the task defines).  A kernel cannot trade one bad tile for many
good ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nkisim.dtypes import DTYPES
from nkiwright.tasks import Check, TensorSpec

DEFAULT_C = 16.0
"""Used while a task has no measured `c`: four times a ratio of 4."""
TILE_ROWS = 128
BLOCK_ELEMENTS = 1 << 17

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far the outputs of one run are from the reference."""

    is_within: bool
    ratio: float
    """Largest |error| / (eps · s)."""
    message: str
    """Empty if within; else the worst element with both values and its tile."""


def compare(
    outputs: Sequence[npt.NDArray[np.generic]],
    expected: Sequence[Float64Array],
    scales: Sequence[Float64Array],
    specs: Sequence[TensorSpec],
    check: Check,
) -> Comparison:
    """Compare the outputs of one run with the reference.

    Args:
        outputs: What the kernel returned.
        expected: The reference in float64.
        scales: `s` of the rule for each output, broadcastable to it.
        specs: The task's outputs, for names and dtypes.
        check: The task's tolerances.
    """
    if len(outputs) != len(expected):
        return Comparison(
            False, float("inf"), f"the kernel returned {len(outputs)} tensors, not {len(expected)}"
        )
    worst = 0.0
    for output, want, scale, spec in zip(outputs, expected, scales, specs, strict=True):
        found = _compare_one(output, want, scale, spec, check)
        worst = max(worst, found.ratio)
        if not found.is_within:
            return Comparison(False, worst, found.message)
    return Comparison(True, worst, "")


def _compare_one(
    output: npt.NDArray[np.generic],
    want: Float64Array,
    scale: Float64Array,
    spec: TensorSpec,
    check: Check,
) -> Comparison:
    dtype = DTYPES[spec.dtype]
    if output.shape != want.shape:
        return _refuse(f"{spec.name} has shape {list(output.shape)}, expected {list(want.shape)}")
    if output.dtype != dtype.storage:
        return _refuse(f"{spec.name} has dtype {output.dtype}, expected {dtype}")
    if not dtype.is_integer:
        quick = _row_ratio(output, want, scale, dtype.eps, check.rtol)
        if quick is not None and quick <= (check.c or DEFAULT_C):
            return Comparison(True, quick, "")
    got = output.astype(np.float64)
    if dtype.is_integer:
        wrong = got != want
        if not wrong.any():
            return Comparison(True, 0.0, "")
        return _worst(spec, got, want, np.abs(got - want), int(wrong.sum()), "exact equality")
    finite = np.isfinite(got)
    if not finite.all():
        allowed = check.nan == "allow"
        same = finite | (np.isnan(got) & np.isnan(want)) | (got == want)
        if not allowed or not same.all():
            bad = ~finite if not allowed else ~same
            return _worst(
                spec, got, want, np.where(bad, np.inf, 0.0), int(bad.sum()), "finite values"
            )
        got, want = np.where(finite, got, 0.0), np.where(finite, want, 0.0)
    if not np.isfinite(want).all():
        if check.nan == "forbid":
            return _refuse(f"{spec.name}: the reference itself is not finite on this input")
        return _refuse(f"{spec.name} is finite where the reference is not")
    error = np.abs(got - want)
    # A scale that is not finite allows nothing: NaN would allow everything.
    unit = dtype.eps * np.broadcast_to(np.where(np.isfinite(scale), scale, 0.0), want.shape)
    tiny = np.finfo(np.float32).tiny
    allowed_error = check.rtol * np.abs(want) + (check.c or DEFAULT_C) * unit + tiny
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = np.maximum(error - check.rtol * np.abs(want) - tiny, 0.0)
        ratios = np.where(excess == 0.0, 0.0, excess / unit)
    ratio = float(ratios.max()) if ratios.size else 0.0
    wrong = error > allowed_error
    if not wrong.any():
        return Comparison(True, ratio, "")
    found = _worst(spec, got, want, np.where(wrong, error, 0.0), int(wrong.sum()), "the tolerance")
    return Comparison(False, ratio, found.message)


def _row_ratio(
    output: npt.NDArray[np.generic],
    want: Float64Array,
    scale: Float64Array,
    eps: float,
    rtol: float,
) -> float | None:
    """Return the largest ratio where `s` is one number a row and all is finite, else None.

    The common case, block by block, so that temporaries stay in cache.
    """
    if not output.size or scale.ndim != want.ndim or scale.shape[-1] != 1:
        return None
    if want.ndim == 1:
        output, want, scale = output[None], want[None], scale[None]
    unit = eps * np.broadcast_to(scale, (*want.shape[:-1], 1))
    if not np.isfinite(unit).all():
        return None
    rows = max(1, BLOCK_ELEMENTS // max(1, output.size // output.shape[0]))
    largest = 0.0
    for start in range(0, output.shape[0], rows):
        expected = want[start : start + rows]
        excess = output[start : start + rows].astype(np.float64)
        with np.errstate(invalid="ignore"):
            excess -= expected
        np.abs(excess, out=excess)
        if rtol:
            allowed = np.abs(expected)
            allowed *= rtol
            with np.errstate(invalid="ignore"):
                excess -= allowed
        worst = excess.max(axis=-1, keepdims=True)
        if not np.isfinite(worst).all():
            return None
        worst -= np.finfo(np.float32).tiny
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(worst <= 0.0, 0.0, worst / unit[start : start + rows])
        largest = max(largest, float(ratios.max()))
    return largest


def _refuse(message: str) -> Comparison:
    return Comparison(False, float("inf"), message)


def _worst(
    spec: TensorSpec,
    got: Float64Array,
    want: Float64Array,
    badness: Float64Array,
    count: int,
    rule: str,
) -> Comparison:
    """Describe the worst element and where the wrong ones are."""
    index = np.unravel_index(int(np.argmax(badness)), badness.shape)
    at = ", ".join(str(int(i)) for i in index)
    message = (
        f"{spec.name}: {count:,} of {got.size:,} elements violate {rule}; worst at [{at}]: "
        f"got {got[index]:.6g}, expected {want[index]:.6g}"
    )
    rows = badness.reshape(badness.shape[0], -1).max(axis=1) > 0
    tiles = -(-len(rows) // TILE_ROWS)
    if tiles > 1:
        wrong_tiles = [t for t in range(tiles) if rows[t * TILE_ROWS : (t + 1) * TILE_ROWS].any()]
        if len(wrong_tiles) < tiles:
            shown = ", ".join(map(str, wrong_tiles[:6])) + (", …" if len(wrong_tiles) > 6 else "")
            message += f"; only in row tiles {shown} of {tiles} (tiles of {TILE_ROWS} rows)"
        else:
            message += "; in every row tile"
    return Comparison(False, float("inf"), message)
