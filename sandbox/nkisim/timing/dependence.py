"""What each executed instruction must wait for: what it reads, and users of what it overwrites.

Works on physical boxes, in executed order.  Writers and readers of a place are kept apart, and a
write removes what it covers, so histories stay short.  Streams run in order and their results
appear in order, so of several entries of one track only the latest is waited for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nkisim.ir.access import Memory
from nkisim.ir.program import Form, IntColumn, Program
from nkisim.machine.spec import Engine, Machine
from nkisim.memory.placement import Placement
from nkisim.ops.registry import Cost, DmaCost, OpSpec, OpTable
from nkisim.timing.boxes import boxes_of
from nkisim.timing.timeline import ENGINES

ENGINE_COUNT = len(ENGINES)
STREAMS = ENGINE_COUNT + 2
"""The engines' streams, and Sync's loads and stores."""
_SYNC = ENGINES.index(Engine.SYNC)
_GPSIMD = ENGINES.index(Engine.GPSIMD)

AFTER_READER, AFTER_WRITER, DATA = 0, 1, 2
"""Kinds of dependence: a reader is done, a writer is done, a result is there."""
KIND_BITS = 2
KIND_MASK = (1 << KIND_BITS) - 1

Box = tuple[int, int, int, int]
"""Row start, row end, byte start, byte end."""


@dataclass(frozen=True, slots=True)
class FormAccess:
    """Where instructions of a form run and which of their operands they read and write."""

    lane: int
    """Engine that executes it, or issues it if it is a DMA; index into `ENGINES`."""
    stream: int
    """Stream that it waits in."""
    track: int
    """Instructions of one track finish in order."""
    is_dma: bool
    reads: tuple[int, ...]
    """Positions of operands."""
    writes: tuple[int, ...]

    @classmethod
    def of(cls, form: Form, spec: OpSpec, cost: Cost | DmaCost) -> FormAccess:
        """Work out the access of one form.

        Software descriptors are written by GpSimd, whichever engine asked for the copy.
        """
        reads: list[int] = []
        writes: list[int] = []
        for i, operand in enumerate(form.operands):
            param = None if operand.is_index else spec.param(operand.param)
            access = "r" if param is None else param.access
            if "r" in access:
                reads.append(i)
            if "w" in access:
                writes.append(i)
        lane = stream = track = ENGINES.index(form.engine)
        is_dma = isinstance(cost, DmaCost)
        if isinstance(cost, DmaCost):
            lane = stream = _GPSIMD if cost.is_software_generated else lane
            track = ENGINE_COUNT + 2 * lane + int(cost.is_store)
            if lane == _SYNC:
                stream = ENGINE_COUNT + int(cost.is_store)
        return cls(lane, stream, track, is_dma, tuple(reads), tuple(writes))


@dataclass(frozen=True, eq=False, slots=True)
class Dependences:
    """The order of execution and what each entry of it waits for."""

    order: list[int]
    """Instruction of each entry."""
    forms: list[int]
    """Form of each entry."""
    access: tuple[FormAccess, ...]
    """By form."""
    edge_start: list[int]
    """Where each entry's edges start in `edges`, and the end."""
    edges: list[int]
    """(Earlier entry << KIND_BITS) + kind."""

    def of(self, entry: int) -> list[tuple[int, int]]:
        """Return what one entry waits for as (entry, kind), earliest first."""
        mine = self.edges[self.edge_start[entry] : self.edge_start[entry + 1]]
        return sorted((edge >> KIND_BITS, edge & KIND_MASK) for edge in mine)

    def without_reuse(self) -> Dependences:
        """Return what would be waited for if no memory were ever used twice."""
        edges = np.array(self.edges, dtype=np.int64)
        is_data = (edges & KIND_MASK) == DATA
        kept = np.concatenate([[0], np.cumsum(is_data)])
        start = kept[np.array(self.edge_start, dtype=np.int64)]
        return replace(self, edge_start=start.tolist(), edges=edges[is_data].tolist())


class _History:
    """Latest writers and readers of one place."""

    __slots__ = ("is_disjoint", "readers", "writers")

    def __init__(self) -> None:
        self.writers: dict[Box, int] = {}
        self.readers: dict[int, dict[Box, int]] = {}
        """By track."""
        self.is_disjoint = True
        """Whether no two boxes of `writers` overlap."""


def dependences_of(
    program: Program,
    machine: Machine,
    ops: OpTable,
    placement: Placement,
    *,
    executed: IntColumn | None = None,
) -> Dependences:
    """Find all dependences of a Program.

    Args:
        program: A valid Program.
        machine: The machine.
        ops: The op table.
        placement: Where its tiles live.
        executed: Instruction numbers in executed order; default is program order.
    """
    access = tuple(
        FormAccess.of(form, ops[form.op], ops[form.op].cost(form, machine))
        for form in program.forms
    )
    order = np.arange(len(program)) if executed is None else executed
    boxes = boxes_of(program, placement)
    place = np.where(untracked(program, access)[program.operand_buffer], UNTRACKED, boxes.place)
    place = np.where(program.operand_is_register, boxes.place, place)
    corners = zip(
        boxes.row_start.tolist(),
        boxes.row_end.tolist(),
        boxes.byte_start.tolist(),
        boxes.byte_end.tolist(),
        strict=True,
    )
    forms = program.form[order].tolist()
    edge_start, edges = _track(
        [access[form] for form in forms],
        program.operand_start[:-1][order].tolist(),
        place.tolist(),
        list(corners),
        placement.overlaps,
    )
    return Dependences(order.tolist(), forms, access, edge_start, edges)


UNTRACKED = -(1 << 40)
"""Place number of operands that nothing depends on."""


def untracked(program: Program, access: Sequence[FormAccess]) -> IntColumn:
    """Return a flag per buffer: HBM that is only read or only written."""
    count = max(1, len(program.buffers))
    is_read, is_written = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    start = program.operand_start[:-1]
    for number, form in enumerate(access):
        at = start[program.form == number]
        for positions, flags in ((form.reads, is_read), (form.writes, is_written)):
            for k in positions:
                if program.forms[number].operands[k].memory is not Memory.REGISTER:
                    flags[program.operand_buffer[at + k]] = True
    in_hbm = np.zeros(count, dtype=bool)
    in_hbm[: len(program.buffers)] = program.buffer_columns.is_in(Memory.HBM)
    return np.asarray(in_hbm & ~(is_read & is_written))


def _track(
    access: Sequence[FormAccess],
    starts: Sequence[int],
    places: Sequence[int],
    boxes: Sequence[Box],
    overlaps: Mapping[int, tuple[int, ...]],
) -> tuple[list[int], list[int]]:
    """Return where each entry's edges start, and the edges.

    The loop is written out flat: it runs once for each operand of each executed instruction.
    """
    tracks = [form.track for form in access]
    histories: dict[int, _History] = {}
    edges: list[int] = []
    edge_start = [0]
    for entry, form in enumerate(access):
        base, own = starts[entry], form.track
        results: dict[int, int] = {}
        """By track: latest entry whose result is waited for, with its kind."""
        readers: dict[int, int] = {}
        for k in form.reads:
            place = places[base + k]
            if place == UNTRACKED:
                continue
            history = histories.get(place)
            if history is None:
                history = histories[place] = _History()
            box = boxes[base + k]
            writers = history.writers
            if history.is_disjoint and box in writers:
                before = writers[box]
                track, code = tracks[before], (before << KIND_BITS) + DATA
                if results.get(track, -1) < code:
                    results[track] = code
            elif writers:
                _add_overlapping(writers, box, DATA, tracks, results)
            if place in overlaps:
                for other in overlaps[place]:
                    if other in histories:
                        _add_overlapping(histories[other].writers, box, DATA, tracks, results)
        for k in form.writes:
            place = places[base + k]
            if place == UNTRACKED:
                continue
            history = histories.get(place)
            if history is None:
                history = histories[place] = _History()
            box = boxes[base + k]
            _overwrite(history, box, own, form.is_dma, tracks, results, readers)
            if place in overlaps:
                for other in overlaps[place]:
                    if other in histories:
                        _overwrite(
                            histories[other], box, own, form.is_dma, tracks, results, readers
                        )
        for track, before in readers.items():
            code = before << KIND_BITS
            if results.get(track, -1) < code:
                # A separate key: the latest result of the track may be needed as well.
                results[~track] = code
        edges += results.values()
        edge_start.append(len(edges))
        for k in form.reads:
            place = places[base + k]
            if place != UNTRACKED:
                mine = histories[place].readers.get(own)
                if mine is None:
                    mine = histories[place].readers[own] = {}
                mine[boxes[base + k]] = entry
        for k in form.writes:
            place = places[base + k]
            if place != UNTRACKED:
                histories[place].writers[boxes[base + k]] = entry
    return edge_start, edges


def _add_overlapping(
    group: Mapping[Box, int], box: Box, kind: int, tracks: Sequence[int], found: dict[int, int]
) -> None:
    r0, r1, b0, b1 = box
    for (s0, s1, c0, c1), before in group.items():
        if s0 < r1 and r0 < s1 and c0 < b1 and b0 < c1:
            track, code = tracks[before], (before << KIND_BITS) + kind
            if found.get(track, -1) < code:
                found[track] = code


def _overwrite(
    history: _History,
    box: Box,
    own: int,
    is_dma: bool,
    tracks: Sequence[int],
    results: dict[int, int],
    readers: dict[int, int],
) -> None:
    """Wait for what a write to `box` overwrites, and forget what it covers.

    An engine's own earlier reads and writes need no wait: its pipeline keeps them in order.
    """
    writers = history.writers
    r0, r1, b0, b1 = box
    if history.is_disjoint and box in writers:
        before = writers.pop(box)
        track = tracks[before]
        if track != own or is_dma:
            code = (before << KIND_BITS) + AFTER_WRITER
            if results.get(track, -1) < code:
                results[track] = code
    elif writers:
        covered: list[Box] = []
        is_disjoint = history.is_disjoint
        for other, before in writers.items():
            s0, s1, c0, c1 = other
            if s0 < r1 and r0 < s1 and c0 < b1 and b0 < c1:
                track = tracks[before]
                if track != own or is_dma:
                    code = (before << KIND_BITS) + AFTER_WRITER
                    if results.get(track, -1) < code:
                        results[track] = code
                if r0 <= s0 and s1 <= r1 and b0 <= c0 and c1 <= b1:
                    covered.append(other)
                else:
                    is_disjoint = False
        for other in covered:
            del writers[other]
        history.is_disjoint = is_disjoint or not writers
    for track, group in history.readers.items():
        if not group:
            continue
        if len(group) == 1 and box in group:
            latest = group.pop(box)
            if (track != own or is_dma) and readers.get(track, -1) < latest:
                readers[track] = latest
            continue
        latest = -1
        covered = []
        for other, before in group.items():
            s0, s1, c0, c1 = other
            if s0 < r1 and r0 < s1 and c0 < b1 and b0 < c1:
                latest = max(latest, before)
                if r0 <= s0 and s1 <= r1 and b0 <= c0 and c1 <= b1:
                    covered.append(other)
        if len(covered) == len(group):
            group.clear()
        else:
            for other in covered:
                del group[other]
        if latest >= 0 and (track != own or is_dma) and readers.get(track, -1) < latest:
            readers[track] = latest
