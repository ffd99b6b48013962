"""Reads machine descriptions: TOML in, immutable `Machine` out, no key missing or unknown."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

from nkisim.errors import MachineError
from nkisim.machine.spec import (
    Confidence,
    DmaCosts,
    GpSimdCosts,
    Limits,
    Machine,
    ScalarEngineCosts,
    Source,
    TensorEngineCosts,
    VectorEngineCosts,
)

FOLDER = Path(__file__).parent
GROUPS: dict[str, type] = {
    "limits": Limits,
    "pe": TensorEngineCosts,
    "dve": VectorEngineCosts,
    "act": ScalarEngineCosts,
    "pool": GpSimdCosts,
    "dma": DmaCosts,
}
QUANTITY = ["value", "source", "confidence", "note"]
PLAIN = ("name", "core", "generation", "calibration")
ALIASES = {"gen2": "trn1", "inf2": "trn1", "gen3": "trn2", "gen4": "trn3"}


@lru_cache(maxsize=1)
def machine_names() -> tuple[str, ...]:
    """Return the names of the machines that are described."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def known_machines() -> str:
    """Return the names and aliases of the machines as text."""
    names = (
        " = ".join((name, *(alias for alias, same in ALIASES.items() if same == name)))
        for name in machine_names()
    )
    return ", ".join(names)


def load_machine(name: str) -> Machine:
    """Return a machine by name (`trn1`, `trn2`, `trn3`) or alias (`gen3`, `inf2`, …).

    Raises:
        MachineError: The name is unknown or the description is wrong.
    """
    name = ALIASES.get(name, name)
    if name not in machine_names():
        raise MachineError(f"unknown machine {name!r}; known are {known_machines()}")
    return _load(FOLDER / f"{name}.toml")


@lru_cache(maxsize=32)
def _load(path: Path) -> Machine:
    return read_machine(path)


def read_machine(path: Path) -> Machine:
    """Read one description.

    Raises:
        MachineError: Names the file and the key that is missing, unknown or of the wrong type.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise MachineError(f"{path.name}: {error}") from error
    sources: dict[str, Source] = {}
    values: dict[str, Any] = {}
    names = [field.name for field in dataclasses.fields(Machine) if field.name != "sources"]
    _same_keys(path, "", data, names)
    hints = get_type_hints(Machine)
    for key in names:
        if key in GROUPS:
            values[key] = _group(path, key, data[key], sources)
        elif key in PLAIN:
            values[key] = _typed(path, key, data[key], hints[key])
        else:
            values[key] = _quantity(path, key, data[key], hints[key], sources)
    return Machine(**values, sources=MappingProxyType(sources))


def _group(path: Path, group: str, data: object, sources: dict[str, Source]) -> object:
    if not isinstance(data, dict):
        raise MachineError(f"{path.name}: [{group}] is not a table")
    cls = GROUPS[group]
    names = [field.name for field in dataclasses.fields(cls)]
    _same_keys(path, f"{group}.", data, names)
    hints = get_type_hints(cls)
    return cls(**{k: _quantity(path, f"{group}.{k}", data[k], hints[k], sources) for k in names})


def _same_keys(path: Path, prefix: str, data: dict[str, Any], names: list[str]) -> None:
    for key in names:
        if key not in data:
            raise MachineError(f"{path.name}: {prefix}{key} is missing")
    for key in data:
        if key not in names:
            raise MachineError(f"{path.name}: unknown key {prefix}{key}")


def _quantity(
    path: Path, key: str, data: object, wanted: type, sources: dict[str, Source]
) -> object:
    if not isinstance(data, dict) or not {"value", "source", "confidence"} <= data.keys():
        raise MachineError(f"{path.name}: {key} needs value, source and confidence")
    _same_keys(path, f"{key}.", {"note": "", **data}, QUANTITY)
    if data["confidence"] not in get_args(Confidence):
        raise MachineError(
            f"{path.name}: {key}: confidence must be one of {', '.join(get_args(Confidence))}, "
            f"got {data['confidence']!r}"
        )
    sources[key] = Source(
        source=str(data["source"]), confidence=data["confidence"], note=str(data.get("note", ""))
    )
    return _typed(path, key, data["value"], wanted)


def _typed(path: Path, key: str, value: object, wanted: type) -> object:
    if wanted is float and type(value) is int:
        value = float(value)
    if type(value) is not wanted:
        raise MachineError(
            f"{path.name}: {key} must be {wanted.__name__}, got {type(value).__name__} {value!r}"
        )
    if isinstance(value, (int, float)) and not 0 <= value < math.inf:
        raise MachineError(f"{path.name}: {key} must be finite and not negative, got {value}")
    return value
