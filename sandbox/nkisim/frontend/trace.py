"""Runs a kernel's Python once, without data, and returns the Program.

`trace_kernel` traces a function of this process; `trace_request` is what the sandboxed child calls:
plain data in, one message out, every error of the kernel turned into a diagnostic.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

from nkisim.errors import (
    Diagnostic,
    DiagnosticError,
    EmulatorBug,
    KernelError,
    NkisimError,
    Place,
    UnsupportedError,
    Warnings,
)
from nkisim.frontend import context
from nkisim.frontend.answer import TraceAnswer, encode_answer
from nkisim.frontend.arguments import Rebuilder, describe
from nkisim.frontend.bind import Instructions
from nkisim.frontend.entry import check_call, definition, last_return, parameter_names
from nkisim.frontend.importer import KernelImporter, ModuleSource, served
from nkisim.frontend.jit import Kernel, Runner, unwrap
from nkisim.frontend.live_arguments import Leaf, replace_arrays
from nkisim.frontend.neuronxcc.modules import build_modules as build_old_modules
from nkisim.frontend.nki.modules import build_modules
from nkisim.frontend.recorder import REGIONS, Recorder
from nkisim.frontend.source import SourceMap
from nkisim.ir.encode import encode
from nkisim.ir.program import Program
from nkisim.machine.load import load_machine, machine_names
from nkisim.machine.spec import Machine
from nkisim.ops.table import OPS

BETA1 = "beta1"
"""Name of the first generation of the language, `neuronxcc.nki`."""
NKI_VERSIONS = ("0.3", "0.4", "0.5", "0.6")
"""Versions that the front end knows how to enforce."""


RAISED_HINTS = {
    "NameError": "define the name, or import it at the top of the file",
    "ImportError": "kernels import nki, numpy and the standard library",
    "ModuleNotFoundError": "kernels import nki, numpy and the standard library; name the folder of "
    "your own modules with --search-path",
    "ZeroDivisionError": "a size or a tile count is 0: check the shape that the kernel got",
    "RecursionError": "a function calls itself without end at trace time",
    "UnboundLocalError": "give the variable a value before the branch or loop that may not run",
    "IndexError": "check the trip count against the length",
}
"""What to do about exceptions that a kernel's own Python raised."""


@dataclass(frozen=True, slots=True)
class Traced:
    """A Program and what was worth saying about it."""

    program: Program
    diagnostics: tuple[Diagnostic, ...] = ()


@lru_cache(maxsize=4)
def environment(run: Runner | None = None) -> tuple[dict[str, ModuleType], Instructions]:
    """Return the NKI modules and bound instructions of this process."""
    modules, instructions = build_modules(OPS, run)
    return {**modules, **build_old_modules(instructions, run)}, instructions


def trace_kernel(
    kernel: Kernel | Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object] | None = None,
    *,
    machine: Machine,
    version: str | None = None,
    grid: tuple[int, ...] = (),
    sources: dict[str, str] | None = None,
    run: Runner | None = None,
) -> Traced:
    """Trace a function of this process.

    Args:
        kernel: A jitted kernel or a plain function.
        args: Positional arguments; arrays stand for their shape and dtype only.
        kwargs: Keyword arguments.
        machine: Whose limits hold.
        version: NKI version to enforce, or None to accept every dialect.
        grid: Launch grid.
        sources: Text of source files by name, where they are not on disk.
        run: Called for kernels that are launched outside a trace.

    Raises:
        KernelError: The kernel breaks a rule; its place is filled in.
        UnsupportedError: nkisim does not emulate something that the kernel uses.
    """
    modules, instructions = environment(run)
    if isinstance(kernel, Kernel):
        grid = grid or kernel.grid
    recorder = Recorder(
        machine,
        version=None if version == BETA1 else version,
        instructions=instructions,
        sources=sources,
        grid=grid,
    )
    recorder.is_beta1 = recorder.is_hybrid = version == BETA1 or is_beta1(kernel)

    def rebuild(rebuilder: Rebuilder, value: object, name: str) -> object:
        def replace(leaf: Leaf, label: str) -> object:
            return rebuilder.rebuild(describe(leaf, []), label)

        return replace_arrays(value, replace, name)

    return _run(recorder, modules, unwrap(kernel), args, kwargs or {}, grid, rebuild)


def is_beta1(kernel: object) -> bool:
    """Whether a kernel is written for the first generation of the language."""
    if isinstance(kernel, Kernel) and kernel.is_beta1:
        return True
    names = getattr(unwrap(kernel), "__globals__", {})
    return any(
        isinstance(value, ModuleType)
        and value.__name__.partition(".")[0] == "neuronxcc"
        and value.__name__ != "neuronxcc.nki.typing"  # annotations of later generations too
        for value in names.values()
    )


def _run(
    recorder: Recorder,
    modules: Mapping[str, ModuleType],
    function: Callable[..., object],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    grid: tuple[int, ...],
    rebuild: Callable[[Rebuilder, Any, str], object] = Rebuilder.rebuild,
) -> Traced:
    if any(n != 1 for n in grid):
        raise UnsupportedError(
            "NKS505", f"a launch grid of {list(grid)} is not emulated yet; only one program is"
        )
    check_call(function, args, kwargs, recorder.source_map)
    rebuilder = Rebuilder(recorder, modules)
    names = parameter_names(function)
    values = [
        rebuild(rebuilder, item, names[i] if i < len(names) else "") for i, item in enumerate(args)
    ]
    named = {key: rebuild(rebuilder, item, key) for key, item in kwargs.items()}
    token = context.activate(recorder)
    try:
        returned = function(*values, **named)
        program = _finish(recorder, function, returned)
    except BaseException as error:
        raise explain(error, recorder.source_map) from error
    finally:
        context.deactivate(token)
    return Traced(program, tuple(recorder.warnings.items))


def _finish(recorder: Recorder, function: Callable[..., object], returned: object) -> Program:
    try:
        return recorder.finish(getattr(function, "__name__", "kernel"), returned)
    except KernelError as error:
        place = last_return(function, recorder.source_map)
        place = place or definition(function, recorder.source_map)
        raise error if place is None else error.at(place) from error.__cause__


def explain(error: BaseException, source_map: SourceMap) -> NkisimError:
    """Turn whatever a kernel raised into a diagnostic with the kernel's line."""
    place, callers = source_map.of_traceback(error.__traceback__)
    if isinstance(error, DiagnosticError):
        return error.at(place, callers) if place is not None else error
    if isinstance(error, NkisimError):
        return error
    if isinstance(error, SyntaxError):
        where = Place(
            file=error.filename or "kernel.py",
            line=error.lineno or 0,
            text=(error.text or "").strip()[:200],
        )
        return KernelError("NKS600", f"syntax error: {error.msg}", place=where)
    if place is None and not isinstance(error, (SystemExit, KeyboardInterrupt)):
        return EmulatorBug(f"tracing failed inside nkisim: {type(error).__name__}: {error}")
    name = type(error).__name__
    text = str(error)[:500]
    if isinstance(error, MemoryError):
        return KernelError(
            "NKS206",
            "tracing ran out of memory",
            hint="only tile shapes are needed at trace time; do not build large Python objects",
            place=place,
            callers=callers,
        )
    if isinstance(error, AssertionError):
        return KernelError(
            "NKS603",
            f"an assertion of the kernel failed: {text or '(no message)'}",
            hint="the kernel does not accept this shape; handle it or relax the assertion",
            place=place,
            callers=callers,
        )
    if isinstance(error, TypeError) and any(kind in text for kind in ("NkiTensor", "Register")):
        return KernelError(
            "NKS404",
            f"Python cannot use a value of the device: {text}",
            hint="values are not known at trace time: loop with nl.fori_loop over a register that "
            "nisa.register_load fills, index with nl.ds(register, size), select with nl.where",
            place=place,
            callers=callers,
        )
    return KernelError(
        "NKS603",
        f"the kernel raised {name}: {text}".rstrip(": "),
        hint=RAISED_HINTS.get(name),
        place=place,
        callers=callers,
    )


def prepare() -> None:
    """Load all that a confined child cannot read any more; the fork server calls this once."""
    for name in machine_names():
        load_machine(name)
    environment(None)


# -- the child's side ---------------------------------------------------------------------------


def trace_request(request: Mapping[str, Any]) -> bytes:
    """Trace what a request describes and return the encoded answer.

    Args:
        request: `sources` {module: {file, text, is_package}}, `main`, `entry`, `args`, `kwargs`
            (descriptors), `machine`, `nki` (version or None), `grid`, `stand_ins`.

    Returns:
        An answer for `nkisim.frontend.answer.decode_answer`: a Program or a diagnostic.
    """
    sources = {
        str(name): ModuleSource(
            str(item["file"]), str(item["text"]), bool(item.get("is_package", False))
        )
        for name, item in request["sources"].items()
    }
    texts = {source.file: source.text for source in sources.values()}
    warnings = Warnings()
    source_map = SourceMap(texts)
    try:
        traced = _trace_sources(request, sources, texts, warnings)
    except BaseException as error:
        found = explain(error, source_map)
        if isinstance(found, DiagnosticError):
            return encode_answer(TraceAnswer(None, found.diagnostic, tuple(warnings.items)))
        bug = Diagnostic(code="NKS900", kind="error", message=f"emulator bug: {found}"[:1000])
        return encode_answer(TraceAnswer(None, bug, tuple(warnings.items)))
    return encode_answer(
        TraceAnswer(encode(traced.program), None, (*warnings.items, *traced.diagnostics))
    )


def _trace_sources(
    request: Mapping[str, Any],
    sources: Mapping[str, ModuleSource],
    texts: dict[str, str],
    warnings: Warnings,
) -> Traced:
    modules, instructions = environment(None)
    version = request.get("nki")
    extra: dict[str, object] = {}
    if version in (None, BETA1):
        # Names that older kernels use without importing them.
        extra = {"sbuf": REGIONS["sbuf"], "psum": REGIONS["psum"], "hbm": REGIONS["private_hbm"]}
    importer = KernelImporter(
        sources,
        globals_=extra,
        stand_ins=bool(request.get("stand_ins", True)),
        warnings=warnings,
    )
    machine = load_machine(str(request["machine"]))
    grid = tuple(int(n) for n in request.get("grid") or ())
    recorder = Recorder(
        machine,
        version=None if version == BETA1 else version,
        instructions=instructions,
        sources=texts,
        grid=grid,
    )
    with served(importer, modules):
        module = importlib.import_module(str(request["main"]))
        entry = getattr(module, str(request["entry"]), None)
        if entry is None:
            defined = [n for n, v in vars(module).items() if isinstance(v, Kernel)]
            raise KernelError(
                "NKS608",
                f"{sources[str(request['main'])].file} defines no {request['entry']!r}",
                allowed=f"kernels in the file: {', '.join(defined)}" if defined else None,
                hint=f"name the kernel function {request['entry']!r} and decorate it with @nki.jit",
            )
        recorder.is_beta1 = recorder.is_hybrid = version == BETA1 or is_beta1(entry)
        return _run(
            recorder, modules, unwrap(entry), request["args"], request.get("kwargs", {}), grid
        )
