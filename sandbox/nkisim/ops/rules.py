"""Operand rules that many instructions share, each raising a `KernelError` that leads to a fix.

Source: NKI ISA reference (operand constraints), architecture guides (partitions, ports).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from nkisim.errors import KernelError
from nkisim.ir.access import Memory
from nkisim.ir.program import Form, Operand
from nkisim.machine.spec import Engine, Machine
from nkisim.ops import alu, codes
from nkisim.ops.registry import Param


def tensor_operands(form: Form) -> list[Operand]:
    """Return the operands that are tensors of values, without registers and index sources."""
    return [o for o in form.operands if o.memory is not Memory.REGISTER and not o.is_index]


NEWEST_HINTS: Final = {
    "abs_max": "take the absolute values first, then maximum",
    "abs_min": "take the absolute values first, then minimum",
    "square": "nisa.tensor_tensor of the tile with itself, or nisa.activation(op=nl.square)",
    "relu": "op0=nl.maximum, operand0=0.0",
}


def check_operands(
    form: Form, machine: Machine, params: Sequence[Param], *, packed: Sequence[str] = ()
) -> None:
    """Check what holds for every operand of a compute instruction: place, size, rank, dtype.

    Args:
        form: The form.
        machine: Whose limits hold.
        params: Of the instruction.
        packed: Operands that may be of a packed MX dtype.
    """
    check_choices(form, params)
    check_packed(form, packed)
    check_memories(form, params)
    check_partitions(form, machine)
    check_rank(form, machine)
    check_gpsimd_sbuf(form)


def check_elementwise(
    form: Form,
    machine: Machine,
    params: Sequence[Param],
    *roles: str,
    packed: Sequence[str] = (),
) -> None:
    """Check an instruction whose operands `roles` agree element by element."""
    check_operands(form, machine, params, packed=packed)
    check_same_partitions(form, *roles)
    check_same_free(form, *roles)


def check_choices(form: Form, params: Sequence[Param]) -> None:
    """Refuse an op or enum member that the instruction does not know."""
    for param in params:
        value = form.attr(param.name)
        if param.choices and value is not None and value not in param.choices:
            raise KernelError(
                codes.OP,
                f"{form.op}: {param.name}={value} is not supported by this instruction",
                allowed=", ".join(param.choices),
            )


def check_partitions(form: Form, machine: Machine) -> None:
    """Refuse tiles of more partitions than the machine has."""
    limit = machine.limits.partitions
    for operand in form.operands:
        if operand.memory.is_on_chip and operand.partitions > limit:
            raise KernelError(
                codes.PARTITION_LIMIT,
                f"{form.op}: {operand.role} has {operand.partitions} partitions, more than {limit}",
                got=str(operand),
                allowed=f"dimension 0 ≤ {limit}",
                hint=f"loop over tiles of {limit} rows",
            )


def check_memories(form: Form, params: Iterable[Param]) -> None:
    """Refuse operands in a memory that the instruction cannot reach."""
    allowed = {p.name: p.memories for p in params if p.is_tensor}
    for operand in tensor_operands(form):
        wanted = allowed.get(operand.param)
        if wanted is None or operand.memory in wanted:
            continue
        names = " or ".join(wanted)
        raise KernelError(
            codes.MEMORY,
            f"{form.op}: {operand.role} must be in {names}, it is in {operand.memory}",
            got=str(operand),
            allowed=names,
            hint=_memory_hint(form, operand, wanted),
        )


def _memory_hint(form: Form, operand: Operand, wanted: tuple[Memory, ...]) -> str:
    is_result = operand.param == "dst"
    if operand.memory is Memory.HBM:
        if is_result:
            return "write to an SBUF tile, then nisa.dma_copy that to HBM"
        return "load it into an SBUF tile with nisa.dma_copy first"
    if operand.memory is Memory.PSUM:
        if is_result:
            return "allocate dst with buffer=nl.sbuf"
        return "copy the PSUM tile to SBUF with nisa.tensor_copy first, then use the copy"
    if wanted == (Memory.PSUM,):
        return "allocate the result with buffer=nl.psum, then copy it to SBUF"
    return f"allocate {operand.role} in {wanted[0].value}"


def check_same_partitions(form: Form, *roles: str) -> None:
    """Refuse operands whose partition counts differ."""
    operands = [o for role in roles if (o := form.get(role)) is not None]
    first = operands[0]
    for other in operands[1:]:
        if other.partitions != first.partitions:
            raise KernelError(
                codes.PARTITIONS_DIFFER,
                f"{form.op}: {first.role} has {first.partitions} partitions, "
                f"{other.role} has {other.partitions}",
                got=f"{first}; {other}",
                allowed="equal partition counts",
                hint="slice both to the same rows; lanes cannot broadcast along partitions",
            )


def check_same_free(form: Form, *roles: str) -> None:
    """Refuse operands whose elements per partition differ."""
    operands = [o for role in roles if (o := form.get(role)) is not None]
    first = operands[0]
    for other in operands[1:]:
        if other.free_size == first.free_size:
            continue
        hint = "slice both to the same columns"
        if 1 in (first.free_size, other.free_size):
            hint = (
                "one operand is a column (P, 1): use nisa.tensor_scalar, which broadcasts it, "
                "or .broadcast(1, n) on the view"
            )
        raise KernelError(
            codes.FREE_SIZES_DIFFER,
            f"{form.op}: {first.role} has {first.free_size} elements per partition, "
            f"{other.role} has {other.free_size}",
            got=f"{first}; {other}",
            allowed="the same elements per partition in every operand",
            hint=hint,
        )


def check_free_size(form: Form, role: str, size: int) -> None:
    """Refuse an operand that does not have `size` elements per partition."""
    operand = form.get(role)
    if operand is None or operand.free_size == size:
        return
    raise KernelError(
        codes.FREE_SIZES_DIFFER,
        f"{form.op}: {role} must have {size} elements per partition, it has {operand.free_size}",
        got=str(operand),
        allowed=f"(P, {size})",
        hint=f"allocate {role} as ({operand.partitions}, {size})",
    )


def check_column(form: Form, *roles: str, dtype: str | None = "float32") -> None:
    """Refuse vector operands that are not (P, 1) of the wanted dtype; integers are taken too."""
    main = form.operands[0]
    for role in roles:
        operand = form.get(role)
        if operand is None:
            continue
        if operand.free_size != 1:
            raise KernelError(
                codes.NOT_A_COLUMN,
                f"{form.op}: {role} must be a number or a tile (P, 1), it has "
                f"{operand.free_size} elements per partition",
                got=str(operand),
                allowed="(P, 1)",
                hint="use nisa.tensor_tensor for two whole tiles",
            )
        if operand.partitions != main.partitions:
            raise KernelError(
                codes.PARTITIONS_DIFFER,
                f"{form.op}: {main.role} has {main.partitions} partitions, {role} has "
                f"{operand.partitions}",
                got=f"{main}; {operand}",
                allowed="equal partition counts",
                hint="slice the column to the same rows",
            )
        if dtype is not None and operand.dtype != dtype and not operand.dtype.is_integer:
            raise KernelError(
                codes.COLUMN_DTYPE,
                f"{form.op}: {role} must be {dtype}, it is {operand.dtype}",
                got=str(operand),
                allowed=dtype,
                hint=f"allocate the column as nl.{dtype}",
            )


def check_not_both_psum(form: Form, a: str, b: str) -> None:
    """Refuse two inputs in PSUM."""
    first, second = form.get(a), form.get(b)
    if first is None or second is None:
        return
    if first.memory is Memory.PSUM and second.memory is Memory.PSUM:
        raise KernelError(
            codes.BOTH_IN_PSUM,
            f"{form.op}: {a} and {b} are both in PSUM",
            got=f"{first}; {second}",
            allowed="at most one of them in PSUM",
            hint="copy one of them to SBUF with nisa.tensor_copy first",
        )


def check_gpsimd_sbuf(form: Form) -> None:
    """Refuse PSUM operands of an instruction that runs on GpSimd."""
    if form.engine is not Engine.GPSIMD:
        return
    for operand in tensor_operands(form):
        if operand.memory is Memory.PSUM:
            raise KernelError(
                codes.GPSIMD_PSUM,
                f"{form.op}: GpSimd cannot access PSUM, {operand.role} is there",
                got=str(operand),
                allowed="sbuf",
                hint="run it on the Vector Engine, or copy to SBUF first",
            )


def check_rank(form: Form, machine: Machine) -> None:
    """Refuse access patterns of more free dimensions than the hardware walks."""
    limit = machine.limits.free_dims_max
    for operand in tensor_operands(form):
        rank = len(operand.pattern.free_strides_merged)
        if operand.memory.is_on_chip and rank > limit:
            raise KernelError(
                codes.PATTERN_RANK,
                f"{form.op}: {operand.role} needs {rank} free dimensions, more than {limit}",
                got=f"{operand}, strides {list(operand.pattern.strides)}",
                allowed=f"≤ {limit} free dimensions after merging contiguous ones",
                hint="split the instruction into a loop over the outermost dimension",
            )


def check_packed(form: Form, allowed: Sequence[str] = ()) -> None:
    """Refuse packed MX dtypes outside of the instructions that know them."""
    for operand in tensor_operands(form):
        if operand.dtype.kind == "packed" and operand.role not in allowed:
            raise refuse_dtype(
                form,
                operand,
                "plain dtypes; nc_matmul_mx, copies, and memset to 0 take packed ones",
                f"view the bits as integers: .view(nl.uint{operand.dtype.itemsize * 8})",
            )


def check_same_dtype(form: Form, a: str, b: str) -> None:
    """Refuse two operands of different dtypes."""
    first, second = form.get(a), form.get(b)
    if first is None or second is None or first.dtype == second.dtype:
        return
    raise KernelError(
        codes.DTYPES_DIFFER,
        f"{form.op}: {a} is {first.dtype}, {b} is {second.dtype}",
        got=f"{first}; {second}",
        allowed="the same dtype",
        hint=f"allocate {a} as nl.{second.dtype}; cast with nisa.tensor_copy",
    )


def check_ops(form: Form, machine: Machine, *names: str) -> None:
    """Check the ALU ops of an instruction: one class, integers for bitvec, on this machine."""
    ops = [str(form.attr(name)) for name in names if form.attr(name) is not None]
    if "divide" in ops:
        raise KernelError(
            codes.OP,
            f"{form.op}: divide is not an ALU op of the hardware",
            allowed=", ".join(alu.ARITHMETIC),
            hint="nisa.reciprocal the divisor, then multiply",
        )
    for op in ops:
        if op in alu.NEWEST_ONLY and machine.generation < 4:
            raise KernelError(
                codes.OP,
                f"{form.op}: {op} needs NeuronCore-v4, {machine.name} is "
                f"NeuronCore-v{machine.generation}",
                hint=NEWEST_HINTS.get(op),
            )
    bitvec = [op for op in ops if alu.is_bitvec(op)]
    if not bitvec:
        return
    arithmetic = [op for op in ops if op not in bitvec and op != "bypass"]
    if arithmetic:
        raise KernelError(
            codes.OP,
            f"{form.op}: {bitvec[0]} works on bits and {arithmetic[0]} on numbers",
            allowed="ops of one class in one instruction",
            hint="use two instructions",
        )
    for operand in tensor_operands(form):
        if not operand.dtype.is_integer:
            raise refuse_dtype(
                form, operand, "integers for bitvec ops", f"view it: {operand.role}.view(nl.int32)"
            )


def check_unary(form: Form, op: str, operand: str) -> None:
    """Refuse an operand of an op that has none; 0 is the way to write none."""
    name = form.attr(op)
    if name not in alu.UNARY or (form.get(operand) is None and not form.attr(operand)):
        return
    got = form.get(operand) or f"{operand}={form.attr(operand)!r}"
    raise KernelError(
        codes.VALUE,
        f"{form.op}: {op}=nl.{name} takes no {operand}",
        got=str(got),
        allowed=f"no {operand}, or {operand}=0.0",
        hint=f"use two ops: op0=nl.add, operand0=…, op1=nl.{name}",
    )


def refuse_dtype(form: Form, operand: Operand, allowed: str, hint: str) -> KernelError:
    """Return the error for an operand of a dtype that the instruction does not take."""
    return KernelError(
        codes.DTYPE,
        f"{form.op}: {operand.role} cannot be {operand.dtype}",
        got=str(operand),
        allowed=allowed,
        hint=hint,
    )


def refuse_engine(form: Form, why: str, allowed: str, hint: str) -> KernelError:
    """Return the error for an engine that cannot execute the instruction."""
    return KernelError(
        codes.ENGINE,
        f"{form.op} cannot run on the {form.engine} engine: {why}",
        got=f"engine={form.engine}",
        allowed=allowed,
        hint=hint,
    )
