"""Where values change dtype: widening is exact, narrowing rounds once and saturates integers."""

import copy
import pickle
from dataclasses import asdict, dataclass

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkisim.dtypes import DTYPES, DType, lookup, round_tfloat32, store, to_float32

FLOATS = [d for d in DTYPES.values() if d.is_float]
INTEGERS = [d for d in DTYPES.values() if d.kind in ("int", "uint")]
NARROW = [d for d in FLOATS if d.itemsize <= 2]


def stored(values, name):
    dtype = DTYPES[name]
    out = np.zeros(np.shape(values), dtype=dtype.storage)
    store(out, np.asarray(values, dtype=np.float32), dtype)
    return out


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_widening_keeps_every_bit_pattern(dtype):
    codes = np.arange(1 << (8 * dtype.itemsize)).astype(f"u{dtype.itemsize}")
    values = codes.view(dtype.storage)
    wide = to_float32(values)
    assert wide.dtype == np.float32
    assert np.array_equal(wide, values.astype(np.float32), equal_nan=True)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_widening_reads_strided_views(dtype):
    values = np.arange(1, 25, dtype=np.float32).reshape(4, 6).astype(dtype.storage)[:, ::2]
    assert np.array_equal(to_float32(values), values.astype(np.float32))


def test_float32_is_not_copied():
    values = np.ones((2, 3), dtype=np.float32)
    assert to_float32(values) is values


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_round_to_even_and_saturate(dtype):
    values = np.array([0.5, 1.5, 2.5, 2.4999, 1e30, -1e30, np.inf, -np.inf, np.nan], np.float32)
    low, high = int(dtype.min), int(dtype.max)
    got = stored(values, dtype.name)
    assert got.tolist() == [0, 2, 2, 2, high, low, high, low, 0]


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_int32_matches_exact_arithmetic(value):
    want = min(max(round(value), -(1 << 31)), (1 << 31) - 1)
    assert int(stored([value], "int32")[0]) == want


def test_integers_saturate_between_integer_dtypes():
    out = np.zeros(3, dtype=np.uint8)
    store(out, np.array([-1, 5, 300], dtype=np.int32), DTYPES["uint8"])
    assert out.tolist() == [0, 5, 255]


def test_integers_in_range_round_to_even_too():
    values = np.array([[0.5, 1.5, -2.5, 2147483520.0, -2147483648.0]], dtype=np.float32)
    assert stored(values, "int32").tolist() == [[0, 2, -2, 2147483520, -2147483648]]
    assert stored([254.5, 255.0, 0.5], "uint8").tolist() == [254, 255, 0]
    assert stored(np.zeros((4, 0)), "int8").shape == (4, 0)


def test_bool_is_nonzero():
    assert stored([0.0, -0.0, 0.1, -2.0], "bool").tolist() == [False, False, True, True]


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e5m2"])
def test_floats_round_to_nearest_even(name):
    eps = DTYPES[name].eps
    values = [1 + eps / 2, 1 + 1.5 * eps, 1 + 0.51 * eps]
    assert stored(values, name).astype(np.float64).tolist() == [1.0, 1 + 2 * eps, 1 + eps]


@pytest.mark.parametrize("extra", [[], [np.nan]], ids=["numbers", "with-nan"])
def test_large_tiles_round_to_bfloat16_like_small_ones(extra):
    rng = np.random.default_rng(7)
    bits = rng.integers(0, 1 << 32, 1 << 15, dtype=np.uint32)
    values = bits.view(np.float32)
    ties = ((bits & 0xFFFF0000) | 0x8000).view(np.float32)
    values = np.concatenate([values[np.isfinite(values)], ties[np.isfinite(ties)]])
    values = np.concatenate([values, np.array([np.inf, -np.inf, -0.0, 1e-45, *extra], np.float32)])
    got = stored(values, "bfloat16")
    for start in range(0, len(values), 1000):
        part = slice(start, start + 1000)
        want = values[part].astype(ml_dtypes.bfloat16)
        assert np.array_equal(got[part], want, equal_nan=True)
        assert np.array_equal(np.signbit(got[part]), np.signbit(want)) or extra


def test_strided_tiles_are_stored_in_place():
    values = np.random.default_rng(8).standard_normal((128, 512)).astype(np.float32)
    base = np.zeros((128, 1024), dtype=ml_dtypes.bfloat16)
    store(base[:, 1::2], values[:, ::-1], DTYPES["bfloat16"])
    assert np.array_equal(base[:, 1::2], values[:, ::-1].astype(ml_dtypes.bfloat16))
    assert not base[:, ::2].any()


def test_lowest_float32_becomes_minus_infinity_in_bfloat16():
    assert np.isneginf(stored([DTYPES["float32"].min], "bfloat16").astype(np.float32))[0]


def test_tfloat32_keeps_ten_mantissa_bits():
    values = np.array([1 + 2**-10, 1 + 2**-11, 1 + 3 * 2**-11, np.inf, np.nan], np.float32)
    got = round_tfloat32(values)
    assert got[:4].tolist() == [1 + 2**-10, 1.0, 1 + 2**-9, np.inf]
    assert np.isnan(got[4])
    assert stored(values[:2], "tfloat32").tolist() == [1 + 2**-10, 1.0]


def test_store_reshapes_when_the_element_counts_agree():
    out = np.zeros((2, 6), dtype=np.float32)
    store(out, np.arange(12, dtype=np.float32).reshape(2, 2, 3), DTYPES["float32"])
    assert out[1].tolist() == [6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("bfloat16", "bfloat16"),
        ("bool_", "bool"),
        (np.float32, "float32"),
        (np.dtype(np.uint16), "uint16"),
        (ml_dtypes.bfloat16, "bfloat16"),
        (float, "float32"),
        (int, "int32"),
        (DTYPES["int8"], "int8"),
    ],
    ids=str,
)
def test_lookup_knows_names_and_numpy_types(value, name):
    found = lookup(value)
    assert found is not None
    assert found.name == name
    assert found == value or isinstance(value, type)


@pytest.mark.parametrize(
    "value", ["float64", np.float64, object(), 3], ids=lambda value: type(value).__name__
)
def test_lookup_refuses_what_nki_lacks(value):
    assert lookup(value) is None


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_limits_are_ml_dtypes(dtype):
    info = ml_dtypes.finfo(dtype.storage)
    assert (dtype.min, dtype.max) == (float(info.min), float(info.max))
    assert np.dtype(dtype) == dtype.storage
    one = np.ones((), dtype=dtype.storage)
    assert DTYPES["int8"].eps == 1.0
    assert float(one) + dtype.eps == float(dtype.storage.type(1 + dtype.eps))


def test_dtypes_compare_with_what_kernels_use():
    bfloat16, flag = DTYPES["bfloat16"], DTYPES["bool"]
    assert bfloat16 == "bfloat16"
    assert bfloat16 == ml_dtypes.bfloat16
    assert bfloat16 != np.float32
    assert bfloat16 != 3
    assert flag == "bool_"
    assert (flag.min, flag.max) == (0.0, 1.0)
    assert lookup("bfp16") in {bfloat16}


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_limits_are_numpys(dtype):
    info = np.iinfo(dtype.storage)
    assert (dtype.min, dtype.max) == (float(info.min), float(info.max))


@pytest.mark.parametrize("name", DTYPES)
def test_records_that_hold_dtypes_can_be_copied(name):
    @dataclass
    class Config:
        dtype: DType

    dtype = DTYPES[name]
    assert asdict(Config(dtype)) == {"dtype": dtype}
    assert copy.deepcopy(dtype) is pickle.loads(pickle.dumps(dtype)) is dtype
