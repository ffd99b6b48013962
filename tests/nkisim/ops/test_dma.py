"""Copies by the DMA engines, and registers."""

import ml_dtypes
import numpy as np
import pytest
from tests.nkisim.ops.instructions import FakeState, Register, call, cost, hbm

BF16 = ml_dtypes.bfloat16


def rand(seed, *shape, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(dtype)


@pytest.mark.parametrize("to", [np.float32, BF16, np.float16], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, BF16], ids=["fp32", "bf16"])
def test_copy_casts_and_reshapes(dtype, to):
    x = rand(1, 6, 8, dtype=dtype)
    tile = np.zeros((6, 2, 4), dtype=to)
    call("dma_copy", dst=tile, src=hbm(x))
    assert np.array_equal(tile.reshape(6, 8), x.astype(np.float32).astype(to))


def test_copy_reads_strided_and_broadcast_views():
    x = rand(2, 1, 20)
    tile = np.zeros((128, 10), dtype=np.float32)
    call("dma_copy", dst=tile, src=hbm(np.broadcast_to(x[:, ::2], (128, 10))))
    assert (tile == x[:, ::2]).all()


def test_copy_moves_the_bits_of_equal_dtypes():
    x = np.array([[2**24 + 1]], dtype=np.int32)
    tile = np.zeros_like(x)
    call("dma_copy", dst=tile, src=hbm(x))
    assert tile[0, 0] == 2**24 + 1


def test_old_copies_can_add():
    x, out = rand(3, 4, 5), rand(4, 4, 5)
    want = out + x
    call("dma_copy", dst=hbm(out), src=x, dst_rmw_op="add")
    assert np.array_equal(out, want)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((6, 8), None), ((2, 3, 4), None), ((2, 3, 4, 5), None), ((2, 3, 4), (1, 0, 2))],
    ids=str,
)
def test_transpose_permutes(shape, axes):
    x = rand(5, *shape)
    used = axes or {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}[len(shape)]
    want = np.transpose(x, used)
    out = np.zeros(want.shape, dtype=np.float32)
    call("dma_transpose", dst=out, src=hbm(x), axes=axes)
    assert np.array_equal(out, want)


def test_compute_adds_in_float32_even_into_a_source():
    a, b, c = (rand(seed, 4, 6, dtype=BF16) for seed in (6, 7, 8))
    want = (a.astype(np.float32) + b.astype(np.float32) + c.astype(np.float32)).astype(BF16)
    call("dma_compute", dst=hbm(a), srcs=[hbm(a), b, hbm(c)], reduce_op="add")
    assert np.array_equal(a, want)


def test_copies_count_bytes_descriptors_and_engines():
    x, tile = np.zeros((256, 512), np.float32), np.zeros((128, 512), np.float32)
    load = cost("dma_copy", dst=tile, src=hbm(x[:128]))
    assert load.bytes_read == load.bytes_written == load.hbm_bytes == 128 * 512 * 4
    assert (load.engines_used, load.descriptors, load.is_store) == (16, 128, False)
    narrow = cost("dma_copy", dst=tile[:8], src=hbm(x[:8]))
    assert narrow.engines_used == 1
    gather = cost("dma_copy", dst=tile, src=hbm(x[:128].T[:128, :4].repeat(128, axis=1)))
    assert gather.bytes_read == load.bytes_read
    columns = cost("dma_copy", dst=tile[:, :64], src=hbm(np.zeros((64, 128), np.float32).T))
    assert columns.descriptors == 128 * 64
    assert cost("dma_copy", dst=hbm(x[:128]), src=tile).is_store


def test_transposes_and_software_descriptors_cost_more():
    x, tile = np.zeros((128, 64), BF16), np.zeros((64, 128), BF16)
    plain = cost("dma_copy", dst=tile, src=hbm(x))
    transposed = cost("dma_transpose", dst=tile, src=hbm(x))
    inside = cost("dma_transpose", dst=tile, src=x)
    assert plain.rate_fraction > transposed.rate_fraction > inside.rate_fraction
    assert not plain.is_software_generated
    assert cost("dma_copy", dst=tile, src=hbm(x), dge_mode="swdge").is_software_generated


def test_registers_load_move_and_store():
    state, count = FakeState(), np.array([[41]], dtype=np.int32)
    call("register_load", state=state, dst=Register(0), src=count)
    call("register_move", state=state, dst=Register(1), src=Register(0))
    call("register_move", state=state, dst=Register(2), src=7)
    call("register_move", state=state, dst=Register(3), imm=-3)
    assert state.registers[:4].tolist() == [41, 41, 7, -3]
    call("register_store", state=state, dst=hbm(count), src=Register(2))
    assert count[0, 0] == 7
