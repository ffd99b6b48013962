"""ALU ops: names, numpy meaning, which instructions and engines take them.

Arithmetic is float32; bitvec ops work on raw integer bits.  Every function takes `out` like a
ufunc and writes to it last, so that `out` may be one of its inputs.  Source: NKI API reference,
supported math operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from nkisim.ops.functions import ACTIVATIONS, F32, Unary

Binary = Callable[..., Any]
"""`f(a, b, out=None)` on float32 arrays that broadcast."""


def _flag(compare: np.ufunc) -> Binary:
    """Make a comparison give 1.0 and 0.0."""

    def call(a: Any, b: Any, out: Any = None) -> Any:
        if out is None:
            return compare(a, b).astype(np.float32)
        return compare(a, b, out=out)

    return call


def _pick(compare: np.ufunc) -> Binary:
    """Make an op that keeps the operand whose magnitude compares, with its sign."""

    def call(a: Any, b: Any, out: Any = None) -> Any:
        result = np.where(compare(np.abs(a), np.abs(b)), a, b)
        if out is None:
            return result
        out[...] = result
        return out

    return call


def _first(a: Any, b: Any, out: Any = None) -> Any:
    return np.positive(a, out=out)


ARITHMETIC: Final[dict[str, Binary]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "power": np.power,
    "equal": _flag(np.equal),
    "not_equal": _flag(np.not_equal),
    "greater": _flag(np.greater),
    "greater_equal": _flag(np.greater_equal),
    "less": _flag(np.less),
    "less_equal": _flag(np.less_equal),
    "logical_and": _flag(np.logical_and),
    "logical_or": _flag(np.logical_or),
    "logical_xor": _flag(np.logical_xor),
    "abs_max": _pick(np.greater),
    "abs_min": _pick(np.less),
    "bypass": _first,
}
"""Binary ops on float32; comparisons give 1.0 or 0.0."""

NEWEST_ONLY: Final = frozenset(("abs_max", "abs_min", "square", "relu"))
"""Ops that first came with NeuronCore-v4."""

BITVEC: Final[dict[str, np.ufunc]] = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "left_shift": np.left_shift,
    "right_shift": np.right_shift,
    "invert": np.invert,
}
"""Ops on raw integer bits; shifts are logical.  `invert` has one operand."""


def _logical_not(x: Any, out: Any = None) -> Any:
    if out is None:
        return np.equal(x, 0).astype(np.float32)
    return np.equal(x, 0, out=out)


UNARY: Final[dict[str, Unary]] = {
    **{name: ACTIVATIONS[name] for name in ("abs", "square", "relu", "rsqrt", "reciprocal")},
    "logical_not": _logical_not,
}
"""Functions that tensor_scalar takes as an op, without an operand."""

SCALAR_OPERAND_OPS: Final = (*ARITHMETIC, *BITVEC, *UNARY, "divide")
"""Names that tensor_scalar knows; `divide` only to say what to use instead."""
TENSOR_OPERAND_OPS: Final = (*ARITHMETIC, *BITVEC, "divide")
ARITHMETIC_OPS: Final = (*ARITHMETIC, "divide")
REDUCED_OPS: Final = (*ARITHMETIC_OPS, "abs", "square", "relu")
"""Names that tensor_scalar_reduce knows; a unary op takes the operand 0."""
COMPARISONS: Final = ("equal", "less", "less_equal", "greater", "greater_equal")

REDUCTIONS: Final[dict[str, np.ufunc]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
}
"""Reductions of float32 along an axis, folding from the left."""

BITVEC_REDUCTIONS: Final[dict[str, np.ufunc]] = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
}

IDENTITY: Final[dict[str, float]] = {
    "add": 0.0,
    "subtract": 0.0,
    "multiply": 1.0,
    "maximum": -np.inf,
    "minimum": np.inf,
}
"""What accumulate registers hold after a reset."""


def as_bits(values: npt.NDArray[np.generic]) -> npt.NDArray[Any]:
    """Return integers as unsigned bits of the same size."""
    return values.view(np.dtype(f"u{values.dtype.itemsize}"))


def is_bitvec(op: object) -> bool:
    """Whether `op` names a bitvec op."""
    return op in BITVEC


__all__ = [
    "ARITHMETIC",
    "ARITHMETIC_OPS",
    "BITVEC",
    "BITVEC_REDUCTIONS",
    "COMPARISONS",
    "F32",
    "IDENTITY",
    "NEWEST_ONLY",
    "REDUCED_OPS",
    "REDUCTIONS",
    "SCALAR_OPERAND_OPS",
    "TENSOR_OPERAND_OPS",
    "UNARY",
    "Binary",
    "as_bits",
    "is_bitvec",
]
