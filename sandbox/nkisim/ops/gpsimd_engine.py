"""Instructions of GpSimd (Pool).

Source: NKI ISA reference 0.6 (one page for each instruction named below).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nkisim.dtypes import Array, store, to_float32
from nkisim.errors import KernelError
from nkisim.ir.program import Form
from nkisim.machine.spec import Engine, Machine
from nkisim.ops import alu, costs, rules
from nkisim.ops.registry import SBUF_ONLY, Cost, OpSpec, Param, ParamKind, Run, State
from nkisim.ops.vector_engine import DST, NAME, OLD_DTYPE, flat, page, position

K = ParamKind
PATTERN = Param(name="pattern", kind=K.INTEGERS)
OFFSET = Param(name="offset", kind=K.INTEGER, default=0)
CHANNEL = Param(name="channel_multiplier", kind=K.INTEGER, default=0)


def _pattern(form: Form) -> list[tuple[int, int]]:
    raw = form.attr("pattern")
    items = raw if isinstance(raw, tuple) else ()
    if items and not isinstance(items[0], tuple):
        items = (items,)
    return [(int(s), int(n)) for s, n in items]  # type: ignore[union-attr,misc,arg-type]


def _check_pattern(form: Form, machine: Machine) -> None:
    rules.check_memories(form, {"dst": SBUF_ONLY, "on_true_tile": SBUF_ONLY})
    rules.check_partitions(form, machine, form.operands)
    raw = form.attr("pattern")
    nested = isinstance(raw, tuple) and raw and all(
        isinstance(p, tuple) and len(p) == 2 for p in raw
    )
    if not nested or len(_pattern(form)) > 4:
        raise KernelError(
            "NKS116",
            f"{form.op}: pattern must be up to 4 pairs [[step, num], …], got {raw!r:.80}",
            hint=f"for one free axis: pattern=[[1, {form['dst'].free_size}]]",
        )
    count = int(np.prod([n for _, n in _pattern(form)], dtype=np.int64))
    if count != form["dst"].free_size:
        raise KernelError(
            "NKS116",
            f"{form.op}: pattern describes {count} elements per partition, dst has "
            f"{form['dst'].free_size}",
            got=str(form["dst"]),
            hint="the product of the pattern's nums is the free size of dst",
        )


def _affine(form: Form) -> Any:
    """Return offset + p * channel_multiplier + Σ step·i as int64 [P, N]."""
    values = np.zeros((1,), dtype=np.int64)
    for step, count in _pattern(form):
        values = (values[:, None] + np.arange(count, dtype=np.int64) * step).ravel()
    rows = np.arange(form["dst"].partitions, dtype=np.int64)[:, None]
    offset = int(form.attr("offset", 0))  # type: ignore[arg-type]
    channel = int(form.attr("channel_multiplier", 0))  # type: ignore[arg-type]
    return offset + rows * channel + values[None, :]


def _iota(form: Form) -> Run:
    values = _affine(form).astype(np.int32)
    dtype = form["dst"].dtype

    def run(_: State, views: Sequence[Array]) -> None:
        store(views[0], values, dtype)

    return run


def _cost(form: Form, machine: Machine) -> Cost:
    return costs.gpsimd_cost(machine, costs.free_elements(form))


IOTA = OpSpec(
    name="iota",
    params=(DST, PATTERN, OFFSET, CHANNEL, NAME, OLD_DTYPE),
    engines=(Engine.GPSIMD,),
    summary="Fill with an affine function of the indices.",
    semantics="dst[p, i…] = offset + p * channel_multiplier + Σ step_k * i_k",
    rules=("pattern is up to 4 pairs [step, num], outermost first", "dst in SBUF"),
    example="nisa.iota(dst=columns, pattern=[[1, 512]], offset=0, channel_multiplier=0)",
    source=page("iota"),
    check=_check_pattern,
    compile=_iota,
    cost=_cost,
)


def _check_affine_select(form: Form, machine: Machine) -> None:
    _check_pattern(form, machine)
    rules.check_same_partitions(form, "dst", "on_true_tile")
    rules.check_same_free(form, "dst", "on_true_tile")


def _affine_select(form: Form) -> Run:
    dst, src = position(form, "dst"), position(form, "on_true_tile")
    compare = alu.ARITHMETIC[str(form.attr("cmp_op", "equal"))]
    mask = compare(_affine(form), 0) != 0
    other = np.float32(form.attr("on_false_value"))  # type: ignore[arg-type]
    dtype = form["dst"].dtype

    def run(_: State, views: Sequence[Array]) -> None:
        store(views[dst], np.where(mask, to_float32(flat(views[src])), other), dtype)

    return run


AFFINE_SELECT = OpSpec(
    name="affine_select",
    params=(
        DST,
        PATTERN,
        Param(name="channel_multiplier", kind=K.INTEGER),
        Param(name="on_true_tile", kind=K.TENSOR),
        Param(name="on_false_value", kind=K.NUMBER),
        Param(
            name="cmp_op",
            kind=K.OP,
            default="equal",
            choices=("equal", "not_equal", "greater", "greater_equal", "less", "less_equal"),
        ),
        OFFSET,
        NAME,
        OLD_DTYPE,
    ),
    engines=(Engine.GPSIMD,),
    summary="Select by an affine condition on the indices, such as a causal mask.",
    semantics="a = offset + p * channel_multiplier + Σ step_k * i_k; "
    "dst = where(cmp_op(a, 0), on_true_tile, on_false_value)",
    rules=("dst and on_true_tile in SBUF", "on_false_value is a number"),
    example="nisa.affine_select(dst=s, pattern=[[-1, 512]], channel_multiplier=1, "
    "on_true_tile=s, on_false_value=-1e30, cmp_op=nl.greater_equal, offset=row - column)",
    source=page("affine_select"),
    check=_check_affine_select,
    compile=_affine_select,
    cost=_cost,
)


def _check_partition_reduce(form: Form, machine: Machine) -> None:
    rules.check_memories(form, {"dst": SBUF_ONLY, "data": SBUF_ONLY})
    rules.check_partitions(form, machine, form.operands)
    rules.check_same_free(form, "dst", "data")
    if form["dst"].partitions != 1:
        raise KernelError(
            "NKS110",
            f"tensor_partition_reduce: dst must have one partition, it has "
            f"{form['dst'].partitions}",
            got=str(form["dst"]),
        )


def _partition_reduce(form: Form) -> Run:
    dst, data = position(form, "dst"), position(form, "data")
    name = str(form.attr("op"))
    dtype = form["dst"].dtype

    def run(_: State, views: Sequence[Array]) -> None:
        if name in alu.BITVEC_REDUCTIONS:
            result: Any = alu.BITVEC_REDUCTIONS[name].reduce(flat(views[data]), axis=0)
            views[dst][...] = result.reshape(views[dst].shape)
            return
        values = to_float32(flat(views[data]))
        if name == "average":
            result = values.mean(axis=0, dtype=np.float32)
        else:
            result = alu.REDUCTIONS[name].reduce(values, axis=0)
        store(views[dst], result, dtype)

    return run


TENSOR_PARTITION_REDUCE = OpSpec(
    name="tensor_partition_reduce",
    params=(
        DST,
        Param(
            name="op",
            kind=K.OP,
            choices=("add", "average", "maximum", "bitwise_or", "bitwise_and"),
        ),
        Param(name="data", kind=K.TENSOR),
        NAME,
        OLD_DTYPE,
    ),
    engines=(Engine.GPSIMD,),
    summary="Reduce across partitions; slow, prefer a matmul by ones.",
    semantics="dst[0] = op.reduce(data, axis=0)",
    rules=("dst has one partition", "SBUF only"),
    example="nisa.tensor_partition_reduce(dst=total[0:1], op=nl.add, data=x)",
    source=page("tensor_partition_reduce"),
    check=_check_partition_reduce,
    compile=_partition_reduce,
    cost=lambda form, machine: costs.gpsimd_cost(
        machine, form["data"].free_size * form["data"].partitions / 8
    ),
)


def _check_gather(form: Form, machine: Machine) -> None:
    rules.check_memories(
        form, {"dst": SBUF_ONLY, "data": SBUF_ONLY, "indices": SBUF_ONLY}
    )
    rules.check_partitions(form, machine, form.operands)
    rules.check_same_partitions(form, "dst", "data", "indices")
    rules.check_same_free(form, "dst", "indices")
    if form["indices"].dtype.name != "uint32":
        raise rules.refuse_dtype(form, form["indices"], "uint32", "copy the indices to nl.uint32")


def _gather(form: Form) -> Run:
    dst, data, indices = (position(form, r) for r in ("dst", "data", "indices"))
    limit = form["data"].free_size

    def run(_: State, views: Sequence[Array]) -> None:
        index = flat(views[indices]).astype(np.int64)
        if index.size and int(index.max()) >= limit:
            raise KernelError(
                "NKS106",
                f"nc_n_gather: index {int(index.max())} is out of bounds for {limit} elements "
                "per partition",
            )
        result = np.take_along_axis(flat(views[data]), index, axis=1)
        views[dst][...] = result.reshape(views[dst].shape)

    return run


NC_N_GATHER = OpSpec(
    name="nc_n_gather",
    params=(
        DST,
        Param(name="data", kind=K.TENSOR),
        Param(name="indices", kind=K.TENSOR),
        NAME,
    ),
    engines=(Engine.GPSIMD,),
    summary="Gather along the free axis, each partition by its own indices.",
    semantics="dst[p, j] = data[p, indices[p, j]]",
    rules=("indices are uint32", "SBUF only", "as many indices as dst elements"),
    example="nisa.nc_n_gather(dst=picked, data=table, indices=idx_u32)",
    source=page("nc_n_gather"),
    check=_check_gather,
    compile=_gather,
    cost=_cost,
)

SPECS: tuple[OpSpec, ...] = (IOTA, AFFINE_SELECT, TENSOR_PARTITION_REDUCE, NC_N_GATHER)
"""Rows of GpSimd."""
