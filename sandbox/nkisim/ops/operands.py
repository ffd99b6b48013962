"""How instructions see their operands: shared parameters, readers, columns and accumulators.

Elementwise maths happens in the shape of `dst`; an operand of another rank is reshaped to it, a
column (P, 1) broadcasts along the free axes.  Readers return float32: a window on the operand if
it is float32 already, else a fresh array that the caller may overwrite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from nkisim.dtypes import Array, to_float32
from nkisim.ir.program import Form, Operand
from nkisim.ops import alu
from nkisim.ops.alu import F32
from nkisim.ops.registry import Param, ParamKind

Shape = tuple[int, ...]
Read = Callable[[Sequence[Array]], Any]
"""Returns one operand as float32."""
Stage = Callable[[Any, Sequence[Array], Any], Any]
"""`stage(values, views, out)`: one ALU op of a chain."""

DST: Final = Param(name="dst", kind=ParamKind.TENSOR, access="w")
NAME: Final = Param(name="name", kind=ParamKind.LABEL, default=None)
OLD_DTYPE: Final = Param(name="dtype", kind=ParamKind.LABEL, default=None, until="0.3")
"""Result dtype of the first generation; kernels of the 0.1 and 0.2 dialects still pass it."""
ENGINE: Final = Param(name="engine", kind=ParamKind.ENGINE, default=None)
SCALAR_REDUCE_CMDS: Final = ("idle", "reset", "reduce", "reset_reduce")
REDUCE_CMDS: Final = (*SCALAR_REDUCE_CMDS, "load_reduce")


def page(name: str) -> str:
    """Return the citation of an instruction's page."""
    return f"NKI ISA reference, nki.isa.{name}"


def position(form: Form, role: str) -> int:
    """Return where operand `role` is, which must be there."""
    found = form.position(role)
    if found is None:
        raise KeyError(role)
    return found


def number(value: object) -> np.float32:
    """Return an immediate as the engine holds it."""
    return np.float32(value)  # type: ignore[arg-type]


def integer(value: object) -> int:
    """Return an attribute that is known to be an integer."""
    assert isinstance(value, int)
    return value


def flat(view: Array) -> Array:
    """Return a view as [P, N] (a copy if its free dimensions cannot be merged)."""
    return view if view.ndim == 2 else view.reshape(view.shape[0], -1)


def is_float32(operand: Operand) -> bool:
    """Whether the operand's bytes are float32 values, to be used in place."""
    return operand.dtype.name == "float32"


def owns_result(operand: Operand) -> bool:
    """Whether a reader of `operand` returns a fresh array."""
    return operand.dtype.storage != np.float32


def read(form: Form, role: str, shape: Shape) -> Read:
    """Return a reader of a whole tile in `shape`."""
    at, operand = position(form, role), form[role]
    if not owns_result(operand):
        if operand.shape == shape:
            return lambda views: views[at]
        return lambda views: views[at].reshape(shape)
    if operand.shape == shape:
        return lambda views: to_float32(views[at])
    return lambda views: to_float32(views[at]).reshape(shape)


def read_column(form: Form, role: str, rank: int, default: object = 0.0) -> Read:
    """Return a reader of a number, or of a column (P, 1) that broadcasts over `rank` dimensions.

    Args:
        form: The form.
        role: Operand or attribute name.
        rank: Dimensions of the tile that it meets.
        default: Value if the form has neither.
    """
    at = form.position(role)
    if at is None:
        raw = form.attr(role, default)  # type: ignore[arg-type]
        value = number(default if raw is None else raw)
        return lambda views: value
    shape = (form[role].partitions, *(1,) * (rank - 1))
    return lambda views: to_float32(views[at]).reshape(shape)


def has(form: Form, role: str) -> bool:
    """Whether a tensor-or-number parameter was passed."""
    return form.get(role) is not None or form.attr(role) is not None


def is_immediate(form: Form, role: str) -> bool:
    """Whether a tensor-or-number parameter is not a tensor."""
    return form.get(role) is None


def stage(form: Form, op: str, operand: str, *, is_reversed: bool, rank: int) -> Stage:
    """Return an ALU op between a tile and a number or column.

    `stage(values, views, out)` writes to `out`, or returns a fresh array if `out` is None.
    """
    if op in alu.UNARY:
        unary = alu.UNARY[op]
        return lambda x, views, out: unary(x, out=out)
    function = alu.ARITHMETIC[op]
    other = read_column(form, operand, rank)
    if is_immediate(form, operand):
        value = other(())
        if is_reversed:
            return lambda x, views, out: function(value, x, out=out)
        return lambda x, views, out: function(x, value, out=out)
    if is_reversed:
        return lambda x, views, out: function(other(views), x, out=out)
    return lambda x, views, out: function(x, other(views), out=out)


def reduce_free(op: str, values: F32) -> Any:
    """Reduce [P, N] along the free axis to [P]; of equal magnitudes the last one counts."""
    if op not in ("abs_max", "abs_min"):
        return alu.REDUCTIONS[op].reduce(values, axis=-1)
    backwards = np.abs(values[:, ::-1])
    at = backwards.argmax(axis=1) if op == "abs_max" else backwards.argmin(axis=1)
    return values[np.arange(len(values)), values.shape[1] - 1 - at]


def accumulate(
    registers: F32, command: str, op: str, values: Any, *, identity: float, initial: Any = 0.0
) -> None:
    """Reduce `values` [P, …] over its free axes into accumulate registers [P].

    Args:
        registers: The engine's 128 registers.
        command: Name of a `reduce_cmd`.
        op: Name of the reduction.
        values: Float32 values.
        identity: What a reset leaves.
        initial: What `load_reduce` starts from.
    """
    p = values.shape[0]
    if command == "idle":
        return
    if command == "reset":
        registers[:p] = identity
        return
    function: Any = alu.ARITHMETIC[op]
    reduced = reduce_free(op, values.reshape(p, -1))
    if command == "reset_reduce":
        registers[:p] = reduced if identity in (0.0, 1.0) else function(identity, reduced)
    elif command == "load_reduce":
        registers[:p] = function(initial, reduced)
    else:
        registers[:p] = function(registers[:p], reduced)
