"""Which rectangle of which place each operand touches, as columns.

On chip a box is partitions × bytes within a partition; in HBM it is a byte range.  Bounding boxes
are exact for the slices that kernels use.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nkisim.ir.program import IntColumn, Program
from nkisim.memory.placement import Placement


@dataclass(frozen=True, slots=True)
class Boxes:
    """One entry for each operand of each instruction, as `Program.operand_buffer`."""

    place: IntColumn
    """Place number, or -1 - register number for registers."""
    row_start: IntColumn
    row_end: IntColumn
    byte_start: IntColumn
    byte_end: IntColumn


def boxes_of(program: Program, placement: Placement) -> Boxes:
    """Return the boxes of all operands."""
    slots = program.slots
    count = np.array([s.pattern.counts[0] for s in slots] or [1], dtype=np.int64)
    stride = np.array([s.pattern.strides[0] for s in slots] or [1], dtype=np.int64)
    itemsize = np.array([s.dtype.itemsize for s in slots] or [1], dtype=np.int64)
    low = np.array([s.pattern.reach_low for s in slots] or [0], dtype=np.int64)
    high = np.array([s.pattern.reach_high for s in slots] or [0], dtype=np.int64)
    on_chip = np.array([s.memory.is_on_chip for s in slots] or [False], dtype=bool)
    dynamic = np.array([s.index is not None for s in slots] or [False], dtype=bool)
    pitch_of = np.array([b.partition_bytes for b in program.buffers] or [1], dtype=np.int64)
    rows_of = np.array([b.partitions for b in program.buffers] or [1], dtype=np.int64)
    slot = program.operand_slot
    is_register = program.operand_is_register
    buffer = np.where(is_register, 0, program.operand_buffer)
    pitch = np.maximum(1, pitch_of[buffer]) if len(program.buffers) else np.ones_like(buffer)
    start = program.operand_offset * itemsize[slot]
    chip = on_chip[slot] & ~is_register
    row = np.where(chip, start // pitch, 0)
    inside = np.where(chip, start % pitch, start)
    rows = np.where(chip & (stride[slot] != 0), count[slot], 1)
    first_reach = (count[slot] - 1) * np.abs(stride[slot])
    free_high = np.where(chip, high[slot] - first_reach, high[slot])
    byte_start = inside + np.where(chip, 0, low[slot]) * itemsize[slot]
    byte_end = inside + (free_high + 1) * itemsize[slot]
    whole = dynamic[slot] & ~is_register
    row = np.where(whole, 0, row)
    rows = np.where(whole & chip, rows_of[buffer] if len(program.buffers) else 1, rows)
    byte_start = np.where(whole, 0, byte_start)
    byte_end = np.where(whole, pitch, byte_end)
    place = placement.place[buffer] if len(program.buffers) else np.zeros_like(buffer)
    place = np.where(is_register, -1 - program.operand_buffer, place)
    return Boxes(place, row, row + rows, byte_start, byte_end)
