"""The op table: every instruction that nkisim emulates."""

from __future__ import annotations

from nkisim.ops import dma, gpsimd_engine, scalar_engine, sequencer, tensor_engine, vector_engine
from nkisim.ops.registry import OpTable

OPS = OpTable(
    [
        *dma.SPECS,
        *tensor_engine.SPECS,
        *vector_engine.SPECS,
        *scalar_engine.SPECS,
        *gpsimd_engine.SPECS,
        *sequencer.SPECS,
    ]
)
