"""Instructions of the Tensor Engine (PE array).

Source: NKI ISA reference 0.6, nki.isa.nc_matmul and nki.isa.nc_transpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nkisim.dtypes import Array, store, to_float32
from nkisim.errors import KernelError, UnsupportedError
from nkisim.ir.access import Memory
from nkisim.ir.program import Form, Operand
from nkisim.machine.spec import Engine, Machine
from nkisim.ops import costs, rules
from nkisim.ops.registry import (
    ON_CHIP,
    PSUM_ONLY,
    SBUF_ONLY,
    Cost,
    OpSpec,
    Param,
    ParamKind,
    Run,
    State,
)
from nkisim.ops.vector_engine import NAME, OLD_DTYPE, flat, page, position

K = ParamKind
MATMUL_DTYPES = (
    "float32 tfloat32 bfloat16 float16 float8_e4m3 float8_e4m3fn float8_e5m2".split()
)


def _is_wide(operand: Operand) -> bool:
    return operand.dtype.itemsize == 4


def _check_matmul(form: Form, machine: Machine) -> None:
    if form.attr("perf_mode", "none") == "double_row":
        raise UnsupportedError("NKS508", "nc_matmul: perf_mode=double_row is not emulated yet")
    rules.check_memories(form, {"dst": PSUM_ONLY, "stationary": SBUF_ONLY, "moving": SBUF_ONLY})
    rules.check_packed(form)
    rules.check_partitions(form, machine, form.operands)
    rules.check_rank(form, machine)
    dst, stationary, moving = form["dst"], form["stationary"], form["moving"]
    if stationary.partitions != moving.partitions:
        raise KernelError(
            "NKS117",
            f"nc_matmul: contraction sizes differ: stationary has {stationary.partitions} "
            f"partitions, moving has {moving.partitions}",
            got=f"{stationary}; {moving}",
            allowed="stationary [K, M], moving [K, N] with the same K on partitions",
            hint="the contraction axis lies on partitions of both operands; transpose the one "
            "that has it on the free axis",
        )
    limits = machine.limits
    for operand, limit in (
        (stationary, limits.stationary_free_max),
        (moving, limits.moving_free_max),
    ):
        if operand.free_size > limit:
            raise KernelError(
                "NKS104",
                f"nc_matmul: {operand.role} free size {operand.free_size} exceeds the limit of "
                f"{limit}",
                got=str(operand),
                allowed=f"[≤{limits.partitions}, ≤{limit}]",
                hint=f"loop over the free axis in tiles of {limit}",
            )
    if dst.partitions != stationary.free_size or dst.free_size != moving.free_size:
        raise KernelError(
            "NKS118",
            f"nc_matmul: dst must be [{stationary.free_size}, {moving.free_size}], it is "
            f"[{dst.partitions}, {dst.free_size}]",
            got=f"{dst}; {stationary}; {moving}",
            allowed="dst [M, N] for stationary [K, M] and moving [K, N]",
            hint="slice dst to the size of this tile",
        )
    for operand in (stationary, moving):
        if operand.dtype.name not in MATMUL_DTYPES:
            raise rules.refuse_dtype(
                form, operand, ", ".join(MATMUL_DTYPES), "copy it to bfloat16 or float32 first"
            )
    if _is_wide(stationary) != _is_wide(moving):
        raise KernelError(
            "NKS306",
            f"nc_matmul: {stationary.dtype} and {moving.dtype} cannot be mixed",
            got=f"{stationary}; {moving}",
            allowed="a 4-byte float needs a 4-byte float partner",
            hint="copy the float32 operand to bfloat16, or both to float32",
        )
    if not dst.dtype.is_float:
        raise rules.refuse_dtype(form, dst, "float32", "allocate dst as nl.float32 in nl.psum")


def _matrix(view: Array) -> Any:
    return to_float32(flat(view))


def _matmul(form: Form) -> Run:
    dst, a, b = (position(form, r) for r in ("dst", "stationary", "moving"))
    explicit = form.attr("accumulate")
    is_transpose = bool(form.attr("is_transpose"))
    dtype = form["dst"].dtype
    fast = dtype.name == "float32" and len(form["dst"].shape) == 2

    def run(state: State, views: Sequence[Array]) -> None:
        product = _matrix(views[a]).T @ _matrix(views[b])
        out = views[dst]
        if not fast:
            product = product.reshape(out.shape)
        adds: Any = False
        if not is_transpose:
            adds = state.psum_accumulates(dst) if explicit is None else bool(explicit)
        if adds is True:
            if fast:
                out += product
            else:
                store(out, to_float32(out) + product, dtype)
        elif adds is False:
            store(out, product, dtype)
        else:
            store(out, np.where(adds, to_float32(out), np.float32(0)) + product, dtype)

    return run


def _cost_matmul(form: Form, machine: Machine) -> Cost:
    pe = machine.pe
    stationary, moving = form["stationary"], form["moving"]
    is_fp32 = stationary.dtype.name == "float32" or moving.dtype.name == "float32"
    columns = max(min(pe.min_interval_cycles, stationary.free_size), moving.free_size)
    passes = pe.fp32_passes if is_fp32 else 1.0
    overhead = pe.overhead_fp32_cycles if is_fp32 else pe.overhead_cycles
    # The next stationary load hides behind this multiply unless the multiply is shorter.
    load = stationary.free_size / pe.load_stationary_divisor
    interval = max(columns * passes, load, pe.min_interval_cycles) + overhead
    flops = 2.0 * stationary.partitions * stationary.free_size * moving.free_size
    return Cost(interval=interval, latency=interval + pe.fill_cycles, flops=flops)


MATMUL_RULES = (
    "stationary [K ≤ 128, M ≤ 128] and moving [K ≤ 128, N ≤ 512] in SBUF, contraction on "
    "partitions; dst [M, N] float32 in PSUM, within one bank (512 float32 per partition)",
    "the first matmul into a freshly allocated PSUM tile overwrites, later ones accumulate: "
    "allocate the PSUM tile inside the loop over output tiles, outside the loop over K",
    "float32 with float32 only; bfloat16/float16/fp8 may mix and run four times as fast",
)

NC_MATMUL = OpSpec(
    name="nc_matmul",
    params=(
        Param(name="dst", kind=K.TENSOR, access="w", memories=PSUM_ONLY),
        Param(name="stationary", kind=K.TENSOR, memories=SBUF_ONLY),
        Param(name="moving", kind=K.TENSOR, memories=SBUF_ONLY),
        Param(name="is_stationary_onezero", kind=K.LABEL, default=False),
        Param(name="is_moving_onezero", kind=K.LABEL, default=False),
        Param(name="is_transpose", kind=K.BOOL, default=False),
        Param(name="accumulate", kind=K.BOOL, default=None, since="0.3"),
        Param(name="tile_position", kind=K.INTEGERS, default=()),
        Param(name="tile_size", kind=K.INTEGERS, default=()),
        Param(
            name="perf_mode", kind=K.ENUM, default="none", choices=("none", "double_row")
        ),
        NAME,
        Param(name="psumAccumulateFlag", kind=K.LABEL, default=None, until="0.2"),
        OLD_DTYPE,
    ),
    engines=(Engine.TENSOR,),
    summary="Matrix product, accumulated in PSUM.",
    semantics="dst (+)= stationary.T @ moving, in float32",
    rules=MATMUL_RULES,
    example="nisa.nc_matmul(dst=acc, stationary=a_kxm, moving=b_kxn)",
    source=page("nc_matmul"),
    check=_check_matmul,
    compile=_matmul,
    cost=_cost_matmul,
)


def _check_transpose(form: Form, machine: Machine) -> None:
    rules.check_packed(form)
    rules.check_memories(form, {"dst": ON_CHIP, "data": ON_CHIP})
    rules.check_partitions(form, machine, form.operands)
    dst, data = form["dst"], form["data"]
    if form.engine is Engine.TENSOR:
        if data.memory is not Memory.SBUF or dst.memory is not Memory.PSUM:
            raise KernelError(
                "NKS209",
                f"nc_transpose on the Tensor Engine reads SBUF and writes PSUM; data is in "
                f"{data.memory}, dst in {dst.memory}",
                got=f"{dst}; {data}",
                hint="allocate dst with buffer=nl.psum; up to 32 × 32 the Vector Engine does "
                "SBUF to SBUF",
            )
        limit = machine.limits.partitions
    else:
        limit = machine.limits.vector_transpose_max
    if data.partitions > limit or data.free_size > limit:
        raise KernelError(
            "NKS119",
            f"nc_transpose on the {form.engine} engine: data [{data.partitions}, "
            f"{data.free_size}] exceeds [{limit}, {limit}]",
            got=str(data),
            allowed=f"[≤{limit}, ≤{limit}]",
            hint=f"loop over {limit} × {limit} blocks",
        )
    if dst.partitions != data.free_size or dst.free_size != data.partitions:
        raise KernelError(
            "NKS118",
            f"nc_transpose: dst must be [{data.free_size}, {data.partitions}], it is "
            f"[{dst.partitions}, {dst.free_size}]",
            got=f"{dst}; {data}",
            hint="swap the two sizes of dst",
        )
    if dst.dtype != data.dtype and not (
        dst.dtype.name == "float32" and form.engine is Engine.TENSOR
    ):
        raise KernelError(
            "NKS307",
            f"nc_transpose: dst is {dst.dtype}, data is {data.dtype}",
            got=f"{dst}; {data}",
            allowed="the same dtype, or float32 in PSUM",
            hint=f"allocate dst as nl.{data.dtype} and cast when copying it out of PSUM",
        )


def _transpose(form: Form) -> Run:
    dst, data = position(form, "dst"), position(form, "data")
    dtype = form["dst"].dtype
    same = form["dst"].dtype == form["data"].dtype

    def run(_: State, views: Sequence[Array]) -> None:
        values = flat(views[data]).T
        out = views[dst]
        if same:
            out[...] = values.copy().reshape(out.shape)
        else:
            store(out, to_float32(values).copy(), dtype)

    return run


def _cost_transpose(form: Form, machine: Machine) -> Cost:
    data = form["data"]
    if form.engine is Engine.VECTOR:
        return costs.vector_cost(machine, data.free_size)
    pe = machine.pe
    passes = 2.0 if data.dtype.itemsize == 4 and machine.generation >= 3 else 1.0
    if data.dtype.itemsize == 4 and machine.generation == 2:
        passes = pe.fp32_passes
    columns = max(data.partitions, min(pe.min_interval_cycles, data.free_size)) * passes
    interval = max(columns, pe.min_interval_cycles) + pe.overhead_cycles
    return Cost(interval=interval, latency=interval + pe.fill_cycles)


def _choose_transpose(form: Form, machine: Machine) -> Engine:
    data, dst = form["data"], form["dst"]
    small = max(data.partitions, data.free_size) <= machine.limits.vector_transpose_max
    if dst.memory is Memory.PSUM and data.memory is Memory.SBUF:
        return Engine.TENSOR
    return Engine.VECTOR if small else Engine.TENSOR


NC_TRANSPOSE = OpSpec(
    name="nc_transpose",
    params=(
        Param(name="dst", kind=K.TENSOR, access="w"),
        Param(name="data", kind=K.TENSOR),
        Param(name="engine", kind=K.ENGINE, default=None),
        NAME,
        OLD_DTYPE,
    ),
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
)

SPECS: tuple[OpSpec, ...] = (NC_MATMUL, NC_TRANSPOSE)
"""Rows of the Tensor Engine."""
