"""Which constants may be fitted, for each machine, and their documented ranges.

trn1 has measured kernels enough for ten; trn2 has four of its own; trn3 has none, its constants
are carried over.
"""

from __future__ import annotations

from collections.abc import Mapping

from nkisim.calibrate.fit import Constant

CONSTANTS: Mapping[str, tuple[Constant, ...]] = {
    "trn1": (
        Constant("pe.overhead_cycles", 20, 90),
        Constant("pe.overhead_fp32_cycles", 5, 90, spread=0.6),
        Constant("dve.overhead_cycles", 10, 120, spread=0.6),
        Constant("dve.latency_cycles", 20, 300, spread=0.6),
        Constant("dve.reciprocal_cycles_per_element", 1, 8, spread=0.6),
        Constant("act.overhead_cycles", 10, 200, spread=0.6),
        Constant("dma.bytes_per_ns_per_engine", 15, 20, spread=0.05),
        Constant("dma.issue_interval_ns", 20, 700, spread=1.0),
        Constant("dma.trigger_ns", 500, 1600, spread=0.3),
        Constant("semaphore_ns", 20, 200, spread=0.6),
    ),
    "trn2": (
        Constant("launch_before_ns", 4000, 12000, spread=0.3),
        Constant("dma.issue_interval_ns", 480, 620, spread=0.1),
        Constant("pe.overhead_fp32_cycles", 5, 60, spread=0.6),
        Constant("act.latency_cycles", 200, 450, spread=0.2),
    ),
    "trn3": (),
}
