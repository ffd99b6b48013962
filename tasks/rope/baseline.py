"""Naive rope: four products and two sums on half rows, one row tile at a time."""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128


@nki.jit
def kernel(x, cos, sin):
    n, d = x.shape
    half = d // 2
    y = nl.ndarray((n, d), dtype=x.dtype, buffer=nl.shared_hbm)
    for start in range(0, n, P):
        rows = min(P, n - start)
        x_tile = nl.ndarray((rows, d), dtype=x.dtype, buffer=nl.sbuf)
        c_tile = nl.ndarray((rows, half), dtype=x.dtype, buffer=nl.sbuf)
        s_tile = nl.ndarray((rows, half), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x_tile, src=x[start : start + rows, :])
        nisa.dma_copy(dst=c_tile, src=cos[start : start + rows, :])
        nisa.dma_copy(dst=s_tile, src=sin[start : start + rows, :])
        first, second = x_tile[:, 0:half], x_tile[:, half:d]
        y_tile = nl.ndarray((rows, d), dtype=x.dtype, buffer=nl.sbuf)
        a = nl.ndarray((rows, half), dtype=x.dtype, buffer=nl.sbuf)
        b = nl.ndarray((rows, half), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=a, data1=first, data2=c_tile, op=nl.multiply)
        nisa.tensor_tensor(dst=b, data1=second, data2=s_tile, op=nl.multiply)
        nisa.tensor_tensor(dst=y_tile[:, 0:half], data1=a, data2=b, op=nl.subtract)
        e = nl.ndarray((rows, half), dtype=x.dtype, buffer=nl.sbuf)
        f = nl.ndarray((rows, half), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=e, data1=second, data2=c_tile, op=nl.multiply)
        nisa.tensor_tensor(dst=f, data1=first, data2=s_tile, op=nl.multiply)
        nisa.tensor_tensor(dst=y_tile[:, half:d], data1=e, data2=f, op=nl.add)
        nisa.dma_copy(dst=y[start : start + rows, :], src=y_tile)
    return y
