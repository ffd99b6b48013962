"""A kernel's entry function from outside: its parameters, and where it begins and returns."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from types import CodeType

from nkisim.errors import KernelError, Place
from nkisim.frontend.source import SourceMap

WRONG_CALL = "NKS609"
"""The arguments given do not fit the kernel's parameters."""


def parameter_names(function: Callable[..., object]) -> list[str]:
    """Return the names of a function's parameters; none if they cannot be known."""
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def check_call(
    function: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    source_map: SourceMap,
) -> None:
    """Refuse arguments that do not fit the parameters, before anything runs.

    Raises:
        KernelError: It names the parameters that lack an argument, or the arguments too many.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        pass
    else:
        return
    name = getattr(function, "__name__", "kernel")
    by_position = [
        p.name
        for p in signature.parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    given = {*by_position[: len(args)], *kwargs}
    missing = [
        p.name
        for p in signature.parameters.values()
        if p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        and p.name not in given
    ]
    unknown = [key for key in kwargs if key not in signature.parameters]
    twice = [key for key in kwargs if key in by_position[: len(args)]]
    hint = f"give one argument for each parameter of {name}{signature}"
    if unknown:
        near = get_close_matches(unknown[0], signature.parameters, n=1)
        message = f"{name} has no parameter {unknown[0]!r}"
        hint = f"did you mean {near[0]!r}?" if near else hint
    elif twice:
        message = f"parameter {twice[0]!r} of {name} is given twice"
        hint = "give it by position or by name, not both"
    elif missing:
        names = ", ".join(map(repr, missing))
        message = f"{name} needs an argument for {names}, which is not given"
    else:
        message = f"{name} takes {len(by_position)} arguments, {len(args)} are given"
    count = len(args) + len(kwargs)
    raise KernelError(
        WRONG_CALL,
        message,
        got=f"{count} argument{'' if count == 1 else 's'}",
        allowed=f"{name}{signature}",
        hint=hint,
        place=definition(function, source_map),
    )


def definition(function: Callable[..., object], source_map: SourceMap) -> Place | None:
    """Return the line of a function's `def`, after its decorators."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return None
    for number in range(code.co_firstlineno, code.co_firstlineno + 20):
        if source_map.line(code.co_filename, number).startswith(("def ", "async def ")):
            return source_map.place(code.co_filename, number)
    return source_map.place(code.co_filename, code.co_firstlineno)


def last_return(function: Callable[..., object], source_map: SourceMap) -> Place | None:
    """Return the line of a function's last written `return`, or None if it has none."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return None
    lines = {
        instruction.positions.lineno
        for instruction in dis.get_instructions(code)
        if instruction.opname.startswith("RETURN") and instruction.positions is not None
    }
    written = [
        number
        for number in lines
        if number is not None and source_map.line(code.co_filename, number).startswith("return")
    ]
    return source_map.place(code.co_filename, max(written)) if written else None
