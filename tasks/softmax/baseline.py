"""Naive softmax: maximum, exponential with row sum, division, one row tile at a time."""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128


@nki.jit
def kernel(x):
    n, d = x.shape
    y = nl.ndarray((n, d), dtype=x.dtype, buffer=nl.shared_hbm)
    for start in range(0, n, P):
        rows = min(P, n - start)
        x_tile = nl.ndarray((rows, d), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x_tile, src=x[start : start + rows, :])
        # The negated maximum is the bias of the exponential.
        negative_max = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=negative_max, op=nl.maximum, data=x_tile, axis=1, negate=True)
        e_tile = nl.ndarray((rows, d), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=e_tile, op=nl.exp, data=x_tile, bias=negative_max)
        total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total, op=nl.add, data=e_tile, axis=1)
        inverse = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.reciprocal(dst=inverse, data=total)
        y_tile = nl.ndarray((rows, d), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=y_tile, data=e_tile, op0=nl.multiply, operand0=inverse)
        nisa.dma_copy(dst=y[start : start + rows, :], src=y_tile)
    return y
