"""A legal other order: what a compiler that schedules lists makes of the program's order.

The vendor's first compiler reorders the instructions of a kernel; the emulator's engines run them
in program order.  `list_order` plays the compiler: each stream looks ahead over a window of its
instructions and starts the first one that is ready, so that independent iterations overlap.  All
dependences are kept: results read, readers and writers of what is overwritten (memory as it is
placed, so that a tile's place still bounds how far its next user can move up), accumulation
registers and random numbers.  The order that comes out is then timed like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import Literal

import numpy as np

from nkisim.ir.program import IntColumn, Program
from nkisim.machine.spec import Machine
from nkisim.memory.placement import Placement
from nkisim.ops.registry import OpTable
from nkisim.timing.boxes import boxes_of
from nkisim.timing.dependence import (
    AFTER_READER,
    AFTER_WRITER,
    DATA,
    ENGINE_COUNT,
    STREAMS,
    UNTRACKED,
    Box,
    FormAccess,
    untracked,
)
from nkisim.timing.scheduler import PricedForm
from nkisim.timing.timeline import PS_PER_NS

Schedule = Literal["program", "list"]
SCHEDULES: tuple[Schedule, ...] = ("program", "list")
WINDOW = 256
"""Instructions of a stream that are looked at together."""
_STATE = -(1 << 41)
"""Place number of the hidden registers of the first engine; others follow downwards."""


def default_schedule(program: Program) -> Schedule:
    """Return the order in which the kernel's compiler lets its instructions run."""
    return "list" if program.is_hybrid else "program"


def list_order(
    program: Program,
    machine: Machine,
    ops: OpTable,
    placement: Placement,
    *,
    executed: IntColumn | None = None,
    window: int = WINDOW,
) -> IntColumn:
    """Return instruction numbers in the order of a list scheduler.

    Args:
        program: A valid Program.
        machine: The machine whose costs it plans with.
        ops: The op table.
        placement: Where tiles live.
        executed: Instruction numbers in executed order, for Programs whose loops the device runs.
        window: Instructions of a stream that are looked at together; 1 keeps the order.
    """
    order = np.arange(len(program)) if executed is None else executed
    costs = [ops[form.op].cost(form, machine) for form in program.forms]
    access = [
        FormAccess.of(form, ops[form.op], cost)
        for form, cost in zip(program.forms, costs, strict=True)
    ]
    priced = [
        PricedForm.of(form, cost, machine) for form, cost in zip(program.forms, costs, strict=True)
    ]
    forms = program.form[order].tolist()
    before = all_dependences(program, order, access, ops, placement)
    return np.asarray(order[_plan(machine, forms, access, priced, before, window)])


def all_dependences(
    program: Program,
    order: IntColumn,
    access: Sequence[FormAccess],
    ops: OpTable,
    placement: Placement,
) -> list[list[tuple[int, int]]]:
    """Return for each entry of `order` every earlier one that must stay before it, with the kind.

    Unlike `dependences_of`, nothing is left out because streams run in order.
    """
    boxes = boxes_of(program, placement)
    place = np.where(untracked(program, access)[program.operand_buffer], UNTRACKED, boxes.place)
    places = np.where(program.operand_is_register, boxes.place, place).tolist()
    corners = list(
        zip(
            boxes.row_start.tolist(),
            boxes.row_end.tolist(),
            boxes.byte_start.tolist(),
            boxes.byte_end.tolist(),
            strict=True,
        )
    )
    hidden = _hidden_state(program, ops)
    starts = program.operand_start[:-1][order].tolist()
    forms = program.form[order].tolist()
    histories: dict[int, _History] = {}
    found: list[list[tuple[int, int]]] = []
    for entry, number in enumerate(forms):
        form, base = access[number], starts[entry]
        edges: dict[int, int] = {}
        reads = [(places[base + k], corners[base + k]) for k in form.reads]
        writes = [(places[base + k], corners[base + k]) for k in form.writes]
        if hidden[number]:
            writes.append((_STATE - form.lane, (0, 1, 0, 1)))
        for at, box in reads:
            if at != UNTRACKED:
                for history in _touched(histories, at, placement.overlaps):
                    history.add_writers(box, edges)
        for at, box in writes:
            if at != UNTRACKED:
                for history in _touched(histories, at, placement.overlaps):
                    history.overwrite(box, edges)
        for at, box in reads:
            if at != UNTRACKED:
                histories[at].readers.setdefault(box, []).append(entry)
        for at, box in writes:
            if at != UNTRACKED:
                histories[at].writers.setdefault(box, []).append(entry)
        edges.pop(entry, None)
        found.append(list(edges.items()))
    return found


def _hidden_state(program: Program, ops: OpTable) -> list[bool]:
    """Return by form whether its instructions must keep their order for the sake of registers.

    Random numbers always; accumulation registers if any instruction goes on from what an earlier
    one left there, else each begins anew.
    """
    goes_on = any(
        form.attr("reduce_cmd") == "reduce"
        or (form.attr("reduce_cmd") == "idle" and form.get("reduce_res") is not None)
        for form in program.forms
    )
    return [
        any(word in form.op for word in ("rand", "rng", "dropout"))
        or (goes_on and ops[form.op].param("reduce_cmd") is not None)
        for form in program.forms
    ]


class _History:
    """All entries that touched a place and are not covered by a later write."""

    __slots__ = ("readers", "writers")

    def __init__(self) -> None:
        self.writers: dict[Box, list[int]] = {}
        self.readers: dict[Box, list[int]] = {}

    def add_writers(self, box: Box, edges: dict[int, int]) -> None:
        """Add those whose result a read of `box` needs."""
        same = self.writers.get(box)
        if same is not None and len(self.writers) == 1:
            for entry in same:
                edges[entry] = DATA
            return
        for other, entries in self.writers.items():
            if _overlap(box, other):
                for entry in entries:
                    edges[entry] = DATA

    def overwrite(self, box: Box, edges: dict[int, int]) -> None:
        """Add those that a write to `box` must come after, and forget what it covers."""
        for group, kind in ((self.readers, AFTER_READER), (self.writers, AFTER_WRITER)):
            covered = []
            for other, entries in group.items():
                if _overlap(box, other):
                    for entry in entries:
                        if edges.get(entry, -1) < kind:
                            edges[entry] = kind
                    if _covers(box, other):
                        covered.append(other)
            for other in covered:
                del group[other]


def _touched(
    histories: dict[int, _History], place: int, overlaps: Mapping[int, tuple[int, ...]]
) -> list[_History]:
    own = histories.get(place)
    if own is None:
        own = histories[place] = _History()
    if place not in overlaps:
        return [own]
    return [own, *(histories[other] for other in overlaps[place] if other in histories)]


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]


def _covers(a: Box, b: Box) -> bool:
    return a[0] <= b[0] and b[1] <= a[1] and a[2] <= b[2] and b[3] <= a[3]


_FREE, _READY = 0, 1


def _plan(
    machine: Machine,
    forms: Sequence[int],
    access: Sequence[FormAccess],
    priced: Sequence[PricedForm],
    before: Sequence[Sequence[tuple[int, int]]],
    window: int,
) -> list[int]:
    """Return the entries in the order in which they start."""
    count = len(forms)
    after: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for entry, edges in enumerate(before):
        for other, kind in edges:
            after[other].append((entry, kind))
    left = [len(edges) for edges in before]
    ready_at = [0] * count
    stream_of = [access[form].stream for form in forms]
    position = [0] * count
    queues: list[list[int]] = [[] for _ in range(STREAMS)]
    for entry, stream in enumerate(stream_of):
        position[entry] = len(queues[stream])
        queues[stream].append(entry)
    head = [0] * STREAMS
    started = [False] * count
    ready: list[list[int]] = [[] for _ in range(STREAMS)]
    free = [0] * STREAMS
    transfers = _Transfers(machine)
    semaphore = round(machine.semaphore_ns * PS_PER_NS)
    events: list[tuple[int, int, int]] = []
    """(when, what, entry or stream)."""
    for entry in range(count):
        if not left[entry]:
            heappush(events, (0, _READY, entry))
    planned: list[int] = []

    def start(stream: int, now: int) -> None:
        """Let a free stream start the first ready instruction of its window."""
        if not ready[stream] or free[stream] > now:
            return
        entry = ready[stream][0]
        if position[entry] >= head[stream] + window:
            return
        heappop(ready[stream])
        planned.append(entry)
        started[entry] = True
        queue = queues[stream]
        while head[stream] < len(queue) and started[queue[head[stream]]]:
            head[stream] += 1
        cost = priced[forms[entry]]
        if cost.dma is None:
            end, result = now + cost.interval_ps, now + cost.latency_ps
        else:
            end, result = transfers.copy(stream, cost, now)
        free[stream] = end
        heappush(events, (end, _FREE, stream))
        for other, kind in after[entry]:
            when = result
            if cost.dma is None:
                same = stream_of[other] == stream
                if kind != DATA and same:
                    when = now
                elif kind == AFTER_READER:
                    when = end
                if not same:
                    when += semaphore
            ready_at[other] = max(ready_at[other], when)
            left[other] -= 1
            if not left[other]:
                heappush(events, (ready_at[other], _READY, other))

    while events:
        now, what, which = heappop(events)
        stream = which
        if what == _READY:
            stream = stream_of[which]
            heappush(ready[stream], which)
        start(stream, now)
    return planned


class _Transfers:
    """A plain model of the DMA engines: one resource, in order of issue."""

    def __init__(self, machine: Machine) -> None:
        dma = machine.dma
        self.engines = dma.engines
        self.issue_ps = round(dma.issue_interval_ns * PS_PER_NS)
        self.stream_ps = round(dma.issue_stream_ns * PS_PER_NS)
        self.fixed_ps = round((dma.trigger_ns + dma.complete_ns) * PS_PER_NS)
        self.descriptor_ps = round(dma.software_descriptor_ns * PS_PER_NS)
        self.free = 0

    def copy(self, stream: int, cost: PricedForm, now: int) -> tuple[int, int]:
        """Return when the stream may go on and when the copy's result is there."""
        work = cost.dma
        assert work is not None
        self.free = max(self.free, now) + max(
            work.engine_ps * work.engines // self.engines, work.hbm_ps
        )
        own = self.issue_ps if stream >= ENGINE_COUNT else self.stream_ps
        if work.is_software_generated:
            own = self.descriptor_ps
        return now + own, max(self.free, now + work.engine_ps) + self.fixed_ps
