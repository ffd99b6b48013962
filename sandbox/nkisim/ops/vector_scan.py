"""Recurrences along the free axis on the Vector Engine.

The running value is float32 and every step rounds, in the order of the elements.  Rows of a
transposed copy are columns of the tile, so that each step handles all partitions at once.
Source: NKI ISA reference 0.6, tensor_tensor_scan and tensor_scalar_cumulative.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nkisim.dtypes import Array, store
from nkisim.errors import KernelError
from nkisim.ir.program import Form
from nkisim.machine.spec import Engine, Machine
from nkisim.ops import alu, codes, costs, rules
from nkisim.ops.alu import F32, Binary
from nkisim.ops.operands import (
    DST,
    NAME,
    OLD_DTYPE,
    REDUCE_CMDS,
    page,
    position,
    read,
    read_column,
    stage,
)
from nkisim.ops.registry import OpSpec, Param, ParamKind, Run, State

K = ParamKind
STRIP = 16
"""Rows that a transposing copy reads at once."""

SCAN_PARAMS = (
    DST,
    Param(name="data0", kind=K.TENSOR),
    Param(name="data1", kind=K.TENSOR),
    Param(name="initial", kind=K.TENSOR_OR_SCALAR),
    Param(name="op0", kind=K.OP, choices=alu.ARITHMETIC_OPS),
    Param(name="op1", kind=K.OP, choices=alu.ARITHMETIC_OPS),
    Param(name="reverse0", kind=K.BOOL, default=False),
    Param(name="reverse1", kind=K.BOOL, default=False),
    NAME,
    OLD_DTYPE,
)


def _check_scan(form: Form, machine: Machine) -> None:
    rules.check_ops(form, machine, "op0", "op1")
    rules.check_elementwise(form, machine, SCAN_PARAMS, "dst", "data0", "data1")
    rules.check_column(form, "initial", dtype=None)
    rules.check_not_both_psum(form, "data0", "data1")


def _scan(form: Form) -> Run:
    op0, op1 = str(form.attr("op0")), str(form.attr("op1"))
    swap0, swap1 = bool(form.attr("reverse0")), bool(form.attr("reverse1"))
    dst, dtype = position(form, "dst"), form["dst"].dtype
    shape = (form["dst"].partitions, form["dst"].free_size)
    a, b = read(form, "data0", shape), read(form, "data1", shape)
    initial = read_column(form, "initial", 1)
    f0, f1 = alu.ARITHMETIC[op0], alu.ARITHMETIC[op1]
    is_linear = (op0, op1) == ("multiply", "add")

    def run(_: State, views: Sequence[Array]) -> None:
        x, y = a(views), b(views)
        start = np.broadcast_to(initial(views), shape[:1])
        if is_linear and x[0, 0] == 1 and (x == 1).all():
            # A factor of one changes nothing: adding up in order is the same float32 maths.
            out = y.copy()
            out[:, 0] += start
            np.add.accumulate(out, axis=1, out=out)
        else:
            columns = _transposed(x)
            _steps(columns, _transposed(y), start, f0, f1, swap0, swap1)
            out = _transposed(columns)
        store(views[dst], out, dtype)

    return run


def _with_place(function: Binary) -> Binary:
    """Return `f(a, b, out)` without keywords, which costs less; numpy refuses it for extrema."""
    if function in (np.maximum, np.minimum):
        return lambda a, b, out: function(a, b, out=out)
    return function


def _transposed(values: F32) -> F32:
    """Return a transposed copy, made in strips that suit the cache."""
    rows, columns = values.shape
    result = np.empty((columns, rows), dtype=np.float32)
    if rows > columns:
        for j in range(0, columns, STRIP):
            result[j : j + STRIP] = values[:, j : j + STRIP].T
    else:
        for j in range(0, rows, STRIP):
            result[:, j : j + STRIP] = values[j : j + STRIP].T
    return result


def _steps(x: F32, y: F32, state: F32, f0: Binary, f1: Binary, swap0: bool, swap1: bool) -> None:
    """Put r[i] = f1(f0(x[i], r[i - 1]), y[i]) into the rows of `x`."""
    f0, f1 = _with_place(f0), _with_place(f1)
    for xi, yi in zip(x, y, strict=True):
        if swap0:
            f0(state, xi, xi)
        else:
            f0(xi, state, xi)
        if swap1:
            f1(yi, xi, xi)
        else:
            f1(xi, yi, xi)
        state = xi


TENSOR_TENSOR_SCAN = OpSpec(
    name="tensor_tensor_scan",
    params=SCAN_PARAMS,
    engines=(Engine.VECTOR,),
    summary="First-order recurrence along the free axis, one per partition.",
    semantics="r[i] = op1(op0(data0[i], r[i-1]), data1[i]), r[-1] = initial; dst = r",
    rules=(
        "initial is a number or a tile (P, 1); carry a long axis by passing the last column",
        "data0 and data1 not both in PSUM",
    ),
    example="nisa.tensor_tensor_scan(dst=y, data0=ones, data1=x, initial=0.0, op0=nl.multiply, "
    "op1=nl.add)",
    source=page("tensor_tensor_scan"),
    check=_check_scan,
    compile=_scan,
    cost=lambda form, machine: costs.vector_cost(form, machine, 2.0 * form["dst"].free_size),
)

CUMULATIVE_PARAMS = (
    DST,
    Param(name="src", kind=K.TENSOR),
    Param(name="op0", kind=K.OP, choices=alu.ARITHMETIC_OPS),
    Param(name="op1", kind=K.OP, choices=tuple(alu.IDENTITY)),
    Param(name="imm0", kind=K.TENSOR_OR_SCALAR),
    Param(name="imm1", kind=K.TENSOR_OR_SCALAR, default=None),
    Param(name="reduce_cmd", kind=K.ENUM, default="reset_reduce", choices=REDUCE_CMDS),
    NAME,
)


def _check_cumulative(form: Form, machine: Machine) -> None:
    rules.check_ops(form, machine, "op0", "op1")
    rules.check_elementwise(form, machine, CUMULATIVE_PARAMS, "dst", "src")
    rules.check_column(form, "imm0", "imm1")
    for role in ("dst", "src"):
        if form[role].dtype.is_integer and form[role].dtype.itemsize == 4:
            raise rules.refuse_dtype(
                form,
                form[role],
                "floats and integers of at most 16 bits",
                "copy it to nl.float32 first",
            )
    command = form.attr("reduce_cmd", "reset_reduce")
    if command in ("idle", "reset"):
        raise KernelError(
            codes.VALUE,
            f"tensor_scalar_cumulative: reduce_cmd={command} computes nothing",
            allowed="reset_reduce, reduce, load_reduce",
        )


def _cumulative(form: Form) -> Run:
    dst, dtype = position(form, "dst"), form["dst"].dtype
    shape = (form["dst"].partitions, form["dst"].free_size)
    src = read(form, "src", shape)
    first = stage(form, str(form.attr("op0")), "imm0", is_reversed=False, rank=2)
    initial = read_column(form, "imm1", 1)
    name = str(form.attr("op1"))
    function, identity = alu.REDUCTIONS[name], alu.IDENTITY[name]
    command = str(form.attr("reduce_cmd", "reset_reduce"))

    def run(state: State, views: Sequence[Array]) -> None:
        values = first(src(views), views, None)
        registers = state.vector_accumulator[: shape[0]]
        start: Any = np.float32(identity)
        if command == "reduce":
            start = registers
        elif command == "load_reduce":
            start = initial(views)
        if name == "subtract":  # the running value is subtracted from each new one
            running = np.broadcast_to(start, shape[:1])
            columns = _transposed(values)
            for row in columns:
                np.subtract(row, running, out=row)
                running = row
            values = _transposed(columns)
        else:
            function(values[:, 0], start, out=values[:, 0])
            function.accumulate(values, axis=1, out=values)
        registers[...] = values[:, -1]
        store(views[dst], values, dtype)

    return run


TENSOR_SCALAR_CUMULATIVE = OpSpec(
    name="tensor_scalar_cumulative",
    params=CUMULATIVE_PARAMS,
    engines=(Engine.VECTOR,),
    summary="Op with a number or column, then a running reduction along the free axis.",
    semantics="reg = op1(op0(src[i], imm0), reg); dst[i] = reg",
    rules=(
        "imm0 and imm1 are numbers or float32 tiles (P, 1)",
        "reduce_cmd=reduce continues from the registers, load_reduce starts from imm1",
        "no 32-bit integers",
    ),
    example="nisa.tensor_scalar_cumulative(dst=y, src=x, op0=nl.multiply, op1=nl.add, imm0=1.0)",
    source=page("tensor_scalar_cumulative"),
    check=_check_cumulative,
    compile=_cumulative,
    cost=lambda form, machine: costs.vector_cost(form, machine, 2.0 * form["dst"].free_size),
)

SPECS: tuple[OpSpec, ...] = (TENSOR_TENSOR_SCAN, TENSOR_SCALAR_CUMULATIVE)
