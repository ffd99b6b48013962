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
    """Return the innermost loop that allocates each buffer afresh on every trip, -1 for none.

    That is the innermost loop around its allocation whose body also holds all its uses.
    """
    first, last = first_and_last_use(program) if uses is None else uses
    home = np.array(program.buffer_columns.loop)
    for number in inner_loops_first(program):
        loop = program.loops[number]
        leaves = (home == number) & (last >= first) & ((first < loop.first) | (last >= loop.last))
        home[leaves] = -1 if loop.parent is None else loop.parent
    home[program.buffer_columns.is_kind("output") | program.buffer_columns.is_kind("input")] = -1
    return home


def carrying_loops(program: Program, instructions: IntColumn, home: IntColumn) -> IntColumn:
    """Return the outermost loop inside `home` around each of `instructions`, -1 for none.

    All three are columns with one entry per buffer.
    """
    parent = np.array([-1 if p.parent is None else p.parent for p in program.loops] or [-1])
    if not len(program.form):
        return np.full(len(instructions), -1, dtype=np.int64)
    at = program.innermost_loop[np.clip(instructions, 0, len(program.form) - 1)]
    while True:
        above = np.where(at >= 0, parent[at], -1)
        climbs = (at >= 0) & (at != home) & (above != home) & (above >= 0)
        if not climbs.any():
            return np.where(at == home, -1, at)
        at = np.where(climbs, above, at)


def inner_loops_first(program: Program) -> list[int]:
    """Return the loop numbers, every loop before the loops around it."""
    return sorted(range(len(program.loops)), key=lambda number: -program.loop_nesting[number])


def live_ranges(program: Program) -> LiveRanges:
    """Return the live range of each buffer, extended over the loops that carry it.

    Of a buffer allocated inside a loop this is its range within one trip.
    """
    uses = first_and_last_use(program)
    if not program.loops:
        return uses
    home = home_loops(program, uses)
    first, last = np.array(uses.first), np.array(uses.last)
    is_used = last >= first
    for use, end in ((uses.first, first), (uses.last, last)):
        carrier = carrying_loops(program, use, home)
        for number in np.unique(carrier[is_used & (carrier >= 0)]).tolist():
            carried = is_used & (carrier == number)
            loop = program.loops[number]
            end[carried] = loop.first if end is first else loop.last - 1
    return LiveRanges(first, last)
