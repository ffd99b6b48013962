"""Records what a kernel's Python emits while it runs once without data, and makes the Program.

Per instruction only integers are kept: the form (found by a dictionary), the site, and buffer and
offset of each operand.  A form's rules are checked when it is first met, so an illegal instruction
raises on the kernel's own line.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from nkisim.dtypes import DTYPES, DType, lookup
from nkisim.errors import Diagnostic, KernelError, Warnings
from nkisim.frontend.dynamic import DynamicIndex
from nkisim.frontend.register import Register
from nkisim.frontend.retarget import NOTHING, Retarget, fitted, restore_used
from nkisim.frontend.source import SourceMap
from nkisim.frontend.subscript import Layout
from nkisim.frontend.tensor import NkiTensor, TracedBuffer, row_major
from nkisim.ir.access import Memory, Pattern
from nkisim.ir.program import (
    Argument,
    AttrValue,
    Buffer,
    BufferKind,
    Form,
    Index,
    Loop,
    Operand,
    Output,
    Program,
    Site,
)
from nkisim.machine.spec import Engine, Machine
from nkisim.ops.axes import matching
from nkisim.ops.registry import OpSpec

if TYPE_CHECKING:
    from nkisim.frontend.bind import Instructions
    from nkisim.frontend.emission import Fresh

MAX_INSTRUCTIONS = 2_000_000
MAX_BUFFERS = 2_000_000
REGISTER_PATTERN = Pattern((1,), (1,), DTYPES["int32"])


class MemoryRegion:
    """`nl.sbuf`, `nl.psum`, `nl.shared_hbm`, …: where `nl.ndarray` allocates."""

    def __init__(self, name: str, memory: Memory) -> None:
        self.name = name
        self.value = name
        self.memory = memory

    def __repr__(self) -> str:
        return f"nl.{self.name}"

    def view(self, dtype: object, shape: Sequence[int]) -> NkiTensor:
        """Allocate here (the 0.1 spelling `sbuf.view(dtype, shape)`)."""
        from nkisim.frontend.context import current

        return current().allocate(tuple(shape), dtype, self)


REGIONS: dict[str, MemoryRegion] = {
    "sbuf": MemoryRegion("sbuf", Memory.SBUF),
    "psum": MemoryRegion("psum", Memory.PSUM),
    "shared_hbm": MemoryRegion("shared_hbm", Memory.HBM),
    "private_hbm": MemoryRegion("private_hbm", Memory.HBM),
}


class Recorder:
    """The trace of one launch of one kernel.

    Args:
        machine: Whose limits hold.
        version: NKI version whose rules hold, or None to accept every dialect.
        instructions: The bound instructions, used by operators and assignments on tiles.
        sources: Text of the kernel's files, for error messages and the profile.
        grid: Number of programs; 1 without a grid.
    """

    def __init__(
        self,
        machine: Machine,
        *,
        version: str | None,
        instructions: Instructions,
        sources: dict[str, str] | None = None,
        grid: tuple[int, ...] = (),
    ) -> None:
        self.machine = machine
        self.version = version
        self.instructions = instructions
        self.grid = grid
        self.source_map = SourceMap(sources)
        self.regions: dict[str, MemoryRegion] = REGIONS
        self.warnings = Warnings()
        self.is_hybrid = False
        self.is_beta1 = False
        """The kernel is written for `neuronxcc.nki`."""
        self._forms: list[Form] = []
        self._form_of_key: dict[tuple[object, ...], int] = {}
        self._form_number: dict[Form, int] = {}
        self._specs: dict[str, OpSpec] = {}
        self._form = array("q")
        self._site = array("q")
        self._operand_buffer = array("q")
        self._operand_offset = array("q")
        self._buffers: list[Buffer] = []
        self._traced: list[TracedBuffer] = []
        self._constants: list[npt.NDArray[np.generic]] = []
        self._loops: list[Loop] = []
        self._open_loops: list[int] = []
        self._open_while: dict[int, int] = {}
        self._arguments: list[tuple[str, NkiTensor]] = []
        self._register_count = 0
        self.fresh: Fresh | None = None
        """The tile that the last instruction filled, if it returned one."""
        self.loop_variables: list[int] = []
        """Values of the loops of the old generation that are running, outermost first."""
        self.accumulators: dict[tuple[object, ...], NkiTensor] = {}
        """Running results of `nl.loop_reduce`."""
        self._retargeted_form: dict[tuple[object, ...], int | None] = {}
        self._retargets: list[Retarget] = []
        self.layouts: dict[tuple[object, ...], Layout] = {}
        """What subscripts with index tensors make of shapes and strides."""

    # -- allocation ---------------------------------------------------------------------------

    def allocate(
        self,
        shape: Sequence[int],
        dtype: object,
        region: object,
        *,
        name: str = "",
        address: Sequence[int] | None = None,
        fill: float | None = None,
        kind: BufferKind = "local",
        constant: int | None = None,
        is_outside_kernel: bool = False,
        site: int | None = None,
    ) -> NkiTensor:
        """Allocate a tensor and return a view of all of it."""
        dims = self.dims(shape)
        element = lookup(dtype)
        if element is None:
            raise KernelError(
                "NKS301",
                f"ndarray: {dtype!r:.60} is not an NKI dtype",
                allowed=", ".join(list(DTYPES)[:14]),
                hint="use nl.float32, nl.bfloat16, … or another tensor's .dtype",
            )
        if isinstance(region, str):
            region = self.regions.get({"hbm": "private_hbm"}.get(region, region), region)
        if not isinstance(region, MemoryRegion):
            raise KernelError(
                "NKS201",
                f"ndarray: buffer must be nl.sbuf, nl.psum, nl.shared_hbm or nl.private_hbm, "
                f"got {region!r:.60}",
            )
        memory = region.memory
        if memory.is_on_chip:
            if len(dims) < 2:
                raise KernelError(
                    "NKS102",
                    f"a tile in {region.name} needs a partition and a free dimension, "
                    f"got shape {list(dims)}",
                    hint=f"use ({dims[0]}, 1) for one element per partition",
                )
            limit = self.machine.limits.partitions
            if dims[0] > limit:
                raise KernelError(
                    "NKS103",
                    f"partition dimension {dims[0]} exceeds the limit of {limit}",
                    got=f"shape {list(dims)} in {region.name}",
                    allowed=f"dimension 0 ≤ {limit}",
                    hint=f"loop over tiles of {limit} rows, or fold rows into the free dimension: "
                    f"({limit}, {-(-dims[0] // limit)}, …)",
                )
            self._check_tile_bytes(dims, element, memory)
        partitions = dims[0] if memory.is_on_chip else 1
        free_size = prod(dims[1:]) if memory.is_on_chip else prod(dims)
        start_partition, byte_address = 0, None
        if address is not None:
            start_partition, byte_address = int(address[0]), int(address[1])
        number = len(self._buffers)
        if number >= MAX_BUFFERS:
            raise KernelError("NKS403", f"the kernel allocates more than {MAX_BUFFERS:,} tensors")
        if site is None:
            site = self.source_map.site(None if is_outside_kernel else sys._getframe(1))
        label = name or self.source_map.variable(site) or f"{region.name}{number}"
        self._buffers.append(
            Buffer(
                memory,
                kind,
                element,
                partitions,
                free_size,
                label,
                site,
                len(self._form),
                byte_address,
                start_partition,
                fill,
                constant,
                self._open_loops[-1] if self._open_loops else None,
            )
        )
        traced = TracedBuffer(
            number,
            memory,
            element,
            partitions,
            free_size,
            label,
            self,
            region.name,
            is_argument=kind == "input",
            has_fill=fill is not None,
        )
        self._traced.append(traced)
        return NkiTensor(traced, 0, dims, row_major(dims), element)

    @staticmethod
    def dims(shape: object) -> tuple[int, ...]:
        """Return a shape as positive integers."""
        try:
            items = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
            dims = tuple(n.__index__() for n in items)
        except (AttributeError, TypeError):
            raise KernelError(
                "NKS101",
                f"a shape must be a tuple of integers, got {shape!r:.80}",
                hint="use // instead of / for tile arithmetic",
            ) from None
        if not dims or any(n < 1 for n in dims):
            raise KernelError(
                "NKS101",
                f"every dimension must be at least 1, got shape {list(dims)}",
                hint="skip empty tiles, and check that tile counts round up",
            )
        return dims

    def _check_tile_bytes(self, dims: tuple[int, ...], dtype: DType, memory: Memory) -> None:
        limits = self.machine.limits
        used = prod(dims[1:]) * dtype.itemsize
        limit = limits.psum_bytes if memory is Memory.PSUM else limits.sbuf_usable_bytes
        if used > limit:
            raise KernelError(
                "NKS202",
                f"a tile of {used:,} bytes per partition does not fit {memory}, "
                f"which has {limit:,} on {self.machine.name}",
                got=f"shape {list(dims)} {dtype}",
                allowed=f"≤ {limit // dtype.itemsize:,} {dtype} elements per partition",
                hint="loop over tiles of the free dimension",
            )

    def add_argument(self, name: str, shape: Sequence[int], dtype: DType) -> NkiTensor:
        """Allocate a tensor parameter of the kernel."""
        dims = tuple(int(n) for n in shape)
        tensor = self.allocate(
            dims or (1,),
            dtype,
            REGIONS["shared_hbm"],
            name=name,
            kind="input",
            is_outside_kernel=True,
        )
        tensor.shape, tensor.strides = dims or (1,), row_major(dims or (1,))
        self._arguments.append((name, tensor))
        return tensor

    def add_constant(self, values: npt.NDArray[np.generic], dtype: DType) -> NkiTensor:
        """Embed `values` as a tensor in HBM."""
        total = sum(c.nbytes for c in self._constants) + values.nbytes
        limit = self.machine.limits.constant_bytes_max
        if total > limit:
            raise KernelError(
                "NKS204",
                f"constants of {total:,} bytes exceed the limit of {limit:,}",
                hint="compute the values on the device (iota, affine_select) or pass an argument",
            )
        self._constants.append(np.ascontiguousarray(values))
        return self.allocate(
            values.shape,
            dtype,
            REGIONS["shared_hbm"],
            name=f"constant{len(self._constants) - 1}",
            kind="constant",
            constant=len(self._constants) - 1,
        )

    def new_register(self, *, is_frozen: bool = False) -> Register:
        """Return a fresh device register."""
        self._register_count += 1
        if self._register_count > 4096:
            raise KernelError("NKS406", "the kernel uses more than 4,096 registers")
        return Register(self, self._register_count - 1, is_frozen=is_frozen)

    # -- emission -----------------------------------------------------------------------------

    def emit(
        self,
        spec: OpSpec,
        engine: Engine | None,
        attrs: tuple[tuple[str, AttrValue], ...],
        roles: tuple[str, ...],
        tensors: Sequence[NkiTensor | Register],
    ) -> int:
        """Record one instruction and return its number.

        Args:
            spec: Row of the op table.
            engine: Engine asked for, or None for the default.
            attrs: Attributes sorted by name.
            roles: Role of each tensor.
            tensors: Operands in the order of the row's parameters.
        """
        key = (spec.name, engine, attrs, roles, tuple([t.key for t in tensors]))
        number = self._form_of_key.get(key)
        if number is None:
            number = self._new_form(key, spec, engine, attrs, roles, tensors)
        if len(self._form) >= MAX_INSTRUCTIONS:
            raise KernelError(
                "NKS403",
                f"the kernel unrolls to more than {MAX_INSTRUCTIONS:,} instructions",
                hint="use larger tiles; Python loops unroll at trace time",
            )
        self._form.append(number)
        self._site.append(self.source_map.site(sys._getframe(2)))
        for tensor in tensors:
            self._operand_buffer.append(tensor.storage.number)
            self._operand_offset.append(tensor.offset)
            if tensor.index is not None:
                source = tensor.index.source
                self._operand_buffer.append(source.storage.number)
                self._operand_offset.append(source.offset)
        return len(self._form) - 1

    def _new_form(
        self,
        key: tuple[object, ...],
        spec: OpSpec,
        engine: Engine | None,
        attrs: tuple[tuple[str, AttrValue], ...],
        roles: tuple[str, ...],
        tensors: Sequence[NkiTensor | Register],
    ) -> int:
        if self.machine.generation < spec.min_generation:
            raise KernelError(
                "NKS104",
                f"{spec.name} needs NeuronCore-v{spec.min_generation} or later; "
                f"{self.machine.name} is NeuronCore-v{self.machine.generation}",
                hint="choose another instruction or another machine",
            )
        is_skip = ("oob_mode", "skip") in attrs
        operands: list[Operand] = []
        for role, tensor in zip(roles, tensors, strict=True):
            if isinstance(tensor, Register):
                operands.append(Operand(role, REGISTER_PATTERN, Memory.REGISTER))
                continue
            operands.append(
                Operand(
                    role,
                    tensor.pattern,
                    tensor.storage.memory,
                    tensor.program_index(is_skip=is_skip),
                )
            )
            if tensor.index is not None:
                source = tensor.index.source
                if isinstance(source, Register):
                    operands.append(Operand(f"{role}.index", REGISTER_PATTERN, Memory.REGISTER))
                else:
                    operands.append(Operand(f"{role}.index", source.pattern, source.storage.memory))
        form = Form(spec.name, engine or spec.engines[0], attrs, tuple(operands))
        if engine is None and spec.choose_engine is not None:
            chosen = spec.choose_engine(form, self.machine)
            form = Form(spec.name, chosen, attrs, form.operands)
        spec.check(form, self.machine)
        number = self._form_number.get(form)
        if number is None:
            number = len(self._forms)
            self._forms.append(form)
            self._form_number[form] = number
            self._specs[spec.name] = spec
        self._form_of_key[key] = number
        return number

    @property
    def last_instruction(self) -> int:
        """Number of the instruction recorded last; -1 before the first."""
        return len(self._form) - 1

    def retarget(self, fresh: Fresh, target: NkiTensor, *, accumulates: bool = False) -> bool:
        """Make the last instruction write `target` instead of the fresh tile that it filled.

        Args:
            fresh: The tile that the last instruction filled.
            target: A view of the shape of the part that was filled.
            accumulates: Add to what a matmul left in `target`.

        Returns:
            Whether that was possible: nothing was emitted since, and the rounding stays the same.
        """
        if fresh.instruction != len(self._form) - 1 or target.index is not None:
            return False
        number = self._form[-1]
        key = (number, target.key, accumulates, target.storage.has_values)
        if key in self._retargeted_form:
            changed = self._retargeted_form[key]
        else:
            changed = self._retargeted_form[key] = self._form_into(number, target, accumulates)
        if changed is None:
            return False
        arity = len(self._forms[number].operands)
        self._retargets.append(
            Retarget(
                len(self._form) - 1,
                number,
                fresh.tile.storage.number,
                self._operand_offset[-arity],
                accumulates,
            )
        )
        self._form[-1] = changed
        self._operand_buffer[-arity] = target.storage.number
        self._operand_offset[-arity] = target.offset
        self.fresh = None
        return True

    def _form_into(self, number: int, target: NkiTensor, accumulates: bool) -> int | None:
        """Return the form that writes to `target`, or None if there is none."""
        form = self._forms[number]
        spec = self._specs[form.op]
        first = form.operands[0]
        is_matmul = form.op == "nc_matmul" and not form.attr("is_transpose")
        rounds_twice = first.dtype != target.dtype and first.dtype != "float32"
        if (
            first.role != spec.params[0].name
            or spec.params[0].access == "r"
            or target.storage.memory is not first.memory
            or first.pattern.size != prod(target.shape)
            or rounds_twice
            or (accumulates and not is_matmul)
        ):
            return None
        attrs = dict(form.attrs)
        if is_matmul:
            attrs.pop("accumulate", None)
            if not accumulates:
                attrs["accumulate"] = False
            elif target.storage.has_values:
                attrs["accumulate"] = True
        into = Operand(first.role, target.pattern, target.storage.memory)
        changed = Form(
            form.op, form.engine, tuple(sorted(attrs.items())), (into, *form.operands[1:])
        )
        found = self._form_number.get(changed)
        if found is not None:
            return found
        try:
            spec.check(changed, self.machine)
        except KernelError:
            return None
        self._forms.append(changed)
        self._form_number[changed] = len(self._forms) - 1
        return len(self._forms) - 1

    # -- idioms of older dialects ---------------------------------------------------------------

    def note_hybrid(self, what: str) -> None:
        """Accept an old-generation idiom, or refuse it under a version that dropped it."""
        if self.version is not None:
            raise KernelError(
                "NKS605",
                f"{what} are not part of NKI {self.version}",
                hint="use slices, .ap() and nki.isa instructions with an explicit dst",
            )
        self.is_hybrid = True

    def is_presence_test(self, tensor: NkiTensor) -> bool:
        """Whether `if tensor:` asks that an optional tensor was given, noting it.

        Only a kernel's argument can mean that, and only in dialects whose compiler takes it so;
        a version that is enforced refuses it.
        """
        if self.version is not None or not tensor.storage.is_argument:
            return False
        self.warnings.add(
            Diagnostic(
                code="NKS592",
                kind="note",
                message=f"`if` on {tensor!r} asks whether it is there, not what it holds",
                hint="write `is not None`",
            )
        )
        return True

    def partition_broadcast(self, tensor: NkiTensor, size: int) -> NkiTensor:
        """Repeat one partition `size` times: a copy by DMA in old dialects, else refused.

        No compute engine can read a partition dimension of stride 0, but DMA can.
        """
        if self.version is not None:
            raise KernelError(
                "NKS107",
                "broadcast along the partition dimension of an on-chip tile",
                got=repr(tensor),
                hint="load with a broadcast HBM view (w.reshape((1, d)).broadcast(0, 128)), "
                "use nl.broadcast_to, or multiply with a tile of ones on the Tensor Engine",
            )
        shape, strides = (size, *tensor.shape[1:]), (0, *tensor.strides[1:])
        repeated = NkiTensor(tensor.storage, tensor.offset, shape, strides, tensor.dtype)
        tile = self.allocate(shape, tensor.dtype, self.regions["sbuf"])
        self.instructions.isa["dma_copy"](dst=tile, src=repeated)
        return tile

    def tile_operation(self, name: str, *operands: object, dtype: object = None) -> NkiTensor:
        """Emit an operator on tiles (`a + b`), an old-generation idiom."""
        self.note_hybrid("operators on tiles")
        result = self.instructions.operators[name](*operands, dtype=dtype)
        assert isinstance(result, NkiTensor)
        return result

    def update(self, name: str, target: NkiTensor, other: object, **attrs: object) -> NkiTensor:
        """Emit `target op= other` in place."""
        self.note_hybrid("operators on tiles")
        self.instructions.operators[name](target, other, into=target, **attrs)
        self._note_values(target)
        return target

    def accumulate(self, target: NkiTensor, other: object) -> NkiTensor:
        """Emit `target += other`; into PSUM the matmul accumulates."""
        fresh = self.fresh
        if fresh is not None and fresh.tile is other:
            if fresh.instruction == NOTHING:
                return target
            part = _part(target, fresh)
            if target.memory is Memory.PSUM and self.retarget(fresh, part, accumulates=True):
                return target
            if fresh.box is not None:
                other = fresh.tile.boxed(range(fresh.tile.ndim), fresh.box)
                self.update("add", part, other, **fresh.attrs)
                return target
        return self.update("add", target, other)

    def assign(self, target: NkiTensor, key: object, value: object) -> None:
        """Emit `target[key] = value`."""
        view = target[key]
        if not isinstance(value, NkiTensor):
            self.note_hybrid("assignments to tiles")
            for tile in _tiles_of(view):
                self.instructions.isa["memset"](dst=tile, value=value)
                self._note_values(tile)
            return
        same = (
            value.storage is view.storage
            and value.offset == view.offset
            and value.shape == view.shape
            and value.strides == view.strides
        )
        if same:
            return
        self.note_hybrid("assignments to tiles")
        fresh = self.fresh
        attrs: dict[str, object] = {}
        if fresh is not None and fresh.tile is value:
            if fresh.instruction == NOTHING:
                return
            view = _part(view, fresh)
            if self.retarget(fresh, view):
                return
            if fresh.box is not None:
                value, attrs = value.boxed(range(value.ndim), fresh.box), fresh.attrs
        name = "dma_copy" if Memory.HBM in (view.memory, value.memory) else "tensor_copy"
        self.instructions.isa[name](dst=view, src=fitted(value, view), **attrs)
        self._note_values(view)

    def _note_values(self, view: NkiTensor) -> None:
        """Note that a PSUM tile holds values that no matmul wrote, to which one may add."""
        view.storage.has_values = True

    # -- device loops -------------------------------------------------------------------------

    def open_loop(
        self,
        kind: str,
        register: Register,
        *,
        start: int | Register = 0,
        stop: int | Register = 0,
        step: int = 1,
    ) -> int:
        """Start a loop that the device runs and return its number."""
        number = len(self._loops)
        self._loops.append(
            Loop(
                "while" if kind == "while" else "for",
                len(self._form),
                -1,
                self._open_loops[-1] if self._open_loops else None,
                register.number,
                0 if isinstance(start, Register) else int(start),
                0 if isinstance(stop, Register) else int(stop),
                int(step),
                start.number if isinstance(start, Register) else None,
                stop.number if isinstance(stop, Register) else None,
            )
        )
        self._open_loops.append(number)
        return number

    def close_loop(self, number: int) -> None:
        """End the innermost loop, which must be `number`."""
        if not self._open_loops or self._open_loops[-1] != number:
            raise KernelError(
                "NKS407",
                "a device loop was left before its body ended",
                hint="break, return and exceptions cannot leave a dynamic loop",
            )
        self._open_loops.pop()
        loop = self._loops[number]
        self._loops[number] = Loop(
            loop.kind,
            loop.first,
            len(self._form),
            loop.parent,
            loop.register,
            loop.start,
            loop.stop,
            loop.step,
            loop.start_register,
            loop.stop_register,
        )

    def while_register(self, register: Register) -> bool:
        """Answer `while register:`: open the loop the first time, close it the second."""
        number = self._open_while.pop(register.number, None)
        if number is None:
            self._open_while[register.number] = self.open_loop("while", register)
            return True
        self.close_loop(number)
        return False

    # -- the Program --------------------------------------------------------------------------

    def finish(self, kernel: str, returned: object) -> Program:
        """Close the trace and return the Program.

        Args:
            kernel: Name of the entry function.
            returned: What the kernel returned: a tensor, a tuple of tensors or None.
        """
        if self._open_loops:
            raise KernelError(
                "NKS407",
                "a device loop is still open at the end of the kernel",
                hint="Python's `if` on a register opens a loop; branch on trace-time values only",
            )
        results = self._results(returned)
        written = self._written_buffers()
        if not results:
            results = [t for _, t in self._arguments if t.storage.number in written]
        if not results:
            raise self._no_result(kernel, written)
        restore_used(self)
        written = self._written_buffers()
        keep, renumber = self._live_buffers(results)
        operand_buffer = np.array(self._operand_buffer, dtype=np.int64)
        is_register = self._register_operands()
        mapped = np.where(is_register, operand_buffer, renumber[operand_buffer * ~is_register])
        form, forms = self._used_forms()
        return Program(
            kernel=kernel,
            machine=self.machine.name,
            nki=self.version or ("beta1" if self.is_beta1 else "any"),
            forms=forms,
            buffers=tuple(self._buffers[i] for i in keep),
            constants=tuple(self._constants),
            sites=tuple(Site(place, callers) for place, callers in self.source_map.places),
            loops=tuple(self._loops),
            arguments=tuple(
                Argument(
                    name,
                    int(renumber[t.storage.number]),
                    t.shape,
                    t.dtype,
                    t.storage.number in written,
                )
                for name, t in self._arguments
            ),
            outputs=tuple(
                Output(int(renumber[t.storage.number]), t.offset, t.pattern) for t in results
            ),
            form=form,
            site=np.array(self._site, dtype=np.int64),
            operand_buffer=mapped.astype(np.int64),
            operand_offset=np.array(self._operand_offset, dtype=np.int64),
            register_count=self._register_count,
            is_hybrid=self.is_hybrid,
        )

    def _no_result(self, kernel: str, written: set[int]) -> KernelError:
        """Return the error for a kernel that returns nothing and writes no argument."""
        forgotten = [
            buffer.name
            for buffer in self._traced
            if buffer.number in written and buffer.region == "shared_hbm"
        ]
        if forgotten:
            hint = f"end the kernel with `return {', '.join(forgotten)}`"
        else:
            hint = "allocate the result with buffer=nl.shared_hbm, write it, and return it"
        return KernelError(
            "NKS205",
            f"kernel {kernel!r} returns no tensor and writes none of its arguments",
            got=f"it writes {', '.join(forgotten)} and returns nothing" if forgotten else None,
            hint=hint,
        )

    def _used_forms(self) -> tuple[npt.NDArray[np.int64], tuple[Form, ...]]:
        """Return the form of each instruction, and the forms that occur.

        Forms that were met but whose instructions all write an assignment's target are left out.
        """
        column = np.array(self._form, dtype=np.int64)
        used = np.unique(column)
        renumber = np.zeros(len(self._forms) + 1, dtype=np.int64)
        renumber[used] = np.arange(len(used))
        return renumber[column], tuple(self._forms[number] for number in used.tolist())

    def _results(self, returned: object) -> list[NkiTensor]:
        if returned is None:
            return []
        items = returned if isinstance(returned, (tuple, list)) else (returned,)
        results: list[NkiTensor] = []
        for item in items:
            if not isinstance(item, NkiTensor):
                raise KernelError(
                    "NKS205",
                    f"a kernel must return tensors, got {type(item).__name__} {item!r:.60}",
                    hint="return the nl.shared_hbm tensor that holds the result",
                )
            if item.memory is not Memory.HBM:
                raise KernelError(
                    "NKS205",
                    f"a kernel must return tensors in HBM, got {item!r}",
                    hint="allocate the result with buffer=nl.shared_hbm and nisa.dma_copy into it",
                )
            if self.version is not None and item.storage.region != "shared_hbm":
                raise KernelError(
                    "NKS205",
                    f"the result {item!r} is in private_hbm",
                    allowed="buffer=nl.shared_hbm",
                    hint="allocate the result with buffer=nl.shared_hbm",
                )
            results.append(item)
        return results

    def _register_operands(self) -> npt.NDArray[np.bool_]:
        per_form = [
            np.array([o.memory is Memory.REGISTER for o in form.operands], dtype=bool)
            for form in self._forms
        ]
        if not len(self._form):
            return np.zeros(0, dtype=bool)
        if not any(flags.any() for flags in per_form):
            return np.zeros(len(self._operand_buffer), dtype=bool)
        return np.concatenate([per_form[f] for f in self._form])

    def _written_buffers(self) -> set[int]:
        """Buffers that some instruction writes."""
        form = np.array(self._form, dtype=np.int64)
        arity = np.array([len(f.operands) for f in self._forms] or [0], dtype=np.int64)
        starts = np.zeros(len(form) + 1, dtype=np.int64)
        if len(form):
            np.cumsum(arity[form], out=starts[1:])
        buffers = np.array(self._operand_buffer, dtype=np.int64)
        written: set[int] = set()
        for number, f in enumerate(self._forms):
            spec = self._specs[f.op]
            where = starts[:-1][form == number]
            for position, operand in enumerate(f.operands):
                param = spec.param(operand.role.partition(".")[0])
                if operand.role.endswith(".index") or operand.memory is Memory.REGISTER:
                    continue
                if param is not None and param.access != "r":
                    written.update(np.unique(buffers[where + position]).tolist())
        return written

    def _live_buffers(
        self, results: Sequence[NkiTensor]
    ) -> tuple[list[int], npt.NDArray[np.int64]]:
        used = set(np.unique(np.array(self._operand_buffer, dtype=np.int64)).tolist())
        if self._register_count:
            used = set(
                np.unique(
                    np.array(self._operand_buffer, dtype=np.int64)[~self._register_operands()]
                ).tolist()
            )
        used.update(t.storage.number for _, t in self._arguments)
        used.update(t.storage.number for t in results)
        outputs = {t.storage.number for t in results}
        keep = sorted(used)
        renumber = np.full(len(self._buffers) + 1, -1, dtype=np.int64)
        for new, old in enumerate(keep):
            renumber[old] = new
            buffer = self._buffers[old]
            if old in outputs and buffer.kind == "local":
                self._buffers[old] = Buffer(
                    buffer.memory,
                    "output",
                    buffer.dtype,
                    buffer.partitions,
                    buffer.free_size,
                    buffer.name,
                    buffer.site,
                    buffer.birth,
                    buffer.address,
                    buffer.start_partition,
                    buffer.fill,
                    buffer.constant,
                    buffer.loop,
                )
        return keep, renumber


def _part(view: NkiTensor, fresh: Fresh) -> NkiTensor:
    """Return the part of an assignment's target that a masked instruction defines."""
    if fresh.box is None:
        return view
    return view.boxed(matching(view.shape, fresh.tile.shape), fresh.box)


def _tiles_of(view: NkiTensor) -> Iterable[NkiTensor]:
    """Return the view, or the tiles of a tensor with block dimensions."""
    from nkisim.frontend.blocks import BlockTensor

    return view.tiles() if isinstance(view, BlockTensor) else (view,)


__all__ = ["REGIONS", "DynamicIndex", "Index", "MemoryRegion", "Recorder"]
