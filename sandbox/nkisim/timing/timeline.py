"""When each instruction ran, on which lane, and what it waited for.  Integer picoseconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from nkisim.ir.program import IntColumn
from nkisim.machine.spec import Engine

ENGINES: tuple[Engine, ...] = tuple(Engine)
DMA_LANES: tuple[str, ...] = tuple(f"dma queue {engine.value}" for engine in ENGINES)
LANES: tuple[str, ...] = (*(engine.value for engine in ENGINES), *DMA_LANES)
"""Lane names: one for each engine, one for each engine's DMA queue."""
PS_PER_NS = 1000


class Wait(IntEnum):
    """What held an instruction's start back longest."""

    NOTHING = 0
    """The launch itself."""
    ENGINE = 1
    """The instruction before it on the same engine."""
    DATA = 2
    """A result that it reads."""
    REUSE = 3
    """A reader or writer of the memory that it overwrites."""
    QUEUE = 4
    """The issue rate of its DMA queue."""
    BANDWIDTH = 5
    """DMA engines or HBM busy with other copies."""
    PORT = 6
    """A port to SBUF or PSUM in use by an engine that excludes this one (trn1)."""


@dataclass(frozen=True, slots=True)
class Span:
    """Occupation of one lane by one instruction."""

    lane: str
    start_ps: int
    end_ps: int
    instruction: int
    wait: Wait
    predecessor: int | None
    """Position in the timeline of what it waited for."""


@dataclass(frozen=True, eq=False, slots=True)
class Timeline:
    """A schedule, one entry for each executed instruction, in executed order."""

    instruction: IntColumn
    """Instruction number in the Program."""
    lane: npt.NDArray[np.int64]
    """Index into `LANES`."""
    start_ps: IntColumn
    end_ps: IntColumn
    """Until when the lane is occupied."""
    result_ps: IntColumn
    """From when the result may be used."""
    wait: npt.NDArray[np.int64]
    predecessor: IntColumn
    """Entry that it waited for, -1 for none."""
    launch_before_ps: int
    launch_after_ps: int

    def __len__(self) -> int:
        return len(self.instruction)

    @property
    def latency_ps(self) -> int:
        """From launch to the end, fixed costs included."""
        last = int(self.result_ps.max()) if len(self) else self.launch_before_ps
        return last + self.launch_after_ps

    def span(self, entry: int) -> Span:
        """Return one entry as an object."""
        before = int(self.predecessor[entry])
        return Span(
            LANES[int(self.lane[entry])],
            int(self.start_ps[entry]),
            int(self.end_ps[entry]),
            int(self.instruction[entry]),
            Wait(int(self.wait[entry])),
            None if before < 0 else before,
        )

    def busy_ps(self) -> dict[str, int]:
        """Return how long each used lane is occupied."""
        totals = np.bincount(
            self.lane, weights=(self.end_ps - self.start_ps).astype(float), minlength=len(LANES)
        )
        return {LANES[i]: int(total) for i, total in enumerate(totals) if total > 0}

    def critical_path(self) -> list[int]:
        """Return the entries of the chain that ends last, first to last."""
        if not len(self):
            return []
        entry = int(np.argmax(self.result_ps))
        path = [entry]
        while (entry := int(self.predecessor[entry])) >= 0:
            path.append(entry)
        return path[::-1]
