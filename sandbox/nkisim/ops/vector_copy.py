"""Vector Engine instructions that move data: copies, constants, shuffles.

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
from nkisim.ops import codes, costs, rules
from nkisim.ops.operands import DST, ENGINE, NAME, OLD_DTYPE, flat, page, position, read
from nkisim.ops.registry import Cost, OpSpec, Param, ParamKind, Run, State

K = ParamKind
QUADRANT = 32
"""Partitions that nc_stream_shuffle treats alike."""
KEEP = 255
"""Mask entry that leaves a partition of dst as it is."""

# -- tensor_copy --------------------------------------------------------------------------------

COPY_PARAMS = (DST, Param(name="src", kind=K.TENSOR), ENGINE, NAME, OLD_DTYPE)


def _check_tensor_copy(form: Form, machine: Machine) -> None:
    rules.check_elementwise(form, machine, COPY_PARAMS, "dst", "src", packed=("dst", "src"))
    if "packed" in (form["dst"].dtype.kind, form["src"].dtype.kind):
        rules.check_same_dtype(form, "dst", "src")
    if form.engine is Engine.SCALAR and machine.generation < 3:
        raise rules.refuse_engine(
            form,
            f"{machine.core} has no copy there",
            "vector, gpsimd",
            "use engine=nisa.engine.vector, or nisa.activation(op=nl.copy)",
        )


def _copy(form: Form) -> Run:
    dst, src = position(form, "dst"), position(form, "src")
    dtype, shape = form["dst"].dtype, form["dst"].shape
    # The Scalar Engine copies through float32; the others move bits.
    moves_bits = form.engine is not Engine.SCALAR or not dtype.is_integer
    if dtype == form["src"].dtype and moves_bits:
        if shape == form["src"].shape:

            def run_same(_: State, views: Sequence[Array]) -> None:
                views[dst][...] = views[src]

            return run_same

        def run_reshaped(_: State, views: Sequence[Array]) -> None:
            views[dst][...] = views[src].reshape(shape)

        return run_reshaped

    def run(_: State, views: Sequence[Array]) -> None:
        store(views[dst], to_float32(views[src]), dtype)

    return run


def _cost_copy(form: Form, machine: Machine) -> Cost:
    work = costs.one_input_work(machine, form["src"], form["dst"])
    return costs.on_engine(form, machine, work)


TENSOR_COPY = OpSpec(
    name="tensor_copy",
    params=COPY_PARAMS,
    engines=(Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD),
    summary="Copy a tile on chip, casting to dst's dtype.",
    semantics="dst = src",
    rules=(
        "same partitions and elements per partition",
        "GpSimd reaches SBUF only; the Scalar Engine copies from NeuronCore-v3 on",
        "the way to evict PSUM",
    ),
    example="nisa.tensor_copy(dst=sbuf_tile, src=psum_tile)",
    source=page("tensor_copy"),
    check=_check_tensor_copy,
    compile=_copy,
    cost=_cost_copy,
)

# -- copies at a run-time offset --------------------------------------------------------------


def _check_dynamic(form: Form, machine: Machine) -> None:
    _check_tensor_copy(form, machine)
    role = "dst" if form.op.endswith("dst") else "src"
    index = form[role].index
    if index is None:
        raise KernelError(
            codes.VALUE,
            f"{form.op}: {role} has no run-time index",
            got=str(form[role]),
            allowed=f"{role} indexed by a one-element tile or a register",
            hint="use nisa.tensor_copy for a fixed place",
        )


def _dynamic_copy(name: str, side: str) -> OpSpec:
    return OpSpec(
        name=name,
        params=COPY_PARAMS,
        engines=TENSOR_COPY.engines,
        summary=f"tensor_copy whose {side} lies at a place known at run time; gone since NKI 0.4.",
        semantics="dst = src",
        rules=(f"{side} has a run-time index", "otherwise as tensor_copy"),
        example=f"nisa.{name}(dst={'room[:, nl.ds(r, 64)]' if side == 'dst' else 'part'}, "
        f"src={'room[:, nl.ds(r, 64)]' if side == 'src' else 'part'})",
        source=page(name),
        check=_check_dynamic,
        compile=_copy,
        cost=_cost_copy,
        until="0.4",
    )


TENSOR_COPY_DYNAMIC_SRC = _dynamic_copy("tensor_copy_dynamic_src", "src")
TENSOR_COPY_DYNAMIC_DST = _dynamic_copy("tensor_copy_dynamic_dst", "dst")

# -- memset -------------------------------------------------------------------------------------

MEMSET_PARAMS = (DST, Param(name="value", kind=K.NUMBER), ENGINE, NAME)


def _check_memset(form: Form, machine: Machine) -> None:
    rules.check_memories(form, MEMSET_PARAMS)
    rules.check_partitions(form, machine)
    rules.check_rank(form, machine)
    rules.check_gpsimd_sbuf(form)
    dtype, value = form["dst"].dtype, form.attr("value")
    assert isinstance(value, (int, float))
    if dtype.kind == "packed" and value != 0:
        raise KernelError(
            codes.VALUE,
            f"memset: {dtype} takes the value 0 only, got {value!r}",
            got=str(form["dst"]),
            hint="memset a view as nl.uint8",
        )
    if dtype.is_integer and not float(value).is_integer():
        raise KernelError(
            codes.VALUE,
            f"memset: value {value!r} is not an integer, dst is {dtype}",
            got=str(form["dst"]),
            hint="pass an integer, or allocate dst as a float dtype",
        )


def _memset(form: Form) -> Run:
    value: Any = form.attr("value")
    dtype = form["dst"].dtype
    constant = np.zeros((), dtype=dtype.storage)
    if dtype.kind != "packed":
        store(constant, np.asarray(value, dtype=np.float64), dtype)

    def run(_: State, views: Sequence[Array]) -> None:
        views[0][...] = constant

    return run


def _cost_memset(form: Form, machine: Machine) -> Cost:
    dst = form["dst"]
    half = dst.dtype.is_float and dst.dtype.itemsize == 2 and form.attr("value") == 0
    return costs.on_engine(form, machine, dst.free_size / (2 if half else 1))


MEMSET = OpSpec(
    name="memset",
    params=MEMSET_PARAMS,
    engines=(Engine.VECTOR, Engine.GPSIMD),
    summary="Set every element to a constant.",
    semantics="dst[...] = value",
    rules=(
        "dst in SBUF or PSUM (GpSimd: SBUF only)",
        "value is a number known at trace time, an integer for an integer dst",
    ),
    example="nisa.memset(dst=tile, value=0.0)",
    source=page("memset"),
    check=_check_memset,
    compile=_memset,
    cost=_cost_memset,
)

# -- tensor_copy_predicated ---------------------------------------------------------------------

PREDICATED_PARAMS = (
    Param(name="dst", kind=K.TENSOR, access="rw"),
    Param(name="src", kind=K.TENSOR_OR_SCALAR),
    Param(name="predicate", kind=K.TENSOR),
    Param(name="reverse_pred", kind=K.BOOL, default=False),
    NAME,
    OLD_DTYPE,
)


def _check_predicated(form: Form, machine: Machine) -> None:
    rules.check_elementwise(form, machine, PREDICATED_PARAMS, "dst", "src", "predicate")
    rules.check_not_both_psum(form, "src", "predicate")
    rules.check_same_dtype(form, "dst", "src")
    predicate = form["predicate"]
    if predicate.dtype.kind not in ("uint", "bool"):
        raise rules.refuse_dtype(
            form, predicate, "uint8, uint16 or uint32", "write the predicate as nl.uint8"
        )


def _predicated(form: Form) -> Run:
    dst, predicate = position(form, "dst"), position(form, "predicate")
    src, dtype, shape = form.position("src"), form["dst"].dtype, form["dst"].shape
    is_reversed = bool(form.attr("reverse_pred"))
    constant = np.zeros((), dtype=dtype.storage)
    if src is None:
        store(constant, np.asarray(form.attr("src"), dtype=np.float32), dtype)

    def run(_: State, views: Sequence[Array]) -> None:
        flags = views[predicate].reshape(shape)
        mask = flags == 0 if is_reversed else flags != 0
        fresh = constant if src is None else views[src].reshape(shape)
        np.copyto(views[dst], fresh, where=mask)

    return run


def _cost_predicated(form: Form, machine: Machine) -> Cost:
    src, predicate = form.get("src"), form["predicate"]
    mixed = src is None or src.memory is not predicate.memory
    n = float(form["dst"].free_size) * costs.port_factor(form.operands, machine)
    return costs.vector_cost(form, machine, n if mixed else 2 * n)


TENSOR_COPY_PREDICATED = OpSpec(
    name="tensor_copy_predicated",
    params=PREDICATED_PARAMS,
    engines=(Engine.VECTOR,),
    summary="Copy where a predicate holds; elsewhere dst keeps its value.",
    semantics="dst = where(predicate != 0, src, dst); reverse_pred: where(predicate == 0, …)",
    rules=(
        "predicate is uint8, uint16 or uint32; src is a number or has dst's dtype",
        "src and predicate not both in PSUM",
    ),
    example="nisa.tensor_copy_predicated(dst=out, src=x, predicate=flags_u8)",
    source=page("tensor_copy_predicated"),
    check=_check_predicated,
    compile=_predicated,
    cost=_cost_predicated,
)

# -- nc_stream_shuffle --------------------------------------------------------------------------

SHUFFLE_PARAMS = (
    Param(name="dst", kind=K.TENSOR, access="w"),
    Param(name="src", kind=K.TENSOR),
    Param(name="shuffle_mask", kind=K.INTEGERS),
    NAME,
    OLD_DTYPE,
)


def _check_shuffle(form: Form, machine: Machine) -> None:
    rules.check_operands(form, machine, SHUFFLE_PARAMS)
    rules.check_same_free(form, "dst", "src")
    rules.check_same_dtype(form, "dst", "src")
    mask = form.attr("shuffle_mask")
    allowed = f"{QUADRANT} numbers 0…{QUADRANT - 1}, or {KEEP} to keep dst"
    if not isinstance(mask, tuple) or len(mask) != QUADRANT:
        raise KernelError(
            codes.BAD_LIST,
            f"nc_stream_shuffle: shuffle_mask must list {QUADRANT} partitions",
            got=repr(mask)[:80],
            allowed=allowed,
            hint="the same mask serves every group of 32 partitions",
        )
    for entry in mask:
        if not isinstance(entry, int) or not (0 <= entry < QUADRANT or entry == KEEP):
            raise KernelError(
                codes.BAD_LIST,
                f"nc_stream_shuffle: mask entry {entry!r} is not a partition of a group of 32",
                got=repr(mask)[:120],
                allowed=allowed,
            )
    _, source = _rows(form)
    if source.size and int(source.max()) >= form["src"].partitions:
        raise KernelError(
            codes.PARTITIONS_DIFFER,
            f"nc_stream_shuffle: the mask reads partition {int(source.max())}, src has "
            f"{form['src'].partitions}",
            got=f"{form['dst']}; {form['src']}",
            hint="slice src to all partitions that the mask names",
        )


def _rows(form: Form) -> tuple[Any, Any]:
    """Return which rows of dst are written, and from which rows of src."""
    mask = np.array(form.attr("shuffle_mask"), dtype=np.int64)
    rows = np.arange(form["dst"].partitions)
    entry = mask[rows % QUADRANT]
    moved = entry != KEEP
    # One group of src serves every group of dst if src has a single one.
    base = rows - rows % QUADRANT if form["src"].partitions > QUADRANT else np.zeros_like(rows)
    return rows[moved], (base + entry)[moved]


def _shuffle(form: Form) -> Run:
    dst, src = position(form, "dst"), position(form, "src")
    rows, source = _rows(form)
    free = form["dst"].shape[1:]
    moves_all = len(rows) == form["dst"].partitions

    def run(_: State, views: Sequence[Array]) -> None:
        values = flat(views[src])[source].reshape(len(source), *free)  # a copy: dst may be src
        if moves_all:
            views[dst][...] = values
        else:
            views[dst][rows] = values

    return run


NC_STREAM_SHUFFLE = OpSpec(
    name="nc_stream_shuffle",
    params=SHUFFLE_PARAMS,
    engines=(Engine.VECTOR,),
    summary="Move data between the partitions of each group of 32.",
    semantics="dst[32·q + i] = src[32·q + mask[i]]; mask 255 keeps dst",
    rules=(
        "mask has 32 entries, the same for every group",
        "same dtype and elements per partition; 32 rows of src serve every group of dst",
    ),
    example="nisa.nc_stream_shuffle(dst=tile, src=tile, shuffle_mask=[0] * 32)",
    source=page("nc_stream_shuffle"),
    check=_check_shuffle,
    compile=_shuffle,
    cost=lambda form, machine: costs.vector_cost(form, machine, form["dst"].free_size),
)

# -- reciprocal ---------------------------------------------------------------------------------

RECIPROCAL_PARAMS = (DST, Param(name="data", kind=K.TENSOR), NAME, OLD_DTYPE)


def _check_reciprocal(form: Form, machine: Machine) -> None:
    rules.check_elementwise(form, machine, RECIPROCAL_PARAMS, "dst", "data")


def _reciprocal(form: Form) -> Run:
    dst, dtype = position(form, "dst"), form["dst"].dtype
    data = read(form, "data", form["dst"].shape)
    if dtype.name == "float32":

        def run_fast(_: State, views: Sequence[Array]) -> None:
            np.reciprocal(data(views), out=views[dst])

        return run_fast

    def run(_: State, views: Sequence[Array]) -> None:
        store(views[dst], np.reciprocal(data(views)), dtype)

    return run


RECIPROCAL = OpSpec(
    name="reciprocal",
    params=RECIPROCAL_PARAMS,
    engines=(Engine.VECTOR,),
    summary="Elementwise 1/x.",
    semantics="dst = 1 / data",
    rules=("several cycles per element: use it on (P, 1) columns",),
    example="nisa.reciprocal(dst=inverse, data=total)",
    source=page("reciprocal"),
    check=_check_reciprocal,
    compile=_reciprocal,
    cost=lambda form, machine: costs.vector_cost(
        form, machine, machine.dve.reciprocal_cycles_per_element * form["dst"].free_size
    ),
)

SPECS: tuple[OpSpec, ...] = (
    TENSOR_COPY,
    TENSOR_COPY_DYNAMIC_SRC,
    TENSOR_COPY_DYNAMIC_DST,
    MEMSET,
    TENSOR_COPY_PREDICATED,
    NC_STREAM_SHUFFLE,
    RECIPROCAL,
)
