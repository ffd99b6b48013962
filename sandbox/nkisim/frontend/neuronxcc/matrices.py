"""Matrix products and transposes of `neuronxcc.nki.language`.

Source: NKI language reference, Neuron 2.26.
"""

from __future__ import annotations

from typing import Any

from nkisim.dtypes import DTYPES, DType
from nkisim.frontend.context import current
from nkisim.frontend.emission import result_of
from nkisim.frontend.neuronxcc.promotion import wanted_dtype
from nkisim.frontend.neuronxcc.tiles import copied, in_sbuf, isa, new_tile, on_chip
from nkisim.frontend.tensor import NkiTensor
from nkisim.ir.access import Memory


def transposed(tile: NkiTensor, mask: object = None, *, engine: object = None) -> NkiTensor:
    """Transpose a tile: on the Tensor Engine into PSUM, small ones on the Vector Engine.

    Args:
        tile: [P, F].
        mask: Over [P, F].
        engine: Asked for; None lets the size decide.
    """
    name = getattr(engine, "name", None)
    small = max(tile.shape[0], tile.size // tile.shape[0])
    limit = current().machine.limits.vector_transpose_max
    on_vector = name == "vector" or (name != "tensor" and small <= limit)
    view = tile if tile.ndim == 2 else tile.reshape((tile.shape[0], -1))
    if not on_vector:
        view = in_sbuf(view)
    memory = "psum"
    if on_vector:
        memory = "sbuf"
    result = new_tile(view.shape[::-1], view.dtype, memory)
    where = {} if name in (None, "unknown") else {"engine": engine}
    return result_of("nc_transpose", result, mask, data=view, **where)


def transpose(x: Any, dtype: object = None, mask: object = None, **_: object) -> NkiTensor:
    """Transpose a 2-D tile."""
    tile = on_chip(x, "nl.transpose")
    result = transposed(tile, mask)
    wanted = wanted_dtype(dtype, tile.dtype)
    if wanted == result.dtype:
        return result
    cast = new_tile(result.shape, wanted)
    return result_of("tensor_copy", cast, None, src=result)


def matmul(
    x: Any, y: Any, transpose_x: bool = False, mask: object = None, **_: object
) -> NkiTensor:
    """X @ y, or x.T @ y with `transpose_x`; the result is a float32 PSUM tile."""
    left, right = on_chip(x, "nl.matmul"), on_chip(y, "nl.matmul")
    left, right = _same_width(left, right)
    if not transpose_x:
        turned = transposed(in_sbuf(left))
        left = turned if turned.memory is Memory.SBUF else copied(turned)
    result = new_tile((left.size // left.shape[0], *right.shape[1:]), DTYPES["float32"], "psum")
    return result_of("nc_matmul", result, mask, stationary=left, moving=right)


def _same_width(left: NkiTensor, right: NkiTensor) -> tuple[NkiTensor, NkiTensor]:
    """Return both operands in SBUF, cast where the array cannot mix their dtypes."""
    wide = left.dtype.itemsize == 4, right.dtype.itemsize == 4
    target: DType | None = DTYPES["float32"] if any(wide) and not all(wide) else None
    pair: list[NkiTensor] = []
    for tile in (left, right):
        if target is not None and tile.dtype.itemsize != 4:
            cast = new_tile(tile.shape, target)
            isa("tensor_copy", dst=cast, src=tile)
            pair.append(cast)
        else:
            pair.append(in_sbuf(tile))
    return pair[0], pair[1]
