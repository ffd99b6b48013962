"""Input arrays for the judge: the same bits on every machine.

numpy promises that the raw output of `Philox` never changes but makes no such promise for its
distributions.  So the bits are raw Philox words, and everything after them is ours: exact integer
arithmetic, one conversion to float32 (all integers used are below 2**24, hence exact) and IEEE
multiplications and additions that no library may reorder.  The last step rounds to the dtype.

The bell-shaped family is the sum of four 16-bit uniform lanes of one word (Irwin-Hall): mean 0,
standard deviation 1, no value beyond 3.47; `large` and `overflow` supply what is farther out.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from nkisim.dtypes import DTYPES

if TYPE_CHECKING:
    from nkisim.dtypes import DType

Array = npt.NDArray[np.generic]

_CHUNK = 1 << 17
"""Elements per step: keeps the temporaries in the cache."""
_LANES = np.uint64(0x0000_FFFF_0000_FFFF)
_LOW = np.uint64(0xFFFF_FFFF)
_LANE_SUM_MEAN = np.float32(2 * 0xFFFF)
_LANE_SUM_DEVIATION = math.sqrt(4 * (2.0**32 - 1.0) / 12.0)
_LARGE = 64.0
_OVERFLOW_OFFSET = 96.0
"""exp(96) is beyond float32: a kernel that does not subtract the maximum first fails."""
_DEFAULT_INTEGER_BOUND = 64


class Family(StrEnum):
    """How the values of an input are distributed; each family provokes another kind of mistake."""

    NORMAL = "normal"
    """Bell-shaped around 0 with standard deviation `scale`."""
    UNIFORM = "uniform"
    """Even between `low` and `high`, or between -`scale` and `scale`."""
    LARGE = "large"
    """`normal`, 64 times larger: accumulation order, exponent range."""
    ZEROS = "zeros"
    """Three quarters of the elements and a fifth of the rows are 0: division, epsilon, masks."""
    TIES = "ties"
    """Only the values -2, -1, 0, 1, 2 (times `scale`): maxima and comparisons that tie."""
    OVERFLOW = "overflow"
    """`normal` around 96: a naive exponential overflows float32, a naive variance cancels."""


def draw(
    dtype: str,
    shape: Sequence[int],
    *,
    key: Sequence[int | str],
    family: Family = Family.NORMAL,
    low: float | None = None,
    high: float | None = None,
    scale: float = 1.0,
) -> Array:
    """Draw one array, bit-identical for the same arguments on any machine.

    Args:
        dtype: NKI name of the dtype drawn in; the values are exactly representable in it.
        shape: Shape of the array.
        key: What tells this draw from others (seed, input name); equal keys give equal bits.
        family: Distribution; integers know `zeros` and are otherwise uniform.
        low: Smallest value allowed, or None for the dtype's own limit.
        high: Largest value allowed (integers may reach it), or None for the dtype's own limit.
        scale: Standard deviation of `normal`, and the factor of the other families.
    """
    kind = DTYPES[dtype]
    if kind.is_float and kind.itemsize == 1:
        low = kind.min if low is None else low
        high = kind.max if high is None else high
    rows = math.prod(shape[:-1])
    count = rows * (shape[-1] if shape else 1)
    out = np.empty(count, kind.storage)
    words = _words(key, family, "values")
    for start in range(0, count, _CHUNK):
        block = out[start : start + _CHUNK]
        if kind.is_integer:
            block[...] = _integers(words, block.size, kind, low, high)
        else:
            with np.errstate(over="ignore"):
                block[...] = _floats(words, block.size, family, low, high, scale)
    if family is Family.ZEROS and kind.kind != "bool":
        zero = min(max(0.0, kind.min if low is None else low), kind.max if high is None else high)
        _blank(out, zero, key, rows)
    return out.reshape(tuple(shape))


def sha256(arrays: Mapping[str, Array]) -> str:
    """Return the hash of named arrays: names, dtypes, shapes and bytes, in the order given."""
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f"{name}:{array.dtype.name}:{list(array.shape)}\n".encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()


def _words(key: Sequence[int | str], *purpose: str) -> np.random.Philox:
    """Return a generator of raw 64-bit words for one purpose under one key."""
    text = "\x1f".join(str(part) for part in (*key, *purpose))
    digest = hashlib.sha256(text.encode()).digest()
    return np.random.Philox(key=int.from_bytes(digest[:16], "little"))


def _bell(words: np.random.Philox, count: int) -> npt.NDArray[np.float32]:
    """Return sums of four 16-bit lanes less their mean: whole numbers within ±131070."""
    raw = words.random_raw(count)
    other = raw >> np.uint64(16)
    other &= _LANES
    raw &= _LANES
    raw += other
    np.right_shift(raw, np.uint64(32), out=other)
    raw += other
    raw &= _LOW
    sums = raw.view(np.int64).astype(np.float32)
    sums -= _LANE_SUM_MEAN
    return sums


def _even(words: np.random.Philox, count: int) -> npt.NDArray[np.int64]:
    """Return whole numbers evenly spread over 0 … 2**24 - 1."""
    raw = words.random_raw(count)
    raw >>= np.uint64(40)
    return raw.view(np.int64)


def _floats(
    words: np.random.Philox,
    count: int,
    family: Family,
    low: float | None,
    high: float | None,
    scale: float,
) -> npt.NDArray[np.float32]:
    """Return one block of float32 values of a family."""
    if family is Family.UNIFORM:
        bottom = -scale if low is None else low
        top = scale if high is None else high
        values = _even(words, count).astype(np.float32)
        values *= np.float32((top - bottom) * 2.0**-24)
        values += np.float32(bottom)
    elif family is Family.TIES:
        values = ((_even(words, count) * 5 >> 24) - 2).astype(np.float32)
        values *= np.float32(scale)
    else:
        factor = scale * (_LARGE if family is Family.LARGE else 1.0) / _LANE_SUM_DEVIATION
        values = _bell(words, count)
        values *= np.float32(factor)
        if family is Family.OVERFLOW:
            values += np.float32(_OVERFLOW_OFFSET)
    if low is not None or high is not None:
        np.clip(
            values,
            None if low is None else np.float32(low),
            None if high is None else np.float32(high),
            out=values,
        )
    return values


def _integers(
    words: np.random.Philox, count: int, kind: DType, low: float | None, high: float | None
) -> npt.NDArray[np.int64]:
    """Return one block of integers evenly spread over [low, high]."""
    if kind.kind == "bool":
        bottom, top = 0, 1
    else:
        bottom = max(int(kind.min), -_DEFAULT_INTEGER_BOUND if low is None else math.ceil(low))
        top = min(int(kind.max), _DEFAULT_INTEGER_BOUND if high is None else math.floor(high))
    high_bits = words.random_raw(count) >> np.uint64(32)
    return (high_bits * np.uint64(top - bottom + 1) >> np.uint64(32)).astype(np.int64) + bottom


def _blank(out: Array, zero: float, key: Sequence[int | str], rows: int) -> None:
    """Set three quarters of the elements and a fifth of the rows to the legal value nearest 0."""
    words = _words(key, "blank")
    for start in range(0, out.size, _CHUNK):
        block = out[start : start + _CHUNK]
        bits = np.unpackbits(words.random_raw(-(-block.size // 32)).view(np.uint8))
        block[(bits[::2] | bits[1::2])[: block.size].view(np.bool_)] = zero
    if rows > 1:
        out.reshape(rows, -1)[_even(words, rows) * 5 >> 24 == 0] = zero
