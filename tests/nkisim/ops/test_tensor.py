"""Matrix products and transposes against float64 numpy."""

import ml_dtypes
import numpy as np
import pytest
from tests.nkisim.ops.instructions import FakeState, call, cost, psum

from nkisim.errors import KernelError
from nkisim.machine.spec import Engine

BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3, ml_dtypes.float8_e5m2


def rand(seed, *shape, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(dtype)


def exact(a, b):
    k = a.shape[0]
    return a.astype(np.float64).reshape(k, -1).T @ b.astype(np.float64).reshape(k, -1)


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16, E5M2], ids=str)
@pytest.mark.parametrize(("k", "m", "n"), [(128, 128, 512), (1, 1, 1), (7, 33, 65)])
def test_matmul_contracts_partitions(dtype, k, m, n):
    a, b = rand(1, k, m, dtype=dtype), rand(2, k, n, dtype=dtype)
    out = np.full((m, n), 7, dtype=np.float32)
    call("nc_matmul", dst=psum(out), stationary=a, moving=b)
    assert np.allclose(out, exact(a, b), rtol=1e-5, atol=1e-4)


def test_matmul_flattens_free_axes_and_reads_strided_views():
    a, b = rand(3, 16, 4, 3), rand(4, 16, 40)[:, ::2]
    out = np.zeros((12, 4, 5), dtype=np.float32)
    call("nc_matmul", dst=psum(out), stationary=a, moving=b)
    assert np.allclose(out.reshape(12, 20), exact(a, b), atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    ("explicit", "held", "adds"),
    [
        (None, False, False),
        (None, True, True),
        (True, False, True),
        (False, True, False),
    ],
    ids=["first", "later", "asked", "refused"],
)
def test_matmul_accumulates(explicit, held, adds, dtype):
    a, b, old = rand(5, 8, 6), rand(6, 8, 10), rand(7, 6, 10, dtype=dtype)
    out = old.copy()
    state = FakeState(psum=held)
    on = "trn2" if dtype is np.float32 else "trn3"
    call(
        "nc_matmul", on=on, state=state, dst=psum(out), stationary=a, moving=b, accumulate=explicit
    )
    want = exact(a, b) + (old.astype(np.float64) if adds else 0)
    tolerance = 1e-5 if dtype is np.float32 else 2e-2
    assert np.allclose(out.astype(np.float64), want, rtol=tolerance, atol=tolerance)


def test_matmul_accumulates_by_element():
    a, b, old = rand(8, 8, 4), rand(9, 8, 6), rand(10, 4, 6)
    held = np.zeros((4, 6), dtype=bool)
    held[:, 3:] = True
    out = old.copy()
    call("nc_matmul", state=FakeState(psum=held), dst=psum(out), stationary=a, moving=b)
    assert np.allclose(out, exact(a, b) + np.where(held, old, 0), atol=1e-4)


def test_bfloat16_results_round_once_per_write():
    a, b = rand(11, 32, 4), rand(12, 32, 6)
    out = np.zeros((4, 6), dtype=BF16)
    call("nc_matmul", on="trn3", dst=psum(out), stationary=a, moving=b)
    assert np.array_equal(out, (a.T @ b).astype(BF16))


def test_transposing_matmul_moves_bits():
    x = rand(13, 4, 6)
    x[0, 0], x[1, 1] = np.nan, np.inf
    out = np.ones((6, 4), dtype=np.float32)
    call(
        "nc_matmul",
        state=FakeState(psum=True),
        dst=psum(out),
        stationary=x,
        moving=np.eye(4, dtype=np.float32),
        is_transpose=True,
    )
    assert np.array_equal(out, x.T, equal_nan=True)


def test_transposing_matmul_keeps_bfloat16_and_may_widen():
    x = rand(17, 4, 6, dtype=BF16)
    identity = np.eye(4, dtype=BF16)
    narrow, wide = np.ones((6, 4), dtype=BF16), np.ones((6, 4), dtype=np.float32)
    for out in (narrow, wide):
        call("nc_matmul", dst=psum(out), stationary=x, moving=identity, is_transpose=True)
        assert np.array_equal(out, x.T.astype(out.dtype))


def test_transposing_matmul_is_a_product_unless_moving_is_the_identity():
    a, b = rand(18, 8, 4), rand(19, 8, 8)
    out = np.zeros((4, 8), dtype=np.float32)
    call("nc_matmul", dst=psum(out), stationary=a, moving=b, is_transpose=True)
    assert np.allclose(out, exact(a, b), atol=1e-5)


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
def test_double_row_contracts_two_rows_at_a_time(dtype):
    a, b = rand(22, 100, 2, 96, dtype=dtype), rand(23, 100, 2, 512, dtype=dtype)
    out = np.zeros((96, 512), dtype=np.float32)
    call("nc_matmul", dst=psum(out), stationary=a, moving=b, perf_mode="double_row")
    assert np.allclose(out, exact(a.reshape(200, 96), b.reshape(200, 512)), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("why", "change", "on"),
    [
        ("takes float8", {"moving": np.zeros((8, 2, 16), BF16)}, "trn2"),
        ("two rows", {"moving": np.zeros((8, 32), E4M3)}, "trn2"),
        ("two rows", {"stationary": np.zeros((8, 4, 16), E4M3)}, "trn2"),
        ("can't transpose", {"is_transpose": True}, "trn2"),
        ("all columns", {"tile_position": (0, 0), "tile_size": (128, 64)}, "trn2"),
        ("NeuronCore-v3", {}, "trn1"),
    ],
)
def test_double_row_says_what_it_needs(why, change, on):
    operands = {
        "dst": psum(np.zeros((16, 16), np.float32)),
        "stationary": np.zeros((8, 2, 16), E4M3),
        "moving": np.zeros((8, 2, 16), E4M3),
    }
    with pytest.raises(KernelError, match=why) as caught:
        call("nc_matmul", on=on, perf_mode="double_row", **{**operands, **change})
    assert caught.value.code == "NKS122"


def test_double_row_takes_half_the_time():
    both, one = rand(24, 128, 2, 128, dtype=E4M3), rand(25, 128, 128, dtype=E4M3)
    out = np.zeros((128, 512), dtype=np.float32)
    wide, narrow = np.zeros((128, 2, 512), E4M3), np.zeros((128, 512), E4M3)
    two = cost("nc_matmul", dst=psum(out), stationary=both, moving=wide, perf_mode="double_row")
    single = cost("nc_matmul", dst=psum(out), stationary=one, moving=narrow)
    assert (two.interval, two.flops) == (single.interval, 2 * single.flops)


def test_part_of_the_array_does_not_change_the_product():
    a, b = rand(20, 32, 32), rand(21, 32, 40)
    out = np.zeros((32, 40), dtype=np.float32)
    call(
        "nc_matmul",
        dst=psum(out),
        stationary=a,
        moving=b,
        tile_position=(96, 64),
        tile_size=(32, 32),
    )
    assert np.allclose(out, exact(a, b), atol=1e-4)


@pytest.mark.parametrize("on", ["trn1", "trn2", "trn3"])
def test_fp8_operands_mix_with_bfloat16(on):
    a, b = rand(22, 16, 8, dtype=ml_dtypes.float8_e4m3), rand(23, 16, 9, dtype=BF16)
    out = np.zeros((8, 9), dtype=np.float32)
    call("nc_matmul", on=on, dst=psum(out), stationary=a, moving=b)
    assert np.allclose(out, exact(a, b), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.int32, np.uint8], ids=str)
@pytest.mark.parametrize(("p", "f"), [(128, 128), (3, 100), (1, 1)])
def test_transpose_on_the_tensor_engine(dtype, p, f):
    x = (rand(14, p, f) * 100).astype(dtype)
    out = np.zeros((f, p), dtype=dtype)
    done = call("nc_transpose", dst=psum(out), data=x)
    assert done.form.engine is Engine.TENSOR
    assert np.array_equal(out, x.T)


def test_transpose_widens_to_float32_in_psum():
    x = rand(15, 8, 16, dtype=BF16)
    out = np.zeros((16, 8), dtype=np.float32)
    call("nc_transpose", dst=psum(out), data=x)
    assert np.array_equal(out, x.astype(np.float32).T)


def test_small_transposes_in_sbuf_run_on_the_vector_engine_even_in_place():
    x = rand(16, 32, 32)
    want = x.T.copy()
    done = call("nc_transpose", dst=x, data=x)
    assert done.form.engine is Engine.VECTOR
    assert np.array_equal(x, want)
