"""Index patterns and gathers."""

import ml_dtypes
import numpy as np
import pytest
from tests.nkisim.ops.instructions import FakeState, Register, call

from nkisim.errors import KernelError

SEEDS = pytest.mark.parametrize("seed", [1, 2])
COMPARE = {
    "equal": np.equal,
    "not_equal": np.not_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "less_equal": np.less_equal,
}


@pytest.mark.parametrize("dtype", [np.int32, np.float32, ml_dtypes.bfloat16], ids=str)
def test_iota_walks_its_pattern(dtype):
    out = np.zeros((8, 2, 3), dtype=dtype)
    call("iota", dst=out, pattern=((10, 2), (-1, 3)), offset=5, channel_multiplier=100)
    want = 5 + 100 * np.arange(8)[:, None, None] + 10 * np.arange(2)[:, None] - np.arange(3)
    assert np.array_equal(out, want.astype(dtype))


def test_iota_takes_its_offset_from_a_register():
    state, out = FakeState(), np.zeros((2, 4), dtype=np.int32)
    state.registers[3] = 70
    call("iota", state=state, dst=out, pattern=((1, 4),), offset=Register(3))
    assert out.tolist() == [[70, 71, 72, 73]] * 2


@SEEDS
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("op", COMPARE)
def test_affine_select_masks_by_position(op, dtype, seed):
    x = np.random.default_rng(seed).standard_normal((8, 6)).astype(dtype)
    before = x.astype(np.float32)
    call(
        "affine_select",
        dst=x,
        pattern=((-1, 6),),
        channel_multiplier=1,
        on_true_tile=x,
        on_false_value=-1e30,
        cmp_op=op,
        offset=1,
    )
    a = 1 + np.arange(8)[:, None] - np.arange(6)
    want = np.where(COMPARE[op](a, 0), before, np.float32(-1e30)).astype(dtype)
    assert np.array_equal(x, want)


def test_affine_select_casts_and_reads_a_register():
    state, out = FakeState(), np.zeros((2, 3), dtype=np.int32)
    state.registers[0] = -1
    call(
        "affine_select",
        state=state,
        dst=out,
        pattern=((1, 3),),
        channel_multiplier=0,
        on_true_tile=np.full((2, 3), 2.6, dtype=np.float32),
        on_false_value=9.0,
        offset=Register(0),
    )
    assert out.tolist() == [[9, 3, 9]] * 2


@SEEDS
@pytest.mark.parametrize(
    ("op", "function"), [("add", np.sum), ("average", np.mean), ("maximum", np.max)]
)
def test_partition_reduce(op, function, seed):
    x = np.random.default_rng(seed).standard_normal((100, 7)).astype(np.float32)
    out = np.zeros((1, 7), dtype=np.float32)
    call("tensor_partition_reduce", dst=out, op=op, data=x)
    assert np.allclose(out[0], function(x.astype(np.float64), axis=0), rtol=1e-5, atol=1e-5)


def test_partition_reduce_on_bits():
    x = np.array([[1], [2], [8]], dtype=np.uint8)
    out = np.zeros((1, 1), dtype=np.uint8)
    call("tensor_partition_reduce", dst=out, op="bitwise_or", data=x)
    assert out[0, 0] == 11


@SEEDS
def test_n_gather_takes_by_row(seed):
    rng = np.random.default_rng(seed)
    table = rng.standard_normal((8, 4, 5)).astype(np.float32)
    index = rng.integers(0, 20, (8, 6)).astype(np.uint32)
    out = np.zeros((8, 2, 3), dtype=np.float32)
    call("nc_n_gather", dst=out, data=table, indices=index)
    want = np.take_along_axis(table.reshape(8, 20), index.astype(np.int64), axis=1)
    assert np.array_equal(out.reshape(8, 6), want)


def test_n_gather_refuses_an_index_out_of_bounds():
    index = np.array([[5]], dtype=np.uint32)
    with pytest.raises(KernelError) as error:
        call(
            "nc_n_gather",
            dst=np.zeros((1, 1), np.float32),
            data=np.zeros((1, 5), np.float32),
            indices=index,
        )
    assert error.value.code == "NKS106"


@SEEDS
@pytest.mark.parametrize(("count", "width"), [(None, 1), (20, 1), (5, 4)], ids=str)
def test_local_gather_shares_indices_among_sixteen_rows(count, width, seed):
    rng = np.random.default_rng(seed)
    table = rng.standard_normal((32, 64)).astype(np.float32)
    index = rng.integers(0, 60, (32, 2)).astype(np.uint16)
    used = 32 if count is None else count
    out = np.zeros((32, used * width), dtype=np.float32)
    call(
        "local_gather",
        dst=out,
        src_buffer=table,
        index=index,
        num_elem_per_idx=width,
        num_valid_indices=count,
    )
    for group in (0, 16):
        first = index[group : group + 16].flatten(order="F")[:used].astype(int)
        places = (first[:, None] + np.arange(width)).ravel()
        assert np.array_equal(out[group : group + 16], table[group : group + 16, places])
