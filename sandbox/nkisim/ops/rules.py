"""Operand rules that many instructions share, each raising a `KernelError` that leads to a fix.

Source: NKI ISA reference (operand constraints), architecture guides (partitions, ports).
"""

from __future__ import annotations

from collections.abc import Iterable

from nkisim.errors import KernelError, UnsupportedError
from nkisim.ir.access import Memory
from nkisim.ir.program import Form, Operand
from nkisim.machine.spec import Engine, Machine

ELEMENTS_AGREE = "the same elements per partition in every operand"


def tensor_operands(form: Form) -> list[Operand]:
    """Return the operands that are tensors of values, without registers and index sources."""
    return [
        o
        for o in form.operands
        if o.memory is not Memory.REGISTER and not o.role.endswith(".index")
    ]


def check_partitions(form: Form, machine: Machine, operands: Iterable[Operand]) -> None:
    """Refuse tiles of more partitions than the machine has."""
    limit = machine.limits.partitions
    for operand in operands:
        if operand.memory.is_on_chip and operand.partitions > limit:
            raise KernelError(
                "NKS103",
                f"{form.op}: {operand.role} has {operand.partitions} partitions, "
                f"more than {limit}",
                got=str(operand),
                allowed=f"dimension 0 ≤ {limit}",
                hint=f"loop over tiles of {limit} rows",
            )


def check_memories(form: Form, allowed: dict[str, tuple[Memory, ...]]) -> None:
    """Refuse operands in a memory that the instruction cannot reach."""
    for operand in form.operands:
        wanted = allowed.get(operand.role.partition(".")[0])
        if wanted is None or operand.role.endswith(".index") or operand.memory in wanted:
            continue
        if operand.memory is Memory.REGISTER:
            continue
        names = " or ".join(m.value for m in wanted)
        raise KernelError(
            "NKS201",
            f"{form.op}: {operand.role} must be in {names}, it is in {operand.memory}",
            got=str(operand),
            allowed=names,
            hint=_memory_hint(form, operand, wanted),
        )


def _memory_hint(form: Form, operand: Operand, wanted: tuple[Memory, ...]) -> str:
    if operand.memory is Memory.HBM:
        return "load it into an SBUF tile with nisa.dma_copy first"
    if operand.memory is Memory.PSUM and form.op.startswith("dma"):
        return "copy the PSUM tile to SBUF with nisa.tensor_copy first, then DMA the copy"
    if operand.memory is Memory.PSUM:
        return "copy the PSUM tile to SBUF with nisa.tensor_copy first"
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
                "NKS110",
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
        if other.free_size != first.free_size:
            hint = "slice both to the same columns"
            if other.free_size == 1 or first.free_size == 1:
                hint = (
                    "one operand is a column (P, 1): use nisa.tensor_scalar, which broadcasts it, "
                    "or .broadcast(1, n) on the view"
                )
            raise KernelError(
                "NKS111",
                f"{form.op}: {first.role} has {first.free_size} elements per partition, "
                f"{other.role} has {other.free_size}",
                got=f"{first}; {other}",
                allowed=ELEMENTS_AGREE,
                hint=hint,
            )


def check_column(form: Form, *roles: str, dtype: str | None = "float32") -> None:
    """Refuse vector operands that are not (P, 1) of the wanted dtype."""
    main = form.operands[0]
    for role in roles:
        operand = form.get(role)
        if operand is None:
            continue
        if operand.free_size != 1:
            raise KernelError(
                "NKS112",
                f"{form.op}: {role} must be a number or a tile (P, 1), it has "
                f"{operand.free_size} elements per partition",
                got=str(operand),
                allowed="(P, 1)",
                hint="use nisa.tensor_tensor for two whole tiles",
            )
        if operand.partitions != main.partitions:
            raise KernelError(
                "NKS110",
                f"{form.op}: {main.role} has {main.partitions} partitions, {role} has "
                f"{operand.partitions}",
                got=f"{main}; {operand}",
                allowed="equal partition counts",
                hint="slice the column to the same rows",
            )
        if dtype is not None and operand.dtype != dtype and operand.dtype.is_integer is False:
            if operand.dtype.name != dtype:
                raise KernelError(
                    "NKS302",
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
            "NKS207",
            f"{form.op}: {a} and {b} are both in PSUM",
            got=f"{first}; {second}",
            allowed="at most one input in PSUM",
            hint="copy one of them to SBUF with nisa.tensor_copy first",
        )


def check_gpsimd_sbuf(form: Form) -> None:
    """Refuse PSUM operands of an instruction that runs on GpSimd."""
    if form.engine is not Engine.GPSIMD:
        return
    for operand in tensor_operands(form):
        if operand.memory is Memory.PSUM:
            raise KernelError(
                "NKS208",
                f"{form.op}: GpSimd cannot access PSUM, {operand.role} is there",
                got=str(operand),
                allowed="sbuf",
                hint="run it on the Vector Engine, or copy to SBUF first",
            )


def check_rank(form: Form, machine: Machine) -> None:
    """Refuse access patterns of more free dimensions than the hardware walks."""
    limit = machine.limits.free_dims_max
    for operand in tensor_operands(form):
        if operand.memory.is_on_chip and len(operand.pattern.free_strides_merged) > limit:
            raise KernelError(
                "NKS113",
                f"{form.op}: {operand.role} needs {len(operand.pattern.free_strides_merged)} free "
                f"dimensions, more than {limit}",
                got=f"{operand}, strides {list(operand.pattern.strides)}",
                allowed=f"≤ {limit} free dimensions after merging contiguous ones",
                hint="split the instruction into a loop over the outermost dimension",
            )


def check_packed(form: Form) -> None:
    """Say that packed MX dtypes are not emulated."""
    for operand in tensor_operands(form):
        if operand.dtype.kind == "packed":
            raise UnsupportedError(
                "NKS507", f"{form.op} on packed dtype {operand.dtype} is not emulated yet"
            )


def refuse_dtype(form: Form, operand: Operand, allowed: str, hint: str) -> KernelError:
    """Return the error for an operand of a dtype that the instruction does not take."""
    return KernelError(
        "NKS303",
        f"{form.op}: {operand.role} cannot be {operand.dtype}",
        got=str(operand),
        allowed=allowed,
        hint=hint,
    )


def elementwise(form: Form, machine: Machine, *roles: str) -> None:
    """Check operands that share partitions and elements per partition."""
    check_packed(form)
    check_partitions(form, machine, form.operands)
    check_rank(form, machine)
    check_same_partitions(form, *roles)
    check_same_free(form, *roles)
    check_gpsimd_sbuf(form)
