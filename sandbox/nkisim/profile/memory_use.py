"""How much of SBUF and PSUM holds live tiles at each moment of the emulated time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nkisim.ir.access import Memory
from nkisim.ir.program import IntColumn
from nkisim.profile.model import Profile


@dataclass(frozen=True, eq=False, slots=True)
class MemoryUse:
    """A step function: from `time_ps[i]` on, `bytes[i]` per partition are live."""

    memory: Memory
    time_ps: IntColumn
    bytes: IntColumn
    limit_bytes: int

    @property
    def peak_bytes(self) -> int:
        """Most bytes live at once."""
        return int(self.bytes.max()) if len(self.bytes) else 0


def memory_use(profile: Profile, memory: Memory) -> MemoryUse:
    """Return the use of an on-chip memory over time.

    A tile counts from the start of the first instruction that names it to the end of the last one.
    """
    program, timeline, limits = profile.program, profile.timeline, profile.machine.limits
    limit = limits.psum_bytes if memory is Memory.PSUM else limits.sbuf_usable_bytes
    count, columns = len(program.buffers), program.buffer_columns
    never = np.iinfo(np.int64).max
    first, last = np.full(count, never), np.full(count, -1)
    order = timeline.instruction
    arity = np.diff(program.operand_start)[order]
    starts = program.operand_start[:-1][order]
    # Operand columns in executed order.
    shift = np.repeat(starts - np.concatenate([[0], np.cumsum(arity)[:-1]]), arity)
    at = np.arange(int(arity.sum())) + shift
    keep = ~program.operand_is_register[at]
    buffers = program.operand_buffer[at][keep]
    np.minimum.at(first, buffers, np.repeat(timeline.start_ps, arity)[keep])
    np.maximum.at(last, buffers, np.repeat(timeline.result_ps, arity)[keep])
    chosen = columns.is_in(memory) & (last >= 0)
    times = np.concatenate([first[chosen], last[chosen]])
    deltas = np.concatenate([columns.pitch_bytes[chosen], -columns.pitch_bytes[chosen]])
    when, where = np.unique(times, return_inverse=True)
    change = np.zeros(len(when), dtype=np.int64)
    np.add.at(change, where, deltas)
    return MemoryUse(memory, when, np.cumsum(change), limit)
