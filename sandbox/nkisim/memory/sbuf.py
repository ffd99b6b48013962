"""Partitions of on-chip memory: where tiles and accesses may start.

Source: NKI programming model, partition dimension; start-partition rule of the engines' access
patterns: an access of more than 64 partitions starts at 0, of 33 to 64 at 0 or 64, of up to 32 at
a multiple of 32.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nkisim.ir.program import IntColumn

QUADRANT = 32
"""Partitions that share a starting point."""


def start_step(partitions: int) -> int:
    """Return the multiple at which an access of `partitions` partitions may start."""
    return 32 if partitions <= 32 else 64 if partitions <= 64 else 128


def legal_starts(partitions: int, limit: int = 128) -> tuple[int, ...]:
    """Return the partitions at which an access of `partitions` partitions may start."""
    return tuple(range(0, limit, start_step(partitions)))


def is_legal_start(start: IntColumn, partitions: IntColumn) -> npt.NDArray[np.bool_]:
    """Return which accesses obey the start-partition rule."""
    step = np.where(partitions <= 32, 32, np.where(partitions <= 64, 64, 128))
    return np.equal(start % step, 0)
