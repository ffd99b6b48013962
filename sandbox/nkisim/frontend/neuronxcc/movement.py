"""Loads, stores and copies of `neuronxcc.nki.language`.

Source: NKI language reference, Neuron 2.26.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nkisim.dtypes import DTYPES
from nkisim.errors import KernelError
from nkisim.frontend.emission import issue, result_of
from nkisim.frontend.neuronxcc.promotion import wanted_dtype
from nkisim.frontend.neuronxcc.tiles import copied, in_sbuf, isa, new_tile, on_chip
from nkisim.frontend.retarget import fitted
from nkisim.frontend.tensor import NkiTensor
from nkisim.ir.access import Memory

Operand = Any


def _in_hbm(value: object, what: str) -> NkiTensor:
    if not isinstance(value, NkiTensor) or value.memory is not Memory.HBM:
        got = repr(value) if isinstance(value, NkiTensor) else type(value).__name__
        raise KernelError(
            "NKS201",
            f"{what} takes a tensor in HBM, got {got}",
            hint="copy tiles on chip with nl.copy",
        )
    return value


def load(src: Operand, mask: object = None, dtype: object = None, **_: object) -> NkiTensor:
    """Copy a view of HBM into a new SBUF tile; one dimension becomes [P, 1]."""
    view = _in_hbm(src, "nl.load")
    if view.ndim == 1:
        view = view.expand_dim(1)
    tile = new_tile(view.shape, wanted_dtype(dtype, view.dtype))
    return result_of("dma_copy", tile, mask, src=view)


def store(dst: Operand, value: Operand, mask: object = None, **_: object) -> None:
    """Copy a tile or a number into a view of HBM."""
    view = _in_hbm(dst, "nl.store")
    if not isinstance(value, NkiTensor):
        source = new_tile((1, 1), view.dtype)
        isa("memset", dst=source, value=value)
        source = NkiTensor(source.storage, 0, view.shape, (0,) * view.ndim, source.dtype)
        issue("dma_copy", mask, dst=view, src=source)
        return
    if value.memory is Memory.PSUM:
        moved = new_tile(value.shape, value.dtype)
        result_of("tensor_copy", moved, mask if value.shape == view.shape else None, src=value)
        value = moved
    if view.ndim == 1 and value.ndim == 2:
        view = view.expand_dim(1 if value.shape[1] == 1 else 0)
    issue("dma_copy", mask, dst=view, src=fitted(value, view))


def load_transpose2d(
    src: Operand, mask: object = None, dtype: object = None, **_: object
) -> NkiTensor:
    """Copy a view [a, b] of HBM into a new SBUF tile [b, a]."""
    view = _in_hbm(src, "nl.load_transpose2d")
    if view.ndim != 2:
        raise KernelError(
            "NKS107", f"nl.load_transpose2d takes a view of two dimensions, got {view!r}"
        )
    rows, columns = view.shape
    wanted = wanted_dtype(dtype, view.dtype)
    tile = new_tile((columns, rows), view.dtype)
    result_of("dma_transpose", tile, mask, src=view)
    if wanted == view.dtype:
        return tile
    return result_of("tensor_copy", new_tile(tile.shape, wanted), None, src=tile)


def copy(src: Operand, mask: object = None, dtype: object = None, **_: object) -> NkiTensor:
    """Copy a tile into a new SBUF tile."""
    if not isinstance(src, NkiTensor):
        on_chip(src, "nl.copy")
    tile = new_tile(src.shape, wanted_dtype(dtype, src.dtype))
    name = "dma_copy" if src.memory is Memory.HBM else "tensor_copy"
    return result_of(name, tile, mask, src=src)


def broadcast_to(src: Operand, shape: Sequence[int] | None = None, **_: object) -> NkiTensor:
    """Repeat dimensions of size 1; along partitions this copies by DMA."""
    if not isinstance(src, NkiTensor):
        on_chip(src, "nl.broadcast_to")
    return src.broadcast_to(tuple(int(n) for n in shape or ()))  # type: ignore[no-any-return]


def expand_dims(data: NkiTensor, axis: int) -> NkiTensor:
    """View with a dimension of size 1 inserted."""
    return data.expand_dim(axis % (data.ndim + 1))


def static_cast(input_data: Operand, dtype: object) -> Operand:
    """Copy as another dtype; on the host this casts an array."""
    if isinstance(input_data, np.ndarray):
        array: npt.NDArray[np.generic] = input_data
        return array.astype(wanted_dtype(dtype, DTYPES["float32"]).storage)
    return copy(input_data, dtype=dtype)


def gather_flattened(
    data: Operand, indices: Operand, mask: object = None, dtype: object = None, **_: object
) -> NkiTensor:
    """Gather along the flattened free axis: result[p, j] = data[p, indices[p, j]]."""
    source, where = on_chip(data, "nl.gather_flattened"), on_chip(indices, "nl.gather_flattened")
    tile = new_tile(where.shape, source.dtype)
    result_of("nc_n_gather", tile, mask, data=in_sbuf(source), indices=in_sbuf(where))
    wanted = wanted_dtype(dtype, source.dtype)
    return tile if wanted == source.dtype else copy(tile, dtype=wanted)


def atomic_rmw(
    dst: Operand, value: Operand, op: object = np.add, mask: object = None, **_: object
) -> None:
    """Add a tile or a number to rows of HBM that an index tile chooses."""
    view = _in_hbm(dst, "nl.atomic_rmw")
    if not isinstance(value, NkiTensor):
        number, value = value, new_tile(view.shape, view.dtype)
        isa("memset", dst=value, value=number)
    elif value.memory is Memory.PSUM:
        value = copied(value)
    issue("dma_copy", mask, dst=view, src=fitted(value, view), dst_rmw_op=op)
