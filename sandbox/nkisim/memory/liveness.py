"""From when to when each buffer holds something that matters.

A buffer lives from its first to its last use in program order.  A buffer allocated outside of a
device loop and used inside keeps its content from trip to trip, so it lives through the whole loop.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nkisim.ir.program import IntColumn, Program


class LiveRanges(NamedTuple):
    """Instructions `first` ≤ i ≤ `last` during which each buffer lives.

    A buffer that is never used has an empty range: `last` = `first` − 1.
    """

    first: IntColumn
    last: IntColumn


def first_and_last_use(program: Program) -> LiveRanges:
    """Return the first and last instruction that names each buffer, loops not considered."""
    count = len(program.buffers)
    first = np.array(program.buffer_columns.birth)
    last = first - 1
    buffers, instructions = program.operand_buffer, program.operand_instruction
    if program.register_count:
        keep = ~program.operand_is_register
        buffers, instructions = buffers[keep], instructions[keep]
    if count:
        # Of several values assigned to one entry numpy keeps the last.
        last[buffers] = instructions
        first[buffers[::-1]] = instructions[::-1]
    return LiveRanges(first, last)


def home_loops(program: Program, uses: LiveRanges | None = None) -> IntColumn:
    """Return the innermost loop that allocates each buffer afresh on every trip, −1 for none.

    That is the innermost loop around its allocation whose body also holds all its uses.
    """
    first, last = first_and_last_use(program) if uses is None else uses
    home = np.array(program.buffer_columns.loop)
    inner_first = sorted(range(len(program.loops)), key=lambda n: -program.loop_nesting[n])
    for number in inner_first:
        loop = program.loops[number]
        leaves = (home == number) & (last >= first) & ((first < loop.first) | (last >= loop.last))
        home[leaves] = -1 if loop.parent is None else loop.parent
    return home


def live_ranges(program: Program) -> LiveRanges:
    """Return the live range of each buffer, extended over the loops that carry it.

    Of a buffer allocated inside a loop this is its range within the body.
    """
    uses = first_and_last_use(program)
    if not program.loops:
        return uses
    first, last = np.array(uses.first), np.array(uses.last)
    carrier = carrying_loops(program, uses)
    for number in np.unique(carrier[carrier >= 0]).tolist():
        loop, carried = program.loops[number], carrier == number
        first[carried] = np.minimum(first[carried], loop.first)
        last[carried] = np.maximum(last[carried], loop.last - 1)
    # Several loops one after another may carry one buffer; each extends its range.
    for number, loop in enumerate(program.loops):
        touches = (first < loop.last) & (last >= loop.first) & (last >= first)
        carried = touches & ~_is_inside(program, number)
        first[carried] = np.minimum(first[carried], loop.first)
        last[carried] = np.maximum(last[carried], loop.last - 1)
    return LiveRanges(first, last)
