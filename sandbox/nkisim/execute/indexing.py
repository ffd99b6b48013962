"""Accesses whose address depends on values at run time.

A scalar index moves the whole access.  A vector index chooses the row of each partition: such an
operand is gathered into a temporary before the instruction and scattered back after it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nkisim.dtypes import Array
from nkisim.errors import KernelError
from nkisim.execute.plan import Slot
from nkisim.execute.storage import Bytes
from nkisim.ir.program import Index, IntColumn, Operand


def scalar_value(source: Array) -> int:
    """Return the value of a register or one-element tile."""
    return int(source.reshape(-1)[0])


def out_of_bounds(op: str, operand: Operand, index: Index, value: int) -> KernelError:
    """Return the error for an index value that is not legal."""
    return KernelError(
        "NKS402",
        f"{op}: run-time index of {operand.role} is {value}, out of bounds",
        got=f"{operand}, {index.kind} index {value}",
        allowed=f"0 ≤ index < {index.bound}",
        hint="clamp the index, or pass oob_mode=nisa.oob_mode.skip to leave such rows untouched",
    )


def scalar_offset(
    op: str, operand: Operand, offset_bytes: int, value: int, buffer_bytes: int
) -> int | None:
    """Return the byte offset of an access moved by a scalar index, None if it is to be skipped.

    Raises:
        KernelError: The index is out of bounds and the access does not skip.
    """
    index, pattern = operand.index, operand.pattern
    assert index is not None
    size = pattern.dtype.itemsize
    moved = offset_bytes + value * index.step * size
    low = moved + pattern.reach_low * size
    high = moved + (pattern.reach_high + 1) * size
    if 0 <= value < index.bound and low >= 0 and high <= buffer_bytes:
        return moved
    if index.is_skip:
        return None
    raise out_of_bounds(op, operand, index, value)


@dataclass(slots=True)
class Rows:
    """An operand whose rows a vector index chooses."""

    position: int
    table: Array
    """Every row that may be chosen, a window on the buffer."""
    values: IntColumn
    """Chosen rows; those out of bounds hold 0."""
    is_valid: npt.NDArray[np.bool_]
    temporary: Array
    """What the instruction sees."""
    step_bytes: int
    offset_bytes: int

    @property
    def has_duplicates(self) -> bool:
        """Whether two partitions choose one row."""
        chosen = self.values[self.is_valid]
        return len(np.unique(chosen)) < len(chosen)

    def write_back(self) -> None:
        """Scatter the temporary into the buffer; the last of several equal rows wins."""
        if self.is_valid.all():
            self.table[self.values] = self.temporary
        else:
            self.table[self.values[self.is_valid]] = self.temporary[self.is_valid]


def choose_rows(
    op: str,
    operand: Operand,
    slot: Slot,
    position: int,
    storage: Bytes,
    offset_bytes: int,
    source: Array,
) -> Rows:
    """Resolve a vector index; gathers the rows if the instruction reads them.

    Raises:
        KernelError: A row is out of bounds and the access does not skip.
    """
    index, pattern = operand.index, operand.pattern
    assert index is not None
    size = pattern.dtype.itemsize
    tail = list(zip(pattern.counts[1:], slot.strides[1:], strict=True))
    low = sum(min(0, (count - 1) * stride) for count, stride in tail)
    high = sum(max(0, (count - 1) * stride) for count, stride in tail) + size
    step = index.step * size
    fits = index.bound
    if offset_bytes + low < 0 or offset_bytes + high > storage.nbytes:
        fits = 0
    elif step > 0:
        fits = min(fits, (storage.nbytes - offset_bytes - high) // step + 1)
    elif step < 0:
        fits = min(fits, (offset_bytes + low) // -step + 1)
    values = source.reshape(-1).astype(np.int64)
    is_valid = (values >= 0) & (values < fits)
    if not is_valid.all():
        if not index.is_skip:
            raise out_of_bounds(op, operand, index, int(values[~is_valid][0]))
        values = np.where(is_valid, values, 0)
    shape = (max(1, fits), *pattern.counts[1:])
    if fits:
        table: Array = np.ndarray(
            shape, slot.dtype, storage, offset_bytes, (step, *slot.strides[1:])
        )
    else:
        table = np.zeros(shape, slot.dtype)
    temporary = table[values] if slot.reads else np.empty(pattern.counts, slot.dtype)
    return Rows(position, table, values, is_valid, temporary, step, offset_bytes)


def occurrence(values: IntColumn) -> IntColumn:
    """Return for each value how many equal ones stand before it."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    lengths = np.diff(np.r_[starts, len(values)])
    ranks = np.arange(len(values)) - np.repeat(starts, lengths)
    result = np.empty(len(values), dtype=np.int64)
    result[order] = ranks
    return result
