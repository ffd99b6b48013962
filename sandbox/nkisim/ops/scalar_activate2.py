"""`activate2`: the Scalar Engine's pipeline of NeuronCore-v4 with all its stages.

Source: NKI ISA reference 0.6, nki.isa.activate2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

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
    SCALAR_REDUCE_CMDS,
    accumulate,
    owns_result,
    page,
    position,
    read,
    read_column,
    stage,
)
from nkisim.ops.registry import Cost, OpSpec, Param, ParamKind, Run, State

K = ParamKind
STAGES: Final = ("multiply", "add", "subtract", "bypass")
PAIRS: Final = (
    ("multiply", "add"),
    ("multiply", "subtract"),
    ("multiply", "bypass"),
    ("add", "bypass"),
    ("subtract", "bypass"),
    ("bypass", "bypass"),
)
REDUCED: Final = ("add", "maximum", "minimum", "abs_max", "abs_min")
IDENTITY: Final = {
    "add": 0.0,
    "maximum": -np.inf,
    "minimum": np.inf,
    "abs_max": 0.0,
    "abs_min": np.inf,
}
PARAMS = (
    DST,
    Param(name="op", kind=K.OP, choices=(*ACTIVATIONS, "prelu")),
    Param(name="data", kind=K.TENSOR),
    Param(name="imm0", kind=K.TENSOR_OR_SCALAR),
    Param(name="imm1", kind=K.TENSOR_OR_SCALAR),
    Param(name="op0", kind=K.OP, choices=STAGES),
    Param(name="op1", kind=K.OP, choices=STAGES),
    Param(name="relu_param", kind=K.TENSOR_OR_SCALAR, default=0.0),
    Param(name="reverse0", kind=K.BOOL, default=False),
    Param(name="reverse1", kind=K.BOOL, default=False),
    Param(name="reduce_op", kind=K.OP, default=None, choices=REDUCED),
    Param(name="reduce_res", kind=K.TENSOR, default=None, access="w"),
    Param(name="reduce_cmd", kind=K.ENUM, default="idle", choices=SCALAR_REDUCE_CMDS),
    NAME,
)


def _check(form: Form, machine: Machine) -> None:
    rules.check_elementwise(form, machine, PARAMS, "dst", "data")
    rules.check_column(form, "imm0", "imm1", "relu_param", "reduce_res", dtype=None)
    rules.check_same_dtype(form, "imm0", "imm1")
    pair = (form.attr("op0"), form.attr("op1"))
    if pair not in PAIRS:
        raise KernelError(
            codes.OP,
            f"activate2: op0={pair[0]} with op1={pair[1]} is not a pipeline of the engine",
            allowed="; ".join(f"{a}, {b}" for a, b in PAIRS),
            hint="op1=nl.bypass for one op, both nl.bypass for none",
        )
    for k in (0, 1):
        if pair[k] == "bypass" and form.attr(f"reverse{k}"):
            raise KernelError(
                codes.VALUE,
                f"activate2: reverse{k} without an op{k} to reverse",
                allowed=f"reverse{k}=False where op{k}=nl.bypass",
            )
    command = form.attr("reduce_cmd", "idle")
    if command in ("reduce", "reset_reduce") and form.attr("reduce_op") is None:
        raise KernelError(
            codes.MISSING_ARGUMENT,
            f"activate2: reduce_cmd={command} needs reduce_op",
            allowed=", ".join(REDUCED),
        )


def _compile(form: Form) -> Run:
    dst, shape, dtype = position(form, "dst"), form["dst"].shape, form["dst"].dtype
    data, res = read(form, "data", shape), form.position("reduce_res")
    stages = [
        stage(
            form,
            str(form.attr(f"op{k}")),
            f"imm{k}",
            is_reversed=bool(form.attr(f"reverse{k}")),
            rank=len(shape),
        )
        for k in (0, 1)
        if form.attr(f"op{k}") != "bypass"
    ]
    name = str(form.attr("op"))
    slope = read_column(form, "relu_param", len(shape))
    function = ACTIVATIONS.get(name)
    reduce_op = str(form.attr("reduce_op") or "add")
    command = str(form.attr("reduce_cmd", "idle"))
    overwrites = owns_result(form["data"])

    def run(state: State, views: Sequence[Array]) -> None:
        values: Any = data(views)
        scratch = values if overwrites else None
        for apply in stages:
            values = scratch = apply(values, views, scratch)
        if function is None:
            values = np.where(values >= 0, values, values * slope(views))
        else:
            values = function(values, out=scratch)
        registers = state.scalar_accumulator
        accumulate(registers, command, reduce_op, values, identity=IDENTITY[reduce_op])
        store(views[dst], values, dtype)
        if res is not None:
            store(views[res], registers[: shape[0]], form["reduce_res"].dtype)

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


ACTIVATE2 = OpSpec(
    name="activate2",
    params=PARAMS,
    engines=(Engine.SCALAR,),
    summary="Two ops with numbers or columns, a function, and a reduction, on NeuronCore-v4.",
    semantics="t = op1(op0(data, imm0), imm1), reverse0/1 swap the operands; dst = op(t); "
    "reduce_res = reduce_op.reduce(dst, free axes), going on from the registers for "
    "reduce_cmd=reduce; prelu: t where t ≥ 0, else t * relu_param",
    rules=(
        "NeuronCore-v4 only",
        "(op0, op1) is one of " + ", ".join(f"({a}, {b})" for a, b in PAIRS),
        "imm0, imm1 and relu_param are numbers or tiles (P, 1); imm0 and imm1 of one dtype",
        "reduce_op is add, maximum, minimum, abs_max or abs_min; reduce_res is (P, 1)",
    ),
    example="nisa.activate2(dst=y, op=nl.exp, data=x, imm0=2.0, imm1=row_max, op0=nl.multiply, "
    "op1=nl.subtract, reduce_op=nl.add, reduce_res=total, "
    "reduce_cmd=nisa.reduce_cmd.reset_reduce)",
    source=page("activate2"),
    check=_check,
    compile=_compile,
    cost=_cost,
    min_generation=4,
    since="0.4",
)
