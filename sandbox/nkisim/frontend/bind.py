"""Binds the arguments of a call to the op table and emits; knows no single instruction.

Each instruction of `nki.isa` is one `Instruction` made from its `OpSpec`.  Parameters that the
NKI version does not have are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from typing import Any

import numpy as np

from nkisim.errors import KernelError
from nkisim.frontend.context import current
from nkisim.frontend.recorder import Recorder
from nkisim.frontend.register import Register
from nkisim.frontend.tensor import NkiTensor
from nkisim.ir.program import AttrValue
from nkisim.machine.spec import Engine
from nkisim.ops.masks import MASK, MaskArgument
from nkisim.ops.registry import REQUIRED, OpSpec, OpTable, Param, ParamKind

NUMPY_OPS: Mapping[Any, str] = {
    np.add: "add",
    np.subtract: "subtract",
    np.multiply: "multiply",
    np.divide: "divide",
    np.maximum: "maximum",
    np.minimum: "minimum",
    np.max: "maximum",
    np.min: "minimum",
    np.power: "power",
    np.exp: "exp",
    np.log: "log",
    np.sqrt: "sqrt",
    np.square: "square",
    np.abs: "abs",
    np.tanh: "tanh",
    np.sin: "sin",
    np.arctan: "arctan",
    np.sign: "sign",
    np.copy: "copy",
    np.reciprocal: "reciprocal",
    np.equal: "equal",
    np.not_equal: "not_equal",
    np.greater: "greater",
    np.greater_equal: "greater_equal",
    np.less: "less",
    np.less_equal: "less_equal",
    np.logical_and: "logical_and",
    np.logical_or: "logical_or",
    np.bitwise_and: "bitwise_and",
    np.bitwise_or: "bitwise_or",
    np.bitwise_xor: "bitwise_xor",
    np.invert: "invert",
    np.left_shift: "left_shift",
    np.right_shift: "right_shift",
}
"""numpy functions that kernels pass as ops."""
SMALLEST, LARGEST = -(1 << 63), (1 << 64) - 1
"""Integers that an instruction can hold."""


class NlFunction:
    """A function of `nki.language`: callable on tiles, and the token for its ALU op.

    Attributes:
        name: NKI name.
    """

    def __init__(self, name: str, call: Callable[..., object] | None = None) -> None:
        self.name = name
        self._call = call
        self.__name__ = name
        self.__doc__ = None if call is None else call.__doc__

    def __call__(self, *args: object, **kwargs: object) -> object:
        if self._call is None:
            raise KernelError(
                "NKS607",
                f"nl.{self.name} is an op name for nki.isa instructions and cannot be called",
                hint=f"pass it as op=nl.{self.name}",
            )
        return self._call(*args, **kwargs)

    def __repr__(self) -> str:
        return f"nl.{self.name}"


@dataclass(frozen=True, slots=True)
class InstructionHandle:
    """What an instruction returns: a handle for scheduling edges."""

    number: int

    def depends_on(self, *producers: object) -> InstructionHandle:
        """Accept extra ordering edges; program order keeps them already."""
        return self


@dataclass
class Instructions:
    """The bound instructions and language functions of one NKI environment, by name."""

    isa: dict[str, Callable[..., object]] = field(default_factory=dict)
    language: dict[str, Callable[..., object]] = field(default_factory=dict)
    operators: dict[str, Callable[..., object]] = field(default_factory=dict)
    """What operators on tiles call."""


def version_key(version: str) -> tuple[int, ...]:
    """Make `0.10` sort after `0.6`."""
    return tuple(int(part) for part in version.split("."))


def _is_available(param: Param, version: str | None) -> bool:
    if version is None:
        return True
    now = version_key(version)
    if version_key(param.since) > now:
        return False
    return param.until is None or version_key(param.until) > now


class Instruction:
    """One instruction of `nki.isa`, bound to its row of the op table."""

    def __init__(self, spec: OpSpec) -> None:
        self.spec = spec
        self.__name__ = spec.name
        self.__doc__ = f"{spec.summary}\n\n{spec.signature}"
        self._by_version: dict[str | None, _Binder] = {}

    def __repr__(self) -> str:
        return f"nisa.{self.spec.name}"

    def __call__(self, *args: object, **kwargs: object) -> object:
        recorder = current()
        binder = self._by_version.get(recorder.version)
        if binder is None:
            binder = self._by_version[recorder.version] = _Binder(self.spec, recorder.version)
        return binder.emit(recorder, args, kwargs)


class _Binder:
    """The parameters of one instruction under one NKI version."""

    def __init__(self, spec: OpSpec, version: str | None) -> None:
        self.spec = spec
        self.version = version
        params = [p for p in spec.params if _is_available(p, version)]
        # Parameters that left the language come last, so that they bind by name only.
        self.params = [p for p in params if p.until is None] + [p for p in params if p.until]
        self.positions = {p.name: i for i, p in enumerate(self.params)}
        self.defaults = [p.default for p in self.params]

    def emit(
        self, recorder: Recorder, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> InstructionHandle:
        values: list[object] = list(self.defaults)
        attrs: list[tuple[str, AttrValue]] = []
        mask = kwargs.get(MASK)
        if isinstance(mask, MaskArgument):
            del kwargs[MASK]
            attrs.append((MASK, self._integers(self.params[0], mask)))
        if len(args) > len(values):
            raise self._error(f"takes {len(values)} arguments, got {len(args)}")
        values[: len(args)] = args
        for name, value in kwargs.items():
            position = self.positions.get(name)
            if position is None:
                raise self._unknown(name)
            if position < len(args):
                raise self._error(f"got two values for argument {name!r}")
            values[position] = value
        roles: list[str] = []
        tensors: list[NkiTensor | Register] = []
        engine: Engine | None = None
        for param, value in zip(self.params, values, strict=True):
            if value is REQUIRED:
                raise self._error(f"needs argument {param.name!r}")
            kind = param.kind
            if kind is ParamKind.LABEL:
                continue
            if isinstance(value, NkiTensor):
                if not param.is_tensor:
                    raise self._error(f"argument {param.name!r} takes {kind}, got tile {value!r}")
                if param.access != "r" and value.storage.is_argument:
                    self._check_argument_write(recorder, value)
                roles.append(param.name)
                tensors.append(value)
            elif kind is ParamKind.ENGINE:
                engine = self._engine(value)
            elif kind is ParamKind.TENSORS:
                for i, item in enumerate(self._tensor_list(param, value)):
                    roles.append(f"{param.name}.{i}")
                    tensors.append(item)
            elif isinstance(value, Register):
                if kind not in (ParamKind.REGISTER, ParamKind.REGISTER_OR_INTEGER):
                    raise self._error(f"argument {param.name!r} takes {kind}, got {value!r}")
                if param.access != "r" and value.is_frozen:
                    raise KernelError(
                        "NKS408", f"{self.spec.name}: the loop variable {value!r} is read-only"
                    )
                roles.append(param.name)
                tensors.append(value)
            elif value is not None:
                attr = self._attr(param, value)
                if attr != param.default or type(attr) is not type(param.default):
                    attrs.append((param.name, attr))
            elif param.default is REQUIRED:
                raise self._error(f"argument {param.name!r} takes {kind}, got None")
        attrs.sort()
        number = recorder.emit(self.spec, engine, tuple(attrs), tuple(roles), tensors)
        return InstructionHandle(number)

    def _attr(self, param: Param, value: object) -> AttrValue:
        kind = param.kind
        if kind is ParamKind.OP:
            name = self._op_name(param, value)
            if param.choices and name not in param.choices:
                raise KernelError(
                    "NKS304",
                    f"{self.spec.name}: {param.name}={name} is not supported by this instruction",
                    allowed=", ".join(param.choices),
                )
            return name
        if kind in (ParamKind.NUMBER, ParamKind.TENSOR_OR_SCALAR):
            return self._number(param, value)
        if kind in (ParamKind.INTEGER, ParamKind.REGISTER_OR_INTEGER):
            return self._whole(param, value)
        if kind is ParamKind.BOOL:
            return bool(value)
        if kind is ParamKind.ENUM:
            return str(value.name if isinstance(value, Enum) else getattr(value, "name", value))
        if kind is ParamKind.INTEGERS:
            return self._integers(param, value)
        raise self._error(f"argument {param.name!r} takes {kind}, got {type(value).__name__}")

    def _op_name(self, param: Param, value: object) -> str:
        if isinstance(value, NlFunction):
            return value.name
        try:
            if value in NUMPY_OPS:
                return NUMPY_OPS[value]
        except TypeError:
            pass
        if isinstance(value, str):
            return value
        raise self._error(f"argument {param.name!r} takes an op such as nl.add, got {value!r:.60}")

    def _number(self, param: Param, value: object) -> float | int:
        if isinstance(value, bool):
            return int(value)
        if isinstance(value, float):
            return value
        if isinstance(value, int):
            if not SMALLEST <= value <= LARGEST:
                raise KernelError(
                    "NKS305",
                    f"{self.spec.name}: {param.name} is an integer of {value.bit_length()} bits",
                    allowed="integers of at most 64 bits, and floats",
                    hint="write a float: 1e30, or float('inf')",
                )
            return value
        if isinstance(value, (np.generic, np.ndarray)) and value.size == 1:
            item = value.item()
            return item if isinstance(item, int) else float(item)
        raise self._error(
            f"argument {param.name!r} takes {param.kind}, got {type(value).__name__} {value!r:.60}"
        )

    def _whole(self, param: Param, value: object) -> int:
        number = self._number(param, value)
        if not float(number).is_integer():
            raise self._error(f"argument {param.name!r} takes whole numbers, got {number!r}")
        return int(number)

    def _integers(self, param: Param, value: object) -> AttrValue:
        """Return an integer, or a possibly nested tuple of integers."""
        if not isinstance(value, (list, tuple)):
            return self._whole(param, value)
        return tuple(
            self._integers(param, item)
            if isinstance(item, (list, tuple))
            else self._whole(param, item)
            for item in value
        )

    def _tensor_list(self, param: Param, value: object) -> list[NkiTensor]:
        tensors: list[NkiTensor] = []
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if not isinstance(item, NkiTensor):
                raise self._error(f"argument {param.name!r} takes tensors, got {item!r:.60}")
            tensors.append(item)
        return tensors

    def _engine(self, value: object) -> Engine | None:
        name = getattr(value, "name", None)
        if value is None or name in ("unknown", "dma"):
            return None
        try:
            engine = Engine(str(name))
        except ValueError:
            raise self._error(f"engine must be a member of nki.isa.engine, got {value!r}") from None
        if engine not in self.spec.engines:
            raise KernelError(
                "NKS109",
                f"{self.spec.name} cannot run on the {engine} engine",
                allowed=", ".join(self.spec.engines),
            )
        return engine

    def _check_argument_write(self, recorder: Recorder, tensor: NkiTensor) -> None:
        if recorder.version is not None:
            raise KernelError(
                "NKS203",
                f"{self.spec.name} writes to the kernel's input {tensor!r}",
                hint="allocate a result with nl.ndarray(..., buffer=nl.shared_hbm) and return it",
            )

    def _unknown(self, name: str) -> KernelError:
        near = get_close_matches(name, self.positions, n=1)
        old = self.spec.param(name)
        hint: str | None = None
        if old is not None:
            hint = f"{name!r} belongs to another NKI version; see the signature"
        elif near:
            hint = f"did you mean {near[0]!r}?"
        return KernelError(
            "NKS601",
            f"{self.spec.name} has no argument {name!r}",
            allowed=self.spec.signature,
            hint=hint,
        )

    def _error(self, what: str) -> KernelError:
        return KernelError("NKS602", f"{self.spec.name} {what}", allowed=self.spec.signature)


def bind_isa(ops: OpTable) -> dict[str, Callable[..., object]]:
    """Return every instruction of the op table, bound."""
    return {spec.name: Instruction(spec) for spec in ops}
