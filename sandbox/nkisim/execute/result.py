"""What an execution yields."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np

from nkisim.dtypes import Array
from nkisim.errors import Diagnostic
from nkisim.ir.program import IntColumn, Program


@dataclass(frozen=True, eq=False, kw_only=True)
class TripLog:
    """What the timer must know of a run whose time depends on values."""

    executed: IntColumn
    """Instruction numbers in executed order."""
    loop_trips: tuple[tuple[int, ...], ...]
    """For each loop, the trips of each time it was entered."""
    position: IntColumn
    """For each executed access with a run-time index: index into `executed`."""
    operand: IntColumn
    """Which operand of the instruction's form."""
    low: IntColumn
    """First element that it touched, from the buffer's start; 0 for none."""
    high: IntColumn
    """Last element that it touched; -1 for none."""
    rows: IntColumn
    """Rows that it moved: 1 for a scalar index, those in bounds for a vector index."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Execution:
    """Results of one run of a Program."""

    outputs: tuple[Array, ...]
    """What the kernel returned."""
    written_arguments: dict[int, Array]
    """New value of each argument that the kernel stores into, by position."""
    trips: TripLog | None
    """None if time does not depend on values."""
    instructions_executed: int
    warnings: tuple[Diagnostic, ...] = ()


@dataclass(slots=True)
class TripRecorder:
    """Collects a `TripLog` during a run."""

    program: Program
    segments: list[tuple[int, int]] = field(default_factory=list)
    trips: list[list[int]] = field(default_factory=list)
    columns: array[int] = field(default_factory=lambda: array("q"))

    def __post_init__(self) -> None:
        self.trips = [[] for _ in self.program.loops]

    def access(self, position: int, operand: int, low: int, high: int, rows: int) -> None:
        """Note one access with a run-time index."""
        self.columns.extend((position, operand, low, high, rows))

    def log(self) -> TripLog:
        """Return what was collected."""
        pieces = [np.arange(a, b, dtype=np.int64) for a, b in self.segments if b > a]
        table = np.array(self.columns, dtype=np.int64).reshape(-1, 5)
        return TripLog(
            executed=np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int64),
            loop_trips=tuple(map(tuple, self.trips)),
            position=table[:, 0],
            operand=table[:, 1],
            low=table[:, 2],
            high=table[:, 3],
            rows=table[:, 4],
        )
