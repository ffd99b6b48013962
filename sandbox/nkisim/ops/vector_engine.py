"""Rows of the Vector Engine (DVE), in the order in which kernels use them most."""

from __future__ import annotations

from nkisim.ops import (
    vector_copy,
    vector_elementwise,
    vector_reduce,
    vector_scan,
    vector_select,
)
from nkisim.ops.registry import OpSpec

SPECS: tuple[OpSpec, ...] = (
    *vector_copy.SPECS,
    *vector_elementwise.SPECS,
    *vector_reduce.SPECS,
    *vector_scan.SPECS,
    *vector_select.SPECS,
)
