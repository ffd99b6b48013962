"""Naive gelu_bias: add the bias on the Vector Engine, GELU on the Scalar Engine."""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128


@nki.jit
def kernel(x, b):
    n, d = x.shape
    y = nl.ndarray((n, d), dtype=x.dtype, buffer=nl.shared_hbm)
    # The bias row, once in every partition.
    bias = nl.ndarray((P, d), dtype=b.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=bias, src=b.reshape((1, d)).broadcast(0, P))
    for start in range(0, n, P):
        rows = min(P, n - start)
        x_tile = nl.ndarray((rows, d), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x_tile, src=x[start : start + rows, :])
        # Kept in float32: rounding the sum would double the error.
        z_tile = nl.ndarray((rows, d), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=z_tile, data1=x_tile, data2=bias[0:rows, :], op=nl.add)
        y_tile = nl.ndarray((rows, d), dtype=x.dtype, buffer=nl.sbuf)
        nisa.activation(dst=y_tile, op=nl.gelu_apprx_tanh, data=z_tile)
        nisa.dma_copy(dst=y[start : start + rows, :], src=y_tile)
    return y
