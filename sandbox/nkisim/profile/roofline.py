"""The roofline of a launch: work per byte of HBM against the machine's peaks.

For kernels with matrix products the work is flops and the peaks are the Tensor Engine's; for others
it is elements that the Vector, Scalar and GpSimd Engines write.  Emulated time without launch cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from nkisim.ir.program import Form
from nkisim.machine.spec import Engine
from nkisim.profile.model import Profile


@dataclass(frozen=True, slots=True)
class Peak:
    """A horizontal roof."""

    name: str
    per_ns: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """Where a launch stands under its roofs."""

    unit: Literal["flop", "element"]
    intensity: float
    """Work per HBM byte; 0 without work, infinite without HBM traffic."""
    achieved_per_ns: float
    """Work per nanosecond of emulated time without launch cost."""
    bytes_per_ns: float
    """Slope of the memory roof: HBM or all DMA engines, whichever is less."""
    peaks: tuple[Peak, ...]
    """Highest first."""

    @property
    def attainable_per_ns(self) -> float:
        """Most work per nanosecond at this intensity under the highest peak."""
        return min(self.peaks[0].per_ns, self.intensity * self.bytes_per_ns)

    @property
    def fraction(self) -> float:
        """Achieved over attainable."""
        return self.achieved_per_ns / self.attainable_per_ns if self.attainable_per_ns else 0.0

    @property
    def side(self) -> Literal["memory", "compute"]:
        """Which roof stands above this intensity."""
        is_memory = self.intensity * self.bytes_per_ns < self.peaks[0].per_ns
        return "memory" if is_memory else "compute"


def roofline(profile: Profile) -> Roofline:
    """Return the roofline of a profile."""
    machine, work = profile.machine, profile.work
    time_ns = max(1.0, profile.latency_ns - profile.launch_ns)
    if work.flops > 0:
        bf16 = machine.flops_per_ns
        peaks = (Peak("bfloat16", bf16), Peak("float32", bf16 / machine.pe.fp32_passes))
        amount: float = work.flops
        unit: Literal["flop", "element"] = "flop"
    else:
        lanes = machine.limits.partitions
        engines = (Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD)
        each = {engine: lanes * machine.clock_ghz(engine) for engine in engines}
        peaks = (
            Peak("vector + scalar + gpsimd", sum(each.values())),
            Peak("vector", each[Engine.VECTOR]),
        )
        amount, unit = _elements(profile), "element"
    intensity = amount / work.hbm_bytes if work.hbm_bytes else float("inf")
    return Roofline(unit, intensity, amount / time_ns, machine.dma.bytes_per_ns, peaks)


def _elements(profile: Profile) -> float:
    """Return the elements that compute instructions wrote."""
    program = profile.program
    counts = np.bincount(
        program.form[profile.timeline.instruction], minlength=len(program.forms)
    ).tolist()
    return float(
        sum(_written(form) * count for form, count in zip(program.forms, counts, strict=True))
    )


def _written(form: Form) -> int:
    is_compute = form.engine in (Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD)
    first = form.operands[0] if form.operands else None
    if not is_compute or first is None or not first.memory.is_on_chip:
        return 0
    return first.pattern.size
