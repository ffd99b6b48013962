"""The profile of one emulated launch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nkisim.ir.access import Memory
from nkisim.ir.program import Form, IntColumn, Program
from nkisim.machine.spec import Engine, Machine
from nkisim.memory.capacity import peak_use
from nkisim.memory.liveness import live_ranges
from nkisim.memory.placement import Placement, place_tiles
from nkisim.ops.registry import Cost, DmaCost, OpTable
from nkisim.ops.table import OPS
from nkisim.timing.dependence import Dependences, dependences_of
from nkisim.timing.reorder import Schedule, default_schedule, list_order
from nkisim.timing.scheduler import simulate
from nkisim.timing.timeline import ENGINES, PS_PER_NS, Timeline, Wait

SCHEMA_VERSION = 1
BOUND_THRESHOLD = 0.6
"""Share of the time that a resource must be busy to be called binding."""


@dataclass(frozen=True, slots=True)
class LineCost:
    """What one source line contributes to the critical path."""

    line: str
    text: str
    path_ns: float
    """Time on the critical path that is spent in or waited for this line."""
    instructions: int
    """Instructions that it emitted."""
    wait: str
    """What its instructions on the path waited for most."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a launch moves and computes."""

    hbm_read_bytes: int
    hbm_written_bytes: int
    dma_count: int
    dma_bytes: int
    flops: float
    """Of matrix products."""
    transpose_flops: float
    """Of transposes on the Tensor Engine, which multiply by the identity."""
    dma_transfer_ns: float
    """Time that the DMA engines need for the bytes, all engines together."""
    dma_issue_ns: float
    """Time that the busiest queue needs to issue its copies."""

    @property
    def hbm_bytes(self) -> int:
        """Bytes that cross HBM, both directions."""
        return self.hbm_read_bytes + self.hbm_written_bytes


@dataclass(frozen=True, eq=False, slots=True)
class Profile:
    """Emulated time of one launch, and where it went."""

    latency_ns: float
    launch_ns: float
    """Fixed launch cost, part of the latency."""
    machine: Machine
    program: Program
    timeline: Timeline
    placement: Placement
    schedule: Schedule
    """Whose order of instructions was timed: the program's or that of a list scheduler."""
    dependences: Dependences
    work: Work
    busy: dict[str, float]
    """Share of the latency without launch cost that each resource is busy; `dma bandwidth` is that
    of the DMA engines or HBM, whichever is busier, `dma issue` the busiest queue."""
    waits: dict[str, dict[str, float]]
    """For each engine, the share of its idle time by what it waited for."""
    critical_lines: tuple[LineCost, ...]
    """Source lines on the critical path, most time first."""
    sbuf_peak_bytes: int
    """Most bytes per partition that tiles without a fixed address need at one time."""
    psum_peak_bytes: int

    @property
    def hbm_bytes(self) -> int:
        """Bytes that cross HBM, both directions."""
        return self.work.hbm_bytes

    @property
    def binding(self) -> str:
        """The busiest resource, or `latency` if none is busy for most of the time."""
        name = max(self.busy, key=lambda k: self.busy[k], default="latency")
        return name if self.busy.get(name, 0.0) >= BOUND_THRESHOLD else "latency"

    @property
    def mfu(self) -> float:
        """Model flops utilisation: matrix products over the Tensor Engine's bf16 peak."""
        return self.work.flops / (self.machine.flops_per_ns * self.latency_ns)

    @property
    def hfu(self) -> float:
        """Hardware flops utilisation: as `mfu`, transposes on the Tensor Engine included."""
        flops = self.work.flops + self.work.transpose_flops
        return flops / (self.machine.flops_per_ns * self.latency_ns)

    @property
    def mbu(self) -> float:
        """Memory bandwidth utilisation: HBM bytes over the DMA and HBM cap."""
        return self.machine.transfer_ns(self.work.hbm_bytes) / self.latency_ns

    def op_counts(self) -> dict[str, int]:
        """Return how many instructions of each op ran, most first."""
        counts = np.bincount(
            self.program.form[self.timeline.instruction], minlength=len(self.program.forms)
        )
        totals: dict[str, int] = {}
        for form, count in zip(self.program.forms, counts.tolist(), strict=True):
            totals[form.op] = totals.get(form.op, 0) + count
        return dict(sorted(totals.items(), key=lambda item: (-item[1], item[0])))

    def to_chrome_trace(self, path: str | Path) -> None:
        """Write a Chrome trace, which ui.perfetto.dev opens."""
        from nkisim.profile.chrome import write_chrome_trace

        write_chrome_trace(self, path)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data, without the timeline."""
        return {
            "schema_version": SCHEMA_VERSION,
            "emulated": True,
            "machine": self.machine.name,
            "calibration": self.machine.calibration,
            "schedule": self.schedule,
            "latency_ns": self.latency_ns,
            "latency_band": self.machine.latency_band,
            "launch_ns": self.launch_ns,
            "binding": self.binding,
            "busy": self.busy,
            "waits": self.waits,
            "mfu": self.mfu,
            "hfu": self.hfu,
            "mbu": self.mbu,
            "hbm_bytes": self.work.hbm_bytes,
            "hbm_read_bytes": self.work.hbm_read_bytes,
            "hbm_written_bytes": self.work.hbm_written_bytes,
            "dma": {"count": self.work.dma_count, "bytes": self.work.dma_bytes},
            "flops": self.work.flops,
            "transpose_flops": self.work.transpose_flops,
            "sbuf_peak_bytes": self.sbuf_peak_bytes,
            "psum_peak_bytes": self.psum_peak_bytes,
            "instructions": len(self.timeline),
            "busy_ns": {k: v / PS_PER_NS for k, v in self.timeline.busy_ps().items()},
            "ops": self.op_counts(),
            "critical_path": [
                {
                    "line": c.line,
                    "text": c.text,
                    "path_ns": c.path_ns,
                    "instructions": c.instructions,
                    "wait": c.wait,
                }
                for c in self.critical_lines
            ],
        }


def profile_program(
    program: Program,
    machine: Machine,
    *,
    executed: IntColumn | None = None,
    ops: OpTable = OPS,
    order: Schedule | None = None,
) -> Profile:
    """Time a Program and work out where the time goes.

    Args:
        program: A valid Program.
        machine: The machine to time it on.
        executed: Instruction numbers in executed order, where the device runs loops.
        ops: The op table.
        order: Whose order of instructions to time; None for the one of the kernel's compiler.
    """
    live = live_ranges(program)
    placement = place_tiles(program, machine, live=live)
    chosen = default_schedule(program) if order is None else order
    if chosen == "list":
        executed = list_order(program, machine, ops, placement, executed=executed)
    dependences = dependences_of(program, machine, ops, placement, executed=executed)
    timeline = simulate(program, machine, ops, dependences)
    work = _work(program, machine, ops, timeline)
    latency_ns = timeline.latency_ps / PS_PER_NS
    launch_ns = machine.launch_before_ns + machine.launch_after_ns
    return Profile(
        latency_ns=latency_ns,
        launch_ns=launch_ns,
        machine=machine,
        program=program,
        timeline=timeline,
        placement=placement,
        schedule=chosen,
        dependences=dependences,
        work=work,
        busy=_busy(timeline, work, max(1.0, latency_ns - launch_ns)),
        waits=_waits(timeline),
        critical_lines=_critical_lines(program, timeline),
        sbuf_peak_bytes=peak_use(program, Memory.SBUF, live).bytes,
        psum_peak_bytes=peak_use(program, Memory.PSUM, live).bytes,
    )


def _work(program: Program, machine: Machine, ops: OpTable, timeline: Timeline) -> Work:
    counts = np.bincount(program.form[timeline.instruction], minlength=len(program.forms))
    read = written = moved = copies = 0
    flops = transposes = transfer = 0.0
    queue: dict[Engine, int] = {}
    dma = machine.dma
    for form, count in zip(program.forms, counts.tolist(), strict=True):
        cost = ops[form.op].cost(form, machine)
        if isinstance(cost, Cost):
            if is_transpose(form):
                transposes += _transpose_flops(form) * count
            else:
                flops += cost.flops * count
            continue
        assert isinstance(cost, DmaCost)
        size = max(cost.bytes_written, cost.bytes_read)
        padded = max(size, cost.descriptors * dma.descriptor_bytes_min)
        into_hbm = cost.bytes_written if cost.is_store else 0
        written += into_hbm * count
        read += (cost.hbm_bytes - into_hbm) * count
        moved += size * count
        copies += count
        rate = dma.engines * dma.bytes_per_ns_per_engine * cost.rate_fraction
        transfer += max(padded / rate, cost.hbm_bytes / dma.hbm_bytes_per_ns) * count
        queue[form.engine] = queue.get(form.engine, 0) + count
    issue = max(queue.values(), default=0) * dma.issue_interval_ns
    return Work(read, written, copies, moved, flops, transposes, transfer, issue)


def is_transpose(form: Form) -> bool:
    """Return whether a form is a transpose on the Tensor Engine."""
    return form.engine is Engine.TENSOR and (
        form.op == "nc_transpose" or bool(form.attr("is_transpose"))
    )


def _transpose_flops(form: Form) -> float:
    """Return the flops of multiplying [K, M] by the [K, K] identity."""
    data = form.get("data") or form["stationary"]
    return 2.0 * data.partitions * data.free_size * data.partitions


def _busy(timeline: Timeline, work: Work, latency_ns: float) -> dict[str, float]:
    busy = {
        name: ps / PS_PER_NS / latency_ns
        for name, ps in timeline.busy_ps().items()
        if not name.startswith("dma") and name != Engine.SYNC.value
    }
    busy["dma bandwidth"] = work.dma_transfer_ns / latency_ns
    busy["dma issue"] = work.dma_issue_ns / latency_ns
    return {name: min(1.0, share) for name, share in busy.items()}


def _waits(timeline: Timeline) -> dict[str, dict[str, float]]:
    """Share of each engine's gaps by what ended them."""
    result: dict[str, dict[str, float]] = {}
    for lane, engine in enumerate(ENGINES):
        at = np.flatnonzero(timeline.lane == lane)
        if not len(at):
            continue
        starts, ends = timeline.start_ps[at], timeline.end_ps[at]
        gaps = starts - np.concatenate([[timeline.launch_before_ps], ends[:-1]])
        total = float(gaps.sum())
        if total <= 0:
            continue
        shares: dict[str, float] = {}
        for wait in Wait:
            part = float(gaps[timeline.wait[at] == int(wait)].sum())
            if part > 0:
                shares[wait.name.lower()] = part / total
        result[engine.value] = shares
    return result


def _critical_lines(program: Program, timeline: Timeline) -> tuple[LineCost, ...]:
    path = np.array(timeline.critical_path(), dtype=np.int64)
    if not len(path):
        return ()
    before = timeline.launch_before_ps
    until = np.maximum.accumulate(np.maximum(timeline.result_ps[path], before))
    spent = np.diff(until, prepend=before)
    sites = program.site[timeline.instruction[path]]
    by_wait = np.zeros((len(program.sites), len(Wait)), dtype=np.int64)
    np.add.at(by_wait, (sites, timeline.wait[path]), spent)
    emitted = np.bincount(program.site[timeline.instruction], minlength=len(program.sites))
    rows = [
        LineCost(
            str(program.sites[site].place),
            program.sites[site].place.text,
            int(by_wait[site].sum()) / PS_PER_NS,
            int(emitted[site]),
            Wait(int(by_wait[site].argmax())).name.lower(),
        )
        for site in np.unique(sites).tolist()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.path_ns, row.line)))
