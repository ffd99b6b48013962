"""Checks on every access of a Program at once: bounds, partitions, banks, read-only tensors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nkisim.errors import KernelError, ProgramError
from nkisim.execute.coverage import Flags
from nkisim.execute.places import located
from nkisim.execute.roles import SlotAccess
from nkisim.ir.access import Memory
from nkisim.ir.program import MEMORIES, Form, IntColumn, Operand, Program
from nkisim.machine.spec import Engine, Machine
from nkisim.memory.psum import crosses_bank
from nkisim.memory.sbuf import is_legal_start, legal_starts
from nkisim.ops.registry import OpTable

QUADRANT = 32
"""Partitions of a quadrant."""


class Accesses:
    """All operand accesses of a Program as columns."""

    def __init__(
        self, program: Program, machine: Machine, ops: OpTable, access: SlotAccess
    ) -> None:
        self.program, self.machine, self.access = program, machine, access
        self.columns = program.buffer_columns
        operands = program.slots
        is_dma = np.zeros(len(program.forms), dtype=np.bool_)
        for number, form in enumerate(program.forms):
            is_dma[number] = form.op in ops and ops[form.op].is_dma
        keep = np.flatnonzero(~program.operand_is_register)
        everything = len(keep) == len(program.operand_buffer)
        self.slot = program.operand_slot if everything else program.operand_slot[keep]
        self.buffer = program.operand_buffer if everything else program.operand_buffer[keep]
        offset = program.operand_offset if everything else program.operand_offset[keep]
        self.entry = keep

        def per_slot(value: Callable[[Operand], int]) -> IntColumn:
            return np.array([value(o) for o in operands] or [0], dtype=np.int64)

        self.itemsize = per_slot(lambda o: o.dtype.itemsize)
        self.offset = offset * self.itemsize[self.slot]
        self.memory = per_slot(lambda o: MEMORIES.index(o.memory) if o.memory in MEMORIES else -1)
        self.partitions = per_slot(lambda o: o.partitions)
        self.pitch = per_slot(
            lambda o: o.pattern.strides[0] * o.dtype.itemsize if o.partitions > 1 else 0
        )
        self.low = per_slot(_free_low)
        self.high = per_slot(_free_high)
        self.is_indexed = np.array([o.index is not None for o in operands] or [False])
        self.is_vector = np.array(
            [o.index is not None and o.index.kind == "vector" for o in operands] or [False]
        )
        form_of_slot = np.repeat(
            np.arange(len(program.forms)), [len(form.operands) for form in program.forms]
        )
        engines = [form.engine for form in program.forms]
        self.has_partition_rule = np.array(
            [
                not is_dma[form_of_slot[i]]
                and o.memory.is_on_chip
                and not o.is_index
                and engines[form_of_slot[i]] is not Engine.SYNC
                for i, o in enumerate(operands)
            ]
            or [False]
        )
        self.quadrant_starts = per_slot(lambda o: 0)
        for i, operand in enumerate(operands):
            number = int(form_of_slot[i])
            param = ops[program.forms[number].op].param(operand.param)
            if param is not None and param.quadrant_starts and not operand.is_index:
                self.has_partition_rule[i] = False
                self.quadrant_starts[i] = sum(1 << start for start in param.quadrant_starts)
        self.is_matmul_result = np.array(
            [
                o.memory is Memory.PSUM
                and bool(access.writes[i])
                and engines[form_of_slot[i]] is Engine.TENSOR
                for i, o in enumerate(operands)
            ]
            or [False]
        )

    def check(self) -> None:
        """Check every access."""
        slot, buffer, offset, columns = self.slot, self.buffer, self.offset, self.columns
        if not len(slot):
            return
        bad = np.flatnonzero(self.memory[slot] != columns.memory[buffer])
        if len(bad):
            raise ProgramError(f"operand {int(self.entry[bad[0]])} is not in its buffer's memory")
        self._check_writes()
        pitch = columns.pitch_bytes[buffer]
        on_chip = self.memory[slot] != MEMORIES.index(Memory.HBM)
        stride = self.pitch[slot]
        rows = np.where(self.is_vector[slot], 0, (self.partitions[slot] - 1) * stride)
        low = offset + self.low[slot] + np.minimum(rows, 0)
        high = offset + self.high[slot] + np.maximum(rows, 0)
        inside = (low >= 0) & (high <= columns.size_bytes[buffer])
        self._first(~inside & ~self.is_indexed[slot], self._outside)
        self._first((offset < 0) | (offset >= columns.size_bytes[buffer]), self._outside)
        if not on_chip.any():
            return
        self._first(on_chip & (stride != 0) & (stride != pitch), self._wrong_pitch)
        start = offset // np.maximum(pitch, 1)
        column = offset - start * pitch
        first, last = column + self.low[slot], column + self.high[slot]
        self._first(
            on_chip & ~self.is_indexed[slot] & ((first < 0) | (last > pitch)), self._outside
        )
        ruled = self.has_partition_rule[slot] & ~self.is_indexed[slot]
        start = start + columns.start_partition[buffer]
        self._first(ruled & ~is_legal_start(start, self.partitions[slot]), self._wrong_start)
        starts = self.quadrant_starts[slot]
        if starts.any():
            wrong = (starts != 0) & ((starts >> (start % QUADRANT)) & 1 == 0)
            self._first(wrong, self._wrong_quadrant_start)
        if self.machine.generation <= 3:
            address = np.maximum(columns.address[buffer], 0)
            crossing = crosses_bank(address, first, last - 1, self.machine.limits.psum_bank_bytes)
            self._first(self.is_matmul_result[slot] & ~self.is_indexed[slot] & crossing, self._bank)

    def _check_writes(self) -> None:
        writes = self.access.writes[self.slot]
        allowed = np.ones(len(self.program.buffers), dtype=np.bool_)
        allowed &= ~self.columns.is_kind("constant") & ~self.columns.is_kind("input")
        allowed[[a.buffer for a in self.program.arguments if a.is_written]] = True
        self._first(writes & ~allowed[self.buffer], self._read_only)

    def _first(self, flags: Flags, error: Callable[[int, Form, Operand], KernelError]) -> None:
        """Raise `error` for the first access with its flag set."""
        if not flags.any():
            return
        at = int(flags.argmax())
        program = self.program
        entry = int(self.entry[at])
        instruction = int(program.operand_instruction[entry])
        form = program.forms[int(program.form[instruction])]
        operand = form.operands[entry - int(program.operand_start[instruction])]
        raise located(program, error(at, form, operand), instruction)

    def _place_in(self, at: int) -> tuple[int, int]:
        """Return partition and byte column where an access starts."""
        number = int(self.buffer[at])
        return divmod(int(self.offset[at]), int(self.columns.pitch_bytes[number]))

    def _outside(self, at: int, form: Form, operand: Operand) -> KernelError:
        buffer = self.program.buffers[int(self.buffer[at])]
        partition, column = self._place_in(at)
        return KernelError(
            "NKS106",
            f"{form.op}: {operand.role} reaches outside of {buffer.name!r}",
            got=f"{operand}, from partition {partition}, byte {column}"
            if buffer.memory.is_on_chip
            else f"{operand}, from element {int(self.offset[at]) // operand.dtype.itemsize}",
            allowed=f"[{buffer.partitions}, {buffer.free_size}] {buffer.dtype}",
            hint="clip the last tile to the tensor's size",
        )

    def _wrong_pitch(self, at: int, form: Form, operand: Operand) -> KernelError:
        buffer = self.program.buffers[int(self.buffer[at])]
        pitch = buffer.partition_bytes // operand.dtype.itemsize
        return KernelError(
            "NKS107",
            f"{form.op}: {operand.role} has partition step {operand.pattern.strides[0]}",
            got=str(operand),
            allowed=f"{pitch}, the elements per partition of {buffer.name!r}",
            hint="the first [step, count] of an on-chip pattern walks the partitions one by one",
        )

    def _wrong_start(self, at: int, form: Form, operand: Operand) -> KernelError:
        buffer = self.program.buffers[int(self.buffer[at])]
        start = self._place_in(at)[0] + buffer.start_partition
        legal = legal_starts(operand.partitions, self.machine.limits.partitions)
        return KernelError(
            "NKS108",
            f"{form.op}: {operand.role} of {operand.partitions} partitions starts at partition "
            f"{start}",
            got=str(operand),
            allowed=f"start partition {', '.join(map(str, legal))}",
            hint="put the rows at a legal start partition, or move them with nisa.dma_copy",
        )

    def _wrong_quadrant_start(self, at: int, form: Form, operand: Operand) -> KernelError:
        starts = int(self.quadrant_starts[int(self.slot[at])])
        legal = [n for n in range(QUADRANT) if starts >> n & 1]
        buffer = self.program.buffers[int(self.buffer[at])]
        return KernelError(
            "NKS108",
            f"{form.op}: {operand.role} starts at partition "
            f"{self._place_in(at)[0] + buffer.start_partition}",
            got=str(operand),
            allowed=f"partition {', '.join(map(str, legal))} of a quadrant of {QUADRANT}",
            hint="slice the tile at one of these rows",
        )

    def _bank(self, at: int, form: Form, operand: Operand) -> KernelError:
        bank = self.machine.limits.psum_bank_bytes
        return KernelError(
            "NKS211",
            f"{form.op}: {operand.role} crosses a PSUM bank of {bank:,} bytes per partition",
            got=f"{operand}, from byte {self._place_in(at)[1]}",
            allowed=f"{bank // operand.dtype.itemsize} {operand.dtype} elements, inside one bank",
            hint="tile the free dimension so that each matmul writes one bank",
        )

    def _read_only(self, at: int, form: Form, operand: Operand) -> KernelError:
        buffer = self.program.buffers[int(self.buffer[at])]
        return KernelError(
            "NKS210",
            f"{form.op}: {operand.role} writes to the {buffer.kind} {buffer.name!r}",
            hint="write to a tensor from nl.ndarray(…, buffer=nl.shared_hbm) and return it",
        )


def _free_low(operand: Operand) -> int:
    """Lowest byte touched in one partition, relative to the offset."""
    pattern = operand.pattern
    pairs = zip(pattern.counts[1:], pattern.strides[1:], strict=True)
    return sum(min(0, (count - 1) * stride) for count, stride in pairs) * pattern.dtype.itemsize


def _free_high(operand: Operand) -> int:
    """One more than the highest byte touched in one partition, relative to the offset."""
    pattern = operand.pattern
    pairs = zip(pattern.counts[1:], pattern.strides[1:], strict=True)
    reach = sum(max(0, (count - 1) * stride) for count, stride in pairs)
    return (reach + 1) * pattern.dtype.itemsize
