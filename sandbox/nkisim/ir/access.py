"""Access patterns: which elements of a buffer an operand touches.

Every buffer is stored flat and row-major.  An access is `(buffer, offset, pattern)`; the pattern
holds counts and strides in elements of its own dtype, outermost first.  On chip the first count is
the partition count and its stride the buffer's elements per partition (or 0 for a broadcast), so
slices, reshapes, broadcasts, `.ap()` and dtype views are all the same thing, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import prod

from nkisim.dtypes import DType


class Memory(StrEnum):
    """Where a buffer lives."""

    HBM = "hbm"
    SBUF = "sbuf"
    PSUM = "psum"
    REGISTER = "register"

    @property
    def is_on_chip(self) -> bool:
        """Whether tiles here have partitions."""
        return self in (Memory.SBUF, Memory.PSUM)


@dataclass(frozen=True)
class Pattern:
    """Counts and strides of an access, without buffer and offset.

    Interned: equal patterns are one object within a Program.
    """

    counts: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType

    @cached_property
    def size(self) -> int:
        """Elements in all."""
        return prod(self.counts)

    @property
    def partitions(self) -> int:
        """First count: partitions of an on-chip access."""
        return self.counts[0] if self.counts else 1

    @cached_property
    def free_size(self) -> int:
        """Elements per partition of an on-chip access."""
        return prod(self.counts[1:])

    @cached_property
    def free_strides_merged(self) -> tuple[tuple[int, int], ...]:
        """Free dimensions as (count, stride), size-1 dropped and contiguous neighbours merged."""
        merged: list[tuple[int, int]] = []
        for count, stride in zip(self.counts[1:], self.strides[1:], strict=True):
            if count == 1:
                continue
            if merged and merged[-1][1] == stride * count:
                merged[-1] = (merged[-1][0] * count, stride)
            else:
                merged.append((count, stride))
        return tuple(merged)

    @property
    def is_free_contiguous(self) -> bool:
        """Whether the elements of one partition are adjacent."""
        merged = self.free_strides_merged
        return not merged or (len(merged) == 1 and merged[0][1] == 1)

    @property
    def inner_stride(self) -> int:
        """Stride of the innermost dimension with more than one element, in elements."""
        merged = self.free_strides_merged
        return merged[-1][1] if merged else 1

    @cached_property
    def reach_low(self) -> int:
        """Smallest element offset touched, relative to the access offset (≤ 0)."""
        return sum(min(0, (c - 1) * s) for c, s in zip(self.counts, self.strides, strict=True))

    @cached_property
    def reach_high(self) -> int:
        """Largest element offset touched, relative to the access offset."""
        return sum(max(0, (c - 1) * s) for c, s in zip(self.counts, self.strides, strict=True))

    @cached_property
    def run(self) -> int:
        """Elements of the longest contiguous innermost run, over all dimensions."""
        run = 1
        for count, stride in zip(reversed(self.counts), reversed(self.strides), strict=True):
            if count == 1:
                continue
            if stride != run:
                break
            run *= count
        return run

    def __str__(self) -> str:
        dims = ", ".join(f"{c}:{s}" for c, s in zip(self.counts, self.strides, strict=True))
        return f"[{dims}] {self.dtype}"
