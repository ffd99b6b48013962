"""Kernel arguments as plain data: what crosses into the child instead of tensors.

Arrays become descriptors; numbers, strings, None, booleans, tuples, lists, dicts, dtypes, numpy
ufuncs, NKI symbols and constructed objects keep their meaning.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from nkisim.dtypes import DTYPES, DType, lookup
from nkisim.errors import KernelError, ProgramError
from nkisim.frontend.recorder import Recorder

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name of NKI itself, such as `nl.add`, resolved where the kernel runs."""

    name: str


@dataclass(frozen=True, slots=True)
class Construct:
    """An object built where the kernel runs: `path` is `module.Class`."""

    path: str
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor argument without its values."""

    shape: tuple[int, ...]
    dtype: DType


def describe(value: object, arrays: list[npt.NDArray[np.generic]]) -> Json:
    """Encode an argument; arrays are appended to `arrays` in order of their descriptors."""
    if value is None or isinstance(value, (bool, str)):
        return {"t": "value", "v": value}
    if isinstance(value, (np.ndarray, TensorSpec)):
        dtype = lookup(value.dtype)
        if dtype is None:
            raise TypeError(
                f"arrays of dtype {value.dtype} are not tensors of NKI; use one of "
                f"{', '.join(list(DTYPES)[:14])}"
            )
        if isinstance(value, np.ndarray):
            arrays.append(value)
        return {"t": "tensor", "shape": [int(n) for n in value.shape], "dtype": dtype.name}
    if isinstance(value, DType):
        return {"t": "dtype", "v": value.name}
    if isinstance(value, (np.dtype, type)) and lookup(value) is not None:
        found = lookup(value)
        assert found is not None
        return {"t": "dtype", "v": found.name}
    if isinstance(value, np.ufunc):
        return {"t": "ufunc", "v": value.__name__}
    if isinstance(value, np.generic):
        return {"t": "scalar", "dtype": value.dtype.name, "v": value.item()}
    if isinstance(value, int):
        return {"t": "value", "v": int(value)}
    if isinstance(value, float):
        return {"t": "float", "v": value.hex()}
    if isinstance(value, (tuple, list)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {"t": kind, "v": [describe(item, arrays) for item in value]}
    if isinstance(value, Mapping):
        return {"t": "dict", "v": [[str(k), describe(v, arrays)] for k, v in value.items()]}
    if isinstance(value, Symbol):
        return {"t": "symbol", "v": value.name}
    if isinstance(value, Construct):
        return {
            "t": "construct",
            "path": value.path,
            "args": [describe(item, arrays) for item in value.args],
            "kwargs": [[k, describe(v, arrays)] for k, v in value.kwargs.items()],
        }
    raise TypeError(
        f"cannot pass {type(value).__name__} to a kernel; allowed are arrays, numbers, strings, "
        "None, booleans, tuples, lists, dicts, dtypes, numpy ufuncs, nkisim.symbol(…) and "
        "nkisim.construct(…)"
    )


class Rebuilder:
    """Turns descriptors back into arguments inside a trace."""

    def __init__(self, recorder: Recorder, modules: Mapping[str, ModuleType]) -> None:
        self.recorder = recorder
        self.modules = modules
        self._count = 0

    def rebuild(self, data: Json, name: str = "") -> Any:
        """Return the argument that `data` describes; tensors are named after the parameter."""
        if not isinstance(data, dict):
            raise ProgramError(f"argument descriptor is {type(data).__name__}, not an object")
        kind, value = data.get("t"), data.get("v")
        if kind == "value":
            return value
        if kind == "float" and isinstance(value, str):
            return float.fromhex(value)
        if kind == "scalar":
            return np.dtype(str(data["dtype"])).type(value)
        if kind == "tensor":
            self._count += 1
            shape = data["shape"]
            assert isinstance(shape, list)
            dims = tuple(int(n) for n in shape if isinstance(n, int))
            label = name or f"arg{self._count - 1}"
            return self.recorder.add_argument(label, dims, DTYPES[str(data["dtype"])])
        if kind == "dtype":
            return DTYPES[str(value)]
        if kind == "ufunc":
            return getattr(np, str(value))
        if kind in ("tuple", "list") and isinstance(value, list):
            items = [self.rebuild(v, f"{name}.{i}" if name else "") for i, v in enumerate(value)]
            return tuple(items) if kind == "tuple" else items
        if kind == "dict" and isinstance(value, list):
            return {k: self.rebuild(v, f"{name}.{k}" if name else "") for k, v in _pairs(value)}
        if kind == "symbol":
            return self._symbol(str(value))
        if kind == "construct":
            return self._construct(data)
        raise ProgramError(f"argument descriptor of unknown kind {kind!r}")

    def _symbol(self, name: str) -> object:
        head, *rest = name.split(".")
        aliases = {"nl": "nki.language", "nisa": "nki.isa", "nki": "nki"}
        found: object = self.modules.get(aliases.get(head, head))
        if found is None:
            raise KernelError("NKS608", f"symbol {name!r}: {head!r} is not a module of NKI")
        for part in rest:
            found = getattr(found, part)
        return found

    def _construct(self, data: dict[str, Json]) -> object:
        module, _, attribute = str(data["path"]).rpartition(".")
        args, kwargs = data.get("args", []), data.get("kwargs", [])
        assert isinstance(args, list)
        assert isinstance(kwargs, list)
        factory = getattr(importlib.import_module(module), attribute)
        return factory(
            *[self.rebuild(item) for item in args],
            **{k: self.rebuild(v) for k, v in _pairs(kwargs)},
        )


def _pairs(items: list[Json]) -> list[tuple[str, Json]]:
    """Return [[name, value], …] as pairs."""
    pairs: list[tuple[str, Json]] = []
    for item in items:
        if not isinstance(item, list) or len(item) != 2:
            raise ProgramError("argument descriptor holds a malformed pair")
        pairs.append((str(item[0]), item[1]))
    return pairs
