"""What nkisim offers to Python: run a kernel file, simulate a function, check, profile.

A person's own kernel may run in this process (`simulate`, `isolated=False`); `run_file` traces in a
sandboxed child unless told otherwise.  Values never enter the child: it returns a Program, which is
validated and executed here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nkisim.errors import (
    Diagnostic,
    DiagnosticError,
    KernelError,
    NkisimError,
    UnsupportedError,
)
from nkisim.execute.fuel import Fuel
from nkisim.execute.interpreter import Execution, execute
from nkisim.execute.precision import with_float32_storage
from nkisim.execute.validate import validate
from nkisim.frontend.answer import TraceAnswer, decode_answer
from nkisim.frontend.arguments import Construct, Symbol, TensorSpec, describe
from nkisim.frontend.jit import Kernel
from nkisim.frontend.live_arguments import find_arrays
from nkisim.frontend.trace import environment, trace_kernel, trace_request
from nkisim.ir.encode import decode
from nkisim.ir.program import Program
from nkisim.machine.load import load_machine
from nkisim.machine.spec import Machine
from nkisim.profile.model import Profile, profile_program
from nkisim.sources import Bundle, collect
from nkisim.timing.reorder import Schedule
from nkisim.worker import ChildAnswer, Sandbox

TRACE_TARGET = "nkisim.frontend.trace:trace_request"
Arrays = tuple[npt.NDArray[np.generic], ...]


class TraceFailed(NkisimError):
    """The sandboxed child gave no answer: it hung, crashed or was stopped by a limit."""

    def __init__(self, status: str, message: str) -> None:
        self.status = status
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class TraceResult:
    """A Program that came out of the child, decoded and validated."""

    program: Program
    encoded: bytes
    diagnostics: tuple[Diagnostic, ...]
    stdout: str
    layers: tuple[str, ...]
    """Isolation layers that were active; empty when traced in this process."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """One emulated launch of a kernel."""

    outputs: Arrays
    """What the kernel returned, in its own dtypes."""
    profile: Profile
    program: Program
    diagnostics: tuple[Diagnostic, ...]
    """Warnings and notes; errors are raised."""
    stdout: str = ""
    """What the kernel printed while it was traced."""
    layers: tuple[str, ...] = ()

    def __repr__(self) -> str:
        shapes = ", ".join(f"{o.dtype}{list(o.shape)}" for o in self.outputs)
        return f"RunResult({shapes}; {self.profile.latency_ns:,.0f} ns emulated)"


def symbol(name: str) -> Symbol:
    """Name something of NKI for a kernel argument, e.g. `symbol("nl.add")`."""
    return Symbol(name)


def construct(path: str, /, *args: object, **kwargs: object) -> Construct:
    """Describe an object built where the kernel runs, e.g. `construct("cfg.Config", n=2)`."""
    return Construct(path, args, kwargs)


def resolve_machine(machine: str | Machine | None) -> Machine:
    """Return the machine named by the argument, by NEURON_PLATFORM_TARGET_OVERRIDE, or trn2."""
    if isinstance(machine, Machine):
        return machine
    return load_machine(machine or os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE") or "trn2")


def trace_bundle(
    bundle: Bundle,
    entry: str,
    args: Sequence[object],
    kwargs: Mapping[str, object] | None = None,
    *,
    machine: Machine,
    nki: str | None = None,
    grid: Sequence[int] | None = None,
    sandbox: Sandbox | None = None,
    wall_seconds: float = 60.0,
    stand_ins: bool = True,
    cold: bool = False,
    allow_unwritten_reads: bool = False,
    allow_overflow: bool = False,
) -> TraceResult:
    """Trace a kernel from text, in `sandbox` if one is given, else in this process.

    Args:
        bundle: The kernel's module and what it imports.
        entry: Name of the kernel function.
        args: Arguments; arrays and `TensorSpec`s stand for shape and dtype only.
        kwargs: Keyword arguments.
        machine: Whose limits hold.
        nki: NKI version to enforce, or None to accept every dialect.
        grid: Launch grid.
        sandbox: Where to run the kernel's Python.
        wall_seconds: Limit for tracing.
        stand_ins: Whether missing host-only modules become inert stand-ins.
        cold: Use a fresh process instead of the fork server.
        allow_unwritten_reads: Let the kernel read fresh memory, which holds poison.
        allow_overflow: Let more tiles live at one time than fit on chip.

    Raises:
        KernelError: The kernel breaks a rule.
        UnsupportedError: nkisim does not emulate something that it uses.
        TraceFailed: The child hung, crashed or exceeded a limit.
    """
    arrays: list[npt.NDArray[np.generic]] = []
    request: dict[str, object] = {
        "sources": bundle.sources,
        "main": bundle.main,
        "entry": entry,
        "args": [describe(arg, arrays) for arg in args],
        "kwargs": {key: describe(value, arrays) for key, value in (kwargs or {}).items()},
        "machine": machine.name,
        "nki": nki,
        "grid": list(grid or ()),
        "stand_ins": stand_ins,
    }
    stdout = ""
    layers: tuple[str, ...] = ()
    if sandbox is None:
        answer = decode_answer(trace_request(request))
    else:
        child = sandbox.run(request, target=TRACE_TARGET, wall_seconds=wall_seconds, cold=cold)
        answer = _answer(child, wall_seconds)
        stdout, layers = child.stdout, tuple(child.layers.active)
    if answer.diagnostic is not None:
        raise _error(answer.diagnostic)
    assert answer.program is not None
    program = decode(answer.program)
    validate(
        program,
        machine,
        allow_unwritten_reads=allow_unwritten_reads,
        allow_overflow=allow_overflow,
    )
    return TraceResult(program, answer.program, answer.diagnostics, stdout, layers)


def _answer(child: ChildAnswer, wall_seconds: float) -> TraceAnswer:
    if child.status == "ok":
        return decode_answer(child.payload)
    reasons = {
        "timeout": f"the kernel's Python did not finish within {wall_seconds:g} s; "
        "an endless loop, or far too many unrolled instructions",
        "memory": "the kernel's Python ran out of memory while tracing",
        "output_limit": "the kernel's Python printed without end",
        "answer_too_large": "the traced program is too large to return",
        "crashed": "the kernel's Python crashed its process",
        "protocol_error": "the kernel's process answered with something that is not a Program",
    }
    message = reasons.get(child.status, f"tracing ended with status {child.status!r}")
    raise TraceFailed(child.status, message)


def _error(diagnostic: Diagnostic) -> DiagnosticError:
    kind = UnsupportedError if diagnostic.kind == "unsupported" else KernelError
    error = kind(diagnostic.code, diagnostic.message)
    error.diagnostic = diagnostic
    return error


def _tensor_arguments(
    args: Sequence[object], kwargs: Mapping[str, object]
) -> list[npt.NDArray[np.generic]]:
    arrays: list[npt.NDArray[np.generic]] = []
    for value in (*args, *kwargs.values()):
        describe(value, arrays)
    return arrays


def execute_program(
    program: Program, arrays: Sequence[npt.NDArray[np.generic]], *, fuel: Fuel | None = None
) -> Execution:
    """Execute a Program on arrays; honours NKI_PRECISE_FP=0."""
    if os.environ.get("NKI_PRECISE_FP") == "0":
        program = with_float32_storage(program)
    return execute(program, arrays, fuel=fuel or Fuel(), allow_unwritten_reads=True)


def _finish(
    program: Program,
    machine: Machine,
    arrays: list[npt.NDArray[np.generic]],
    diagnostics: tuple[Diagnostic, ...],
    stdout: str,
    layers: tuple[str, ...],
    order: Schedule | None = None,
) -> RunResult:
    execution = execute_program(program, arrays)
    for number, values in execution.written_arguments.items():
        given = arrays[number]
        if not given.flags.writeable:
            raise NkisimError(
                f"the kernel writes into argument {program.arguments[number].name!r}, "
                "but the array given for it is read-only"
            )
        given[...] = values.reshape(given.shape)
    executed = None if execution.trips is None else execution.trips.executed
    profile = profile_program(program, machine, executed=executed, order=order)
    notes = (*diagnostics, *execution.warnings)
    return RunResult(execution.outputs, profile, program, notes, stdout, layers)


def run_file(
    path: str | Path,
    entry: str,
    args: Sequence[object],
    kwargs: Mapping[str, object] | None = None,
    *,
    grid: int | Sequence[int] | None = None,
    machine: str | Machine | None = None,
    nki: str | None = None,
    isolated: bool = True,
    search_path: Sequence[str | Path] = (),
    wall_seconds: float = 120.0,
    order: Schedule | None = None,
) -> RunResult:
    """Run a kernel of a file on arrays and return outputs, emulated profile and Program.

    Args:
        path: The file; it may import siblings and modules from `search_path`.
        entry: Name of the kernel function in it.
        args: Arguments: arrays, numbers, strings, None, booleans, tuples, lists, dicts, dtypes,
            numpy ufuncs, `symbol(…)` and `construct(…)`.
        kwargs: Keyword arguments of the same kinds.
        grid: Launch grid.
        machine: `trn1`, `trn2` or `trn3`; default NEURON_PLATFORM_TARGET_OVERRIDE, else trn2.
        nki: NKI version to enforce, or None to accept every dialect.
        isolated: Trace in a sandboxed child; False runs the kernel's Python in this process.
        search_path: Folders that the file may import from.
        wall_seconds: Limit for tracing.
        order: Time the instructions in `program` order or as a `list` scheduler orders them;
            default: as the kernel's compiler does.

    Returns:
        The result; kernels that write into their arguments have done so in the arrays given.
    """
    target = resolve_machine(machine)
    launch = (grid,) if isinstance(grid, int) else tuple(grid or ())
    bundle = collect(path, search_path)
    sandbox = Sandbox() if isolated else None
    try:
        traced = trace_bundle(
            bundle,
            entry,
            args,
            kwargs,
            machine=target,
            nki=nki,
            grid=launch,
            sandbox=sandbox,
            wall_seconds=wall_seconds,
            allow_unwritten_reads=True,
        )
    finally:
        if sandbox is not None:
            sandbox.close()
    arrays = _tensor_arguments(args, kwargs or {})
    return _finish(
        traced.program,
        target,
        arrays,
        traced.diagnostics,
        traced.stdout,
        traced.layers,
        order,
    )


def run_kernel(
    kernel: Kernel | Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object] | None = None,
    *,
    machine: str | Machine | None = None,
    nki: str | None = None,
) -> RunResult:
    """Run a kernel function of this process on arrays, without a sandbox."""
    target = resolve_machine(machine)
    traced = trace_kernel(kernel, args, kwargs, machine=target, version=nki, run=run_standalone)
    validate(traced.program, target, allow_unwritten_reads=True)
    arrays = find_arrays(args, kwargs or {})
    return _finish(traced.program, target, arrays, traced.diagnostics, "", ())


def simulate(
    kernel: Kernel | Callable[..., object], *, machine: str | Machine | None = None
) -> Callable[..., object]:
    """Return a function that runs `kernel` on numpy arrays, as `nki.simulate` does.

    The kernel's Python runs in this process.  The result is an array, or a tuple of arrays.
    """

    def call(*args: object, **kwargs: object) -> object:
        outputs = run_kernel(kernel, args, kwargs, machine=machine).outputs
        return outputs[0] if len(outputs) == 1 else outputs

    return call


def run_standalone(kernel: Kernel, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """Run a jitted kernel that was called like a function outside a trace."""
    result = run_kernel(kernel, args, kwargs)
    kernel.measured.latency_ns = result.profile.latency_ns
    return result.outputs[0] if len(result.outputs) == 1 else result.outputs


def install() -> None:
    """Make `import nki` and `import neuronxcc.nki` work in this process.

    A package of that name that is installed already stays.

    Kernel files of your own can then be imported and passed to `simulate`.
    """
    import importlib.util
    import sys

    modules, _ = environment(run_standalone)
    for top in ("nki", "neuronxcc"):
        if top not in sys.modules and importlib.util.find_spec(top) is None:
            sys.modules.update(
                {name: m for name, m in modules.items() if name.partition(".")[0] == top}
            )


def check(
    path: str | Path,
    entry: str,
    args: Sequence[object],
    kwargs: Mapping[str, object] | None = None,
    *,
    machine: str | Machine | None = None,
    nki: str | None = None,
    search_path: Sequence[str | Path] = (),
    isolated: bool = True,
) -> tuple[Diagnostic, ...]:
    """Trace and validate a kernel without running it; return every diagnostic, errors first."""
    target = resolve_machine(machine)
    sandbox = Sandbox() if isolated else None
    try:
        traced = trace_bundle(
            collect(path, search_path),
            entry,
            args,
            kwargs,
            machine=target,
            nki=nki,
            sandbox=sandbox,
        )
    except DiagnosticError as error:
        return (error.diagnostic,)
    finally:
        if sandbox is not None:
            sandbox.close()
    return traced.diagnostics


__all__ = [
    "Profile",
    "RunResult",
    "TensorSpec",
    "TraceFailed",
    "check",
    "construct",
    "execute_program",
    "install",
    "resolve_machine",
    "run_file",
    "run_kernel",
    "simulate",
    "symbol",
    "trace_bundle",
]
