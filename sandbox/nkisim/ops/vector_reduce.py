"""Reductions and statistics on the Vector Engine.

Source: NKI ISA reference 0.6 (one page for each instruction named below).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from nkisim.dtypes import Array, store, to_float32
from nkisim.errors import KernelError
from nkisim.ir.program import Form
from nkisim.machine.spec import Engine, Machine
from nkisim.ops import alu, axes, codes, costs, rules
from nkisim.ops.operands import (
    DST,
    NAME,
    OLD_DTYPE,
    REDUCE_CMDS,
    accumulate,
    flat,
    has,
    page,
    position,
    read,
    read_column,
    stage,
)
from nkisim.ops.registry import Cost, OpSpec, Param, ParamKind, Run, State

K = ParamKind
VALUES_PER_BN_GROUP = 3
"""bn_stats describes a set of elements by count, mean and count times variance."""

# -- tensor_reduce ------------------------------------------------------------------------------

TENSOR_REDUCE_PARAMS = (
    DST,
    Param(name="op", kind=K.OP, choices=(*alu.REDUCTIONS, *alu.BITVEC_REDUCTIONS)),
    Param(name="data", kind=K.TENSOR),
    Param(name="axis", kind=K.INTEGERS),
    Param(name="negate", kind=K.BOOL, default=False),
    Param(name="keepdims", kind=K.BOOL, default=False),
    NAME,
    OLD_DTYPE,
)


def _axes(form: Form) -> tuple[int, ...]:
    axis = form.attr("axis")
    rank = len(form["data"].shape)
    items = axis if isinstance(axis, tuple) else (axis,)
    return tuple(sorted(a + rank if a < 0 else a for a in items if isinstance(a, int)))


def _check_tensor_reduce(form: Form, machine: Machine) -> None:
    rules.check_ops(form, machine, "op")
    rules.check_operands(form, machine, TENSOR_REDUCE_PARAMS)
    data, dst = form["data"], form["dst"]
    axes, rank = _axes(form), len(data.shape)
    if not axes or axes[0] <= 0 or axes != tuple(range(axes[0], rank)):
        raise KernelError(
            codes.REDUCED_AXES,
            f"tensor_reduce: axis {form.attr('axis')!r} is not a run of trailing free axes",
            got=str(data),
            allowed=f"axes k … {rank - 1} with k ≥ 1",
            hint="reduce across partitions with a matmul by ones; reorder free axes with permute",
        )
    rules.check_same_partitions(form, "dst", "data")
    kept = prod(data.shape[1 : axes[0]])
    if dst.free_size != kept:
        raise KernelError(
            codes.FREE_SIZES_DIFFER,
            f"tensor_reduce: dst has {dst.free_size} elements per partition, the reduction "
            f"leaves {kept}",
            got=f"{dst}; {data}, axis {form.attr('axis')!r}",
            allowed=f"dst with {kept} elements per partition",
            hint=f"allocate dst as ({data.partitions}, {kept})",
        )
    if form.attr("negate") and alu.is_bitvec(form.attr("op")):
        raise KernelError(
            codes.OP, "tensor_reduce: negate needs an arithmetic op", got=f"op={form.attr('op')}"
        )


def _tensor_reduce(form: Form) -> Run:
    dst, data = position(form, "dst"), position(form, "data")
    name, dtype, shape = str(form.attr("op")), form["dst"].dtype, form["data"].shape
    first = _axes(form)[0]
    merged = (*shape[:first], prod(shape[first:]))
    out_shape = form["dst"].shape
    negate = bool(form.attr("negate"))
    if name in alu.BITVEC_REDUCTIONS:
        bit = alu.BITVEC_REDUCTIONS[name]

        def run_bits(_: State, views: Sequence[Array]) -> None:
            result = bit.reduce(alu.as_bits(views[data]).reshape(merged), axis=-1)
            alu.as_bits(views[dst])[...] = result.reshape(out_shape)

        return run_bits
    function = alu.REDUCTIONS[name]
    is_logical = name.startswith("logical")

    def run(_: State, views: Sequence[Array]) -> None:
        result: Any = function.reduce(to_float32(views[data]).reshape(merged), axis=-1)
        if is_logical:
            result = result.astype(np.float32)
        if negate:
            np.negative(result, out=result)
        store(views[dst], result, dtype)

    return run


def _cost_tensor_reduce(form: Form, machine: Machine) -> Cost:
    data, dst = form["data"], form["dst"]
    n = data.free_size * costs.port_factor([data], machine)
    narrow = costs.is_narrow(data, machine) and costs.is_narrow(dst, machine)
    if narrow and form.attr("op") in ("add", "maximum"):
        n /= 2
    return costs.vector_cost(form, machine, n)


TENSOR_REDUCE = OpSpec(
    name="tensor_reduce",
    params=TENSOR_REDUCE_PARAMS,
    engines=(Engine.VECTOR,),
    summary="Reduce over trailing free axes.",
    semantics="dst = op.reduce(data, axis), times -1 if negate",
    rules=(
        "axis 0 (partitions) cannot be reduced",
        "dst has one element for each row that is kept",
    ),
    example="nisa.tensor_reduce(dst=row_max, op=nl.maximum, data=x, axis=1)",
    source=page("tensor_reduce"),
    check=_check_tensor_reduce,
    compile=_tensor_reduce,
    cost=_cost_tensor_reduce,
    axes=axes.reduction,
)

# -- tensor_scalar_reduce -----------------------------------------------------------------------

TENSOR_SCALAR_REDUCE_PARAMS = (
    DST,
    Param(name="data", kind=K.TENSOR),
    Param(name="op0", kind=K.OP, choices=alu.REDUCED_OPS),
    Param(name="operand0", kind=K.TENSOR_OR_SCALAR),
    Param(name="reduce_op", kind=K.OP, choices=("add", "multiply", "maximum", "minimum")),
    Param(name="reduce_res", kind=K.TENSOR, default=None, access="w"),
    Param(name="reverse0", kind=K.BOOL, default=False),
    Param(
        name="reduce_cmd",
        kind=K.ENUM,
        default="reset_reduce",
        choices=REDUCE_CMDS,
        since="0.4",
    ),
    Param(name="reduce_init", kind=K.TENSOR_OR_SCALAR, default=None, since="0.4"),
    Param(name="reduce_res_negate", kind=K.BOOL, default=False, since="0.6"),
    NAME,
    OLD_DTYPE,
)


def _check_tensor_scalar_reduce(form: Form, machine: Machine) -> None:
    rules.check_ops(form, machine, "op0")
    rules.check_elementwise(form, machine, TENSOR_SCALAR_REDUCE_PARAMS, "dst", "data")
    rules.check_column(form, "operand0", "reduce_init")
    rules.check_unary(form, "op0", "operand0")
    rules.check_column(form, "reduce_res", dtype=None)
    if form.attr("reverse0"):
        raise KernelError(
            codes.OP,
            "tensor_scalar_reduce: reverse0 is not supported by the hardware",
            hint="nisa.tensor_scalar with reverse0, then nisa.tensor_reduce",
        )
    if has(form, "reduce_init") and form.attr("reduce_cmd") != "load_reduce":
        raise KernelError(
            codes.VALUE,
            f"tensor_scalar_reduce: reduce_init with reduce_cmd="
            f"{form.attr('reduce_cmd', 'reset_reduce')}",
            allowed="reduce_init with reduce_cmd=nisa.reduce_cmd.load_reduce only",
        )


def _tensor_scalar_reduce(form: Form) -> Run:
    dst, res, shape = position(form, "dst"), form.position("reduce_res"), form["dst"].shape
    data = read(form, "data", shape)
    first = stage(form, str(form.attr("op0")), "operand0", is_reversed=False, rank=len(shape))
    initial = read_column(form, "reduce_init", 1)
    name = str(form.attr("reduce_op"))
    command = str(form.attr("reduce_cmd", "reset_reduce"))
    negate = bool(form.attr("reduce_res_negate"))
    dtype, identity = form["dst"].dtype, alu.IDENTITY[name]

    def run(state: State, views: Sequence[Array]) -> None:
        values = first(data(views), views, None)
        registers = state.vector_accumulator
        accumulate(registers, command, name, values, identity=identity, initial=initial(views))
        store(views[dst], values, dtype)
        if res is not None:
            total = registers[: shape[0]]
            store(views[res], -total if negate else total, form["reduce_res"].dtype)

    return run


TENSOR_SCALAR_REDUCE = OpSpec(
    name="tensor_scalar_reduce",
    params=TENSOR_SCALAR_REDUCE_PARAMS,
    engines=(Engine.VECTOR,),
    summary="Op with a number or column, and the reduction of the result along the free axis.",
    semantics="dst = op0(data, operand0); reduce_res = reduce_op.reduce(dst, free axes)",
    rules=(
        "reduce_res is (P, 1)",
        "operand0 is a number or a float32 tile (P, 1)",
        "reduce_cmd=reduce continues from the registers of the last instruction, load_reduce from "
        "reduce_init",
    ),
    example="nisa.tensor_scalar_reduce(dst=y, data=x, op0=nl.multiply, operand0=2.0, "
    "reduce_op=nl.add, reduce_res=total)",
    source=page("tensor_scalar_reduce"),
    check=_check_tensor_scalar_reduce,
    compile=_tensor_scalar_reduce,
    cost=lambda form, machine: costs.vector_cost(
        form,
        machine,
        form["data"].free_size * costs.port_factor(form.operands, machine),
        extra=machine.dve.accumulator_read_cycles,
    ),
)

# -- batch statistics ---------------------------------------------------------------------------

BN_PARAMS = (DST, Param(name="data", kind=K.TENSOR), NAME, OLD_DTYPE)


def _check_bn_stats(form: Form, machine: Machine) -> None:
    rules.check_operands(form, machine, BN_PARAMS)
    rules.check_same_partitions(form, "dst", "data")
    limit = machine.limits.bn_stats_free_max
    if form["data"].free_size > limit:
        raise KernelError(
            codes.ELEMENT_RANGE,
            f"bn_stats: data has {form['data'].free_size} elements per partition, "
            f"more than {limit}",
            got=str(form["data"]),
            allowed=f"≤ {limit}",
            hint="split the row into chunks and combine them with nisa.bn_aggr",
        )
    rules.check_free_size(form, "dst", 2 * VALUES_PER_BN_GROUP)


def _bn_stats(form: Form) -> Run:
    dst, data, dtype = position(form, "dst"), position(form, "data"), form["dst"].dtype
    n, p = form["data"].free_size, form["data"].partitions

    def run(_: State, views: Sequence[Array]) -> None:
        values = to_float32(flat(views[data]))
        out = np.zeros((p, 2, VALUES_PER_BN_GROUP), dtype=np.float32)
        for k in range(min(2, n)):
            part = values[:, k::2]
            mean = part.mean(axis=1, dtype=np.float64)
            centred = part - mean[:, None]
            out[:, k, 0] = part.shape[1]
            out[:, k, 1] = mean
            out[:, k, 2] = np.einsum("pn,pn->p", centred, centred)
        store(views[dst], out, dtype)

    return run


BN_STATS = OpSpec(
    name="bn_stats",
    params=BN_PARAMS,
    engines=(Engine.VECTOR,),
    summary="Count, mean and count·variance of the even and of the odd elements of each row.",
    semantics="dst[:, 0:3] = (n, mean, n·var) of data[:, 0::2]; dst[:, 3:6] of data[:, 1::2]",
    rules=("data has at most 512 elements per partition", "dst is float32 (P, 6)"),
    example="nisa.bn_stats(dst=stats, data=x[:, 0:512])",
    source=page("bn_stats"),
    check=_check_bn_stats,
    compile=_bn_stats,
    cost=lambda form, machine: costs.vector_cost(
        form, machine, form["data"].free_size * costs.port_factor([form["data"]], machine)
    ),
    axes=axes.over("data"),
)


def _check_bn_aggr(form: Form, machine: Machine) -> None:
    rules.check_operands(form, machine, BN_PARAMS)
    rules.check_same_partitions(form, "dst", "data")
    if form["data"].free_size % VALUES_PER_BN_GROUP:
        raise KernelError(
            codes.ELEMENT_RANGE,
            f"bn_aggr: data has {form['data'].free_size} elements per partition, "
            "not a multiple of 3",
            got=str(form["data"]),
            allowed="(count, mean, count·variance) triples",
            hint="pass whole results of nisa.bn_stats",
        )
    rules.check_free_size(form, "dst", 2)


def _bn_aggr(form: Form) -> Run:
    dst, data, dtype = position(form, "dst"), position(form, "data"), form["dst"].dtype

    def run(_: State, views: Sequence[Array]) -> None:
        triples = to_float32(flat(views[data])).astype(np.float64)
        triples = triples.reshape(triples.shape[0], -1, VALUES_PER_BN_GROUP)
        count, mean, spread = triples[..., 0], triples[..., 1], triples[..., 2]
        n = count.sum(axis=1)
        total = (count * mean).sum(axis=1) / n
        centred = mean - total[:, None]
        variance = (spread.sum(axis=1) + (count * centred * centred).sum(axis=1)) / n
        store(views[dst], np.stack([total, variance], axis=1).astype(np.float32), dtype)

    return run


BN_AGGR = OpSpec(
    name="bn_aggr",
    params=BN_PARAMS,
    engines=(Engine.VECTOR,),
    summary="Combine results of bn_stats into mean and variance.",
    semantics="dst = (mean, population variance) of all elements that data's triples describe",
    rules=("data is (P, 6·k) from bn_stats", "dst is (P, 2)"),
    example="nisa.bn_aggr(dst=mean_var, data=stats)",
    source=page("bn_aggr"),
    check=_check_bn_aggr,
    compile=_bn_aggr,
    cost=lambda form, machine: costs.vector_cost(form, machine, 13.0 * form["data"].free_size / 3),
    axes=axes.over("data"),
)

SPECS: tuple[OpSpec, ...] = (TENSOR_REDUCE, TENSOR_SCALAR_REDUCE, BN_STATS, BN_AGGR)
