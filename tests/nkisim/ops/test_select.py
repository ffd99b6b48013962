"""The eight largest, ranges and predicates."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.nkisim.ops.instructions import FakeState, call

from nkisim.dtypes import DTYPES

BF16 = ml_dtypes.bfloat16
SEEDS = pytest.mark.parametrize("seed", [1, 2])
FP32_MIN = np.float32(DTYPES["float32"].min)


def rand(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(np.float32).astype(dtype)


@SEEDS
@pytest.mark.parametrize("n", [8, 9, 300])
@pytest.mark.parametrize("dtype", [np.float32, BF16], ids=["fp32", "bf16"])
def test_max8_sorts_descending(n, dtype, seed):
    x = rand(np.random.default_rng(seed), 8, n, dtype=dtype)
    before, out = x.copy(), np.zeros((8, 8), dtype=dtype)
    call("max8", dst=out, src=x)
    assert np.array_equal(out, np.sort(x.astype(np.float32), axis=1)[:, ::-1][:, :8].astype(dtype))
    assert np.array_equal(x, before)


@SEEDS
def test_find_index8_inverts_max8(seed):
    x = rand(np.random.default_rng(seed), 16, 40)
    top, where = np.zeros((16, 8), dtype=np.float32), np.zeros((16, 8), dtype=np.uint32)
    call("max8", dst=top, src=x)
    call("nc_find_index8", dst=where, data=x, vals=top)
    assert np.array_equal(np.take_along_axis(x, where.astype(np.int64), axis=1), top)


def test_find_index8_gives_repeats_the_next_place_and_misses_all_ones():
    x = np.array([[1, 5, 5, 2, 5, 0, 0, 0, 0]], dtype=np.float32)
    vals = np.array([[5, 5, 2, 5, 5, 9, 1, 0]], dtype=np.float32)
    where = np.zeros((1, 8), dtype=np.uint16)
    call("nc_find_index8", dst=where, data=x, vals=vals)
    assert where.tolist() == [[1, 2, 3, 4, 65535, 65535, 0, 5]]


def test_match_replace8_gives_the_first_place_to_the_highest_slot():
    x = np.array([[7, 5, 5, 2]], dtype=np.float32)
    vals = np.array([[5, 5, 9, 9, 9, 9, 9, 7]], dtype=np.float32)
    places = np.zeros((1, 8), dtype=np.uint32)
    call("nc_match_replace8", dst=x, data=x, vals=vals, imm=-1.0, dst_idx=places)
    assert x.tolist() == [[-1, -1, -1, 2]]
    assert places[0, [0, 1, 7]].tolist() == [2, 1, 0]
    assert places[0, 2] == 2**32 - 1


@SEEDS
@pytest.mark.parametrize("dtype", [np.float32, BF16], ids=["fp32", "bf16"])
def test_range_select_keeps_a_range_per_row(dtype, seed):
    rng = np.random.default_rng(seed)
    x = rand(rng, 8, 4, 5)
    low = rng.integers(0, 10, (8, 1)).astype(np.float32)
    high = low + 6
    out, top = np.zeros((8, 20), dtype=dtype), np.zeros((8, 1), dtype=np.float32)
    call(
        "range_select",
        dst=out,
        on_true_tile=x,
        comp_op0="greater_equal",
        comp_op1="less",
        bound0=low,
        bound1=high,
        reduce_res=top,
        range_start=3,
    )
    i = np.arange(3, 23)
    want = np.where((i >= low) & (i < high), x.reshape(8, 20), FP32_MIN)
    with np.errstate(over="ignore"):
        assert np.array_equal(out, want.astype(dtype))
    assert np.array_equal(top[:, 0], want.max(axis=1))


@pytest.mark.parametrize("swap", [False, True], ids=["straight", "reversed"])
def test_select_reduce(swap):
    rng = np.random.default_rng(3)
    x, flags, other = rand(rng, 8, 6), rng.integers(0, 2, (8, 6)).astype(np.uint8), rand(rng, 8, 1)
    out, top, state = np.zeros_like(x), np.zeros((8, 1), dtype=np.float32), FakeState()
    arguments: dict[str, Any] = {
        "predicate": flags,
        "on_true": x,
        "on_false": other,
        "reverse_pred": swap,
    }
    call(
        "select_reduce",
        state=state,
        dst=out,
        reduce_res=top,
        reduce_cmd="reset_reduce",
        **arguments,
    )
    want = np.where((flags == 0) if swap else (flags != 0), x, other)
    assert np.array_equal(out, want)
    assert np.array_equal(top[:, 0], want.max(axis=1))
    call("select_reduce", state=state, dst=x, reduce_res=top, reduce_cmd="reduce", **arguments)
    assert np.array_equal(x, want)
    assert np.array_equal(top[:, 0], want.max(axis=1))
