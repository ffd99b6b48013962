"""Checks a Program that somebody else traced: is it well formed, and does it obey the rules?

Rules of an instruction are checked once per form, by the same op table that traced it.  Everything
that depends on buffers and offsets is checked on columns.  Nothing that the tracer claims is
believed.
"""

from __future__ import annotations

import numpy as np

from nkisim.errors import DiagnosticError, KernelError, NkisimError, ProgramError
from nkisim.execute.accesses import Accesses
from nkisim.execute.attributes import check_attributes
from nkisim.execute.coverage import Flags
from nkisim.execute.places import located
from nkisim.execute.roles import slot_access
from nkisim.execute.written import check_written
from nkisim.ir.access import Memory
from nkisim.ir.program import Form, Operand, Program
from nkisim.machine.spec import Machine
from nkisim.memory.capacity import check_capacity
from nkisim.memory.hbm import check_hbm
from nkisim.ops.masks import is_masked, operand_flags
from nkisim.ops.registry import OpSpec, OpTable, ParamKind

_REGISTER_KINDS = (ParamKind.REGISTER, ParamKind.REGISTER_OR_INTEGER)


def validate(
    program: Program,
    machine: Machine,
    ops: OpTable | None = None,
    *,
    allow_unwritten_reads: bool = False,
    allow_overflow: bool = False,
) -> None:
    """Check `program` against the rules of `machine`.

    Args:
        program: From anywhere.
        machine: Whose limits hold.
        ops: The op table; None for nkisim's own.
        allow_unwritten_reads: Let instructions read fresh memory, which holds poison.
        allow_overflow: Let more tiles live at one time than fit on chip.

    Raises:
        KernelError: The kernel breaks a rule.
        ProgramError: No kernel can have led to this Program; whoever made it cannot be trusted.
    """
    if ops is None:
        from nkisim.ops.table import OPS

        ops = OPS
    if program.machine != machine.name:
        raise ProgramError(f"traced for {program.machine!r:.40}, not for {machine.name!r}")
    check_structure(program, machine)
    check_forms(program, machine, ops)
    access = slot_access(program, ops)
    Accesses(program, machine, ops, access).check()
    check_hbm(program, machine)
    if not allow_overflow:
        check_capacity(program, machine)
    if not program.loops:
        check_written(program, access, allow_unwritten_reads=allow_unwritten_reads)


# -- structure ------------------------------------------------------------------------------------


def check_structure(program: Program, machine: Machine) -> None:
    """Check buffers, constants, arguments, outputs and loops against each other."""
    columns, limits = program.buffer_columns, machine.limits
    on_chip = ~columns.is_in(Memory.HBM)

    def refuse(flags: Flags, what: str) -> None:
        if flags.any():
            raise ProgramError(f"buffer {int(np.flatnonzero(flags)[0])} {what}")

    if not program.buffers:
        raise ProgramError("the Program has no buffers")
    refuse(~on_chip & (columns.partitions != 1), "in HBM has partitions")
    refuse(~on_chip & (columns.address >= 0), "in HBM has an address")
    refuse(on_chip & ~columns.is_kind("local"), "on chip is an argument, result or constant")
    refuse(columns.is_kind("constant") != (columns.constant >= 0), "has a constant by mistake")
    refuse(columns.has_fill & ~columns.is_kind("local") & ~columns.is_kind("output"), "has a fill")
    refuse(columns.start_partition < 0, "starts below partition 0")
    constant_bytes = sum(constant.nbytes for constant in program.constants)
    if constant_bytes > limits.constant_bytes_max:
        raise KernelError(
            "NKS204",
            f"constants of {constant_bytes:,} bytes exceed the limit of "
            f"{limits.constant_bytes_max:,}",
            hint="compute the values on the device (iota, affine_select) or pass an argument",
        )
    for number in np.flatnonzero(columns.constant >= 0).tolist():
        buffer = program.buffers[number]
        constant = program.constants[buffer.constant or 0]
        if constant.dtype != buffer.dtype.storage or constant.size != buffer.size:
            raise ProgramError(f"buffer {number} does not match its constant")
    _check_interface(program)
    _check_placed(program, machine, on_chip)
    _check_loops(program)


def _check_interface(program: Program) -> None:
    inputs = {n for n, buffer in enumerate(program.buffers) if buffer.kind == "input"}
    if inputs != {argument.buffer for argument in program.arguments}:
        raise ProgramError("arguments and input buffers do not match")
    if len(inputs) != len(program.arguments):
        raise ProgramError("two arguments share a buffer")
    for argument in program.arguments:
        buffer = program.buffers[argument.buffer]
        size = int(np.prod(argument.shape, dtype=object))
        if buffer.dtype != argument.dtype or buffer.size != size:
            raise ProgramError(f"argument {argument.name!r} does not match its buffer")
    if not program.outputs:
        raise ProgramError("the Program has no outputs")
    for position, output in enumerate(program.outputs):
        buffer, pattern = program.buffers[output.buffer], output.pattern
        total = buffer.size * buffer.dtype.itemsize // pattern.dtype.itemsize
        low, high = output.offset + pattern.reach_low, output.offset + pattern.reach_high
        if buffer.memory is not Memory.HBM or low < 0 or high >= total:
            raise ProgramError(f"output {position} is not inside of an HBM buffer")


def _check_placed(program: Program, machine: Machine, on_chip: Flags) -> None:
    """Check size and address of tiles."""
    columns, limits = program.buffer_columns, machine.limits
    capacity = np.where(columns.is_in(Memory.PSUM), limits.psum_bytes, limits.sbuf_usable_bytes)
    end = np.maximum(columns.address, 0) + columns.pitch_bytes
    ends = columns.start_partition + columns.partitions
    for flags, code, what, allowed in (
        (
            columns.partitions > limits.partitions,
            "NKS103",
            "has {b.partitions} partitions",
            f"≤ {limits.partitions} partitions",
        ),
        (
            ends > limits.partitions,
            "NKS213",
            "starts at partition {b.start_partition} and has {b.partitions}",
            f"partitions 0 to {limits.partitions - 1}",
        ),
        (
            end > capacity,
            "NKS202",
            "takes {b.partition_bytes:,} bytes per partition from address {b.address}",
            f"≤ {limits.psum_bytes:,} bytes in PSUM, {limits.sbuf_usable_bytes:,} in SBUF",
        ),
    ):
        bad = np.flatnonzero(flags & on_chip)
        if len(bad):
            buffer = program.buffers[int(bad[0])]
            site = program.sites[buffer.site]
            raise KernelError(
                code,
                f"tile {buffer.name!r} {what.format(b=buffer)}",
                got=f"[{buffer.partitions}, {buffer.free_size}] {buffer.dtype} in {buffer.memory}",
                allowed=allowed,
                place=site.place,
                callers=site.callers,
            )


def _check_loops(program: Program) -> None:
    open_loops: list[int] = []
    position = 0
    for number, loop in enumerate(program.loops):
        while open_loops and program.loops[open_loops[-1]].last <= loop.first:
            if open_loops[-1] == loop.parent:
                break  # an empty loop at the very end of its parent
            open_loops.pop()
        parent = open_loops[-1] if open_loops else None
        is_inside = parent is None or loop.last <= program.loops[parent].last
        if loop.parent != parent or not position <= loop.first <= loop.last or not is_inside:
            raise ProgramError(f"loop {number} is not well nested")
        if loop.last > len(program) or (loop.kind == "for" and loop.step < 1):
            raise ProgramError(f"loop {number} has illegal bounds")
        position = loop.first
        open_loops.append(number)
    registers = [
        register
        for loop in program.loops
        for register in (loop.register, loop.start_register, loop.stop_register)
        if register is not None
    ]
    if any(not 0 <= register < program.register_count for register in registers):
        raise ProgramError("a loop names a register that is not there")
    births = program.buffer_columns.loop
    if (births >= len(program.loops)).any():
        raise ProgramError("a buffer is born in a loop that is not there")


# -- forms ----------------------------------------------------------------------------------------


def check_forms(program: Program, machine: Machine, ops: OpTable) -> None:
    """Check every form that is used, by its row of the op table."""
    used, first = np.unique(program.form, return_index=True)
    for number, instruction in zip(used.tolist(), first.tolist(), strict=True):
        form = program.forms[number]
        if form.op not in ops:
            raise ProgramError(f"the op table has no {form.op!r}")
        spec = ops[form.op]
        _check_roles(form, spec)
        check_attributes(form, spec)
        try:
            if machine.generation < spec.min_generation:
                raise KernelError(
                    "NKS104",
                    f"{form.op} needs NeuronCore-v{spec.min_generation}; "
                    f"{machine.name} is NeuronCore-v{machine.generation}",
                )
            if form.engine not in spec.engines:
                raise KernelError(
                    "NKS104",
                    f"{form.op}: the {form.engine} engine cannot execute it",
                    allowed=", ".join(spec.engines),
                )
            _check_memories(form, spec)
            _check_partitions(form, machine)
            spec.check(form, machine)
            if is_masked(form):
                if any(operand.index is not None for operand in form.operands):
                    raise ProgramError(f"{form.op}: a mask together with a run-time index")
                operand_flags(form, spec)
        except DiagnosticError as error:
            raise located(program, error, instruction) from error.__cause__
        except NkisimError:
            raise
        except Exception as error:
            raise ProgramError(f"{form.op}: cannot be checked: {error!r:.200}") from error


def _check_roles(form: Form, spec: OpSpec) -> None:
    """Check that the operands are what the instruction's parameters ask for."""
    before: Operand | None = None
    roles: set[str] = set()
    for operand in form.operands:
        if operand.role in roles:
            raise ProgramError(f"{form.op}: operand {operand.role} occurs twice")
        roles.add(operand.role)
        wants_index = before is not None and before.index is not None
        if wants_index != operand.is_index:
            raise ProgramError(f"{form.op}: operand {operand.role} follows {before}")
        if operand.is_index:
            assert before is not None
            _check_index(form, before, operand)
        else:
            param = spec.param(operand.param)
            is_register = operand.memory is Memory.REGISTER
            if param is None or not (param.is_tensor or param.kind in _REGISTER_KINDS):
                raise ProgramError(f"{form.op} has no operand {operand.role}")
            if is_register and param.kind not in _REGISTER_KINDS and not param.is_tensor:
                raise ProgramError(f"{form.op}: operand {operand.role} cannot be a register")
            if is_register and (operand.pattern.size != 1 or operand.index is not None):
                raise ProgramError(f"{form.op}: register {operand.role} is not one element")
        if not operand.pattern.counts:
            raise ProgramError(f"{form.op}: operand {operand.role} has no dimensions")
        before = operand
    if before is not None and before.index is not None:
        raise ProgramError(f"{form.op}: {before.role} lacks its index")
    present = {operand.param for operand in form.operands}
    for param in spec.params:
        is_required = param.kind is ParamKind.TENSOR and param.default == "required"
        if is_required and param.name not in present and param.until is None:
            raise ProgramError(f"{form.op}: operand {param.name} is missing")


def _check_index(form: Form, indexed: Operand, source: Operand) -> None:
    index = indexed.index
    assert index is not None
    if source.role != f"{indexed.role}.index" or source.index is not None:
        raise ProgramError(f"{form.op}: {source.role} is not the index of {indexed.role}")
    if index.bound < 0 or index.kind not in ("scalar", "vector"):
        raise ProgramError(f"{form.op}: {indexed.role} has an impossible index")
    wanted = 1 if index.kind == "scalar" else indexed.partitions
    if source.pattern.size != wanted or not source.dtype.is_integer:
        raise KernelError(
            "NKS405",
            f"{form.op}: the {index.kind} index of {indexed.role} must be {wanted} integers",
            got=str(source),
        )


def _check_memories(form: Form, spec: OpSpec) -> None:
    for operand in form.operands:
        param = spec.param(operand.param)
        if operand.is_index or operand.memory is Memory.REGISTER or param is None:
            continue
        if param.is_tensor and operand.memory not in param.memories:
            raise KernelError(
                "NKS206",
                f"{form.op}: {operand.role} cannot be in {operand.memory}",
                got=str(operand),
                allowed=" or ".join(param.memories),
            )


def _check_partitions(form: Form, machine: Machine) -> None:
    limit = machine.limits.partitions
    for operand in form.operands:
        if operand.memory.is_on_chip and operand.partitions > limit:
            raise KernelError(
                "NKS103",
                f"{form.op}: {operand.role} partition dimension {operand.partitions} "
                f"exceeds the limit of {limit}",
                got=str(operand),
                allowed=f"≤ {limit}",
            )
