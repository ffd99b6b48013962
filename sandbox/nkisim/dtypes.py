"""The dtypes of NKI and the one place where values change dtype.

Engines compute in float32 and round once when they write.  Conversions to integers round to
nearest even and saturate; conversions between float formats round to nearest even (numpy and
ml_dtypes do).  Source: NKI data types page and the 0.6 release notes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
NumberClass = Literal["float", "int", "uint", "bool", "packed"]


class DType:
    """One NKI dtype.

    Compares equal to its name, to the numpy dtype that stores it and to numpy scalar types, as
    kernels compare all of these.  No dataclass: `dataclasses.asdict` of a record that holds a
    dtype must keep it.

    Attributes:
        name: Name in `nki.language`.
        storage: How one element is stored; `tfloat32` is stored as float32.
        kind: What its values are.
        mantissa_bits: Explicit mantissa bits of a float format.
    """

    __slots__ = ("kind", "mantissa_bits", "name", "storage")

    def __init__(
        self,
        name: str,
        storage: np.dtype[np.generic],
        kind: NumberClass,
        mantissa_bits: int | None = None,
    ) -> None:
        self.name = name
        self.storage = storage
        self.kind = kind
        self.mantissa_bits = mantissa_bits

    def __reduce__(self) -> tuple[object, ...]:
        return lookup, (self.name,)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.storage.itemsize

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The numpy dtype, so that `np.dtype(nl.bfloat16)` works."""
        return self.storage

    @property
    def is_float(self) -> bool:
        """Whether this is a floating-point format."""
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """Whether this is an integer or boolean format."""
        return self.kind in ("int", "uint", "bool")

    @property
    def eps(self) -> float:
        """Distance from 1.0 to the next value; 1.0 for integers."""
        return 1.0 if self.mantissa_bits is None else 2.0**-self.mantissa_bits

    @property
    def min(self) -> float:
        """Lowest finite value (`nl.fp32.min`)."""
        if self.is_float:
            return float(ml_dtypes.finfo(self.storage).min)  # type: ignore[no-untyped-call]
        return float(-(1 << (8 * self.itemsize - 1))) if self.kind == "int" else 0.0

    @property
    def max(self) -> float:
        """Largest finite value."""
        if self.is_float:
            return float(ml_dtypes.finfo(self.storage).max)  # type: ignore[no-untyped-call]
        if self.kind == "bool":
            return 1.0
        return float((1 << (8 * self.itemsize - (self.kind == "int"))) - 1)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DType):
            return self.name == other.name
        if isinstance(other, str):
            return self.name == other or (self.name == "bool" and other == "bool_")
        if isinstance(other, (np.dtype, type)):
            found = lookup(other)
            return found is not None and found.name == self.name
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__


def _table() -> dict[str, DType]:
    def d(
        name: str, storage: object, kind: NumberClass, mantissa: int | None = None
    ) -> tuple[str, DType]:
        return name, DType(name, np.dtype(storage), kind, mantissa)  # type: ignore[call-overload]

    return dict(
        [
            d("float32", np.float32, "float", 23),
            d("bfloat16", ml_dtypes.bfloat16, "float", 7),
            d("float16", np.float16, "float", 10),
            d("tfloat32", np.float32, "float", 10),
            d("float8_e4m3", ml_dtypes.float8_e4m3, "float", 3),
            d("float8_e4m3fn", ml_dtypes.float8_e4m3fn, "float", 3),
            d("float8_e5m2", ml_dtypes.float8_e5m2, "float", 2),
            d("float8_e8m0fnu", ml_dtypes.float8_e8m0fnu, "float", 0),
            d("int32", np.int32, "int"),
            d("uint32", np.uint32, "uint"),
            d("int16", np.int16, "int"),
            d("uint16", np.uint16, "uint"),
            d("int8", np.int8, "int"),
            d("uint8", np.uint8, "uint"),
            d("bool", np.bool_, "bool"),
            d("float8_e5m2_x4", np.uint32, "packed"),
            d("float8_e4m3fn_x4", np.uint32, "packed"),
            d("float4_e2m1fn_x4", np.uint16, "packed"),
        ]
    )


DTYPES: dict[str, DType] = _table()
"""Every dtype by NKI name.  The order is part of the encoded Program: append only."""

_BY_STORAGE = {
    d.storage: d for d in reversed(DTYPES.values()) if d.kind != "packed" and d.name != "tfloat32"
}


def lookup(value: object) -> DType | None:
    """Return the DType that `value` (DType, name, numpy dtype or scalar type) names, or None."""
    if isinstance(value, DType):
        return value
    if isinstance(value, str):
        if value in DTYPES:
            return DTYPES[value]
        value = {"bool_": "bool", "fp32": "float32", "bfp16": "bfloat16"}.get(value, value)
        return DTYPES.get(value)
    if value is bool:
        return DTYPES["bool"]
    if value is int:
        return DTYPES["int32"]
    if value is float:
        return DTYPES["float32"]
    try:
        return _BY_STORAGE.get(np.dtype(value))  # type: ignore[call-overload]
    except TypeError:
        return None


def to_float32(values: Array) -> npt.NDArray[np.float32]:
    """Return `values` as float32; a view if they are float32 already.

    Narrow floats go through a table or through their bits, several times as fast as a cast.
    """
    dtype = values.dtype
    if dtype == _FLOAT32:
        return values  # type: ignore[return-value]
    if dtype == _BFLOAT16:
        wide = values.view(np.uint16).astype(np.uint32)
        wide <<= np.uint32(16)
        return wide.view(np.float32)
    if dtype in _TABULATED:
        return _decoded(dtype).take(values.view(_UNSIGNED[dtype.itemsize]))
    return values.astype(np.float32)


_FLOAT32 = np.dtype(np.float32)
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_UNSIGNED: dict[int, np.dtype[np.generic]] = {size: np.dtype(f"u{size}") for size in (1, 2, 4)}
_TABULATED = frozenset(
    d.storage for d in DTYPES.values() if d.is_float and (d.itemsize == 1 or d.name == "float16")
)


@lru_cache(maxsize=16)
def _decoded(dtype: np.dtype[np.generic]) -> npt.NDArray[np.float32]:
    """Return the float32 value of every bit pattern of a float dtype of one or two bytes."""
    codes = np.arange(1 << (8 * dtype.itemsize), dtype=np.uint32).astype(_UNSIGNED[dtype.itemsize])
    return codes.view(dtype).astype(np.float32)


def round_tfloat32(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Round float32 to tfloat32 (10 explicit mantissa bits), nearest even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    rounded &= np.uint32(0xFFFFE000)
    return np.where(np.isfinite(values), rounded.view(np.float32), values)


def store(dst: Array, values: Array, dtype: DType) -> None:
    """Write `values` (float32, or dst's own dtype) into `dst`, a view of `dtype` elements.

    Floats round to nearest even; integers round to nearest even and saturate; NaN becomes 0 in an
    integer.  Shapes must broadcast; ranks may differ if the element counts agree.
    """
    if values.shape != dst.shape and values.size == dst.size:
        values = values.reshape(dst.shape)
    if dtype.name == "tfloat32":
        dst[...] = round_tfloat32(to_float32(values))
    elif values.dtype == dst.dtype:
        dst[...] = values
    elif dst.dtype == _BFLOAT16 and values.dtype == _FLOAT32 and _is_worth_bits(values):
        _store_bfloat16(dst, values)
    elif dtype.is_float:
        with np.errstate(over="ignore", invalid="ignore"):
            dst[...] = values
    elif dtype.kind == "bool":
        dst[...] = values != 0
    elif values.dtype.kind in "iub":
        dst[...] = np.clip(values.astype(np.int64), int(dtype.min), int(dtype.max))
    elif values.size and dtype.min <= float(values.min()) and float(values.max()) <= dtype.max:
        dst[...] = np.rint(values)
    else:
        # float32 holds every integer of at most 16 bits; 32-bit limits need float64.
        wide = np.float32 if dst.dtype.itemsize <= 2 and values.dtype != np.float64 else np.float64
        whole: npt.NDArray[np.floating] = np.asarray(np.rint(values.astype(wide)))
        with np.errstate(invalid="ignore"):
            np.clip(whole, dtype.min, dtype.max, out=whole)
        np.copyto(whole, 0, where=whole != whole)
        dst[...] = whole


WORTH_BITS = 1 << 14
"""Elements from which rounding by bits beats a cast."""


def _is_worth_bits(values: Array) -> bool:
    """Whether to round to bfloat16 by bits: many values, and none of them NaN."""
    if values.size < WORTH_BITS:
        return False
    top: float = values.max()
    return top == top


def _store_bfloat16(dst: Array, values: Array) -> None:
    """Round float32 without NaN to bfloat16, nearest even, half again as fast as a cast."""
    bits = values.view(np.uint32)
    wide = bits >> np.uint32(16)
    wide &= np.uint32(1)
    wide += np.uint32(0x7FFF)
    wide += bits
    wide >>= np.uint32(16)
    dst.view(np.uint16)[...] = wide
