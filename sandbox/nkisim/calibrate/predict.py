"""What nkisim says about one measured figure, on any machine, and what a static roofline says.

Dependences are found once; asking again with other constants only runs the clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np

from nkisim.calibrate.bindings import EACH, LATENCY, WITHOUT_LAUNCH, Binding
from nkisim.calibrate.errors import CalibrationError
from nkisim.calibrate.measured import Row
from nkisim.calibrate.programs import Traced
from nkisim.machine.spec import Machine
from nkisim.memory.placement import place_tiles
from nkisim.ops.registry import Cost
from nkisim.ops.table import OPS
from nkisim.timing.dependence import Dependences, dependences_of
from nkisim.timing.reorder import Schedule, default_schedule, list_order
from nkisim.timing.scheduler import simulate
from nkisim.timing.timeline import PS_PER_NS, Timeline

Report = Callable[[str], None]
"""Told what goes on."""
NS_PER_US = 1000.0
UNLOADED = {
    "pe.overhead_cycles": 0.0,
    "pe.overhead_fp32_cycles": 0.0,
    "pe.min_interval_cycles": 0.0,
    "dve.overhead_cycles": 0.0,
    "dve.min_interval_cycles": 0.0,
    "act.overhead_cycles": 0.0,
    "act.min_interval_cycles": 0.0,
    "pool.start_cycles": 0.0,
}
"""What a roofline leaves out: everything but the work itself."""


@dataclass(eq=False, slots=True)
class Case:
    """One figure that nkisim can reproduce."""

    row: Row
    binding: Binding
    machine: str
    family: str
    traced: Traced | None
    """None for a constant or a transfer."""
    schedule: Schedule | None = None
    """Whose order of instructions is timed; None for that of the kernel's compiler."""
    dependences: Dependences | None = None
    planned_for: Machine | None = None
    """For which machine the instructions were ordered."""

    @property
    def is_scored(self) -> bool:
        """Whether it enters scores."""
        return self.row.counts and self.traced is not None

    def predict(self, machine: Machine, *, replan: bool = True) -> float:
        """Return the emulated figure in microseconds; `replan` as for `timeline`."""
        constant, transfer = self.binding.constant, self.binding.transfer_bytes
        if constant is not None:
            return _constant(machine, constant) / NS_PER_US
        if transfer is not None:
            return transfer / machine.dma.bytes_per_ns_per_engine / NS_PER_US
        return self._measure(self.timeline(machine, replan=replan), machine) / NS_PER_US

    def timeline(self, machine: Machine, *, replan: bool = True) -> Timeline:
        """Return the schedule on `machine`.

        Args:
            machine: The machine.
            replan: Whether a list scheduler orders the instructions anew for this machine; else
                the order stays that of the machine asked for before.
        """
        assert self.traced is not None
        program, executed = self.traced.program, self.traced.executed
        chosen = default_schedule(program) if self.schedule is None else self.schedule
        is_planned = chosen == "program" or self.planned_for == machine or not replan
        if self.dependences is None or not is_planned:
            placement = place_tiles(program, machine)
            if chosen == "list":
                executed = list_order(program, machine, OPS, placement, executed=executed)
                self.planned_for = machine
            self.dependences = dependences_of(program, machine, OPS, placement, executed=executed)
        return simulate(program, machine, OPS, self.dependences)

    def _measure(self, timeline: Timeline, machine: Machine) -> float:
        latency = timeline.latency_ps / PS_PER_NS
        measure = self.binding.measure
        if measure == LATENCY:
            return latency
        if measure == WITHOUT_LAUNCH:
            return latency - machine.launch_before_ns - machine.launch_after_ns
        assert self.traced is not None
        program = self.traced.program
        word, _, op = measure.partition(" ")
        wanted = np.array([form.op == op for form in program.forms], dtype=bool)
        at = np.flatnonzero(wanted[program.form[timeline.instruction]])
        if len(at) < 1 + (word == EACH):
            raise CalibrationError(f"{self.row.id}: the kernel has {len(at)} instructions {op!r}")
        if word == EACH:
            return float(np.median(np.diff(np.sort(timeline.start_ps[at])))) / PS_PER_NS
        last = at[int(np.argmax(timeline.start_ps[at]))]
        return float(timeline.result_ps[last] - timeline.start_ps[last]) / PS_PER_NS

    def roofline(self, machine: Machine) -> float:
        """Return the static bound in microseconds: the busiest engine, or bytes over bandwidth."""
        assert self.traced is not None
        program = self.traced.program
        bare = machine.with_changes(UNLOADED)
        order = self.traced.executed
        ran = program.form if order is None else program.form[order]
        counts = np.bincount(ran, minlength=len(program.forms)).tolist()
        busy: dict[str, float] = {}
        for form, count in zip(program.forms, counts, strict=True):
            cost = OPS[form.op].cost(form, bare)
            if isinstance(cost, Cost):
                name, ns = form.engine.value, cost.interval / bare.clock_ghz(form.engine)
            else:
                name, ns = "hbm", cost.hbm_bytes / bare.dma.bytes_per_ns
            busy[name] = busy.get(name, 0.0) + ns * count
        fixed = machine.launch_before_ns + machine.launch_after_ns
        return (max(busy.values(), default=0.0) + fixed) / NS_PER_US


def _constant(machine: Machine, path: str) -> float:
    try:
        value = reduce(getattr, path.split("."), machine)
    except AttributeError:
        raise CalibrationError(f"a machine has no constant {path!r}") from None
    if not isinstance(value, (int, float)):
        raise CalibrationError(f"{path!r} is not a number of a machine")
    return float(value)
