"""Proves for a straight-line Program, without running it, that it reads only what it wrote."""

from __future__ import annotations

import numpy as np

from nkisim.execute.coverage import Coverage, Flags, grain_bytes, tracked_buffers
from nkisim.execute.places import located
from nkisim.execute.roles import SlotAccess
from nkisim.execute.unwritten import unwritten_output, unwritten_read
from nkisim.ir.program import IntColumn, Program
from nkisim.ops.masks import is_masked

MAX_FLAGS = 1 << 26


def check_written(
    program: Program, access: SlotAccess, *, allow_unwritten_reads: bool = False
) -> None:
    """Check that a straight-line Program reads only what it wrote and writes all of its results.

    Buffers with run-time indices or masks, and Programs that need very large maps, are left to the
    interpreter, which has fuel.
    """
    tracked = tracked_buffers(program, access)
    is_indexed = np.array([o.index is not None for o in program.slots] or [False])
    value = ~program.operand_is_register
    slot, buffer = program.operand_slot, program.operand_buffer
    indexed_form = np.zeros(len(program.forms), dtype=np.bool_)
    for number, form in enumerate(program.forms):
        indexed_form[number] = is_masked(form) or any(o.index is not None for o in form.operands)
    if indexed_form.any():
        dynamic = value & indexed_form[program.form[program.operand_instruction]]
        tracked[buffer[dynamic & (is_indexed | access.writes)[slot]]] = False
    if not tracked.any():
        return
    columns = program.buffer_columns
    grain = grain_bytes(program, access, tracked)
    flags = np.where(tracked, columns.size_bytes // np.maximum(grain, 1), 0)
    if flags.sum() > MAX_FLAGS:
        return
    coverage = Coverage(grain, columns.size_bytes)
    for number in np.flatnonzero(tracked).tolist():
        coverage.reset(number)
    entries = np.flatnonzero(value)
    entries = entries[tracked[buffer[entries]]]
    _replay(program, access, coverage, entries, allow_unwritten_reads=allow_unwritten_reads)
    for position, output in enumerate(program.outputs):
        if tracked[output.buffer]:
            offset = output.offset * output.pattern.dtype.itemsize
            missing = coverage.missing(output.buffer, output.pattern, offset)
            if missing is not None:
                raise unwritten_output(program, position, missing)


def _replay(
    program: Program,
    access: SlotAccess,
    coverage: Coverage,
    entries: IntColumn,
    *,
    allow_unwritten_reads: bool,
) -> None:
    """Go through the accesses to tracked buffers in program order."""
    slots, flags = program.slots, coverage.flags
    sizes = [operand.dtype.itemsize for operand in slots]
    reads, writes = access.reads.tolist(), access.writes.tolist()
    pending: list[tuple[int, Flags]] = []
    current = -1
    for entry, instruction, s, b, offset in zip(
        entries.tolist(),
        program.operand_instruction[entries].tolist(),
        program.operand_slot[entries].tolist(),
        program.operand_buffer[entries].tolist(),
        program.operand_offset[entries].tolist(),
        strict=True,
    ):
        if instruction != current:
            for number, seen in pending:
                seen[...] = True
                coverage.touch(number)
            pending.clear()
            current = instruction
        if flags[b] is None:
            continue
        for part in access.parts[s] if reads[s] and not allow_unwritten_reads else ():
            missing = coverage.missing(b, part.pattern, (offset + part.offset) * sizes[s])
            if missing is not None:
                form = program.forms[int(program.form[instruction])]
                operand = form.operands[entry - int(program.operand_start[instruction])]
                raise located(
                    program, unwritten_read(program, form.op, operand, b, missing), instruction
                )
        for part in access.parts[s] if writes[s] else ():
            view = coverage.view(b, part.pattern, (offset + part.offset) * sizes[s])
            if view is not None:
                pending.append((b, view))
    for number, seen in pending:
        seen[...] = True
        coverage.touch(number)
