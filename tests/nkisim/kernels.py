"""Small kernels and a shortcut to their profiles, shared by timing and profile tests."""

import nkisim
from nkisim.api import resolve_machine, run_standalone
from nkisim.dtypes import DTYPES
from nkisim.execute.validate import validate
from nkisim.frontend.arguments import TensorSpec
from nkisim.frontend.trace import trace_kernel
from nkisim.profile.model import Profile, profile_program

nkisim.install()

import nki.isa as nisa  # type: ignore[import-not-found]  # noqa: E402 - served by nkisim.install()
import nki.language as nl  # type: ignore[import-not-found]  # noqa: E402

__all__ = [
    "add_rows",
    "add_rows_one_buffer",
    "exp_tile",
    "hoisted_matmul",
    "nisa",
    "nl",
    "profile",
    "tensor",
    "tiled_matmul",
]


def tensor(shape, dtype="float32"):
    """A tensor argument without values."""
    return TensorSpec(shape, DTYPES[dtype])


def profile(kernel, *args, machine="trn2", changes=None) -> Profile:
    """Trace, validate and time a kernel."""
    target = resolve_machine(machine)
    traced = trace_kernel(kernel, args, machine=target, run=run_standalone)
    validate(traced.program, target)
    if changes:
        target = target.with_changes(changes)
    return profile_program(traced.program, target)


def add_rows(a, b):
    """Sum of two [n, d] tensors, a row tile at a time."""
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    for start in range(0, a.shape[0], 128):
        rows = slice(start, start + 128)
        x = nl.ndarray((128, a.shape[1]), dtype=a.dtype, buffer=nl.sbuf)
        y = nl.ndarray((128, a.shape[1]), dtype=a.dtype, buffer=nl.sbuf)
        z = nl.ndarray((128, a.shape[1]), dtype=a.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x, src=a[rows, :])
        nisa.dma_copy(dst=y, src=b[rows, :])
        nisa.tensor_tensor(dst=z, data1=x, data2=y, op=nl.add)
        nisa.dma_copy(dst=out[rows, :], src=z)
    return out


def add_rows_one_buffer(a, b):
    """The same with tiles allocated once: every iteration waits for the one before."""
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    x = nl.ndarray((128, a.shape[1]), dtype=a.dtype, buffer=nl.sbuf)
    y = nl.ndarray((128, a.shape[1]), dtype=a.dtype, buffer=nl.sbuf)
    z = nl.ndarray((128, a.shape[1]), dtype=a.dtype, buffer=nl.sbuf)
    for start in range(0, a.shape[0], 128):
        rows = slice(start, start + 128)
        nisa.dma_copy(dst=x, src=a[rows, :])
        nisa.dma_copy(dst=y, src=b[rows, :])
        nisa.tensor_tensor(dst=z, data1=x, data2=y, op=nl.add)
        nisa.dma_copy(dst=out[rows, :], src=z)
    return out


def exp_tile(a):
    """Load, exponential, store of one tile."""
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    x = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    y = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=x, src=a)
    nisa.activation(dst=y, op=nl.exp, data=x)
    nisa.dma_copy(dst=out, src=y)
    return out


def tiled_matmul(a_t, b):
    """a_t.T @ b, both operands loaded for every matmul."""
    k, m = a_t.shape
    n = b.shape[1]
    out = nl.ndarray((m, n), dtype=a_t.dtype, buffer=nl.shared_hbm)
    for m0 in range(0, m, 128):
        for n0 in range(0, n, 512):
            acc = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
            for k0 in range(0, k, 128):
                left = nl.ndarray((128, 128), dtype=a_t.dtype, buffer=nl.sbuf)
                right = nl.ndarray((128, 512), dtype=b.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=left, src=a_t[k0 : k0 + 128, m0 : m0 + 128])
                nisa.dma_copy(dst=right, src=b[k0 : k0 + 128, n0 : n0 + 512])
                nisa.nc_matmul(dst=acc, stationary=left, moving=right)
            tile = nl.ndarray((128, 512), dtype=a_t.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=tile, src=acc)
            nisa.dma_copy(dst=out[m0 : m0 + 128, n0 : n0 + 512], src=tile)
    return out


def hoisted_matmul(a_t, b):
    """a_t.T @ b with both operands loaded once."""
    k, m = a_t.shape
    n = b.shape[1]
    out = nl.ndarray((m, n), dtype=a_t.dtype, buffer=nl.shared_hbm)
    left, right = [], []
    for k0 in range(0, k, 128):
        a_tile = nl.ndarray((128, m), dtype=a_t.dtype, buffer=nl.sbuf)
        b_tile = nl.ndarray((128, n), dtype=b.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=a_tile, src=a_t[k0 : k0 + 128, :])
        nisa.dma_copy(dst=b_tile, src=b[k0 : k0 + 128, :])
        left.append(a_tile)
        right.append(b_tile)
    for m0 in range(0, m, 128):
        for n0 in range(0, n, 512):
            acc = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
            for i in range(len(left)):
                nisa.nc_matmul(
                    dst=acc,
                    stationary=left[i][:, m0 : m0 + 128],
                    moving=right[i][:, n0 : n0 + 512],
                )
            tile = nl.ndarray((128, 512), dtype=a_t.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=tile, src=acc)
            nisa.dma_copy(dst=out[m0 : m0 + 128, n0 : n0 + 512], src=tile)
    return out
