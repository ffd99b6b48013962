"""Naive rmsnorm: sum of squares, reciprocal root, two multiplications, one row tile at a time."""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128


@nki.jit
def kernel(x, w, eps):
    n, d = x.shape
    y = nl.ndarray((n, d), dtype=x.dtype, buffer=nl.shared_hbm)
    # The weight row, once in every partition.
    weight = nl.ndarray((P, d), dtype=w.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=weight, src=w.reshape((1, d)).broadcast(0, P))
    for start in range(0, n, P):
        rows = min(P, n - start)
        x_tile = nl.ndarray((rows, d), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x_tile, src=x[start : start + rows, :])
        # 1 / sqrt(mean(x * x) + eps), in float32.
        square = nl.ndarray((rows, d), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=square, data1=x_tile, data2=x_tile, op=nl.multiply)
        total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total, op=nl.add, data=square, axis=1)
        mean = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=mean, data=total, op0=nl.multiply, operand0=1.0 / d, op1=nl.add, operand1=eps
        )
        factor = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=factor, op=nl.rsqrt, data=mean)
        # Scaled in float32, rounded once.
        scaled = nl.ndarray((rows, d), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=scaled, data=x_tile, op0=nl.multiply, operand0=factor)
        y_tile = nl.ndarray((rows, d), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=y_tile, data1=scaled, data2=weight[0:rows, :], op=nl.multiply)
        nisa.dma_copy(dst=y[start : start + rows, :], src=y_tile)
    return y
