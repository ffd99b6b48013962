"""Where on-chip tiles live: the policy that decides which tiles wait for each other.

An allocation site is a source line with a shape and dtype.  Its instances rotate over `copies`
places, more if more are alive at once.  Reusing a place is a true
dependence: the new tile's first write waits for the old tile's last reader.  A tile with an
explicit address, or whose site allocates once, gets one place.  When SBUF is full, places of dead
tiles are taken over, least recently freed first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from nkisim.ir.access import Memory
from nkisim.ir.program import IntColumn, Program
from nkisim.machine.spec import Machine
from nkisim.memory.liveness import live_ranges

DEFAULT_COPIES = 3
"""The fewest that reproduce the published tiled float32 matmul, which runs at the DMA issue rate:
0.80 us a copy with 2 places, 0.608 with 3, published 0.604 (fitted)."""


@dataclass(slots=True)
class Place:
    """A stretch of SBUF or PSUM that tiles of one site take turns in."""

    number: int
    site: tuple[object, ...]
    bytes: int
    busy_until: int
    """Last instruction that uses the present tenant."""
    replaces: tuple[int, ...] = ()
    """Places of dead tiles of other sites whose memory this one took over."""
    is_retired: bool = False


@dataclass(frozen=True, slots=True)
class SitePlacement:
    """How one allocation site was placed, for printing."""

    line: str
    memory: Memory
    shape: tuple[int, int]
    dtype: str
    instances: int
    places: int
    bytes: int
    """Per partition, all places together."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of every buffer."""

    place: IntColumn
    """Place number per buffer; HBM buffers get places of their own."""
    replaces: dict[int, tuple[int, ...]]
    """For places that took over memory of dead tiles: whose."""
    sites: tuple[SitePlacement, ...]

    def __str__(self) -> str:
        rows = [
            f"{s.line}  {s.memory} [{s.shape[0]}, {s.shape[1]}] {s.dtype}: {s.instances} tiles in "
            f"{s.places} places, {s.bytes:,} bytes per partition"
            for s in self.sites
        ]
        return "\n".join(rows)


@dataclass(slots=True)
class _Space:
    """One on-chip memory while it is being filled."""

    limit: int
    used: int = 0
    places: dict[tuple[object, ...], list[Place]] = field(default_factory=dict)


def place_tiles(program: Program, machine: Machine, *, copies: int = DEFAULT_COPIES) -> Placement:
    """Give every on-chip tile of a Program a place.

    Args:
        program: A valid Program.
        machine: Whose capacities hold.
        copies: Places of a site that allocates more than once.
    """
    first, last = live_ranges(program)
    spaces = {
        Memory.SBUF: _Space(machine.limits.sbuf_usable_bytes),
        Memory.PSUM: _Space(machine.limits.psum_bytes),
    }
    bank = machine.limits.psum_bank_bytes
    column = np.zeros(len(program.buffers), dtype=np.int64)
    replaces: dict[int, tuple[int, ...]] = {}
    counts: dict[tuple[object, ...], int] = {}
    number = 0
    fixed: dict[tuple[object, ...], int] = {}
    for i in np.argsort(first, kind="stable").tolist():
        buffer = program.buffers[i]
        space = spaces.get(buffer.memory)
        if space is None:
            column[i] = number
            number += 1
            continue
        size = buffer.partition_bytes
        if buffer.memory is Memory.PSUM:
            size = -(-size // bank) * bank
        site = (buffer.site, buffer.memory, buffer.partitions, buffer.free_size, buffer.dtype.name)
        counts[site] = counts.get(site, 0) + 1
        if buffer.address is not None:
            key = (buffer.memory, buffer.address, buffer.start_partition)
            if key not in fixed:
                fixed[key] = number
                number += 1
            column[i] = fixed[key]
            continue
        place = _choose(space, site, size, int(first[i]), copies, number)
        if place.number == number:
            number += 1
            if place.replaces:
                replaces[place.number] = place.replaces
        place.busy_until = int(last[i])
        column[i] = place.number
    return Placement(column, replaces, _describe(program, spaces, counts))


def _choose(
    space: _Space, site: tuple[object, ...], size: int, first: int, copies: int, number: int
) -> Place:
    places = space.places.setdefault(site, [])
    free = [p for p in places if p.busy_until < first and not p.is_retired]
    live = [p for p in places if not p.is_retired]
    if free and len(live) >= copies:
        return min(free, key=lambda p: p.busy_until)
    if space.used + size <= space.limit:
        space.used += size
        place = Place(number, site, size, first)
        places.append(place)
        return place
    if free:
        return min(free, key=lambda p: p.busy_until)
    dead = sorted(
        (
            p
            for group in space.places.values()
            for p in group
            if not p.is_retired and p.busy_until < first
        ),
        key=lambda p: p.busy_until,
    )
    taken: list[int] = []
    for victim in dead:
        if space.used + size <= space.limit:
            break
        victim.is_retired = True
        space.used -= victim.bytes
        taken.append(victim.number)
    # The validator has checked capacity by liveness; fragmentation is not modelled.
    space.used += size
    place = Place(number, site, size, first, tuple(taken))
    places.append(place)
    return place


def _describe(
    program: Program, spaces: dict[Memory, _Space], counts: dict[tuple[object, ...], int]
) -> tuple[SitePlacement, ...]:
    rows: list[SitePlacement] = []
    for memory, space in spaces.items():
        for site, places in space.places.items():
            line, _, partitions, free_size, dtype = site
            rows.append(
                SitePlacement(
                    str(program.sites[int(line)].place),  # type: ignore[call-overload]
                    memory,
                    (int(partitions), int(free_size)),  # type: ignore[call-overload]
                    str(dtype),
                    counts[site],
                    len(places),
                    sum(p.bytes for p in places),
                )
            )
    return tuple(rows)
