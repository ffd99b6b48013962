"""The dtypes of NKI and the one place where values change dtype.

Engines compute in float32 and round once when they write.  Conversions to integers round to
nearest even and saturate; conversions between float formats round to nearest even (numpy and
ml_dtypes do).  Source: NKI data types page and the 0.6 release notes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
NumberClass = Literal["float", "int", "uint", "bool", "packed"]


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """One NKI dtype.

    Compares equal to its name, to the numpy dtype that stores it and to numpy scalar types, as
    kernels compare all of these.
    """

    name: str
    storage: np.dtype[np.generic]
    """How one element is stored; `tfloat32` is stored as float32."""
    kind: NumberClass
    mantissa_bits: int | None = None
    """Explicit mantissa bits of a float format."""

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
            return float(ml_dtypes.finfo(self.storage).min)
        return float(np.iinfo(self.storage).min)

    @property
    def max(self) -> float:
        """Largest finite value."""
        if self.is_float:
            return float(ml_dtypes.finfo(self.storage).max)
        return float(np.iinfo(self.storage).max)

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
    """Return `values` as float32; a view if they are float32 already."""
    if values.dtype == np.float32:
        return values  # type: ignore[return-value]
    return values.astype(np.float32)


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
    elif values.dtype == dst.dtype or dtype.is_float:
        with np.errstate(over="ignore", invalid="ignore"):
            dst[...] = values
    elif dtype.kind == "bool":
        dst[...] = values != 0
    elif values.dtype.kind in "iub":
        info = np.iinfo(dst.dtype)  # type: ignore[type-var]
        dst[...] = np.clip(values.astype(np.int64), info.min, info.max)
    else:
        info = np.iinfo(dst.dtype)  # type: ignore[type-var]
        exact = np.rint(values.astype(np.float64))
        dst[...] = np.nan_to_num(
            np.clip(exact, info.min, info.max), nan=0.0, posinf=info.max, neginf=info.min
        ).astype(dst.dtype)
