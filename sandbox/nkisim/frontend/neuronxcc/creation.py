"""Allocation in the old generation: block dimensions, chosen addresses, initial values.

Source: NKI language reference and direct allocation guide, Neuron 2.26.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from nkisim.dtypes import DTYPES, DType, lookup
from nkisim.errors import KernelError
from nkisim.frontend.blocks import BlockTensor, split_blocks
from nkisim.frontend.context import current
from nkisim.frontend.neuronxcc.promotion import wanted_dtype
from nkisim.frontend.recorder import REGIONS, MemoryRegion
from nkisim.frontend.tensor import NkiTensor
from nkisim.ir.access import Memory

Shape = tuple[int, ...]


class Placement(Protocol):
    """Where the tiles of a tensor go: `ncc.sbuf.alloc(…)` and its relatives."""

    region: MemoryRegion

    def address(self, block: Shape, partitions: int, size_bytes: int) -> tuple[int, int] | None:
        """Return start partition and byte address of one tile, or None to leave it open."""
        ...


@dataclass(frozen=True, slots=True)
class _Target:
    region: MemoryRegion
    placement: Placement | None


def _target(buffer: object) -> _Target:
    if buffer is None:
        return _Target(REGIONS["sbuf"], None)
    if hasattr(buffer, "address") and hasattr(buffer, "region"):
        return _Target(buffer.region, buffer)
    if isinstance(buffer, str):
        name = {"hbm": "private_hbm"}.get(buffer, buffer)
        if name in REGIONS:
            return _Target(REGIONS[name], None)
    if not isinstance(buffer, MemoryRegion):
        raise KernelError(
            "NKS201",
            f"buffer must be nl.sbuf, nl.psum, nl.hbm, nl.shared_hbm, nl.private_hbm or an "
            f"allocation of nki.compiler, got {buffer!r:.60}",
        )
    return _Target(buffer, None)


def _allocate(
    shape: object, dtype: object, buffer: object, name: str, *, fill: float | None = None
) -> NkiTensor:
    target = _target(buffer)
    recorder = current()
    region = target.region
    if not region.memory.is_on_chip:
        return recorder.allocate(shape, dtype, region, name=name)  # type: ignore[arg-type]
    blocks, tile_shape = split_blocks(shape)
    element = lookup(dtype)
    if element is None:
        return recorder.allocate(shape, dtype, region, name=name)  # type: ignore[arg-type]  # raises
    if len(tile_shape) == 1:
        tile_shape = (*tile_shape, 1)
    dims = tuple(recorder.dims(tile_shape))
    size_bytes = int(np.prod(dims[1:])) * element.itemsize
    if not blocks and target.placement is None:
        return recorder.allocate(dims, element, region, name=name, fill=fill)
    site = recorder.source_map.site_of_call()

    def make(at: Shape) -> NkiTensor:
        address = None
        if target.placement is not None:
            address = target.placement.address(at, dims[0], size_bytes)
        return recorder.allocate(
            dims, element, region, name=name, address=address, fill=fill, site=site
        )

    if not blocks:
        return make(())
    return BlockTensor(
        recorder, recorder.dims(blocks), dims, element, region, name or region.name, make
    )


def ndarray(
    shape: Sequence[int],
    dtype: object = None,
    *,
    buffer: object = None,
    name: str = "",
    **_: object,
) -> NkiTensor:
    """Allocate an uninitialised tensor."""
    return _allocate(shape, DTYPES["float32"] if dtype is None else dtype, buffer, name)


def full(
    shape: Sequence[int],
    fill_value: float,
    dtype: object = None,
    *,
    buffer: object = None,
    name: str = "",
    **_: object,
) -> NkiTensor:
    """Allocate a tensor and set every element to `fill_value`."""
    region = _target(buffer).region
    element = wanted_dtype(dtype, DTYPES["float32"])
    if region.memory is Memory.HBM:
        raise KernelError(
            "NKS201",
            "an HBM tensor cannot be created with a value",
            hint="allocate it with nl.ndarray and nl.store a tile of the value",
        )
    is_zero_psum = region.memory is Memory.PSUM and float(fill_value) == 0
    tensor = _allocate(shape, element, buffer, name, fill=0.0 if is_zero_psum else None)
    if not is_zero_psum:
        value = int(fill_value) if element.is_integer else float(fill_value)
        for tile in tensor.tiles() if isinstance(tensor, BlockTensor) else (tensor,):
            current().instructions.isa["memset"](dst=tile, value=value)
            tile.storage.has_values = True
    return tensor


def zeros(
    shape: Sequence[int],
    dtype: object = None,
    *,
    buffer: object = None,
    name: str = "",
    **_: object,
) -> NkiTensor:
    """Allocate zeros; in PSUM this is the initial value and costs no instruction."""
    return full(shape, 0, dtype, buffer=buffer, name=name)


def ones(
    shape: Sequence[int],
    dtype: object = None,
    *,
    buffer: object = None,
    name: str = "",
    **_: object,
) -> NkiTensor:
    """Allocate ones."""
    return full(shape, 1, dtype, buffer=buffer, name=name)


def zeros_like(
    a: NkiTensor, dtype: object = None, *, buffer: object = None, name: str = "", **_: object
) -> NkiTensor:
    """Allocate zeros with the shape and dtype of `a`."""
    return full(a.shape, 0, dtype or a.dtype, buffer=buffer or a.buffer, name=name)


def empty_like(
    a: NkiTensor, dtype: object = None, *, buffer: object = None, name: str = "", **_: object
) -> NkiTensor:
    """Allocate an uninitialised tensor with the shape and dtype of `a`."""
    return ndarray(a.shape, dtype or a.dtype, buffer=buffer or a.buffer, name=name)


def _constant(values: object, element: DType) -> NkiTensor:
    array = np.asarray(values)
    return current().add_constant(array.astype(element.storage), element)


def shared_constant(constant: object, dtype: object = None, **_: object) -> NkiTensor:
    """Embed a numpy array as a tensor in HBM."""
    values = np.asarray(constant)
    element = lookup(values.dtype if dtype is None else dtype) or DTYPES["float32"]
    return _constant(values, element)


def shared_identity_matrix(n: int, dtype: object = np.uint8, **_: object) -> NkiTensor:
    """Embed the identity matrix as a tensor in HBM."""
    return _constant(np.eye(int(n)), wanted_dtype(dtype, DTYPES["uint8"]))
