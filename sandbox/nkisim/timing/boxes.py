"""Which rectangle of which place each operand touches, as columns.

On chip a box is physical partitions × physical bytes of a partition.  In HBM, where each buffer is
a place, it is rows × bytes of a row, with the row pitch that the buffer's accesses share.  Boxes
are exact for the slices that kernels use and never too small.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nkisim.ir.program import IntColumn, Operand, Program
from nkisim.memory.placement import Placement

FLAT = 1 << 60
"""Row pitch of an HBM buffer whose accesses suggest none."""


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
    """Return the boxes of all operands.  Accesses with a run-time index touch the whole buffer."""
    slots, slot = program.slots, program.operand_slot
    is_register = program.operand_is_register
    if not slots or not program.buffers:
        none = np.zeros(len(slot), dtype=np.int64)
        return Boxes(-1 - program.operand_buffer, none, none + 1, none, none + 1)
    columns = program.buffer_columns
    buffer = np.where(is_register, 0, program.operand_buffer)
    itemsize = np.array([s.dtype.itemsize for s in slots], dtype=np.int64)
    start = program.operand_offset * itemsize[slot]
    on_chip = np.array([s.memory.is_on_chip for s in slots], dtype=bool)[slot]
    pitch = np.where(on_chip, np.maximum(1, columns.pitch_bytes[buffer]), 1)
    in_hbm = ~on_chip & ~is_register
    hbm_pitch = _hbm_pitches(program, slots, buffer, in_hbm)
    pitch[in_hbm] = hbm_pitch[buffer[in_hbm]]

    reach = _reaches(slots, slot, pitch)
    row, column = start // pitch, start % pitch
    row_start, row_end = row + reach.row_low, row + reach.row_high + 1
    byte_start, byte_end = column + reach.byte_low, column + reach.byte_high
    # A box that leaves its row covers whole rows instead.
    leaves = (byte_start < 0) | (byte_end > pitch)
    low, high = start + reach.flat_low, start + reach.flat_high
    row_start = np.where(leaves, low // pitch, row_start)
    row_end = np.where(leaves, (high - 1) // pitch + 1, row_end)
    byte_start, byte_end = np.where(leaves, 0, byte_start), np.where(leaves, pitch, byte_end)

    whole = np.array([s.index is not None for s in slots], dtype=bool)[slot] & ~is_register
    rows = np.where(on_chip, columns.partitions[buffer], FLAT)
    row_start, row_end = np.where(whole, 0, row_start), np.where(whole, rows, row_end)
    byte_start, byte_end = np.where(whole, 0, byte_start), np.where(whole, pitch, byte_end)

    shift = np.where(on_chip, columns.start_partition[buffer], 0)
    address = np.where(on_chip, placement.address[buffer], 0)
    registers = -1 - program.operand_buffer
    return Boxes(
        place=np.where(is_register, registers, placement.place[buffer]),
        row_start=np.where(is_register, 0, row_start + shift),
        row_end=np.where(is_register, 1, row_end + shift),
        byte_start=np.where(is_register, 0, byte_start + address),
        byte_end=np.where(is_register, 1, byte_end + address),
    )


def _hbm_pitches(
    program: Program,
    slots: tuple[Operand, ...],
    buffer: IntColumn,
    in_hbm: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> IntColumn:
    """Return the row pitch in bytes of each HBM buffer: the smallest outermost stride in use."""
    outer = np.array(
        [
            max(
                (abs(s) for c, s in zip(o.pattern.counts, o.pattern.strides, strict=True) if c > 1),
                default=0,
            )
            * o.dtype.itemsize
            for o in slots
        ],
        dtype=np.int64,
    )
    size = np.array([o.dtype.itemsize for o in slots], dtype=np.int64)
    outer = np.where(outer > size, outer, FLAT)
    pitches = np.full(len(program.buffers), FLAT, dtype=np.int64)
    np.minimum.at(pitches, buffer[in_hbm], outer[program.operand_slot[in_hbm]])
    return pitches


@dataclass(frozen=True, slots=True)
class _Reach:
    """How far accesses reach from their first element, given the row pitch; per operand."""

    row_low: IntColumn
    row_high: IntColumn
    byte_low: IntColumn
    byte_high: IntColumn
    """One behind the last byte."""
    flat_low: IntColumn
    flat_high: IntColumn


def _reaches(slots: tuple[Operand, ...], slot: IntColumn, pitch: IntColumn) -> _Reach:
    """Split every access into rows and bytes within a row; few (slot, pitch) pairs are distinct."""
    pitches, pitch_number = np.unique(pitch, return_inverse=True)
    pairs, pair_number = np.unique(slot * len(pitches) + pitch_number, return_inverse=True)
    table = np.zeros((6, max(1, len(pairs))), dtype=np.int64)
    for i, pair in enumerate(pairs.tolist()):
        operand, of = slots[pair // len(pitches)], int(pitches[pair % len(pitches)])
        size = operand.dtype.itemsize
        rows, inside = [0, 0], [0, size]
        for count, stride in zip(operand.pattern.counts, operand.pattern.strides, strict=True):
            reach = (count - 1) * stride * size
            if stride * size % of == 0:
                rows[reach > 0] += reach // of
            else:
                inside[reach > 0] += reach
        flat = (operand.pattern.reach_low * size, (operand.pattern.reach_high + 1) * size)
        table[:, i] = (*rows, *inside, *flat)
    return _Reach(*table[:, pair_number])
