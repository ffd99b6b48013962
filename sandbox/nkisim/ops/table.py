"""The op table: every instruction that nkisim emulates."""

from __future__ import annotations

from nkisim.ops import (
    dma,
    gpsimd_engine,
    gpsimd_search,
    mx,
    random_numbers,
    scalar_engine,
    sequencer,
    tensor_engine,
    vector_engine,
)
from nkisim.ops.registry import OpTable

OPS = OpTable(
    [
        *dma.SPECS,
        *tensor_engine.SPECS,
        *mx.SPECS,
        *vector_engine.SPECS,
        *scalar_engine.SPECS,
        *gpsimd_engine.SPECS,
        *gpsimd_search.SPECS,
        *random_numbers.SPECS,
        *sequencer.SPECS,
    ]
)
