"""Which dtype an operation on tiles of two dtypes has.

Source: NKI type promotion page, Neuron 2.26.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from nkisim.dtypes import DTYPES, DType, lookup
from nkisim.errors import KernelError
from nkisim.frontend.tensor import NkiTensor

COMPARISONS = frozenset(
    (
        *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
        *("logical_and", "logical_or", "logical_xor", "logical_not"),
    )
)
"""Functions whose result is bool unless `dtype=` is given."""


def dtype_of(value: object) -> DType:
    """Return the dtype that an operand counts as; Python numbers are 32 bits wide."""
    if isinstance(value, NkiTensor):
        return value.dtype
    if isinstance(value, (bool, np.bool_)):
        return DTYPES["uint8"]
    if isinstance(value, (np.generic, np.ndarray)):
        found = lookup(value.dtype)
        if found is not None:
            return found
        return DTYPES["float32" if value.dtype.kind == "f" else "int32"]
    if isinstance(value, int):
        return DTYPES["int32"]
    if isinstance(value, float):
        return DTYPES["float32"]
    raise KernelError(
        "NKS602", f"an operand must be a tile or a number, got {type(value).__name__} {value!r:.60}"
    )


@lru_cache(maxsize=1024)
def promote(a: DType, b: DType) -> DType:
    """Return the dtype of a result of two dtypes."""
    if a == b:
        return a
    if a.is_float and b.is_float:
        return _floats(a, b)
    if a.is_float or b.is_float:
        return a if a.is_float else b
    wide = np.promote_types(a.storage, b.storage)
    found = lookup(wide)
    return DTYPES["float32"] if found is None or wide.itemsize > 4 else found


def _floats(a: DType, b: DType) -> DType:
    sizes = (a.itemsize, b.itemsize)
    if 4 in sizes or sizes == (2, 2):
        return DTYPES["float32"]
    if sizes == (1, 1):
        return DTYPES["bfloat16"]
    return a if a.itemsize == 2 else b


def wanted_dtype(value: object, default: DType) -> DType:
    """Return the dtype that an argument names, or `default` if it is None."""
    if value is None:
        return default
    found = lookup(value)
    if found is None:
        raise KernelError("NKS301", f"{value!r:.60} is not an NKI dtype")
    return found
