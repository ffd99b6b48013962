"""DMA instructions.

`Form.engine` of a DMA instruction is the engine that issues it; the bytes move on the DMA engines.
Source: NKI ISA reference 0.6, nki.isa.dma_copy, dma_transpose, dma_compute; Introduction to DMA.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nkisim.dtypes import Array, store, to_float32
from nkisim.errors import KernelError
from nkisim.ir.access import Memory
from nkisim.ir.program import Form, Operand
from nkisim.machine.spec import Engine, Machine
from nkisim.ops import axes, codes, rules
from nkisim.ops.operands import NAME, page, position
from nkisim.ops.registry import DMA_SIDES, SBUF_ONLY, DmaCost, OpSpec, Param, ParamKind, Run, State

K = ParamKind
ISSUERS = (Engine.SYNC, Engine.SCALAR, Engine.GPSIMD, Engine.VECTOR, Engine.TENSOR)
DGE_MODES = ("unknown", "swdge", "hwdge", "none")
OOB_MODES = ("error", "skip")
PARTITIONS_PER_ENGINE = 8


def _size_check(form: Form, *roles: str) -> None:
    first = form[roles[0]]
    for role in roles[1:]:
        other = form[role]
        if other.pattern.size != first.pattern.size:
            raise KernelError(
                codes.SIZES_DIFFER,
                f"{form.op}: {first.role} has {first.pattern.size} elements, {role} has "
                f"{other.pattern.size}",
                got=f"{first}; {other}",
                allowed="equal element counts",
                hint="slice both sides to the size of this tile",
            )


COPY_PARAMS = (
    Param(name="dst", kind=K.TENSOR, access="w", memories=DMA_SIDES),
    Param(name="src", kind=K.TENSOR, memories=DMA_SIDES),
    Param(name="priority", kind=K.LABEL, default=None, since="0.4"),
    Param(name="oob_mode", kind=K.ENUM, default="error", choices=OOB_MODES),
    Param(name="dge_mode", kind=K.ENUM, default="unknown", choices=DGE_MODES),
    Param(name="engine", kind=K.ENGINE, default=None, since="0.3"),
    NAME,
    Param(name="dst_rmw_op", kind=K.OP, default=None, choices=("add",), until="0.3"),
    Param(name="unique_indices", kind=K.LABEL, default=True, until="0.3"),
)


def _check_copy(form: Form, machine: Machine) -> None:
    rules.check_memories(form, COPY_PARAMS)
    rules.check_partitions(form, machine)
    _size_check(form, "dst", "src")
    dst, src = form["dst"], form["src"]
    if form.attr("dge_mode") == "hwdge" and dst.dtype != src.dtype:
        raise KernelError(
            codes.DMA_CAST,
            f"dma_copy: hardware descriptors cannot cast {src.dtype} to {dst.dtype}",
            got=f"{dst}; {src}",
            hint="load in the source's dtype and cast with nisa.tensor_copy",
        )
    if dst.dtype.kind == "packed" and dst.dtype != src.dtype:
        raise rules.refuse_dtype(form, dst, "the source's dtype", "DMA cannot cast packed dtypes")


def _copy(form: Form) -> Run:
    dst, src = position(form, "dst"), position(form, "src")
    dtype = form["dst"].dtype
    same = form["dst"].dtype == form["src"].dtype
    same_shape = form["dst"].shape == form["src"].shape
    add = form.attr("dst_rmw_op") == "add"

    def run(_: State, views: Sequence[Array]) -> None:
        values, out = views[src], views[dst]
        if add:
            store(out, to_float32(out) + to_float32(values).reshape(out.shape), dtype)
        elif same:
            out[...] = values if same_shape else values.reshape(out.shape)
        else:
            store(out, to_float32(values), dtype)

    return run


def spread(operands: Sequence[Operand], machine: Machine) -> int:
    """Return over how many DMA engines a copy spreads: eight partitions on each."""
    on_chip = [o for o in operands if o.memory.is_on_chip]
    if on_chip:
        rows = max(o.partitions for o in on_chip)
        return max(1, min(machine.dma.engines, -(-rows // PARTITIONS_PER_ENGINE)))
    size = max(o.size_bytes for o in operands)
    return max(1, min(machine.dma.engines, -(-size // 65536)))


def descriptors(operand: Operand) -> int:
    """Return the contiguous runs of one side; each partition is a run of its own on chip."""
    run = operand.pattern.run
    if operand.memory.is_on_chip:
        run = min(run, operand.free_size)
    return operand.pattern.size // max(1, run)


def _dma_cost(form: Form, machine: Machine, fraction: float = 1.0) -> DmaCost:
    tensors = rules.tensor_operands(form)
    dst, sources = tensors[0], tensors[1:]
    read = sum(o.size_bytes for o in sources)
    hbm = sum(o.size_bytes for o in tensors if o.memory is Memory.HBM)
    is_indirect = any(o.index is not None and o.index.kind == "vector" for o in tensors)
    return DmaCost(
        bytes_read=read,
        bytes_written=dst.size_bytes,
        hbm_bytes=hbm,
        descriptors=max(descriptors(o) for o in tensors),
        engines_used=spread(tensors, machine),
        rate_fraction=fraction,
        is_store=dst.memory is Memory.HBM,
        is_software_generated=is_indirect or form.attr("dge_mode") == "swdge",
    )


DMA_COPY = OpSpec(
    name="dma_copy",
    params=COPY_PARAMS,
    engines=ISSUERS,
    summary="Copy between HBM and SBUF, within HBM, or within SBUF.",
    semantics="dst.ravel() = src.ravel(), cast to dst's dtype",
    rules=(
        "equal element counts; shapes may differ",
        "PSUM cannot be reached: copy it to SBUF with tensor_copy first",
        "an HBM view may be broadcast: w.reshape((1, d)).broadcast(0, 128) loads one row into "
        "every partition",
        "engine=nisa.engine.sync, scalar or gpsimd chooses the queue that issues it",
        "at least 2 KiB per partition and 128 partitions for full bandwidth",
    ),
    example="nisa.dma_copy(dst=tile, src=x[i * 128:(i + 1) * 128, 0:512])",
    source=page("dma_copy"),
    check=_check_copy,
    compile=_copy,
    cost=_dma_cost,
    is_dma=True,
)


def _axes(form: Form) -> tuple[int, ...]:
    raw = form.attr("axes")
    rank = len(form["src"].shape)
    default = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}.get(rank, tuple(range(rank))[::-1])
    return tuple(int(a) for a in raw) if isinstance(raw, tuple) and raw else default  # type: ignore[arg-type]


TRANSPOSE_PARAMS = (
    Param(name="dst", kind=K.TENSOR, access="w", memories=SBUF_ONLY),
    Param(name="src", kind=K.TENSOR, memories=DMA_SIDES),
    Param(name="axes", kind=K.INTEGERS, default=None),
    Param(name="priority", kind=K.LABEL, default=None, since="0.4"),
    Param(name="dge_mode", kind=K.ENUM, default="unknown", choices=DGE_MODES),
    Param(name="oob_mode", kind=K.ENUM, default="error", choices=OOB_MODES),
    NAME,
)


def _check_dma_transpose(form: Form, machine: Machine) -> None:
    rules.check_memories(form, TRANSPOSE_PARAMS)
    rules.check_partitions(form, machine)
    dst, src = form["dst"], form["src"]
    axes = _axes(form)
    if sorted(axes) != list(range(len(src.shape))):
        raise KernelError(
            codes.TRANSPOSE_SIZE,
            f"dma_transpose: axes {axes} do not fit {len(src.shape)} dimensions",
            got=str(src),
            allowed="a permutation of the dimensions",
            hint="leave axes out to reverse (2-D and 3-D) or to give (3, 1, 2, 0)",
        )
    want = tuple(src.shape[a] for a in axes)
    if dst.shape != want:
        raise KernelError(
            codes.RESULT_SHAPE,
            f"dma_transpose: dst must be {list(want)}, it is {list(dst.shape)}",
            got=f"{dst}; {src}",
            allowed=f"{list(want)}",
            hint="allocate dst with the transposed shape",
        )
    rules.check_same_dtype(form, "dst", "src")
    if form.attr("dge_mode") == "hwdge":
        _check_hardware_transpose(src)


def _check_hardware_transpose(src: Operand) -> None:
    """Check what hardware descriptors can transpose."""
    rows, inner, rank = src.shape[0], src.shape[-1], len(src.shape)
    legal = rows == 16 if rank == 2 else rows in (1, 2, 4, 8, 16) and rows * src.shape[-2] % 16 == 0
    if src.dtype.itemsize != 2 or inner > 128 or not legal:
        raise KernelError(
            codes.TRANSPOSE_SIZE,
            f"dma_transpose: hardware descriptors cannot transpose {list(src.shape)} {src.dtype}",
            got=str(src),
            allowed="2-byte dtypes, [16, ≤128], or 3 and 4 dimensions whose first and "
            "second-last multiply to a multiple of 16",
            hint="leave dge_mode out",
        )


def _dma_transpose(form: Form) -> Run:
    dst, src = position(form, "dst"), position(form, "src")
    axes = _axes(form)

    def run(_: State, views: Sequence[Array]) -> None:
        views[dst][...] = np.transpose(views[src], axes).copy()

    return run


def _cost_dma_transpose(form: Form, machine: Machine) -> DmaCost:
    from_hbm = form["src"].memory is Memory.HBM
    dma = machine.dma
    return _dma_cost(
        form, machine, dma.transpose_fraction_hbm if from_hbm else dma.transpose_fraction_sbuf
    )


DMA_TRANSPOSE = OpSpec(
    name="dma_transpose",
    params=TRANSPOSE_PARAMS,
    engines=ISSUERS,
    summary="Transpose while copying into SBUF.",
    semantics="dst = transpose(src, axes); axes default to (1, 0), (2, 1, 0) or (3, 1, 2, 0)",
    rules=("dst has the transposed shape and src's dtype", "dst in SBUF, src in HBM or SBUF"),
    example="nisa.dma_transpose(dst=tile_fxp, src=x[0:128, 0:64])",
    source=page("dma_transpose"),
    check=_check_dma_transpose,
    compile=_dma_transpose,
    cost=_cost_dma_transpose,
    is_dma=True,
    axes=axes.permutation,
)


COMPUTE_PARAMS = (
    Param(name="dst", kind=K.TENSOR, access="w", memories=DMA_SIDES),
    Param(name="srcs", kind=K.TENSORS, memories=DMA_SIDES),
    Param(name="reduce_op", kind=K.OP, choices=("add",)),
    Param(name="scales", kind=K.INTEGERS, default=None),
    Param(name="unique_indices", kind=K.BOOL, default=True),
    Param(name="oob_mode", kind=K.ENUM, default="error", choices=OOB_MODES),
    NAME,
)


def _check_compute(form: Form, machine: Machine) -> None:
    rules.check_memories(form, COMPUTE_PARAMS)
    rules.check_partitions(form, machine)
    sources = [o.role for o in form.operands if o.role.startswith("srcs.")]
    if not 1 <= len(sources) <= 16:
        raise KernelError(
            codes.BAD_LIST,
            f"dma_compute: {len(sources)} sources",
            allowed="1 to 16",
            hint="add the rest in a second dma_compute",
        )
    _size_check(form, "dst", *sources)
    scales = form.attr("scales")
    if scales is not None and (not isinstance(scales, tuple) or any(s != 1 for s in scales)):
        raise KernelError(
            codes.VALUE,
            f"dma_compute: scales must all be 1.0, got {scales!r}",
            allowed="1.0 for each source",
            hint="scale in SBUF with nisa.tensor_scalar",
        )


def _compute(form: Form) -> Run:
    dst = position(form, "dst")
    sources = [i for i, o in enumerate(form.operands) if o.role.startswith("srcs.")]
    dtype = form["dst"].dtype

    def run(_: State, views: Sequence[Array]) -> None:
        out = views[dst]
        total: Any = np.zeros(out.shape, dtype=np.float32)
        for i in sources:
            total = total + to_float32(views[i]).reshape(out.shape)
        store(out, total, dtype)

    return run


DMA_COMPUTE = OpSpec(
    name="dma_compute",
    params=COMPUTE_PARAMS,
    engines=ISSUERS,
    summary="Add tensors while copying.",
    semantics="dst = Σ srcs",
    rules=("1 to 16 sources of equal element counts, not scaled", "HBM or SBUF"),
    example="nisa.dma_compute(dst=y, srcs=[a, b], reduce_op=nl.add)",
    source=page("dma_compute"),
    check=_check_compute,
    compile=_compute,
    cost=_dma_cost,
    is_dma=True,
)

SPECS: tuple[OpSpec, ...] = (DMA_COPY, DMA_TRANSPOSE, DMA_COMPUTE)
"""Rows of the DMA engines."""
