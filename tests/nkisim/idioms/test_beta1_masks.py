"""Masks of the first generation: what is read, what is written, what is left alone."""

import numpy as np
import pytest
from tests.nkisim.idioms.beta1 import grid, nisa, nl, normal, run, warned

import nkisim
from nkisim.errors import KernelError, UnsupportedError


def into_ones(shape, fill):
    """Trace `fill(tile)` on an SBUF tile of ones and return the stored tile's kernel part."""
    tile = nl.ones(shape, dtype=nl.float32, buffer=nl.sbuf)
    fill(tile)
    out = nl.ndarray(shape, dtype=nl.float32, buffer=nl.shared_hbm)
    nl.store(out, tile)
    return out


def test_the_last_row_tile_is_masked_and_never_read_out_of_bounds():
    def kernel(a):
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        i, j = grid(128, 40)
        for t in nl.affine_range(2):
            inside = t * 128 + i < 200
            x = nl.load(a[t * 128 + i, j], mask=inside)
            y = nl.multiply(x, 3.0, mask=inside)
            nl.store(out[t * 128 + i, j], y, mask=inside)
        return out

    a = normal(200, 40)
    result = run(kernel, a)
    np.testing.assert_array_equal(result.outputs[0], a * np.float32(3))
    assert not warned(result)


def test_an_unmasked_access_out_of_bounds_is_an_error_on_its_line():
    def kernel(a):
        i, j = grid(128, 40)
        nl.load(a[100 + i, j])

    with pytest.raises(KernelError) as caught:
        run(kernel, normal(200, 40))
    assert caught.value.code == "NKS106"
    assert "100..227" in str(caught.value)
    assert "nl.load(a[100 + i, j])" in str(caught.value)


@pytest.mark.parametrize(
    ("mask", "keep"),
    [
        (lambda i, j: (i < 64) & (j >= 3), lambda i, j: (i < 64) & (j >= 3)),
        (lambda i, j: -2 * i + 99 >= 0, lambda i, j: -2 * i + 99 >= 0),
        (lambda i, j: (i < 32) | (i < 64), lambda i, j: i < 64),
        (lambda i, j: (i < 32) | (j < 0), lambda i, j: i < 32),
        (lambda i, j: (j < 8) | ((j >= 8) & (j < 16)), lambda i, j: j < 16),
        (lambda i, j: ~(j < 5), lambda i, j: j >= 5),
        (lambda i, j: j == 7, lambda i, j: j == 7),
        (lambda i, j: (i + j >= 0) & (j <= 9), lambda i, j: j <= 9),
    ],
)
def test_masks_that_are_boxes_shrink_the_operands(mask, keep):
    def kernel(a):
        i, j = grid(128, 24)
        x = nl.load(a[i, j])

        def fill(tile):
            tile[i, j] = nl.multiply(x, 2.0, mask=mask(i, j))

        return into_ones((128, 24), fill)

    a = normal(128, 24)
    result = run(kernel, a)
    where = np.broadcast_to(keep(*np.ogrid[:128, :24]), a.shape)
    np.testing.assert_array_equal(result.outputs[0], np.where(where, a * np.float32(2), 1))
    assert all(form.attr("mask") is None for form in result.program.forms)


@pytest.mark.parametrize(
    ("mask", "keep"),
    [
        (lambda i, j: j <= i, lambda i, j: j <= i),
        (lambda i, j: 3 * i - 2 * j > 10, lambda i, j: 3 * i - 2 * j > 10),
        (lambda i, j: (j < i) | (j == 23), lambda i, j: (j < i) | (j == 23)),
        (lambda i, j: (i < 32) | (j < 8), lambda i, j: (i < 32) | (j < 8)),
        (lambda i, j: j != 4, lambda i, j: j != 4),
        (lambda i, j: ~((i < 32) & (j < i)), lambda i, j: ~((i < 32) & (j < i))),
    ],
)
def test_masks_that_couple_axes_write_exactly_their_elements(mask, keep):
    def kernel(a):
        i, j = grid(128, 24)
        x = nl.load(a[i, j])

        def fill(tile):
            tile[i, j] = nl.multiply(x, 2.0, mask=mask(i, j))

        return into_ones((128, 24), fill)

    a = normal(128, 24)
    where = np.broadcast_to(keep(*np.ogrid[:128, :24]), a.shape)
    np.testing.assert_array_equal(run(kernel, a).outputs[0], np.where(where, a * np.float32(2), 1))


def test_a_triangular_mask_keeps_a_copy_in_another_dtype_to_its_elements():
    def kernel(a):
        i, j = grid(64, 64)
        x = nl.load(a[i, j])

        def fill(tile):
            tile[i, j] = nl.add(x, 1.0, mask=j <= i, dtype=nl.bfloat16)

        return into_ones((64, 64), fill)

    a = np.ones((64, 64), np.float32)
    np.testing.assert_array_equal(run(kernel, a).outputs[0], np.tril(a) + 1)


def test_a_triangular_load_never_touches_what_lies_outside_of_the_tensor():
    def kernel(a):
        i, j = grid(64, 64)

        def fill(tile):
            tile[i, j] = nl.load(a[i + j, 0 * j], mask=i + j < 50)

        return into_ones((64, 64), fill)

    a = normal(60, 1)
    total = np.add.outer(np.arange(64), np.arange(64))
    want = np.where(total < 50, a[np.minimum(total, 59), 0], 1)
    np.testing.assert_array_equal(run(kernel, a).outputs[0], want)


def test_a_mask_that_never_holds_emits_nothing_and_one_that_always_holds_is_dropped():
    def kernel(a):
        i, j = grid(16, 8)
        x = nl.load(a[i, j], mask=i + j >= 0)

        def fill(tile):
            tile[i, j] = nl.exp(x, mask=i < 0)
            tile[i, j] = nl.copy(x, mask=False)

        return into_ones((16, 8), fill)

    result = run(kernel, normal(16, 8))
    np.testing.assert_array_equal(result.outputs[0], np.ones((16, 8), np.float32))
    assert [form.op for form in result.program.forms] == ["dma_copy", "memset", "dma_copy"]


def test_the_rest_of_a_masked_tile_stays_unwritten():
    def kernel(a):
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        i, j = grid(16, 8)
        x = nl.load(a[i, j], mask=j < 4)
        nl.store(out[i, j], nl.add(x, 1.0))
        return out

    assert any("no instruction has written" in text for text in warned(run(kernel, normal(16, 8))))


def test_a_masked_reduction_reduces_what_is_left_and_keeps_the_other_rows():
    def kernel(a):
        i, j = grid(128, 40)
        x = nl.load(a[i, j])

        def fill(tile):
            tile[i, 0] = nisa.tensor_reduce(np.max, x, axis=(1,), mask=(i < 64) & (j < 30))
            tile[i, 1] = nl.sum(x, axis=1, mask=(i >= 64) & (j >= 30))

        return into_ones((128, 2), fill)

    a = normal(128, 40)
    got = run(kernel, a).outputs[0]
    np.testing.assert_allclose(got[:64, 0], a[:64, :30].max(1))
    np.testing.assert_allclose(got[64:, 1], a[64:, 30:].sum(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(got[64:, 0], 1)
    np.testing.assert_array_equal(got[:64, 1], 1)


def test_a_masked_matmul_masks_rows_and_columns_of_its_result():
    def kernel(a, b):
        k, m = grid(32, 64)
        _, n = grid(32, 48)
        mi, nj = nl.arange(64)[:, None], nl.arange(48)[None, :]
        left, right = nl.load(a[k, m]), nl.load(b[k, n])
        total = nl.zeros((64, 48), dtype=nl.float32, buffer=nl.psum)
        for _ in nl.affine_range(2):
            total[mi, nj] += nisa.nc_matmul(left, right, mask=(mi < 33) & (nj >= 8))
        out = nl.ndarray((64, 48), dtype=nl.float32, buffer=nl.shared_hbm)
        nl.store(out, nl.copy(total))
        return out

    a, b = normal(32, 64), normal(32, 48, seed=1)
    want = 2 * (a.T.astype(np.float64) @ b)
    want[33:] = 0
    want[:, :8] = 0
    np.testing.assert_allclose(run(kernel, a, b).outputs[0], want, rtol=1e-4, atol=1e-4)


def test_a_triangular_matmul_mask_accumulates_only_below_the_diagonal():
    def kernel(a, b):
        i, j = grid(64, 64)
        left, right = nl.load(a[i, j]), nl.load(b[i, j])
        total = nl.zeros((64, 64), dtype=nl.float32, buffer=nl.psum)
        total[i, j] += nisa.nc_matmul(left, right)
        total[i, j] += nisa.nc_matmul(left, right, mask=j <= i)
        out = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.shared_hbm)
        nl.store(out, nl.copy(total))
        return out

    a, b = normal(64, 64), normal(64, 64, seed=1)
    product = a.T.astype(np.float64) @ b
    want = product + np.tril(product)
    np.testing.assert_allclose(run(kernel, a, b).outputs[0], want, rtol=1e-4, atol=1e-4)


def test_a_masked_transpose_swaps_the_axes_of_its_mask():
    def kernel(a):
        i, j = grid(64, 96)
        x = nl.load(a[i, j])

        def fill(tile):
            tile[...] = nisa.nc_transpose(x, mask=(i < 50) & (j >= 32))

        return into_ones((96, 64), fill)

    a = normal(64, 96)
    want = np.ones((96, 64), np.float32)
    want[32:, :50] = a[:50, 32:].T
    np.testing.assert_array_equal(run(kernel, a).outputs[0], want)


def test_the_truth_of_a_condition_is_refused_with_a_hint():
    def kernel(a):
        i, j = grid(16, 8)
        return nl.load(a[i, j], mask=(i < 4) and (j < 4))

    with pytest.raises(KernelError) as caught:
        run(kernel, normal(16, 8))
    assert caught.value.code == "NKS404"
    assert "&" in str(caught.value)


WITH_LOGIC = """
import neuronxcc.nki as nki
import neuronxcc.nki.language as nl

@nki.jit
def kernel(a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    i = nl.arange(16)[:, None]
    j = nl.arange(8)[None, :]
    x = nl.load(a[i, j])
    y = nl.zeros((16, 8), dtype=a.dtype, buffer=nl.sbuf)
    y[i, j] = nl.copy(x, mask=(i < 4 and j < 4) or not (i < 12))
    y[i, j] = nl.copy(x, mask=5 <= i < 7)
    word = a.shape[0] == 16 and "sixteen" or "other"
    assert word == "sixteen", word
    nl.store(out[i, j], y)
    return out
"""


def test_a_kernel_file_may_join_conditions_with_and_or_not(tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text(WITH_LOGIC)
    a = normal(16, 8)
    i, j = np.ogrid[:16, :8]
    keep = ((i < 4) & (j < 4)) | (i >= 12) | ((i >= 5) & (i < 7)) & (j >= 0)
    got = nkisim.run_file(path, "kernel", [a], isolated=False).outputs[0]
    np.testing.assert_array_equal(got, np.where(keep, a, 0))


def test_a_mask_over_a_reduced_axis_that_couples_it_is_not_emulated():
    def kernel(a):
        i, j = grid(16, 8)
        x = nl.load(a[i, j])
        return nl.sum(x, axis=1, mask=j <= i)

    with pytest.raises(UnsupportedError) as caught:
        run(kernel, normal(16, 8))
    assert caught.value.code == "NKS502"


def test_a_mask_of_another_extent_is_an_error():
    def kernel(a):
        i, j = grid(16, 8)
        return nl.load(a[i, j], mask=nl.arange(5)[None, :] < 3)

    with pytest.raises(KernelError, match="does not fit"):
        run(kernel, normal(16, 8))
