"""What would be gained if one thing cost nothing: each idealised machine is timed anew.

Dependences are found once; an idealised machine only runs the clock again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from nkisim.memory.placement import DEFAULT_COPIES, place_tiles
from nkisim.ops.registry import OpTable
from nkisim.ops.table import OPS
from nkisim.profile.model import Profile
from nkisim.timing.dependence import dependences_of
from nkisim.timing.scheduler import simulate
from nkisim.timing.timeline import PS_PER_NS, Timeline

FAST = 1e9
"""Stands for an infinite clock or rate."""
FREE_TENSOR = "Tensor Engine takes no time"
FREE_VECTOR = "Vector Engine takes no time"
FREE_SCALAR = "Scalar Engine takes no time"
FREE_GPSIMD = "GpSimd takes no time"
FREE_ISSUE = "DMA copies are issued without interval"
UNLIMITED_BANDWIDTH = "DMA bandwidth is unlimited"
ALWAYS_LOADED_TABLES = "activation tables are always loaded"
UNLIMITED_MEMORY = "tiles never wait for memory to be free"
MORE_PLACES = f"each tile rotates over {DEFAULT_COPIES + 1} places instead of {DEFAULT_COPIES}"
IDEALS: Mapping[str, Mapping[str, float]] = {
    FREE_TENSOR: {"pe.clock_ghz": FAST},
    FREE_VECTOR: {"dve.clock_ghz": FAST},
    FREE_SCALAR: {"act.clock_ghz": FAST, "act.table_load_ns": 0.0},
    FREE_GPSIMD: {"pool.clock_ghz": FAST, "dma.software_descriptor_ns": 0.0},
    ALWAYS_LOADED_TABLES: {"act.table_load_ns": 0.0},
    UNLIMITED_BANDWIDTH: {
        "dma.bytes_per_ns_per_engine": FAST,
        "dma.hbm_bytes_per_ns": FAST,
    },
    FREE_ISSUE: {"dma.issue_interval_ns": 0.0},
    "DMA copies have no latency": {"dma.trigger_ns": 0.0, "dma.complete_ns": 0.0},
    "engines see each other's results at once": {"semaphore_ns": 0.0},
}


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Emulated time with one thing idealised."""

    name: str
    latency_ns: float
    gain_ns: float
    """How much less than the real machine; an upper bound of what work on it can bring."""


def what_if(profile: Profile, *, ops: OpTable = OPS) -> tuple[WhatIf, ...]:
    """Time a Program with one thing idealised at a time; largest gain first, only gains.

    Args:
        profile: The Program as it was timed; its dependences are used again.
        ops: The op table.
    """
    program, machine, dependences = profile.program, profile.machine, profile.dependences
    base = profile.timeline.latency_ps
    times = {
        name: simulate(program, machine.with_changes(changes), ops, dependences).latency_ps
        for name, changes in IDEALS.items()
    }
    free = dependences.without_reuse()
    times[UNLIMITED_MEMORY] = simulate(program, machine, ops, free).latency_ps
    times[MORE_PLACES] = _with_more_places(profile, ops).latency_ps
    found = [
        WhatIf(name, ps / PS_PER_NS, (base - ps) / PS_PER_NS)
        for name, ps in times.items()
        if ps < base
    ]
    return tuple(sorted(found, key=lambda w: (-w.gain_ns, w.name)))


def _with_more_places(profile: Profile, ops: OpTable) -> Timeline:
    """Schedule with one more place for each allocation site, where capacity allows."""
    program, machine = profile.program, profile.machine
    placement = place_tiles(program, machine, copies=DEFAULT_COPIES + 1)
    executed = np.array(profile.dependences.order, dtype=np.int64)
    dependences = dependences_of(program, machine, ops, placement, executed=executed)
    return simulate(program, machine, ops, dependences)
