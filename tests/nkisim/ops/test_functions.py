"""Activation functions against their definitions in float64."""

import math

import numpy as np
import pytest

from nkisim.ops.functions import ACTIVATIONS, activation_table

erf = np.vectorize(math.erf)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def normal(x):
    return 0.5 * (1 + erf(x / math.sqrt(2)))


def derivative(f):
    return lambda x: (f(x + 1e-5) - f(x - 1e-5)) / 2e-5


GELU = {
    "gelu": lambda x: x * normal(x),
    "gelu_apprx_tanh": lambda x: (
        0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "gelu_apprx_sigmoid": lambda x: x * sigmoid(1.702 * x),
    "silu": lambda x: x * sigmoid(x),
}
DEFINITIONS = {
    "copy": lambda x: x,
    "square": np.square,
    "abs": np.abs,
    "sign": np.sign,
    "relu": lambda x: np.maximum(x, 0),
    "exp": np.exp,
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "softplus": lambda x: np.logaddexp(0, x),
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
    "erf": erf,
    "erf_dx": lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x),
    "arctan": np.arctan,
    "reciprocal": lambda x: 1 / x,
    **GELU,
    "gelu_dx": derivative(GELU["gelu"]),
    "gelu_apprx_sigmoid_dx": derivative(GELU["gelu_apprx_sigmoid"]),
    "silu_dx": derivative(GELU["silu"]),
}
POSITIVE = {"log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x)}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", [n for n in ACTIVATIONS if n != "sin"])
def test_function_matches_its_definition(name, seed):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((16, 64)) * 3).astype(np.float32)
    if name in POSITIVE:
        x = np.abs(x) + np.float32(1e-3)
    want = {**DEFINITIONS, **POSITIVE}[name](x.astype(np.float64))
    got = ACTIVATIONS[name](x)
    assert got.dtype == np.float32
    assert np.allclose(got, want, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_input_is_kept_and_out_may_be_the_input(name):
    x = np.linspace(0.1, 3, 32, dtype=np.float32).reshape(4, 8)
    before = x.copy()
    want = ACTIVATIONS[name](x)
    assert np.array_equal(x, before)
    ACTIVATIONS[name](x, out=x)
    assert np.array_equal(x, want)


@pytest.mark.parametrize("x", [-np.inf, -1e4, -90.0, 90.0, 1e4, np.inf])
@pytest.mark.parametrize("name", ["sigmoid", "tanh", "erf", "gelu_apprx_tanh", "softplus"])
def test_saturating_functions_stay_finite_or_follow_their_limit(name, x):
    with np.errstate(all="ignore"):
        got = float(ACTIVATIONS[name](np.array([x], dtype=np.float32))[0])
    limits = {"sigmoid": (0, 1), "tanh": (-1, 1), "erf": (-1, 1)}
    if name in limits:
        assert got == pytest.approx(limits[name][x > 0], abs=1e-6)
    elif x > 0:
        assert got == pytest.approx(x)
    elif np.isfinite(x):
        assert got == pytest.approx(0, abs=1e-6)


def test_nan_stays_nan():
    nan = np.array([np.nan], dtype=np.float32)
    for name, function in ACTIVATIONS.items():
        assert np.isnan(function(nan)[0]), name


def test_sin_is_right_inside_and_cubic_outside():
    inside = np.linspace(-np.pi + 1e-3, np.pi - 1e-3, 99, dtype=np.float32)
    assert np.allclose(ACTIVATIONS["sin"](inside), np.sin(inside.astype(np.float64)), atol=1e-6)
    got = ACTIVATIONS["sin"](np.array([9.0, -9.0], dtype=np.float32))
    assert got == pytest.approx([27.65, -27.65], abs=0.01)


def test_simple_functions_need_no_table():
    assert activation_table("copy") is None
    assert activation_table("exp") != activation_table("gelu")
