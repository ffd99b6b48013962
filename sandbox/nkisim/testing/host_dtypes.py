"""A `neuron_dtypes` module for the host side of public tests: dtypes and casts on numpy arrays.

Only what test files use to draw inputs and to compare outputs.  Source: behaviour of
`static_cast` and `sizeinbytes` as the public tests call them.
"""

from __future__ import annotations

from types import ModuleType

import ml_dtypes
import numpy as np
import numpy.typing as npt

from nkisim.dtypes import DTYPES, lookup
from nkisim.errors import UnsupportedError

Array = npt.NDArray[np.generic]


def static_cast(values: Array, dtype: object) -> Array:
    """Convert an array to another dtype; out-of-range floats saturate to infinity as in numpy."""
    wanted = lookup(dtype)
    if wanted is None:
        return np.asarray(values).astype(dtype)  # type: ignore[call-overload, no-any-return]
    if wanted.kind == "packed":
        raise UnsupportedError("NKS501", f"host values of {wanted.name} are not emulated")
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(values).astype(wanted.storage)


def sizeinbytes(dtype: object) -> int:
    """Bytes of one element."""
    wanted = lookup(dtype)
    return np.dtype(dtype).itemsize if wanted is None else wanted.itemsize  # type: ignore[call-overload]


def is_float_type(dtype: object) -> bool:
    """Whether a dtype is a floating-point format."""
    wanted = lookup(dtype)
    return np.dtype(dtype).kind == "f" if wanted is None else wanted.is_float  # type: ignore[call-overload]


def finfo(dtype: object) -> object:
    """Limits of a float format."""
    wanted = lookup(dtype)
    return ml_dtypes.finfo(wanted.storage if wanted else dtype)  # type: ignore[no-untyped-call]


def build() -> ModuleType:
    """Return the module object."""
    module = ModuleType("neuron_dtypes")
    dtypes = {
        name: dtype if dtype.kind == "packed" else dtype.storage.type
        for name, dtype in DTYPES.items()
    }
    module.__dict__.update(dtypes)
    for function in (static_cast, sizeinbytes, is_float_type, finfo):
        setattr(module, function.__name__, function)
    return module
