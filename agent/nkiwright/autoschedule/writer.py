"""Writes kernel source: indentation, names, allocations, and the account of what they take.

The text is meant to be edited by people: one instruction a line where it fits, constants with
names, a comment where a step is not obvious.  Lines before the loops and inside them are kept
apart, so that what is hoisted can be decided while the body is written.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from nkisim.dtypes import DTYPES
from nkiwright.autoschedule.plan import Plan, Queue, plan_to_json
from nkiwright.autoschedule.problem import Problem

_WIDTH = 96
INDENT = "    "


class Lines:
    """A growing block of source at some depth."""

    def __init__(self, depth: int = 1) -> None:
        self._depth = depth
        self._lines: list[str] = []

    @property
    def depth(self) -> int:
        """Indentation of the next line."""
        return self._depth

    def add(self, text: str = "") -> None:
        """Add one line."""
        self._lines.append(f"{INDENT * self._depth}{text}" if text else "")

    def comment(self, text: str) -> None:
        """Add a comment, wrapped."""
        room = _WIDTH - len(INDENT) * self._depth
        for line in textwrap.wrap(text, room - 2):
            self.add(f"# {line}")

    def call(self, function: str, *arguments: str) -> None:
        """Add a call, on one line if it fits."""
        line = f"{function}({', '.join(arguments)})"
        if len(line) + len(INDENT) * self._depth <= _WIDTH:
            self.add(line)
            return
        self.add(f"{function}(")
        for argument in arguments:
            self.add(f"{INDENT}{argument},")
        self.add(")")

    def allocate(
        self, name: str, shape: Sequence[object], dtype: str, memory: str = "sbuf"
    ) -> None:
        """Add the allocation of a tile."""
        sizes = ", ".join(map(str, shape))
        arguments = (f"({sizes})", f"dtype=nl.{dtype}", f"buffer=nl.{memory}")
        line = f"{name} = nl.ndarray({', '.join(arguments)})"
        if len(line) + len(INDENT) * self._depth <= _WIDTH:
            self.add(line)
            return
        self.add(f"{name} = nl.ndarray(")
        inner = ", ".join(arguments)
        if len(inner) + len(INDENT) * (self._depth + 1) <= _WIDTH:
            self.add(f"{INDENT}{inner}")
        else:
            for argument in arguments:
                self.add(f"{INDENT}{argument},")
        self.add(")")

    def extend(self, other: Lines) -> None:
        """Append another block, whose depth is its own."""
        self._lines.extend(other._lines)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add a compound statement and indent what follows."""
        self.add(head)
        self._depth += 1
        yield
        self._depth -= 1

    @property
    def text(self) -> str:
        """Everything so far."""
        return "\n".join(self._lines)

    def __bool__(self) -> bool:
        return bool(self._lines)


class Names:
    """Gives out each identifier once."""

    def __init__(self, taken: Sequence[str]) -> None:
        self._taken = set(taken)

    def new(self, wish: str) -> str:
        """Return `wish`, or `wish2`, … if it is taken."""
        name, number = wish, 1
        while name in self._taken:
            number += 1
            name = f"{wish}{number}"
        self._taken.add(name)
        return name


class Account:
    """Adds up bytes per partition at each set of sizes.

    Args:
        count: Sets of sizes that the function was traced at.
        known: How many of them, the first ones, the kernel has to fit.
    """

    def __init__(self, count: int, known: int) -> None:
        self._bytes = [0] * count
        self._known = known
        self.banks = 0

    def sbuf(self, elements: Sequence[int], dtype: str, copies: int = 1) -> None:
        """Count a tile of `elements` per partition, one number per set of sizes."""
        for i, number in enumerate(elements):
            self._bytes[i] += number * DTYPES[dtype].itemsize * copies

    def psum(self, banks: int, copies: int = 2) -> None:
        """Count PSUM banks of a tile that rotates over `copies` addresses."""
        self.banks += banks * copies

    @property
    def sbuf_bytes(self) -> tuple[int, ...]:
        """Bytes so far."""
        return tuple(self._bytes[: self._known])


def queue_arguments(queue: Queue, index: int = 0) -> tuple[str, ...]:
    """Return the arguments of dma_copy that choose who issues it.

    Args:
        queue: The plan's choice.
        index: Which of several tensors is copied, for `spread`.
    """
    if queue == "spread":
        queue = "scalar" if index % 2 else "sync"
    if queue == "default":
        return ()
    if queue == "gpsimd":
        return ("engine=nisa.engine.gpsimd", "dge_mode=nisa.dge_mode.swdge")
    return (f"engine=nisa.engine.{queue}", "dge_mode=nisa.dge_mode.hwdge")


def header(problem: Problem, plan: Plan, *, what: str) -> list[str]:
    """Return the module docstring and imports of a kernel."""
    inputs = ", ".join(
        f"{a.name} [{', '.join(map(str, a.shape))}] {a.dtype}" for a in problem.inputs
    )
    return [
        f'"""{problem.name}: {what}',
        "",
        *textwrap.wrap(f"Inputs: {inputs}.", _WIDTH),
        "Written by autoschedule, no model.  NKI 0.6.",
        *textwrap.wrap(f"Plan: {plan_to_json(plan)}", _WIDTH, break_long_words=False),
        '"""',
        "",
        "import nki",
        "import nki.isa as nisa",
        "import nki.language as nl",
        "",
        "",
        "@nki.jit",
        f"def kernel({signature(problem)}):",
    ]


def signature(problem: Problem) -> str:
    """Return the kernel's parameters: inputs, then scalars with the problem's values."""
    parts = [a.name for a in problem.inputs]
    parts += [f"{name}={value!r}" for name, value in problem.scalars.items()]
    return ", ".join(parts)


def unpack_sizes(problem: Problem) -> list[str]:
    """Return statements that give the symbolic dimensions their names."""
    known: set[str] = set()
    lines = []
    for argument in problem.inputs:
        names = [s for s in argument.shape if isinstance(s, str)]
        new = [n for n in names if n not in known]
        if not new:
            continue
        if len(argument.shape) == len(set(names)) and len(names) == len(argument.shape):
            targets = ", ".join(n if n in new else "_" for n in names)
            if len(names) == 1:
                lines.append(f"{names[0]} = {argument.name}.shape[0]")
            else:
                lines.append(f"{targets} = {argument.name}.shape")
        else:
            lines += [
                f"{n} = {argument.name}.shape[{argument.shape.index(n)}]"
                for n in dict.fromkeys(new)
            ]
        known.update(new)
    return lines


def shape_text(sizes: Sequence[str | int]) -> str:
    """Return a tuple of sizes as source."""
    inner = ", ".join(map(str, sizes))
    return f"({inner},)" if len(sizes) == 1 else f"({inner})"
