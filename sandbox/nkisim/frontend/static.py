"""Static rules for generated kernels: early, precise help for the writer, not a wall.

The sandbox holds without them.  They refuse what the NKI compiler's Python subset has no place for
and what no kernel needs (files, processes, introspection), each with its line.
Source: NKI language guide, supported Python features.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nkisim.errors import Diagnostic, Place

ALLOWED_IMPORTS = frozenset(
    [
        "nki",
        "numpy",
        "math",
        "functools",
        "itertools",
        "operator",
        "typing",
        "dataclasses",
        "enum",
        "collections",
        "__future__",
    ]
)
FORBIDDEN_NAMES = frozenset(
    [
        "exec",
        "eval",
        "compile",
        "open",
        "input",
        "__import__",
        "globals",
        "locals",
        "vars",
        "getattr",
        "setattr",
        "delattr",
        "breakpoint",
        "exit",
        "quit",
        "help",
        "memoryview",
        "__builtins__",
        "__loader__",
        "__spec__",
    ]
)
FORBIDDEN_NUMPY = frozenset(
    [
        "load",
        "loadtxt",
        "fromfile",
        "memmap",
        "save",
        "savez",
        "savetxt",
        "tofile",
        "genfromtxt",
        "ctypeslib",
        "lib",
        "testing",
        "f2py",
        "distutils",
        "random",
    ]
)


def check_source(text: str, *, file: str = "kernel.py", entry: str = "kernel") -> list[Diagnostic]:
    """Return what the static rules object to; empty if nothing.

    Args:
        text: The kernel file.
        file: Name for messages.
        entry: Function that must be defined at top level.
    """
    lines = text.splitlines()

    def found(code: str, message: str, node: ast.AST | None, hint: str | None = None) -> Diagnostic:
        number = getattr(node, "lineno", 1)
        source = lines[number - 1].strip() if 0 < number <= len(lines) else ""
        place = Place(file=file, line=number, text=source[:200])
        return Diagnostic(code=code, message=message, place=place, hint=hint)

    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        number = error.lineno or 1
        source = lines[number - 1].strip() if 0 < number <= len(lines) else ""
        return [
            Diagnostic(
                code="NKS600",
                message=f"syntax error: {error.msg}",
                place=Place(file=file, line=number, text=source[:200]),
                hint="return one complete Python file",
            )
        ]
    except (ValueError, RecursionError, MemoryError) as error:
        return [Diagnostic(code="NKS600", message=f"the file cannot be parsed: {error}")]
    problems = [found(*item) for item in _problems(tree)]
    defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if entry not in defined:
        names = ", ".join(defined) or "none"
        problems.append(
            Diagnostic(
                code="NKS608",
                message=f"the file defines no function {entry!r} at top level",
                got=f"functions: {names}",
                hint=f"decorate the kernel with @nki.jit and call it {entry!r}",
            )
        )
    return problems


Problem = tuple[str, str, ast.AST, str | None]


def _problems(tree: ast.Module) -> Iterator[Problem]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _import(node, alias.name)
        elif isinstance(node, ast.ImportFrom):
            yield from _import(node, node.module or "")
        elif isinstance(node, ast.Name) and node.id in FORBIDDEN_NAMES:
            yield (
                "NKS610",
                f"{node.id!r} is not available to kernels",
                node,
                "a kernel only computes shapes and emits nki.isa instructions",
            )
        elif isinstance(node, ast.Attribute):
            yield from _attribute(node)
        elif isinstance(node, (ast.Try, ast.TryStar)):
            yield (
                "NKS611",
                "try/except is not part of the kernel language",
                node,
                "check shapes with if or assert",
            )
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            yield (
                "NKS611",
                "global and nonlocal are not part of the kernel language",
                node,
                "pass values as arguments and return them",
            )
        elif isinstance(node, (ast.AsyncFunctionDef, ast.Await, ast.Yield, ast.YieldFrom)):
            yield ("NKS611", "async and generators are not part of the kernel language", node, None)
        elif isinstance(node, (ast.Delete,)):
            yield ("NKS611", "del is not part of the kernel language", node, None)
        elif isinstance(node, ast.Compare) and _is_identity_test(node):
            yield (
                "NKS611",
                "`is` between values is not part of the kernel language",
                node,
                "compare with == or !=",
            )


def _is_identity_test(node: ast.Compare) -> bool:
    """Whether `is` compares anything but None."""
    if not any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
        return False
    return not any(_is_none(side) for side in (node.left, *node.comparators))


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _import(node: ast.AST, name: str) -> Iterator[Problem]:
    top = name.partition(".")[0]
    if top not in ALLOWED_IMPORTS:
        yield (
            "NKS612",
            f"import of {name!r} is not available to kernels",
            node,
            f"allowed: {', '.join(sorted(ALLOWED_IMPORTS - {'__future__'}))}",
        )


def _attribute(node: ast.Attribute) -> Iterator[Problem]:
    name = node.attr
    if name.startswith("__") and name.endswith("__"):
        yield ("NKS610", f"attribute {name!r} is not available to kernels", node, None)
    elif (
        isinstance(node.value, ast.Name)
        and node.value.id in ("np", "numpy")
        and name in FORBIDDEN_NUMPY
    ):
        yield ("NKS610", f"numpy.{name} is not available to kernels", node, None)
