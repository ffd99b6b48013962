"""Naive swiglu: SiLU on the Scalar Engine, product on the Vector Engine."""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128
F_TILE = 8192


@nki.jit
def kernel(gate, up):
    n, d = gate.shape
    y = nl.ndarray((n, d), dtype=gate.dtype, buffer=nl.shared_hbm)
    for start in range(0, n, P):
        rows = min(P, n - start)
        # Whole rows of three tiles do not fit, so the row is cut.
        for f0 in range(0, d, F_TILE):
            columns = min(F_TILE, d - f0)
            g_tile = nl.ndarray((rows, columns), dtype=gate.dtype, buffer=nl.sbuf)
            u_tile = nl.ndarray((rows, columns), dtype=gate.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=g_tile, src=gate[start : start + rows, f0 : f0 + columns])
            nisa.dma_copy(dst=u_tile, src=up[start : start + rows, f0 : f0 + columns])
            # Kept in float32: rounding SiLU would double the error.
            s_tile = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=s_tile, op=nl.silu, data=g_tile)
            y_tile = nl.ndarray((rows, columns), dtype=gate.dtype, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=y_tile, data1=s_tile, data2=u_tile, op=nl.multiply)
            nisa.dma_copy(dst=y[start : start + rows, f0 : f0 + columns], src=y_tile)
    return y
