"""What can be worked out about a Program before it runs, once for all its runs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nkisim.errors import EmulatorBug, NkisimError, ProgramError
from nkisim.execute.coverage import Flags, grain_bytes, tracked_buffers
from nkisim.execute.masked import masked_run
from nkisim.execute.roles import SlotAccess, slot_access
from nkisim.execute.storage import peak_bytes
from nkisim.ir.access import Memory, Pattern
from nkisim.ir.program import Form, IntColumn, Program
from nkisim.memory.liveness import carrying_loops, first_and_last_use, home_loops, live_ranges
from nkisim.ops.masks import is_masked, operand_flags
from nkisim.ops.registry import OpTable, Run

Numbers = tuple[int, ...]


class Event(NamedTuple):
    """What happens around one instruction besides running it."""

    acquire: Numbers
    """Buffers that begin to live before it."""
    is_careful: bool
    """It touches tracked buffers or PSUM results, or has run-time indices."""
    release: Numbers
    """Buffers that nothing uses after it."""

    @property
    def changes_storage(self) -> bool:
        """Whether a buffer begins or ends here."""
        return bool(self.acquire or self.release)


@dataclass(frozen=True, slots=True)
class Slot:
    """One operand of a form, ready for making views."""

    pattern: Pattern
    parts: tuple[tuple[Pattern, int], ...]
    """What is touched: patterns, and their offsets in bytes from the operand's."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In bytes."""
    dtype: np.dtype[np.generic]
    is_register: bool
    reads: bool
    writes: bool
    accumulates: bool


@dataclass(frozen=True, slots=True)
class PlannedForm:
    """A form with its executable and its operands."""

    form: Form
    run: Run
    slots: tuple[Slot, ...]
    patterns: tuple[Pattern, ...]
    is_dynamic: bool
    writes_psum: bool
    masks: tuple[Flags, ...] | None = None
    """For each operand which elements a mask leaves; None without a mask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A Program ready to run."""

    program: Program
    forms: tuple[PlannedForm, ...]
    form: list[int]
    operand_start: list[int]
    operand_buffer: list[int]
    operand_bytes: list[int]
    """Offset of each operand in bytes."""
    sizes: IntColumn
    """Bytes of each buffer."""
    tracked: Flags
    grain: IntColumn
    holds_results: Flags
    """PSUM buffers that matmuls write."""
    results_grain: IntColumn
    first_run: list[Event | None]
    later_runs: list[Event | None]
    """Events once a static Program is known to read nothing unwritten."""
    loop_acquire: tuple[Numbers, ...]
    loop_release: tuple[Numbers, ...]
    loop_children: tuple[Numbers, ...]
    top_loops: Numbers
    traffic: IntColumn
    """Bytes read and written by the instructions before each."""
    peak_bytes: int


def make_plan(program: Program, ops: OpTable) -> Plan:
    """Prepare `program`.

    Raises:
        ProgramError: It names instructions that the op table does not have.
    """
    missing = sorted({form.op for form in program.forms if form.op not in ops})
    if missing:
        raise ProgramError(f"the op table has no {', '.join(missing[:5])}")
    if not program.buffers:
        raise ProgramError("the Program has no buffers")
    access = slot_access(program, ops)
    columns = program.buffer_columns
    tracked = tracked_buffers(program, access)
    slot = program.operand_slot
    holds_results = np.zeros(len(program.buffers), dtype=np.bool_)
    holds_results[program.operand_buffer[access.accumulates[slot]]] = True
    itemsize = np.array([o.dtype.itemsize for o in program.slots] or [1], dtype=np.int64)
    slot_bytes = np.array([o.size_bytes for o in program.slots] or [0], dtype=np.float64)
    form_bytes = np.array(
        [
            slot_bytes[a:b].sum()
            for a, b in zip(program.form_slot[:-1], program.form_slot[1:], strict=True)
        ]
        or [0.0]
    )
    traffic = np.zeros(len(program) + 1)
    np.cumsum(form_bytes[program.form], out=traffic[1:])

    planned = tuple(
        _plan_form(form, ops, access, int(first))
        for form, first in zip(program.forms, program.form_slot[:-1], strict=True)
    )
    acquire, release, loop_acquire, loop_release = _lifetime_events(program)
    careful_form = np.array(
        [f.is_dynamic or f.masks is not None for f in planned] or [False], dtype=np.bool_
    )
    watched = np.zeros(len(program), dtype=np.bool_)
    watched |= careful_form[program.form]
    writes_results = holds_results[_safe(program)] & access.writes[slot]
    psum_only = watched.copy()
    psum_only[program.operand_instruction[writes_results]] = True
    watched[program.operand_instruction[writes_results | tracked[_safe(program)]]] = True
    children: defaultdict[int | None, list[int]] = defaultdict(list)
    for number, loop in enumerate(program.loops):
        children[loop.parent].append(number)
    for numbers in children.values():
        numbers.sort(key=lambda number: (program.loops[number].first, number))
    first_run = _events(acquire, watched, release)
    later_runs = first_run.copy()
    for i in np.flatnonzero(watched & ~psum_only).tolist():
        event = first_run[i]
        assert event is not None
        later_runs[i] = event._replace(is_careful=False) if event.changes_storage else None
    live = live_ranges(program)
    grain = grain_bytes(program, access, tracked)
    flags = np.where(tracked, columns.size_bytes // np.maximum(grain, 1), 0)
    owned = ~columns.is_kind("input") & ~columns.is_kind("constant")
    last = np.where(columns.is_kind("output"), len(program), live.last)
    return Plan(
        program=program,
        forms=planned,
        form=program.form.tolist(),
        operand_start=program.operand_start.tolist(),
        operand_buffer=program.operand_buffer.tolist(),
        operand_bytes=(program.operand_offset * itemsize[slot]).tolist(),
        sizes=columns.size_bytes,
        tracked=tracked,
        grain=grain,
        holds_results=holds_results,
        results_grain=grain_bytes(program, access, holds_results),
        first_run=first_run,
        later_runs=later_runs,
        loop_acquire=loop_acquire,
        loop_release=loop_release,
        loop_children=tuple(tuple(children[n]) for n in range(len(program.loops))),
        top_loops=tuple(children[None]),
        traffic=traffic.astype(np.int64),
        peak_bytes=peak_bytes(live.first, last, columns.size_bytes * owned + flags, len(program)),
    )


def _safe(program: Program) -> IntColumn:
    """Return the operand's buffer, or the last buffer for registers."""
    if not program.register_count:
        return program.operand_buffer
    return np.where(program.operand_is_register, 0, program.operand_buffer)


def _plan_form(form: Form, ops: OpTable, access: SlotAccess, first: int) -> PlannedForm:
    try:
        run = ops[form.op].compile(form)
    except NkisimError:
        raise
    except Exception as error:
        raise EmulatorBug(f"{form.op}: cannot be compiled: {error!r:.300}") from error
    slots = tuple(
        Slot(
            operand.pattern,
            tuple(
                (part.pattern, part.offset * operand.dtype.itemsize)
                for part in access.parts[first + position]
            ),
            operand.pattern.counts,
            tuple(stride * operand.dtype.itemsize for stride in operand.pattern.strides),
            operand.dtype.storage,
            operand.memory is Memory.REGISTER,
            bool(access.reads[first + position]),
            bool(access.writes[first + position]),
            bool(access.accumulates[first + position]),
        )
        for position, operand in enumerate(form.operands)
    )
    masks = operand_flags(form, ops[form.op]) if is_masked(form) else None
    if masks is not None:
        run = masked_run(run, masks, [p for p, slot in enumerate(slots) if slot.writes])
    return PlannedForm(
        form,
        run,
        slots,
        tuple(operand.pattern for operand in form.operands),
        any(operand.index is not None for operand in form.operands),
        any(
            slot.writes and operand.memory is Memory.PSUM
            for slot, operand in zip(slots, form.operands, strict=True)
        ),
        masks,
    )


def _lifetime_events(
    program: Program,
) -> tuple[dict[int, list[int]], dict[int, list[int]], tuple[Numbers, ...], tuple[Numbers, ...]]:
    """Return which buffers begin before and end after each instruction and each loop."""
    uses = first_and_last_use(program)
    columns = program.buffer_columns
    home = home_loops(program, uses)
    begins_at = carrying_loops(program, uses.first, home)
    ends_at = carrying_loops(program, uses.last, home)
    has_storage = ~columns.is_kind("input") & ~columns.is_kind("constant")
    numbers = np.flatnonzero(has_storage & (uses.last >= uses.first))
    acquire: defaultdict[int, list[int]] = defaultdict(list)
    release: defaultdict[int, list[int]] = defaultdict(list)
    loop_acquire: list[list[int]] = [[] for _ in program.loops]
    loop_release: list[list[int]] = [[] for _ in program.loops]
    kept = columns.is_kind("output")
    for number, first, last, begin, end, is_kept in zip(
        numbers.tolist(),
        uses.first[numbers].tolist(),
        uses.last[numbers].tolist(),
        begins_at[numbers].tolist(),
        ends_at[numbers].tolist(),
        kept[numbers].tolist(),
        strict=True,
    ):
        (acquire[first] if begin < 0 else loop_acquire[begin]).append(number)
        if not is_kept:
            (release[last] if end < 0 else loop_release[end]).append(number)
    return acquire, release, tuple(map(tuple, loop_acquire)), tuple(map(tuple, loop_release))


def _events(
    acquire: dict[int, list[int]], careful: Flags, release: dict[int, list[int]]
) -> list[Event | None]:
    is_careful: list[bool] = careful.tolist()
    events: list[Event | None] = [None] * len(is_careful)
    for i in {*acquire, *release, *np.flatnonzero(careful).tolist()}:
        events[i] = Event(tuple(acquire.get(i, ())), is_careful[i], tuple(release.get(i, ())))
    return events
