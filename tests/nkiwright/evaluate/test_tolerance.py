"""The tolerance rule, element by element."""

import math

import ml_dtypes
import numpy as np
import pytest

from nkiwright.evaluate.tolerance import Comparison, compare
from nkiwright.inputs import Family
from nkiwright.tasks import Check, TensorSpec

EPS = 2.0**-23


def judged(got, want, *, dtype="float32", rtol=0.0, c=4.0, nan="forbid", scale=None) -> Comparison:
    got, want = np.asarray(got), np.asarray(want, dtype=np.float64)
    if scale is None:
        with np.errstate(invalid="ignore"):
            scale = np.sqrt(np.mean(np.square(want), axis=-1, keepdims=True))
    spec = TensorSpec(name="y", shape=got.shape, dtype=dtype)
    check = Check(families=(Family.NORMAL,), rtol=rtol, c=c, nan=nan)
    return compare([got], [want], [scale], [spec], check)


def ones(rows=4, columns=8):
    return np.ones((rows, columns), np.float32)


@pytest.mark.parametrize(
    ("steps", "is_within"), [(4, True), (5, False)], ids=["at the limit", "one step beyond"]
)
def test_the_limit_is_c_steps_of_the_dtype(steps: int, is_within: bool) -> None:
    got = ones()
    got[2, 3] += np.float32(steps * EPS)
    found = judged(got, ones())
    assert found.is_within is is_within
    assert found.ratio == pytest.approx(steps)


@pytest.mark.parametrize(
    ("dtype", "step"), [("bfloat16", 2.0**-7), ("float16", 2.0**-10)], ids=["bfloat16", "float16"]
)
def test_narrow_dtypes_have_wider_steps(dtype: str, step: float) -> None:
    storage = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    assert judged(np.full((2, 4), 1 + step).astype(storage), ones(2, 4), dtype=dtype, c=1).is_within
    assert not judged(
        np.full((2, 4), 1 + 2 * step).astype(storage), ones(2, 4), dtype=dtype, c=1
    ).is_within


def test_relative_tolerance_adds_to_the_absolute_one() -> None:
    got = np.full((1, 4), 101.0, np.float32)
    assert judged(got, np.full((1, 4), 100.0), rtol=0.011).is_within
    assert not judged(got, np.full((1, 4), 100.0), rtol=0.009).is_within


def test_a_large_row_does_not_excuse_a_small_one() -> None:
    want = np.array([[1e6] * 4, [1.0] * 4])
    got = want.astype(np.float32)
    got[1, 2] += np.float32(1e-3)
    found = judged(got, want)
    assert not found.is_within
    assert "worst at [1, 2]" in found.message


def test_the_worst_element_is_named_with_both_values() -> None:
    got = ones(4, 8)
    got[1, 5], got[3, 7] = 2.0, 4.5
    found = judged(got, ones(4, 8))
    assert "2 of 32 elements" in found.message
    assert "worst at [3, 7]: got 4.5, expected 1" in found.message


def test_wrong_row_tiles_are_named() -> None:
    got = ones(4 * 128)
    got[130], got[300] = 0.0, 0.0
    assert "only in row tiles 1, 2 of 4 (tiles of 128 rows)" in judged(got, ones(4 * 128)).message


def test_errors_all_over_are_said_to_be() -> None:
    assert "in every row tile" in judged(0 * ones(256), ones(256)).message


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=["nan", "inf", "-inf"])
@pytest.mark.parametrize("nan", ["forbid", "allow"])
def test_what_is_not_finite_is_refused_where_the_reference_is(value: float, nan: str) -> None:
    got = ones()
    got[2, 1] = value
    found = judged(got, ones(), nan=nan)
    assert not found.is_within
    assert "finite values" in found.message
    assert "worst at [2, 1]" in found.message


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=["nan", "inf", "-inf"])
def test_what_is_not_finite_in_the_reference_is_allowed_only_by_policy(value: float) -> None:
    want = np.ones((4, 8))
    want[2, 1] = value
    assert judged(want.astype(np.float32), want, nan="allow", scale=np.ones((4, 1))).is_within
    assert not judged(want.astype(np.float32), want, nan="forbid").is_within


@pytest.mark.parametrize(
    ("got", "want"), [(np.inf, -np.inf), (np.nan, np.inf), (1.0, np.nan)], ids=repr
)
def test_the_allowed_must_be_of_the_same_kind(got: float, want: float) -> None:
    reference = np.ones((4, 8))
    reference[0, 0] = want
    found = reference.astype(np.float32)
    found[0, 0] = got
    assert not judged(found, reference, nan="allow", scale=np.ones((4, 1))).is_within


def test_nothing_else_is_excused_beside_an_allowed_nan() -> None:
    want = np.ones((4, 8))
    want[0, 0] = np.nan
    got = want.astype(np.float32)
    got[3, 3] = 2.0
    found = judged(got, want, nan="allow", scale=np.ones((4, 1)))
    assert not found.is_within
    assert "worst at [3, 3]" in found.message


def test_a_reference_that_is_not_finite_is_said_to_be() -> None:
    found = judged(ones(), np.full((4, 8), np.inf))
    assert "the reference itself is not finite" in found.message


@pytest.mark.parametrize(
    ("got", "words"),
    [
        (np.ones((4, 8), np.float64), "dtype float64, expected float32"),
        (np.ones((4, 8), ml_dtypes.bfloat16), "dtype bfloat16, expected float32"),
        (np.ones((8, 4), np.float32), "shape [8, 4], expected [4, 8]"),
        (np.ones((32,), np.float32), "shape [32], expected [4, 8]"),
        (np.ones((1, 8), np.float32), "shape [1, 8], expected [4, 8]"),
    ],
    ids=["wider", "narrower", "transposed", "flat", "broadcastable"],
)
def test_shape_and_dtype_are_exact(got, words: str) -> None:
    found = judged(got, ones())
    assert not found.is_within
    assert words in found.message


def test_the_number_of_outputs_is_exact() -> None:
    check = Check(families=(Family.NORMAL,), rtol=0.0, c=1.0, nan="forbid")
    specs = [TensorSpec(name=name, shape=(2,), dtype="float32") for name in "ab"]
    wants = [np.ones(2), np.ones(2)]
    found = compare([np.ones(2, np.float32)], wants, wants, specs, check)
    assert found.message == "the kernel returned 1 tensors, not 2"


def test_the_second_output_counts_too() -> None:
    check = Check(families=(Family.NORMAL,), rtol=0.0, c=1.0, nan="forbid")
    specs = [TensorSpec(name=name, shape=(2,), dtype="float32") for name in "ab"]
    wants = [np.ones(2), np.ones(2)]
    right, wrong = np.ones(2, np.float32), np.zeros(2, np.float32)
    assert compare([right, wrong], wants, wants, specs, check).message.startswith("b: 2 of 2")


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int8"])
def test_integers_are_exact(dtype: str) -> None:
    want = np.arange(32).reshape(4, 8)
    assert judged(want.astype(dtype), want, dtype=dtype).is_within
    got = want.astype(dtype)
    got[2, 2] += 1
    found = judged(got, want, dtype=dtype, rtol=10.0, c=1000.0)
    assert not found.is_within
    assert "1 of 32 elements violate exact equality; worst at [2, 2]: got 19" in found.message


def test_rows_of_zeros_must_be_zero() -> None:
    want = np.array([[0.0] * 4, [1.0] * 4])
    got = want.astype(np.float32)
    assert judged(got, want).is_within
    assert judged(got, want).ratio == 0.0
    got[0, 1] = 1e-30
    found = judged(got, want, c=1e6)
    assert not found.is_within
    assert math.isinf(found.ratio)


def test_what_flushes_to_zero_is_not_an_error() -> None:
    want = np.full((1, 4), 1e-39)
    assert judged(np.zeros((1, 4), np.float32), want).is_within


def test_a_scale_of_single_elements_counts_each_for_itself() -> None:
    scale = np.ones((2, 4))
    scale[0, 0] = 1000.0
    got = ones(2, 4)
    got[0, 0] += np.float32(100 * EPS)
    assert judged(got, ones(2, 4), scale=scale).is_within
    got[0, 1] += np.float32(100 * EPS)
    assert "worst at [0, 1]" in judged(got, ones(2, 4), scale=scale).message


@pytest.mark.parametrize("value", [np.nan, np.inf], ids=["nan", "inf"])
def test_a_scale_that_is_not_finite_allows_nothing(value: float) -> None:
    got = ones()
    got[2, 2] = 5.0
    assert not judged(got, ones(), scale=np.full((4, 1), value)).is_within


def test_long_vectors_are_compared_to_their_end() -> None:
    want = np.ones(300_000)
    got = want.astype(np.float32)
    assert judged(got, want).is_within
    got[-1] = 2.0
    assert "worst at [299999]" in judged(got, want).message


def test_without_a_measured_c_the_default_holds() -> None:
    got = ones()
    got[0, 0] += np.float32(16 * EPS)
    assert judged(got, ones(), c=None).is_within
    got[0, 0] += np.float32(EPS)
    assert not judged(got, ones(), c=None).is_within
