"""Elementwise instructions and copies against float64 numpy."""

import ml_dtypes
import numpy as np
import pytest
from tests.nkisim.ops.instructions import FakeState, Tile, call, psum

from nkisim.dtypes import DTYPES
from nkisim.machine.spec import Engine

BF16 = ml_dtypes.bfloat16
SEEDS = pytest.mark.parametrize("seed", [3, 4])
BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
}
BITS = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
}


def rand(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(np.float32).astype(dtype)


# -- tensor_tensor ------------------------------------------------------------------------------


@SEEDS
@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("op", BINARY)
def test_tensor_tensor_matches_numpy(op, dtype, seed):
    rng = np.random.default_rng(seed)
    a, b = rand(rng, 8, 12, dtype=dtype), rand(rng, 8, 12, dtype=dtype)
    b[0] = a[0]
    out = np.zeros((8, 12), dtype=dtype)
    call("tensor_tensor", dst=out, data1=a, data2=b, op=op)
    want = BINARY[op](a.astype(np.float32), b.astype(np.float32)).astype(np.float32).astype(dtype)
    assert np.array_equal(out, want)


def test_tensor_tensor_rounds_once():
    a = np.full((1, 1), 1.0, dtype=np.float32)
    b = np.full((1, 1), 2**-9, dtype=np.float32)
    out = np.zeros((1, 1), dtype=BF16)
    call("tensor_tensor", dst=out, data1=a, data2=b, op="add")
    assert out[0, 0] == 1.0  # below half a bfloat16 ulp of 1


def test_ranks_may_differ():
    rng = np.random.default_rng(5)
    a, b = rand(rng, 4, 2, 3), rand(rng, 4, 6)
    out = np.zeros((4, 3, 2), dtype=np.float32)
    call("tensor_tensor", dst=out, data1=a, data2=b, op="add")
    assert np.array_equal(out.reshape(4, 6), a.reshape(4, 6) + b)


@pytest.mark.parametrize("dtype", [np.float32, BF16], ids=["fp32", "bf16"])
def test_destination_may_be_an_input_or_overlap_it(dtype):
    rng = np.random.default_rng(6)
    base = rand(rng, 4, 9, dtype=dtype)
    before = base.astype(np.float32)
    call("tensor_tensor", dst=base[:, 1:], data1=base[:, :-1], data2=base[:, 1:], op="add")
    want = (before[:, :-1] + before[:, 1:]).astype(dtype)
    assert np.array_equal(base[:, 1:], want)


def test_power_runs_on_gpsimd():
    a = np.full((2, 2), 4.0, dtype=np.float32)
    out = np.zeros((2, 2), dtype=np.float32)
    done = call("tensor_tensor", dst=out, data1=a, data2=np.full_like(a, 0.5), op="power")
    assert out.tolist() == [[2, 2], [2, 2]]
    assert done.form.engine is Engine.GPSIMD


@pytest.mark.parametrize("op", ["add", "subtract", "multiply"])
def test_int32_in_sbuf_is_exact_and_on_gpsimd(op):
    a = np.array([[2**24 + 1, 123457, -7]], dtype=np.int32)
    b = np.array([[2, 65537, 3]], dtype=np.int32)
    out = np.zeros_like(a)
    done = call("tensor_tensor", dst=out, data1=a, data2=b, op=op)
    assert done.form.engine is Engine.GPSIMD
    want = BINARY[op](a.astype(np.int64), b.astype(np.int64)).astype(np.int32)
    assert np.array_equal(out, want)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32], ids=str)
@pytest.mark.parametrize("op", BINARY)
def test_gpsimd_knows_neighbouring_integers_apart(op, dtype):
    rng = np.random.default_rng(11)
    a = rng.integers(1 << 29, 1 << 30, (4, 50), dtype=dtype)
    b = a + rng.integers(-1, 2, a.shape).astype(dtype)
    a[0], b[1] = 0, 0
    out = np.zeros_like(a)
    call("tensor_tensor", dst=out, data1=a, data2=b, op=op)
    want = BINARY[op](a.astype(np.int64), b.astype(np.int64)).astype(np.int64)
    assert np.array_equal(out.view(np.uint32), (want & 0xFFFFFFFF).astype(np.uint32))


def test_int32_on_the_vector_engine_goes_through_float32():
    a = np.array([[2**24 + 1]], dtype=np.int32)
    out = np.zeros_like(a)
    call("tensor_tensor", engine="vector", dst=out, data1=a, data2=np.zeros_like(a), op="add")
    assert out[0, 0] == 2**24


@SEEDS
@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int16], ids=str)
@pytest.mark.parametrize("op", BITS)
def test_bitvec_works_on_raw_bits(op, dtype, seed):
    rng = np.random.default_rng(seed)
    info = np.iinfo(dtype)
    a, b = (rng.integers(info.min, info.max, (4, 6), dtype=dtype, endpoint=True) for _ in "ab")
    out = np.zeros_like(a)
    call("tensor_tensor", dst=out, data1=a, data2=b, op=op)
    assert np.array_equal(out, BITS[op](a, b))


def test_right_shift_is_logical():
    a = np.array([[-8, 8]], dtype=np.int32)
    out = np.zeros_like(a)
    call("tensor_scalar", dst=out, data=a, op0="right_shift", operand0=1)
    assert out.tolist() == [[0x7FFFFFFC, 4]]


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.uint8, np.uint32], ids=str)
@pytest.mark.parametrize("amount", [0, 1, 5, 7])
def test_shifts_are_logical_on_every_width(amount, dtype):
    info = np.iinfo(dtype)
    rng = np.random.default_rng(12)
    x = rng.integers(info.min, info.max, (4, 9), dtype=dtype, endpoint=True)
    bits = 8 * x.itemsize
    raw = x.astype(object) % (1 << bits)
    amounts = np.full_like(x, amount)
    for op, want in (("right_shift", raw >> amount), ("left_shift", raw << amount)):
        expected = (want % (1 << bits)).astype(f"u{x.itemsize}").view(dtype)
        out = np.zeros_like(x)
        call("tensor_scalar", dst=out, data=x, op0=op, operand0=amount)
        assert np.array_equal(out, expected)
        call("tensor_tensor", dst=out, data1=x, data2=amounts, op=op)
        assert np.array_equal(out, expected)


def test_bitvec_reversed_and_inverted():
    x = np.array([[1, 3]], dtype=np.uint8)
    out = np.zeros_like(x)
    call("tensor_scalar", dst=out, data=x, op0="left_shift", operand0=1, reverse0=True)
    assert out.tolist() == [[2, 8]]  # 1 << x
    call("tensor_scalar", dst=out, data=x, op0="invert")
    assert out.tolist() == [[254, 252]]
    call("tensor_tensor", dst=x, data1=x, data2=x, op="invert")
    assert x.tolist() == [[254, 252]]


FP8 = [ml_dtypes.float8_e4m3, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn]


@pytest.mark.parametrize("dtype", [*FP8, np.int8, np.int16, np.uint8, np.uint16], ids=str)
@pytest.mark.parametrize("op", ["add", "multiply", "maximum"])
def test_narrow_dtypes_compute_in_float32_and_round_or_saturate(op, dtype):
    rng = np.random.default_rng(13)
    a, b = ((rng.standard_normal((8, 16)) * 9).astype(np.float32).astype(dtype) for _ in "ab")
    column = rand(rng, 8, 1)
    for other in (b, column):
        out = np.zeros((8, 4, 4), dtype=dtype)
        if other is b:
            call("tensor_tensor", dst=out, data1=a, data2=b, op=op)
        else:
            call("tensor_scalar", dst=out, data=a, op0=op, operand0=column)
        exact = BINARY[op](a.astype(np.float32), other.astype(np.float32))
        if np.issubdtype(dtype, np.integer):
            exact = np.clip(np.rint(exact), np.iinfo(dtype).min, np.iinfo(dtype).max)
        assert np.array_equal(out.reshape(8, 16), exact.astype(dtype))


@SEEDS
def test_strided_views_of_many_dimensions(seed):
    rng = np.random.default_rng(seed)
    a, b = rand(rng, 8, 6, 10), rand(rng, 8, 4, 12)
    base = np.full((8, 6, 20), 7, dtype=np.float32)
    call(
        "tensor_tensor",
        dst=base[:, ::2, 1:17:4],
        data1=a[:, 1::2, ::3],
        data2=b[:, ::-1, ::4],
        op="subtract",
    )
    want = a[:, 1::2, ::3] - b[:, ::-1, ::4].reshape(8, 3, 4)
    assert np.array_equal(base[:, ::2, 1:17:4], want)
    assert (base == 7).sum() >= base.size - want.size


# -- tensor_scalar ------------------------------------------------------------------------------


@SEEDS
@pytest.mark.parametrize("dtype", [np.float32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("swap", [False, True], ids=["straight", "reversed"])
def test_tensor_scalar_takes_columns_and_numbers(op, dtype, swap, seed):
    rng = np.random.default_rng(seed)
    x, column = rand(rng, 8, 3, 4, dtype=dtype), rand(rng, 8, 1)
    for operand in (column, 0.5):
        out = np.zeros((8, 3, 4), dtype=dtype)
        call("tensor_scalar", dst=out, data=x, op0=op, operand0=operand, reverse0=swap)
        other = np.reshape(np.float32(operand), (-1, 1, 1))
        pair = (other, x.astype(np.float32)) if swap else (x.astype(np.float32), other)
        assert np.array_equal(out, BINARY[op](*pair).astype(np.float32).astype(dtype))


@pytest.mark.parametrize("dtype", [np.float32, BF16], ids=["fp32", "bf16"])
def test_two_ops_in_a_row(dtype):
    rng = np.random.default_rng(7)
    x, c0, c1 = rand(rng, 8, 16, dtype=dtype), rand(rng, 8, 1), rand(rng, 8, 1)
    out = np.zeros((8, 16), dtype=dtype)
    call(
        "tensor_scalar",
        dst=out,
        data=x,
        op0="multiply",
        operand0=c0,
        op1="subtract",
        operand1=c1,
        reverse1=True,
    )
    assert np.array_equal(out, (c1 - x.astype(np.float32) * c0).astype(dtype))


def test_columns_inside_of_dst_are_read_first():
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    want = (x[:, 2:] * x[:, :1]) + x[:, 2:]
    call(
        "tensor_scalar",
        dst=x[:, 2:],
        data=x[:, 2:],
        op0="multiply",
        operand0=x[:, :1],
        op1="add",
        operand1=x[:, 2:],
    )
    assert np.array_equal(x[:, 2:], want)


@pytest.mark.parametrize(
    ("op", "want"), [("abs", [2, 4]), ("square", [4, 16]), ("relu", [0, 4]), ("rsqrt", [None, 0.5])]
)
def test_unary_ops_take_no_operand(op, want):
    x = np.array([[-2, 4]], dtype=np.float32)
    out = np.zeros_like(x)
    call("tensor_scalar", on="trn3", dst=out, data=x, op0=op, operand0=0.0)
    for got, expected in zip(out[0].tolist(), want, strict=True):
        assert expected is None or got == expected


def test_rsqrt_of_a_sum_in_one_instruction():
    rng = np.random.default_rng(14)
    x = np.abs(rand(rng, 8, 5))
    out = np.zeros((8, 5), dtype=BF16)
    call("tensor_scalar", dst=out, data=x, op0="add", operand0=1e-6, op1="rsqrt", operand1=0.0)
    assert np.allclose(out.astype(np.float64), (x.astype(np.float64) + 1e-6) ** -0.5, rtol=2**-8)
    done = call("tensor_scalar", dst=x, data=x, op0="rsqrt")
    assert done.form.engine is Engine.GPSIMD


def test_power_takes_a_number():
    x = np.array([[4.0, 16.0]], dtype=np.float32)
    call("tensor_scalar", dst=x, data=x, op0="power", operand0=-0.5)
    assert x.tolist() == [[0.5, 0.25]]


def test_logical_not_and_bypass():
    x = np.array([[0.0, 3.0]], dtype=np.float32)
    out = np.zeros_like(x)
    call("tensor_scalar", dst=out, data=x, op0="logical_not")
    assert out.tolist() == [[1, 0]]
    call("tensor_scalar", dst=out, data=x, op0="bypass", op1="add", operand1=1.0)
    assert out.tolist() == [[1, 4]]
    call("tensor_scalar", dst=out, data=x, op0="add", operand0=1.0, op1="bypass")
    assert out.tolist() == [[1, 4]]
    narrow = np.zeros_like(x, dtype=BF16)
    call("tensor_scalar", dst=narrow, data=x, op0="logical_not", op1="add", operand1=1.0)
    assert narrow.tolist() == [[2, 1]]


def test_scalar_engine_takes_multiply_and_add():
    x = np.ones((2, 2), dtype=np.float32)
    call(
        "tensor_scalar",
        engine="scalar",
        dst=x,
        data=x,
        op0="multiply",
        operand0=3.0,
        op1="add",
        operand1=1.0,
    )
    assert x.tolist() == [[4, 4], [4, 4]]


def test_bitvec_chain_with_an_integer_column():
    x = np.array([[0xF0, 0x0F]], dtype=np.uint8)
    out = np.zeros_like(x)
    column = np.array([[2]], dtype=np.uint8)
    call(
        "tensor_scalar",
        dst=out,
        data=x,
        op0="bitwise_and",
        operand0=0x3C,
        op1="left_shift",
        operand1=column,
    )
    assert out.tolist() == [[0xC0, 0x30]]


@SEEDS
@pytest.mark.parametrize("dtype", [np.float32, BF16], ids=["fp32", "bf16"])
def test_scalar_tensor_tensor_in_place(dtype, seed):
    rng = np.random.default_rng(seed)
    x, y, column = rand(rng, 8, 16, dtype=dtype), rand(rng, 8, 16, dtype=dtype), rand(rng, 8, 1)
    want = (x.astype(np.float32) * column - y.astype(np.float32)).astype(dtype)
    call(
        "scalar_tensor_tensor",
        dst=y,
        data=x,
        op0="multiply",
        operand0=column,
        op1="subtract",
        operand1=y,
    )
    assert np.array_equal(y, want)


def test_scalar_tensor_tensor_swaps_operands():
    x, y = np.full((1, 2), 3.0, np.float32), np.full((1, 2), 10.0, np.float32)
    call(
        "scalar_tensor_tensor",
        dst=x,
        data=x,
        op0="subtract",
        operand0=1.0,
        op1="subtract",
        operand1=y,
        reverse0=True,
        reverse1=True,
    )
    assert x.tolist() == [[12, 12]]


# -- copies -------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["float32", "bfloat16", "float16", "int32", "uint8"])
@pytest.mark.parametrize("dtype", [np.float32, BF16, np.int16], ids=str)
def test_tensor_copy_casts(dtype, to):
    rng = np.random.default_rng(8)
    x = (rng.standard_normal((4, 6)) * 50).astype(np.float32).astype(dtype)
    storage = DTYPES[to].storage
    out = np.zeros((4, 2, 3), dtype=storage)
    call("tensor_copy", dst=out, src=psum(x))
    want = x.astype(np.float64)
    if DTYPES[to].is_integer:
        info = np.iinfo(storage.type)  # type: ignore[type-var]
        want = np.clip(np.rint(want), info.min, info.max)
    assert np.array_equal(out.reshape(4, 6), want.astype(np.float32).astype(storage))


def test_tensor_copy_of_one_dtype_moves_bits_except_on_the_scalar_engine():
    x = np.array([[2**24 + 1]], dtype=np.int32)
    out = np.zeros_like(x)
    call("tensor_copy", dst=out, src=x)
    assert out[0, 0] == 2**24 + 1
    call("tensor_copy", engine="scalar", dst=out, src=x)
    assert out[0, 0] == 2**24


@pytest.mark.parametrize(
    ("dtype", "value", "want"),
    [("float32", 1.5, 1.5), ("bfloat16", 0.1, 0.10009765625), ("int32", 7, 7), ("uint8", 300, 255)],
)
def test_memset(dtype, value, want):
    out = np.zeros((2, 3), dtype=DTYPES[dtype].storage)
    call("memset", dst=out, value=value)
    assert (out.astype(np.float64) == want).all()


def test_memset_keeps_the_neighbours():
    base = np.ones((2, 6), dtype=np.float32)
    call("memset", dst=base[:, 1:4:2], value=0.0)
    assert base.tolist() == [[1, 0, 1, 0, 1, 1]] * 2


@pytest.mark.parametrize("swap", [False, True], ids=["straight", "reversed"])
def test_copy_predicated_keeps_the_rest(swap):
    rng = np.random.default_rng(9)
    x, flags = rand(rng, 4, 6), rng.integers(0, 3, (4, 6)).astype(np.uint8)
    out = np.full((4, 6), 9.0, dtype=np.float32)
    call("tensor_copy_predicated", dst=out, src=x, predicate=flags, reverse_pred=swap)
    keep = (flags == 0) if swap else (flags != 0)
    assert np.array_equal(out, np.where(keep, x, np.float32(9)))
    call("tensor_copy_predicated", dst=out, src=-1.0, predicate=flags)
    assert (out[flags != 0] == -1).all()


@SEEDS
def test_reciprocal(seed):
    rng = np.random.default_rng(seed)
    x = rand(rng, 8, 5)
    out = np.zeros((8, 5), dtype=np.float32)
    call("reciprocal", dst=out, data=x)
    assert np.allclose(out, 1 / x.astype(np.float64), rtol=1e-7)
    narrow = np.zeros((8, 5), dtype=BF16)
    call("reciprocal", dst=narrow, data=x)
    assert np.array_equal(narrow, out.astype(BF16))


def test_tfloat32_results_are_rounded():
    x = np.full((1, 1), 1 + 2**-12, dtype=np.float32)
    out = np.zeros((1, 1), dtype=np.float32)
    call("tensor_scalar", dst=Tile(out, dtype=DTYPES["tfloat32"]), data=x, op0="add", operand0=0.0)
    assert out[0, 0] == 1.0


# -- shuffle ------------------------------------------------------------------------------------


@SEEDS
@pytest.mark.parametrize("partitions", [32, 64, 128])
def test_shuffle_moves_rows_within_groups(partitions, seed):
    rng = np.random.default_rng(seed)
    x, old = rand(rng, partitions, 5), rand(rng, partitions, 5)
    mask = tuple(int(m) if m < 32 else 255 for m in rng.integers(0, 36, 32))
    out = old.copy()
    call("nc_stream_shuffle", dst=out, src=x, shuffle_mask=mask)
    for row in range(partitions):
        m = mask[row % 32]
        want = old[row] if m == 255 else x[row - row % 32 + m]
        assert np.array_equal(out[row], want)


def test_shuffle_in_place_and_broadcast_from_one_row():
    x = np.arange(32, dtype=np.float32).reshape(32, 1)
    call("nc_stream_shuffle", dst=x, src=x, shuffle_mask=(*range(31, -1, -1),))
    assert x[:, 0].tolist() == list(range(31, -1, -1))
    wide = np.zeros((128, 1), dtype=np.float32)
    call("nc_stream_shuffle", dst=wide, src=x[:1], shuffle_mask=(0,) * 32)
    assert (wide == 31).all()


def test_shuffle_serves_every_group_from_one_group():
    rng = np.random.default_rng(15)
    x, old = rand(rng, 32, 2, 3), rand(rng, 128, 6)
    mask = (*range(31, 0, -1), 255)
    out = old.copy()
    call("nc_stream_shuffle", dst=out, src=x, shuffle_mask=mask)
    for row in range(128):
        want = old[row] if row % 32 == 31 else x[31 - row % 32].ravel()
        assert np.array_equal(out[row], want)


# -- exponential --------------------------------------------------------------------------------


def test_exponential_accumulates():
    rng = np.random.default_rng(10)
    x, high = rand(rng, 8, 16), rand(rng, 8, 1)
    out, total = np.zeros((8, 16), dtype=np.float32), np.zeros((8, 1), dtype=np.float32)
    state = FakeState()
    for command, factor in (("reset_reduce", 1), ("reduce", 2)):
        call(
            "exponential",
            on="trn3",
            state=state,
            dst=out,
            src=x,
            max_value=high,
            reduce_res=total,
            reduce_cmd=command,
        )
        want = np.exp(x.astype(np.float64) - high)
        assert np.allclose(out, want, rtol=1e-6)
        assert np.allclose(total[:, 0], factor * want.sum(axis=1), rtol=1e-5)
