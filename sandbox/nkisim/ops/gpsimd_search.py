"""GpSimd instructions that search: segment bounds, places of nonzeros, the K largest.

Source: NKI ISA reference 0.6, nki.isa.sequence_bounds, nonzero_with_count and topk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from nkisim.dtypes import Array, store, to_float32
from nkisim.errors import KernelError
from nkisim.ir.program import Form, Operand
from nkisim.machine.spec import Engine, Machine
from nkisim.ops import codes, costs, rules
from nkisim.ops.operands import NAME, OLD_DTYPE, flat, integer, page, position
from nkisim.ops.registry import SBUF_ONLY, Cost, OpSpec, Param, ParamKind, Run, State

K = ParamKind
DST: Final = Param(name="dst", kind=K.TENSOR, access="w", memories=SBUF_ONLY)
GROUP: Final = 16
"""Partitions beside one GpSimd core."""
WORD_DTYPES: Final = ("float32", "int32")


def _cost(form: Form, machine: Machine) -> Cost:
    return costs.gpsimd_cost(machine, costs.free_elements(form))


def _check_word(form: Form, *roles: str) -> None:
    for role in roles:
        if form[role].dtype.name not in WORD_DTYPES:
            raise rules.refuse_dtype(
                form, form[role], "float32 or int32", f"allocate {role} as nl.int32"
            )


# -- sequence_bounds ------------------------------------------------------------------------------

BOUNDS_PARAMS = (
    DST,
    Param(name="segment_ids", kind=K.TENSOR, memories=SBUF_ONLY),
    NAME,
    OLD_DTYPE,
)


def _check_bounds(form: Form, machine: Machine) -> None:
    rules.check_operands(form, machine, BOUNDS_PARAMS)
    dst, ids = form["dst"], form["segment_ids"]
    _check_word(form, "dst", "segment_ids")
    if ids.partitions != 1 or dst.partitions != 1:
        raise KernelError(
            codes.PARTITIONS_DIFFER,
            f"sequence_bounds: dst and segment_ids must have one partition, they have "
            f"{dst.partitions} and {ids.partitions}",
            got=f"{dst}; {ids}",
            allowed="segment_ids (1, n), dst (1, 2, n)",
        )
    rules.check_free_size(form, "dst", 2 * ids.free_size)


def _bounds(form: Form) -> Run:
    dst, ids, dtype = position(form, "dst"), position(form, "segment_ids"), form["dst"].dtype
    n = form["segment_ids"].free_size

    def run(_: State, views: Sequence[Array]) -> None:
        values: Any = views[ids].reshape(-1)
        begins = np.flatnonzero(np.r_[True, values[1:] != values[:-1]])
        lengths = np.diff(np.r_[begins, n])
        start, end = np.repeat(begins, lengths), np.repeat(begins + lengths, lengths)
        is_padding = values == 0
        result = np.where(is_padding, [[n], [-1]], [start, end])
        store(views[dst], result.astype(np.int32).reshape(views[dst].shape), dtype)

    return run


SEQUENCE_BOUNDS = OpSpec(
    name="sequence_bounds",
    params=BOUNDS_PARAMS,
    engines=(Engine.GPSIMD,),
    summary="Where the segment of each element begins and ends.",
    semantics="dst[0, 0, i], dst[0, 1, i] = first place of the run of equal ids around i, and one "
    "after its last; (n, -1) where the id is 0",
    rules=("segment_ids is (1, n) and dst (1, 2, n), float32 or int32, in SBUF",),
    example="nisa.sequence_bounds(dst=bounds_i32, segment_ids=ids_i32)",
    source=page("sequence_bounds"),
    check=_check_bounds,
    compile=_bounds,
    cost=_cost,
)

# -- nonzero_with_count ---------------------------------------------------------------------------


def _first_rows(form: Form, operand: Operand) -> tuple[tuple[int, int], ...]:
    return tuple((row, 1) for row in range(0, operand.partitions, GROUP))


NONZERO_PARAMS = (
    Param(name="dst", kind=K.TENSOR, access="w", memories=SBUF_ONLY, rows=_first_rows),
    Param(name="src", kind=K.TENSOR, memories=SBUF_ONLY, rows=_first_rows),
    Param(name="index_offset", kind=K.INTEGER, default=0),
    Param(name="padding_val", kind=K.INTEGER, default=-1),
    NAME,
)


def _check_nonzero(form: Form, machine: Machine) -> None:
    rules.check_operands(form, machine, NONZERO_PARAMS)
    rules.check_same_partitions(form, "dst", "src")
    _check_word(form, "src")
    if form["dst"].dtype.name != "int32":
        raise rules.refuse_dtype(form, form["dst"], "int32", "allocate dst as nl.int32")
    rules.check_free_size(form, "dst", form["src"].free_size + 1)
    for name in ("index_offset", "padding_val"):
        value = integer(form.attr(name, 0))
        if not -(1 << 31) <= value < 1 << 31:
            raise KernelError(
                codes.VALUE,
                f"nonzero_with_count: {name}={value} does not fit int32",
                allowed="-2^31 … 2^31 - 1",
            )


def _nonzero(form: Form) -> Run:
    dst, src = position(form, "dst"), position(form, "src")
    shift, padding = integer(form.attr("index_offset", 0)), integer(form.attr("padding_val", -1))
    places = np.arange(form["src"].free_size)
    tail = form["dst"].shape[1:]

    def run(_: State, views: Sequence[Array]) -> None:
        is_set = flat(views[src][::GROUP]) != 0
        count = is_set.sum(axis=1, keepdims=True)
        order = np.argsort(~is_set, axis=1, kind="stable") + shift
        found = np.where(places < count, order, padding)
        result = np.concatenate([found, count], axis=1).astype(np.int32)
        views[dst][::GROUP] = result.reshape(-1, *tail)

    return run


NONZERO_WITH_COUNT = OpSpec(
    name="nonzero_with_count",
    params=NONZERO_PARAMS,
    engines=(Engine.GPSIMD,),
    summary="Places of the nonzero elements, and how many there are.",
    semantics="for p = 0, 16, 32, …: dst[p] = nonzero(src[p]) + index_offset, then padding_val, "
    "then the count in the last column",
    rules=(
        "from NeuronCore-v3 on; SBUF only",
        "only partitions 0, 16, …, 112 are read and written",
        "src is float32 or int32; dst is int32 with one column more",
    ),
    example="nisa.nonzero_with_count(dst=places_i32, src=flags_i32)",
    source=page("nonzero_with_count"),
    check=_check_nonzero,
    compile=_nonzero,
    cost=_cost,
    min_generation=3,
    since="0.2",
)

# -- topk -----------------------------------------------------------------------------------------

TOPK_PARAMS = (
    Param(name="val_dst", kind=K.TENSOR, access="w", memories=SBUF_ONLY),
    Param(name="idx_dst", kind=K.TENSOR, access="w", memories=SBUF_ONLY),
    Param(name="src", kind=K.TENSOR, memories=SBUF_ONLY),
    Param(name="n", kind=K.INTEGER),
    NAME,
)
SMALLEST_N: Final = 8
LARGEST_N: Final = 1 << 16
LARGEST_K: Final = 1 << 15


def _check_topk(form: Form, machine: Machine) -> None:
    rules.check_operands(form, machine, TOPK_PARAMS)
    rules.check_same_partitions(form, "val_dst", "idx_dst", "src")
    rules.check_same_free(form, "val_dst", "idx_dst")
    for role, name in (("src", "bfloat16"), ("val_dst", "bfloat16"), ("idx_dst", "uint32")):
        if form[role].dtype.name != name:
            raise rules.refuse_dtype(form, form[role], name, f"allocate {role} as nl.{name}")
    src, n, k = form["src"], integer(form.attr("n")), form["val_dst"].free_size
    if src.partitions % GROUP:
        raise KernelError(
            codes.PARTITIONS_DIFFER,
            f"topk: {src.partitions} partitions are not a multiple of {GROUP}",
            got=str(src),
            allowed="16, 32, …, 128 partitions",
        )
    if not (SMALLEST_N <= n < LARGEST_N and k < LARGEST_K and k <= n):
        raise KernelError(
            codes.ELEMENT_RANGE,
            f"topk: the {k} largest of n={n}",
            got=f"{form['val_dst']}, n={n}",
            allowed=f"{SMALLEST_N} ≤ n < {LARGEST_N}, 1 ≤ K < {LARGEST_K}, K ≤ n",
        )
    if src.free_size * GROUP < n:
        raise KernelError(
            codes.ELEMENT_RANGE,
            f"topk: src holds {src.free_size * GROUP} elements in {GROUP} partitions, "
            f"fewer than n={n}",
            got=str(src),
            allowed=f"at least {-(-n // GROUP)} columns",
        )


def _topk(form: Form) -> Run:
    values_at, index_at, src = (position(form, r) for r in ("val_dst", "idx_dst", "src"))
    n, k = integer(form.attr("n")), form["val_dst"].free_size
    partitions = form["src"].partitions
    groups = partitions // GROUP
    shape, index_shape = form["val_dst"].shape, form["idx_dst"].shape

    def run(_: State, views: Sequence[Array]) -> None:
        source = flat(views[src]).reshape(groups, GROUP, -1)
        # Element e of a group lies in its partition e % 16, column e // 16.
        snake = source.transpose(0, 2, 1).reshape(groups, -1)[:, :n]
        order = np.argsort(-to_float32(snake), axis=1, kind="stable")[:, :k][:, ::-1]
        top = np.repeat(np.take_along_axis(snake, order, axis=1), GROUP, axis=0)
        views[values_at][...] = top.reshape(shape)
        views[index_at][...] = np.repeat(order, GROUP, axis=0).reshape(index_shape)

    return run


TOPK = OpSpec(
    name="topk",
    params=TOPK_PARAMS,
    engines=(Engine.GPSIMD,),
    summary="The K largest of the elements in each 16 partitions, ascending, and their indices.",
    semantics="for each 16 partitions: v[e] = src[e % 16, e // 16] for e < n; val_dst = the K "
    "largest of v ascending, idx_dst = their e, in each of the 16 partitions; of equal values the "
    "first count",
    rules=(
        "src and val_dst bfloat16, idx_dst uint32, in SBUF; K is the free size of val_dst",
        "partitions are a multiple of 16; 8 ≤ n < 65536, K < 32768, K ≤ n, n ≤ 16 columns of src",
    ),
    example="nisa.topk(val_dst=top_bf16, idx_dst=where_u32, src=x_bf16, n=512)",
    source=page("topk"),
    check=_check_topk,
    compile=_topk,
    cost=lambda form, machine: costs.gpsimd_cost(
        machine, 4.0 * integer(form.attr("n")) + form["val_dst"].free_size
    ),
    since="0.6",
)

SPECS: tuple[OpSpec, ...] = (SEQUENCE_BOUNDS, NONZERO_WITH_COUNT, TOPK)
"""Rows of GpSimd's searches."""
