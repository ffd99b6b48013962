"""Naive vector_add: one row tile at a time, whole rows."""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128


@nki.jit
def kernel(x, y):
    n, d = x.shape
    z = nl.ndarray((n, d), dtype=x.dtype, buffer=nl.shared_hbm)
    for start in range(0, n, P):
        rows = min(P, n - start)
        x_tile = nl.ndarray((rows, d), dtype=x.dtype, buffer=nl.sbuf)
        y_tile = nl.ndarray((rows, d), dtype=x.dtype, buffer=nl.sbuf)
        z_tile = nl.ndarray((rows, d), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x_tile, src=x[start : start + rows, :])
        nisa.dma_copy(dst=y_tile, src=y[start : start + rows, :])
        nisa.tensor_tensor(dst=z_tile, data1=x_tile, data2=y_tile, op=nl.add)
        nisa.dma_copy(dst=z[start : start + rows, :], src=z_tile)
    return z
