"""Inputs are reproducible to the bit and each family is what its name says."""

from __future__ import annotations

import numpy as np
import pytest

from nkiwright import inputs
from nkiwright.inputs import Family, draw

FLOATS = ("float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2")
INTEGERS = ("int32", "uint32", "int16", "int8", "uint8", "bool")

GOLDEN = {
    ("float32", Family.NORMAL): "00a0edb5e3c06d93",
    ("bfloat16", Family.NORMAL): "eccbaa1045a72ce0",
    ("float32", Family.UNIFORM): "c66985d7d0099c63",
    ("bfloat16", Family.LARGE): "327068c4e2a21485",
    ("float32", Family.ZEROS): "a17de8abd6c9dcf5",
    ("float16", Family.TIES): "31b26946fbc64bff",
    ("float32", Family.OVERFLOW): "f4b6e0fa8a5c7001",
    ("int32", Family.NORMAL): "ff0dd4104df58412",
}
"""Hashes of [100, 30] arrays; they may change only together with every certificate."""


@pytest.mark.parametrize(("dtype", "family"), GOLDEN, ids=lambda value: str(value))
def test_bits_never_change(dtype, family):
    array = draw(dtype, (100, 30), key=(7, "x"), family=family)
    assert inputs.sha256({"x": array})[:16] == GOLDEN[dtype, family]


@pytest.mark.parametrize("family", list(Family), ids=str)
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_every_family_is_finite_in_every_dtype(dtype, family):
    values = draw(dtype, (40, 50), key=(1,), family=family).astype(np.float64)
    assert values.shape == (40, 50)
    assert np.isfinite(values).all()


def test_draws_longer_than_one_block_have_no_seam():
    long = draw("float32", (3 * 131072 + 5,), key=(3,))
    short = draw("float32", (131072 + 5,), key=(3,))
    assert np.array_equal(long[: short.size], short)
    assert abs(float(long.mean())) < 0.01
    assert abs(float(long.std()) - 1.0) < 0.01


def test_keys_tell_draws_apart():
    first = draw("float32", (1000,), key=(1, "x"))
    assert not np.array_equal(first, draw("float32", (1000,), key=(2, "x")))
    assert not np.array_equal(first, draw("float32", (1000,), key=(1, "y")))
    assert np.array_equal(first, draw("float32", (1000,), key=(1, "x")))


def test_neighbours_are_uncorrelated():
    values = draw("float32", (200_000,), key=(5,)).astype(np.float64)
    assert abs(float(np.corrcoef(values[:-1], values[1:])[0, 1])) < 0.01


def test_scale_multiplies_the_standard_deviation():
    assert abs(float(draw("float32", (50_000,), key=(1,), scale=0.02).std()) - 0.02) < 0.001


def test_uniform_fills_its_range():
    values = draw("float32", (50_000,), key=(1,), family=Family.UNIFORM, low=2.0, high=5.0)
    assert 2.0 <= values.min() < 2.001
    assert 4.999 < values.max() <= 5.0
    assert abs(float(values.mean()) - 3.5) < 0.02


@pytest.mark.parametrize("family", list(Family), ids=str)
def test_limits_hold_in_every_family(family):
    values = draw("float32", (5000,), key=(1,), family=family, low=0.25, high=2.0)
    assert values.min() >= 0.25
    assert values.max() <= 2.0


def test_large_is_large_and_normal_is_not():
    assert np.abs(draw("float32", (5000,), key=(1,), family=Family.LARGE)).max() > 150
    assert np.abs(draw("float32", (5000,), key=(1,))).max() < 4


def test_zeros_blanks_elements_and_whole_rows():
    values = draw("float32", (500, 64), key=(1,), family=Family.ZEROS)
    empty_rows = (values == 0).all(axis=1).mean()
    assert 0.1 < empty_rows < 0.3
    assert 0.7 < (values == 0).mean() < 0.9


def test_ties_repeat_the_maximum_of_a_row():
    values = draw("bfloat16", (100, 64), key=(1,), family=Family.TIES).astype(np.float32)
    assert set(np.unique(values)) == {-2.0, -1.0, 0.0, 1.0, 2.0}
    assert ((values == values.max(axis=1, keepdims=True)).sum(axis=1) > 1).all()


def test_overflow_breaks_a_naive_float32_exponential():
    values = draw("float32", (1000,), key=(1,), family=Family.OVERFLOW)
    with np.errstate(over="ignore"):
        assert np.isinf(np.exp(values)).mean() > 0.99


def test_integers_reach_both_limits_evenly():
    values = draw("int32", (9000,), key=(1,), low=-1, high=7)
    counts = np.bincount(np.asarray(values, np.int64) + 1, minlength=9)
    assert len(counts) == 9
    assert counts.min() > 800


def test_hash_sees_names_dtypes_shapes_and_values():
    array = draw("float32", (4, 6), key=(1,))
    changed = array.copy()
    changed[-1, -1] = 9
    hashes = {
        inputs.sha256(arrays)
        for arrays in (
            {"x": array},
            {"y": array},
            {"x": array.reshape(6, 4)},
            {"x": array.view(np.int32)},
            {"x": changed},
        )
    }
    assert len(hashes) == 5
