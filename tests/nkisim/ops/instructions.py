"""Runs one instruction of the op table on numpy arrays, without front end or interpreter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from nkisim.dtypes import DTYPES, DType, lookup
from nkisim.ir.access import Memory, Pattern
from nkisim.ir.program import AttrValue, Form, Operand
from nkisim.machine.load import load_machine
from nkisim.machine.spec import Engine, Machine
from nkisim.ops.random_lanes import GPSIMD_WORDS, VECTOR_WORDS, Lanes
from nkisim.ops.registry import REQUIRED, Cost, DmaCost, Param, ParamKind
from nkisim.ops.table import OPS

HBM, SBUF, PSUM = Memory.HBM, Memory.SBUF, Memory.PSUM
REGISTER_PATTERN = Pattern((1,), (1,), DTYPES["int32"])

machine = cache(load_machine)


@dataclass
class FakeState:
    """What outlives an instruction."""

    psum: bool | npt.NDArray[np.bool_] = False
    scalar_accumulator: npt.NDArray[np.float32] = field(
        default_factory=lambda: np.zeros(128, dtype=np.float32)
    )
    vector_accumulator: npt.NDArray[np.float32] = field(
        default_factory=lambda: np.zeros(128, dtype=np.float32)
    )
    registers: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(8, dtype=np.int64))
    vector_random: Lanes = field(default_factory=lambda: Lanes(VECTOR_WORDS, 0))
    gpsimd_random: Lanes = field(default_factory=lambda: Lanes(GPSIMD_WORDS, 0))

    def psum_accumulates(self, position: int) -> bool | npt.NDArray[np.bool_]:
        return self.psum


@dataclass
class Tile:
    """An operand: a view of some storage, in a memory."""

    view: npt.NDArray[Any]
    memory: Memory = SBUF
    dtype: DType | None = None

    def operand(self, role: str) -> Operand:
        dtype = self.dtype or lookup(self.view.dtype)
        assert dtype is not None
        strides = tuple(s // self.view.itemsize for s in self.view.strides)
        return Operand(role, Pattern(self.view.shape, strides, dtype), self.memory)


@dataclass
class Register:
    """A device register as an operand."""

    number: int


@dataclass
class Done:
    """What an instruction was and what it cost."""

    form: Form
    state: FakeState
    cost: Cost | DmaCost


def psum(view: npt.NDArray[Any]) -> Tile:
    return Tile(view, PSUM)


def hbm(view: npt.NDArray[Any]) -> Tile:
    return Tile(view, HBM)


def make_form(
    name: str, on: Machine, engine: str | None, arguments: dict[str, Any]
) -> tuple[Form, list[Any]]:
    """Return the form of a call and its operands' arrays (or registers)."""
    spec = OPS[name]
    unknown = set(arguments) - {p.name for p in spec.params}
    assert not unknown, f"{name} has no {unknown}"
    attrs: list[tuple[str, AttrValue]] = []
    operands: list[Operand] = []
    views: list[Any] = []
    for param in spec.params:
        value = arguments.get(param.name, param.default)
        if param.kind in (ParamKind.ENGINE, ParamKind.LABEL):
            continue
        assert value is not REQUIRED, f"{name} needs {param.name}"
        _add(param, value, attrs, operands, views)
    chosen = spec.engines[0] if engine is None else Engine(engine)
    form = Form(name, chosen, tuple(sorted(attrs)), tuple(operands))
    if engine is None and spec.choose_engine is not None:
        form = Form(name, spec.choose_engine(form, on), form.attrs, form.operands)
    return form, views


def _add(
    param: Param,
    value: Any,
    attrs: list[tuple[str, AttrValue]],
    operands: list[Operand],
    views: list[Any],
) -> None:
    if isinstance(value, list):
        for i, item in enumerate(value):
            tile = item if isinstance(item, Tile) else Tile(item)
            operands.append(tile.operand(f"{param.name}.{i}"))
            views.append(tile.view)
    elif isinstance(value, (Tile, np.ndarray)):
        tile = value if isinstance(value, Tile) else Tile(value)
        operands.append(tile.operand(param.name))
        views.append(tile.view)
    elif isinstance(value, Register):
        operands.append(Operand(param.name, REGISTER_PATTERN, Memory.REGISTER))
        views.append(value)
    elif value is not None and value != param.default:
        attrs.append((param.name, value))


def call(
    name: str,
    *,
    on: str = "trn2",
    engine: str | None = None,
    state: FakeState | None = None,
    **arguments: Any,
) -> Done:
    """Check, compile, price and run one instruction; arrays are SBUF tiles."""
    target = machine(on)
    form, views = make_form(name, target, engine, arguments)
    spec = OPS[name]
    spec.check(form, target)
    state = state or FakeState()
    arrays = [
        state.registers[v.number : v.number + 1] if isinstance(v, Register) else v for v in views
    ]
    with np.errstate(all="ignore"):
        spec.compile(form)(state, arrays)
    return Done(form, state, spec.cost(form, target))


def cost(name: str, *, on: str = "trn2", engine: str | None = None, **arguments: Any) -> Any:
    """Return the cost of one instruction, without running it."""
    target = machine(on)
    form, _ = make_form(name, target, engine, arguments)
    OPS[name].check(form, target)
    return OPS[name].cost(form, target)


def runner(name: str, *, on: str = "trn2", **arguments: Any) -> Callable[[], None]:
    """Return a closure that runs one instruction again and again."""
    form, views = make_form(name, machine(on), None, arguments)
    run, state = OPS[name].compile(form), FakeState()
    return lambda: run(state, views)
