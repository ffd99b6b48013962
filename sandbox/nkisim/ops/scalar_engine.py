"""Instructions of the Scalar Engine (ACT).

Source: NKI ISA reference 0.6, nki.isa.activation and nki.isa.activation_reduce.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nkisim.dtypes import Array, store
from nkisim.errors import KernelError
from nkisim.ir.program import Form
from nkisim.machine.spec import Engine, Machine
from nkisim.ops import codes, costs, rules
from nkisim.ops.functions import ACTIVATIONS, activation_table
from nkisim.ops.operands import (
    DST,
    NAME,
    OLD_DTYPE,
    SCALAR_REDUCE_CMDS,
    accumulate,
    is_immediate,
    owns_result,
    page,
    position,
    read,
    read_column,
)
from nkisim.ops.registry import Cost, OpSpec, Param, ParamKind, Run, State
from nkisim.ops.scalar_activate2 import ACTIVATE2

K = ParamKind
OP = Param(name="op", kind=K.OP, choices=tuple(ACTIVATIONS))
DATA = Param(name="data", kind=K.TENSOR)
BIAS = Param(name="bias", kind=K.TENSOR_OR_SCALAR, default=None)
SCALE = Param(name="scale", kind=K.TENSOR_OR_SCALAR, default=1.0)
ACTIVATION_PARAMS = (
    DST,
    OP,
    DATA,
    BIAS,
    SCALE,
    Param(name="reduce_op", kind=K.OP, default=None, choices=("add",)),
    Param(name="reduce_res", kind=K.TENSOR, default=None, access="w"),
    Param(name="reduce_cmd", kind=K.ENUM, default="idle", choices=SCALAR_REDUCE_CMDS),
    NAME,
    OLD_DTYPE,
)
REDUCE_PARAMS = (
    DST,
    OP,
    DATA,
    Param(name="reduce_op", kind=K.OP, choices=("add",)),
    Param(name="reduce_res", kind=K.TENSOR, default=None, access="w"),
    BIAS,
    SCALE,
    NAME,
    OLD_DTYPE,
)


def _check(form: Form, machine: Machine) -> None:
    rules.check_elementwise(form, machine, ACTIVATION_PARAMS, "dst", "data")
    rules.check_column(form, "scale")
    rules.check_column(form, "bias", "reduce_res", dtype=None)
    bias = form.get("bias")
    if bias is not None and bias.dtype.name == "tfloat32":
        raise rules.refuse_dtype(form, bias, "any other dtype", "allocate bias as nl.float32")
    shift = form.attr("bias")
    if shift and bias is None and machine.generation < 3:
        raise KernelError(
            codes.VALUE,
            f"{form.op}: a number as bias needs NeuronCore-v3, got bias={shift!r} on "
            f"{machine.core}",
            allowed="a tile (P, 1)",
            hint="nisa.memset a (P, 1) tile and pass it as bias",
        )


def _compile(form: Form) -> Run:
    dst, shape, dtype = position(form, "dst"), form["dst"].shape, form["dst"].dtype
    rank = len(shape)
    data, res = read(form, "data", shape), form.position("reduce_res")
    function = ACTIVATIONS[str(form.attr("op"))]
    scale, bias = read_column(form, "scale", rank, 1.0), read_column(form, "bias", rank)
    scales = not is_immediate(form, "scale") or scale(()) != 1
    shifts = not is_immediate(form, "bias") or bias(()) != 0
    command = str(
        form.attr("reduce_cmd", "reset_reduce" if form.op == "activation_reduce" else "idle")
    )
    overwrites = owns_result(form["data"])

    def prepare(views: Sequence[Array]) -> tuple[Any, Any]:
        """Return data * scale + bias, and that array again if it may be overwritten."""
        values = data(views)
        scratch = values if overwrites else None
        if scales:
            values = scratch = np.multiply(values, scale(views), out=scratch)
        if shifts:
            values = scratch = np.add(values, bias(views), out=scratch)
        return values, scratch

    if command == "idle" and res is None:
        if dtype.name == "float32":
            if not scales and not shifts:

                def run_plain(_: State, views: Sequence[Array]) -> None:
                    function(data(views), out=views[dst])

                return run_plain

            def run_direct(_: State, views: Sequence[Array]) -> None:
                values, _scratch = prepare(views)
                function(values, out=views[dst])

            return run_direct

        def run_rounded(_: State, views: Sequence[Array]) -> None:
            values, scratch = prepare(views)
            store(views[dst], function(values, out=scratch), dtype)

        return run_rounded

    def run(state: State, views: Sequence[Array]) -> None:
        values, scratch = prepare(views)
        values = function(values, out=scratch)
        accumulate(state.scalar_accumulator, command, "add", values, identity=0.0)
        store(views[dst], values, dtype)
        if res is not None:
            total = state.scalar_accumulator[: shape[0]]
            store(views[res], total, form["reduce_res"].dtype)

    return run


def _cost(form: Form, machine: Machine) -> Cost:
    data, dst = form["data"], form["dst"]
    n = data.free_size * costs.port_factor([data, dst], machine)
    if costs.is_narrow(data, machine) and costs.is_narrow(dst, machine):
        n /= machine.act.elements_per_cycle_16bit
    reads = form.get("reduce_res") is not None
    return costs.scalar_cost(
        machine,
        n,
        table=activation_table(str(form.attr("op"))),
        extra=machine.act.accumulator_read_cycles if reads else 0.0,
    )


ACTIVATION = OpSpec(
    name="activation",
    params=ACTIVATION_PARAMS,
    engines=(Engine.SCALAR,),
    summary="Function of a scaled and shifted tile; scale and bias are free.",
    semantics="dst = op(data * scale + bias)",
    rules=(
        "scale is a number or a float32 tile (P, 1); bias is a number or a tile (P, 1)",
        "op is one of exp, log, sqrt, rsqrt, square, tanh, sigmoid, silu, gelu, gelu_apprx_tanh, "
        "relu, reciprocal, copy, abs, sign, erf, sin, arctan, softplus, mish",
        "the first use of a function loads its table (about 1.3 us): avoid alternating functions",
        "reduce_cmd=reset_reduce with reduce_op=nl.add and reduce_res (P, 1) gives the row sum",
        "sin is right on [-pi, pi] only",
    ),
    example="nisa.activation(dst=y, op=nl.exp, data=x, bias=negative_max, scale=1.0)",
    source=page("activation"),
    check=_check,
    compile=_compile,
    cost=_cost,
)

ACTIVATION_REDUCE = OpSpec(
    name="activation_reduce",
    params=REDUCE_PARAMS,
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

SPECS: tuple[OpSpec, ...] = (ACTIVATION, ACTIVATION_REDUCE, ACTIVATE2)
"""Rows of the Scalar Engine."""
