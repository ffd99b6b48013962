"""Naive layernorm: mean, variance of the centred row, scale and shift, one row tile at a time."""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128


@nki.jit
def kernel(x, w, b, eps):
    n, d = x.shape
    y = nl.ndarray((n, d), dtype=x.dtype, buffer=nl.shared_hbm)
    # Weight and bias rows, once in every partition.
    weight = nl.ndarray((P, d), dtype=w.dtype, buffer=nl.sbuf)
    bias = nl.ndarray((P, d), dtype=b.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=weight, src=w.reshape((1, d)).broadcast(0, P))
    nisa.dma_copy(dst=bias, src=b.reshape((1, d)).broadcast(0, P))
    for start in range(0, n, P):
        rows = min(P, n - start)
        x_tile = nl.ndarray((rows, d), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x_tile, src=x[start : start + rows, :])
        total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total, op=nl.add, data=x_tile, axis=1)
        mean = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=mean, data=total, op0=nl.multiply, operand0=1.0 / d)
        centred = nl.ndarray((rows, d), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=centred, data=x_tile, op0=nl.subtract, operand0=mean)
        # Variance of the centred row: no cancellation.
        square = nl.ndarray((rows, d), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=square, data1=centred, data2=centred, op=nl.multiply)
        spread = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=spread, op=nl.add, data=square, axis=1)
        variance = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=variance, data=spread, op0=nl.multiply, operand0=1.0 / d, op1=nl.add, operand1=eps
        )
        factor = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=factor, op=nl.rsqrt, data=variance)
        scaled = nl.ndarray((rows, d), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=scaled, data=centred, op0=nl.multiply, operand0=factor)
        weighted = nl.ndarray((rows, d), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=weighted, data1=scaled, data2=weight[0:rows, :], op=nl.multiply)
        y_tile = nl.ndarray((rows, d), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=y_tile, data1=weighted, data2=bias[0:rows, :], op=nl.add)
        nisa.dma_copy(dst=y[start : start + rows, :], src=y_tile)
    return y
