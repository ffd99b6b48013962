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


@pytest.mark.parametrize("name", [n for n in ACTIVATIONS if n not in (*POSITIVE, "sin", "exp")])
def test_functions_have_no_nan_over_a_wide_range(name):
    size = np.logspace(-30, 18, 97)
    x = np.concatenate([-size, [-50.0, -0.0, 50.0], size]).astype(np.float32)
    if name == "reciprocal":
        x = x[x != 0]
    with np.errstate(all="ignore"):
        got = ACTIVATIONS[name](x)
    assert not np.isnan(got).any()
    if name in GELU or name in ("relu", "mish", "softplus"):
        assert np.allclose(got[x > 50], x[x > 50])
        assert np.allclose(got[x < -150], 0)


def test_exp_overflows_to_infinity_and_underflows_to_zero():
    with np.errstate(all="ignore"):
        got = ACTIVATIONS["exp"](np.array([89.0, -104.0, 88.0, -np.inf], dtype=np.float32))
    assert got[[0, 1, 3]].tolist() == [np.inf, 0, 0]
    assert got[2] == pytest.approx(math.exp(88), rel=1e-6)


def test_erf_is_a_few_units_in_the_last_place_from_the_truth():
    x = np.linspace(-4.5, 4.5, 20001, dtype=np.float32)
    want = erf(x.astype(np.float64))
    error = np.abs(ACTIVATIONS["erf"](x) - want) / np.spacing(np.abs(want).astype(np.float32))
    assert error.max() < 8


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_large_and_overlapping_arrays_are_computed_like_small_ones(name):
    rng = np.random.default_rng(5)
    base = np.abs(rng.standard_normal((70, 1024))).astype(np.float32) + np.float32(0.1)
    want = np.concatenate([ACTIVATIONS[name](row[None]) for row in base])
    assert np.array_equal(ACTIVATIONS[name](base), want)
    apart = np.zeros_like(base)
    ACTIVATIONS[name](base, out=apart)
    assert np.array_equal(apart, want)
    same = base.copy()
    ACTIVATIONS[name](same, out=same[:])
    assert np.array_equal(same, want)
    shifted = base.copy()
    ACTIVATIONS[name](shifted[:-1], out=shifted[1:])
    assert np.array_equal(shifted[1:], want[:-1])


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
