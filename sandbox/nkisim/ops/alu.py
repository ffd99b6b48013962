"""ALU ops and activation functions: names, numpy meaning, function tables.

Arithmetic is float32; bitvec ops work on raw integer bits.  Source: NKI API reference, supported
math operators and activation functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
Binary = Callable[..., Any]

SQRT_2 = np.float32(np.sqrt(2.0))
SQRT_2_OVER_PI = np.float32(np.sqrt(2.0 / np.pi))
INV_SQRT_2PI = np.float32(1.0 / np.sqrt(2.0 * np.pi))


def _flag(compare: Binary) -> Binary:
    def call(a: Any, b: Any, out: Any = None) -> Any:
        result = compare(a, b)
        if out is None:
            return np.asarray(result, dtype=np.float32)
        out[...] = result
        return out

    return call


def _abs_max(a: Any, b: Any, out: Any = None) -> Any:
    result = np.where(np.abs(a) > np.abs(b), a, b)
    if out is None:
        return result
    out[...] = result
    return out


def _abs_min(a: Any, b: Any, out: Any = None) -> Any:
    result = np.where(np.abs(a) < np.abs(b), a, b)
    if out is None:
        return result
    out[...] = result
    return out


def _first(a: Any, b: Any, out: Any = None) -> Any:
    if out is None:
        return np.array(a, dtype=np.float32)
    out[...] = a
    return out


ARITHMETIC: Final[dict[str, Binary]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
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
    "abs_max": _abs_max,
    "abs_min": _abs_min,
    "bypass": _first,
}
"""Binary ops on float32; comparisons give 1.0 or 0.0."""

BITVEC: Final[dict[str, Binary]] = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "left_shift": np.left_shift,
    "right_shift": np.right_shift,
    "invert": lambda a, b=None: np.invert(a),
}
"""Ops on raw integer bits; shifts are logical."""

UNARY_ALU: Final = ("abs", "square", "relu", "rsqrt", "reciprocal", "sqrt", "logical_not")
"""Unary functions that tensor_scalar takes as op0 without an operand."""

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
    "abs_max": 0.0,
    "abs_min": np.inf,
}


def erf(x: F32) -> F32:
    """Error function, accurate to a few float32 ulp (Abramowitz 7.1 series and fractions).

    Cephes' float64 rational approximations, evaluated in float64 and rounded once.
    """
    z = np.asarray(x, dtype=np.float64)
    small = np.abs(z) <= 1.0
    s = np.where(small, z, 0.0)
    y = s * s
    top = np.polyval(_ERF_T, y)
    bottom = np.polyval(_ERF_U, y)
    inner = s * top / bottom
    a = np.where(small, 1.0, np.minimum(np.abs(z), 8.0))
    outer = 1.0 - np.exp(-a * a) * np.polyval(_ERF_P, a) / np.polyval(_ERF_Q, a)
    result = np.where(small, inner, np.copysign(outer, z))
    return np.where(np.isnan(z), z, result).astype(np.float32)


_ERF_T = (
    9.60497373987051638749e0,
    9.00260197203842689217e1,
    2.23200534594684319226e3,
    7.00332514112805075473e3,
    5.55923013010394962768e4,
)
_ERF_U = (
    1.0,
    3.35617141647503099647e1,
    5.21357949780152679795e2,
    4.59432382970980127987e3,
    2.26290000613890934246e4,
    4.92673942608635921086e4,
)
_ERF_P = (
    2.46196981473530512524e-10,
    5.64189564831068821977e-1,
    7.46321056442269912687e0,
    4.86371970985681366614e1,
    1.96520832956077098242e2,
    5.26445194995477358631e2,
    9.34528527171957607540e2,
    1.02755188689515710272e3,
    5.57535335369399327526e2,
)
_ERF_Q = (
    1.0,
    1.32281951154744992508e1,
    8.67072140885989742329e1,
    3.54937778887819891062e2,
    9.75708501743205489753e2,
    1.82390916687909736289e3,
    2.24633760818710981792e3,
    1.65666309194161350182e3,
    5.57535340817727675546e2,
)


def sigmoid(x: F32) -> F32:
    """1 / (1 + exp(-x)), without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0 / (1.0 + e), e / (1.0 + e)).astype(np.float32)


def softplus(x: F32) -> F32:
    """log(1 + exp(x)), without overflow."""
    return (np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))).astype(np.float32)


def _gelu(x: F32) -> F32:
    return (0.5 * x * (1.0 + erf(x / SQRT_2))).astype(np.float32)


def _gelu_tanh(x: F32) -> F32:
    return (0.5 * x * (1.0 + np.tanh(SQRT_2_OVER_PI * (x + 0.044715 * x * x * x)))).astype(
        np.float32
    )


def _gelu_dx(x: F32) -> F32:
    return (
        0.5 * (1.0 + erf(x / SQRT_2)) + x * INV_SQRT_2PI * np.exp(-0.5 * x * x)
    ).astype(np.float32)


def _gelu_sigmoid(x: F32) -> F32:
    return x * sigmoid(np.float32(1.702) * x)


def _gelu_sigmoid_dx(x: F32) -> F32:
    s = sigmoid(np.float32(1.702) * x)
    return (s + 1.702 * x * s * (1 - s)).astype(np.float32)


def _silu(x: F32) -> F32:
    return x * sigmoid(x)


def _silu_dx(x: F32) -> F32:
    s = sigmoid(x)
    return s * (1 + x * (1 - s))


def _sin(x: F32) -> F32:
    """Sine on [-pi, pi]; outside the hardware extrapolates and the result is invalid."""
    return np.sin(x)


def _rsqrt(x: F32) -> F32:
    return (1.0 / np.sqrt(x.astype(np.float64))).astype(np.float32)


def _identity(x: F32) -> F32:
    return x


ACTIVATIONS: Final[dict[str, Callable[[F32], F32]]] = {
    "copy": _identity,
    "square": np.square,
    "abs": np.abs,
    "sign": np.sign,
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": _rsqrt,
    "reciprocal": np.reciprocal,
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "silu": _silu,
    "silu_dx": _silu_dx,
    "gelu": _gelu,
    "gelu_dx": _gelu_dx,
    "gelu_apprx_tanh": _gelu_tanh,
    "gelu_apprx_sigmoid": _gelu_sigmoid,
    "gelu_apprx_sigmoid_dx": _gelu_sigmoid_dx,
    "softplus": softplus,
    "mish": lambda x: x * np.tanh(softplus(x)),
    "erf": erf,
    "erf_dx": lambda x: (2.0 / np.sqrt(np.pi) * np.exp(-x * x)).astype(np.float32),
    "sin": _sin,
    "arctan": np.arctan,
}
"""Functions of the Scalar Engine on float32."""

NO_TABLE: Final = frozenset(("copy", "square", "abs", "sign", "relu"))
"""Functions that every table holds, so that no load is needed."""


def activation_table(name: str) -> str | None:
    """Return the function table that must be loaded for an activation, or None for none.

    Which functions share a table is not published; each has its own here.
    """
    return None if name in NO_TABLE else name


def unary_alu(name: str) -> Callable[[F32], F32]:
    """Return the meaning of a unary ALU op."""
    if name == "logical_not":
        return lambda x: (x == 0).astype(np.float32)
    return ACTIVATIONS[name]
