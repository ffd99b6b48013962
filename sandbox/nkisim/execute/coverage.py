"""Which elements of a buffer have been written: exact, and cheap.

Most tiles are written whole before anything reads them; `tracked_buffers` finds all others with a
few array operations, and only those get a map.  A map has one flag per *grain*: the largest power
of two bytes that no access to the buffer ever splits.  A result stored in tiles of 512 columns so
needs one flag per tile row, not one per element.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from nkisim.execute.roles import SlotAccess
from nkisim.ir.access import Pattern
from nkisim.ir.program import Index, IntColumn, Program
from nkisim.memory.liveness import first_and_last_use

Flags = npt.NDArray[np.bool_]
_FAR = np.iinfo(np.int64).max
_SCANNED_FLAGS = 1 << 16
"""Larger maps are never searched for completeness, only under each access."""


def tracked_buffers(program: Program, access: SlotAccess) -> Flags:
    """Return which buffers may be read, or returned, before they are wholly written.

    The others are inputs, constants, filled, or have a first use that writes all of them.
    """
    columns = program.buffer_columns
    count = len(program.buffers)
    is_fresh = (columns.is_kind("local") | columns.is_kind("output")) & ~columns.has_fill
    if not count or not len(program):
        return is_fresh
    slot, buffer = program.operand_slot, program.operand_buffer
    instruction = program.operand_instruction
    whole_bytes = np.array(
        [
            o.size_bytes if o.pattern.run == o.pattern.size and o.index is None else -1
            for o in program.slots
        ]
        or [-1],
        dtype=np.int64,
    )
    covering_slot = access.writes & ~access.reads & ~access.is_conditional
    is_cover = covering_slot[slot] & (program.operand_offset == 0)
    is_value = ~program.operand_is_register
    safe_buffer = np.where(is_value, buffer, 0)
    is_cover &= is_value & (whole_bytes[slot] == columns.size_bytes[safe_buffer])

    def first_where(flags: Flags) -> IntColumn:
        first = np.full(count, _FAR, dtype=np.int64)
        picked = np.flatnonzero(flags)[::-1]
        first[buffer[picked]] = instruction[picked]
        return first

    cover = first_where(is_cover)
    read = first_where(access.reads[slot] & is_value)
    uses = first_and_last_use(program)
    is_simple = (cover == uses.first) & (cover < read) & (uses.last >= uses.first)
    if program.loops:
        loop = program.innermost_loop[np.minimum(cover, len(program) - 1)]
        first = np.array([item.first for item in program.loops], dtype=np.int64)[loop]
        last = np.array([item.last for item in program.loops], dtype=np.int64)[loop]
        stays = (uses.first >= first) & (uses.last < last) & columns.is_kind("local")
        is_simple &= (loop < 0) | stays
    tracked: Flags = is_fresh & ~is_simple
    return tracked


def grain_bytes(program: Program, access: SlotAccess, wanted: Flags) -> IntColumn:
    """Return the bytes per flag for each wanted buffer; 0 for the others."""
    columns = program.buffer_columns
    grain = _low_bit(columns.size_bytes)
    slot_grain = np.array(
        [
            operand.dtype.itemsize
            if conditional
            else _pattern_grain(operand.pattern, operand.index)
            for operand, conditional in zip(program.slots, access.is_conditional, strict=True)
        ]
        or [1],
        dtype=np.int64,
    )
    itemsize = np.array([o.dtype.itemsize for o in program.slots] or [1], dtype=np.int64)
    picked = np.flatnonzero(~program.operand_is_register)
    picked = picked[wanted[program.operand_buffer[picked]]]
    slot, buffer = program.operand_slot[picked], program.operand_buffer[picked]
    shift = _low_bit(program.operand_offset[picked] * itemsize[slot])
    np.minimum.at(grain, buffer, np.minimum(slot_grain[slot], shift))
    for output in program.outputs:
        size = output.pattern.dtype.itemsize
        offset = int(_low_bit(np.array([output.offset * size]))[0])
        grain[output.buffer] = min(
            int(grain[output.buffer]), offset, _pattern_grain(output.pattern, None)
        )
    return np.where(wanted, grain, 0)


def _low_bit(values: IntColumn) -> IntColumn:
    """Return the largest power of two that divides each value; 2**62 for 0."""
    low = values & -values
    return np.where(low == 0, 1 << 62, low)


def _split(pattern: Pattern, skip: int = 0) -> tuple[list[tuple[int, int]], int]:
    """Return the dimensions outside of the contiguous run as (count, stride), and the run."""
    dims = [
        (count, stride)
        for count, stride in zip(pattern.counts[skip:], pattern.strides[skip:], strict=True)
        if count > 1
    ]
    run = 1
    while dims and dims[-1][1] == run:
        run *= dims.pop()[0]
    return dims, run


def _pattern_grain(pattern: Pattern, index: Index | None) -> int:
    dims, run = _split(pattern, 1 if index is not None and index.kind == "vector" else 0)
    combined = run
    for _, stride in dims:
        combined |= abs(stride)
    if index is not None:
        combined |= abs(index.step)
    return (combined & -combined) * pattern.dtype.itemsize


@dataclass(frozen=True, slots=True)
class FlagView:
    """How an access sees the flags of a buffer."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In flags."""
    run: int
    """Elements of the contiguous run."""


@lru_cache(maxsize=4096)
def flag_view(pattern: Pattern, grain: int, *, skips_rows: bool = False) -> FlagView:
    """Return the shape and strides of `pattern` over flags of `grain` bytes.

    Args:
        pattern: The access.
        grain: Bytes per flag.
        skips_rows: Leave out the first dimension, which a run-time index replaces.
    """
    dims, run = _split(pattern, int(skips_rows))
    size = pattern.dtype.itemsize
    shape = (*(count for count, _ in dims), max(1, run * size // grain))
    strides = (*(stride * size // grain for _, stride in dims), 1)
    return FlagView(shape, strides, run)


def elements(flags: Flags, pattern: Pattern, grain: int) -> Flags:
    """Return flags seen through `flag_view` as one flag per element, in the access's shape."""
    size = pattern.dtype.itemsize
    if grain >= size:
        wide: Flags = np.repeat(flags, grain // size, axis=-1)
    else:
        parts = flags.reshape(*flags.shape[:-1], -1, size // grain)
        wide = np.logical_and.reduce(parts, axis=-1)
    return wide.reshape(pattern.counts)


class Coverage:
    """Flags of all tracked buffers during one run."""

    def __init__(self, grain: IntColumn, size_bytes: IntColumn) -> None:
        self.grain: list[int] = grain.tolist()
        self._sizes: list[int] = size_bytes.tolist()
        self.flags: list[Flags | None] = [None] * len(self.grain)
        """None: wholly written, or not tracked."""
        self._is_dirty = [False] * len(self.grain)

    def reset(self, buffer: int) -> None:
        """Forget what was written."""
        self.flags[buffer] = np.zeros(self._sizes[buffer] // self.grain[buffer], dtype=np.bool_)
        self._is_dirty[buffer] = False

    def view(self, buffer: int, pattern: Pattern, offset_bytes: int) -> Flags | None:
        """Return the flags under an access as a writable view, or None if all are set."""
        flags = self.flags[buffer]
        if flags is None:
            return None
        grain = self.grain[buffer]
        seen = flag_view(pattern, grain)
        return np.ndarray(seen.shape, np.bool_, flags, offset_bytes // grain, seen.strides)

    def rows(
        self, buffer: int, pattern: Pattern, offset_bytes: int, step_bytes: int, count: int
    ) -> Flags | None:
        """Return the flags of `count` rows that a vector index chooses from."""
        flags = self.flags[buffer]
        if flags is None:
            return None
        grain = self.grain[buffer]
        seen = flag_view(pattern, grain, skips_rows=True)
        return np.ndarray(
            (count, *seen.shape),
            np.bool_,
            flags,
            offset_bytes // grain,
            (step_bytes // grain, *seen.strides),
        )

    def touch(self, buffer: int) -> None:
        """Note that flags were set, so that the buffer may be complete now."""
        self._is_dirty[buffer] = True

    def is_whole(self, buffer: int) -> bool:
        """Say whether all of the buffer is written; if so its flags are dropped."""
        flags = self.flags[buffer]
        if flags is None:
            return True
        if self._is_dirty[buffer] and flags.size <= _SCANNED_FLAGS:
            self._is_dirty[buffer] = False
            if flags.all():
                self.flags[buffer] = None
                return True
        return False

    def missing(self, buffer: int, pattern: Pattern, offset_bytes: int) -> tuple[int, int] | None:
        """Return how many bytes of an access are unwritten, and the first of them; or None."""
        if self.is_whole(buffer):
            return None
        view = self.view(buffer, pattern, offset_bytes)
        if view is None or view.all():
            return None
        grain = self.grain[buffer]
        where = np.argwhere(~view)
        first = offset_bytes // grain + int(np.dot(where[0], view.strides))
        return len(where) * grain, first * grain
