"""Runs instructions some of whose iterations are masked out by inequalities.

The instruction computes all of its box on copies of what it writes; only what the mask leaves goes
back.  Reads, writes and matmul results are noted for those elements alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from nkisim.dtypes import Array
from nkisim.execute.coverage import Coverage, elements, flag_view
from nkisim.ops.masks import Flags
from nkisim.ops.registry import Run, State

if TYPE_CHECKING:
    from nkisim.ir.access import Pattern


def masked_run(run: Run, flags: Sequence[Flags], written: Sequence[int]) -> Run:
    """Return a closure that writes only the elements with their flag set.

    Args:
        run: The instruction over its whole box.
        flags: For each operand which elements iterations touch.
        written: Positions of the operands that it writes.
    """

    def wrapped(state: State, views: Sequence[Array]) -> None:
        seen = list(views)
        for position in written:
            seen[position] = views[position].copy()
        run(state, seen)
        for position in written:
            np.copyto(views[position], seen[position], where=flags[position])

    return wrapped


def missing(
    coverage: Coverage, buffer: int, pattern: Pattern, offset_bytes: int, flags: Flags
) -> tuple[int, int] | None:
    """Return how many bytes under the mask are unwritten, and the first of them; or None."""
    view = coverage.view(buffer, pattern, offset_bytes)
    if view is None:
        return None
    bad = flags & ~elements(view, pattern, coverage.grain[buffer])
    if not bad.any():
        return None
    where = np.argwhere(bad)
    size = pattern.dtype.itemsize
    first = offset_bytes + int(np.dot(where[0], pattern.strides)) * size
    return len(where) * size, first


def spread(flags: Flags, pattern: Pattern, grain: int) -> Flags:
    """Return flags of elements as flags of grains, which are no larger, in coverage's shape."""
    seen = flag_view(pattern, grain)
    outer = flags.reshape(*seen.shape[:-1], seen.run)
    return np.repeat(outer, pattern.dtype.itemsize // grain, axis=-1)
