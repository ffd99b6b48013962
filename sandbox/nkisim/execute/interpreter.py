"""Runs a Program on arrays.

One closure per form; operands are numpy windows on the buffers' storage; tiles take storage from a
pool and give it back after their last use.  Fresh memory is poison, and reading elements that
nothing has written is an error with its line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from nkisim.dtypes import Array
from nkisim.errors import (
    DiagnosticError,
    EmulatorBug,
    NkisimError,
    OutOfFuel,
    Place,
    ProgramError,
    Warnings,
)
from nkisim.execute import masked
from nkisim.execute.coverage import Coverage, Flags
from nkisim.execute.fuel import Fuel
from nkisim.execute.indexed import IndexedRunner
from nkisim.execute.masked import spread
from nkisim.execute.plan import Event, Plan, PlannedForm, Slot, make_plan
from nkisim.execute.result import Execution, TripRecorder
from nkisim.execute.state import DeviceState
from nkisim.execute.storage import Bytes, Pool, fill, poison
from nkisim.execute.unwritten import unwritten_output, unwritten_read
from nkisim.ir.program import Loop, Program
from nkisim.ops.registry import OpTable, Run

DEFAULT_FUEL = Fuel()
_ndarray = np.ndarray
_NO_STORAGE: Bytes = np.zeros(0, dtype=np.uint8)


def execute(
    program: Program,
    inputs: Sequence[Array],
    *,
    fuel: Fuel = DEFAULT_FUEL,
    ops: OpTable | None = None,
    seed: int = 0,
    allow_unwritten_reads: bool = False,
) -> Execution:
    """Run `program` once.

    Args:
        program: A valid Program.
        inputs: One array per argument, in its shape and storage dtype.  Never written.
        fuel: What the run may use.
        ops: The op table; None for nkisim's own.
        seed: Of the device's random generator.
        allow_unwritten_reads: Let instructions read fresh memory, which holds poison; said in the
            result's warnings.

    Raises:
        KernelError: The kernel breaks a rule that shows only when it runs.
        OutOfFuel: It needs more than `fuel`.
    """
    interpreter = Interpreter(
        program, fuel=fuel, ops=ops, allow_unwritten_reads=allow_unwritten_reads
    )
    return interpreter.run(inputs, seed=seed)


class Interpreter:
    """A Program prepared for any number of runs.

    Args:
        program: A valid Program.
        fuel: What each run may use.
        ops: The op table; None for nkisim's own.
        allow_unwritten_reads: As for `execute`.
    """

    def __init__(
        self,
        program: Program,
        *,
        fuel: Fuel = DEFAULT_FUEL,
        ops: OpTable | None = None,
        allow_unwritten_reads: bool = False,
    ) -> None:
        if ops is None:
            from nkisim.ops.table import OPS

            ops = OPS
        if not program.loops:
            fuel.check("instructions", len(program))
        self.program = program
        self.fuel = fuel
        self.allow_unwritten_reads = allow_unwritten_reads
        self.plan = make_plan(program, ops)
        fuel.check("bytes", self.plan.peak_bytes)
        if not program.loops:
            fuel.check("traffic_bytes", int(self.plan.traffic[-1]))
        self._pool = Pool()
        self._is_proven = False
        """A run of a static Program has read nothing unwritten, so none will."""

    def run(self, inputs: Sequence[Array], *, seed: int = 0) -> Execution:
        """Run once; see `execute`."""
        run = _RunOnce(
            self.plan,
            self.fuel,
            self._pool,
            seed,
            is_proven=self._is_proven,
            allow_unwritten_reads=self.allow_unwritten_reads,
        )
        result = run.run(inputs)
        self._is_proven = not self.program.is_dynamic
        return result


class _RunOnce:
    """One run."""

    def __init__(
        self,
        plan: Plan,
        fuel: Fuel,
        pool: Pool,
        seed: int,
        *,
        is_proven: bool,
        allow_unwritten_reads: bool = False,
    ) -> None:
        program = plan.program
        self.plan, self.program, self.fuel, self.pool = plan, program, fuel, pool
        self.is_proven = is_proven
        self.allow_unwritten_reads = allow_unwritten_reads
        self.events = plan.later_runs if is_proven else plan.first_run
        self.storage: list[Bytes] = [_NO_STORAGE] * len(program.buffers)
        self.written = Coverage(plan.grain, plan.sizes)
        self.results = Coverage(plan.results_grain, plan.sizes)
        self.state = DeviceState(
            program.register_count, seed, self.results, plan.operand_buffer, plan.operand_bytes
        )
        special = plan.holds_results | plan.tracked | program.buffer_columns.has_fill
        self._is_special: list[bool] = special.tolist()
        self._sizes: list[int] = plan.sizes.tolist()
        self.steps = [self._step(form) for form in plan.forms]
        self.warnings = Warnings()
        self.recorder = TripRecorder(program) if program.is_dynamic else None
        self.indexed = IndexedRunner(self, self.recorder or TripRecorder(program))
        self.executed = 0
        self.traffic = 0
        self.trips = 0

    def run(self, inputs: Sequence[Array]) -> Execution:
        try:
            written_arguments = self._bind(inputs)
            with np.errstate(all="ignore"):
                self._block(0, len(self.program), self.plan.top_loops)
            return Execution(
                outputs=self._outputs(),
                written_arguments=written_arguments,
                trips=None if self.recorder is None else self.recorder.log(),
                instructions_executed=self.executed,
                warnings=tuple(self.warnings.items),
            )
        finally:  # closures and helpers refer to each other: let go of the storage now
            self.storage.clear()
            self.steps.clear()

    # -- inputs and outputs -----------------------------------------------------------------

    def _bind(self, inputs: Sequence[Array]) -> dict[int, Array]:
        arguments, written = self.program.arguments, {}
        if len(inputs) != len(arguments):
            raise ValueError(f"expected {len(arguments)} arrays, got {len(inputs)}")
        for position, (argument, value) in enumerate(zip(arguments, inputs, strict=True)):
            storage_dtype = argument.dtype.storage
            if value.dtype != storage_dtype or tuple(value.shape) != argument.shape:
                raise ValueError(
                    f"argument {argument.name!r}: expected {list(argument.shape)} "
                    f"{storage_dtype}, got {list(value.shape)} {value.dtype}"
                )
            contiguous = np.ascontiguousarray(value)
            if argument.is_written:
                contiguous = contiguous.copy()
                written[position] = contiguous.reshape(argument.shape)
            block = contiguous.reshape(-1).view(np.uint8)
            if not argument.is_written:
                block = block.view()
                block.flags.writeable = False
            self._place_fixed(argument.buffer, block)
        for number, buffer in enumerate(self.program.buffers):
            if buffer.constant is not None:
                values = np.ascontiguousarray(self.program.constants[buffer.constant])
                block = values.reshape(-1).view(np.uint8)
                block.flags.writeable = False
                self._place_fixed(number, block)
        return written

    def _place_fixed(self, buffer: int, block: Bytes) -> None:
        if block.nbytes != int(self.plan.sizes[buffer]):
            raise ProgramError(
                f"buffer {buffer} has {int(self.plan.sizes[buffer]):,} bytes, "
                f"its content {block.nbytes:,}"
            )
        self.storage[buffer] = block

    def _outputs(self) -> tuple[Array, ...]:
        results = []
        for position, output in enumerate(self.program.outputs):
            buffer, pattern = self.program.buffers[output.buffer], output.pattern
            size = pattern.dtype.itemsize
            offset = output.offset * size
            block = self.storage[output.buffer]
            missing: tuple[int, int] | None = None
            if not self.is_proven and self.plan.tracked[output.buffer]:
                if block is _NO_STORAGE:
                    missing = (pattern.size * size, offset)
                else:
                    missing = self.written.missing(output.buffer, pattern, offset)
            elif block is _NO_STORAGE:  # filled and never touched
                block = np.empty(int(self.plan.sizes[output.buffer]), dtype=np.uint8)
                fill(block, buffer, buffer.fill or 0.0)
            if missing is not None:
                raise unwritten_output(self.program, position, missing)
            strides = tuple(stride * size for stride in pattern.strides)
            view: Array = _ndarray(pattern.counts, pattern.dtype.storage, block, offset, strides)
            results.append(
                view if view.flags.c_contiguous and buffer.kind == "output" else view.copy()
            )
        return tuple(results)

    # -- control flow -----------------------------------------------------------------------

    def _block(self, first: int, last: int, loops: Sequence[int]) -> None:
        position = first
        for number in loops:
            loop = self.program.loops[number]
            self._segment(position, loop.first)
            self._loop(number, loop)
            position = loop.last
        self._segment(position, last)

    def _loop(self, number: int, loop: Loop) -> None:
        registers = self.state.registers
        children = self.plan.loop_children[number]
        nested = sum(self.program.loops[n].last - self.program.loops[n].first for n in children)
        body = loop.last - loop.first - nested
        place = self._place_text(loop.first)
        for buffer in self.plan.loop_acquire[number]:
            self._acquire(buffer)
        trips = 0
        if loop.kind == "for":
            if loop.step < 1:
                raise ProgramError(f"loop {number} has step {loop.step}")
            start = (
                loop.start if loop.start_register is None else int(registers[loop.start_register])
            )
            stop = loop.stop if loop.stop_register is None else int(registers[loop.stop_register])
            trips = max(0, -(-(stop - start) // loop.step))
            self.fuel.check("loop_trips", self.trips + trips, place)
            self.fuel.check("instructions", self.executed + trips * body, place)
            self.trips += trips
            for value in range(start, start + trips * loop.step, loop.step):
                registers[loop.register] = value
                self._block(loop.first, loop.last, children)
        else:
            while registers[loop.register] != 0:
                trips += 1
                self.trips += 1
                self.fuel.check("loop_trips", self.trips, place)
                self._block(loop.first, loop.last, children)
        for buffer in self.plan.loop_release[number]:
            self._release(buffer)
        assert self.recorder is not None
        self.recorder.trips[number].append(trips)

    def _segment(self, first: int, last: int) -> None:
        """Run instructions without loops between them."""
        if last <= first:
            return
        plan = self.plan
        self.traffic += int(plan.traffic[last] - plan.traffic[first])
        self.fuel.check("instructions", self.executed + last - first)
        self.fuel.check("traffic_bytes", self.traffic)
        form, start, events, steps = plan.form, plan.operand_start, self.events, self.steps
        i = first
        try:
            for i in range(first, last):
                event = events[i]
                if event is None:
                    steps[form[i]](start[i])
                else:
                    self._eventful(i, event, first)
        except DiagnosticError as error:
            raise error.at(*self._place(i)) from error.__cause__
        except NkisimError:
            raise
        except MemoryError as error:
            raise OutOfFuel("bytes", self.fuel.bytes, None, self._place_text(i)) from error
        except Exception as error:
            op = plan.forms[form[i]].form.op
            raise EmulatorBug(f"{op} at {self._place_text(i)}: {error!r:.300}") from error
        self.executed += last - first
        if self.recorder is not None:
            self.recorder.segments.append((first, last))

    def _place(self, instruction: int) -> tuple[Place, tuple[Place, ...]]:
        site = self.program.sites[int(self.program.site[instruction])]
        return site.place, site.callers

    def _place_text(self, instruction: int) -> str:
        if instruction >= len(self.program):
            return ""
        return str(self._place(instruction)[0])

    # -- storage ----------------------------------------------------------------------------

    def _acquire(self, number: int) -> None:
        block = self.pool.take(self._sizes[number])
        self.storage[number] = block
        if not self._is_special[number]:
            return
        if self.plan.holds_results[number]:
            self.results.reset(number)
        buffer = self.program.buffers[number]
        if buffer.fill is not None:
            fill(block, buffer, buffer.fill)
        elif self.plan.tracked[number] and not self.is_proven:
            poison(block, buffer)
            self.written.reset(number)

    def _release(self, number: int) -> None:
        self.pool.give(self.storage[number])
        self.storage[number] = _NO_STORAGE

    # -- one instruction --------------------------------------------------------------------

    def _step(self, planned: PlannedForm) -> Callable[[int], None]:
        """Return a closure that runs an instruction, given its first operand."""
        run, state, storage = planned.run, self.state, self.storage
        buffers, offsets = self.plan.operand_buffer, self.plan.operand_bytes
        slots = planned.slots
        if any(slot.is_register for slot in slots) or not 1 <= len(slots) <= 4:
            return self._general_step(run, slots)
        shapes = [(slot.shape, slot.dtype, slot.strides) for slot in slots]
        if len(slots) == 1:
            ((c0, d0, s0),) = shapes

            def step1(k: int) -> None:
                run(state, (_ndarray(c0, d0, storage[buffers[k]], offsets[k], s0),))

            return step1
        if len(slots) == 2:
            (c0, d0, s0), (c1, d1, s1) = shapes

            def step2(k: int) -> None:
                j = k + 1
                run(
                    state,
                    (
                        _ndarray(c0, d0, storage[buffers[k]], offsets[k], s0),
                        _ndarray(c1, d1, storage[buffers[j]], offsets[j], s1),
                    ),
                )

            return step2
        if len(slots) == 3:
            (c0, d0, s0), (c1, d1, s1), (c2, d2, s2) = shapes

            def step3(k: int) -> None:
                j, m = k + 1, k + 2
                run(
                    state,
                    (
                        _ndarray(c0, d0, storage[buffers[k]], offsets[k], s0),
                        _ndarray(c1, d1, storage[buffers[j]], offsets[j], s1),
                        _ndarray(c2, d2, storage[buffers[m]], offsets[m], s2),
                    ),
                )

            return step3
        return self._general_step(run, slots)

    def _general_step(self, run: Run, slots: tuple[Slot, ...]) -> Callable[[int], None]:
        state = self.state

        def step(k: int) -> None:
            run(state, [self.view(slot, k + p) for p, slot in enumerate(slots)])

        return step

    def view(self, slot: Slot, k: int, offset: int | None = None) -> Array:
        """Return operand `k` as a window on its buffer or register."""
        number = self.plan.operand_buffer[k]
        if slot.is_register:
            return self.state.registers[number : number + 1]
        if offset is None:
            offset = self.plan.operand_bytes[k]
        return _ndarray(slot.shape, slot.dtype, self.storage[number], offset, slot.strides)

    def _eventful(self, i: int, event: Event, segment_first: int) -> None:
        for number in event.acquire:
            self._acquire(number)
        if event.is_careful:
            planned = self.plan.forms[self.plan.form[i]]
            k = self.plan.operand_start[i]
            self.state.begin(k, planned.patterns)
            if planned.is_dynamic:
                self.indexed.run(planned, k, self.executed + i - segment_first)
            else:
                self._careful(planned, k, i)
            self.state.end()
        else:
            self.steps[self.plan.form[i]](self.plan.operand_start[i])
        for number in event.release:
            self._release(number)

    def _careful(self, planned: PlannedForm, k: int, i: int) -> None:
        """Run an instruction that touches tracked buffers or matmul results."""
        buffers, offsets, flags = (
            self.plan.operand_buffer,
            self.plan.operand_bytes,
            self.written.flags,
        )
        slots = planned.slots
        if not self.is_proven:
            for p, slot in enumerate(slots):
                if slot.reads and not slot.is_register and flags[buffers[k + p]] is not None:
                    self.check_written(planned, p, buffers[k + p], offsets[k + p])
        self.steps[self.plan.form[i]](k)
        if not self.is_proven:
            for p, slot in enumerate(slots):
                if slot.writes and not slot.is_register and flags[buffers[k + p]] is not None:
                    if planned.masks is not None:
                        self.mark_masked(buffers[k + p], slot, offsets[k + p], planned.masks[p])
                        continue
                    for pattern, shift in slot.parts:
                        view = self.written.view(buffers[k + p], pattern, offsets[k + p] + shift)
                        self.mark(buffers[k + p], view, None)
        if planned.writes_psum:
            self.note_results(slots, planned.masks)

    def mark(self, buffer: int, flags: Flags | None, is_valid: Flags | None) -> None:
        """Note that the elements under `flags` are written; `is_valid` tells which rows."""
        if flags is None:
            return
        if is_valid is None or is_valid.all():
            flags[...] = True
        else:
            rows = np.repeat(is_valid, flags.size // len(is_valid)).reshape(flags.shape)
            np.logical_or(flags, rows, out=flags)
        self.written.touch(buffer)

    def mark_masked(self, buffer: int, slot: Slot, offset: int, mask: Flags) -> None:
        """Note that the elements that `mask` leaves are written."""
        view = self.written.view(buffer, slot.pattern, offset)
        if view is not None:
            view |= spread(mask, slot.pattern, self.written.grain[buffer])
            self.written.touch(buffer)

    def note_results(self, slots: tuple[Slot, ...], masks: tuple[Flags, ...] | None = None) -> None:
        """Note where matmul results are now, and where other instructions overwrote them."""
        for p, slot in enumerate(slots):
            if slot.writes and not slot.is_register:
                view = self.state.result_flags(p)
                if view is not None and masks is not None:
                    grain = self.state.result_grain(p)
                    np.copyto(view, slot.accumulates, where=spread(masks[p], slot.pattern, grain))
                elif view is not None:
                    view[...] = slot.accumulates

    def check_written(self, planned: PlannedForm, position: int, buffer: int, offset: int) -> None:
        """Raise if operand `position` reads unwritten elements."""
        missing: tuple[int, int] | None = None
        if planned.masks is not None:
            pattern, flags = planned.slots[position].pattern, planned.masks[position]
            missing = masked.missing(self.written, buffer, pattern, offset, flags)
        else:
            for pattern, shift in planned.slots[position].parts:
                missing = self.written.missing(buffer, pattern, offset + shift)
                if missing is not None:
                    break
        if missing is None:
            return
        error = unwritten_read(
            self.program, planned.form.op, planned.form.operands[position], buffer, missing
        )
        if not self.allow_unwritten_reads:
            raise error
        self.warnings.add(replace(error.diagnostic, kind="warning"))


__all__ = ["DEFAULT_FUEL", "Execution", "Interpreter", "execute"]
