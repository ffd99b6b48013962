"""SBUF and PSUM capacity: all tiles that live at one time must fit.

Counted in bytes per partition, in program order.  Tiles whose address the kernel chose may overlap
on purpose, so they only have to lie inside the memory.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from nkisim.errors import KernelError
from nkisim.ir.access import Memory
from nkisim.ir.program import IntColumn, Program
from nkisim.machine.spec import Machine
from nkisim.memory.liveness import LiveRanges, live_ranges

MAP_ROWS = 4


class Peak(NamedTuple):
    """The moment when most bytes per partition are in use."""

    bytes: int
    instruction: int
    buffers: IntColumn
    """What lives then."""


def peak_use(program: Program, memory: Memory, live: LiveRanges | None = None) -> Peak:
    """Return the peak of freely placed tiles in `memory`."""
    first, last = live_ranges(program) if live is None else live
    columns = program.buffer_columns
    counted = columns.is_in(memory) & (columns.address < 0) & (last >= first)
    change = np.zeros(len(program) + 2, dtype=np.int64)
    np.add.at(change, first[counted], columns.pitch_bytes[counted])
    np.subtract.at(change, last[counted] + 1, columns.pitch_bytes[counted])
    used = np.cumsum(change)
    at = int(used.argmax())
    return Peak(int(used[at]), at, np.flatnonzero(counted & (first <= at) & (last >= at)))


def check_capacity(program: Program, machine: Machine) -> None:
    """Raise if the tiles that live at one time do not fit SBUF or PSUM.

    Kernels with old-generation idioms get away with too much SBUF: their compiler spills.
    """
    live = live_ranges(program)
    for memory, limit in (
        (Memory.PSUM, machine.limits.psum_bytes),
        (Memory.SBUF, machine.limits.sbuf_usable_bytes),
    ):
        if memory is Memory.SBUF and program.is_hybrid:
            continue
        peak = peak_use(program, memory, live)
        if peak.bytes > limit:
            raise _overflow(program, machine, memory, limit, peak, live)


def _overflow(
    program: Program, machine: Machine, memory: Memory, limit: int, peak: Peak, live: LiveRanges
) -> KernelError:
    columns = program.buffer_columns
    by_site: Counter[int] = Counter()
    count: Counter[int] = Counter()
    for number in peak.buffers.tolist():
        site = int(columns.site[number])
        by_site[site] += int(columns.pitch_bytes[number])
        count[site] += 1
    rows = []
    for site, size in by_site.most_common(MAP_ROWS):
        place = program.sites[site].place
        rows.append(f"{size:>9,} B in {count[site]} live  {place}  {place.text[:60]}".rstrip())
    rest = len(by_site) - len(rows)
    if rest > 0:
        others = peak.bytes - sum(size for _, size in by_site.most_common(MAP_ROWS))
        rows[-1] += f"  (+ {others:,} B from {rest} more lines)"
    newest = max(peak.buffers.tolist(), key=lambda number: int(live.first[number]))
    site_of_newest = program.sites[int(columns.site[newest])]
    name = str(memory).upper()
    return KernelError(
        "NKS207",
        f"{name} overflow: {peak.bytes:,} bytes per partition live at once, "
        f"{machine.name} has {limit:,}",
        got="\n           ".join(rows),
        hint="use smaller tiles, or fewer tiles alive at once: allocate inside the loop that uses "
        "them, consume before loading the next",
        place=site_of_newest.place,
        callers=site_of_newest.callers if len(rows) < MAP_ROWS else (),
    )
