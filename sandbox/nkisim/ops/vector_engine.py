"""Instructions of the Vector Engine (DVE), some of which GpSimd or the Scalar Engine run too.

Source: NKI ISA reference 0.6 (one page for each instruction named below).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nkisim.dtypes import Array, store, to_float32
from nkisim.errors import KernelError, UnsupportedError
from nkisim.ir.access import Memory
from nkisim.ir.program import Form
from nkisim.machine.spec import Engine, Machine
from nkisim.ops import alu, costs, rules
from nkisim.ops.registry import (
    ON_CHIP,
    SBUF_ONLY,
    Cost,
    OpSpec,
    Param,
    ParamKind,
    Run,
    State,
)

K = ParamKind
DST = Param(name="dst", kind=K.TENSOR, access="w")
NAME = Param(name="name", kind=K.LABEL, default=None)
OLD_DTYPE = Param(name="dtype", kind=K.LABEL, default=None, until="0.3")
ENGINE = Param(name="engine", kind=K.ENGINE, default=None)
ALL_BINARY = (*alu.ARITHMETIC, *alu.BITVEC)
REDUCE_CMDS = ("idle", "reset", "reduce", "reset_reduce", "load_reduce")


def page(name: str) -> str:
    """Return the citation of an instruction's page."""
    return f"NKI ISA reference, nki.isa.{name}"


def flat(view: Array) -> Array:
    """Return a view as [P, N] (a copy if its free dimensions are not adjacent)."""
    return view.reshape(view.shape[0], -1)


def position(form: Form, role: str) -> int:
    """Return where operand `role` is, which must be there."""
    found = form.position(role)
    if found is None:
        raise KeyError(role)
    return found


def number(value: object) -> np.float32:
    """Return an immediate as the engine holds it."""
    return np.float32(value)  # type: ignore[arg-type]


# -- copies -------------------------------------------------------------------------------------


def _check_tensor_copy(form: Form, machine: Machine) -> None:
    rules.check_memories(form, {"dst": ON_CHIP, "src": ON_CHIP})
    rules.elementwise(form, machine, "dst", "src")
    if form.engine is Engine.SCALAR and machine.generation < 3:
        raise KernelError(
            "NKS109",
            f"tensor_copy cannot run on the Scalar Engine of {machine.core}",
            hint="use engine=nki.isa.engine.vector, or nisa.activation(op=nl.copy)",
        )


def _copy(form: Form) -> Run:
    dst, src = position(form, "dst"), position(form, "src")
    out = form["dst"].dtype
    same = form["dst"].dtype == form["src"].dtype
    same_shape = form["dst"].shape == form["src"].shape

    def run(_: State, views: Sequence[Array]) -> None:
        if same:
            values = views[src]
            views[dst][...] = values if same_shape else values.reshape(views[dst].shape)
        else:
            store(views[dst], to_float32(views[src]), out)

    return run


def _cost_copy(form: Form, machine: Machine) -> Cost:
    work = costs.one_input_work(form, machine, form["src"], form["dst"])
    return costs.on_engine(form, machine, work)


def _choose_copy(form: Form, machine: Machine) -> Engine:
    return Engine.VECTOR


TENSOR_COPY = OpSpec(
    name="tensor_copy",
    params=(
        DST,
        Param(name="src", kind=K.TENSOR),
        ENGINE,
        NAME,
        OLD_DTYPE,
    ),
    engines=(Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD),
    summary="Copy a tile on chip, casting to dst's dtype.",
    semantics="dst = src",
    rules=(
        "same partitions and elements per partition",
        "GpSimd reaches SBUF only",
        "the way to evict PSUM",
    ),
    example="nisa.tensor_copy(dst=sbuf_tile, src=psum_tile)",
    source=page("tensor_copy"),
    check=_check_tensor_copy,
    compile=_copy,
    cost=_cost_copy,
    choose_engine=_choose_copy,
)


def _check_memset(form: Form, machine: Machine) -> None:
    rules.check_memories(form, {"dst": ON_CHIP})
    rules.check_partitions(form, machine, form.operands)
    rules.check_rank(form, machine)
    rules.check_gpsimd_sbuf(form)
    value = form.attr("value")
    if form["dst"].dtype.is_integer and isinstance(value, float) and value != int(value):
        raise KernelError(
            "NKS305",
            f"memset: value {value!r} is not an integer, dst is {form['dst'].dtype}",
            hint="pass an integer, or allocate dst as a float dtype",
        )


def _memset(form: Form) -> Run:
    value: Any = form.attr("value")
    dtype = form["dst"].dtype
    constant = np.zeros((), dtype=dtype.storage)
    store(constant, np.asarray(value, dtype=np.float64), dtype)

    def run(_: State, views: Sequence[Array]) -> None:
        views[0][...] = constant

    return run


def _cost_memset(form: Form, machine: Machine) -> Cost:
    dst = form["dst"]
    half = costs.is_16bit(dst) and form.attr("value") == 0
    return costs.on_engine(form, machine, dst.free_size / (2 if half else 1))


MEMSET = OpSpec(
    name="memset",
    params=(DST, Param(name="value", kind=K.NUMBER), ENGINE, NAME),
    engines=(Engine.VECTOR, Engine.GPSIMD),
    summary="Set every element to a constant.",
    semantics="dst[...] = value",
    rules=("dst in SBUF or PSUM (GpSimd: SBUF only)", "value is a number known at trace time"),
    example="nisa.memset(dst=tile, value=0.0)",
    source=page("memset"),
    check=_check_memset,
    compile=_memset,
    cost=_cost_memset,
)


def _check_predicated(form: Form, machine: Machine) -> None:
    rules.check_memories(form, {"dst": ON_CHIP, "src": ON_CHIP, "predicate": ON_CHIP})
    rules.elementwise(form, machine, "dst", "src", "predicate")
    rules.check_not_both_psum(form, "src", "predicate")
    predicate = form["predicate"]
    if predicate.dtype.kind not in ("uint", "bool"):
        raise rules.refuse_dtype(
            form, predicate, "uint8, uint16 or uint32", "write the predicate as nl.uint8"
        )


def _predicated(form: Form) -> Run:
    dst, predicate = position(form, "dst"), position(form, "predicate")
    src = form.position("src")
    value: Any = form.attr("src")
    is_reversed = bool(form.attr("reverse_pred"))
    dtype = form["dst"].dtype

    def run(_: State, views: Sequence[Array]) -> None:
        out = views[dst]
        mask = (views[predicate] != 0).reshape(out.shape)
        if is_reversed:
            mask = ~mask
        if src is None:
            fresh = np.empty(out.shape, dtype=out.dtype)
            store(fresh, np.full(out.shape, value, dtype=np.float32), dtype)
        else:
            fresh = np.empty(out.shape, dtype=out.dtype)
            store(fresh, views[src].reshape(out.shape), dtype)
        np.copyto(out, fresh, where=mask)

    return run


TENSOR_COPY_PREDICATED = OpSpec(
    name="tensor_copy_predicated",
    params=(
        Param(name="dst", kind=K.TENSOR, access="rw"),
        Param(name="src", kind=K.TENSOR_OR_SCALAR),
        Param(name="predicate", kind=K.TENSOR),
        Param(name="reverse_pred", kind=K.BOOL, default=False),
        NAME,
    ),
    engines=(Engine.VECTOR,),
    summary="Copy where a predicate holds; elsewhere dst keeps its value.",
    semantics="dst = where(predicate != 0, src, dst)",
    rules=("predicate is uint8, uint16 or uint32", "src and predicate not both in PSUM"),
    example="nisa.tensor_copy_predicated(dst=out, src=x, predicate=flags_u8)",
    source=page("tensor_copy_predicated"),
    check=_check_predicated,
    compile=_predicated,
    cost=lambda form, machine: costs.vector_cost(machine, 2.0 * form["dst"].free_size),
)


# -- elementwise --------------------------------------------------------------------------------


def _check_classes(form: Form, *names: str) -> None:
    """Refuse bitvec ops on floats and a mix of bitvec and arithmetic ops."""
    ops = [str(form.attr(name)) for name in names if form.attr(name) is not None]
    bitvec = [op for op in ops if op in alu.BITVEC]
    if not bitvec:
        return
    if len(bitvec) != len([op for op in ops if op != "bypass"]):
        raise KernelError(
            "NKS304",
            f"{form.op}: ops {', '.join(ops)} mix bitvec and arithmetic",
            hint="use two instructions",
        )
    for operand in rules.tensor_operands(form):
        if not operand.dtype.is_integer:
            raise rules.refuse_dtype(
                form, operand, "integers for bitvec ops", f"view it: {operand.role}.view(nl.int32)"
            )


def _check_tensor_tensor(form: Form, machine: Machine) -> None:
    rules.check_memories(form, {"dst": ON_CHIP, "data1": ON_CHIP, "data2": ON_CHIP})
    rules.elementwise(form, machine, "dst", "data1", "data2")
    rules.check_not_both_psum(form, "data1", "data2")
    _check_classes(form, "op")
    if form.attr("op") == "divide":
        raise KernelError(
            "NKS304",
            "tensor_tensor: divide is not an ALU op of the hardware",
            hint="nisa.reciprocal the divisor, then multiply",
        )


def _is_exact_integer(form: Form) -> bool:
    return form.engine is Engine.GPSIMD and all(
        o.dtype.name in ("int32", "uint32") for o in rules.tensor_operands(form)
    )


def _tensor_tensor(form: Form) -> Run:
    dst, a, b = position(form, "dst"), position(form, "data1"), position(form, "data2")
    name = str(form.attr("op"))
    dtype = form["dst"].dtype
    shape = form["dst"].shape
    same_shapes = form["data1"].shape == shape == form["data2"].shape
    if name in alu.BITVEC:
        return _bitvec(form, name, dst, a, b)
    function = alu.ARITHMETIC[name]
    if _is_exact_integer(form) and name in ("add", "subtract", "multiply"):

        def run_integer(_: State, views: Sequence[Array]) -> None:
            x = views[a].astype(np.int64).reshape(shape)
            y = views[b].astype(np.int64).reshape(shape)
            views[dst][...] = function(x, y).astype(views[dst].dtype)

        return run_integer
    fp32 = all(o.dtype.name == "float32" for o in rules.tensor_operands(form))
    if fp32 and same_shapes:

        def run_fast(_: State, views: Sequence[Array]) -> None:
            function(views[a], views[b], out=views[dst])

        return run_fast

    def run(_: State, views: Sequence[Array]) -> None:
        x, y = to_float32(views[a]), to_float32(views[b])
        if not same_shapes:
            x, y = x.reshape(shape), y.reshape(shape)
        store(views[dst], function(x, y), dtype)

    return run


def _bitvec(form: Form, name: str, dst: int, a: int, b: int | None) -> Run:
    function = alu.BITVEC[name]
    shape = form["dst"].shape

    def run(_: State, views: Sequence[Array]) -> None:
        out = views[dst]
        unsigned = np.dtype(f"u{views[a].dtype.itemsize}")
        x = views[a].reshape(shape).view(unsigned) if views[a].dtype != bool else views[a]
        y = None if b is None else views[b].reshape(shape).astype(unsigned)
        result = function(x) if y is None else function(x, y)
        out[...] = result.astype(np.dtype(f"u{out.dtype.itemsize}")).view(out.dtype)

    return run


def _choose_tensor_tensor(form: Form, machine: Machine) -> Engine:
    if form.attr("op") == "power":
        return Engine.GPSIMD
    operands = rules.tensor_operands(form)
    exact = all(o.dtype.name in ("int32", "uint32") for o in operands)
    if exact and form.attr("op") not in alu.BITVEC:
        if all(o.memory is Memory.SBUF for o in operands):
            return Engine.GPSIMD
    return Engine.VECTOR


def _cost_tensor_tensor(form: Form, machine: Machine) -> Cost:
    work = costs.two_input_work(form, machine, form["data1"], form["data2"], form["dst"])
    return costs.on_engine(form, machine, work)


TENSOR_TENSOR = OpSpec(
    name="tensor_tensor",
    params=(
        DST,
        Param(name="data1", kind=K.TENSOR),
        Param(name="data2", kind=K.TENSOR),
        Param(name="op", kind=K.OP, choices=ALL_BINARY),
        ENGINE,
        NAME,
        OLD_DTYPE,
    ),
    engines=(Engine.VECTOR, Engine.GPSIMD),
    summary="Elementwise op of two tiles.",
    semantics="dst = op(data1, data2)",
    rules=(
        "no broadcasting: equal partitions and elements per partition",
        "data1 and data2 not both in PSUM; GpSimd reaches SBUF only",
        "arithmetic in float32, one rounding to dst; bitvec ops on integers only",
    ),
    example="nisa.tensor_tensor(dst=out, data1=a, data2=b, op=nl.add)",
    source=page("tensor_tensor"),
    check=_check_tensor_tensor,
    compile=_tensor_tensor,
    cost=_cost_tensor_tensor,
    choose_engine=_choose_tensor_tensor,
)


def _check_tensor_scalar(form: Form, machine: Machine) -> None:
    rules.check_memories(
        form, {"dst": ON_CHIP, "data": ON_CHIP, "operand0": ON_CHIP, "operand1": ON_CHIP}
    )
    rules.elementwise(form, machine, "dst", "data")
    _check_classes(form, "op0", "op1")
    is_bitvec = form.attr("op0") in alu.BITVEC
    rules.check_column(form, "operand0", "operand1", dtype=None if is_bitvec else "float32")
    if "divide" in (form.attr("op0"), form.attr("op1")):
        raise KernelError(
            "NKS304",
            "tensor_scalar: divide is not an ALU op of the hardware",
            hint="multiply by the reciprocal",
        )
    op0 = str(form.attr("op0"))
    has0 = form.get("operand0") is not None or form.attr("operand0") is not None
    if not has0 and op0 not in alu.UNARY_ALU and op0 != "invert":
        raise KernelError("NKS602", f"tensor_scalar: op0={op0} needs operand0")
    has1 = form.get("operand1") is not None or form.attr("operand1") is not None
    if (form.attr("op1") is None) == has1 and form.attr("op1") not in alu.UNARY_ALU:
        raise KernelError("NKS602", "tensor_scalar: op1 and operand1 come together")


def _scalar_operand(form: Form, name: str) -> tuple[int | None, np.float32]:
    """Return (view position, immediate) of a tensor-or-scalar operand."""
    where = form.position(name)
    value = form.attr(name, 0.0)
    return where, number(value if value is not None else 0.0)


def _column(view: Array) -> Array:
    """Return a (P, 1) float32 column for broadcasting over [P, N]."""
    return to_float32(view).reshape(view.shape[0], 1)


def _tensor_scalar(form: Form) -> Run:
    dst, data = position(form, "dst"), position(form, "data")
    op0, op1 = str(form.attr("op0")), form.attr("op1")
    dtype = form["dst"].dtype
    if op0 in alu.BITVEC:
        return _tensor_scalar_bitvec(form, dst, data)
    first = _stage(form, op0, "operand0", bool(form.attr("reverse0")))
    second = None
    if op1 is not None and op1 != "bypass":
        second = _stage(form, str(op1), "operand1", bool(form.attr("reverse1")))

    def run(_: State, views: Sequence[Array]) -> None:
        values = first(to_float32(flat(views[data])), views)
        if second is not None:
            values = second(values, views)
        store(views[dst], values, dtype)

    return run


def _stage(form: Form, name: str, operand: str, is_reversed: bool) -> Any:
    where, value = _scalar_operand(form, operand)
    if name in alu.UNARY_ALU:
        unary = alu.unary_alu(name)
        return lambda x, views: unary(x)
    function = alu.ARITHMETIC[name]
    if where is None:
        if is_reversed:
            return lambda x, views: function(value, x)
        return lambda x, views: function(x, value)
    if is_reversed:
        return lambda x, views: function(_column(views[where]), x)
    return lambda x, views: function(x, _column(views[where]))


def _tensor_scalar_bitvec(form: Form, dst: int, data: int) -> Run:
    steps: list[tuple[str, int | None, int]] = []
    for op, operand in (("op0", "operand0"), ("op1", "operand1")):
        name = form.attr(op)
        if name is not None and name != "bypass":
            where, value = form.position(operand), form.attr(operand) or 0
            steps.append((str(name), where, int(value)))  # type: ignore[arg-type]

    def run(_: State, views: Sequence[Array]) -> None:
        out = views[dst]
        x: Any = np.ascontiguousarray(flat(views[data]))
        unsigned = np.dtype(f"u{x.dtype.itemsize}")
        x = x.view(unsigned)
        for name, where, value in steps:
            function = alu.BITVEC[name]
            if name == "invert":
                x = function(x)
            elif where is None:
                x = function(x, np.asarray(value & ((1 << (8 * unsigned.itemsize)) - 1), unsigned))
            else:
                x = function(x, flat(views[where]).astype(unsigned))
        out[...] = (
            x.astype(np.dtype(f"u{out.dtype.itemsize}")).view(out.dtype).reshape(out.shape)
        )

    return run


def _choose_tensor_scalar(form: Form, machine: Machine) -> Engine:
    return Engine.VECTOR


TENSOR_SCALAR = OpSpec(
    name="tensor_scalar",
    params=(
        DST,
        Param(name="data", kind=K.TENSOR),
        Param(name="op0", kind=K.OP, choices=(*ALL_BINARY, *alu.UNARY_ALU)),
        Param(name="operand0", kind=K.TENSOR_OR_SCALAR, default=None),
        Param(name="reverse0", kind=K.BOOL, default=False),
        Param(name="op1", kind=K.OP, default=None, choices=(*ALL_BINARY, *alu.UNARY_ALU)),
        Param(name="operand1", kind=K.TENSOR_OR_SCALAR, default=None),
        Param(name="reverse1", kind=K.BOOL, default=False),
        ENGINE,
        NAME,
        OLD_DTYPE,
    ),
    engines=(Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD),
    summary="One or two ops with a number or a per-partition column.",
    semantics="t = op0(data, operand0); dst = op1(t, operand1); reverse0/1 swap the operands",
    rules=(
        "operands are numbers or float32 tiles (P, 1), broadcast along the free axis",
        "op1 and operand1 come together",
        "bitvec and arithmetic ops cannot be mixed",
    ),
    example="nisa.tensor_scalar(dst=y, data=x, op0=nl.multiply, operand0=scale, op1=nl.add, "
    "operand1=1e-6)",
    source=page("tensor_scalar"),
    check=_check_tensor_scalar,
    compile=_tensor_scalar,
    cost=lambda form, machine: costs.on_engine(
        form, machine, costs.one_input_work(form, machine, form["data"], form["dst"])
    ),
    choose_engine=_choose_tensor_scalar,
)


def _check_scalar_tensor_tensor(form: Form, machine: Machine) -> None:
    rules.check_memories(
        form, {"dst": ON_CHIP, "data": ON_CHIP, "operand0": ON_CHIP, "operand1": ON_CHIP}
    )
    rules.elementwise(form, machine, "dst", "data", "operand1")
    rules.check_column(form, "operand0")
    rules.check_not_both_psum(form, "data", "operand1")


def _scalar_tensor_tensor(form: Form) -> Run:
    dst, data, other = (position(form, r) for r in ("dst", "data", "operand1"))
    first = _stage(form, str(form.attr("op0")), "operand0", bool(form.attr("reverse0")))
    function = alu.ARITHMETIC[str(form.attr("op1"))]
    is_reversed = bool(form.attr("reverse1"))
    dtype = form["dst"].dtype

    def run(_: State, views: Sequence[Array]) -> None:
        x = first(to_float32(flat(views[data])), views)
        y = to_float32(flat(views[other]))
        store(views[dst], function(y, x) if is_reversed else function(x, y), dtype)

    return run


SCALAR_TENSOR_TENSOR = OpSpec(
    name="scalar_tensor_tensor",
    params=(
        DST,
        Param(name="data", kind=K.TENSOR),
        Param(name="op0", kind=K.OP, choices=tuple(alu.ARITHMETIC)),
        Param(name="operand0", kind=K.TENSOR_OR_SCALAR),
        Param(name="op1", kind=K.OP, choices=tuple(alu.ARITHMETIC)),
        Param(name="operand1", kind=K.TENSOR),
        Param(name="reverse0", kind=K.BOOL, default=False),
        Param(name="reverse1", kind=K.BOOL, default=False),
        NAME,
        OLD_DTYPE,
    ),
    engines=(Engine.VECTOR,),
    summary="Op with a number or column, then op with a tile, in one pass.",
    semantics="dst = op1(op0(data, operand0), operand1)",
    rules=(
        "operand0 is a number or a float32 tile (P, 1); operand1 has data's size",
        "data and operand1 not both in PSUM",
    ),
    example="nisa.scalar_tensor_tensor(dst=y, data=x, op0=nl.multiply, operand0=rstd, "
    "op1=nl.multiply, operand1=w)",
    source=page("scalar_tensor_tensor"),
    check=_check_scalar_tensor_tensor,
    compile=_scalar_tensor_tensor,
    cost=lambda form, machine: costs.vector_cost(
        machine,
        costs.two_input_work(form, machine, form["data"], form["operand1"], form["dst"]),
    ),
)


def _check_reciprocal(form: Form, machine: Machine) -> None:
    rules.check_memories(form, {"dst": ON_CHIP, "data": ON_CHIP})
    rules.elementwise(form, machine, "dst", "data")


def _reciprocal(form: Form) -> Run:
    dst, data = position(form, "dst"), position(form, "data")
    dtype = form["dst"].dtype

    def run(_: State, views: Sequence[Array]) -> None:
        store(views[dst], np.reciprocal(to_float32(views[data])), dtype)

    return run


RECIPROCAL = OpSpec(
    name="reciprocal",
    params=(DST, Param(name="data", kind=K.TENSOR), NAME, OLD_DTYPE),
    engines=(Engine.VECTOR,),
    summary="Elementwise 1/x.",
    semantics="dst = 1 / data",
    rules=("several cycles per element: use it on (P, 1) columns",),
    example="nisa.reciprocal(dst=inverse, data=total)",
    source=page("reciprocal"),
    check=_check_reciprocal,
    compile=_reciprocal,
    cost=lambda form, machine: costs.vector_cost(
        machine, machine.dve.reciprocal_cycles_per_element * form["dst"].free_size
    ),
)


# -- reductions ---------------------------------------------------------------------------------


def _axes(form: Form) -> tuple[int, ...]:
    axis = form.attr("axis")
    rank = len(form["data"].shape)
    items = axis if isinstance(axis, tuple) else (axis,)
    return tuple(sorted(int(a) % rank for a in items))  # type: ignore[arg-type]


def _check_tensor_reduce(form: Form, machine: Machine) -> None:
    rules.check_memories(form, {"dst": ON_CHIP, "data": ON_CHIP})
    rules.check_packed(form)
    rules.check_partitions(form, machine, form.operands)
    rules.check_rank(form, machine)
    rules.check_same_partitions(form, "dst", "data")
    data, dst = form["data"], form["dst"]
    axes = _axes(form)
    rank = len(data.shape)
    if not axes or axes[0] == 0 or axes != tuple(range(axes[0], rank)):
        raise KernelError(
            "NKS114",
            f"tensor_reduce: axis {form.attr('axis')!r} is not a run of trailing free axes",
            got=str(data),
            allowed=f"axes k … {rank - 1} with k ≥ 1",
            hint="reduce across partitions with a matmul by ones; reorder free axes with permute",
        )
    kept = int(np.prod(data.shape[1 : axes[0]], dtype=np.int64))
    if dst.free_size != kept:
        raise KernelError(
            "NKS111",
            f"tensor_reduce: dst has {dst.free_size} elements per partition, the reduction "
            f"leaves {kept}",
            got=f"{dst}; {data}, axis {form.attr('axis')!r}",
            allowed=f"dst with {kept} elements per partition",
        )
    if form.attr("op") in alu.BITVEC and not data.dtype.is_integer:
        raise rules.refuse_dtype(form, data, "integers for bitvec ops", "view it as nl.int32")


def _tensor_reduce(form: Form) -> Run:
    dst, data = position(form, "dst"), position(form, "data")
    name = str(form.attr("op"))
    axes = _axes(form)
    shape = form["data"].shape
    merged = (*shape[: axes[0]], -1)
    negate = bool(form.attr("negate"))
    dtype = form["dst"].dtype
    if name in alu.BITVEC_REDUCTIONS:
        bit = alu.BITVEC_REDUCTIONS[name]

        def run_bits(_: State, views: Sequence[Array]) -> None:
            out = views[dst]
            out[...] = bit.reduce(views[data].reshape(merged), axis=-1).reshape(out.shape)

        return run_bits
    function = alu.REDUCTIONS[name]
    logical = name.startswith("logical")

    def run(_: State, views: Sequence[Array]) -> None:
        values = to_float32(views[data]).reshape(merged)
        result = function.reduce(values, axis=-1)
        if logical:
            result = result.astype(np.float32)
        store(views[dst], -result if negate else result, dtype)

    return run


def _cost_tensor_reduce(form: Form, machine: Machine) -> Cost:
    data, dst = form["data"], form["dst"]
    n = data.free_size * costs.port_factor([data], machine)
    if costs.is_16bit(data) and costs.is_16bit(dst) and form.attr("op") in ("add", "maximum"):
        n /= 2
    return costs.vector_cost(machine, n)


TENSOR_REDUCE = OpSpec(
    name="tensor_reduce",
    params=(
        DST,
        Param(name="op", kind=K.OP, choices=(*alu.REDUCTIONS, *alu.BITVEC_REDUCTIONS)),
        Param(name="data", kind=K.TENSOR),
        Param(name="axis", kind=K.INTEGERS),
        Param(name="negate", kind=K.BOOL, default=False),
        Param(name="keepdims", kind=K.BOOL, default=False),
        NAME,
        OLD_DTYPE,
    ),
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
)


def accumulate(
    accumulator: Any, command: str, function: np.ufunc, identity: float, values: Any, init: Any
) -> None:
    """Update accumulate registers [P] by a reduction over the free axis of `values` [P, N]."""
    p = values.shape[0]
    if command == "reset":
        accumulator[:p] = identity
        return
    if command == "idle":
        return
    reduced = function.reduce(values, axis=-1, dtype=np.float32)
    if command == "reset_reduce":
        accumulator[:p] = reduced if identity in (0.0, 1.0) else function(identity, reduced)
    elif command == "load_reduce":
        accumulator[:p] = function(init, reduced)
    else:
        accumulator[:p] = function(accumulator[:p], reduced)


def _check_tensor_scalar_reduce(form: Form, machine: Machine) -> None:
    allowed = dict.fromkeys(("dst", "data", "operand0", "reduce_res"), ON_CHIP)
    rules.check_memories(form, allowed)
    rules.elementwise(form, machine, "dst", "data")
    rules.check_column(form, "operand0")
    rules.check_column(form, "reduce_res", dtype=None)
    if form.attr("reverse0"):
        raise KernelError("NKS304", "tensor_scalar_reduce: reverse0 is not supported")


def _tensor_scalar_reduce(form: Form) -> Run:
    dst, data, res = position(form, "dst"), position(form, "data"), form.position("reduce_res")
    first = _stage(form, str(form.attr("op0")), "operand0", False)
    name = str(form.attr("reduce_op"))
    function, identity = alu.REDUCTIONS[name], alu.IDENTITY[name]
    command = str(form.attr("reduce_cmd", "reset_reduce"))
    negate = bool(form.attr("reduce_res_negate"))
    init_at, init = _scalar_operand(form, "reduce_init")
    dtype = form["dst"].dtype
    res_dtype = None if res is None else form["reduce_res"].dtype

    def run(state: State, views: Sequence[Array]) -> None:
        values = first(to_float32(flat(views[data])), views)
        start = init if init_at is None else to_float32(views[init_at]).ravel()
        accumulate(state.vector_accumulator, command, function, identity, values, start)
        store(views[dst], values, dtype)
        if res is not None and res_dtype is not None:
            total = state.vector_accumulator[: values.shape[0]]
            store(views[res], -total if negate else total, res_dtype)

    return run


TENSOR_SCALAR_REDUCE = OpSpec(
    name="tensor_scalar_reduce",
    params=(
        DST,
        Param(name="data", kind=K.TENSOR),
        Param(name="op0", kind=K.OP, choices=tuple(alu.ARITHMETIC)),
        Param(name="operand0", kind=K.TENSOR_OR_SCALAR),
        Param(
            name="reduce_op", kind=K.OP, choices=("add", "multiply", "maximum", "minimum")
        ),
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
    ),
    engines=(Engine.VECTOR,),
    summary="Op with a number or column, and the reduction of the result along the free axis.",
    semantics="dst = op0(data, operand0); reduce_res = reduce_op.reduce(dst, free axes)",
    rules=("reduce_res is (P, 1)", "operand0 is a number or a float32 tile (P, 1)"),
    example="nisa.tensor_scalar_reduce(dst=y, data=x, op0=nl.multiply, operand0=2.0, "
    "reduce_op=nl.add, reduce_res=total)",
    source=page("tensor_scalar_reduce"),
    check=_check_tensor_scalar_reduce,
    compile=_tensor_scalar_reduce,
    cost=lambda form, machine: costs.vector_cost(
        machine, form["data"].free_size, extra=machine.dve.accumulator_read_cycles
    ),
)


# -- scans --------------------------------------------------------------------------------------


def _check_scan(form: Form, machine: Machine) -> None:
    rules.check_memories(
        form, {"dst": ON_CHIP, "data0": ON_CHIP, "data1": ON_CHIP, "initial": ON_CHIP}
    )
    rules.elementwise(form, machine, "dst", "data0", "data1")
    rules.check_column(form, "initial", dtype=None)
    rules.check_not_both_psum(form, "data0", "data1")


def _scan(form: Form) -> Run:
    dst, a, b = position(form, "dst"), position(form, "data0"), position(form, "data1")
    f0 = alu.ARITHMETIC[str(form.attr("op0"))]
    f1 = alu.ARITHMETIC[str(form.attr("op1"))]
    swap0, swap1 = bool(form.attr("reverse0")), bool(form.attr("reverse1"))
    where, value = _scalar_operand(form, "initial")
    dtype = form["dst"].dtype

    def run(_: State, views: Sequence[Array]) -> None:
        # One step per column, each over all partitions at once: columns are rows here.
        x = np.ascontiguousarray(to_float32(flat(views[a])).T)
        y = np.ascontiguousarray(to_float32(flat(views[b])).T)
        state = (
            np.full(x.shape[1], value, dtype=np.float32)
            if where is None
            else to_float32(views[where]).reshape(-1).copy()
        )
        out = np.empty_like(x)
        step = np.empty_like(state)
        for i in range(x.shape[0]):
            row = out[i]
            if swap0:
                f0(state, x[i], out=step)
            else:
                f0(x[i], state, out=step)
            if swap1:
                f1(y[i], step, out=row)
            else:
                f1(step, y[i], out=row)
            state = row
        store(views[dst], np.ascontiguousarray(out.T), dtype)

    return run


TENSOR_TENSOR_SCAN = OpSpec(
    name="tensor_tensor_scan",
    params=(
        DST,
        Param(name="data0", kind=K.TENSOR),
        Param(name="data1", kind=K.TENSOR),
        Param(name="initial", kind=K.TENSOR_OR_SCALAR),
        Param(name="op0", kind=K.OP, choices=tuple(alu.ARITHMETIC)),
        Param(name="op1", kind=K.OP, choices=tuple(alu.ARITHMETIC)),
        Param(name="reverse0", kind=K.BOOL, default=False),
        Param(name="reverse1", kind=K.BOOL, default=False),
        NAME,
        OLD_DTYPE,
    ),
    engines=(Engine.VECTOR,),
    summary="First-order recurrence along the free axis, one per partition.",
    semantics="r[i] = op1(op0(data0[i], r[i-1]), data1[i]), r[-1] = initial; dst = r",
    rules=(
        "initial is a number or a tile (P, 1); carry a long axis by passing the last column",
        "data0 and data1 not both in PSUM",
    ),
    example="nisa.tensor_tensor_scan(dst=y, data0=ones, data1=x, initial=0.0, op0=nl.multiply, "
    "op1=nl.add)",
    source=page("tensor_tensor_scan"),
    check=_check_scan,
    compile=_scan,
    cost=lambda form, machine: costs.vector_cost(machine, 2.0 * form["dst"].free_size),
)


def _check_cumulative(form: Form, machine: Machine) -> None:
    rules.check_memories(
        form, {"dst": ON_CHIP, "src": ON_CHIP, "imm0": ON_CHIP, "imm1": ON_CHIP}
    )
    rules.elementwise(form, machine, "dst", "src")
    rules.check_column(form, "imm0", "imm1")


def _cumulative(form: Form) -> Run:
    dst, src = position(form, "dst"), position(form, "src")
    first = _stage(form, str(form.attr("op0")), "imm0", False)
    name = str(form.attr("op1"))
    function = alu.REDUCTIONS[name]
    command = str(form.attr("reduce_cmd", "reset_reduce"))
    init_at, init = _scalar_operand(form, "imm1")
    dtype = form["dst"].dtype
    identity = alu.IDENTITY[name]

    def run(state: State, views: Sequence[Array]) -> None:
        values = first(to_float32(flat(views[src])), views)
        p = values.shape[0]
        if command == "reduce":
            start = state.vector_accumulator[:p].copy()
        elif command == "load_reduce":
            start = np.broadcast_to(
                init if init_at is None else to_float32(views[init_at]).ravel(), (p,)
            )
        else:
            start = np.full(p, identity, dtype=np.float32)
        if name == "subtract":
            # reg = value - reg
            out = np.empty_like(values)
            running = start
            for i in range(values.shape[1]):
                running = values[:, i] - running
                out[:, i] = running
        else:
            head = function(values[:, :1], start[:, None])
            out = function.accumulate(np.concatenate([head, values[:, 1:]], axis=1), axis=1)
        state.vector_accumulator[:p] = out[:, -1]
        store(views[dst], out, dtype)

    return run


TENSOR_SCALAR_CUMULATIVE = OpSpec(
    name="tensor_scalar_cumulative",
    params=(
        DST,
        Param(name="src", kind=K.TENSOR),
        Param(name="op0", kind=K.OP, choices=tuple(alu.ARITHMETIC)),
        Param(
            name="op1",
            kind=K.OP,
            choices=("add", "subtract", "multiply", "maximum", "minimum"),
        ),
        Param(name="imm0", kind=K.TENSOR_OR_SCALAR),
        Param(name="imm1", kind=K.TENSOR_OR_SCALAR, default=None),
        Param(name="reduce_cmd", kind=K.ENUM, default="reset_reduce", choices=REDUCE_CMDS),
        NAME,
    ),
    engines=(Engine.VECTOR,),
    summary="Op with a number or column, then a running reduction along the free axis.",
    semantics="reg = op1(op0(src[i], imm0), reg); dst[i] = reg",
    rules=("imm0 and imm1 are numbers or float32 tiles (P, 1)",),
    example="nisa.tensor_scalar_cumulative(dst=y, src=x, op0=nl.multiply, op1=nl.add, imm0=1.0)",
    source=page("tensor_scalar_cumulative"),
    check=_check_cumulative,
    compile=_cumulative,
    cost=lambda form, machine: costs.vector_cost(machine, 2.0 * form["dst"].free_size),
)


# -- statistics ---------------------------------------------------------------------------------


def _check_bn_stats(form: Form, machine: Machine) -> None:
    rules.check_memories(form, {"dst": ON_CHIP, "data": ON_CHIP})
    rules.check_partitions(form, machine, form.operands)
    rules.check_same_partitions(form, "dst", "data")
    limit = machine.limits.bn_stats_free_max
    if form["data"].free_size > limit:
        raise KernelError(
            "NKS115",
            f"bn_stats: data has {form['data'].free_size} elements per partition, "
            f"more than {limit}",
            got=str(form["data"]),
            allowed=f"≤ {limit}",
            hint="split the row into chunks and combine them with nisa.bn_aggr",
        )
    _check_dst_size(form, 6)


def _check_dst_size(form: Form, size: int) -> None:
    if form["dst"].free_size != size:
        raise KernelError(
            "NKS111",
            f"{form.op}: dst must have {size} elements per partition, it has "
            f"{form['dst'].free_size}",
            got=str(form["dst"]),
            allowed=f"(P, {size})",
        )


def _bn_stats(form: Form) -> Run:
    dst, data = position(form, "dst"), position(form, "data")
    dtype = form["dst"].dtype

    def run(_: State, views: Sequence[Array]) -> None:
        values = to_float32(flat(views[data]))
        out = np.zeros((values.shape[0], 6), dtype=np.float32)
        for k in (0, 1):
            part = values[:, k::2]
            count = part.shape[1]
            if count:
                mean = part.mean(axis=1, dtype=np.float64)
                centred = part - mean[:, None]
                out[:, 3 * k] = count
                out[:, 3 * k + 1] = mean
                out[:, 3 * k + 2] = (centred * centred).sum(axis=1)
        store(views[dst], out, dtype)

    return run


BN_STATS = OpSpec(
    name="bn_stats",
    params=(DST, Param(name="data", kind=K.TENSOR), NAME, OLD_DTYPE),
    engines=(Engine.VECTOR,),
    summary="Count, mean and count·variance of the even and of the odd elements of each row.",
    semantics="dst[:, 0:3] = (n, mean, n·var) of data[:, 0::2]; dst[:, 3:6] of data[:, 1::2]",
    rules=("data has at most 512 elements per partition", "dst is float32 (P, 6)"),
    example="nisa.bn_stats(dst=stats, data=x[:, 0:512])",
    source=page("bn_stats"),
    check=_check_bn_stats,
    compile=_bn_stats,
    cost=lambda form, machine: costs.vector_cost(machine, form["data"].free_size),
)


def _check_bn_aggr(form: Form, machine: Machine) -> None:
    rules.check_memories(form, {"dst": ON_CHIP, "data": ON_CHIP})
    rules.check_partitions(form, machine, form.operands)
    rules.check_same_partitions(form, "dst", "data")
    if form["data"].free_size % 3:
        raise KernelError(
            "NKS115",
            f"bn_aggr: data has {form['data'].free_size} elements per partition, "
            "not a multiple of 3",
            got=str(form["data"]),
            hint="pass whole results of bn_stats",
        )
    _check_dst_size(form, 2)


def _bn_aggr(form: Form) -> Run:
    dst, data = position(form, "dst"), position(form, "data")
    dtype = form["dst"].dtype

    def run(_: State, views: Sequence[Array]) -> None:
        triples = to_float32(flat(views[data])).astype(np.float64)
        triples = triples.reshape(triples.shape[0], -1, 3)
        count, mean, spread = triples[..., 0], triples[..., 1], triples[..., 2]
        n = count.sum(axis=1)
        total = (count * mean).sum(axis=1) / n
        centred = mean - total[:, None]
        variance = (spread.sum(axis=1) + (count * centred * centred).sum(axis=1)) / n
        store(views[dst], np.stack([total, variance], axis=1).astype(np.float32), dtype)

    return run


BN_AGGR = OpSpec(
    name="bn_aggr",
    params=(DST, Param(name="data", kind=K.TENSOR), NAME, OLD_DTYPE),
    engines=(Engine.VECTOR,),
    summary="Combine results of bn_stats into mean and variance.",
    semantics="dst = (mean, population variance) of all elements that data's triples describe",
    rules=("data is (P, 6·k) from bn_stats", "dst is (P, 2)"),
    example="nisa.bn_aggr(dst=mean_var, data=stats)",
    source=page("bn_aggr"),
    check=_check_bn_aggr,
    compile=_bn_aggr,
    cost=lambda form, machine: costs.vector_cost(machine, 13.0 * form["data"].free_size / 3),
)


# -- top 8 --------------------------------------------------------------------------------------


def _check_top8(form: Form, machine: Machine) -> None:
    rules.check_memories(
        form, {"dst": ON_CHIP, "src": ON_CHIP, "data": ON_CHIP, "vals": ON_CHIP}
    )
    rules.check_partitions(form, machine, form.operands)
    rules.check_same_partitions(form, *[o.role for o in form.operands])
    source = form.get("src") or form["data"]
    if not 8 <= source.free_size <= 16384:
        raise KernelError(
            "NKS115",
            f"{form.op}: {source.role} has {source.free_size} elements per partition",
            allowed="8 to 16384",
            got=str(source),
        )
    vals = form.get("vals")
    if vals is not None and vals.free_size != 8:
        raise KernelError("NKS115", f"{form.op}: vals must be (P, 8)", got=str(vals))
    if form.op != "nc_match_replace8":
        _check_dst_size(form, 8)


def _max8(form: Form) -> Run:
    dst, src = position(form, "dst"), position(form, "src")
    dtype = form["dst"].dtype

    def run(_: State, views: Sequence[Array]) -> None:
        values = to_float32(flat(views[src]))
        top = -np.partition(-values, 7, axis=1)[:, :8]
        store(views[dst], -np.sort(-top, axis=1), dtype)

    return run


MAX8 = OpSpec(
    name="max8",
    params=(DST, Param(name="src", kind=K.TENSOR), NAME, OLD_DTYPE),
    engines=(Engine.VECTOR,),
    summary="The eight largest values of each row, descending.",
    semantics="dst = sort(src, descending)[:, :8]",
    rules=("src has 8 to 16384 elements per partition", "dst is (P, 8)"),
    example="nisa.max8(dst=top, src=x)",
    source=page("max8"),
    check=_check_top8,
    compile=_max8,
    cost=lambda form, machine: costs.vector_cost(machine, form["src"].free_size),
)


def _find_index8(form: Form) -> Run:
    dst, data, vals = (position(form, r) for r in ("dst", "data", "vals"))

    def run(_: State, views: Sequence[Array]) -> None:
        values, wanted = to_float32(flat(views[data])), to_float32(flat(views[vals]))
        missing = np.iinfo(views[dst].dtype).max  # type: ignore[type-var]
        result = np.full(wanted.shape, missing, dtype=np.int64)
        for p in range(values.shape[0]):
            seen: dict[float, int] = {}
            for j, value in enumerate(wanted[p]):
                at = np.flatnonzero(values[p] == value)
                nth = seen.get(float(value), 0)
                seen[float(value)] = nth + 1
                if nth < len(at):
                    result[p, j] = at[nth]
        views[dst][...] = result.astype(views[dst].dtype).reshape(views[dst].shape)

    return run


NC_FIND_INDEX8 = OpSpec(
    name="nc_find_index8",
    params=(
        DST,
        Param(name="data", kind=K.TENSOR),
        Param(name="vals", kind=K.TENSOR),
        NAME,
        OLD_DTYPE,
    ),
    engines=(Engine.VECTOR,),
    summary="Index of each of eight values in its row.",
    semantics="dst[p, j] = first index of vals[p, j] in data[p]; repeated values take the next one",
    rules=("dst is uint16 or uint32 (P, 8)", "data has 8 to 16384 elements per partition"),
    example="nisa.nc_find_index8(dst=where_u32, data=x, vals=top)",
    source=page("nc_find_index8"),
    check=_check_top8,
    compile=_find_index8,
    cost=lambda form, machine: costs.vector_cost(machine, form["data"].free_size),
)


def _match_replace8(form: Form) -> Run:
    dst, data, vals = (position(form, r) for r in ("dst", "data", "vals"))
    imm = number(form.attr("imm"))
    index = form.position("dst_idx")
    dtype = form["dst"].dtype

    def run(_: State, views: Sequence[Array]) -> None:
        values = to_float32(flat(views[data])).copy()
        original = values.copy()
        wanted = to_float32(flat(views[vals]))
        places = np.full(wanted.shape, -1, dtype=np.int64)
        for p in range(values.shape[0]):
            free = np.ones(values.shape[1], dtype=bool)
            for j in range(7, -1, -1):
                at = np.flatnonzero((original[p] == wanted[p, j]) & free)
                if len(at):
                    values[p, at[0]] = imm
                    free[at[0]] = False
                    places[p, j] = at[0]
        store(views[dst], values, dtype)
        if index is not None:
            out = views[index]
            out[...] = places.astype(out.dtype).reshape(out.shape)

    return run


NC_MATCH_REPLACE8 = OpSpec(
    name="nc_match_replace8",
    params=(
        DST,
        Param(name="data", kind=K.TENSOR),
        Param(name="vals", kind=K.TENSOR),
        Param(name="imm", kind=K.NUMBER),
        Param(name="dst_idx", kind=K.TENSOR, default=None, access="w"),
        NAME,
        OLD_DTYPE,
    ),
    engines=(Engine.VECTOR,),
    summary="Replace the first occurrence of each of eight values in its row.",
    semantics="for j in 7…0: the first remaining data[p, i] == vals[p, j] becomes imm",
    rules=("vals is (P, 8)", "data has at most 16384 elements per partition"),
    example="nisa.nc_match_replace8(dst=rest, data=x, vals=top, imm=-1e30)",
    source=page("nc_match_replace8"),
    check=_check_top8,
    compile=_match_replace8,
    cost=lambda form, machine: costs.vector_cost(machine, form["data"].free_size),
)


# -- selection ----------------------------------------------------------------------------------

FP32_MIN = np.float32(-3.4028234663852886e38)
COMPARISONS = ("equal", "less", "less_equal", "greater", "greater_equal")


def _check_range_select(form: Form, machine: Machine) -> None:
    allowed = dict.fromkeys(("dst", "on_true_tile", "bound0", "bound1", "reduce_res"), ON_CHIP)
    rules.check_memories(form, allowed)
    rules.elementwise(form, machine, "dst", "on_true_tile")
    rules.check_column(form, "bound0", "bound1")
    rules.check_column(form, "reduce_res", dtype=None)


def _range_select(form: Form) -> Run:
    dst, src, res = (position(form, "dst"), position(form, "on_true_tile"), None)
    res = form.position("reduce_res")
    c0 = alu.ARITHMETIC[str(form.attr("comp_op0"))]
    c1 = alu.ARITHMETIC[str(form.attr("comp_op1"))]
    b0, v0 = _scalar_operand(form, "bound0")
    b1, v1 = _scalar_operand(form, "bound1")
    start = int(form.attr("range_start", 0))  # type: ignore[arg-type]
    command = str(form.attr("reduce_cmd", "reset_reduce"))
    dtype = form["dst"].dtype

    def run(state: State, views: Sequence[Array]) -> None:
        values = to_float32(flat(views[src]))
        i = np.arange(start, start + values.shape[1], dtype=np.float32)[None, :]
        low = v0 if b0 is None else _column(views[b0])
        high = v1 if b1 is None else _column(views[b1])
        mask = (c0(i, low) != 0) & (c1(i, high) != 0)
        result = np.where(mask, values, FP32_MIN)
        accumulate(state.vector_accumulator, command, np.maximum, float(FP32_MIN), result, 0.0)
        store(views[dst], result, dtype)
        if res is not None:
            total = state.vector_accumulator[: values.shape[0]]
            store(views[res], total, form["reduce_res"].dtype)

    return run


RANGE_SELECT = OpSpec(
    name="range_select",
    params=(
        DST,
        Param(name="on_true_tile", kind=K.TENSOR),
        Param(name="comp_op0", kind=K.OP, choices=COMPARISONS),
        Param(name="comp_op1", kind=K.OP, choices=COMPARISONS),
        Param(name="bound0", kind=K.TENSOR_OR_SCALAR),
        Param(name="bound1", kind=K.TENSOR_OR_SCALAR),
        Param(name="reduce_cmd", kind=K.ENUM, default="reset_reduce", choices=REDUCE_CMDS),
        Param(name="reduce_res", kind=K.TENSOR, default=None, access="w"),
        Param(name="reduce_op", kind=K.OP, default="maximum", choices=("maximum",)),
        Param(name="range_start", kind=K.INTEGER, default=0),
        Param(name="on_false_value", kind=K.NUMBER, default=float(FP32_MIN)),
        NAME,
    ),
    engines=(Engine.VECTOR,),
    summary="Keep elements whose index lies in a per-partition range; others become FP32_MIN.",
    semantics="i = range_start + column; dst = where(op0(i, bound0) & op1(i, bound1), x, FP32_MIN)",
    rules=("bounds are float32 tiles (P, 1)", "on_false_value must be FP32_MIN"),
    example="nisa.range_select(dst=y, on_true_tile=x, comp_op0=nl.greater_equal, "
    "comp_op1=nl.less, bound0=low, bound1=high)",
    source=page("range_select"),
    check=_check_range_select,
    compile=_range_select,
    cost=lambda form, machine: costs.vector_cost(machine, form["dst"].free_size),
    min_generation=3,
)


def _check_select_reduce(form: Form, machine: Machine) -> None:
    allowed = dict.fromkeys(("dst", "predicate", "on_true", "on_false", "reduce_res"), ON_CHIP)
    rules.check_memories(form, allowed)
    rules.elementwise(form, machine, "dst", "predicate", "on_true")
    rules.check_not_both_psum(form, "on_true", "predicate")
    rules.check_column(form, "on_false", "reduce_res", dtype=None)


def _select_reduce(form: Form) -> Run:
    dst, pred, true = (position(form, r) for r in ("dst", "predicate", "on_true"))
    res = form.position("reduce_res")
    false_at, false = _scalar_operand(form, "on_false")
    command = str(form.attr("reduce_cmd", "idle"))
    is_reversed = bool(form.attr("reverse_pred"))
    dtype = form["dst"].dtype

    def run(state: State, views: Sequence[Array]) -> None:
        mask = flat(views[pred]) != 0
        if is_reversed:
            mask = ~mask
        other = false if false_at is None else _column(views[false_at])
        result = np.where(mask, to_float32(flat(views[true])), other).astype(np.float32)
        accumulate(state.vector_accumulator, command, np.maximum, -np.inf, result, 0.0)
        store(views[dst], result, dtype)
        if res is not None:
            total = state.vector_accumulator[: result.shape[0]]
            store(views[res], total, form["reduce_res"].dtype)

    return run


SELECT_REDUCE = OpSpec(
    name="select_reduce",
    params=(
        DST,
        Param(name="predicate", kind=K.TENSOR),
        Param(name="on_true", kind=K.TENSOR),
        Param(name="on_false", kind=K.TENSOR_OR_SCALAR),
        Param(name="reduce_res", kind=K.TENSOR, default=None, access="w"),
        Param(name="reduce_cmd", kind=K.ENUM, default="idle", choices=REDUCE_CMDS),
        Param(name="reduce_op", kind=K.OP, default="maximum", choices=("maximum",)),
        Param(name="reverse_pred", kind=K.BOOL, default=False),
        NAME,
    ),
    engines=(Engine.VECTOR,),
    summary="Select by a predicate tile, and the row maximum of the result.",
    semantics="dst = where(predicate, on_true, on_false); reduce_res = max(dst, free axes)",
    rules=("on_false is a number or a tile (P, 1)", "on_true and predicate not both in PSUM"),
    example="nisa.select_reduce(dst=y, predicate=flags, on_true=x, on_false=-1e30)",
    source=page("select_reduce"),
    check=_check_select_reduce,
    compile=_select_reduce,
    cost=lambda form, machine: costs.vector_cost(machine, 2.0 * form["dst"].free_size),
)


# -- partitions ---------------------------------------------------------------------------------


def _check_shuffle(form: Form, machine: Machine) -> None:
    rules.check_memories(form, {"dst": ON_CHIP, "src": ON_CHIP})
    rules.check_partitions(form, machine, form.operands)
    rules.check_same_free(form, "dst", "src")
    mask = form.attr("shuffle_mask")
    if not isinstance(mask, tuple) or len(mask) != 32:
        raise KernelError(
            "NKS116",
            "nc_stream_shuffle: shuffle_mask must list 32 partitions",
            got=repr(mask)[:80],
            allowed="32 numbers 0…31, or 255 to keep dst",
        )
    if any(not (isinstance(m, int) and (0 <= m < 32 or m == 255)) for m in mask):
        raise KernelError(
            "NKS116",
            "nc_stream_shuffle: a mask entry is outside 0…31 and not 255",
            got=repr(mask)[:120],
        )


def _shuffle(form: Form) -> Run:
    dst, src = position(form, "dst"), position(form, "src")
    raw = form.attr("shuffle_mask")
    mask = np.array(raw, dtype=np.int64)
    dtype = form["dst"].dtype

    def run(_: State, views: Sequence[Array]) -> None:
        values = flat(views[src]).copy()
        out = views[dst]
        rows = out.shape[0]
        shape = out.shape[1:]
        for q in range(0, rows, 32):
            for i in range(min(32, rows - q)):
                m = int(mask[i])
                if m == 255:
                    continue
                # One source quadrant serves every quadrant of dst if src is smaller.
                base = q if q + m < values.shape[0] else 0
                if base + m >= values.shape[0]:
                    raise KernelError(
                        "NKS116",
                        f"nc_stream_shuffle: mask entry {m} reads past src's "
                        f"{values.shape[0]} partitions",
                    )
                store(out[q + i], values[base + m].reshape(shape), dtype)

    return run


NC_STREAM_SHUFFLE = OpSpec(
    name="nc_stream_shuffle",
    params=(
        DST,
        Param(name="src", kind=K.TENSOR),
        Param(name="shuffle_mask", kind=K.INTEGERS),
        NAME,
    ),
    engines=(Engine.VECTOR,),
    summary="Move data between the partitions of each group of 32.",
    semantics="dst[32·q + i] = src[32·q + mask[i]]; mask 255 keeps dst",
    rules=("mask has 32 entries, the same for every group", "same elements per partition"),
    example="nisa.nc_stream_shuffle(dst=tile, src=tile, shuffle_mask=[0] * 32)",
    source=page("nc_stream_shuffle"),
    check=_check_shuffle,
    compile=_shuffle,
    cost=lambda form, machine: costs.vector_cost(machine, form["dst"].free_size),
)


# -- v4 -----------------------------------------------------------------------------------------


def _check_exponential(form: Form, machine: Machine) -> None:
    allowed = dict.fromkeys(("dst", "src", "max_value", "reduce_res"), ON_CHIP)
    rules.check_memories(form, allowed)
    rules.elementwise(form, machine, "dst", "src")
    rules.check_column(form, "max_value", "reduce_res", dtype=None)


def _exponential(form: Form) -> Run:
    dst, src, res = position(form, "dst"), position(form, "src"), form.position("reduce_res")
    where, value = _scalar_operand(form, "max_value")
    command = str(form.attr("reduce_cmd", "idle"))
    init = number(form.attr("reduce_init", 0.0))
    dtype = form["dst"].dtype

    def run(state: State, views: Sequence[Array]) -> None:
        shift = value if where is None else _column(views[where])
        values = np.exp(to_float32(flat(views[src])) - shift)
        accumulate(state.vector_accumulator, command, np.add, 0.0, values, init)
        store(views[dst], values, dtype)
        if res is not None:
            total = state.vector_accumulator[: values.shape[0]]
            store(views[res], total, form["reduce_res"].dtype)

    return run


EXPONENTIAL = OpSpec(
    name="exponential",
    params=(
        DST,
        Param(name="src", kind=K.TENSOR),
        Param(name="max_value", kind=K.TENSOR_OR_SCALAR, default=0.0),
        Param(name="reduce_res", kind=K.TENSOR, default=None, access="w"),
        Param(name="reduce_cmd", kind=K.ENUM, default="idle", choices=REDUCE_CMDS),
        Param(name="reduce_init", kind=K.NUMBER, default=0.0),
        NAME,
    ),
    engines=(Engine.VECTOR,),
    summary="Fast exp(x - max) with the row sum, on the Vector Engine of NeuronCore-v4.",
    semantics="dst = exp(src - max_value); reduce_res = sum(dst, free axes)",
    rules=("NeuronCore-v4 only", "max_value is a number or a tile (P, 1)"),
    example="nisa.exponential(dst=e, src=x, max_value=row_max, reduce_res=total, "
    "reduce_cmd=nisa.reduce_cmd.reset_reduce)",
    source=page("exponential"),
    check=_check_exponential,
    compile=_exponential,
    cost=lambda form, machine: costs.vector_cost(machine, form["dst"].free_size / 4),
    min_generation=4,
    since="0.2",
)

SPECS: tuple[OpSpec, ...] = (
    TENSOR_COPY,
    MEMSET,
    TENSOR_COPY_PREDICATED,
    TENSOR_TENSOR,
    TENSOR_SCALAR,
    SCALAR_TENSOR_TENSOR,
    RECIPROCAL,
    TENSOR_REDUCE,
    TENSOR_SCALAR_REDUCE,
    TENSOR_TENSOR_SCAN,
    TENSOR_SCALAR_CUMULATIVE,
    BN_STATS,
    BN_AGGR,
    MAX8,
    NC_FIND_INDEX8,
    NC_MATCH_REPLACE8,
    RANGE_SELECT,
    SELECT_REDUCE,
    NC_STREAM_SHUFFLE,
    EXPONENTIAL,
)
"""Rows of the Vector Engine."""
__all__ = ["SBUF_ONLY", "SPECS", "UnsupportedError"]
