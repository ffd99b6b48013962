"""Naive transpose: 128 x 128 blocks through the Tensor Engine."""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128


@nki.jit
def kernel(x):
    n, d = x.shape
    y = nl.ndarray((d, n), dtype=x.dtype, buffer=nl.shared_hbm)
    for start in range(0, n, P):
        rows = min(P, n - start)
        x_tile = nl.ndarray((rows, d), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x_tile, src=x[start : start + rows, :])
        for f0 in range(0, d, P):
            columns = min(P, d - f0)
            block = nl.ndarray((columns, rows), dtype=x.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=block, data=x_tile[:, f0 : f0 + columns])
            y_tile = nl.ndarray((columns, rows), dtype=x.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=y_tile, src=block)
            nisa.dma_copy(dst=y[f0 : f0 + columns, start : start + rows], src=y_tile)
    return y
