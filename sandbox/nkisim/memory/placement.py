"""Where on-chip tiles live: the policy that decides which tiles wait for each other.

An allocation site is a source line with a shape and dtype.  Its instances rotate over `copies`
places, more if more are alive at once; a site that allocates once has one place.  Reusing a place
is a true dependence: the new tile's first write waits for the old tile's last reader.  A tile with
an explicit address stays there.  New places take never-used space first; when there is none left,
they take over the space that has been dead longest.  Nothing here depends on time or chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from nkisim.ir.access import Memory
from nkisim.ir.program import MEMORIES, IntColumn, Program
from nkisim.machine.spec import Machine
from nkisim.memory.allocator import AddressSpace, Stretch
from nkisim.memory.liveness import LiveRanges, live_ranges

DEFAULT_COPIES = 3
"""The fewest that reproduce the published tiled float32 matmul, which runs at the DMA issue rate:
0.80 us a copy with 2 places, 0.608 with 3, published 0.604 (fitted)."""

SiteKey = tuple[int, Memory, int, int, str]
"""Site, memory, partitions, elements per partition, dtype."""


@dataclass(frozen=True, slots=True)
class SitePlacement:
    """How one allocation site was placed, for printing."""

    line: str
    memory: Memory
    shape: tuple[int, int]
    """Partitions, elements per partition."""
    dtype: str
    instances: int
    places: int
    bytes: int
    """Per partition, all places together."""

    def __str__(self) -> str:
        return (
            f"{self.line}  {self.memory} [{self.shape[0]}, {self.shape[1]}] {self.dtype}: "
            f"{self.instances} tiles in {self.places} places, {self.bytes:,} bytes per partition"
        )


@dataclass(frozen=True, eq=False, slots=True)
class Placement:
    """The physical place of every buffer, as columns with one entry per buffer."""

    memory: IntColumn
    """Index into `MEMORIES`."""
    address: IntColumn
    """First byte, in every partition on chip; 0 in HBM, where each buffer is a place of its own."""
    bytes: IntColumn
    """Per partition on chip; the whole buffer in HBM."""
    bank: IntColumn
    """First PSUM bank; -1 outside of PSUM."""
    place: IntColumn
    """Place number: equal for tiles that take turns in the same bytes."""
    overlaps: Mapping[int, tuple[int, ...]]
    """Places that share bytes with other places: which."""
    sites: tuple[SitePlacement, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.sites))


@dataclass(slots=True)
class _Site:
    """The places of one allocation site so far."""

    instances: int = 0
    live: list[Stretch] = field(default_factory=list)
    takeovers_seen: int = 0
    opened: int = 0
    bytes: int = 0

    def open(self, stretch: Stretch) -> Stretch:
        """Add a new place."""
        self.live.append(stretch)
        self.opened += 1
        self.bytes += stretch.bytes
        return stretch


def place_tiles(
    program: Program,
    machine: Machine,
    *,
    copies: int = DEFAULT_COPIES,
    live: LiveRanges | None = None,
) -> Placement:
    """Give every on-chip tile of a Program a place.

    Args:
        program: A valid Program.
        machine: Whose capacities hold.
        copies: Places of a site that allocates more than once.
        live: Live ranges of its buffers, if they are known.
    """
    first, last = live_ranges(program) if live is None else live
    spaces = {
        Memory.SBUF: AddressSpace(machine.limits.sbuf_usable_bytes),
        Memory.PSUM: AddressSpace(machine.limits.psum_bytes),
    }
    columns = program.buffer_columns
    count = len(program.buffers)
    place, address = [0] * count, [0] * count
    sites: dict[SiteKey, _Site] = {}
    places: dict[tuple[Memory, int, int], int] = {}
    """Place by memory, first byte and end: equal bytes are one place, whoever took them."""
    apart = 0
    order = np.argsort(first, kind="stable").tolist()
    begins, ends, sizes = first.tolist(), last.tolist(), _rounded(program, machine).tolist()
    for i in order:
        buffer = program.buffers[i]
        memory = buffer.memory
        space = spaces.get(memory)
        if space is None:
            apart -= 1
            place[i] = places.setdefault((memory, apart, apart), len(places))
            continue
        key = (buffer.site, memory, buffer.partitions, buffer.free_size, buffer.dtype.name)
        site = sites.get(key)
        if site is None:
            site = sites[key] = _Site()
        site.instances += 1
        if buffer.address is not None:
            end = buffer.address + buffer.partition_bytes
            known = len(places)
            place[i] = places.setdefault((memory, buffer.address, end), known)
            address[i] = buffer.address
            if place[i] == known:
                site.opened, site.bytes = site.opened + 1, site.bytes + buffer.partition_bytes
            continue
        stretch = _choose(space, site, sizes[i], begins[i], copies)
        stretch.busy_until = max(stretch.busy_until, ends[i])
        place[i] = places.setdefault((memory, stretch.address, stretch.end), len(places))
        address[i] = stretch.address
    addresses = np.array(address, dtype=np.int64)
    in_psum = columns.is_in(Memory.PSUM)
    return Placement(
        np.array(columns.memory),
        addresses,
        np.array(columns.pitch_bytes),
        np.where(in_psum, addresses // machine.limits.psum_bank_bytes, -1),
        np.array(place, dtype=np.int64),
        _overlaps(places),
        _describe(program, sites),
    )


def _rounded(program: Program, machine: Machine) -> IntColumn:
    """Return the bytes per partition to reserve for each buffer: whole banks in PSUM."""
    columns, bank = program.buffer_columns, machine.limits.psum_bank_bytes
    whole = -(-columns.pitch_bytes // bank) * bank
    return np.where(columns.is_in(Memory.PSUM), whole, columns.pitch_bytes)


def _choose(space: AddressSpace, site: _Site, size: int, now: int, copies: int) -> Stretch:
    if space.takeovers != site.takeovers_seen:
        site.live = [s for s in site.live if not s.is_retired]
        site.takeovers_seen = space.takeovers
    oldest: Stretch | None = None
    for stretch in site.live:
        if stretch.busy_until < now and (oldest is None or stretch.busy_until < oldest.busy_until):
            oldest = stretch
    if oldest is not None and len(site.live) >= copies:
        return oldest
    fresh = space.fresh(size, now)
    if fresh is not None:
        return site.open(fresh)
    if oldest is not None:
        return oldest
    taken = space.take_over(size, now)
    if taken is not None:
        return site.open(taken)
    # Capacity by liveness is the validator's business.  What it lets through and does not fit here
    # (fragments, or an old-generation kernel whose compiler would spill) gets space that is not
    # there, so that it waits for nobody.
    return site.open(space.beyond(size, now))


def _overlaps(places: Mapping[tuple[Memory, int, int], int]) -> dict[int, tuple[int, ...]]:
    """Return for each place the others that share bytes with it; those with none are left out."""
    shared: dict[int, set[int]] = {}
    open_memory: Memory | None = None
    open_ranges: list[tuple[int, int]] = []
    for (memory, start, end), number in sorted(places.items()):
        if memory != open_memory:
            open_memory, open_ranges = memory, []
        open_ranges = [(e, n) for e, n in open_ranges if e > start]
        for _, other in open_ranges:
            shared.setdefault(number, set()).add(other)
            shared.setdefault(other, set()).add(number)
        open_ranges.append((end, number))
    return {number: tuple(sorted(others)) for number, others in sorted(shared.items())}


def _describe(program: Program, sites: Mapping[SiteKey, _Site]) -> tuple[SitePlacement, ...]:
    return tuple(
        SitePlacement(
            str(program.sites[key[0]].place),
            key[1],
            (key[2], key[3]),
            key[4],
            site.instances,
            site.opened,
            site.bytes,
        )
        for key, site in sorted(sites.items(), key=lambda item: MEMORIES.index(item[0][1]))
    )
