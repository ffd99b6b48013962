"""Kernels as text: what nkisim says of them, and what they compute."""

import textwrap

from nkisim.api import RunResult, TraceResult, execute_program, resolve_machine, trace_bundle
from nkisim.cli import parse_tensor
from nkisim.errors import Diagnostic, DiagnosticError
from nkisim.frontend.arguments import TensorSpec
from nkisim.sources import from_text

HEADER = "import numpy as np\nimport nki\nimport nki.isa as nisa\nimport nki.language as nl\n"
LINES_BEFORE = HEADER.count("\n")
FILE = "kernel.py"

__all__ = ["FILE", "HEADER", "RunResult", "diagnostic", "outputs", "trace"]


def _argument(value):
    found = parse_tensor(value) if isinstance(value, str) else None
    return value if found is None else TensorSpec(*found)


def trace(text, *args, machine="trn2", nki=None, entry="kernel", header=HEADER, **kwargs):
    """Trace and validate a kernel; strings such as `float32[128,512]` stand for tensors."""
    source = header + textwrap.dedent(text).lstrip("\n")
    bundle = from_text(source, file=FILE)
    given = [_argument(arg) for arg in args]
    target = resolve_machine(machine)
    return trace_bundle(bundle, entry, given, kwargs, machine=target, nki=nki)


def diagnostic(text, *args, **kwargs) -> Diagnostic:
    """Return the error of a kernel that must be refused."""
    try:
        traced = trace(text, *args, **kwargs)
    except DiagnosticError as error:
        return error.diagnostic
    raise AssertionError(f"accepted: {traced.program.kernel}")


def outputs(traced: TraceResult, *arrays):
    """Execute a traced kernel."""
    return execute_program(traced.program, arrays).outputs
