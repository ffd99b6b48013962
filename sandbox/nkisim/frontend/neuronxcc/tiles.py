"""What the functions on tiles share: fresh results, operands, and the part that a mask leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nkisim.dtypes import DTYPES, DType
from nkisim.errors import KernelError, UnsupportedError
from nkisim.frontend.context import current
from nkisim.frontend.emission import Fresh, mask_of, on_legal_partitions
from nkisim.frontend.predicate import Box, resolve
from nkisim.frontend.recorder import REGIONS
from nkisim.frontend.retarget import NOTHING
from nkisim.frontend.tensor import NkiTensor
from nkisim.ir.access import Memory
from nkisim.ops.axes import matching
from nkisim.ops.masks import MASK, MaskArgument, Terms

Shape = tuple[int, ...]


def isa(name: str, /, **arguments: object) -> None:
    """Emit an instruction."""
    current().instructions.isa[name](**arguments)


def new_tile(shape: Sequence[int], dtype: DType, memory: str = "sbuf") -> NkiTensor:
    """Allocate a result."""
    return current().allocate(tuple(shape), dtype, REGIONS[memory])


def on_chip(value: object, what: str) -> NkiTensor:
    """Return an operand that must be a tile in SBUF or PSUM."""
    if not isinstance(value, NkiTensor):
        raise KernelError(
            "NKS602", f"{what} takes a tile, got {type(value).__name__} {value!r:.60}"
        )
    if value.memory is Memory.HBM:
        raise KernelError(
            "NKS201",
            f"{what} works on tiles in SBUF or PSUM, got {value!r}",
            hint="load it first: tile = nl.load(tensor[rows, columns])",
        )
    return value


def copied(tile: NkiTensor, dtype: object = None) -> NkiTensor:
    """Copy a tile into SBUF."""
    result = new_tile(tile.shape, DTYPES["float32"] if dtype == "float32" else tile.dtype)
    isa("tensor_copy", dst=result, src=tile)
    return result


def in_sbuf(tile: NkiTensor) -> NkiTensor:
    """Return the tile, copied if it is in PSUM."""
    return copied(tile) if tile.memory is Memory.PSUM else tile


def is_column(tile: NkiTensor) -> bool:
    """Whether a tile holds one element per partition."""
    return tile.size == tile.shape[0]


def float_column(tile: NkiTensor) -> NkiTensor:
    """Return a (P, 1) float32 operand."""
    return tile if tile.dtype.name == "float32" else copied(tile, "float32")


@dataclass(frozen=True, slots=True)
class Part:
    """What a mask leaves of an elementwise operation over `space`."""

    space: Shape
    box: Box
    clauses: tuple[Terms, ...] = ()
    """What the box does not say, over the axes of the space."""

    @property
    def attrs(self) -> dict[str, object]:
        """The mask of an instruction over the box."""
        return self.in_order(range(len(self.space)))

    def in_order(
        self, order: Sequence[int], reduced: Sequence[int] = (), what: str = ""
    ) -> dict[str, object]:
        """Return the mask of an instruction that has the axes in another order.

        Args:
            order: Axis of the space at each position.
            reduced: Axes that the result lacks, which no clause may restrict.
            what: Name of the function, for the message.
        """
        if not self.clauses:
            return {}
        if any(steps[axis] for clause in self.clauses for _, *steps in clause for axis in reduced):
            raise UnsupportedError(
                "NKS502",
                f"{what}: a mask that couples a reduced axis with another is not emulated",
                hint="fill the masked-out part first: nisa.affine_select, then reduce all of it",
            )
        counts = tuple(self.box[axis][1] for axis in order)
        return {MASK: MaskArgument(counts, self.clauses_over(order))}

    def clauses_over(self, dims: Sequence[int | None]) -> tuple[Terms, ...]:
        """Return the clauses over other dimensions, given the axis of each."""
        return tuple(
            tuple((c, *(0 if d is None else steps[d] for d in dims)) for c, *steps in clause)
            for clause in self.clauses
        )

    def take(self, operand: object) -> object:
        """Return the part of an operand; numbers stay."""
        if not isinstance(operand, NkiTensor):
            return operand
        return operand.boxed(matching(operand.shape, self.space), self.box)


def part_of(
    mask: object, space: Shape, operands: Sequence[object], *, is_single: bool = True
) -> Part | bool | None:
    """Return what `mask` leaves of `space`: None for all of it, False for nothing.

    Args:
        mask: The argument of a function.
        space: Shape of the operation.
        operands: Tiles that the instructions read and write, which start at legal partitions.
        is_single: Whether each instruction of the operation runs over the whole space; others
            take boxes only.
    """
    if isinstance(mask, tuple):  # resolved already
        return Part(space, tuple((0, n) for n in space), mask[1])
    condition = mask_of(mask)
    if condition is None or condition is True:
        return None
    if condition is False:
        return False
    region = resolve(condition, space)
    if region is None:
        return False
    if region.is_whole(space):
        return None
    tiles = [(t, matching(t.shape, space)) for t in operands if isinstance(t, NkiTensor)]
    region = on_legal_partitions(region, tiles)
    if not region.clauses:
        return Part(space, region.box)
    if not is_single:
        raise UnsupportedError(
            "NKS502",
            "a mask that couples two axes, or that starts inside of a group of partitions, is not "
            "emulated for this function",
            hint="use masks whose conditions have one axis each and start at partition 0",
        )
    return Part(space, region.box, region.clauses)


def finish(result: NkiTensor, part: Part | bool | None) -> NkiTensor:
    """Note that the last instruction filled `result`, and return it."""
    recorder = current()
    if part is False:
        recorder.fresh = Fresh(result, NOTHING, None)
    elif isinstance(part, Part):
        recorder.fresh = Fresh(result, recorder.last_instruction, part.box, part.clauses)
    else:
        recorder.fresh = Fresh(result, recorder.last_instruction, None)
    return result
