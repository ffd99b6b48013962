"""Naive causal attention: whole score rows of one query tile, softmax, product with the values."""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128
N_TILE = 512


def transposed(tile, rows, columns):
    """Return tile [rows, columns] as [columns, rows] in SBUF."""
    psum = nl.ndarray((columns, rows), dtype=tile.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=psum, data=tile)
    result = nl.ndarray((columns, rows), dtype=tile.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=psum)
    return result


@nki.jit
def kernel(q, k, v):
    n, d = q.shape
    scale = 1.0 / d**0.5
    y = nl.ndarray((n, d), dtype=q.dtype, buffer=nl.shared_hbm)
    # Keys transposed to [d, n], values as they are, both kept on chip.
    k_t = nl.ndarray((d, n), dtype=k.dtype, buffer=nl.sbuf)
    values = []
    for k0 in range(0, n, P):
        keys = min(P, n - k0)
        k_tile = nl.ndarray((keys, d), dtype=k.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=k_tile, src=k[k0 : k0 + keys, :])
        psum = nl.ndarray((d, keys), dtype=k.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=psum, data=k_tile)
        nisa.tensor_copy(dst=k_t[:, k0 : k0 + keys], src=psum)
        v_tile = nl.ndarray((keys, d), dtype=v.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=v_tile, src=v[k0 : k0 + keys, :])
        values.append(v_tile)
    for q0 in range(0, n, P):
        rows = min(P, n - q0)
        seen = q0 + rows
        q_tile = nl.ndarray((rows, d), dtype=q.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=q_tile, src=q[q0 : q0 + rows, :])
        q_t = transposed(q_tile, rows, d)
        # Scores of all keys up to the last row of this tile.
        scores = nl.ndarray((rows, seen), dtype=nl.float32, buffer=nl.sbuf)
        for n0 in range(0, seen, N_TILE):
            columns = min(N_TILE, seen - n0)
            acc = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=acc, stationary=q_t, moving=k_t[:, n0 : n0 + columns])
            nisa.activation(dst=scores[:, n0 : n0 + columns], op=nl.copy, data=acc, scale=scale)
        # Only the diagonal block needs the mask: row >= column.
        nisa.affine_select(
            dst=scores[:, q0:seen],
            pattern=[[-1, rows]],
            channel_multiplier=1,
            on_true_tile=scores[:, q0:seen],
            on_false_value=-3.0e38,
            cmp_op=nl.greater_equal,
        )
        negative_max = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=negative_max, op=nl.maximum, data=scores, axis=1, negate=True)
        total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        weights = nl.ndarray((rows, seen), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(
            dst=weights,
            op=nl.exp,
            data=scores,
            bias=negative_max,
            reduce_op=nl.add,
            reduce_res=total,
        )
        inverse = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.reciprocal(dst=inverse, data=total)
        rounded = nl.ndarray((rows, seen), dtype=q.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=rounded, src=weights)
        out = nl.ndarray((rows, d), dtype=nl.float32, buffer=nl.psum)
        for k0 in range(0, seen, P):
            keys = min(P, seen - k0)
            w_t = transposed(rounded[:, k0 : k0 + keys], rows, keys)
            nisa.nc_matmul(dst=out, stationary=w_t, moving=values[k0 // P][0:keys, :])
        y_tile = nl.ndarray((rows, d), dtype=q.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=y_tile, data=out, op0=nl.multiply, operand0=inverse)
        nisa.dma_copy(dst=y[q0 : q0 + rows, :], src=y_tile)
    return y
