"""The DMA engines that move bytes, the queues that feed them, and the HBM port."""

from __future__ import annotations

from dataclasses import dataclass

from nkisim.machine.spec import Machine
from nkisim.ops.registry import DmaCost
from nkisim.timing.timeline import ENGINES, PS_PER_NS, Wait


@dataclass(frozen=True, slots=True)
class DmaWork:
    """What one copy asks of the DMA engines, in picoseconds."""

    engines: int
    """DMA engines over which it spreads."""
    engine_ps: int
    """Time on each of them."""
    hbm_ps: int
    """Time on the HBM port."""
    is_software_generated: bool

    @classmethod
    def of(cls, cost: DmaCost, machine: Machine) -> DmaWork:
        """Turn the work of a DMA instruction into time."""
        dma = machine.dma
        moved = max(
            cost.bytes_written, cost.bytes_read, cost.descriptors * dma.descriptor_bytes_min
        )
        rate = cost.engines_used * dma.bytes_per_ns_per_engine * cost.rate_fraction
        return cls(
            min(cost.engines_used, dma.engines),
            max(1, round(moved / rate * PS_PER_NS)),
            round(cost.hbm_bytes / dma.hbm_bytes_per_ns * PS_PER_NS),
            cost.is_software_generated,
        )


class DmaState:
    """Who has claimed what until when.  Copies come in the order in which they become ready."""

    def __init__(self, machine: Machine, before_ps: int) -> None:
        self.issue_ps = round(machine.dma.issue_interval_ns * PS_PER_NS)
        self.trigger_ps = round(machine.dma.trigger_ns * PS_PER_NS)
        self.complete_ps = round(machine.dma.complete_ns * PS_PER_NS)
        self.issue_free = [before_ps] * len(ENGINES)
        """Earliest issue of the next copy, by queue."""
        self.issue_last = [-1] * len(ENGINES)
        self.engine_free = [before_ps] * machine.dma.engines
        """Sorted: which DMA engine a copy gets does not matter, only when."""
        self.hbm_free = before_ps
        self.last = -1

    def transfer(
        self, queue: int, work: DmaWork, ready: int, entry: int
    ) -> tuple[int, int, Wait | None, int]:
        """Return (issue, last byte, what delayed it beyond `ready`, by whom) of one copy."""
        issued, why, blocker = ready, None, -1
        if self.issue_free[queue] > issued:
            issued, why, blocker = self.issue_free[queue], Wait.QUEUE, self.issue_last[queue]
        self.issue_free[queue] = issued + self.issue_ps
        self.issue_last[queue] = entry
        moving = issued + self.trigger_ps
        start = max(moving, self.engine_free[work.engines - 1])
        end = start + work.engine_ps
        self.engine_free[: work.engines] = [end] * work.engines
        if work.engines < len(self.engine_free):
            self.engine_free.sort()
        if work.hbm_ps:
            hbm_start = max(moving, self.hbm_free)
            self.hbm_free = hbm_start + work.hbm_ps
            if self.hbm_free > end:
                end = self.hbm_free
                start = max(start, hbm_start)
        if start > moving:
            why, blocker = Wait.BANDWIDTH, self.last
        self.last = entry
        return issued, end, why, blocker
