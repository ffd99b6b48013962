"""Schedules a Program on a machine: in-order engines, DMA queues, true dependences.

Dependences are worked out once, in executed order; then instructions start as soon as they can,
each stream in its own order.  Each starts when the one before it on its engine allows, when the
results that it reads are visible, and when the readers and writers of what it overwrites are done.
A copy issued by a compute engine waits at the head of that engine's stream; Sync keeps loads and
stores apart, so that a store that waits for its data holds no load back.  Then a copy waits for
its queue's issue interval, for DMA engines and for HBM, which are granted in order of issue, so
that the backlog of one queue holds no other queue back.
Same-engine writes after reads or writes need no wait: the pipeline keeps their order, and results
appear in order.  Source: architecture guides, Introduction to DMA.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from nkisim.errors import EmulatorBug
from nkisim.ir.access import Memory
from nkisim.ir.program import Form, IntColumn, Program
from nkisim.machine.spec import Engine, Machine
from nkisim.memory.placement import Placement, place_tiles
from nkisim.ops.registry import Cost, DmaCost, OpTable
from nkisim.timing.dependence import (
    AFTER_READER,
    DATA,
    ENGINE_COUNT,
    KIND_BITS,
    KIND_MASK,
    STREAMS,
    Dependences,
    dependences_of,
)
from nkisim.timing.dma import DmaState, DmaWork
from nkisim.timing.timeline import ENGINES, PS_PER_NS, Timeline, Wait

SBUF_PORT, PSUM_PORT = 0, 1
"""Ports that two engines share on machines where they exclude each other."""
_SHARERS = (
    (SBUF_PORT, Memory.SBUF, (Engine.VECTOR, Engine.GPSIMD)),
    (PSUM_PORT, Memory.PSUM, (Engine.VECTOR, Engine.SCALAR)),
)
_SCALAR = ENGINES.index(Engine.SCALAR)
_TRACKS = 3 * ENGINE_COUNT
COPY = -1
"""Stands among the contenders for the first copy of a queue, where others have their wait."""
NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class PricedForm:
    """What an instruction of a form costs, in picoseconds."""

    interval_ps: int
    latency_ps: int
    table: str | None
    """ScalarE: function table that must be loaded."""
    dma: DmaWork | None
    ports: tuple[int, ...]
    """Exclusive ports that it holds while it runs."""

    @classmethod
    def of(cls, form: Form, cost: Cost | DmaCost, machine: Machine) -> PricedForm:
        """Turn a form's cost into time."""
        if isinstance(cost, DmaCost):
            return cls(0, 0, None, DmaWork.of(cost, machine), ())
        ps = PS_PER_NS / machine.clock_ghz(form.engine)
        ports: tuple[int, ...] = ()
        if machine.shared_ports_exclusive:
            memories = {operand.memory for operand in form.operands}
            ports = tuple(
                port
                for port, memory, engines in _SHARERS
                if form.engine in engines and memory in memories
            )
        table = cost.table if form.engine is Engine.SCALAR else None
        return cls(round(cost.interval * ps), round(cost.latency * ps), table, None, ports)


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
    dependences = dependences_of(program, machine, ops, placement, executed=executed)
    return simulate(program, machine, ops, dependences)


def simulate(
    program: Program,
    machine: Machine,
    ops: OpTable,
    dependences: Dependences,
) -> Timeline:
    """Run the clock over a Program whose dependences are known.

    Args:
        program: A valid Program.
        machine: The machine; may differ in costs from the one used for the dependences.
        ops: The op table.
        dependences: What waits for what.
    """
    return _Clock(program, machine, ops, dependences).run()


class _Clock:
    """State of one simulation."""

    def __init__(
        self, program: Program, machine: Machine, ops: OpTable, dependences: Dependences
    ) -> None:
        self.machine, self.dependences = machine, dependences
        self.priced = [
            PricedForm.of(form, ops[form.op].cost(form, machine), machine) for form in program.forms
        ]
        access = dependences.access
        forms = np.array(dependences.forms, dtype=np.int64)
        streams = np.array([a.stream for a in access] or [0], dtype=np.int64)[forms]
        lanes = np.array([a.lane + ENGINE_COUNT * a.is_dma for a in access] or [0], dtype=np.int64)
        self.lanes = lanes[forms]
        self.queues = [np.flatnonzero(streams == s).tolist() for s in range(STREAMS)]
        dma_stream = np.array([-1 if a.is_dma else a.stream for a in access] or [0])
        self.engine_of = dma_stream[forms].tolist()
        """For each entry the engine that computes it, -1 for DMA."""
        self.semaphore = round(machine.semaphore_ns * PS_PER_NS)
        self.issue_ps = round(machine.dma.issue_stream_ns * PS_PER_NS)
        self.descriptor_ps = round(machine.dma.software_descriptor_ns * PS_PER_NS)
        count = len(dependences.order)
        self.before = round(machine.launch_before_ns * PS_PER_NS)
        self.table_load = round(machine.act.table_load_ns * PS_PER_NS)
        self.begins, self.ends = [0] * count, [-1] * count
        self.results, self.waits, self.causes = [-1] * count, [0] * count, [-1] * count
        self.visible = [0] * _TRACKS
        """When the latest result of each track appears."""
        self.port_free = [[self.before] * ENGINE_COUNT for _ in _SHARERS]
        self.table: str | None = None
        self.waiting: dict[int, list[int]] = {}
        """Streams whose head waits for an entry that has not run yet."""
        self.runnable = [stream for stream in range(STREAMS) if self.queues[stream]]
        """Streams whose head may not be blocked."""
        self.contenders: list[tuple[int, int, int, int]] = []
        """What runs next on a shared resource: (when, entry, wait, cause) of an instruction that
        holds a port, (when, entry, COPY, queue) of the first copy of a DMA queue."""
        self.dma = DmaState(machine, self.before)
        self.copies: list[list[tuple[int, int, int, int]]] = [[] for _ in range(ENGINE_COUNT)]
        """By queue: copies that are ready but not issued, (ready, entry, wait, cause)."""
        self.posted = [NEVER] * ENGINE_COUNT
        """By queue: when its first copy is issued, as it stands in `contenders`."""

    def run(self) -> Timeline:
        """Run all instructions."""
        machine, waiting, contenders = self.machine, self.waiting, self.contenders
        access, forms, runnable = self.dependences.access, self.dependences.forms, self.runnable
        streams = [self._stream(stream) for stream in range(STREAMS)]
        while True:
            while runnable:
                next(streams[runnable.pop()], None)
            if not contenders:
                break
            # No instruction that is still blocked can be ready before the earliest contender.
            when, entry, wait, cause = heappop(contenders)
            if wait == COPY:
                if when != self.posted[cause]:
                    continue  # an earlier copy of the queue was posted after this one
                entry = self._issue(cause)
            else:
                self._run_on_port(entry, when, wait, cause)
                runnable.append(access[forms[entry]].stream)
            if entry in waiting:
                runnable.extend(waiting.pop(entry))
        if waiting:
            raise EmulatorBug(f"entries {sorted(waiting)[:5]} never ran, but others wait for them")
        return Timeline(
            instruction=np.array(self.dependences.order, dtype=np.int64),
            lane=self.lanes,
            start_ps=np.array(self.begins, dtype=np.int64),
            end_ps=np.array(self.ends, dtype=np.int64),
            result_ps=np.array(self.results, dtype=np.int64),
            wait=np.array(self.waits, dtype=np.int64),
            predecessor=np.array(self.causes, dtype=np.int64),
            launch_before_ps=self.before,
            launch_after_ps=round(machine.launch_after_ns * PS_PER_NS),
        )

    def _post(self, queue: int) -> None:
        """Let the first copy of a queue contend, from when the queue can issue it."""
        ready, entry, _, _ = self.copies[queue][0]
        when = max(ready, self.dma.issue_free[queue])
        if when < self.posted[queue]:
            self.posted[queue] = when
            heappush(self.contenders, (when, entry, COPY, queue))

    def _issue(self, queue: int) -> int:
        """Issue the first copy of a queue; return its entry."""
        ready, entry, wait, cause = heappop(self.copies[queue])
        form = self.dependences.forms[entry]
        work, track = self.priced[form].dma, self.dependences.access[form].track
        assert work is not None
        begin, end, why, blocker = self.dma.transfer(queue, work, ready, entry)
        if why is not None:
            wait, cause = int(why), blocker
        result = max(end + self.dma.complete_ps, self.visible[track])
        self.visible[track] = result
        self.begins[entry], self.ends[entry], self.results[entry] = begin, end, result
        self.waits[entry], self.causes[entry] = wait, cause
        self.posted[queue] = NEVER
        if self.copies[queue]:
            self._post(queue)
        return entry

    def _stream(self, stream: int) -> Iterator[None]:
        """Run a stream; yields whenever its head is blocked."""
        priced, forms, engine_of = self.priced, self.dependences.forms, self.engine_of
        edge_start, edges = self.dependences.edge_start, self.dependences.edges
        begins, ends, results = self.begins, self.ends, self.results
        waits, causes, waiting = self.waits, self.causes, self.waiting
        access, copies, runnable = self.dependences.access, self.copies, self.runnable
        data, reuse, engine = int(Wait.DATA), int(Wait.REUSE), int(Wait.ENGINE)
        at, last, semaphore = self.before, -1, self.semaphore
        for entry in self.queues[stream]:
            ready, wait, cause = at, engine, last
            for edge in edges[edge_start[entry] : edge_start[entry + 1]]:
                other, kind = edge >> KIND_BITS, edge & KIND_MASK
                while results[other] < 0:
                    if other in waiting:
                        waiting[other].append(stream)
                    else:
                        waiting[other] = [stream]
                    yield
                when, producer = results[other], engine_of[other]
                if producer >= 0:
                    if kind == AFTER_READER:
                        when = ends[other]
                    if producer != stream:
                        when += semaphore
                if when > ready:
                    ready, cause = when, other
                    wait = data if kind == DATA else reuse
            last = entry
            cost = priced[forms[entry]]
            if cost.dma is not None:
                if cost.dma.is_software_generated:
                    ready += self.descriptor_ps
                    at = ready
                else:
                    at = ready if stream >= ENGINE_COUNT else ready + self.issue_ps
                queue = access[forms[entry]].lane
                heappush(copies[queue], (ready, entry, wait, cause))
                self._post(queue)
                continue
            if cost.ports:
                heappush(self.contenders, (ready, entry, wait, cause))
                yield
                at = ends[entry]
                continue
            extra = 0
            if cost.table is not None and cost.table != self.table:
                self.table, extra = cost.table, self.table_load
            at = ready + cost.interval_ps + extra
            visible = max(ready + cost.latency_ps + extra, self.visible[stream])
            self.visible[stream] = visible
            begins[entry], ends[entry], results[entry] = ready, at, visible
            waits[entry], causes[entry] = wait, cause
            if entry in waiting:
                runnable += waiting.pop(entry)

    def _run_on_port(self, entry: int, ready: int, wait: int, cause: int) -> None:
        """Run an instruction that shares a port with another engine."""
        form = self.dependences.forms[entry]
        cost, stream = self.priced[form], self.dependences.access[form].stream
        begin = ready
        for port in cost.ports:
            others = [t for engine, t in enumerate(self.port_free[port]) if engine != stream]
            begin = max(begin, *others)
        if begin > ready:
            wait = int(Wait.PORT)
        extra = 0
        if cost.table is not None and cost.table != self.table:
            self.table, extra = cost.table, self.table_load
        end = begin + cost.interval_ps + extra
        for port in cost.ports:
            self.port_free[port][stream] = end
        result = max(begin + cost.latency_ps + extra, self.visible[stream])
        self.visible[stream] = result
        self.begins[entry], self.ends[entry], self.results[entry] = begin, end, result
        self.waits[entry], self.causes[entry] = wait, cause
