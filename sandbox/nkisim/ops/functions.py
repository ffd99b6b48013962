"""Activation functions of the Scalar Engine, on float32.

The hardware interpolates tables; here each function is computed from its definition, a few units
in the last place from the true value.  `f(x, out=None)` never changes `x` and writes to `out` last,
so that `out` may be `x`.  Source: NKI API reference, supported activation functions.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]

ONE = np.float32(1)
HALF = np.float32(0.5)
PI = np.float32(np.pi)
INV_SQRT_2 = np.float32(np.sqrt(0.5))
SQRT_2_OVER_PI = np.float32(np.sqrt(2.0 / np.pi))
INV_SQRT_2PI = np.float32(1.0 / np.sqrt(2.0 * np.pi))
TWO_OVER_SQRT_PI = np.float32(2.0 / np.sqrt(np.pi))
GELU_CUBIC = np.float32(0.044715)
GELU_SIGMOID = np.float32(1.702)


class Unary(Protocol):
    """A function of one float32 array."""

    def __call__(self, x: Any, /, out: Any = None) -> Any:
        """Return f(x), written to `out` if that is given."""


BLOCK: Final = 1 << 15
"""Elements that a function of many steps handles at once: its temporaries stay in the cache."""


def _is_apart(a: Any, b: Any) -> bool:
    """Whether writing `a` row by row leaves the later rows of `b` alone."""
    if not np.may_share_memory(a, b):
        return True
    first, second = a.__array_interface__, b.__array_interface__
    return bool(first["data"] == second["data"] and a.strides == b.strides and a.shape == b.shape)


def _in_blocks(function: Unary) -> Unary:
    """Make an elementwise function of many steps work on some rows of a large array at a time."""

    def call(x: Any, /, out: Any = None) -> Any:
        if x.size <= BLOCK or x.ndim < 2 or not (out is None or _is_apart(out, x)):
            return function(x, out=out)
        result = np.empty(x.shape, dtype=np.float32) if out is None else out
        step = max(1, BLOCK * len(x) // x.size)
        for i in range(0, len(x), step):
            function(x[i : i + step], out=result[i : i + step])
        return result

    return call


def _copy(x: Any, /, out: Any = None) -> Any:
    return np.positive(x, out=out)


def _relu(x: Any, /, out: Any = None) -> Any:
    return np.maximum(x, np.float32(0), out=out)


def _rsqrt(x: Any, /, out: Any = None) -> Any:
    return np.reciprocal(np.sqrt(x), out=out)


def _one_plus_exp_minus(x: F32) -> F32:
    """1 + exp(-x): infinity, and so a quotient of 0, far to the left."""
    t: F32 = np.negative(x)
    np.exp(t, out=t)
    t += ONE
    return t


def sigmoid(x: Any, /, out: Any = None) -> Any:
    """1 / (1 + exp(-x))."""
    return np.reciprocal(_one_plus_exp_minus(x), out=out)


def _silu(x: Any, /, out: Any = None) -> Any:
    return np.divide(x, _one_plus_exp_minus(x), out=out)


def _silu_dx(x: Any, /, out: Any = None) -> Any:
    s = sigmoid(x)
    t = (ONE - s) * x
    t += ONE
    return np.multiply(s, t, out=out)


# Numerator and denominator of a rational minimax approximation of erf on [-4, 4], in x².
_ERF_NUMERATOR = np.array(
    [
        -2.72614225801306e-10,
        2.77068142495902e-08,
        -2.10102402082508e-06,
        -5.69250639462346e-05,
        -7.34990630326855e-04,
        -2.95459980854025e-03,
        -1.60960333262415e-02,
    ],
    dtype=np.float32,
)
_ERF_DENOMINATOR = np.array(
    [
        -1.45660718464996e-05,
        -2.13374055278905e-04,
        -1.68282697438203e-03,
        -7.37332916720468e-03,
        -1.42647390514189e-02,
    ],
    dtype=np.float32,
)


def _horner(coefficients: F32, y: F32) -> F32:
    total: F32 = y * coefficients[0]
    total += coefficients[1]
    for c in coefficients[2:]:
        total *= y
        total += c
    return total


def erf(x: Any, /, out: Any = None) -> Any:
    """Error function, within 4e-7 everywhere."""
    c = np.clip(x, np.float32(-4), np.float32(4))
    y = c * c
    top = _horner(_ERF_NUMERATOR, y)
    top *= c
    return np.divide(top, _horner(_ERF_DENOMINATOR, y), out=out)


def _normal_cdf(x: Any) -> F32:
    t: F32 = erf(x * INV_SQRT_2)
    t += ONE
    t *= HALF
    return t


def _gelu(x: Any, /, out: Any = None) -> Any:
    return np.multiply(x, _normal_cdf(x), out=out)


def _gelu_dx(x: Any, /, out: Any = None) -> Any:
    density = np.exp(x * x * -HALF)
    density *= INV_SQRT_2PI
    density *= x
    return np.add(_normal_cdf(x), density, out=out)


def _gelu_tanh(x: Any, /, out: Any = None) -> Any:
    t = x * x
    t *= GELU_CUBIC
    t += ONE
    t *= x
    t *= SQRT_2_OVER_PI
    np.tanh(t, out=t)
    t += ONE
    t *= HALF
    return np.multiply(x, t, out=out)


def _gelu_sigmoid(x: Any, /, out: Any = None) -> Any:
    return np.divide(x, _one_plus_exp_minus(x * GELU_SIGMOID), out=out)


def _gelu_sigmoid_dx(x: Any, /, out: Any = None) -> Any:
    z = x * GELU_SIGMOID
    s = sigmoid(z)
    z *= ONE - s
    z += ONE
    return np.multiply(s, z, out=out)


def softplus(x: Any, /, out: Any = None) -> Any:
    """log(1 + exp(x)), without overflow."""
    t = np.abs(x)
    np.negative(t, out=t)
    np.exp(t, out=t)
    np.log1p(t, out=t)
    return np.add(np.maximum(x, np.float32(0)), t, out=out)


def _mish(x: Any, /, out: Any = None) -> Any:
    return np.multiply(x, np.tanh(softplus(x)), out=out)


def _erf_dx(x: Any, /, out: Any = None) -> Any:
    t = np.exp(-(x * x))
    return np.multiply(t, TWO_OVER_SQRT_PI, out=out)


def _sin(x: Any, /, out: Any = None) -> Any:
    """Sine on [-π, π]; beyond, the engine follows the cubic of the sine at ±π."""
    inside = np.sin(x)
    far = np.abs(x) > PI
    if far.any():
        d = x - np.copysign(PI, x)
        inside = np.where(far, d * d * d / np.float32(6) - d, inside)
    return np.positive(inside, out=out)


ACTIVATIONS: Final[dict[str, Unary]] = {
    "copy": _copy,
    "square": np.square,
    "abs": np.abs,
    "sign": np.sign,
    "relu": _relu,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": _rsqrt,
    "reciprocal": np.reciprocal,
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "silu": _silu,
    "silu_dx": _silu_dx,
    "gelu": _in_blocks(_gelu),
    "gelu_dx": _in_blocks(_gelu_dx),
    "gelu_apprx_tanh": _gelu_tanh,
    "gelu_apprx_sigmoid": _gelu_sigmoid,
    "gelu_apprx_sigmoid_dx": _gelu_sigmoid_dx,
    "softplus": softplus,
    "mish": _mish,
    "erf": _in_blocks(erf),
    "erf_dx": _erf_dx,
    "sin": _in_blocks(_sin),
    "arctan": np.arctan,
}
"""Functions of the Scalar Engine by NKI name."""

NO_TABLE: Final = frozenset(("copy", "square", "abs", "sign", "relu"))
"""Functions that every table holds, so that no load is needed."""


def activation_table(name: str) -> str | None:
    """Return the function table that must be loaded for an activation, or None for none.

    Which functions share a table is not published; each has its own here.
    """
    return None if name in NO_TABLE else name
