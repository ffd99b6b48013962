"""Naive cumsum: a scan over chunks of the row, the last column carried on."""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128
F_TILE = 2048


@nki.jit
def kernel(x):
    n, d = x.shape
    y = nl.ndarray((n, d), dtype=x.dtype, buffer=nl.shared_hbm)
    ones = nl.ndarray((P, min(F_TILE, d)), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    for start in range(0, n, P):
        rows = min(P, n - start)
        carry = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=carry, value=0.0)
        for f0 in range(0, d, F_TILE):
            columns = min(F_TILE, d - f0)
            x_tile = nl.ndarray((rows, columns), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=x_tile, src=x[start : start + rows, f0 : f0 + columns])
            # r[i] = 1 * r[i - 1] + x[i]
            y_tile = nl.ndarray((rows, columns), dtype=x.dtype, buffer=nl.sbuf)
            nisa.tensor_tensor_scan(
                dst=y_tile,
                data0=ones[0:rows, 0:columns],
                data1=x_tile,
                initial=carry,
                op0=nl.multiply,
                op1=nl.add,
            )
            carry = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=carry, src=y_tile[:, columns - 1 : columns])
            nisa.dma_copy(dst=y[start : start + rows, f0 : f0 + columns], src=y_tile)
    return y
