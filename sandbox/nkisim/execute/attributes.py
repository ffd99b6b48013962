"""Checks that a form's attributes are what its row of the op table asks for.

The tracer binds attributes by the same row, so that only a forged Program fails here; everything
that executes or times a form may then rely on their names and types.
"""

from __future__ import annotations

from nkisim.errors import ProgramError
from nkisim.ir.program import AttrValue, Form
from nkisim.ops.masks import MASK
from nkisim.ops.registry import REQUIRED, OpSpec, Param, ParamKind

_NUMBERS = (ParamKind.NUMBER, ParamKind.TENSOR_OR_SCALAR)
_WHOLE = (ParamKind.INTEGER, ParamKind.REGISTER_OR_INTEGER)
_NAMES = (ParamKind.OP, ParamKind.ENUM)
_HAVE_ATTRIBUTES = (*_NUMBERS, *_WHOLE, *_NAMES, ParamKind.BOOL, ParamKind.INTEGERS)


def check_attributes(form: Form, spec: OpSpec) -> None:
    """Check names, types and completeness of the attributes of `form`.

    Raises:
        ProgramError: The tracer cannot have written them.
    """
    operands = {operand.param for operand in form.operands}
    seen: set[str] = set()
    for name, value in form.attrs:
        if name in seen or name in operands:
            raise ProgramError(f"{form.op}: {name!r} is given twice")
        seen.add(name)
        if name == MASK:
            continue
        param = spec.param(name)
        if param is None or not _fits(param, value):
            raise ProgramError(f"{form.op}: malformed attribute {name!r}: {value!r:.80}")
    for param in spec.params:
        is_missing = param.name not in seen and param.name not in operands
        if param.default is REQUIRED and param.kind in _HAVE_ATTRIBUTES and is_missing:
            raise ProgramError(f"{form.op}: attribute {param.name!r} is missing")


def _fits(param: Param, value: AttrValue) -> bool:
    kind = param.kind
    if value is None:
        return param.default is None and kind in _HAVE_ATTRIBUTES
    if kind in _NAMES:
        return isinstance(value, str) and (not param.choices or value in param.choices)
    if kind in _NUMBERS:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind in _WHOLE:
        return _is_whole(value)
    if kind is ParamKind.BOOL:
        return isinstance(value, bool)
    if kind is ParamKind.INTEGERS:
        return _is_nested(value)
    return False


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_nested(value: object) -> bool:
    """Whether a value is an integer, or a tuple of such values."""
    return all(map(_is_nested, value)) if isinstance(value, tuple) else _is_whole(value)
