"""Selection on the Vector Engine: the eight largest, ranges, predicates.

Source: NKI ISA reference 0.6 (one page for each instruction named below).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from nkisim.dtypes import DTYPES, Array, store, to_float32
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
    integer,
    number,
    page,
    position,
    read,
    read_column,
)
from nkisim.ops.registry import Cost, OpSpec, Param, ParamKind, Run, State

K = ParamKind
WIDTH: Final = 8
"""Values that max8 and its companions handle at once."""
LONGEST_ROW: Final = 16384
FP32_MIN: Final = DTYPES["float32"].min

# -- top 8 --------------------------------------------------------------------------------------

MAX8_PARAMS = (DST, Param(name="src", kind=K.TENSOR), NAME, OLD_DTYPE)
FIND_PARAMS = (
    DST,
    Param(name="data", kind=K.TENSOR),
    Param(name="vals", kind=K.TENSOR),
    NAME,
    OLD_DTYPE,
)
REPLACE_PARAMS = (
    DST,
    Param(name="data", kind=K.TENSOR),
    Param(name="vals", kind=K.TENSOR),
    Param(name="imm", kind=K.NUMBER),
    Param(name="dst_idx", kind=K.TENSOR, default=None, access="w"),
    NAME,
    OLD_DTYPE,
)


def _check_row(form: Form, role: str, low: int) -> None:
    operand = form[role]
    if low <= operand.free_size <= LONGEST_ROW:
        return
    raise KernelError(
        codes.ELEMENT_RANGE,
        f"{form.op}: {role} has {operand.free_size} elements per partition",
        got=str(operand),
        allowed=f"{low} to {LONGEST_ROW}",
        hint="split a longer row and combine the results"
        if operand.free_size > low
        else "pad the row with the lowest float32",
    )


def _check_max8(form: Form, machine: Machine) -> None:
    rules.check_operands(form, machine, MAX8_PARAMS)
    rules.check_same_partitions(form, "dst", "src")
    _check_row(form, "src", WIDTH)
    rules.check_free_size(form, "dst", WIDTH)


def _max8(form: Form) -> Run:
    dst, src, dtype = position(form, "dst"), position(form, "src"), form["dst"].dtype
    from_top = form["src"].free_size - WIDTH

    def run(_: State, views: Sequence[Array]) -> None:
        values = np.partition(to_float32(flat(views[src])), from_top, axis=1)[:, from_top:]
        values.sort(axis=1)
        store(views[dst], values[:, ::-1], dtype)

    return run


MAX8 = OpSpec(
    name="max8",
    params=MAX8_PARAMS,
    engines=(Engine.VECTOR,),
    summary="The eight largest values of each row, descending.",
    semantics="dst = sort(src, descending)[:, :8]",
    rules=("src has 8 to 16384 elements per partition", "dst is (P, 8)"),
    example="nisa.max8(dst=top, src=x)",
    source=page("max8"),
    check=_check_max8,
    compile=_max8,
    cost=lambda form, machine: costs.vector_cost(form, machine, form["src"].free_size),
    axes=axes.over("src"),
)


def _check_find8(form: Form, machine: Machine) -> None:
    rules.check_operands(form, machine, FIND_PARAMS)
    rules.check_same_partitions(form, "dst", "data", "vals")
    _check_row(form, "data", WIDTH)
    rules.check_free_size(form, "vals", WIDTH)
    rules.check_free_size(form, "dst", WIDTH)
    _check_index_dtype(form, "dst")


def _check_index_dtype(form: Form, role: str) -> None:
    operand = form.get(role)
    if operand is not None and operand.dtype.name not in ("uint16", "uint32"):
        raise rules.refuse_dtype(form, operand, "uint16 or uint32", f"allocate {role} as nl.uint32")


def _match(
    data: npt.NDArray[np.float32], wanted: npt.NDArray[np.float32], order: Sequence[int]
) -> npt.NDArray[np.int64]:
    """Return where each wanted value occurs in its row, or -1; no place is given twice.

    Args:
        data: [P, N].
        wanted: [P, 8].
        order: Columns of `wanted`, the first to choose first.
    """
    rows = np.arange(data.shape[0])
    free = np.ones(data.shape, dtype=np.bool_)
    places = np.full(wanted.shape, -1, dtype=np.int64)
    for j in order:
        hits = data == wanted[:, j : j + 1]
        hits &= free
        at = hits.argmax(axis=1)
        found = hits[rows, at]
        places[found, j] = at[found]
        free[rows[found], at[found]] = False
    return places


def _find_index8(form: Form) -> Run:
    dst, data, vals = (position(form, r) for r in ("dst", "data", "vals"))

    def run(_: State, views: Sequence[Array]) -> None:
        places = _match(to_float32(flat(views[data])), to_float32(flat(views[vals])), range(WIDTH))
        out = views[dst]
        out[...] = places.astype(out.dtype).reshape(out.shape)  # -1 becomes all ones

    return run


NC_FIND_INDEX8 = OpSpec(
    name="nc_find_index8",
    params=FIND_PARAMS,
    engines=(Engine.VECTOR,),
    summary="Index of each of eight values in its row.",
    semantics="dst[p, j] = first index of vals[p, j] in data[p]; repeated values take the next "
    "one; a missing value gives all ones",
    rules=("dst is uint16 or uint32 (P, 8)", "data has 8 to 16384 elements per partition"),
    example="nisa.nc_find_index8(dst=where_u32, data=x, vals=top)",
    source=page("nc_find_index8"),
    check=_check_find8,
    compile=_find_index8,
    cost=lambda form, machine: costs.vector_cost(form, machine, form["data"].free_size),
    axes=axes.over("data"),
)


def _check_replace8(form: Form, machine: Machine) -> None:
    rules.check_elementwise(form, machine, REPLACE_PARAMS, "dst", "data")
    rules.check_same_partitions(form, "dst", "vals", "dst_idx")
    _check_row(form, "data", 1)
    rules.check_free_size(form, "vals", WIDTH)
    rules.check_free_size(form, "dst_idx", WIDTH)
    _check_index_dtype(form, "dst_idx")


def _match_replace8(form: Form) -> Run:
    dst, data, vals = (position(form, r) for r in ("dst", "data", "vals"))
    imm, index, dtype = number(form.attr("imm")), form.position("dst_idx"), form["dst"].dtype

    def run(_: State, views: Sequence[Array]) -> None:
        values = to_float32(flat(views[data]))
        places = _match(values, to_float32(flat(views[vals])), range(WIDTH - 1, -1, -1))
        rows, columns = np.nonzero(places >= 0)
        result = values.copy()
        result[rows, places[rows, columns]] = imm
        store(views[dst], result, dtype)
        if index is not None:
            out = views[index]
            out[...] = places.astype(out.dtype).reshape(out.shape)

    return run


NC_MATCH_REPLACE8 = OpSpec(
    name="nc_match_replace8",
    params=REPLACE_PARAMS,
    engines=(Engine.VECTOR,),
    summary="Replace the first occurrence of each of eight values in its row.",
    semantics="for j in 7…0: the first remaining data[p, i] == vals[p, j] becomes imm; "
    "dst_idx[p, j] = i",
    rules=("vals and dst_idx are (P, 8)", "data has at most 16384 elements per partition"),
    example="nisa.nc_match_replace8(dst=rest, data=x, vals=top, imm=-1e30)",
    source=page("nc_match_replace8"),
    check=_check_replace8,
    compile=_match_replace8,
    cost=lambda form, machine: costs.vector_cost(form, machine, form["data"].free_size),
    axes=axes.rows_of("data", "dst"),
)

# -- range_select -------------------------------------------------------------------------------

RANGE_PARAMS = (
    DST,
    Param(name="on_true_tile", kind=K.TENSOR),
    Param(name="comp_op0", kind=K.OP, choices=alu.COMPARISONS),
    Param(name="comp_op1", kind=K.OP, choices=alu.COMPARISONS),
    Param(name="bound0", kind=K.TENSOR_OR_SCALAR),
    Param(name="bound1", kind=K.TENSOR_OR_SCALAR),
    Param(name="reduce_cmd", kind=K.ENUM, default="reset_reduce", choices=REDUCE_CMDS),
    Param(name="reduce_res", kind=K.TENSOR, default=None, access="w"),
    Param(name="reduce_op", kind=K.OP, default="maximum", choices=("maximum",)),
    Param(name="range_start", kind=K.INTEGER, default=0),
    Param(name="on_false_value", kind=K.NUMBER, default=FP32_MIN),
    NAME,
    OLD_DTYPE,
)


def _check_range_select(form: Form, machine: Machine) -> None:
    rules.check_elementwise(form, machine, RANGE_PARAMS, "dst", "on_true_tile")
    rules.check_column(form, "bound0", "bound1")
    rules.check_column(form, "reduce_res", dtype=None)
    other = form.attr("on_false_value", FP32_MIN)
    if np.float32(other) != np.float32(FP32_MIN):  # type: ignore[arg-type]  # a NUMBER
        raise KernelError(
            codes.VALUE,
            f"range_select: on_false_value must be the lowest float32, got {other!r}",
            allowed=repr(FP32_MIN),
            hint="leave on_false_value out",
        )
    if not form["on_true_tile"].dtype.is_float:
        raise rules.refuse_dtype(
            form, form["on_true_tile"], "a float dtype", "copy it to nl.float32 first"
        )
    start = integer(form.attr("range_start", 0))
    if start < 0 or start + form["dst"].free_size > 1 << 24:
        raise KernelError(
            codes.VALUE,
            f"range_select: indices from {start} are not exact in float32",
            allowed="0 ≤ index < 2^24",
        )


def _range_select(form: Form) -> Run:
    dst, res, shape = position(form, "dst"), form.position("reduce_res"), form["dst"].shape
    src = read(form, "on_true_tile", shape)
    low = alu.ARITHMETIC[str(form.attr("comp_op0"))]
    high = alu.ARITHMETIC[str(form.attr("comp_op1"))]
    bound0 = read_column(form, "bound0", len(shape))
    bound1 = read_column(form, "bound1", len(shape))
    start = integer(form.attr("range_start", 0))
    index = np.arange(start, start + form["dst"].free_size, dtype=np.float32)
    index = index.reshape(1, *shape[1:])
    command = str(form.attr("reduce_cmd", "reset_reduce"))
    dtype, lowest = form["dst"].dtype, np.float32(FP32_MIN)

    def run(state: State, views: Sequence[Array]) -> None:
        keep = (low(index, bound0(views)) != 0) & (high(index, bound1(views)) != 0)
        result = np.where(keep, src(views), lowest)
        registers = state.vector_accumulator
        accumulate(registers, command, "maximum", result, identity=FP32_MIN)
        store(views[dst], result, dtype)
        if res is not None:
            store(views[res], registers[: shape[0]], form["reduce_res"].dtype)

    return run


RANGE_SELECT = OpSpec(
    name="range_select",
    params=RANGE_PARAMS,
    engines=(Engine.VECTOR,),
    summary="Keep elements whose index lies in a per-partition range; others become FP32_MIN.",
    semantics="i = range_start + column; dst = where(op0(i, bound0) & op1(i, bound1), x, FP32_MIN)",
    rules=("bounds are float32 tiles (P, 1)", "on_false_value must be FP32_MIN"),
    example="nisa.range_select(dst=y, on_true_tile=x, comp_op0=nl.greater_equal, "
    "comp_op1=nl.less, bound0=low, bound1=high)",
    source=page("range_select"),
    check=_check_range_select,
    compile=_range_select,
    cost=lambda form, machine: costs.vector_cost(form, machine, form["dst"].free_size),
    min_generation=3,
)

# -- select_reduce ------------------------------------------------------------------------------

SELECT_PARAMS = (
    DST,
    Param(name="predicate", kind=K.TENSOR),
    Param(name="on_true", kind=K.TENSOR),
    Param(name="on_false", kind=K.TENSOR_OR_SCALAR),
    Param(name="reduce_res", kind=K.TENSOR, default=None, access="w"),
    Param(name="reduce_cmd", kind=K.ENUM, default="idle", choices=REDUCE_CMDS),
    Param(name="reduce_op", kind=K.OP, default="maximum", choices=("maximum",)),
    Param(name="reverse_pred", kind=K.BOOL, default=False),
    NAME,
    OLD_DTYPE,
)


def _check_select_reduce(form: Form, machine: Machine) -> None:
    rules.check_elementwise(form, machine, SELECT_PARAMS, "dst", "predicate", "on_true")
    rules.check_not_both_psum(form, "on_true", "predicate")
    rules.check_column(form, "on_false", "reduce_res", dtype=None)
    predicate, on_true = form["predicate"], form["on_true"]
    if not predicate.dtype.is_integer or predicate.dtype.itemsize > 2:
        raise rules.refuse_dtype(
            form, predicate, "int8, int16, uint8 or uint16", "write the predicate as nl.uint8"
        )
    if on_true.dtype.name in ("int32", "uint32", "tfloat32"):
        raise rules.refuse_dtype(form, on_true, "other dtypes", "copy it to nl.float32 first")


def _select_reduce(form: Form) -> Run:
    dst, predicate = position(form, "dst"), position(form, "predicate")
    res, shape, dtype = form.position("reduce_res"), form["dst"].shape, form["dst"].dtype
    on_true = read(form, "on_true", shape)
    on_false = read_column(form, "on_false", len(shape))
    command = str(form.attr("reduce_cmd", "idle"))
    is_reversed = bool(form.attr("reverse_pred"))

    def run(state: State, views: Sequence[Array]) -> None:
        flags = views[predicate].reshape(shape)
        mask = flags == 0 if is_reversed else flags != 0
        result: Any = np.where(mask, on_true(views), on_false(views))
        registers = state.vector_accumulator
        accumulate(registers, command, "maximum", result, identity=-np.inf)
        store(views[dst], result, dtype)
        if res is not None:
            store(views[res], registers[: shape[0]], form["reduce_res"].dtype)

    return run


def _cost_select_reduce(form: Form, machine: Machine) -> Cost:
    mixed = form["on_true"].memory is not form["predicate"].memory
    n = float(form["dst"].free_size)
    reads = form.get("reduce_res") is not None
    return costs.vector_cost(
        form,
        machine,
        n if mixed else 2 * n,
        extra=machine.dve.accumulator_read_cycles if reads else 0.0,
    )


SELECT_REDUCE = OpSpec(
    name="select_reduce",
    params=SELECT_PARAMS,
    engines=(Engine.VECTOR,),
    summary="Select by a predicate tile, and the row maximum of the result.",
    semantics="dst = where(predicate, on_true, on_false); reduce_res = max(dst, free axes)",
    rules=(
        "predicate is an integer of 8 or 16 bits",
        "on_false is a number or a tile (P, 1); on_true and predicate not both in PSUM",
    ),
    example="nisa.select_reduce(dst=y, predicate=flags_u8, on_true=x, on_false=-1e30)",
    source=page("select_reduce"),
    check=_check_select_reduce,
    compile=_select_reduce,
    cost=_cost_select_reduce,
)

SPECS: tuple[OpSpec, ...] = (
    MAX8,
    NC_FIND_INDEX8,
    NC_MATCH_REPLACE8,
    RANGE_SELECT,
    SELECT_REDUCE,
)
