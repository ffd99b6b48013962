"""Reads the text that `nkisim.ir.printer` writes.

Line by line; a line starts with its kind (`buffer`, `loop`, …) or, in the listing, with the
instruction's number.  Text from elsewhere is not trusted: it is re-read through the strict decoder
of the wire format.
"""

from __future__ import annotations

import json
import re
import struct
from array import array
from base64 import b64decode
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from nkisim.dtypes import DTYPES
from nkisim.errors import Place, ProgramError
from nkisim.ir.access import Memory, Pattern
from nkisim.ir.encode import DEFAULT_LIMITS, DecodeLimits, decode, encode
from nkisim.ir.program import (
    BUFFER_KINDS,
    Argument,
    AttrValue,
    Buffer,
    Form,
    Index,
    Loop,
    Operand,
    Output,
    Program,
    Site,
)
from nkisim.machine.spec import Engine

_JSON: Final = json.JSONDecoder()
_WORD: Final = re.compile(r"[A-Za-z_][\w.]*|-?\d+|<-|[][{}=,;:@()]")
_ACCESS: Final = re.compile(
    r"(?P<memory>[a-z]+)\.(?P<number>\d+)\[(?P<offset>-?\d+); "
    r"(?P<counts>[\d,]*): (?P<strides>[\d,-]*)\] (?P<dtype>\w+)"
    r"(?: @(?P<kind>scalar|vector)\((?P<step>-?\d+), (?P<bound>\d+)(?P<skip>, skip)?\))?"
)
_ROLE: Final = re.compile(r"([\w.]+)=")
_HEAD: Final = re.compile(r"\s*(\d+)\s+([a-z]+)\.(\w+)\{")
_INTEGER: Final = re.compile(r"-?\d+")


def parse(text: str, limits: DecodeLimits = DEFAULT_LIMITS) -> Program:
    """Return the Program that `text` prints.

    Raises:
        ProgramError: The text is malformed; the message names the line.
    """
    reader = _ProgramText()
    malformed = (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError)
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            reader.line(line)
        except ProgramError as error:
            raise ProgramError(f"line {number}: {error}") from error
        except malformed as error:
            raise ProgramError(f"line {number} is malformed: {error!r:.200}") from error
    try:
        return decode(encode(reader.program()), limits)
    except (*malformed, struct.error) as error:
        raise ProgramError(f"printed Program is malformed: {error!r:.200}") from error


class _Cursor:
    """A position in one line."""

    def __init__(self, line: str) -> None:
        self.line = line
        self.at = 0

    def skip_space(self) -> None:
        while self.at < len(self.line) and self.line[self.at] == " ":
            self.at += 1

    @property
    def is_done(self) -> bool:
        self.skip_space()
        return self.at >= len(self.line)

    def starts_with(self, what: str) -> bool:
        """Consume `what` if it comes next."""
        self.skip_space()
        found = self.line.startswith(what, self.at)
        self.at += len(what) if found else 0
        return found

    def expect(self, what: str) -> None:
        if not self.starts_with(what):
            raise ProgramError(f"expected {what!r} in column {self.at + 1}")

    def match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        self.skip_space()
        found = pattern.match(self.line, self.at)
        if found is None:
            raise ProgramError(f"cannot read column {self.at + 1}")
        self.at = found.end()
        return found

    def word(self) -> str:
        return self.match(_WORD).group()

    def integer(self) -> int:
        return int(self.match(_INTEGER).group())

    def value(self) -> AttrValue:
        """Read a JSON value; lists become tuples."""
        self.skip_space()
        raw, self.at = _JSON.raw_decode(self.line, self.at)
        return _tuples(raw)

    def text(self) -> str:
        value = self.value()
        if not isinstance(value, str):
            raise ProgramError(f"expected a string before column {self.at + 1}")
        return value

    def integers(self) -> tuple[int, ...]:
        value = self.value()
        if not isinstance(value, tuple):
            raise ProgramError(f"expected a list before column {self.at + 1}")
        return tuple(_integer(item) for item in value)

    def fields(self) -> dict[str, AttrValue]:
        """Read `name=value` pairs up to the end of the line."""
        found: dict[str, AttrValue] = {}
        while not self.is_done:
            name = self.word()
            self.expect("=")
            found[name] = self.value()
        return found


def _tuples(value: object) -> AttrValue:
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ProgramError(f"unexpected {type(value).__name__}")


def _integer(value: AttrValue) -> int:
    if type(value) is not int:
        raise ProgramError(f"expected an integer, got {value!r:.60}")
    return value


def _optional(value: AttrValue) -> int | None:
    return None if value is None else _integer(value)


class _ProgramText:
    """Collects a Program from lines."""

    def __init__(self) -> None:
        self._header: dict[str, AttrValue] = {}
        self._kernel = ""
        self._sites: list[Site] = []
        self._constants: list[npt.NDArray[np.generic]] = []
        self._buffers: list[Buffer] = []
        self._arguments: list[Argument] = []
        self._outputs: list[Output] = []
        self._loops: list[Loop] = []
        self._forms: dict[tuple[Form, str], int] = {}
        self._patterns: dict[Pattern, Pattern] = {}
        self._in_listing = False
        self._form = array("q")
        self._site = array("q")
        self._operand_buffer = array("q")
        self._operand_offset = array("q")

    def line(self, line: str) -> None:
        """Read one line that is neither empty nor a comment."""
        if self._in_listing:
            self._instruction(line)
            return
        cursor = _Cursor(line)
        kind = cursor.word()
        if kind == "program":
            self._kernel = cursor.text()
            self._header = cursor.fields()
        elif kind == "argument":
            self._argument(cursor)
        elif kind == "output":
            _, number, offset, pattern, _ = self._access(cursor)
            self._outputs.append(Output(number, offset, pattern))
        elif kind == "instructions":
            self._in_listing = True
        elif kind in ("site", "constant", "buffer", "loop"):
            table = {
                "site": self._sites,
                "constant": self._constants,
                "buffer": self._buffers,
                "loop": self._loops,
            }[kind]
            if cursor.integer() != len(table):  # type: ignore[arg-type]  # all are lists
                raise ProgramError(f"{kind} lines are not numbered from 0 upwards")
            getattr(self, f"_{kind}_line")(cursor)
        else:
            raise ProgramError(f"unknown kind of line {kind!r}")

    def _site_line(self, cursor: _Cursor) -> None:
        places = [self._place(cursor)]
        while cursor.starts_with("<-"):
            places.append(self._place(cursor))
        self._sites.append(Site(places[0], tuple(places[1:])))

    def _place(self, cursor: _Cursor) -> Place:
        return Place(file=cursor.text(), line=cursor.integer(), text=cursor.text())

    def _constant_line(self, cursor: _Cursor) -> None:
        dtype = DTYPES[cursor.word()]
        shape = cursor.integers()
        data = b64decode(cursor.text(), validate=True)
        self._constants.append(
            np.frombuffer(data, dtype=np.uint8).view(dtype.storage).reshape(shape)
        )

    def _buffer_line(self, cursor: _Cursor) -> None:
        memory, kind, dtype = Memory(cursor.word()), cursor.word(), DTYPES[cursor.word()]
        partitions, free_size = cursor.integers()
        fields = cursor.fields()
        fill = fields.get("fill")
        if fill is not None and not isinstance(fill, (int, float)):
            raise ProgramError(f"fill must be a number, got {fill!r:.60}")
        self._buffers.append(
            Buffer(
                memory,
                BUFFER_KINDS[[str(k) for k in BUFFER_KINDS].index(kind)],
                dtype,
                partitions,
                free_size,
                str(fields["name"]),
                _integer(fields["site"]),
                _integer(fields["birth"]),
                _optional(fields.get("address")),
                _integer(fields["start_partition"]),
                None if fill is None else float(fill),
                _optional(fields.get("constant")),
                _optional(fields.get("loop")),
            )
        )

    def _loop_line(self, cursor: _Cursor) -> None:
        kind = cursor.word()
        fields = cursor.fields()
        self._loops.append(
            Loop(
                "while" if kind == "while" else "for",
                _integer(fields["first"]),
                _integer(fields["last"]),
                _optional(fields["parent"]),
                _integer(fields["register"]),
                _integer(fields["start"]),
                _integer(fields["stop"]),
                _integer(fields["step"]),
                _optional(fields["start_register"]),
                _optional(fields["stop_register"]),
            )
        )

    def _argument(self, cursor: _Cursor) -> None:
        name = cursor.text()
        cursor.expect("buffer=")
        buffer = cursor.integer()
        dtype = DTYPES[cursor.word()]
        shape = cursor.integers()
        cursor.expect("is_written=")
        self._arguments.append(Argument(name, buffer, shape, dtype, cursor.value() is True))

    def _access(self, cursor: _Cursor) -> tuple[Memory, int, int, Pattern, Index | None]:
        found = cursor.match(_ACCESS)
        pattern = Pattern(
            _numbers(found["counts"]), _numbers(found["strides"]), DTYPES[found["dtype"]]
        )
        pattern = self._patterns.setdefault(pattern, pattern)
        index = None
        if found["kind"] is not None:
            index = Index(
                "vector" if found["kind"] == "vector" else "scalar",
                int(found["step"]),
                int(found["bound"]),
                found["skip"] is not None,
            )
        return Memory(found["memory"]), int(found["number"]), int(found["offset"]), pattern, index

    def _attrs(self, cursor: _Cursor) -> Iterator[tuple[str, AttrValue]]:
        while not cursor.starts_with("}"):
            name = cursor.word()
            cursor.expect("=")
            yield name, cursor.value()
            cursor.starts_with(",")

    def _instruction(self, line: str) -> None:
        cursor = _Cursor(line)
        head = cursor.match(_HEAD)
        if int(head[1]) != len(self._form):
            raise ProgramError("instructions are not numbered from 0 upwards")
        attrs = tuple(self._attrs(cursor))
        operands: list[Operand] = []
        while not cursor.starts_with(";"):
            role = cursor.match(_ROLE)[1]
            memory, number, offset, pattern, index = self._access(cursor)
            operands.append(Operand(role, pattern, memory, index))
            self._operand_buffer.append(number)
            self._operand_offset.append(offset)
        form = Form(head[3], Engine(head[2]), attrs, tuple(operands))
        self._form.append(self._forms.setdefault((form, repr(attrs)), len(self._forms)))
        self._site.append(cursor.integer())

    def program(self) -> Program:
        """Return what the lines said."""
        header = dict(self._header)
        return Program(
            kernel=self._kernel,
            machine=str(header["machine"]),
            nki=str(header["nki"]),
            forms=tuple(form for form, _ in self._forms),
            buffers=tuple(self._buffers),
            constants=tuple(self._constants),
            sites=tuple(self._sites),
            loops=tuple(self._loops),
            arguments=tuple(self._arguments),
            outputs=tuple(self._outputs),
            form=np.array(self._form, dtype=np.int64),
            site=np.array(self._site, dtype=np.int64),
            operand_buffer=np.array(self._operand_buffer, dtype=np.int64),
            operand_offset=np.array(self._operand_offset, dtype=np.int64),
            register_count=_integer(header["registers"]),
            is_hybrid=header["is_hybrid"] is True,
        )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",")) if text else ()
