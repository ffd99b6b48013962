"""Outputs of kernels that compute nothing: a task whose check lets one of them pass checks nothing.

They are arrays, not kernels, so that they cost next to nothing and reach every task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nkisim.dtypes import DTYPES, DType
from nkiwright.tasks import Array, Float64Array, Task, TensorSpec

CONSTANT = 1.0


@dataclass(frozen=True, slots=True)
class Null:
    """What a null kernel returns."""

    name: str
    """For people, such as `copy of x`."""
    outputs: tuple[Array, ...]
    """One array per output of the task, in its dtype."""


def null_outputs(
    task: Task, inputs: Mapping[str, Array], expected: Sequence[Float64Array]
) -> Iterator[Null]:
    """Yield what each null kernel returns for one set of inputs, one at a time to save memory.

    Args:
        task: The task.
        inputs: Arrays by input name.
        expected: What the task's reference returned for them.
    """
    specs = task.outputs
    yield Null("zeros", _each(specs, [np.zeros(e.shape) for e in expected]))
    yield Null("constant", _each(specs, [np.full(e.shape, CONSTANT) for e in expected]))
    means = [np.full(e.shape, e[np.isfinite(e)].mean() if e.size else 0.0) for e in expected]
    yield Null("mean of the answer", _each(specs, means))
    for name, array in inputs.items():
        copies = [_fitted(array, e.shape) for e in expected]
        if any(copy is not None for copy in copies):
            filled = [
                np.zeros(e.shape) if copy is None else copy
                for copy, e in zip(copies, expected, strict=True)
            ]
            yield Null(f"copy of {name}", _each(specs, filled))
    yield Null("first half of the answer", _each(specs, [_first_half(e) for e in expected]))


def _fitted(array: Array, shape: tuple[int, ...]) -> npt.NDArray[np.float64] | None:
    """Return an input in an output's shape: broadcast, cut or read in another shape; else None."""
    wide = array.astype(np.float64)
    try:
        return np.broadcast_to(wide, shape)
    except ValueError:
        pass
    if wide.size == int(np.prod(shape)):
        return wide.reshape(shape)
    if wide.ndim == len(shape) and all(a >= b for a, b in zip(wide.shape, shape, strict=True)):
        return wide[tuple(slice(size) for size in shape)]
    return None


def _first_half(expected: Float64Array) -> Float64Array:
    half = expected.copy()
    half[len(half) // 2 :] = 0.0
    return half


def _each(
    specs: Sequence[TensorSpec], arrays: Sequence[npt.NDArray[np.float64]]
) -> tuple[Array, ...]:
    """Return the arrays in the outputs' dtypes."""
    return tuple(
        _stored(array, DTYPES[spec.dtype]) for spec, array in zip(specs, arrays, strict=True)
    )


def _stored(array: npt.NDArray[np.float64], dtype: DType) -> Array:
    if dtype.is_integer:
        array = np.clip(np.rint(array), dtype.min, dtype.max)
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(dtype.storage)
