"""The Program: what a kernel compiled to, as plain data that never changes.

A program repeats few distinct *forms* (instruction, attributes, operand patterns); what differs
between two instructions of one form is which buffers and offsets they touch and which source line
they come from.  So forms and patterns are small tables of objects and everything per instruction
is an integer column.  Rules, costs and execution closures are worked out once per form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from nkisim.dtypes import DType
from nkisim.errors import Place
from nkisim.ir.access import Memory, Pattern
from nkisim.machine.spec import Engine

AttrValue = None | bool | int | float | str | tuple["AttrValue", ...]
IntColumn = npt.NDArray[np.int64]

BufferKind = Literal["input", "output", "constant", "local"]
BUFFER_KINDS: tuple[BufferKind, ...] = ("input", "output", "constant", "local")
MEMORIES: tuple[Memory, ...] = (Memory.HBM, Memory.SBUF, Memory.PSUM)

IndexKind = Literal["scalar", "vector"]


@dataclass(frozen=True)
class Index:
    """How an operand's address depends on values at run time.

    `scalar`: the value of one register or one-element tile, times `step` elements, is added to the
    access offset.  `vector`: row p of the access starts at offset + value[p] * step.  The source of
    the values is the operand of role `<role>.index` that follows.
    """

    kind: IndexKind
    step: int
    """Elements per unit of the index."""
    bound: int
    """Legal index values are 0 ≤ value < bound."""
    is_skip: bool = False
    """Rows out of bounds are left untouched instead of being an error (`oob_mode.skip`)."""


@dataclass(frozen=True)
class Operand:
    """One operand of a form: which role, which elements, in which kind of memory."""

    role: str
    pattern: Pattern
    memory: Memory
    index: Index | None = None

    @property
    def dtype(self) -> DType:
        """Element type as seen through this access."""
        return self.pattern.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Counts of the access."""
        return self.pattern.counts

    @property
    def partitions(self) -> int:
        """Partitions touched."""
        return self.pattern.partitions

    @property
    def free_size(self) -> int:
        """Elements per partition."""
        return self.pattern.free_size

    @property
    def size_bytes(self) -> int:
        """Bytes touched in all."""
        return self.pattern.size * self.pattern.dtype.itemsize

    @property
    def param(self) -> str:
        """The op table's parameter that this operand belongs to: `srcs.1.index` -> `srcs`."""
        return self.role.partition(".")[0]

    @property
    def is_index(self) -> bool:
        """Whether this operand holds the run-time index of the one before it."""
        return self.role.endswith(".index")

    def __str__(self) -> str:
        return f"{self.role} [{', '.join(map(str, self.shape))}] {self.dtype} in {self.memory}"


@dataclass(frozen=True)
class Form:
    """An instruction without its buffers, offsets and line."""

    op: str
    """Name in the op table, such as `nc_matmul`."""
    engine: Engine
    """Engine that executes it; for a DMA instruction the engine that issues it."""
    attrs: tuple[tuple[str, AttrValue], ...]
    """Sorted by name."""
    operands: tuple[Operand, ...]

    @cached_property
    def _attr_map(self) -> dict[str, AttrValue]:
        return dict(self.attrs)

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {operand.role: i for i, operand in enumerate(self.operands)}

    def attr(self, name: str, default: AttrValue = None) -> AttrValue:
        """Return attribute `name`, or `default` if the form has none."""
        return self._attr_map.get(name, default)

    def position(self, role: str) -> int | None:
        """Return the index of operand `role`, or None if the form has none."""
        return self._positions.get(role)

    def get(self, role: str) -> Operand | None:
        """Return operand `role` or None."""
        position = self._positions.get(role)
        return None if position is None else self.operands[position]

    def __getitem__(self, role: str) -> Operand:
        return self.operands[self._positions[role]]


@dataclass(frozen=True, slots=True)
class Buffer:
    """One allocation.  A view of one row of `Buffers`."""

    memory: Memory
    kind: BufferKind
    dtype: DType
    partitions: int
    """1 in HBM."""
    free_size: int
    """Elements of `dtype` per partition; all elements in HBM."""
    name: str
    site: int
    birth: int
    """Instructions recorded before the allocation; a loop body starts it afresh."""
    address: int | None
    """Byte offset in each partition if the kernel chose it."""
    start_partition: int
    fill: float | None
    """Initial value of every element, or None for fresh (unwritten) memory."""
    constant: int | None
    """Index into `Program.constants`."""
    loop: int | None = None
    """Innermost device loop whose body allocates it; None outside of all loops."""

    @property
    def size(self) -> int:
        """Elements in all."""
        return self.partitions * self.free_size

    @property
    def partition_bytes(self) -> int:
        """Bytes per partition."""
        return self.free_size * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class BufferColumns:
    """The buffers of a Program as arrays, one entry per buffer."""

    memory: IntColumn
    """Index into `MEMORIES`."""
    kind: IntColumn
    """Index into `BUFFER_KINDS`."""
    itemsize: IntColumn
    partitions: IntColumn
    free_size: IntColumn
    pitch_bytes: IntColumn
    """Bytes per partition; all bytes in HBM."""
    size_bytes: IntColumn
    site: IntColumn
    birth: IntColumn
    address: IntColumn
    """-1 if the kernel chose none."""
    start_partition: IntColumn
    has_fill: npt.NDArray[np.bool_]
    constant: IntColumn
    """-1 if it holds none."""
    loop: IntColumn
    """-1 outside of all loops."""

    def is_in(self, memory: Memory) -> npt.NDArray[np.bool_]:
        """Return which buffers live in `memory`."""
        return np.equal(self.memory, MEMORIES.index(memory))

    def is_kind(self, kind: BufferKind) -> npt.NDArray[np.bool_]:
        """Return which buffers are of `kind`."""
        return np.equal(self.kind, BUFFER_KINDS.index(kind))

    @classmethod
    def of(cls, buffers: Sequence[Buffer]) -> BufferColumns:
        """Collect the columns of `buffers`."""

        def column(values: Iterable[int]) -> IntColumn:
            return np.fromiter(values, dtype=np.int64, count=len(buffers))

        memory_number = {memory: i for i, memory in enumerate(MEMORIES)}
        kind_number = {kind: i for i, kind in enumerate(BUFFER_KINDS)}
        size_of = {dtype: dtype.itemsize for dtype in {b.dtype for b in buffers}}
        itemsize = column(size_of[b.dtype] for b in buffers)
        free_size = column(b.free_size for b in buffers)
        partitions = column(b.partitions for b in buffers)
        pitch_bytes = free_size * itemsize
        return cls(
            memory=column(memory_number[b.memory] for b in buffers),
            kind=column(kind_number[b.kind] for b in buffers),
            itemsize=itemsize,
            partitions=partitions,
            free_size=free_size,
            pitch_bytes=pitch_bytes,
            size_bytes=pitch_bytes * partitions,
            site=column(b.site for b in buffers),
            birth=column(b.birth for b in buffers),
            address=column(-1 if b.address is None else b.address for b in buffers),
            start_partition=column(b.start_partition for b in buffers),
            has_fill=column(b.fill is not None for b in buffers).astype(np.bool_),
            constant=column(-1 if b.constant is None else b.constant for b in buffers),
            loop=column(-1 if b.loop is None else b.loop for b in buffers),
        )


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop that the device runs: instructions `first` ≤ i < `last`, body recorded once."""

    kind: Literal["for", "while"]
    first: int
    last: int
    parent: int | None
    register: int
    """Loop variable (`for`) or condition, read before each trip (`while`)."""
    start: int
    stop: int
    step: int
    start_register: int | None = None
    """Register that holds the start instead of `start`."""
    stop_register: int | None = None


@dataclass(frozen=True, slots=True)
class Site:
    """A line that emits instructions or allocates, with the helpers it was called through."""

    place: Place
    callers: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor that the kernel returns: an access, and the shape that the caller gets."""

    buffer: int
    offset: int
    pattern: Pattern


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor parameter of the kernel, in call order."""

    name: str
    buffer: int
    shape: tuple[int, ...]
    dtype: DType
    is_written: bool
    """Whether the kernel stores into it."""


@dataclass(frozen=True, eq=False)
class Program:
    """Everything that the device does in one launch of a kernel."""

    kernel: str
    machine: str
    nki: str
    """Language version that the front end emulated."""
    forms: tuple[Form, ...]
    buffers: tuple[Buffer, ...]
    constants: tuple[npt.NDArray[np.generic], ...]
    sites: tuple[Site, ...]
    loops: tuple[Loop, ...]
    arguments: tuple[Argument, ...]
    outputs: tuple[Output, ...]
    form: IntColumn
    """Form of each instruction."""
    site: IntColumn
    """Site of each instruction."""
    operand_buffer: IntColumn
    """Buffer of each operand, instruction after instruction, in form order.  For an operand in
    `Memory.REGISTER` this is the register's number."""
    operand_offset: IntColumn
    """Offset of each operand in elements of its own dtype; 0 for registers."""
    register_count: int = 0
    is_hybrid: bool = False
    """Old-generation idioms were used (index tensors, operators on tiles)."""

    def __len__(self) -> int:
        return len(self.form)

    @cached_property
    def operand_start(self) -> IntColumn:
        """Index of each instruction's first operand in the operand columns, and the end."""
        arity = np.array([len(form.operands) for form in self.forms] or [0], dtype=np.int64)
        starts = np.zeros(len(self.form) + 1, dtype=np.int64)
        if len(self.form):
            np.cumsum(arity[self.form], out=starts[1:])
        return starts

    @cached_property
    def slots(self) -> tuple[Operand, ...]:
        """Operands of all forms, one form after another."""
        return tuple(operand for form in self.forms for operand in form.operands)

    @cached_property
    def form_slot(self) -> IntColumn:
        """Index into `slots` of each form's first operand, and the end."""
        starts = np.zeros(len(self.forms) + 1, dtype=np.int64)
        arity = np.array([len(form.operands) for form in self.forms], dtype=np.int64)
        np.cumsum(arity, out=starts[1:])
        return starts

    @cached_property
    def operand_slot(self) -> IntColumn:
        """Index into `slots` of each entry of the operand columns."""
        start = self.operand_start
        shift = self.form_slot[:-1][self.form] - start[:-1]
        return np.arange(start[-1], dtype=np.int64) + np.repeat(shift, np.diff(start))

    @cached_property
    def operand_instruction(self) -> IntColumn:
        """Instruction of each entry of the operand columns."""
        return np.repeat(np.arange(len(self.form), dtype=np.int64), np.diff(self.operand_start))

    @cached_property
    def operand_is_register(self) -> npt.NDArray[np.bool_]:
        """Which entries of the operand columns are registers."""
        flags = np.array([slot.memory is Memory.REGISTER for slot in self.slots], dtype=np.bool_)
        if not flags.any():
            return np.zeros(len(self.operand_buffer), dtype=np.bool_)
        return flags[self.operand_slot]

    @cached_property
    def buffer_columns(self) -> BufferColumns:
        """The buffers as arrays."""
        return BufferColumns.of(self.buffers)

    @cached_property
    def innermost_loop(self) -> IntColumn:
        """Innermost device loop around each instruction, -1 outside of all."""
        innermost = np.full(len(self.form), -1, dtype=np.int64)
        for number in sorted(range(len(self.loops)), key=self.loop_nesting.__getitem__):
            innermost[self.loops[number].first : self.loops[number].last] = number
        return innermost

    @cached_property
    def loop_nesting(self) -> tuple[int, ...]:
        """Number of loops around each loop; loops with a broken parent count as outermost."""
        depths: list[int] = []
        for number, loop in enumerate(self.loops):
            parent = loop.parent
            is_known = parent is not None and parent < number
            depths.append(depths[parent] + 1 if parent is not None and is_known else 0)
        return tuple(depths)

    @property
    def is_dynamic(self) -> bool:
        """Whether time depends on values: it has device loops or run-time indices."""
        return bool(self.loops) or any(slot.index is not None for slot in self.slots)

    @cached_property
    def patterns(self) -> tuple[Pattern, ...]:
        """Distinct patterns, in order of first use."""
        seen: dict[Pattern, None] = {}
        for form in self.forms:
            for operand in form.operands:
                seen.setdefault(operand.pattern)
        for output in self.outputs:
            seen.setdefault(output.pattern)
        return tuple(seen)

    def accesses(self, instruction: int) -> Iterator[tuple[Operand, int, int]]:
        """Yield (operand, buffer, offset) of one instruction."""
        start = int(self.operand_start[instruction])
        for k, operand in enumerate(self.forms[self.form[instruction]].operands):
            yield operand, int(self.operand_buffer[start + k]), int(self.operand_offset[start + k])

    @cached_property
    def loop_depth(self) -> IntColumn:
        """Number of device loops around each instruction."""
        depth = np.zeros(len(self.form), dtype=np.int64)
        for loop in self.loops:
            depth[loop.first : loop.last] += 1
        return depth


def compact(program: Program) -> Program:
    """Return the same Program with its forms in order of first use, each once, none unused."""
    number_of: dict[tuple[Form, str], int] = {}
    forms: list[Form] = []
    renumber = np.zeros(max(1, len(program.forms)), dtype=np.int64)
    used, first = np.unique(program.form, return_index=True)
    for old in used[np.argsort(first)]:
        form = program.forms[old]
        key = (form, repr(form.attrs))  # 1, 1.0 and True are equal as keys but not as attributes
        if key not in number_of:
            number_of[key] = len(forms)
            forms.append(form)
        renumber[old] = number_of[key]
    return replace(program, forms=tuple(forms), form=renumber[program.form])


def is_equal(a: Program, b: Program) -> bool:
    """Say whether two Programs are the same but for the numbering of their forms."""
    a, b = compact(a), compact(b)
    scalars = ("kernel", "machine", "nki", "register_count", "is_hybrid")
    tables = ("forms", "buffers", "sites", "loops", "arguments", "outputs")
    columns = ("form", "site", "operand_buffer", "operand_offset")
    return (
        all(getattr(a, name) == getattr(b, name) for name in scalars)
        and all(repr(getattr(a, name)) == repr(getattr(b, name)) for name in tables)
        and all(np.array_equal(getattr(a, name), getattr(b, name)) for name in columns)
        and len(a.constants) == len(b.constants)
        and all(
            x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
            for x, y in zip(a.constants, b.constants, strict=True)
        )
    )
