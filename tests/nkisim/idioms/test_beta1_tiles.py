"""Index tensors, assignments and tiles of the first generation."""

import ml_dtypes
import numpy as np
import pytest
from tests.nkisim.idioms.beta1 import grid, ncc, nisa, nki, nl, normal, run, warned

from nkisim.errors import KernelError, UnsupportedError


def stored(tile):
    """Store a tile as the kernel's result."""
    out = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
    nl.store(out, tile)
    return out


@pytest.mark.parametrize(
    ("index", "want"),
    [
        (lambda i, j: (2 * i + 1, j), lambda a: a[1:65:2, :12]),
        (lambda i, j: (i + j, 0 * i), lambda a: a[np.add.outer(range(32), range(12)), 0]),
        (
            lambda i, j: (i, i + j),
            lambda a: a[np.arange(32)[:, None], np.add.outer(range(32), range(12))],
        ),
        (lambda i, j: (i, 40 - j), lambda a: a[:32, 40:28:-1]),
        (lambda i, j: (i, j // 3), lambda a: a[:32, np.arange(12) // 3]),
        (
            lambda i, j: (i, (j % 4) * 2 + j // 4),
            lambda a: a[:32, (np.arange(12) % 4) * 2 + np.arange(12) // 4],
        ),
        (lambda i, j: (i // 2, j % 6), lambda a: a[np.arange(32)[:, None] // 2, np.arange(12) % 6]),
        (lambda i, j: (i, 5), lambda a: a[:32, 5:6]),
        (lambda i, j: (i, slice(2, 14)), lambda a: a[:32, 2:14]),
        (lambda i, j: (slice(0, 32), j), lambda a: a[:32, :12]),
        (lambda i, j: (i, Ellipsis), lambda a: a[:32]),
    ],
)
def test_index_tensors_address_like_numpy(index, want):
    def kernel(a):
        i, j = grid(32, 12)
        return stored(nl.load(a[index(i, j)]))

    a = normal(80, 48)
    got = run(kernel, a).outputs[0]
    expected = want(a)
    np.testing.assert_array_equal(got.reshape(expected.shape), expected)


def test_a_grid_has_names_for_its_axes():
    def kernel(a):
        g = nl.mgrid[0:16, 0:3, 0:4]
        assert nl.mgrid[2:5].p.constant == 2
        return stored(nl.load(a[g.p, 4 * g.x + g.y]))

    a = normal(16, 12)
    np.testing.assert_array_equal(run(kernel, a).outputs[0].reshape(16, 12), a)


def test_a_one_dimensional_load_becomes_a_column():
    def kernel(a):
        x = nl.load(a)
        assert x.shape == (64, 1)
        return stored(x)

    a = normal(64)
    np.testing.assert_array_equal(run(kernel, a).outputs[0][:, 0], a)


def test_block_dimensions_are_separate_tiles_and_par_dim_marks_partitions():
    def kernel(a):
        tiles = nl.ndarray((2, 3, nl.par_dim(16), 8), dtype=a.dtype, buffer=nl.sbuf)
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        assert tiles.shape == (2, 3, 16, 8)
        i, j = grid(16, 8)
        for b in nl.affine_range(2):
            for c in nl.affine_range(3):
                tiles[b, c, i, j] = nl.load(a[b, c, i, j])
        for b in nl.affine_range(2):
            row = tiles[b]
            for c in nl.affine_range(3):
                nl.store(out[b, c], row[c] * 2)
        return out

    a = normal(2, 3, 16, 8)
    result = run(kernel, a)
    np.testing.assert_array_equal(result.outputs[0], a * 2)
    on_chip = [b for b in result.program.buffers if b.memory == "sbuf"]
    assert len(on_chip) == 12
    assert {b.partitions for b in on_chip} == {16}


def test_a_tensor_with_block_dimensions_is_not_one_operand():
    def kernel(a):
        tiles = nl.zeros((2, nl.par_dim(16), 8), dtype=a.dtype, buffer=nl.sbuf)
        return nl.exp(tiles)

    with pytest.raises(KernelError, match="list of tiles"):
        run(kernel, normal(16, 8))


def test_an_index_tensor_over_blocks_is_not_emulated():
    def kernel(a):
        tiles = nl.zeros((2, nl.par_dim(16), 8), dtype=a.dtype, buffer=nl.sbuf)
        i, j = grid(16, 8)
        return nl.exp(tiles[nl.arange(2)[:, None, None], i, j])

    with pytest.raises(UnsupportedError):
        run(kernel, normal(16, 8))


def test_results_are_written_into_the_tile_that_they_are_assigned_to():
    def kernel(a):
        t = nl.ndarray((16, 8), dtype=a.dtype, buffer=nl.sbuf)
        t[...] = nl.load(a)
        t[:, 0:4] = nisa.activation(op=nl.exp, data=t[:, 4:8])
        return stored(t)

    a = normal(16, 8)
    result = run(kernel, a)
    want = np.concatenate([np.exp(a[:, 4:]), a[:, 4:]], axis=1)
    np.testing.assert_allclose(result.outputs[0], want, rtol=1e-6)
    assert [f.op for f in result.program.forms] == ["dma_copy", "activation", "dma_copy"]


def test_a_result_that_is_kept_under_a_name_survives_the_assignment():
    def kernel(a):
        t = nl.ndarray((16, 8), dtype=a.dtype, buffer=nl.sbuf)
        x = nl.load(a)
        t[...] = x
        t[...] = t + 1.0
        out = nl.ndarray((16, 16), dtype=a.dtype, buffer=nl.shared_hbm)
        nl.store(out[:, 0:8], t)
        nl.store(out[:, 8:16], x * 3.0)
        return out

    a = normal(16, 8)
    got = run(kernel, a).outputs[0]
    np.testing.assert_array_equal(got, np.concatenate([a + 1, a * 3], axis=1))


def test_an_assignment_in_a_narrower_dtype_rounds_twice_where_the_kernel_does():
    def kernel(a):
        t = nl.ndarray((16, 64), dtype=nl.float8_e5m2, buffer=nl.sbuf)
        x = nl.load(a)
        t[...] = nisa.tensor_scalar(x, nl.multiply, 1.0, dtype=nl.bfloat16)
        return stored(t)

    a = (1 + normal(16, 64) / 64).astype(np.float32)
    want = a.astype(ml_dtypes.bfloat16).astype(ml_dtypes.float8_e5m2)
    np.testing.assert_array_equal(
        run(kernel, a).outputs[0].astype(np.float32), want.astype(np.float32)
    )


def test_in_place_operators_update_the_tile():
    def kernel(a):
        x = nl.load(a)
        i, j = grid(16, 4)
        x[i, j] += 2.0
        x[i, j + 4] *= x[i, j]
        x -= 1.0
        x /= 4.0
        return stored(x)

    a = normal(16, 8)
    want = a.copy()
    want[:, :4] += 2
    want[:, 4:] *= want[:, :4]
    np.testing.assert_allclose(run(kernel, a).outputs[0], (want - 1) / 4, rtol=1e-6)


def test_psum_accumulates_with_plus_equals_and_is_overwritten_by_assignment():
    def kernel(a, b):
        x, y = nl.load(a), nl.load(b)
        p = nl.zeros((16, 8), dtype=nl.float32, buffer=nl.psum)
        for _ in nl.affine_range(3):
            p += nisa.nc_matmul(x, y)
        q = nl.ndarray((16, 8), dtype=nl.float32, buffer=nl.psum)
        for _ in nl.affine_range(3):
            q[...] = nisa.nc_matmul(x, y)
        r = nl.full((16, 8), 5.0, dtype=nl.float32, buffer=nl.psum)
        r[...] += nisa.nc_matmul(x, y)
        out = nl.ndarray((3, 16, 8), dtype=nl.float32, buffer=nl.shared_hbm)
        for n, tile in enumerate((p, q, r)):
            nl.store(out[n], nl.copy(tile))
        return out

    a, b = normal(32, 16), normal(32, 8, seed=1)
    product = a.T.astype(np.float64) @ b
    want = np.stack([3 * product, product, 5 + product])
    np.testing.assert_allclose(run(kernel, a, b).outputs[0], want, rtol=1e-4, atol=1e-4)


def test_a_value_broadcasts_up_but_never_shrinks():
    def kernel(a, wide):
        t = nl.ndarray((16, 8), dtype=a.dtype, buffer=nl.sbuf)
        t[...] = nl.load(a if not wide else a.reshape((1, 16)))
        return stored(t)

    a = normal(16)
    want = np.repeat(a[:, None], 8, 1)
    np.testing.assert_array_equal(run(kernel, a, False).outputs[0], want)
    with pytest.raises(KernelError, match="cannot be assigned"):
        run(kernel, a, True)


def test_mixed_dtypes_promote():
    def kernel(a, b, n):
        x, y, k = nl.load(a), nl.load(b), nl.load(n)
        assert (x + y).dtype == nl.float32
        assert (x * 2.0).dtype == nl.float32
        assert (x * k).dtype == nl.bfloat16
        assert (k + 1).dtype == nl.int32
        assert nl.add(x, y, dtype=nl.float16).dtype == nl.float16
        assert (x < y).dtype == nl.bool_
        return stored(x + y)

    a = normal(16, 8).astype(ml_dtypes.bfloat16)
    b = normal(16, 8, seed=1).astype(np.float16)
    n = np.arange(128, dtype=np.int8).reshape(16, 8)
    want = a.astype(np.float32) + b.astype(np.float32)
    np.testing.assert_array_equal(run(kernel, a, b, n).outputs[0], want)


def test_reductions_over_any_free_axes_keep_a_tile():
    def kernel(a):
        x = nl.load(a)
        assert nl.max(x, axis=[1, 2, 3]).shape == (8, 1)
        assert nl.max(x, axis=[1, 3], keepdims=True).shape == (8, 1, 4, 1)
        return stored(nl.mean(x, axis=[1, 3]))

    a = normal(8, 3, 4, 5)
    np.testing.assert_allclose(run(kernel, a).outputs[0], a.mean((1, 3)), rtol=1e-5, atol=1e-6)


def test_loop_reduce_accumulates_over_the_loops_that_it_names():
    def kernel(a):
        out = nl.ndarray((2, 16, 8), dtype=a.dtype, buffer=nl.shared_hbm)
        for b in nl.affine_range(2):
            for k in nl.affine_range(3):
                total = nl.loop_reduce(nl.load(a[b, k]), op=np.add, loop_indices=[k])
            nl.store(out[b], total)
        return out

    a = normal(2, 3, 16, 8)
    np.testing.assert_allclose(run(kernel, a).outputs[0], a.sum(1), rtol=1e-5, atol=1e-6)


def test_rows_are_gathered_and_added_to_by_an_index_tile():
    def kernel(a, rows):
        i, j = grid(8, 12)
        index = nl.load(rows[i])
        x = nl.load(a[index[i, 0], j])
        out = nl.ndarray((32, 12), dtype=a.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.zeros((32, 12), dtype=a.dtype, buffer=nl.sbuf))
        nl.atomic_rmw(out[index, j], x, op=np.add)
        return out

    a = normal(32, 12)
    rows = np.random.default_rng(3).permutation(32)[:8].astype(np.int32)
    want = np.zeros_like(a)
    want[rows] += a[rows]
    np.testing.assert_array_equal(run(kernel, a, rows).outputs[0], want)


def test_chosen_addresses_follow_the_block_index_modulo_the_number_of_tiles():
    def kernel(a):
        where = ncc.sbuf.mod_alloc(base_addr=1024, num_free_tiles=(2,))
        tiles = nl.ndarray((3, nl.par_dim(16), 8), dtype=a.dtype, buffer=where)
        banks = ncc.psum.alloc(lambda index, partitions, size: (4 + index[0] % 2, 0, 0))
        sums = nl.zeros((3, nl.par_dim(16), 8), dtype=nl.float32, buffer=banks)
        out = nl.ndarray((3, 16, 8), dtype=a.dtype, buffer=nl.shared_hbm)
        for b in nl.affine_range(3):
            tiles[b] = nl.load(a[b])
            sums[b] += nisa.nc_matmul(
                tiles[b][0:16, 0:16] if False else nl.load(a[b].reshape((8, 16))),
                nl.load(a[0].reshape((8, 16)))[:, 0:8],
            )
            nl.store(out[b], tiles[b] + sums[b])
        return out

    a = normal(3, 16, 8)
    result = run(kernel, a)
    right = a[0].reshape(8, 16)[:, :8]
    want = np.stack([x + x.reshape(8, 16).T @ right for x in a])
    np.testing.assert_allclose(result.outputs[0], want, rtol=1e-4, atol=1e-4)
    placed = {(b.memory.value, b.address) for b in result.program.buffers if b.address is not None}
    assert placed == {("sbuf", 1024), ("sbuf", 1056), ("psum", 4 * 2048), ("psum", 5 * 2048)}


def test_a_benchmarked_kernel_runs_and_reports_emulated_time():
    @nki.benchmark(warmup=2, iters=3)
    @nki.jit
    def kernel(a):
        return stored(nl.load(a) * 2.0)

    with pytest.raises(KernelError, match="before it is launched"):
        _ = kernel.benchmark_result
    a = normal(16, 8)
    np.testing.assert_array_equal(kernel(a), a * 2)
    latency = kernel.benchmark_result.nc_latency
    assert latency.get_latency_percentile(99) == latency.get_latency_percentile(1) > 0
    assert "emulated" in repr(latency)


def test_simulate_kernel_writes_into_output_arguments():
    @nki.trace
    def kernel(a, out):
        nl.store(out, nl.load(a) + 1.0)

    a, out = normal(16, 8), np.zeros((16, 8), np.float32)
    nki.simulate_kernel(kernel, a, out)
    np.testing.assert_array_equal(out, a + 1)


def test_partial_loads_warn_but_do_not_stop_a_persons_own_kernel():
    def kernel(a):
        i, j = grid(16, 8)
        out = nl.ndarray((12, 8), dtype=a.dtype, buffer=nl.shared_hbm)
        x = nl.load(a[i, j], mask=i < 12)
        nl.store(out[i, j], nl.square(x), mask=i < 12)
        return out

    a = normal(12, 8)
    result = run(kernel, a)
    np.testing.assert_allclose(result.outputs[0], a * a, rtol=1e-6)
    assert warned(result)
