"""Runs one instruction, or one function of `nki.language`, on arrays through the whole emulator.

The kernel loads its operands, makes the call and stores the results; nothing of the emulator's
own arithmetic is used to check it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

import nkisim
from nkisim.api import run_standalone
from nkisim.dtypes import DTYPES, lookup
from nkisim.execute.interpreter import Execution, execute
from nkisim.execute.validate import validate
from nkisim.frontend.arguments import TensorSpec
from nkisim.frontend.trace import trace_kernel
from nkisim.machine.load import load_machine
from nkisim.machine.spec import Machine
from nkisim.ops.registry import ParamKind
from nkisim.ops.table import OPS

nkisim.install()

import nki.isa as nisa  # type: ignore[import-not-found]  # noqa: E402 - served by nkisim.install()
import nki.language as nl  # type: ignore[import-not-found]  # noqa: E402

Values = npt.NDArray[Any]
MACHINES = ("trn1", "trn2", "trn3")
NUMPY: dict[str, Any] = {
    "float32": np.float32,
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "float8_e4m3": ml_dtypes.float8_e4m3,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float8_e8m0fnu": ml_dtypes.float8_e8m0fnu,
    "int32": np.int32,
    "uint32": np.uint32,
    "int16": np.int16,
    "uint16": np.uint16,
    "int8": np.int8,
    "uint8": np.uint8,
}
"""How numpy stores each dtype."""

machine: Callable[[str], Machine] = cache(load_machine)


@dataclass(frozen=True)
class In:
    """An operand with values."""

    values: Values
    memory: str = "sbuf"
    dtype: str | None = None
    """NKI dtype, where the array's does not tell: tfloat32 and the packed ones."""


@dataclass(frozen=True)
class Out:
    """An operand that the instruction writes."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    memory: str = "sbuf"
    initial: Values | None = None
    """What it holds before."""


def psum(values: Values) -> In:
    return In(values, "psum")


def hbm(values: Values) -> In:
    return In(values, "hbm")


def _storage(dtype: str) -> np.dtype[Any]:
    return DTYPES[dtype].storage


def _tile(source: Any, memory: str, dtype: str, shape: tuple[int, ...]) -> Any:
    """Return a tile that holds what the HBM tensor `source` holds."""
    if memory == "hbm":
        return source
    wanted = getattr(nl, dtype)
    loaded = nl.ndarray(shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=loaded, src=source)
    if dtype == "tfloat32":
        copied = nl.ndarray(shape, dtype=wanted, buffer=nl.sbuf)
        nisa.tensor_copy(dst=copied, src=loaded)
        loaded = copied
    elif loaded.dtype != wanted:
        loaded = loaded.view(wanted)
    if memory == "sbuf":
        return loaded
    moved = nl.ndarray(shape, dtype=wanted, buffer=nl.psum)
    nisa.tensor_copy(dst=moved, src=loaded)
    return moved


def _stored(tile: Any, memory: str, dtype: str, shape: tuple[int, ...]) -> Any:
    """Return an HBM tensor with a tile's values."""
    if memory == "hbm":
        return tile
    if memory == "psum":
        copied = nl.ndarray(shape, dtype=getattr(nl, dtype), buffer=nl.sbuf)
        nisa.tensor_copy(dst=copied, src=tile)
        tile = copied
    plain = lookup(_storage(dtype))
    assert plain is not None
    if dtype == "tfloat32":
        wide = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=wide, src=tile)
        tile = wide
    elif plain.name != dtype:
        tile = tile.view(plain)
    out = nl.ndarray(shape, dtype=plain, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


def _operand(value: Any) -> In | Out | None:
    if isinstance(value, (In, Out)):
        return value
    if isinstance(value, np.ndarray):
        return In(value)
    return None


def _resolve(name: str, param: str, value: Any) -> Any:
    """Turn names of ops, enum members and engines into NKI's objects."""
    spec = OPS[name].param(param) if name in OPS else None
    if spec is None or not isinstance(value, str):
        return value
    if spec.kind is ParamKind.OP:
        return getattr(nl, value)
    if spec.kind is ParamKind.ENGINE:
        return getattr(nisa.engine, value)
    if spec.kind is ParamKind.ENUM:
        enums = {"perf_mode": nisa.matmul_perf_mode}
        return getattr(enums.get(param) or getattr(nisa, param), value)
    return value


def record(
    call: Callable[[dict[str, Any]], Any],
    arguments: Mapping[str, Any],
    *,
    on: str = "trn2",
    nki: str | None = None,
) -> tuple[Execution, tuple[Any, ...]]:
    """Trace, validate and run a kernel that loads `arguments`, calls, and stores the results.

    Returns:
        The execution, and the diagnostics of the trace.
    """
    inputs: list[Values] = []
    places: dict[tuple[str, int], tuple[In | Out, int | None]] = {}
    for name, value in arguments.items():
        for i, item in enumerate(value if isinstance(value, list) else [value]):
            operand = _operand(item)
            if operand is None:
                continue
            values = operand.values if isinstance(operand, In) else operand.initial
            places[name, i] = operand, None if values is None else len(inputs)
            if values is not None:
                inputs.append(values)

    def kernel(*tensors: Any) -> Any:
        tiles: dict[tuple[str, int], Any] = {}
        for key, (operand, at) in places.items():
            shape = operand.values.shape if isinstance(operand, In) else operand.shape
            dtype = operand.dtype
            if dtype is None:
                assert isinstance(operand, In)
                found = lookup(operand.values.dtype)
                assert found is not None
                dtype = found.name
            if at is None:
                regions = {"sbuf": nl.sbuf, "psum": nl.psum, "hbm": nl.shared_hbm}
                region = regions[operand.memory]
                tiles[key] = nl.ndarray(shape, dtype=getattr(nl, dtype), buffer=region)
            else:
                tiles[key] = _tile(tensors[at], operand.memory, dtype, shape)
        passed = {
            name: [tiles.get((name, i), item) for i, item in enumerate(value)]
            if isinstance(value, list)
            else tiles.get((name, 0), value)
            for name, value in arguments.items()
        }
        made = call(passed)
        if made is not None:
            return made
        return tuple(
            _stored(tiles[key], operand.memory, operand.dtype, operand.shape)
            for key, (operand, _) in places.items()
            if isinstance(operand, Out)
        )

    target = machine(on)
    specs = tuple(TensorSpec(v.shape, _dtype_of(v)) for v in inputs)
    traced = trace_kernel(kernel, specs, machine=target, version=nki, run=run_standalone)
    validate(traced.program, target)
    done = execute(traced.program, inputs)
    return done, traced.diagnostics


def _dtype_of(values: Values) -> Any:
    found = lookup(values.dtype)
    assert found is not None
    return found


def run(name: str, *, on: str = "trn2", nki: str | None = None, **arguments: Any) -> Any:
    """Run `nisa.<name>` and return what it wrote: an array, or a tuple of several."""

    def call(passed: dict[str, Any]) -> None:
        getattr(nisa, name)(**{k: _resolve(name, k, v) for k, v in passed.items()})

    outputs = record(call, arguments, on=on, nki=nki)[0].outputs
    return outputs[0] if len(outputs) == 1 else outputs


def run_language(name: str, *args: Any, on: str = "trn2", **kwargs: Any) -> Values:
    """Run `nl.<name>` and return its result, stored as the dtype that it has."""
    arguments = {f"arg{i}": value for i, value in enumerate(args)}

    def call(passed: dict[str, Any]) -> Any:
        tile = getattr(nl, name)(*passed.values(), **kwargs)
        return _stored(tile, str(tile.memory), tile.dtype.name, tile.shape)

    outputs = record(call, arguments, on=on)[0].outputs
    return outputs[0]
