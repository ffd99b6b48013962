"""Cost formulas that several instructions share, in cycles of the executing engine.

Partitions never change the time; N, the elements per partition, does.  Source: first NKI ISA pages
for the shapes of the formulas, architecture guides for the fast modes.
"""

from __future__ import annotations

from collections.abc import Sequence

from nkisim.ir.access import Memory
from nkisim.ir.program import Form, Operand
from nkisim.machine.spec import Engine, Machine
from nkisim.ops.registry import Cost


def port_factor(operands: Sequence[Operand], machine: Machine) -> float:
    """Return 2 if an operand's innermost stride halves the port rate, else 1."""
    for operand in operands:
        if not operand.memory.is_on_chip:
            continue
        stride = abs(operand.pattern.inner_stride) * operand.dtype.itemsize
        if stride >= machine.stride_penalty_bytes and operand.free_size > 1:
            return 2.0
    return 1.0


def is_narrow(operand: Operand, machine: Machine) -> bool:
    """Whether the fast modes apply to the dtype: 16-bit floats, from v4 on also 8-bit ones."""
    narrowest = 1 if machine.generation >= 4 else 2
    return operand.dtype.is_float and narrowest <= operand.dtype.itemsize <= 2


def free_elements(form: Form) -> int:
    """Return the largest number of elements per partition of any operand."""
    return max((o.free_size for o in form.operands if o.memory.is_on_chip), default=1)


def vector_cost(form: Form, machine: Machine, work: float, *, extra: float = 0.0) -> Cost:
    """Return the cost of a Vector Engine instruction that streams for `work` cycles."""
    dve = machine.dve
    if any(operand.index is not None for operand in form.operands):
        work = max(work, dve.dynamic_access_cycles)
    interval = max(dve.min_interval_cycles, work) + dve.overhead_cycles + extra
    return Cost(interval=interval, latency=interval + dve.latency_cycles)


def scalar_cost(
    machine: Machine, work: float, *, table: str | None = None, extra: float = 0.0
) -> Cost:
    """Return the cost of a Scalar Engine instruction that streams for `work` cycles."""
    act = machine.act
    interval = max(act.min_interval_cycles, work) + act.overhead_cycles + extra
    return Cost(interval=interval, latency=interval + act.latency_cycles, table=table)


def gpsimd_cost(machine: Machine, work: float) -> Cost:
    """Return the cost of a GpSimd instruction that streams for `work` cycles."""
    pool = machine.pool
    interval = pool.start_cycles + work * pool.cycles_per_element
    return Cost(interval=interval, latency=interval + pool.latency_cycles)


def one_input_work(machine: Machine, source: Operand, dst: Operand) -> float:
    """Return cycles of a one-input Vector instruction, with the 2x and 4x modes of v3."""
    n = float(max(source.free_size, dst.free_size))
    factor = port_factor([source, dst], machine)
    if machine.dve.fast_modes and is_narrow(source, machine) and is_narrow(dst, machine):
        in_sbuf = source.memory is Memory.SBUF and dst.memory is Memory.SBUF
        contiguous = source.pattern.is_free_contiguous and dst.pattern.is_free_contiguous
        if in_sbuf and contiguous:
            return n / 4
        if in_sbuf or contiguous:
            return n / 2 * factor
    return n * factor


def two_input_work(
    machine: Machine, a: Operand, b: Operand, dst: Operand, *, is_simple: bool
) -> float:
    """Return cycles of a two-input Vector instruction.

    Args:
        machine: The machine.
        a: One input.
        b: The other.
        dst: The result.
        is_simple: Whether v2 runs it at full rate on contiguous 16-bit operands.
    """
    n = float(dst.free_size)
    factor = port_factor([a, b, dst], machine)
    if a.memory is not Memory.SBUF or b.memory is not Memory.SBUF:
        return n * factor
    all_narrow = all(is_narrow(o, machine) for o in (a, b, dst))
    if machine.dve.fast_modes:
        return (n / 2 if all_narrow else n * machine.dve.two_input_factor) * factor
    if all_narrow and is_simple and all(o.pattern.is_free_contiguous for o in (a, b, dst)):
        return n
    return n * machine.dve.two_input_factor * factor


def on_engine(form: Form, machine: Machine, vector_work: float) -> Cost:
    """Return the cost of an instruction that several engines can run."""
    if form.engine is Engine.GPSIMD:
        return gpsimd_cost(machine, free_elements(form))
    if form.engine is Engine.SCALAR:
        n = float(free_elements(form))
        if all(is_narrow(o, machine) for o in form.operands if o.free_size > 1):
            n /= machine.act.elements_per_cycle_16bit
        return scalar_cost(machine, n)
    return vector_cost(form, machine, vector_work)
