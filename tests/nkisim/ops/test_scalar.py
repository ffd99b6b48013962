"""activation and activation_reduce."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.nkisim.ops.instructions import FakeState, call, psum

BF16 = ml_dtypes.bfloat16
OPS: dict[str, Any] = {"exp": np.exp, "square": np.square, "copy": lambda x: x, "tanh": np.tanh}


def rand(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(np.float32).astype(dtype)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("out_dtype", [np.float32, BF16], ids=["to-fp32", "to-bf16"])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("tensors", [False, True], ids=["numbers", "columns"])
def test_activation_scales_then_shifts(op, dtype, out_dtype, tensors, seed):
    rng = np.random.default_rng(seed)
    x = rand(rng, 8, 3, 4, dtype=dtype)
    scale, bias = (rand(rng, 8, 1), rand(rng, 8, 1)) if tensors else (0.5, -1.0)
    out = np.zeros((8, 12), dtype=out_dtype)
    before = x.copy()
    call("activation", dst=out, op=op, data=psum(x), scale=scale, bias=bias)
    assert np.array_equal(x, before)
    want = OPS[op](x.astype(np.float64).reshape(8, 12) * scale + bias)
    rtol = 1e-6 if out_dtype is np.float32 else 2**-8
    assert np.allclose(out.astype(np.float64), want, rtol=rtol, atol=1e-6)


def test_activation_defaults_change_nothing():
    x = np.array([[1.0, -2.0]], dtype=np.float32)
    out = np.zeros_like(x)
    call("activation", dst=out, op="copy", data=x)
    assert np.array_equal(out, x)


@pytest.mark.parametrize("dtype", [np.float32, BF16], ids=["fp32", "bf16"])
def test_activation_in_place(dtype):
    rng = np.random.default_rng(3)
    x = rand(rng, 4, 8, dtype=dtype)
    want = x.astype(np.float64) / (1 + np.exp(-2 * x.astype(np.float64))) * 2
    call("activation", dst=x, op="silu", data=x, scale=2.0)
    assert np.allclose(x.astype(np.float64), want, rtol=1e-6 if dtype is np.float32 else 2**-8)


@pytest.mark.parametrize("dtype", [np.float32, BF16], ids=["fp32", "bf16"])
def test_activation_reduce_sums_before_rounding(dtype):
    rng = np.random.default_rng(4)
    x = rand(rng, 8, 32, dtype=dtype)
    out, total = np.zeros_like(x), np.zeros((8, 1), dtype=np.float32)
    call("activation_reduce", dst=out, op="square", data=x, reduce_op="add", reduce_res=total)
    assert np.allclose(total[:, 0], np.square(x.astype(np.float64)).sum(axis=1), rtol=1e-6)


def test_registers_follow_reduce_cmd():
    x = np.ones((2, 4), dtype=np.float32)
    out, total = np.zeros_like(x), np.zeros((2, 1), dtype=np.float32)
    state = FakeState()
    seen = []
    for command in ("reset_reduce", "reduce", "idle", "reset", "reduce"):
        call(
            "activation",
            state=state,
            dst=out,
            op="copy",
            data=x,
            reduce_op="add",
            reduce_res=total,
            reduce_cmd=command,
        )
        seen.append(float(total[0, 0]))
    assert seen == [4, 8, 8, 0, 4]
    assert state.scalar_accumulator[2] == 0


def test_reduce_res_may_lie_inside_of_dst():
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    out = np.zeros_like(x)
    call("activation_reduce", dst=out, op="copy", data=x, reduce_op="add", reduce_res=out[:, :1])
    assert out.tolist() == [[6, 1, 2, 3], [22, 5, 6, 7]]
