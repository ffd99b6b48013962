"""Storage of buffers during a run: taken at first use, given back after the last.

Reuse matters more than anything else here: fresh memory costs page faults, a tile that was in use
a moment ago sits in the cache.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nkisim.ir.program import Buffer, IntColumn

Bytes = npt.NDArray[np.uint8]


class Pool:
    """Free blocks by size.

    Args:
        max_free_bytes: Free blocks above this are given to the operating system.
    """

    def __init__(self, max_free_bytes: int = 1 << 28) -> None:
        self._free: dict[int, list[Bytes]] = {}
        self._free_bytes = 0
        self._max_free_bytes = max_free_bytes

    def take(self, size: int) -> Bytes:
        """Return a block of `size` bytes with arbitrary content."""
        blocks = self._free.get(size)
        if blocks:
            self._free_bytes -= size
            return blocks.pop()
        return np.empty(size, dtype=np.uint8)

    def give(self, block: Bytes) -> None:
        """Take back a block that nothing refers to any more."""
        if self._free_bytes + block.nbytes > self._max_free_bytes:
            return
        self._free_bytes += block.nbytes
        self._free.setdefault(block.nbytes, []).append(block)


def poison(block: Bytes, buffer: Buffer) -> None:
    """Fill with NaN, with -1 or the largest value in integers, with True in booleans."""
    block.fill(1 if buffer.dtype.kind == "bool" else 0xFF)


def fill(block: Bytes, buffer: Buffer, value: float) -> None:
    """Set every element to `value`."""
    typed = block.view(buffer.dtype.storage)
    if buffer.dtype.is_integer and buffer.dtype.kind != "bool":
        info = np.iinfo(buffer.dtype.storage)  # type: ignore[type-var]
        value = 0 if value != value else int(min(max(round_half_even(value), info.min), info.max))
    with np.errstate(all="ignore"):
        typed[...] = np.array(value).astype(typed.dtype)


def round_half_even(value: float) -> float:
    """Round to the nearest integer, infinities stay."""
    return float(np.rint(value))


def peak_bytes(first: IntColumn, last: IntColumn, sizes: IntColumn, instructions: int) -> int:
    """Return the most bytes alive at one time."""
    change = np.zeros(instructions + 2, dtype=np.float64)
    used = last >= first
    np.add.at(change, first[used], sizes[used])
    np.subtract.at(change, last[used] + 1, sizes[used])
    return int(np.cumsum(change).max(initial=0))
