"""Schedules a Program on a machine: in-order engines, DMA queues, true dependences.

Dependences are worked out once, in executed order; then instructions start in order of time, each
stream in its own order.  Each starts when the one before it on its engine allows, when the results
that it reads are visible, and when the readers and writers of what it overwrites are done.  A copy
issued by a compute engine waits at the head of that engine's stream; Sync keeps loads and stores
apart, so that a store that waits for its data holds no load back.  Then a copy waits for its
queue's issue interval, for DMA engines and for HBM.  Same-engine writes after reads or writes need
no wait: the pipeline keeps their order.  Source: architecture guides, Introduction to DMA.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

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

DATA, AFTER_READER, AFTER_WRITER = 0, 1, 2
"""Kinds of dependence: on a result, on a reader that is done, on a writer that is done."""
Box = tuple[int, int, int, int]
"""Row start, row end, byte start, byte end."""
Edge = tuple[int, int]
"""Timeline entry that is waited for, and the kind of dependence."""


@dataclass(frozen=True, slots=True)
class _Priced:
    """A form with its cost in picoseconds."""

    lane: int
    stream: int
    interval_ps: int
    latency_ps: int
    table: str | None
    dma: DmaCost | None
    reads: tuple[int, ...]
    """Positions of operands that are read."""
    writes: tuple[int, ...]


class _Tracked:
    """Latest writers and readers of one place: timeline entry by box and lane."""

    __slots__ = ("readers", "writers")

    def __init__(self) -> None:
        self.writers: dict[tuple[int, int, int, int, int], int] = {}
        self.readers: dict[tuple[int, int, int, int, int], int] = {}


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
            stream = _stream(lane, cost)
            priced.append(_Priced(lane, stream, 0, 0, None, cost, tuple(reads), tuple(writes)))
            continue
        ps = PS_PER_NS / machine.clock_ghz(form.engine)
        priced.append(
            _Priced(
                lane,
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
        order = list(range(len(self.program))) if executed is None else executed.tolist()
        forms = self.program.form.tolist()
        priced = [self.priced[forms[instruction]] for instruction in order]
        edges = self._dependences(order, priced)
        return self._simulate(order, priced, edges)

    def _dependences(self, order: list[int], priced: list[_Priced]) -> list[list[Edge]]:
        """Return what each executed instruction waits for, besides its own lane."""
        starts = self.program.operand_start.tolist()
        places, boxes, ignored = self.place, self.box, self.ignored
        tracked: dict[int, _Tracked] = {}
        edges: list[list[Edge]] = []
        for entry, instruction in enumerate(order):
            cost = priced[entry]
            base, own, is_dma = starts[instruction], cost.stream, cost.dma is not None
            found: dict[int, int] = {}
            for k in cost.reads:
                place = places[base + k]
                if place in ignored or place not in tracked:
                    continue
                r0, r1, b0, b1 = boxes[base + k]
                for key, before in tracked[place].writers.items():
                    if key[0] < r1 and r0 < key[1] and key[2] < b1 and b0 < key[3]:
                        found[before] = DATA
            for k in cost.writes:
                place = places[base + k]
                if place in ignored:
                    continue
                history = tracked.get(place)
                if history is None:
                    history = tracked[place] = _Tracked()
                    for old in self.placement.replaces.get(place, ()):
                        if old in tracked:
                            _inherit(history, tracked[old])
                r0, r1, b0, b1 = boxes[base + k]
                for group, kind in (
                    (history.writers, AFTER_WRITER),
                    (history.readers, AFTER_READER),
                ):
                    for key, before in group.items():
                        if key[4] == own and not is_dma:
                            continue
                        if key[0] < r1 and r0 < key[1] and key[2] < b1 and b0 < key[3]:
                            found.setdefault(before, kind)
            edges.append(list(found.items()))
            for k in cost.reads:
                place = places[base + k]
                if place not in ignored:
                    history = tracked.get(place)
                    if history is None:
                        history = tracked[place] = _Tracked()
                    history.readers[(*boxes[base + k], own)] = entry
            for k in cost.writes:
                place = places[base + k]
                if place in ignored:
                    continue
                history = tracked[place]
                r0, r1, b0, b1 = box = boxes[base + k]
                for covered in (history.writers, history.readers):
                    for key in [
                        key
                        for key in covered
                        if r0 <= key[0] and key[1] <= r1 and b0 <= key[2] and key[3] <= b1
                    ]:
                        del covered[key]
                history.writers[(*box, own)] = entry
        return edges

    def _simulate(
        self, order: list[int], priced: list[_Priced], edges: list[list[Edge]]
    ) -> Timeline:
        """Start instructions in order of time, each stream in its own order."""
        machine = self.machine
        count = len(order)
        before = round(machine.launch_before_ns * PS_PER_NS)
        semaphore = round(machine.semaphore_ns * PS_PER_NS)
        table_load = round(machine.act.table_load_ns * PS_PER_NS)
        dma = _DmaState(machine, before)
        streams: list[list[int]] = [[] for _ in range(STREAMS)]
        for entry, cost in enumerate(priced):
            streams[cost.stream].append(entry)
        head = [0] * STREAMS
        free = [before] * STREAMS
        last_on = [-1] * STREAMS
        missing = [len(items) for items in edges]
        waiters: list[list[int]] = [[] for _ in range(count)]
        for entry, items in enumerate(edges):
            for other, _ in items:
                waiters[other].append(entry)
        lanes, begins, ends, results, waits, predecessors = ([0] * count for _ in range(6))
        table: str | None = None
        ready_heap: list[tuple[int, int, int, int]] = []

        def offer(entry: int) -> None:
            """Put the head of a stream, whose dependences are all scheduled, on the heap."""
            cost = priced[entry]
            stream = cost.stream
            at, wait, cause = free[stream], int(Wait.ENGINE), last_on[stream]
            for other, kind in edges[entry]:
                when = ends[other] if kind == AFTER_READER else results[other]
                if lanes[other] < ENGINE_COUNT and priced[other].stream != stream:
                    when += semaphore
                if when > at:
                    at, cause = when, other
                    wait = int(Wait.DATA) if kind == DATA else int(Wait.REUSE)
            heappush(ready_heap, (at, entry, wait, cause))

        for stream_items in streams:
            if stream_items and missing[stream_items[0]] == 0:
                offer(stream_items[0])
        while ready_heap:
            at, entry, wait, cause = heappop(ready_heap)
            cost = priced[entry]
            stream = cost.stream
            if cost.dma is not None:
                lanes[entry] = cost.lane + ENGINE_COUNT
                if cost.dma.is_software_generated:
                    pool = max(at, free[_GPSIMD]) + dma.software_ps
                    free[_GPSIMD] = at = pool
                begin, end, why, blocker = dma.transfer(cost.lane, cost.dma, at, entry)
                if why is not None:
                    wait, cause = int(why), blocker
                result = end + dma.complete_ps
                free[stream] = at if stream >= ENGINE_COUNT else at + ISSUE_PS
            else:
                lanes[entry] = cost.lane
                extra = 0
                if cost.table is not None and cost.table != table and cost.lane == _SCALAR:
                    table, extra = cost.table, table_load
                begin = at
                free[stream] = end = at + cost.interval_ps + extra
                result = at + cost.latency_ps + extra
            last_on[stream] = entry
            begins[entry], ends[entry], results[entry] = begin, end, result
            waits[entry], predecessors[entry] = wait, cause
            head[stream] += 1
            queue = streams[stream]
            following = queue[head[stream]] if head[stream] < len(queue) else -1
            for waiter in waiters[entry]:
                missing[waiter] -= 1
                if missing[waiter] == 0 and waiter != following:
                    other = priced[waiter].stream
                    if streams[other][head[other]] == waiter:
                        offer(waiter)
            if following >= 0 and missing[following] == 0:
                offer(following)
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


ENGINE_COUNT = len(ENGINES)
STREAMS = ENGINE_COUNT + 2
"""The engines' streams, and Sync's loads and stores."""
_SCALAR = ENGINES.index(Engine.SCALAR)
_SYNC = ENGINES.index(Engine.SYNC)
_GPSIMD = ENGINES.index(Engine.GPSIMD)


def _stream(lane: int, dma: DmaCost | None) -> int:
    """Return the stream that an instruction waits in."""
    if dma is None or lane != _SYNC:
        return lane
    return ENGINE_COUNT + int(dma.is_store)


def _inherit(new: _Tracked, old: _Tracked) -> None:
    """Make the first write to a new place wait for everything in the place that it took over."""
    for number, group in enumerate((old.writers, old.readers)):
        for key, entry in group.items():
            # Boxes of their own, so that no entry hides another.
            new.readers[(0, 1 << 30, -1 - number, 1 << 60, key[4] + 100 * entry)] = entry


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
        self.issue_free = [before] * len(ENGINES)
        """Earliest issue of the next copy, by queue."""
        self.issue_last = [-1] * len(ENGINES)
        self.engine_free = [before] * d.engines
        self.hbm_free = before
        self.last = -1

    def transfer(
        self, queue: int, cost: DmaCost, ready: int, entry: int
    ) -> tuple[int, int, Wait | None, int]:
        """Return (start, last byte, what delayed it beyond `ready`, by whom) of one copy."""
        issued, why, blocker = ready, None, -1
        if self.issue_free[queue] > issued:
            issued, why, blocker = self.issue_free[queue], Wait.QUEUE, self.issue_last[queue]
        self.issue_free[queue] = issued + self.issue_ps
        self.issue_last[queue] = entry
        moving = issued + self.trigger_ps
        moved = max(cost.bytes_written, cost.bytes_read, cost.descriptors * self.descriptor_bytes)
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
