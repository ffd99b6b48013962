"""Cost formulas that several instructions share, in cycles of the executing engine.

Source: first NKI ISA pages for the shapes of the formulas, architecture guides for the fast modes.
"""

from __future__ import annotations

from nkisim.ir.access import Memory
from nkisim.ir.program import Form, Operand
from nkisim.machine.spec import Engine, Machine
from nkisim.ops.registry import Cost


def port_factor(operands: tuple[Operand, ...] | list[Operand], machine: Machine) -> float:
    """Return 2 if an operand's innermost stride halves the port rate, else 1."""
    for operand in operands:
        if not operand.memory.is_on_chip:
            continue
        stride = operand.pattern.inner_stride * operand.dtype.itemsize
        if stride >= machine.stride_penalty_bytes and operand.free_size > 1:
            return 2.0
    return 1.0


def is_16bit(operand: Operand) -> bool:
    """Whether the fast modes apply to the dtype."""
    return operand.dtype.itemsize == 2 and operand.dtype.is_float


def vector_cost(machine: Machine, work: float, *, extra: float = 0.0) -> Cost:
    """Return the cost of a Vector Engine instruction that streams for `work` cycles."""
    dve = machine.dve
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


def free_elements(form: Form) -> int:
    """Return the largest number of elements per partition of any operand."""
    return max((o.free_size for o in form.operands if o.memory.is_on_chip), default=1)


def one_input_work(form: Form, machine: Machine, source: Operand, dst: Operand) -> float:
    """Return cycles of a one-input Vector instruction, with the 2x and 4x modes of v3."""
    n = float(max(source.free_size, dst.free_size))
    factor = port_factor([source, dst], machine)
    if machine.dve.fast_modes and is_16bit(source) and is_16bit(dst):
        in_sbuf = source.memory is Memory.SBUF and dst.memory is Memory.SBUF
        contiguous = source.pattern.is_free_contiguous and dst.pattern.is_free_contiguous
        if in_sbuf and contiguous:
            return n / 4
        if in_sbuf or contiguous:
            return n / 2 * factor
    return n * factor


def two_input_work(form: Form, machine: Machine, a: Operand, b: Operand, dst: Operand) -> float:
    """Return cycles of a two-input Vector instruction."""
    n = float(dst.free_size)
    factor = port_factor([a, b, dst], machine)
    both_sbuf = a.memory is Memory.SBUF and b.memory is Memory.SBUF
    all_16 = is_16bit(a) and is_16bit(b) and is_16bit(dst)
    if not both_sbuf:
        return n * factor
    if machine.dve.fast_modes:
        if all_16:
            return n / 2 * factor
        return n * machine.dve.two_input_factor * factor
    simple = form.attr("op") in ("add", "subtract", "multiply")
    contiguous = all(o.pattern.is_free_contiguous for o in (a, b, dst))
    if all_16 and simple and contiguous:
        return n
    return n * machine.dve.two_input_factor * factor


def on_engine(form: Form, machine: Machine, vector_work: float) -> Cost:
    """Return the cost of an instruction that several engines can run."""
    if form.engine is Engine.GPSIMD:
        return gpsimd_cost(machine, free_elements(form))
    if form.engine is Engine.SCALAR:
        return scalar_cost(machine, free_elements(form))
    return vector_cost(machine, vector_work)
