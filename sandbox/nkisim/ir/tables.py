"""Decodes the small tables of an encoded Program, trusting nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from nkisim.errors import Place, ProgramError
from nkisim.ir.access import Pattern
from nkisim.ir.program import Argument, AttrValue, Form, Index, Loop, Operand, Output, Site
from nkisim.ir.strict import Reader
from nkisim.machine.spec import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLimits:
    """How large a frame and its parts may be."""

    frame_bytes: int = 256 << 20
    header_bytes: int = 16 << 20
    instructions: int = 2_000_000
    operands: int = 16_000_000
    buffers: int = 2_000_000
    forms: int = 20_000
    patterns: int = 40_000
    sites: int = 100_000
    strings: int = 200_000
    string_chars: int = 2_000
    loops: int = 10_000
    arguments: int = 1_000
    registers: int = 4_096
    form_operands: int = 64
    form_attrs: int = 64
    attr_items: int = 100_000
    """Items of one attribute, nested ones included."""
    rank: int = 16
    size: int = 1 << 46
    """Elements of a buffer, counts, strides and offsets."""
    constants: int = 10_000
    constant_bytes: int = 1 << 20
    """The machine's `constant_bytes_max`, unless the task allows more."""


DEFAULT_LIMITS: Final = DecodeLimits()
MAX_NAME_BYTES = 200


@dataclass(frozen=True, slots=True)
class Tables:
    """Reads the tables of a header."""

    read: Reader
    limits: DecodeLimits
    count: dict[str, int]
    strings: list[str]

    def constants(self, value: object) -> list[tuple[np.dtype[np.generic], tuple[int, ...]]]:
        """Return numpy dtype and shape of each constant."""
        found = []
        for row in self.read.array(value, "constants", self.limits.constants):
            name, shape = self.read.row(row, "constant", 2)
            found.append((self.read.dtype(name).storage, self._shape(shape)))
        total = sum(prod(shape) * dtype.itemsize for dtype, shape in found)
        if total > self.limits.constant_bytes:
            raise ProgramError(
                f"encoded Program: constants of {total:,} bytes exceed the limit of "
                f"{self.limits.constant_bytes:,}"
            )
        return found

    def _shape(self, value: object, low: int = 1) -> tuple[int, ...]:
        size, rank = self.limits.size, self.limits.rank
        return tuple(
            self.read.integer(n, "dimension", low, size)
            for n in self.read.array(value, "shape", rank)
        )

    def patterns(self, value: object) -> tuple[Pattern, ...]:
        """Return the pattern table."""
        read, limits = self.read, self.limits
        found = []
        for row in read.array(value, "patterns", limits.patterns):
            counts, strides, dtype = read.row(row, "pattern", 3)
            pattern = Pattern(
                self._shape(counts), self._shape(strides, -limits.size), read.dtype(dtype)
            )
            if len(pattern.counts) != len(pattern.strides):
                raise ProgramError("encoded Program: a pattern's counts and strides differ in rank")
            reach = sum(
                (c - 1) * abs(s) for c, s in zip(pattern.counts, pattern.strides, strict=True)
            )
            if pattern.size > limits.size or reach > limits.size:
                raise ProgramError("encoded Program: a pattern is too large")
            found.append(pattern)
        return tuple(found)

    def forms(self, value: object, patterns: Sequence[Pattern]) -> tuple[Form, ...]:
        """Return the form table."""
        read, limits = self.read, self.limits
        found = []
        for row in read.array(value, "forms", limits.forms):
            op, engine, attrs, operands = read.row(row, "form", 4)
            rows = [
                read.row(r, "attribute", 2)
                for r in read.array(attrs, "attributes", limits.form_attrs)
            ]
            pairs = tuple(
                (read.identifier(name, "attribute name"), self.attr(item)) for name, item in rows
            )
            if [name for name, _ in pairs] != sorted({name for name, _ in pairs}):
                raise ProgramError("encoded Program: attributes are not sorted or not unique")
            found.append(
                Form(
                    read.identifier(op, "op"),
                    read.member(engine, "engine", Engine),
                    pairs,
                    tuple(
                        self._operand(item, patterns)
                        for item in read.array(operands, "operands", limits.form_operands)
                    ),
                )
            )
        return tuple(found)

    def attr(self, value: object) -> AttrValue:
        """Return an attribute with lists turned into tuples."""
        left = self.limits.attr_items

        def convert(value: object, depth: int) -> AttrValue:
            nonlocal left
            left -= 1
            if left < 0 or depth > 8:
                raise ProgramError("encoded Program: an attribute is too large")
            if value is None or isinstance(value, (bool, float)):
                return value
            if isinstance(value, int):
                return self.read.integer(value, "attribute", -(2**63), 2**64)
            if isinstance(value, str):
                return self.read.string(value, "attribute", self.limits.string_chars)
            if isinstance(value, list):
                return tuple(convert(item, depth + 1) for item in value)
            raise ProgramError(f"encoded Program: an attribute is a {type(value).__name__}")

        return convert(value, 0)

    def _operand(self, value: object, patterns: Sequence[Pattern]) -> Operand:
        read, size = self.read, self.limits.size
        role, pattern, memory, dynamic = read.row(value, "operand", 4)
        index = None
        if dynamic is not None:
            kind, step, bound, is_skip = read.row(dynamic, "index", 4)
            index = Index(
                "vector"
                if read.choice(kind, "index", ("scalar", "vector")) == "vector"
                else "scalar",
                read.integer(step, "index step", -size, size),
                read.integer(bound, "index bound", 0, size),
                read.boolean(is_skip, "is_skip"),
            )
        return Operand(
            read.identifier(role, "role"),
            patterns[read.integer(pattern, "pattern", 0, len(patterns) - 1)],
            read.memory(memory),
            index,
        )

    def sites(self, value: object) -> tuple[Site, ...]:
        """Return the site table."""
        read = self.read

        def place(value: object) -> Place:
            file, line, text = read.row(value, "place", 3)
            last = len(self.strings) - 1
            return Place(
                file=self.strings[read.integer(file, "file", 0, last)],
                line=read.integer(line, "line", 0, 10_000_000),
                text=self.strings[read.integer(text, "text", 0, last)],
            )

        found = []
        for row in read.array(value, "sites", self.limits.sites):
            places = [place(item) for item in read.array(row, "site", 20)]
            if not places:
                raise ProgramError("encoded Program: a site has no place")
            found.append(Site(places[0], tuple(places[1:])))
        return tuple(found)

    def loops(self, value: object) -> tuple[Loop, ...]:
        """Return the loop table."""
        read, last = self.read, self.count["registers"] - 1
        big = 2**62

        def register(value: object) -> int | None:
            return None if value is None else read.integer(value, "register", 0, last)

        found: list[Loop] = []
        for row in read.array(value, "loops", self.limits.loops):
            kind, first, end, parent, variable, start, stop, step, from_, to = read.row(
                row, "loop", 10
            )
            found.append(
                Loop(
                    "for" if read.choice(kind, "loop", ("for", "while")) == "for" else "while",
                    read.integer(first, "loop", 0, self.count["instructions"]),
                    read.integer(end, "loop", 0, self.count["instructions"]),
                    None if parent is None else read.integer(parent, "parent", 0, len(found) - 1),
                    read.integer(variable, "register", 0, last),
                    read.integer(start, "start", -big, big),
                    read.integer(stop, "stop", -big, big),
                    read.integer(step, "step", -big, big),
                    register(from_),
                    register(to),
                )
            )
        return tuple(found)

    def arguments(self, value: object) -> tuple[Argument, ...]:
        """Return the argument table."""
        read = self.read
        found = []
        for row in read.array(value, "arguments", self.limits.arguments):
            name, buffer, shape, dtype, is_written = read.row(row, "argument", 5)
            found.append(
                Argument(
                    read.string(name, "name", 200),
                    read.integer(buffer, "buffer", 0, self.count["buffers"] - 1),
                    self._shape(shape, 0),
                    read.dtype(dtype),
                    read.boolean(is_written, "is_written"),
                )
            )
        return tuple(found)

    def outputs(self, value: object, patterns: Sequence[Pattern]) -> tuple[Output, ...]:
        """Return the output table."""
        read = self.read
        found = []
        for row in read.array(value, "outputs", self.limits.arguments):
            buffer, offset, pattern = read.row(row, "output", 3)
            found.append(
                Output(
                    read.integer(buffer, "buffer", 0, self.count["buffers"] - 1),
                    read.integer(offset, "offset", 0, self.limits.size),
                    patterns[read.integer(pattern, "pattern", 0, len(patterns) - 1)],
                )
            )
        return tuple(found)
