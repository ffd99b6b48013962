"""Bytes per partition of one on-chip memory, handed out as stretches.

Never-used space comes first, then the space whose tenants have been dead longest.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field


@dataclass(slots=True)
class Stretch:
    """A byte range of every partition in which tiles take turns."""

    address: int
    bytes: int
    busy_until: int
    """Last instruction that uses the present tenant."""
    is_retired: bool = False
    """Whether its space was given to another stretch."""

    @property
    def end(self) -> int:
        """First byte behind it."""
        return self.address + self.bytes

    def is_dead(self, now: int) -> bool:
        """Whether nothing in it is used from instruction `now` on."""
        return self.busy_until < now


@dataclass(slots=True)
class AddressSpace:
    """One on-chip memory while it is being filled."""

    limit: int
    """Bytes per partition."""
    top: int = 0
    """Space from here to `limit` was never used."""
    beyond_top: int = 0
    """End of what was handed out although it is not there."""
    takeovers: int = 0
    """How often stretches were retired."""
    stretches: list[Stretch] = field(default_factory=list)
    """Those not retired, by address."""

    def fresh(self, size: int, now: int) -> Stretch | None:
        """Return never-used space, or None if there is too little."""
        if self.top + size > self.limit:
            return None
        stretch = Stretch(self.top, size, now)
        self.top += size
        self.stretches.append(stretch)
        return stretch

    def take_over(self, size: int, now: int) -> Stretch | None:
        """Return the space of dead tenants, least recently used first, or None.

        Every stretch that it cuts into is retired.
        """
        best: tuple[int, int] | None = None
        starts = {0, *(s.end for s in self.stretches), *(s.address for s in self.stretches)}
        first = 0
        for start in sorted(starts):
            end, freed = start + size, -1
            if end > self.limit:
                break
            while first < len(self.stretches) and self.stretches[first].end <= start:
                first += 1
            for s in self.stretches[first:]:
                if s.address >= end:
                    break
                if not s.is_dead(now):
                    freed = now
                    break
                freed = max(freed, s.busy_until)
            if freed < now and (best is None or (freed, start) < best):
                best = (freed, start)
        if best is None:
            return None
        start = best[1]
        self.takeovers += 1
        for s in self.stretches:
            if s.address < start + size and start < s.end:
                s.is_retired = True
        self.stretches = [s for s in self.stretches if not s.is_retired]
        self.top = max(self.top, start + size)
        stretch = Stretch(start, size, now)
        insort(self.stretches, stretch, key=lambda s: s.address)
        return stretch

    def beyond(self, size: int, now: int) -> Stretch:
        """Return space behind the limit, for what fits nowhere; nobody shares it."""
        start = max(self.limit, self.beyond_top)
        self.beyond_top = start + size
        return Stretch(start, size, now)
