"""Register instructions of the engines' sequencers.

Source: NKI ISA reference 0.6, nki.isa.register_move, register_load, register_store.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nkisim.dtypes import Array
from nkisim.errors import KernelError
from nkisim.ir.program import Form
from nkisim.machine.spec import Engine, Machine
from nkisim.ops import codes
from nkisim.ops.operands import has, integer, page, position
from nkisim.ops.registry import DMA_SIDES, Cost, OpSpec, Param, ParamKind, Run, State

K = ParamKind
LOAD_NS = 2000.0
"""A register load from memory is a small DMA round trip (inferred)."""


def _check(form: Form, machine: Machine) -> None:
    for operand in form.operands:
        if operand.pattern.size != 1:
            raise KernelError(
                codes.ONE_ELEMENT,
                f"{form.op}: {operand.role} must have exactly one element",
                got=str(operand),
                allowed="one element, such as count[0:1, 0:1]",
            )


def _cost(form: Form, machine: Machine) -> Cost:
    from_memory = form.op != "register_move"
    cycles = LOAD_NS * machine.clock_ghz(Engine.SYNC) if from_memory else 64.0
    return Cost(interval=cycles, latency=cycles)


def _check_move(form: Form, machine: Machine) -> None:
    _check(form, machine)
    given = [name for name in ("src", "imm") if has(form, name)]
    if len(given) != 1:
        raise KernelError(
            codes.MISSING_ARGUMENT,
            "register_move: needs one value",
            got=", ".join(given) or "none",
            allowed="src=, an integer or a register",
        )


def _move(form: Form) -> Run:
    dst, src = position(form, "dst"), form.position("src")
    raw = form.attr("src")
    value = 0 if src is not None else integer(form.attr("imm") if raw is None else raw)

    def run(_: State, views: Sequence[Array]) -> None:
        views[dst][...] = value if src is None else views[src]

    return run


def _load(form: Form) -> Run:
    dst, src = position(form, "dst"), position(form, "src")

    def run(_: State, views: Sequence[Array]) -> None:
        value = float(views[src].reshape(-1)[0].astype(np.float64))
        views[dst][...] = int(value)

    return run


def _store(form: Form) -> Run:
    dst, src = position(form, "dst"), position(form, "src")

    def run(_: State, views: Sequence[Array]) -> None:
        views[dst][...] = views[src].reshape(-1)[0]

    return run


REGISTER_DST = Param(name="dst", kind=K.REGISTER, access="w")
REGISTER_MOVE = OpSpec(
    name="register_move",
    params=(
        REGISTER_DST,
        Param(name="src", kind=K.REGISTER_OR_INTEGER, default=None),
        Param(name="imm", kind=K.INTEGER, default=None, until="0.3"),
    ),
    engines=(Engine.SYNC,),
    summary="Set a register.",
    semantics="dst = src",
    rules=("src is an integer or a register",),
    example="nisa.register_move(r, 0)",
    source=page("register_move"),
    check=_check_move,
    compile=_move,
    cost=_cost,
)
REGISTER_LOAD = OpSpec(
    name="register_load",
    params=(REGISTER_DST, Param(name="src", kind=K.TENSOR, memories=DMA_SIDES)),
    engines=(Engine.SYNC,),
    summary="Load a register from one element.",
    semantics="dst = src[0]",
    rules=("src has exactly one element, in HBM or SBUF",),
    example="nisa.register_load(r, count[0:1, 0:1])",
    source=page("register_load"),
    check=_check,
    compile=_load,
    cost=_cost,
)
REGISTER_STORE = OpSpec(
    name="register_store",
    params=(
        Param(name="dst", kind=K.TENSOR, access="w", memories=DMA_SIDES),
        Param(name="src", kind=K.REGISTER),
    ),
    engines=(Engine.SYNC,),
    summary="Store a register into one element.",
    semantics="dst[0] = src",
    rules=("dst has exactly one element, in HBM or SBUF",),
    example="nisa.register_store(count[0:1, 0:1], r)",
    source=page("register_store"),
    check=_check,
    compile=_store,
    cost=_cost,
)

SPECS: tuple[OpSpec, ...] = (REGISTER_MOVE, REGISTER_LOAD, REGISTER_STORE)
"""Rows of the sequencers."""
