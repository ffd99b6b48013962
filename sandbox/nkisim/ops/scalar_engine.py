"""Instructions of the Scalar Engine (ACT).

Source: NKI ISA reference 0.6, nki.isa.activation and nki.isa.activation_reduce.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nkisim.dtypes import Array, store, to_float32
from nkisim.ir.program import Form
from nkisim.machine.spec import Engine, Machine
from nkisim.ops import alu, costs, rules
from nkisim.ops.registry import ON_CHIP, Cost, OpSpec, Param, ParamKind, Run, State
from nkisim.ops.vector_engine import (
    DST,
    NAME,
    OLD_DTYPE,
    REDUCE_CMDS,
    accumulate,
    flat,
    number,
    page,
    position,
)

K = ParamKind


def _check(form: Form, machine: Machine) -> None:
    allowed = dict.fromkeys(("dst", "data", "bias", "scale", "reduce_res"), ON_CHIP)
    rules.check_memories(form, allowed)
    rules.elementwise(form, machine, "dst", "data")
    rules.check_column(form, "bias", "reduce_res", dtype=None)
    rules.check_column(form, "scale")


def _compile(form: Form) -> Run:
    dst, data = position(form, "dst"), position(form, "data")
    bias, scale, res = form.position("bias"), form.position("scale"), form.position("reduce_res")
    function = alu.ACTIVATIONS[str(form.attr("op"))]
    factor = number(form.attr("scale", 1.0))
    shift = number(form.attr("bias") or 0.0)
    default = "reset_reduce" if form.op == "activation_reduce" else "idle"
    command = str(form.attr("reduce_cmd", default))
    dtype = form["dst"].dtype
    plain = factor == 1 and scale is None
    no_bias = shift == 0 and bias is None
    fast = (
        plain
        and no_bias
        and command == "idle"
        and res is None
        and form["dst"].dtype.name == "float32" == form["data"].dtype.name
        and form["dst"].shape == form["data"].shape
        and isinstance(function, np.ufunc)
    )
    if fast:
        ufunc: Any = function

        def run_fast(_: State, views: Sequence[Array]) -> None:
            ufunc(views[data], out=views[dst])

        return run_fast

    def run(state: State, views: Sequence[Array]) -> None:
        values: Any = to_float32(flat(views[data]))
        if scale is not None:
            values = values * to_float32(views[scale]).reshape(-1, 1)
        elif not plain:
            values = values * factor
        if bias is not None:
            values = values + to_float32(views[bias]).reshape(-1, 1)
        elif not no_bias:
            values = values + shift
        values = function(values)
        accumulate(state.scalar_accumulator, command, np.add, 0.0, values, 0.0)
        store(views[dst], values, dtype)
        if res is not None:
            total = state.scalar_accumulator[: values.shape[0]]
            store(views[res], total, form["reduce_res"].dtype)

    return run


def _cost(form: Form, machine: Machine) -> Cost:
    data, dst = form["data"], form["dst"]
    n = data.free_size * costs.port_factor([data, dst], machine)
    if costs.is_16bit(data) and costs.is_16bit(dst):
        n /= machine.act.elements_per_cycle_16bit
    reads = form.get("reduce_res") is not None
    return costs.scalar_cost(
        machine,
        n,
        table=alu.activation_table(str(form.attr("op"))),
        extra=machine.act.accumulator_read_cycles if reads else 0.0,
    )


OP = Param(name="op", kind=K.OP, choices=tuple(alu.ACTIVATIONS))
DATA = Param(name="data", kind=K.TENSOR)
BIAS = Param(name="bias", kind=K.TENSOR_OR_SCALAR, default=None)
SCALE = Param(name="scale", kind=K.TENSOR_OR_SCALAR, default=1.0)

ACTIVATION = OpSpec(
    name="activation",
    params=(
        DST,
        OP,
        DATA,
        BIAS,
        SCALE,
        Param(name="reduce_op", kind=K.OP, default=None, choices=("add",)),
        Param(name="reduce_res", kind=K.TENSOR, default=None, access="w"),
        Param(name="reduce_cmd", kind=K.ENUM, default="idle", choices=REDUCE_CMDS),
        NAME,
        OLD_DTYPE,
    ),
    engines=(Engine.SCALAR,),
    summary="Function of a scaled and shifted tile; scale and bias are free.",
    semantics="dst = op(data * scale + bias)",
    rules=(
        "scale is a number or a float32 tile (P, 1); bias is a number or a tile (P, 1)",
        "op is one of exp, log, sqrt, rsqrt, square, tanh, sigmoid, silu, gelu, gelu_apprx_tanh, "
        "relu, reciprocal, copy, abs, sign, erf, sin, arctan, softplus, mish",
        "the first use of a function loads its table (about 1.3 us): avoid alternating functions",
        "reduce_cmd=reset_reduce with reduce_op=nl.add and reduce_res (P, 1) gives the row sum",
    ),
    example="nisa.activation(dst=y, op=nl.exp, data=x, bias=negative_max, scale=1.0)",
    source=page("activation"),
    check=_check,
    compile=_compile,
    cost=_cost,
)

ACTIVATION_REDUCE = OpSpec(
    name="activation_reduce",
    params=(
        DST,
        OP,
        DATA,
        Param(name="reduce_op", kind=K.OP, choices=("add",)),
        Param(name="reduce_res", kind=K.TENSOR, default=None, access="w"),
        BIAS,
        SCALE,
        NAME,
        OLD_DTYPE,
    ),
    engines=(Engine.SCALAR,),
    summary="activation, and the row sum of its result in the same pass.",
    semantics="dst = op(data * scale + bias); reduce_res = sum(dst, free axes)",
    rules=("reduce_op is nl.add", "reduce_res is (P, 1)", "otherwise as activation"),
    example="nisa.activation_reduce(dst=squares, op=nl.square, data=x, reduce_op=nl.add, "
    "reduce_res=sum_of_squares)",
    source=page("activation_reduce"),
    check=_check,
    compile=_compile,
    cost=_cost,
)

SPECS: tuple[OpSpec, ...] = (ACTIVATION, ACTIVATION_REDUCE)
"""Rows of the Scalar Engine."""
