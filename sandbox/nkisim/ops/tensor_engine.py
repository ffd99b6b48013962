"""Instructions of the Tensor Engine (PE array).

Products are float32 sums of exactly upcast operands, one rounding when they are written.
Source: NKI ISA reference 0.6, nki.isa.nc_matmul and nki.isa.nc_transpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from nkisim.dtypes import Array, store, to_float32
from nkisim.errors import KernelError
from nkisim.ir.access import Memory
from nkisim.ir.program import Form, Operand
from nkisim.machine.spec import Engine, Machine
from nkisim.ops import axes, codes, costs, rules
from nkisim.ops.operands import NAME, OLD_DTYPE, flat, page, position
from nkisim.ops.registry import (
    PSUM_ONLY,
    SBUF_ONLY,
    Cost,
    OpSpec,
    Param,
    ParamKind,
    Run,
    State,
)

K = ParamKind
MATMUL_DTYPES: Final = (
    "float32",
    "tfloat32",
    "bfloat16",
    "float16",
    "float8_e4m3",
    "float8_e4m3fn",
    "float8_e5m2",
)

# -- nc_matmul ----------------------------------------------------------------------------------

MATMUL_PARAMS = (
    Param(name="dst", kind=K.TENSOR, access="w", memories=PSUM_ONLY),
    Param(name="stationary", kind=K.TENSOR, memories=SBUF_ONLY),
    Param(name="moving", kind=K.TENSOR, memories=SBUF_ONLY),
    Param(name="is_stationary_onezero", kind=K.LABEL, default=False),
    Param(name="is_moving_onezero", kind=K.LABEL, default=False),
    Param(name="is_transpose", kind=K.BOOL, default=False),
    Param(name="accumulate", kind=K.BOOL, default=None, since="0.3"),
    Param(name="tile_position", kind=K.INTEGERS, default=()),
    Param(name="tile_size", kind=K.INTEGERS, default=()),
    Param(name="perf_mode", kind=K.ENUM, default="none", choices=("none", "double_row")),
    NAME,
    Param(name="is_moving_zero", kind=K.LABEL, default=False, until="0.2"),
    Param(name="psumAccumulateFlag", kind=K.LABEL, default=None, until="0.2"),
    OLD_DTYPE,
)


def _is_wide(operand: Operand) -> bool:
    return operand.dtype.itemsize == 4


def _is_double_row(form: Form) -> bool:
    """Whether each row of the PE array holds two rows of the contraction."""
    return form.attr("perf_mode", "none") == "double_row"


def _columns(form: Form, operand: Operand) -> int:
    """Columns of the matrix that an operand stands for."""
    return operand.free_size // (2 if _is_double_row(form) else 1)


def _check_double_row(form: Form, machine: Machine) -> None:
    stationary, moving = form["stationary"], form["moving"]
    allowed = "stationary [K, 2, M] and moving [K, 2, N] of float8, the whole array, no transpose"
    why = ""
    if machine.generation < 3:
        why = f"needs NeuronCore-v3, {machine.name} is older"
    elif any(o.dtype.itemsize != 1 for o in (stationary, moving)):
        why = "takes float8 operands"
    elif any(len(o.shape) < 3 or o.shape[1] != 2 for o in (stationary, moving)):
        why = "takes two rows of the contraction in the first free dimension"
    elif form.attr("is_transpose"):
        why = "can't transpose"
    else:
        match form.attr("tile_size"):
            case (_, int() as columns) if columns < machine.limits.stationary_free_max:
                why = "needs all columns of the PE array"
    if why:
        raise KernelError(
            codes.DOUBLE_ROW,
            f"nc_matmul: perf_mode=double_row {why}",
            got=f"{stationary}; {moving}",
            allowed=allowed,
        )


def _check_matmul(form: Form, machine: Machine) -> None:
    rules.check_operands(form, machine, MATMUL_PARAMS)
    if _is_double_row(form):
        _check_double_row(form, machine)
    dst, stationary, moving = form["dst"], form["stationary"], form["moving"]
    if stationary.partitions != moving.partitions:
        raise KernelError(
            codes.CONTRACTION,
            f"nc_matmul: contraction sizes differ: stationary has {stationary.partitions} "
            f"partitions, moving has {moving.partitions}",
            got=f"{stationary}; {moving}",
            allowed="stationary [K, M], moving [K, N] with the same K on partitions",
            hint="the contraction axis lies on partitions of both operands; transpose the one "
            "that has it on the free axis",
        )
    limits = machine.limits
    is_short = dst.dtype.name == "bfloat16" and machine.generation >= 4
    widest = limits.moving_free_max * (2 if is_short else 1)
    for operand, limit in ((stationary, limits.stationary_free_max), (moving, widest)):
        if _columns(form, operand) > limit:
            raise KernelError(
                codes.FREE_SIZE_LIMIT,
                f"nc_matmul: {operand.role} free size {_columns(form, operand)} exceeds the limit "
                f"of {limit}",
                got=str(operand),
                allowed=f"[≤{limits.partitions}, ≤{limit}]",
                hint=f"loop over the free axis in tiles of {limit}",
            )
    m, n = _columns(form, stationary), _columns(form, moving)
    if dst.partitions != m or dst.free_size != n:
        raise KernelError(
            codes.RESULT_SHAPE,
            f"nc_matmul: dst must be [{m}, {n}], it is [{dst.partitions}, {dst.free_size}]",
            got=f"{dst}; {stationary}; {moving}",
            allowed="dst [M, N] for stationary [K, M] and moving [K, N]",
            hint="slice dst to the size of this tile",
        )
    _check_matmul_dtypes(form, machine)
    _check_part_of_array(form, machine)


def _check_matmul_dtypes(form: Form, machine: Machine) -> None:
    dst, stationary, moving = form["dst"], form["stationary"], form["moving"]
    newest = machine.generation >= 4
    allowed = [n for n in MATMUL_DTYPES if newest or n != "float8_e4m3fn"]
    for operand in (stationary, moving):
        if operand.dtype.name not in allowed:
            raise rules.refuse_dtype(
                form, operand, ", ".join(allowed), "copy it to nl.bfloat16 or nl.float32 first"
            )
    names = {stationary.dtype.name, moving.dtype.name}
    if _is_wide(stationary) != _is_wide(moving) or names == {"float8_e4m3", "float8_e4m3fn"}:
        raise KernelError(
            codes.MIXED_WIDTHS,
            f"nc_matmul: {stationary.dtype} and {moving.dtype} cannot be mixed",
            got=f"{stationary}; {moving}",
            allowed="a 4-byte float needs a 4-byte float partner; one kind of float8_e4m3",
            hint="copy the float32 operand to bfloat16, or both to float32",
        )
    results = ("float32", "bfloat16") if newest else ("float32",)
    if dst.dtype.name not in results and not (form.attr("is_transpose") and dst.dtype.is_float):
        raise rules.refuse_dtype(
            form,
            dst,
            " or ".join(results),
            "allocate dst as nl.float32 in nl.psum and cast when copying it out",
        )


def _check_part_of_array(form: Form, machine: Machine) -> None:
    """Check the part of the PE array that tile_position and tile_size choose."""
    size, at = form.attr("tile_size"), form.attr("tile_position")
    if not size and not at:
        return
    got = f"tile_position={at}, tile_size={size}"
    allowed = "rows and columns of 32, 64 or 128, at multiples of their size, within 128 × 128"
    match size, at:
        case (int() as rows, int() as columns), (int() as row, int() as column):
            sizes, starts = (rows, columns), (row, column)
        case _:
            raise KernelError(
                codes.TILE_POSITION,
                "nc_matmul: tile_position and tile_size come together, each two numbers",
                got=got,
                allowed=allowed,
            )
    limit = machine.limits.partitions
    for n, start in zip(sizes, starts, strict=True):
        if n not in (32, 64, 128) or start < 0 or start % n or start + n > limit:
            raise KernelError(
                codes.TILE_POSITION,
                f"nc_matmul: {n} rows or columns at {start} are not a part of the PE array",
                got=got,
                allowed=allowed,
            )
    if sizes[0] == 32 and machine.generation < 3:
        raise KernelError(
            codes.TILE_POSITION,
            f"nc_matmul: tiles of 32 rows need NeuronCore-v3, {machine.name} is older",
            got=got,
            allowed="64 or 128 rows",
        )
    stationary = form["stationary"]
    m = _columns(form, stationary)
    if stationary.partitions > sizes[0] or m > sizes[1]:
        raise KernelError(
            codes.TILE_POSITION,
            f"nc_matmul: stationary [{stationary.partitions}, {m}] does not "
            f"fit tile_size {list(sizes)}",
            got=str(stationary),
            allowed=f"[≤{sizes[0]}, ≤{sizes[1]}]",
        )


def _matrix(view: Array) -> Any:
    return to_float32(flat(view))


def _two_rows(view: Array) -> Any:
    """Return [K, 2, …] as a matrix of 2K rows."""
    return to_float32(view.reshape(2 * view.shape[0], -1))


def _matmul(form: Form) -> Run:
    dst, a, b = (position(form, r) for r in ("dst", "stationary", "moving"))
    if form.attr("is_transpose"):
        return _matmul_transpose(form)
    explicit = form.attr("accumulate")
    dtype, shape = form["dst"].dtype, form["dst"].shape
    is_fp32 = dtype.name == "float32"
    is_direct = is_fp32 and len(shape) == 2
    matrix = _two_rows if _is_double_row(form) else _matrix

    def run(state: State, views: Sequence[Array]) -> None:
        out: Any = views[dst]
        stationary, moving = matrix(views[a]).T, matrix(views[b])
        adds: Any = state.psum_accumulates(dst) if explicit is None else explicit
        if adds is False and is_direct:
            np.matmul(stationary, moving, out=out)
            return
        product = np.matmul(stationary, moving).reshape(shape)
        if adds is False:
            store(out, product, dtype)
        elif adds is True and is_fp32:
            np.add(out, product, out=out)
        elif adds is True:
            product += to_float32(out)
            store(out, product, dtype)
        else:
            np.add(product, to_float32(out), out=product, where=adds)
            store(out, product, dtype)

    return run


def _matmul_transpose(form: Form) -> Run:
    """Return a matmul that moves bits if `moving` is the identity, and overwrites."""
    dst, a, b = (position(form, r) for r in ("dst", "stationary", "moving"))
    dtype, shape = form["dst"].dtype, form["dst"].shape
    is_square = form["moving"].partitions == form["moving"].free_size
    identity = np.eye(form["moving"].partitions, dtype=np.float32)
    same = form["dst"].dtype == form["stationary"].dtype

    def run(_: State, views: Sequence[Array]) -> None:
        moving = _matrix(views[b])
        if not is_square or not np.array_equal(moving, identity):
            product = np.matmul(_matrix(views[a]).T, moving)
            store(views[dst], product.reshape(shape), dtype)
        elif same:
            views[dst][...] = flat(views[a]).T.reshape(shape)
        else:
            store(views[dst], _matrix(views[a]).T.reshape(shape), dtype)

    return run


def _cost_matmul(form: Form, machine: Machine) -> Cost:
    pe = machine.pe
    stationary, moving = form["stationary"], form["moving"]
    is_fp32 = stationary.dtype.name == "float32" or moving.dtype.name == "float32"
    m, n = _columns(form, stationary), _columns(form, moving)
    columns = max(min(pe.min_interval_cycles, m), n)
    passes = pe.fp32_passes if is_fp32 else 1.0
    overhead = pe.overhead_fp32_cycles if is_fp32 else pe.overhead_cycles
    # The next stationary load hides behind this multiply unless the multiply is shorter.
    load = m / pe.load_stationary_divisor
    interval = max(columns * passes, load, pe.min_interval_cycles) + overhead
    flops = 2.0 * stationary.partitions * stationary.free_size * n
    return Cost(interval=interval, latency=interval + pe.fill_cycles, flops=flops)


NC_MATMUL = OpSpec(
    name="nc_matmul",
    params=MATMUL_PARAMS,
    engines=(Engine.TENSOR,),
    summary="Matrix product, accumulated in PSUM.",
    semantics="dst (+)= stationary.T @ moving, in float32",
    rules=(
        "stationary [K ≤ 128, M ≤ 128] and moving [K ≤ 128, N ≤ 512] in SBUF, contraction on "
        "partitions; dst [M, N] float32 in PSUM, within one bank (512 float32 per partition)",
        "the first matmul into a freshly allocated PSUM tile overwrites, later ones accumulate: "
        "allocate the PSUM tile inside the loop over output tiles, outside the loop over K",
        "float32 with float32 only; bfloat16/float16/fp8 may mix and run four times as fast",
        "perf_mode=double_row: float8 stationary [K, 2, M] and moving [K, 2, N] contract 2K rows "
        "in the time of K",
    ),
    example="nisa.nc_matmul(dst=acc, stationary=a_kxm, moving=b_kxn)",
    source=page("nc_matmul"),
    check=_check_matmul,
    compile=_matmul,
    cost=_cost_matmul,
    axes=axes.matmul,
)

# -- nc_transpose -------------------------------------------------------------------------------

TRANSPOSE_PARAMS = (
    Param(name="dst", kind=K.TENSOR, access="w"),
    Param(name="data", kind=K.TENSOR),
    Param(name="engine", kind=K.ENGINE, default=None),
    NAME,
    OLD_DTYPE,
)


def _check_transpose(form: Form, machine: Machine) -> None:
    rules.check_memories(form, TRANSPOSE_PARAMS)
    dst, data = form["dst"], form["data"]
    limit = machine.limits.vector_transpose_max
    if form.engine is Engine.TENSOR:
        if data.memory is not Memory.SBUF or dst.memory is not Memory.PSUM:
            raise KernelError(
                codes.TRANSPOSE_MEMORY,
                f"nc_transpose on the Tensor Engine reads SBUF and writes PSUM; data is in "
                f"{data.memory}, dst in {dst.memory}",
                got=f"{dst}; {data}",
                allowed="data in sbuf, dst in psum",
                hint=f"allocate dst with buffer=nl.psum; up to {limit} × {limit} the Vector "
                "Engine does SBUF to SBUF",
            )
        limit = machine.limits.partitions
    if data.partitions > limit or data.free_size > limit:
        raise KernelError(
            codes.TRANSPOSE_SIZE,
            f"nc_transpose on the {form.engine} engine: data [{data.partitions}, "
            f"{data.free_size}] exceeds [{limit}, {limit}]",
            got=str(data),
            allowed=f"[≤{limit}, ≤{limit}]",
            hint=f"loop over {limit} × {limit} blocks",
        )
    rules.check_operands(form, machine, TRANSPOSE_PARAMS)
    if dst.partitions != data.free_size or dst.free_size != data.partitions:
        raise KernelError(
            codes.RESULT_SHAPE,
            f"nc_transpose: dst must be [{data.free_size}, {data.partitions}], it is "
            f"[{dst.partitions}, {dst.free_size}]",
            got=f"{dst}; {data}",
            allowed="dst [F, P] for data [P, F]",
            hint="swap the two sizes of dst",
        )
    widens = dst.dtype.name == "float32" and data.dtype.is_float and form.engine is Engine.TENSOR
    if dst.dtype != data.dtype and not widens:
        raise KernelError(
            codes.DTYPES_DIFFER,
            f"nc_transpose: dst is {dst.dtype}, data is {data.dtype}",
            got=f"{dst}; {data}",
            allowed="the same dtype, or float32 in PSUM",
            hint=f"allocate dst as nl.{data.dtype} and cast when copying it out of PSUM",
        )


def _transpose(form: Form) -> Run:
    dst, data, dtype = position(form, "dst"), position(form, "data"), form["dst"].dtype
    shape = form["dst"].shape
    same = dtype == form["data"].dtype

    def run(_: State, views: Sequence[Array]) -> None:
        if same:  # numpy copies first where dst overlaps data
            views[dst][...] = flat(views[data]).T.reshape(shape)
        else:
            store(views[dst], to_float32(flat(views[data])).T.reshape(shape), dtype)

    return run


def _cost_transpose(form: Form, machine: Machine) -> Cost:
    data = form["data"]
    if form.engine is Engine.VECTOR:
        return costs.vector_cost(form, machine, data.free_size)
    pe = machine.pe
    passes = 1.0
    if data.dtype.itemsize == 4:  # transpose mode, from v3 on, moves float32 in half the passes
        passes = pe.fp32_passes / 2 if machine.generation >= 3 else pe.fp32_passes
    columns = max(data.partitions, min(pe.min_interval_cycles, data.free_size)) * passes
    interval = max(columns, pe.min_interval_cycles) + pe.overhead_cycles
    return Cost(interval=interval, latency=interval + pe.fill_cycles)


def _choose_transpose(form: Form, machine: Machine) -> Engine:
    data, dst = form["data"], form["dst"]
    if dst.memory is Memory.PSUM and data.memory is Memory.SBUF:
        return Engine.TENSOR
    small = max(data.partitions, data.free_size) <= machine.limits.vector_transpose_max
    return Engine.VECTOR if small else Engine.TENSOR


NC_TRANSPOSE = OpSpec(
    name="nc_transpose",
    params=TRANSPOSE_PARAMS,
    engines=(Engine.TENSOR, Engine.VECTOR),
    summary="Transpose a tile: partitions become the free axis.",
    semantics="dst = data.T, bit exact",
    rules=(
        "Tensor Engine: data at most [128, 128] in SBUF, dst in PSUM; Vector Engine: at most "
        "[32, 32]",
        "dst has data's dtype; the Tensor Engine can widen to float32",
    ),
    example="nisa.nc_transpose(dst=psum_tile, data=sbuf_tile)",
    source=page("nc_transpose"),
    check=_check_transpose,
    compile=_transpose,
    cost=_cost_transpose,
    choose_engine=_choose_transpose,
    axes=axes.transpose,
)

SPECS: tuple[OpSpec, ...] = (NC_MATMUL, NC_TRANSPOSE)
"""Rows of the Tensor Engine."""
