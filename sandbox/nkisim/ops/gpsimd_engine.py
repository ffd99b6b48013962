"""Instructions of GpSimd (Pool), which reaches SBUF only.

Source: NKI ISA reference 0.6 (one page for each instruction named below).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from nkisim.dtypes import Array, store, to_float32
from nkisim.errors import KernelError
from nkisim.ir.program import Form
from nkisim.machine.spec import Engine, Machine
from nkisim.ops import alu, axes, codes, costs, rules
from nkisim.ops.operands import NAME, OLD_DTYPE, flat, integer, page, position, read
from nkisim.ops.registry import SBUF_ONLY, Cost, OpSpec, Param, ParamKind, Run, State

K = ParamKind
DST: Final = Param(name="dst", kind=K.TENSOR, access="w", memories=SBUF_ONLY)
PATTERN: Final = Param(name="pattern", kind=K.INTEGERS)
OFFSET: Final = Param(name="offset", kind=K.REGISTER_OR_INTEGER, default=0)
MAX_PATTERN_DIMS: Final = 4
PARTITIONS_PER_CORE: Final = 16
"""GpSimd has eight cores, each beside 16 partitions."""

# -- affine patterns: iota, affine_select -------------------------------------------------------


def _pattern(form: Form) -> list[tuple[int, int]]:
    """Return the pattern as (step, num) pairs; empty if it is malformed."""
    raw = form.attr("pattern")
    pairs: list[tuple[int, int]] = []
    for item in raw if isinstance(raw, tuple) else ():
        match item:
            case (int() as step, int() as num) if num > 0:
                pairs.append((step, num))
            case _:
                return []
    return pairs


def _check_pattern(form: Form) -> None:
    pairs, size = _pattern(form), form["dst"].free_size
    if not 1 <= len(pairs) <= MAX_PATTERN_DIMS:
        raise KernelError(
            codes.BAD_LIST,
            f"{form.op}: pattern must be 1 to {MAX_PATTERN_DIMS} pairs [[step, num], …], "
            f"got {form.attr('pattern')!r:.80}",
            hint=f"for one free axis: pattern=[[1, {size}]]",
        )
    count = prod(num for _, num in pairs)
    if count != size:
        raise KernelError(
            codes.BAD_LIST,
            f"{form.op}: pattern describes {count} elements per partition, dst has {size}",
            got=str(form["dst"]),
            allowed=f"nums whose product is {size}",
            hint="the product of the pattern's nums is the free size of dst",
        )


def _affine(form: Form) -> npt.NDArray[np.int64]:
    """Return p * channel_multiplier + Σ step·i as [P, N], without the offset."""
    values = np.zeros((1,), dtype=np.int64)
    for step, count in _pattern(form):
        values = (values[:, None] + np.arange(count, dtype=np.int64) * step).ravel()
    rows = np.arange(form["dst"].partitions, dtype=np.int64)[:, None]
    return rows * integer(form.attr("channel_multiplier", 0)) + values[None, :]


def _offset(form: Form) -> Callable[[Sequence[Array]], int]:
    at = form.position("offset")
    if at is None:
        value = integer(form.attr("offset", 0))
        return lambda views: value
    return lambda views: int(views[at][0])


def _cost(form: Form, machine: Machine) -> Cost:
    return costs.gpsimd_cost(machine, costs.free_elements(form))


IOTA_PARAMS = (
    DST,
    PATTERN,
    OFFSET,
    Param(name="channel_multiplier", kind=K.INTEGER, default=0),
    NAME,
    OLD_DTYPE,
)


def _check_iota(form: Form, machine: Machine) -> None:
    rules.check_operands(form, machine, IOTA_PARAMS)
    _check_pattern(form)


def _iota(form: Form) -> Run:
    dst, dtype = position(form, "dst"), form["dst"].dtype
    base, offset = _affine(form), _offset(form)
    shape = form["dst"].shape

    def evaluate(start: int) -> Array:
        result = np.empty(shape, dtype=dtype.storage)
        store(result, (base + start).astype(np.int32), dtype)
        return result

    if form.get("offset") is None:
        constant = evaluate(offset(()))

        def run_constant(_: State, views: Sequence[Array]) -> None:
            views[dst][...] = constant

        return run_constant

    def run(_: State, views: Sequence[Array]) -> None:
        views[dst][...] = evaluate(offset(views))

    return run


IOTA = OpSpec(
    name="iota",
    params=IOTA_PARAMS,
    engines=(Engine.GPSIMD,),
    summary="Fill with an affine function of the indices.",
    semantics="dst[p, i…] = offset + p * channel_multiplier + Σ step_k * i_k, in int32",
    rules=(
        "pattern is up to 4 pairs [step, num], outermost first; the nums multiply to dst's free "
        "size",
        "dst in SBUF",
    ),
    example="nisa.iota(dst=columns, pattern=[[1, 512]], offset=0, channel_multiplier=0)",
    source=page("iota"),
    check=_check_iota,
    compile=_iota,
    cost=_cost,
)

AFFINE_SELECT_PARAMS = (
    DST,
    PATTERN,
    Param(name="channel_multiplier", kind=K.INTEGER),
    Param(name="on_true_tile", kind=K.TENSOR, memories=SBUF_ONLY),
    Param(name="on_false_value", kind=K.NUMBER),
    Param(name="cmp_op", kind=K.OP, default="equal", choices=(*alu.COMPARISONS, "not_equal")),
    OFFSET,
    NAME,
    OLD_DTYPE,
)


def _check_affine_select(form: Form, machine: Machine) -> None:
    rules.check_elementwise(form, machine, AFFINE_SELECT_PARAMS, "dst", "on_true_tile")
    _check_pattern(form)


def _affine_select(form: Form) -> Run:
    dst, src, dtype = position(form, "dst"), position(form, "on_true_tile"), form["dst"].dtype
    compare = alu.ARITHMETIC[str(form.attr("cmp_op", "equal"))]
    shape = form["dst"].shape
    base, offset = _affine(form).reshape(shape), _offset(form)
    same = dtype == form["on_true_tile"].dtype
    other = np.zeros((), dtype=dtype.storage)
    value: Any = form.attr("on_false_value")
    store(other, np.asarray(value, dtype=np.float32), dtype)
    fixed = None if form.get("offset") is not None else compare(base + offset(()), 0) != 0
    values = read(form, "on_true_tile", shape)

    def run(_: State, views: Sequence[Array]) -> None:
        keep = fixed if fixed is not None else compare(base + offset(views), 0) != 0
        if same:
            views[dst][...] = np.where(keep, views[src].reshape(shape), other)
        else:
            fresh = np.empty(shape, dtype=dtype.storage)
            store(fresh, values(views), dtype)
            views[dst][...] = np.where(keep, fresh, other)

    return run


AFFINE_SELECT = OpSpec(
    name="affine_select",
    params=AFFINE_SELECT_PARAMS,
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

# -- tensor_partition_reduce --------------------------------------------------------------------

PARTITION_REDUCE_PARAMS = (
    DST,
    Param(
        name="op",
        kind=K.OP,
        choices=("add", "average", "maximum", "bitwise_or", "bitwise_and"),
    ),
    Param(name="data", kind=K.TENSOR, memories=SBUF_ONLY),
    NAME,
    OLD_DTYPE,
)


def _check_partition_reduce(form: Form, machine: Machine) -> None:
    rules.check_ops(form, machine, "op")
    rules.check_operands(form, machine, PARTITION_REDUCE_PARAMS)
    rules.check_same_free(form, "dst", "data")
    if form["dst"].partitions != 1:
        raise KernelError(
            codes.PARTITIONS_DIFFER,
            f"tensor_partition_reduce: dst must have one partition, it has "
            f"{form['dst'].partitions}",
            got=str(form["dst"]),
            allowed="(1, N)",
            hint="slice dst[0:1]",
        )


def _partition_reduce(form: Form) -> Run:
    dst, data, dtype = position(form, "dst"), position(form, "data"), form["dst"].dtype
    name, rows = str(form.attr("op")), form["data"].partitions
    if name in alu.BITVEC_REDUCTIONS:
        bit = alu.BITVEC_REDUCTIONS[name]

        def run_bits(_: State, views: Sequence[Array]) -> None:
            out = alu.as_bits(views[dst])
            out[...] = bit.reduce(alu.as_bits(flat(views[data])), axis=0).reshape(out.shape)

        return run_bits
    function = alu.REDUCTIONS["add" if name == "average" else name]

    def run(_: State, views: Sequence[Array]) -> None:
        result: Any = function.reduce(to_float32(flat(views[data])), axis=0)
        if name == "average":
            result = result / np.float32(rows)
        store(views[dst], result, dtype)

    return run


TENSOR_PARTITION_REDUCE = OpSpec(
    name="tensor_partition_reduce",
    params=PARTITION_REDUCE_PARAMS,
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
    axes=axes.partition_reduction,
)

# -- gathers ------------------------------------------------------------------------------------

N_GATHER_PARAMS = (
    DST,
    Param(name="data", kind=K.TENSOR, memories=SBUF_ONLY),
    Param(name="indices", kind=K.TENSOR, memories=SBUF_ONLY),
    NAME,
)


def _check_n_gather(form: Form, machine: Machine) -> None:
    rules.check_operands(form, machine, N_GATHER_PARAMS)
    rules.check_same_partitions(form, "dst", "data", "indices")
    rules.check_same_free(form, "dst", "indices")
    rules.check_same_dtype(form, "dst", "data")
    if form["indices"].dtype.name != "uint32":
        raise rules.refuse_dtype(form, form["indices"], "uint32", "copy the indices to nl.uint32")


def _check_indices(form: Form, largest: int, limit: int) -> None:
    if largest >= limit:
        raise KernelError(
            codes.INDEX_RANGE,
            f"{form.op}: index {largest} is out of bounds for {limit} elements per partition",
            allowed=f"0 ≤ index < {limit}",
        )


def _n_gather(form: Form) -> Run:
    dst, data, indices = (position(form, r) for r in ("dst", "data", "indices"))
    limit, shape = form["data"].free_size, form["dst"].shape

    def run(_: State, views: Sequence[Array]) -> None:
        index = flat(views[indices]).astype(np.int64)
        _check_indices(form, int(index.max()), limit)
        result = np.take_along_axis(flat(views[data]), index, axis=1)
        views[dst][...] = result.reshape(shape)

    return run


NC_N_GATHER = OpSpec(
    name="nc_n_gather",
    params=N_GATHER_PARAMS,
    engines=(Engine.GPSIMD,),
    summary="Gather along the free axis, each partition by its own indices.",
    semantics="dst[p, j] = data[p, indices[p, j]]",
    rules=(
        "indices are uint32, as many as dst has elements",
        "dst has data's dtype; SBUF only",
    ),
    example="nisa.nc_n_gather(dst=picked, data=table, indices=idx_u32)",
    source=page("nc_n_gather"),
    check=_check_n_gather,
    compile=_n_gather,
    cost=_cost,
    axes=axes.rows_of("dst", "indices"),
)

LOCAL_GATHER_PARAMS = (
    DST,
    Param(name="src_buffer", kind=K.TENSOR, memories=SBUF_ONLY),
    Param(name="index", kind=K.TENSOR, memories=SBUF_ONLY),
    Param(name="num_elem_per_idx", kind=K.INTEGER, default=1),
    Param(name="num_valid_indices", kind=K.INTEGER, default=None),
    NAME,
)


def _gather_counts(form: Form) -> tuple[int, int]:
    """Return the indices used in each group of 16 partitions, and elements per index."""
    count = form.attr("num_valid_indices")
    every = form["index"].free_size * PARTITIONS_PER_CORE
    return every if count is None else integer(count), integer(form.attr("num_elem_per_idx", 1))


def _check_local_gather(form: Form, machine: Machine) -> None:
    rules.check_operands(form, machine, LOCAL_GATHER_PARAMS)
    rules.check_same_partitions(form, "src_buffer", "index", "dst")
    rules.check_same_dtype(form, "dst", "src_buffer")
    source, index = form["src_buffer"], form["index"]
    if index.dtype.name != "uint16":
        raise rules.refuse_dtype(form, index, "uint16", "copy the indices to nl.uint16")
    if source.partitions % PARTITIONS_PER_CORE:
        raise KernelError(
            codes.PARTITIONS_DIFFER,
            f"local_gather: {source.partitions} partitions are not a multiple of "
            f"{PARTITIONS_PER_CORE}",
            got=str(source),
            allowed="16, 32, …, 128 partitions",
        )
    count, width = _gather_counts(form)
    available = index.free_size * PARTITIONS_PER_CORE
    if width not in (1, 2, 4, 8, 16, 32) or not 1 <= count <= min(available, 4096):
        raise KernelError(
            codes.ELEMENT_RANGE,
            f"local_gather: {count} indices of {width} elements each",
            got=str(index),
            allowed=f"1 to {min(available, 4096)} indices per group of 16 partitions, of 1, 2, 4, "
            "8, 16 or 32 elements",
        )
    rules.check_free_size(form, "dst", count * width)


def _local_gather(form: Form) -> Run:
    dst, src, index = (position(form, r) for r in ("dst", "src_buffer", "index"))
    count, width = _gather_counts(form)
    shape, limit = form["dst"].shape, form["src_buffer"].free_size
    groups = shape[0] // PARTITIONS_PER_CORE

    def run(_: State, views: Sequence[Array]) -> None:
        # The indices of a group run down its 16 partitions, column after column.
        raw = flat(views[index]).astype(np.int64).reshape(groups, PARTITIONS_PER_CORE, -1)
        first = raw.transpose(0, 2, 1).reshape(groups, -1)[:, :count]
        _check_indices(form, int(first.max()) + width - 1, limit)
        places = (first[:, :, None] + np.arange(width)).reshape(groups, 1, -1)
        source = flat(views[src]).reshape(groups, PARTITIONS_PER_CORE, -1)
        views[dst][...] = np.take_along_axis(source, places, axis=2).reshape(shape)

    return run


def _cost_local_gather(form: Form, machine: Machine) -> Cost:
    count, width = _gather_counts(form)
    itemsize = form["src_buffer"].dtype.itemsize
    rate = ((28 + 4 * width) / (4 * width)) / min(4 / itemsize, width)
    return costs.gpsimd_cost(machine, count * width / rate)


LOCAL_GATHER = OpSpec(
    name="local_gather",
    params=LOCAL_GATHER_PARAMS,
    engines=(Engine.GPSIMD,),
    summary="Gather along the free axis, 16 partitions at a time by shared indices.",
    semantics="for each 16 partitions: ix = index.flatten(order='F')[:num_valid_indices]; "
    "dst[p, j·e + k] = src_buffer[p, ix[j] + k] for k < e = num_elem_per_idx",
    rules=(
        "partitions are a multiple of 16; index is uint16, an element offset in the partition",
        "dst has num_valid_indices · num_elem_per_idx elements per partition",
    ),
    example="nisa.local_gather(dst=picked, src_buffer=table, index=idx_u16)",
    source=page("local_gather"),
    check=_check_local_gather,
    compile=_local_gather,
    cost=_cost_local_gather,
    axes=axes.over("dst"),
)

SPECS: tuple[OpSpec, ...] = (
    IOTA,
    AFFINE_SELECT,
    TENSOR_PARTITION_REDUCE,
    NC_N_GATHER,
    LOCAL_GATHER,
)
"""Rows of GpSimd."""
