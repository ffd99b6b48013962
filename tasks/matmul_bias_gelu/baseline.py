"""Naive matmul_bias_gelu: tiled matmul, bias added on eviction from PSUM, then GELU."""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128
N_TILE = 512


@nki.jit
def kernel(x_t, w, b):
    k, m = x_t.shape
    _, n = w.shape
    y = nl.ndarray((m, n), dtype=x_t.dtype, buffer=nl.shared_hbm)
    # The bias row, once in every partition.
    bias = nl.ndarray((P, n), dtype=b.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=bias, src=b.reshape((1, n)).broadcast(0, P))
    for m0 in range(0, m, P):
        rows = min(P, m - m0)
        left = []
        for k0 in range(0, k, P):
            depth = min(P, k - k0)
            tile = nl.ndarray((depth, rows), dtype=x_t.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=x_t[k0 : k0 + depth, m0 : m0 + rows])
            left.append(tile)
        for n0 in range(0, n, N_TILE):
            columns = min(N_TILE, n - n0)
            acc = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.psum)
            for i in range(len(left)):
                k0 = i * P
                depth = min(P, k - k0)
                right = nl.ndarray((depth, columns), dtype=w.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=right, src=w[k0 : k0 + depth, n0 : n0 + columns])
                nisa.nc_matmul(dst=acc, stationary=left[i], moving=right)
            z = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=z, data1=acc, data2=bias[0:rows, n0 : n0 + columns], op=nl.add)
            out = nl.ndarray((rows, columns), dtype=y.dtype, buffer=nl.sbuf)
            nisa.activation(dst=out, op=nl.gelu_apprx_tanh, data=z)
            nisa.dma_copy(dst=y[m0 : m0 + rows, n0 : n0 + columns], src=out)
    return y
