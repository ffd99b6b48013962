"""Issues instructions under masks, and knows which fresh tile the last one made.

Instructions of the old generation return their result.  `t[...] = nisa.f(x)` should write t and not
a temporary that is copied; so the recorder remembers the tile that the last instruction filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nkisim.errors import KernelError, UnsupportedError
from nkisim.frontend.context import current
from nkisim.frontend.predicate import Box, Predicate, Region, from_start, pieces, resolve
from nkisim.frontend.retarget import NOTHING
from nkisim.frontend.tensor import NkiTensor
from nkisim.memory.sbuf import legal_starts
from nkisim.ops.axes import Dims
from nkisim.ops.masks import MASK, MaskArgument, Terms

SEVERAL = -2
"""Instead of an instruction's number: several instructions filled the tile."""
MAX_PIECES = 4096
"""Copies that one masked copy may become."""


class Fresh(NamedTuple):
    """A tile that the last instruction filled, and nothing else has touched."""

    tile: NkiTensor
    instruction: int
    """Number of the instruction, or NOTHING, or SEVERAL."""
    box: Box | None
    """Part of the tile that was written, per dimension; None for all of it."""
    clauses: tuple[Terms, ...] = ()
    """What the box does not say of the part, over the tile's dimensions."""

    @property
    def attrs(self) -> dict[str, object]:
        """The mask of a copy of the part."""
        if not self.clauses or self.box is None:
            return {}
        return {MASK: MaskArgument(tuple(count for _, count in self.box), self.clauses)}


class Issued(NamedTuple):
    """What a mask left of an instruction."""

    region: Region | None
    """None if nothing."""
    dst: Dims
    """Iteration axis of each dimension of dst."""
    is_one: bool = True
    """Whether one instruction did it."""


def mask_of(mask: object) -> Predicate | bool | None:
    """Return a mask argument as a predicate or a truth value; None and True mask nothing out.

    Raises:
        KernelError: It is something else.
    """
    if mask is None or isinstance(mask, Predicate):
        return mask
    if isinstance(mask, (bool, int, np.bool_)):
        return bool(mask)
    raise KernelError(
        "NKS105",
        f"mask must be a comparison of index tensors, got {type(mask).__name__} {mask!r:.60}",
        hint="for example mask=(i * 128 + i_p < rows); select by values with nl.where",
    )


def issue(name: str, mask: object = None, /, **arguments: object) -> Issued | None:
    """Emit instruction `name` where `mask` holds.

    Returns:
        None if nothing is masked out, else what was left.
    """
    instruction = current().instructions.isa[name]
    if mask is None or mask is True:
        instruction(**arguments)
        return None
    condition = mask_of(mask)
    if condition is True:
        instruction(**arguments)
        return None
    if condition is False or condition is None:
        return Issued(None, ())
    tensors = {key: value for key, value in arguments.items() if isinstance(value, NkiTensor)}
    shapes = {key: tensor.shape for key, tensor in tensors.items()}
    space, dims = instruction.spec.axes(shapes, arguments)  # type: ignore[attr-defined]
    region = resolve(condition, space)
    if region is None:
        return Issued(None, dims.get("dst", ()))
    if region.is_whole(space):
        instruction(**arguments)
        return None
    spec = instruction.spec  # type: ignore[attr-defined]
    if not spec.is_dma:
        region = on_legal_partitions(region, [(t, dims[key]) for key, t in tensors.items()])
    for key, tensor in tensors.items():
        arguments[key] = tensor.boxed(dims[key], region.box)
    if region.clauses and spec.is_dma and any(arguments[key].beyond for key in tensors):  # type: ignore[attr-defined]
        _issue_pieces(name, region, dims, arguments, tensors)
        return Issued(region, dims["dst"], is_one=False)
    if region.clauses:
        _check_coupled(name, region, dims)
        if any(tensor.index is not None for tensor in tensors.values()):
            raise UnsupportedError(
                "NKS502",
                f"{name}: a mask that couples two axes on a run-time index is not emulated",
            )
        counts = tuple(count for _, count in region.box)
        arguments[MASK] = MaskArgument(counts, region.clauses)
    instruction(**arguments)
    return Issued(region, dims["dst"])


def on_legal_partitions(
    region: Region, operands: Sequence[tuple[NkiTensor, Sequence[int | None]]]
) -> Region:
    """Return the region with a box in which no operand starts at an illegal partition.

    A row that lanes cannot start at is reached by masking out the rows before it.
    """
    for tensor, dims in operands:
        axis = dims[0] if dims else None
        if axis is None or not tensor.memory.is_on_chip:
            continue
        start, count = region.box[axis]
        if not start:
            continue
        pitch = tensor.storage.free_size * tensor.storage.dtype.itemsize // tensor.dtype.itemsize
        first = tensor.offset // max(1, pitch) + start
        if first not in legal_starts(count):
            region = from_start(region, axis)
    return region


def _issue_pieces(
    name: str,
    region: Region,
    dims: dict[str, Dims],
    arguments: dict[str, object],
    tensors: dict[str, NkiTensor],
) -> None:
    """Emit one copy for each box of a region whose bounding box leaves a tensor."""
    boxes = None if "dst_rmw_op" in arguments else pieces(region, MAX_PIECES)
    if boxes is None:
        raise UnsupportedError(
            "NKS502",
            f"{name}: a mask that couples axes and leaves more than {MAX_PIECES} boxes is not "
            "emulated",
        )
    for box in boxes:
        for key, tensor in tensors.items():
            arguments[key] = tensor.boxed(dims[key], box)
        current().instructions.isa[name](**arguments)


def _check_coupled(name: str, region: Region, dims: dict[str, Dims]) -> None:
    """Refuse masks that couple an axis which the result does not have."""
    coupled = {
        axis
        for clause in region.clauses
        for _, *steps in clause
        for axis, step in enumerate(steps)
        if step
    }
    if not coupled <= set(dims["dst"]):
        raise UnsupportedError(
            "NKS502",
            f"{name}: a mask that couples an axis with one that the result lacks is not emulated",
            hint="fill the masked-out part first: nisa.affine_select, then reduce all of it",
        )


def result_of(name: str, tile: NkiTensor, mask: object = None, /, **arguments: object) -> NkiTensor:
    """Emit an instruction that fills the fresh tile `tile`, and return the tile."""
    recorder = current()
    if mask is None:
        recorder.instructions.isa[name](dst=tile, **arguments)
        recorder.fresh = Fresh(tile, recorder.last_instruction, None)
        return tile
    issued = issue(name, mask, dst=tile, **arguments)
    number = recorder.last_instruction
    if issued is None:
        recorder.fresh = Fresh(tile, number, None)
    elif issued.region is None:
        recorder.fresh = Fresh(tile, NOTHING, None)
    else:
        box = tuple(
            (0, n) if axis is None else issued.region.box[axis]
            for axis, n in zip(issued.dst, tile.shape, strict=True)
        )
        clauses = tuple(
            tuple(
                (constant, *(0 if axis is None else steps[axis] for axis in issued.dst))
                for constant, *steps in clause
            )
            for clause in issued.region.clauses
        )
        recorder.fresh = Fresh(tile, number if issued.is_one else SEVERAL, box, clauses)
    return tile
