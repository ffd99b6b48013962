"""Schedules a Program on a machine: in-order engines, DMA queues, true dependences.

Instructions are taken in executed order.  Each starts when the one before it on its engine allows,
when the results that it reads are visible, and when the readers and writers of what it overwrites
are done.  A DMA instruction waits at the head of its issuing engine's stream, then for its queue's
issue interval, then for DMA engines and HBM.  Same-engine writes after reads or writes need no wait:
the pipeline keeps their order.  Source of the rules: architecture guides, Introduction to DMA.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nkisim.ir.access import Memory
from nkisim.ir.program import IntColumn, Program
from nkisim.machine.spec import Engine, Machine
from nkisim.memory.placement import Placement, place_tiles
from nkisim.ops.registry import DmaCost, OpTable
from nkisim.timing.boxes import boxes_of
from nkisim.timing.timeline import ENGINES, PS_PER_NS, Timeline, Wait

ISSUE_PS = 50 * PS_PER_NS
"""Time that issuing a DMA takes of the issuing engine's stream."""

Entry = tuple[int, int, int, int, int, int, int, int]
"""Box (row start, row end, byte start, byte end), result time, lane, timeline entry, end time."""


@dataclass(frozen=True, slots=True)
class _Priced:
    """A form with its cost in picoseconds."""

    lane: int
    interval_ps: int
    latency_ps: int
    table: str | None
    dma: DmaCost | None
    reads: tuple[int, ...]
    """Positions of operands that are read."""
    writes: tuple[int, ...]


class _Tracked:
    """Latest writers and readers of one place."""

    __slots__ = ("readers", "writers")

    def __init__(self) -> None:
        self.writers: dict[tuple[int, int, int, int, int], Entry] = {}
        self.readers: dict[tuple[int, int, int, int, int], Entry] = {}


def price_forms(program: Program, machine: Machine, ops: OpTable) -> list[_Priced]:
    """Return every form's cost and access, worked out once."""
    priced: list[_Priced] = []
    for form in program.forms:
        spec = ops[form.op]
        cost = spec.cost(form, machine)
        reads: list[int] = []
        writes: list[int] = []
        for i, operand in enumerate(form.operands):
            if operand.role.endswith(".index"):
                reads.append(i)
                continue
            param = spec.param(operand.role.partition(".")[0])
            access = "r" if param is None else param.access
            if "r" in access:
                reads.append(i)
            if "w" in access:
                writes.append(i)
        lane = ENGINES.index(form.engine)
        if isinstance(cost, DmaCost):
            priced.append(_Priced(lane, 0, 0, None, cost, tuple(reads), tuple(writes)))
            continue
        ps = PS_PER_NS / machine.clock_ghz(form.engine)
        priced.append(
            _Priced(
                lane,
                round(cost.interval * ps),
                round(cost.latency * ps),
                cost.table,
                None,
                tuple(reads),
                tuple(writes),
            )
        )
    return priced


def schedule(
    program: Program,
    machine: Machine,
    ops: OpTable,
    *,
    executed: IntColumn | None = None,
    placement: Placement | None = None,
) -> Timeline:
    """Schedule a Program.

    Args:
        program: A valid Program.
        machine: The machine.
        ops: The op table.
        executed: Instruction numbers in executed order, for Programs whose loops the device runs.
        placement: Where tiles live; default is the policy's own.
    """
    placement = placement or place_tiles(program, machine)
    return _Scheduler(program, machine, ops, placement).run(executed)


class _Scheduler:
    def __init__(
        self, program: Program, machine: Machine, ops: OpTable, placement: Placement
    ) -> None:
        self.program, self.machine, self.placement = program, machine, placement
        self.priced = price_forms(program, machine, ops)
        boxes = boxes_of(program, placement)
        self.place = boxes.place.tolist()
        self.box = list(
            zip(
                boxes.row_start.tolist(),
                boxes.row_end.tolist(),
                boxes.byte_start.tolist(),
                boxes.byte_end.tolist(),
                strict=True,
            )
        )
        self.ignored = self._untracked_places()

    def _untracked_places(self) -> set[int]:
        """HBM buffers that are only read or only written need no tracking."""
        reads: set[int] = set()
        writes: set[int] = set()
        forms, start = self.program.form, self.program.operand_start
        for number, priced in enumerate(self.priced):
            at = start[:-1][forms == number]
            for positions, found in ((priced.reads, reads), (priced.writes, writes)):
                for k in positions:
                    found.update(np.unique(self.program.operand_buffer[at + k]).tolist())
        return {
            int(self.placement.place[i])
            for i, buffer in enumerate(self.program.buffers)
            if buffer.memory is Memory.HBM and not (i in reads and i in writes)
        }

    def run(self, executed: IntColumn | None) -> Timeline:
        machine, program = self.machine, self.program
        order = range(len(program)) if executed is None else executed.tolist()
        count = len(order)
        forms, starts = program.form.tolist(), program.operand_start.tolist()
        before = round(machine.launch_before_ns * PS_PER_NS)
        semaphore = round(machine.semaphore_ns * PS_PER_NS)
        table_load = round(machine.act.table_load_ns * PS_PER_NS)
        engines = len(ENGINES)
        free = [before] * engines
        last_on = [-1] * engines
        table: str | None = None
        tracked: dict[int, _Tracked] = {}
        dma = _DmaState(machine, before)
        lanes, begins, ends, results, waits, predecessors = ([0] * count for _ in range(6))
        priced_forms, places, boxes, ignored = self.priced, self.place, self.box, self.ignored
        for entry, instruction in enumerate(order):
            priced = priced_forms[forms[instruction]]
            base = starts[instruction]
            lane = priced.lane
            is_dma = priced.dma is not None
            own = lane + engines if is_dma else lane
            ready, wait, predecessor = free[lane], Wait.ENGINE, last_on[lane]
            # -- results that it reads
            for k in priced.reads:
                place = places[base + k]
                if place in ignored:
                    continue
                found = tracked.get(place)
                if found is None:
                    continue
                r0, r1, b0, b1 = boxes[base + k]
                for w in found.writers.values():
                    if w[0] < r1 and r0 < w[1] and w[2] < b1 and b0 < w[3]:
                        at = w[4] if w[5] == own or w[5] >= engines else w[4] + semaphore
                        if at > ready:
                            ready, wait, predecessor = at, Wait.DATA, w[6]
            # -- what it overwrites
            for k in priced.writes:
                place = places[base + k]
                if place in ignored:
                    continue
                found = tracked.get(place)
                if found is None:
                    found = tracked[place] = _Tracked()
                    for old in self.placement.replaces.get(place, ()):
                        if old in tracked:
                            _inherit(found, tracked[old])
                r0, r1, b0, b1 = boxes[base + k]
                for group in (found.writers, found.readers):
                    for w in group.values():
                        if w[5] == own and not is_dma:
                            continue
                        if w[0] < r1 and r0 < w[1] and w[2] < b1 and b0 < w[3]:
                            at = w[7] if w[5] == own or w[5] >= engines else w[7] + semaphore
                            if at > ready:
                                ready, wait, predecessor = at, Wait.REUSE, w[6]
            # -- run it
            if is_dma:
                assert priced.dma is not None  # noqa: S101 - tested by is_dma
                if priced.dma.is_software_generated:
                    pool = ENGINES.index(Engine.GPSIMD)
                    ready = max(ready, free[pool])
                    free[pool] = ready + dma.software_ps
                    ready = free[pool]
                begin, end, why, blocker = dma.transfer(lane, priced.dma, ready, entry)
                free[lane] = ready + ISSUE_PS
                last_on[lane] = entry
                if why is not None:
                    wait, predecessor = why, blocker
                result = end + dma.complete_ps
                done = result
            else:
                begin = ready
                interval = priced.interval_ps
                latency = priced.latency_ps
                if priced.table is not None and priced.table != table:
                    if lane == _SCALAR:
                        table = priced.table
                        interval += table_load
                        latency += table_load
                free[lane] = end = begin + interval
                last_on[lane] = entry
                result = begin + latency
                done = result
            lanes[entry], begins[entry], ends[entry] = own, begin, end
            results[entry], waits[entry], predecessors[entry] = result, int(wait), predecessor
            # -- remember it
            for k in priced.reads:
                place = places[base + k]
                if place not in ignored:
                    found = tracked.get(place)
                    if found is None:
                        found = tracked[place] = _Tracked()
                    box = boxes[base + k]
                    # A reader is done with its inputs when its lane moves on.
                    found.readers[(*box, own)] = (*box, end, own, entry, end)
            for k in priced.writes:
                place = places[base + k]
                if place in ignored:
                    continue
                found = tracked[place]
                r0, r1, b0, b1 = box = boxes[base + k]
                for group in (found.writers, found.readers):
                    if len(group) > 1 or group:
                        covered = [
                            key
                            for key in group
                            if r0 <= key[0] and key[1] <= r1 and b0 <= key[2] and key[3] <= b1
                        ]
                        for key in covered:
                            del group[key]
                found.writers[(*box, own)] = (*box, result, own, entry, done)
        return Timeline(
            np.array(order, dtype=np.int64),
            np.array(lanes, dtype=np.int64),
            np.array(begins, dtype=np.int64),
            np.array(ends, dtype=np.int64),
            np.array(results, dtype=np.int64),
            np.array(waits, dtype=np.int64),
            np.array(predecessors, dtype=np.int64),
            before,
            round(machine.launch_after_ns * PS_PER_NS),
        )


_SCALAR = ENGINES.index(Engine.SCALAR)


def _inherit(new: _Tracked, old: _Tracked) -> None:
    """Make the first write to a new place wait for everything in the place that it took over."""
    whole = (0, 1 << 30, 0, 1 << 60)
    for group in (old.writers, old.readers):
        for w in group.values():
            key = (*whole, w[5])
            kept = new.readers.get(key)
            if kept is None or kept[7] < w[7]:
                new.readers[key] = (*whole, w[4], w[5], w[6], w[7])


class _DmaState:
    """The DMA engines, the queues that feed them, and the HBM port."""

    def __init__(self, machine: Machine, before: int) -> None:
        d = machine.dma
        self.issue_ps = round(d.issue_interval_ns * PS_PER_NS)
        self.trigger_ps = round(d.trigger_ns * PS_PER_NS)
        self.complete_ps = round(d.complete_ns * PS_PER_NS)
        self.software_ps = round(d.software_descriptor_ns * PS_PER_NS)
        self.engine_rate = d.bytes_per_ns_per_engine
        self.hbm_rate = d.hbm_bytes_per_ns
        self.descriptor_bytes = d.descriptor_bytes_min
        self.count = d.engines
        self.queue_free = [before] * len(ENGINES)
        self.queue_last = [-1] * len(ENGINES)
        self.engine_free = [before] * d.engines
        self.hbm_free = before
        self.last = -1

    def transfer(
        self, queue: int, cost: DmaCost, ready: int, entry: int
    ) -> tuple[int, int, Wait | None, int]:
        """Return (start, last byte, what delayed it beyond `ready`, by whom) of one copy."""
        issued, why, blocker = ready, None, -1
        if self.queue_free[queue] > issued:
            issued, why, blocker = self.queue_free[queue], Wait.QUEUE, self.queue_last[queue]
        self.queue_free[queue] = issued + self.issue_ps
        self.queue_last[queue] = entry
        moving = issued + self.trigger_ps
        moved = max(
            cost.bytes_written, cost.bytes_read, cost.descriptors * self.descriptor_bytes
        )
        share = moved / cost.engines_used / (self.engine_rate * cost.rate_fraction)
        duration = max(1, round(share * PS_PER_NS))
        if cost.engines_used >= self.count:
            start = max(moving, max(self.engine_free))
            end = start + duration
            self.engine_free = [end] * self.count
        else:
            order = sorted(range(self.count), key=self.engine_free.__getitem__)
            chosen = order[: cost.engines_used]
            start = max(moving, self.engine_free[chosen[-1]])
            end = start + duration
            for e in chosen:
                self.engine_free[e] = end
        if cost.hbm_bytes:
            through = round(cost.hbm_bytes / self.hbm_rate * PS_PER_NS)
            hbm_start = max(moving, self.hbm_free)
            self.hbm_free = hbm_start + through
            if self.hbm_free > end:
                end = self.hbm_free
                start = max(start, hbm_start)
        if start > moving:
            why, blocker = Wait.BANDWIDTH, self.last
        self.last = entry
        return issued, end, why, blocker
