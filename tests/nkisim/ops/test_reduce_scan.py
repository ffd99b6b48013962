"""Reductions, statistics and recurrences against float64 numpy."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.nkisim.ops.instructions import FakeState, call

BF16 = ml_dtypes.bfloat16
SEEDS = pytest.mark.parametrize("seed", [1, 2])
REDUCE: dict[str, Any] = {"add": np.sum, "maximum": np.max, "minimum": np.min, "multiply": np.prod}


def rand(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(np.float32).astype(dtype)


@SEEDS
@pytest.mark.parametrize("dtype", [np.float32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("axis", "kept"), [(2, 3), ((1, 2), 1), (-1, 3)], ids=str)
@pytest.mark.parametrize("op", REDUCE)
@pytest.mark.parametrize("negate", [False, True], ids=["plain", "negated"])
def test_tensor_reduce(op, axis, kept, dtype, negate, seed):
    rng = np.random.default_rng(seed)
    x = rand(rng, 8, 3, 5, dtype=dtype)
    out = np.zeros((8, kept), dtype=np.float32)
    call("tensor_reduce", dst=out, op=op, data=x, axis=axis, negate=negate)
    want = REDUCE[op](x.astype(np.float64), axis=axis).reshape(8, kept)
    assert np.allclose(out, -want if negate else want, rtol=1e-5, atol=1e-5)


def test_tensor_reduce_folds_subtraction_from_the_left_and_counts_logic():
    x = np.array([[10, 3, 2]], dtype=np.float32)
    out = np.zeros((1, 1), dtype=np.float32)
    call("tensor_reduce", dst=out, op="subtract", data=x, axis=1)
    assert out[0, 0] == 5
    call("tensor_reduce", dst=out, op="logical_and", data=x, axis=1)
    assert out[0, 0] == 1


def test_tensor_reduce_on_bits_and_in_place():
    bits = np.array([[1, 2, 4]], dtype=np.uint8)
    call("tensor_reduce", dst=bits[:, :1], op="bitwise_or", data=bits, axis=1)
    assert bits[0, 0] == 7
    x = np.array([[1, 2, 4]], dtype=np.float32)
    call("tensor_reduce", dst=x[:, :1], op="add", data=x, axis=1)
    assert x[0, 0] == 7


@SEEDS
@pytest.mark.parametrize("op", REDUCE)
def test_tensor_scalar_reduce(op, seed):
    rng = np.random.default_rng(seed)
    x, column = rand(rng, 8, 12), rand(rng, 8, 1)
    out, total = np.zeros_like(x), np.zeros((8, 1), dtype=np.float32)
    call(
        "tensor_scalar_reduce",
        dst=out,
        data=x,
        op0="add",
        operand0=column,
        reduce_op=op,
        reduce_res=total,
        reduce_res_negate=True,
    )
    assert np.array_equal(out, x + column)
    want = REDUCE[op]((x + column).astype(np.float64), axis=1)
    assert np.allclose(-total[:, 0], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("op", "on"), [("abs", "trn2"), ("square", "trn3"), ("relu", "trn3")])
def test_tensor_scalar_reduce_takes_unary_ops(op, on):
    x = np.array([[-2.0, 3.0], [0.5, -0.5]], dtype=np.float32)
    out, total = np.zeros_like(x), np.zeros((2, 1), dtype=np.float32)
    call(
        "tensor_scalar_reduce",
        on=on,
        dst=out,
        data=x,
        op0=op,
        operand0=0.0,
        reduce_op="add",
        reduce_res=total,
    )
    want = {"abs": np.abs(x), "square": x * x, "relu": np.maximum(x, 0)}[op]
    assert np.array_equal(out, want)
    assert np.array_equal(total[:, 0], want.sum(axis=1))


def test_tensor_scalar_reduce_continues_from_registers_or_a_value():
    x = np.ones((2, 4), dtype=np.float32)
    total, state, seen = np.zeros((2, 1), dtype=np.float32), FakeState(), []
    for command, initial in (("reset_reduce", None), ("reduce", None), ("load_reduce", 10.0)):
        call(
            "tensor_scalar_reduce",
            state=state,
            dst=np.zeros_like(x),
            data=x,
            op0="multiply",
            operand0=2.0,
            reduce_op="add",
            reduce_res=total,
            reduce_cmd=command,
            reduce_init=initial,
        )
        seen.append(float(total[1, 0]))
    assert seen == [8, 16, 18]


@SEEDS
@pytest.mark.parametrize("n", [1, 2, 511, 512])
def test_batch_statistics(n, seed):
    rng = np.random.default_rng(seed)
    x = rand(rng, 8, n) + 3
    stats, result = np.zeros((8, 6), dtype=np.float32), np.zeros((8, 2), dtype=np.float32)
    call("bn_stats", dst=stats, data=x)
    even = x[:, ::2].astype(np.float64)
    assert np.allclose(stats[:, 0], even.shape[1])
    assert np.allclose(stats[:, 1], even.mean(axis=1), rtol=1e-6)
    assert np.allclose(stats[:, 2], even.var(axis=1) * even.shape[1], rtol=1e-5, atol=1e-6)
    call("bn_aggr", dst=result, data=stats)
    wide = x.astype(np.float64)
    assert np.allclose(result[:, 0], wide.mean(axis=1), rtol=1e-6)
    assert np.allclose(result[:, 1], wide.var(axis=1), rtol=1e-5, atol=1e-6)


def test_bn_aggr_combines_chunks():
    rng = np.random.default_rng(3)
    x = rand(rng, 4, 1024)
    stats, result = np.zeros((4, 2, 6), dtype=np.float32), np.zeros((4, 2), dtype=np.float32)
    for i in range(2):
        call("bn_stats", dst=stats[:, i], data=x[:, 512 * i : 512 * (i + 1)])
    call("bn_aggr", dst=result, data=stats)
    assert np.allclose(result[:, 1], x.astype(np.float64).var(axis=1), rtol=1e-5)


def recurrence(x, y, start, f0, f1, swap0, swap1):
    out, state = np.zeros_like(x), start
    for i in range(x.shape[1]):
        t = f0(state, x[:, i]) if swap0 else f0(x[:, i], state)
        state = f1(y[:, i], t) if swap1 else f1(t, y[:, i])
        out[:, i] = state
    return out


SCAN_OPS = {"multiply": np.multiply, "add": np.add, "subtract": np.subtract, "maximum": np.maximum}


@SEEDS
@pytest.mark.parametrize("swaps", [(False, False), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("op0", SCAN_OPS)
@pytest.mark.parametrize("op1", SCAN_OPS)
def test_scan_is_the_recurrence_bit_by_bit(op0, op1, swaps, seed):
    rng = np.random.default_rng(seed)
    x, y, start = rand(rng, 8, 33), rand(rng, 8, 33), rand(rng, 8, 1)
    out = np.zeros_like(x)
    call(
        "tensor_tensor_scan",
        dst=out,
        data0=x,
        data1=y,
        initial=start,
        op0=op0,
        op1=op1,
        reverse0=swaps[0],
        reverse1=swaps[1],
    )
    want = recurrence(x, y, start[:, 0], SCAN_OPS[op0], SCAN_OPS[op1], *swaps)
    assert np.array_equal(out, want)


@SEEDS
@pytest.mark.parametrize("dtype", [np.float32, BF16], ids=["fp32", "bf16"])
def test_scan_over_ones_is_a_cumulative_sum_in_order(dtype, seed):
    rng = np.random.default_rng(seed)
    y = rand(rng, 8, 100, dtype=dtype)
    want = recurrence(
        np.ones((8, 100), np.float32),
        y.astype(np.float32),
        np.full(8, 2, np.float32),
        np.multiply,
        np.add,
        False,
        False,
    )
    out = np.zeros((8, 100), dtype=np.float32)
    arguments: dict[str, Any] = {"data0": np.ones((8, 100), dtype=dtype), "initial": 2.0}
    call("tensor_tensor_scan", dst=out, data1=y, op0="multiply", op1="add", **arguments)
    assert np.array_equal(out, want)
    if dtype is np.float32:
        call("tensor_tensor_scan", dst=y, data1=y, op0="multiply", op1="add", **arguments)
        assert np.array_equal(y, want)


@SEEDS
@pytest.mark.parametrize(
    ("op", "start"),
    [("add", 0), ("subtract", 0), ("multiply", 1), ("maximum", -np.inf), ("minimum", np.inf)],
)
def test_cumulative(op, start, seed):
    rng = np.random.default_rng(seed)
    x = rand(rng, 4, 9)
    out = np.zeros_like(x)
    call("tensor_scalar_cumulative", dst=out, src=x, op0="multiply", op1=op, imm0=0.5)
    function = {"add": np.add, "multiply": np.multiply, "subtract": np.subtract}.get(
        op, np.maximum if op == "maximum" else np.minimum
    )
    state = np.full(4, start, dtype=np.float32)
    for i in range(9):
        state = function(x[:, i] * np.float32(0.5), state)
        assert np.array_equal(out[:, i], state)


def test_cumulative_continues():
    x, state = np.ones((2, 3), dtype=np.float32), FakeState()
    out = np.zeros_like(x)
    arguments: dict[str, Any] = {"src": x, "op0": "multiply", "op1": "add", "imm0": 1.0}
    call("tensor_scalar_cumulative", state=state, dst=out, **arguments)
    call("tensor_scalar_cumulative", state=state, dst=out, reduce_cmd="reduce", **arguments)
    assert out.tolist() == [[4, 5, 6]] * 2
    call("tensor_scalar_cumulative", dst=out, reduce_cmd="load_reduce", imm1=10.0, **arguments)
    assert out.tolist() == [[11, 12, 13]] * 2
