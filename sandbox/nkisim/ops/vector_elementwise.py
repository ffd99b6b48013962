"""Elementwise instructions of the Vector Engine, some of which other engines run too.

All maths is float32 with one rounding at the end; int32 addition and multiplication on GpSimd are
exact.  Source: NKI ISA reference 0.6 (one page for each instruction named below).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nkisim.dtypes import Array, store
from nkisim.errors import KernelError
from nkisim.ir.access import Memory
from nkisim.ir.program import Form
from nkisim.machine.spec import Engine, Machine
from nkisim.ops import alu, codes, costs, rules
from nkisim.ops.operands import (
    DST,
    ENGINE,
    NAME,
    OLD_DTYPE,
    REDUCE_CMDS,
    accumulate,
    has,
    is_immediate,
    owns_result,
    page,
    position,
    read,
    read_column,
    stage,
)
from nkisim.ops.registry import Cost, OpSpec, Param, ParamKind, Run, State

K = ParamKind
WRAPPING_OPS = ("add", "subtract", "multiply")
"""Ops whose low bits depend on the low bits of their operands only."""

# -- tensor_tensor ------------------------------------------------------------------------------

TENSOR_TENSOR_PARAMS = (
    DST,
    Param(name="data1", kind=K.TENSOR),
    Param(name="data2", kind=K.TENSOR),
    Param(name="op", kind=K.OP, choices=alu.TENSOR_OPERAND_OPS),
    ENGINE,
    NAME,
    OLD_DTYPE,
)


def _check_tensor_tensor(form: Form, machine: Machine) -> None:
    rules.check_ops(form, machine, "op")
    rules.check_elementwise(form, machine, TENSOR_TENSOR_PARAMS, "dst", "data1", "data2")
    rules.check_not_both_psum(form, "data1", "data2")
    if form.attr("op") == "power" and form.engine is Engine.VECTOR:
        raise rules.refuse_engine(
            form, "it has no power", "gpsimd", "leave engine out, or use exp and log"
        )
    if alu.is_bitvec(form.attr("op")) and form.engine is Engine.GPSIMD:
        raise rules.refuse_engine(form, "it has no bitvec ops", "vector", "leave engine out")


def _is_integer_32(form: Form) -> bool:
    return all(o.dtype.name in ("int32", "uint32") for o in rules.tensor_operands(form))


def _tensor_tensor(form: Form) -> Run:
    name, shape, dtype = str(form.attr("op")), form["dst"].shape, form["dst"].dtype
    dst = position(form, "dst")
    if name in alu.BITVEC:
        return _bitvec(form, name)
    function = alu.ARITHMETIC[name]
    if form.engine is Engine.GPSIMD and _is_integer_32(form) and name != "power":
        return _exact_integer(form, name)
    x, y = read(form, "data1", shape), read(form, "data2", shape)
    if dtype.name == "float32":

        def run_fast(_: State, views: Sequence[Array]) -> None:
            function(x(views), y(views), out=views[dst])

        return run_fast
    overwrites = owns_result(form["data1"])

    def run(_: State, views: Sequence[Array]) -> None:
        a = x(views)
        store(views[dst], function(a, y(views), out=a if overwrites else None), dtype)

    return run


def _exact_integer(form: Form, name: str) -> Run:
    """Return 32-bit integer maths that wraps like the hardware's."""
    dst, a, b = (position(form, role) for role in ("dst", "data1", "data2"))
    shape, function = form["dst"].shape, alu.ARITHMETIC[name]
    if name in WRAPPING_OPS:

        def run_wrapping(_: State, views: Sequence[Array]) -> None:
            x, y = alu.as_bits(views[a]).reshape(shape), alu.as_bits(views[b]).reshape(shape)
            alu.as_bits(views[dst])[...] = function(x, y)

        return run_wrapping

    def run(_: State, views: Sequence[Array]) -> None:
        x, y = views[a].astype(np.int64).reshape(shape), views[b].astype(np.int64).reshape(shape)
        views[dst][...] = function(x, y)

    return run


def _bitvec(form: Form, name: str) -> Run:
    dst, a, b = (position(form, role) for role in ("dst", "data1", "data2"))
    function, shape = alu.BITVEC[name], form["dst"].shape

    def run(_: State, views: Sequence[Array]) -> None:
        x = alu.as_bits(views[a]).reshape(shape)
        if name == "invert":
            result = function(x)
        else:
            result = function(x, alu.as_bits(views[b]).reshape(shape).astype(x.dtype))
        alu.as_bits(views[dst])[...] = result

    return run


def _choose_tensor_tensor(form: Form, machine: Machine) -> Engine:
    op, operands = form.attr("op"), rules.tensor_operands(form)
    if op == "power":
        return Engine.GPSIMD
    in_sbuf = all(o.memory is Memory.SBUF for o in operands)
    if in_sbuf and _is_integer_32(form) and not alu.is_bitvec(op):
        return Engine.GPSIMD
    return Engine.VECTOR


def _cost_tensor_tensor(form: Form, machine: Machine) -> Cost:
    simple = form.attr("op") in WRAPPING_OPS
    work = costs.two_input_work(
        machine, form["data1"], form["data2"], form["dst"], is_simple=simple
    )
    return costs.on_engine(form, machine, work)


TENSOR_TENSOR = OpSpec(
    name="tensor_tensor",
    params=TENSOR_TENSOR_PARAMS,
    engines=(Engine.VECTOR, Engine.GPSIMD),
    summary="Elementwise op of two tiles.",
    semantics="dst = op(data1, data2); comparisons and logical ops give 1 or 0",
    rules=(
        "no broadcasting: equal partitions and elements per partition",
        "data1 and data2 not both in PSUM; GpSimd reaches SBUF only",
        "arithmetic in float32, one rounding to dst; bitvec ops on integers only; no divide",
        "int32 tiles in SBUF run on GpSimd, exactly",
    ),
    example="nisa.tensor_tensor(dst=out, data1=a, data2=b, op=nl.add)",
    source=page("tensor_tensor"),
    check=_check_tensor_tensor,
    compile=_tensor_tensor,
    cost=_cost_tensor_tensor,
    choose_engine=_choose_tensor_tensor,
)

# -- tensor_scalar ------------------------------------------------------------------------------

TENSOR_SCALAR_PARAMS = (
    DST,
    Param(name="data", kind=K.TENSOR),
    Param(name="op0", kind=K.OP, choices=alu.SCALAR_OPERAND_OPS),
    Param(name="operand0", kind=K.TENSOR_OR_SCALAR, default=None),
    Param(name="reverse0", kind=K.BOOL, default=False),
    Param(name="op1", kind=K.OP, default=None, choices=alu.SCALAR_OPERAND_OPS),
    Param(name="operand1", kind=K.TENSOR_OR_SCALAR, default=None),
    Param(name="reverse1", kind=K.BOOL, default=False),
    ENGINE,
    NAME,
    OLD_DTYPE,
)
SCALAR_ENGINE_OPS = (("multiply", "add"), ("multiply", None), ("add", None))
"""(op0, op1) that the Scalar Engine takes from NeuronCore-v3 on."""
_NO_OPERAND = (*alu.UNARY, "invert", "bypass")


def _check_tensor_scalar(form: Form, machine: Machine) -> None:
    rules.check_ops(form, machine, "op0", "op1")
    rules.check_elementwise(form, machine, TENSOR_SCALAR_PARAMS, "dst", "data")
    is_bitvec = alu.is_bitvec(form.attr("op0")) or alu.is_bitvec(form.attr("op1"))
    rules.check_column(form, "operand0", "operand1", dtype=None if is_bitvec else "float32")
    for op, operand in (("op0", "operand0"), ("op1", "operand1")):
        name = form.attr(op)
        if name is not None and name not in _NO_OPERAND and not has(form, operand):
            raise KernelError(
                codes.MISSING_ARGUMENT,
                f"tensor_scalar: {op}=nl.{name} needs {operand}",
                allowed="a number or a tile (P, 1)",
            )
        rules.check_unary(form, op, operand)
        if name is None and has(form, operand):
            raise KernelError(
                codes.MISSING_ARGUMENT,
                f"tensor_scalar: {operand} without {op}",
                allowed=f"{op} and {operand} together",
                hint=f"pass {op}, such as {op}=nl.add",
            )
    _check_tensor_scalar_engine(form, machine, is_bitvec)


def _check_tensor_scalar_engine(form: Form, machine: Machine, is_bitvec: bool) -> None:
    pair = (form.attr("op0"), form.attr("op1"))
    if form.engine is Engine.SCALAR:
        if machine.generation < 3:
            raise rules.refuse_engine(
                form, f"{machine.core} has no such mode", "vector", "use nisa.activation"
            )
        if pair not in SCALAR_ENGINE_OPS:
            raise rules.refuse_engine(
                form,
                f"op0={pair[0]}, op1={pair[1]}",
                "multiply then add, multiply, or add",
                "use engine=nisa.engine.vector",
            )
    if form.engine is Engine.GPSIMD and pair not in (("rsqrt", None), ("power", None)):
        raise rules.refuse_engine(
            form, f"op0={pair[0]}, op1={pair[1]}", "rsqrt alone", "use engine=nisa.engine.vector"
        )
    if is_bitvec and form.engine is not Engine.VECTOR:
        raise rules.refuse_engine(form, "it has no bitvec ops", "vector", "leave engine out")


def _tensor_scalar(form: Form) -> Run:
    op0, op1, dtype = str(form.attr("op0")), form.attr("op1"), form["dst"].dtype
    dst, shape = position(form, "dst"), form["dst"].shape
    if alu.is_bitvec(op0) or alu.is_bitvec(op1):
        return _tensor_scalar_bitvec(form)
    rank = len(shape)
    data = read(form, "data", shape)
    first = stage(form, op0, "operand0", is_reversed=bool(form.attr("reverse0")), rank=rank)
    second = None
    if op1 is not None and op1 != "bypass":
        second = stage(
            form, str(op1), "operand1", is_reversed=bool(form.attr("reverse1")), rank=rank
        )
    overwrites = owns_result(form["data"])
    if dtype.name == "float32" and second is None:

        def run_one(_: State, views: Sequence[Array]) -> None:
            first(data(views), views, views[dst])

        return run_one
    if dtype.name == "float32" and second is not None:
        last = second
        # A column may lie inside of dst, so that only numbers let the first op write there.
        in_place = is_immediate(form, "operand1")

        def run_two(_: State, views: Sequence[Array]) -> None:
            out = views[dst]
            last(first(data(views), views, out if in_place else None), views, out)

        return run_two

    def run(_: State, views: Sequence[Array]) -> None:
        values = data(views)
        values = first(values, views, values if overwrites else None)
        if second is not None:
            values = second(values, views, values)
        store(views[dst], values, dtype)

    return run


def _tensor_scalar_bitvec(form: Form) -> Run:
    dst, data, shape = position(form, "dst"), position(form, "data"), form["dst"].shape
    unsigned = np.dtype(f"u{form['data'].dtype.itemsize}")
    bits = 8 * unsigned.itemsize
    steps: list[tuple[str, int | None, Any, bool]] = []
    for k in (0, 1):
        name = form.attr(f"op{k}")
        if name is not None and name != "bypass":
            raw = form.attr(f"operand{k}") or 0
            assert isinstance(raw, (int, float))
            value = np.asarray(int(raw) & ((1 << bits) - 1), dtype=unsigned)
            where, is_reversed = form.position(f"operand{k}"), bool(form.attr(f"reverse{k}"))
            steps.append((str(name), where, value, is_reversed))
    column = (form["dst"].partitions, *(1,) * (len(shape) - 1))

    def run(_: State, views: Sequence[Array]) -> None:
        x: Any = alu.as_bits(views[data]).reshape(shape)
        for name, where, value, is_reversed in steps:
            function = alu.BITVEC[name]
            if name == "invert":
                x = function(x)
                continue
            other = value
            if where is not None:
                other = alu.as_bits(views[where]).astype(unsigned).reshape(column)
            x = function(other, x) if is_reversed else function(x, other)
        alu.as_bits(views[dst])[...] = x

    return run


def _choose_tensor_scalar(form: Form, machine: Machine) -> Engine:
    operands = rules.tensor_operands(form)
    alone = form.attr("op1") is None
    if alone and form.attr("op0") == "rsqrt" and all(o.memory is Memory.SBUF for o in operands):
        return Engine.GPSIMD
    return Engine.VECTOR


def _cost_tensor_scalar(form: Form, machine: Machine) -> Cost:
    work = costs.one_input_work(machine, form["data"], form["dst"])
    if form.engine is Engine.GPSIMD:  # rsqrt takes four times as long as on the Scalar Engine
        return costs.gpsimd_cost(machine, 4.0 * form["dst"].free_size)
    return costs.on_engine(form, machine, work)


TENSOR_SCALAR = OpSpec(
    name="tensor_scalar",
    params=TENSOR_SCALAR_PARAMS,
    engines=(Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD),
    summary="One or two ops with a number or a per-partition column.",
    semantics="t = op0(data, operand0); dst = op1(t, operand1); reverse0/1 swap the operands",
    rules=(
        "operands are numbers or float32 tiles (P, 1), broadcast along the free axis",
        "op1 and operand1 come together; abs, rsqrt, reciprocal take no operand (square and relu "
        "need NeuronCore-v4)",
        "bitvec and arithmetic ops cannot be mixed; no divide",
        "the Scalar Engine takes multiply+add, multiply, add; GpSimd rsqrt only",
    ),
    example="nisa.tensor_scalar(dst=y, data=x, op0=nl.multiply, operand0=scale, op1=nl.add, "
    "operand1=1e-6)",
    source=page("tensor_scalar"),
    check=_check_tensor_scalar,
    compile=_tensor_scalar,
    cost=_cost_tensor_scalar,
    choose_engine=_choose_tensor_scalar,
)

# -- scalar_tensor_tensor -----------------------------------------------------------------------

SCALAR_TENSOR_TENSOR_PARAMS = (
    DST,
    Param(name="data", kind=K.TENSOR),
    Param(name="op0", kind=K.OP, choices=alu.ARITHMETIC_OPS),
    Param(name="operand0", kind=K.TENSOR_OR_SCALAR),
    Param(name="op1", kind=K.OP, choices=alu.ARITHMETIC_OPS),
    Param(name="operand1", kind=K.TENSOR),
    Param(name="reverse0", kind=K.BOOL, default=False),
    Param(name="reverse1", kind=K.BOOL, default=False),
    NAME,
    OLD_DTYPE,
)


def _check_scalar_tensor_tensor(form: Form, machine: Machine) -> None:
    rules.check_ops(form, machine, "op0", "op1")
    rules.check_elementwise(form, machine, SCALAR_TENSOR_TENSOR_PARAMS, "dst", "data", "operand1")
    rules.check_column(form, "operand0")
    rules.check_not_both_psum(form, "data", "operand1")


def _scalar_tensor_tensor(form: Form) -> Run:
    dst, shape, dtype = position(form, "dst"), form["dst"].shape, form["dst"].dtype
    data, other = read(form, "data", shape), read(form, "operand1", shape)
    first = stage(
        form,
        str(form.attr("op0")),
        "operand0",
        is_reversed=bool(form.attr("reverse0")),
        rank=len(shape),
    )
    function = alu.ARITHMETIC[str(form.attr("op1"))]
    is_reversed, is_fast = bool(form.attr("reverse1")), dtype.name == "float32"

    def run(_: State, views: Sequence[Array]) -> None:
        x, y = first(data(views), views, None), other(views)
        a, b = (y, x) if is_reversed else (x, y)
        if is_fast:
            function(a, b, out=views[dst])
        else:
            store(views[dst], function(a, b, out=x), dtype)

    return run


def _cost_scalar_tensor_tensor(form: Form, machine: Machine) -> Cost:
    data, other, dst = form["data"], form["operand1"], form["dst"]
    simple = (form.attr("op0"), form.attr("op1")) == ("subtract", "multiply")
    work = costs.two_input_work(
        machine, data, other, dst, is_simple=simple and dst.free_size % 2 == 0
    )
    return costs.vector_cost(form, machine, work)


SCALAR_TENSOR_TENSOR = OpSpec(
    name="scalar_tensor_tensor",
    params=SCALAR_TENSOR_TENSOR_PARAMS,
    engines=(Engine.VECTOR,),
    summary="Op with a number or column, then op with a tile, in one pass.",
    semantics="dst = op1(op0(data, operand0), operand1); reverse0/1 swap the operands",
    rules=(
        "operand0 is a number or a float32 tile (P, 1); operand1 has data's size",
        "data and operand1 not both in PSUM",
    ),
    example="nisa.scalar_tensor_tensor(dst=y, data=x, op0=nl.multiply, operand0=rstd, "
    "op1=nl.multiply, operand1=w)",
    source=page("scalar_tensor_tensor"),
    check=_check_scalar_tensor_tensor,
    compile=_scalar_tensor_tensor,
    cost=_cost_scalar_tensor_tensor,
)

# -- exponential --------------------------------------------------------------------------------

EXPONENTIAL_PARAMS = (
    DST,
    Param(name="src", kind=K.TENSOR),
    Param(name="max_value", kind=K.TENSOR_OR_SCALAR, default=0.0),
    Param(name="reduce_res", kind=K.TENSOR, default=None, access="w"),
    Param(name="reduce_cmd", kind=K.ENUM, default="idle", choices=REDUCE_CMDS),
    Param(name="reduce_init", kind=K.NUMBER, default=0.0),
    NAME,
)


def _check_exponential(form: Form, machine: Machine) -> None:
    rules.check_elementwise(form, machine, EXPONENTIAL_PARAMS, "dst", "src")
    rules.check_column(form, "max_value")
    rules.check_column(form, "reduce_res", dtype=None)
    if form.attr("reduce_init", 0.0) != 0 and form.attr("reduce_cmd") != "load_reduce":
        raise KernelError(
            codes.VALUE,
            f"exponential: reduce_init={form.attr('reduce_init')!r} without load_reduce",
            allowed="reduce_init with reduce_cmd=nisa.reduce_cmd.load_reduce only",
        )


def _exponential(form: Form) -> Run:
    dst, shape, dtype = position(form, "dst"), form["dst"].shape, form["dst"].dtype
    src, shift = read(form, "src", shape), read_column(form, "max_value", len(shape))
    res = form.position("reduce_res")
    command = str(form.attr("reduce_cmd", "idle"))
    initial = form.attr("reduce_init", 0.0)

    def run(state: State, views: Sequence[Array]) -> None:
        values = src(views) - shift(views)
        np.exp(values, out=values)
        accumulate(state.vector_accumulator, command, "add", values, identity=0.0, initial=initial)
        store(views[dst], values, dtype)
        if res is not None:
            total = state.vector_accumulator[: shape[0]]
            store(views[res], total, form["reduce_res"].dtype)

    return run


EXPONENTIAL = OpSpec(
    name="exponential",
    params=EXPONENTIAL_PARAMS,
    engines=(Engine.VECTOR,),
    summary="Fast exp(x - max) with the row sum, on the Vector Engine of NeuronCore-v4.",
    semantics="dst = exp(src - max_value); reduce_res = sum(dst, free axes)",
    rules=("NeuronCore-v4 only", "max_value is a number or a float32 tile (P, 1)"),
    example="nisa.exponential(dst=e, src=x, max_value=row_max, reduce_res=total, "
    "reduce_cmd=nisa.reduce_cmd.reset_reduce)",
    source=page("exponential"),
    check=_check_exponential,
    compile=_exponential,
    cost=lambda form, machine: costs.vector_cost(form, machine, form["dst"].free_size / 4),
    min_generation=4,
    since="0.2",
)

SPECS: tuple[OpSpec, ...] = (TENSOR_TENSOR, TENSOR_SCALAR, SCALAR_TENSOR_TENSOR, EXPONENTIAL)
