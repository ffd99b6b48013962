"""Traces the kernels that measurements are bound to; keeps Programs in a folder if asked to."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import nkisim
from nkisim.api import TensorSpec, trace_bundle
from nkisim.calibrate.bindings import Binding
from nkisim.calibrate.errors import CalibrationError
from nkisim.calibrate.extract import code_block
from nkisim.cli import parse_tensor, parse_value
from nkisim.errors import NkisimError
from nkisim.execute.interpreter import execute
from nkisim.ir.encode import decode
from nkisim.ir.program import IntColumn, Program
from nkisim.machine.spec import Machine
from nkisim.memory.capacity import check_capacity
from nkisim.sources import Bundle, collect, from_text
from nkisim.worker import Sandbox

WALL_SECONDS = 300.0
_PARTS = ("frontend", "ops", "ir", "memory", "execute", "api.py", "dtypes.py", "sources.py")
"""What a traced Program depends on."""


@dataclass(frozen=True, slots=True)
class Traced:
    """A Program and, if the device runs loops, the order in which it executes."""

    program: Program
    executed: IntColumn | None
    overflow: str
    """Why its tiles do not fit on chip, or empty."""


class Tracer:
    """Traces bindings, in a sandboxed child unless told otherwise."""

    def __init__(self, kernels: Path, *, cache: Path | None = None, isolated: bool = True) -> None:
        """Prepare to trace.

        Args:
            kernels: Folder below which kernel files are found.
            cache: Folder to keep traced Programs in.
            isolated: Whether the kernels' Python runs in a sandboxed child.
        """
        self.kernels, self.cache = kernels, cache
        self._sandbox = Sandbox() if isolated else None
        self._version = _version() if cache is not None else ""

    def close(self) -> None:
        """End the sandbox."""
        if self._sandbox is not None:
            self._sandbox.close()

    def trace(self, binding: Binding, machine: Machine, variant: str = "") -> Traced:
        """Trace one kernel for `machine`.

        Raises:
            CalibrationError: The file is not there, or the arguments cannot be read.
            NkisimError: The kernel is refused.
        """
        bundle = self._bundle(binding, variant)
        args = [argument(value) for value in binding.args]
        kwargs = {name: argument(value) for name, value in binding.kwargs.items()}
        stored = self._stored(bundle, binding, machine)
        if stored is not None and stored.is_file():
            program = decode(stored.read_bytes())
        else:
            result = trace_bundle(
                bundle,
                binding.entry,
                args,
                kwargs,
                machine=machine,
                grid=binding.grid,
                sandbox=self._sandbox,
                wall_seconds=WALL_SECONDS,
                allow_unwritten_reads=True,
                allow_overflow=True,
            )
            program = result.program
            if stored is not None:
                stored.parent.mkdir(parents=True, exist_ok=True)
                stored.write_bytes(result.encoded)
        overflow = ""
        try:
            check_capacity(program, machine)
        except NkisimError as error:
            overflow = str(error).splitlines()[0]
        return Traced(program, _executed(program, args, kwargs), overflow)

    def _bundle(self, binding: Binding, variant: str) -> Bundle:
        if binding.source is not None:
            return from_text(binding.prelude + binding.source)
        path = binding.path(self.kernels, variant)
        if not path.is_file():
            raise CalibrationError(f"there is no kernel file {str(path)!r}")
        if binding.block is None and not binding.prelude and not binding.replace:
            return collect(path, [self.kernels / folder for folder in binding.search_path])
        text = path.read_text(encoding="utf-8")
        if binding.block is not None:
            text = code_block(text, binding.block, path.name)
        for pattern, replacement in binding.replace:
            text, found = re.subn(pattern, replacement, text)
            if not found:
                raise CalibrationError(f"{path.name} holds nothing like {pattern!r}")
        return from_text(binding.prelude + text, file=f"{path.stem}.py")

    def _stored(self, bundle: Bundle, binding: Binding, machine: Machine) -> Path | None:
        if self.cache is None:
            return None
        asked = (bundle.sources, binding.entry, binding.args, dict(binding.kwargs), binding.grid)
        key = repr((self._version, machine.name, machine.limits, asked))
        return self.cache / f"{hashlib.sha256(key.encode()).hexdigest()}.nkip"


def argument(value: object) -> object:
    """Return a kernel argument: strings as on the command line, tensors without values."""
    if isinstance(value, list):
        return tuple(argument(item) for item in value)
    if isinstance(value, Mapping):
        return {name: argument(item) for name, item in value.items()}
    if not isinstance(value, str):
        return value
    tensor = parse_tensor(value)
    return parse_value(value) if tensor is None else TensorSpec(*tensor)


def _executed(
    program: Program, args: list[object], kwargs: Mapping[str, object]
) -> IntColumn | None:
    """Execute Programs with device loops on zeros, to learn their trips."""
    if not program.loops:
        return None
    arrays = [
        np.zeros(spec.shape, dtype=spec.dtype.storage)
        for spec in (*args, *kwargs.values())
        if isinstance(spec, TensorSpec)
    ]
    trips = execute(program, arrays, allow_unwritten_reads=True).trips
    return None if trips is None else trips.executed


def _version() -> str:
    """Return a digest of the modules that make a Program what it is."""
    digest = hashlib.sha256()
    root = Path(nkisim.__file__).parent
    for part in _PARTS:
        path = root / part
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()
