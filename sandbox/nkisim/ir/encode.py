"""The wire format of a Program: one frame of plain data.

    magic, version, header length | JSON header | columns | buffer names | constants

The header holds the small tables (forms, patterns, sites, loops, arguments, outputs, counts);
everything that grows with the program is a little-endian column whose length the header gives.
The decoder trusts nothing: whoever sends a frame may be hostile.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from nkisim.dtypes import DTYPES, lookup
from nkisim.errors import Place, ProgramError
from nkisim.ir.access import Pattern
from nkisim.ir.program import (
    BUFFER_KINDS,
    MEMORIES,
    Buffer,
    IntColumn,
    Operand,
    Program,
)
from nkisim.ir.strict import Reader
from nkisim.ir.tables import DEFAULT_LIMITS, MAX_NAME_BYTES, DecodeLimits, Tables

MAGIC: Final = b"NKIP"
VERSION: Final = 1
_PREFIX = struct.Struct("<4sHHI")

_DTYPE_NAMES = tuple(DTYPES)
_INSTRUCTION_COLUMNS = (("form", "<i4"), ("site", "<i4"))
_OPERAND_COLUMNS = (("operand_buffer", "<i4"), ("operand_offset", "<i8"))
_BUFFER_COLUMNS = (
    ("memory", "u1"),
    ("kind", "u1"),
    ("dtype", "u1"),
    ("partitions", "<i4"),
    ("free_size", "<i8"),
    ("site", "<i4"),
    ("birth", "<i4"),
    ("address", "<i8"),
    ("start_partition", "<i4"),
    ("has_fill", "u1"),
    ("fill", "<f8"),
    ("constant", "<i4"),
    ("loop", "<i4"),
    ("name_bytes", "<u2"),
)
_HEADER_KEYS = frozenset(
    [
        *("kernel", "machine", "nki", "is_hybrid", "registers", "instructions", "operands"),
        *("buffers", "name_bytes", "strings", "patterns", "forms", "sites", "loops"),
        *("arguments", "outputs", "constants"),
    ]
)


T = TypeVar("T")


class _Table(dict[T, int]):
    """Numbers its keys in order of first use."""

    def __missing__(self, key: T) -> int:
        self[key] = number = len(self)
        return number


def encode(program: Program) -> bytes:
    """Return `program` as one frame, read back by `decode`.

    Raises:
        ProgramError: A constant has a dtype that NKI does not have.
    """
    strings: _Table[str] = _Table()
    patterns: _Table[Pattern] = _Table()
    names = [_utf8(buffer.name) for buffer in program.buffers]

    def place(place: Place) -> list[int]:
        return [strings[place.file], place.line, strings[place.text]]

    def operand(operand: Operand) -> list[object]:
        index = operand.index
        dynamic = None if index is None else [index.kind, index.step, index.bound, index.is_skip]
        return [operand.role, patterns[operand.pattern], str(operand.memory), dynamic]

    header: dict[str, object] = {
        "kernel": program.kernel,
        "machine": program.machine,
        "nki": program.nki,
        "is_hybrid": program.is_hybrid,
        "registers": program.register_count,
        "instructions": len(program.form),
        "operands": len(program.operand_buffer),
        "buffers": len(program.buffers),
        "name_bytes": sum(map(len, names)),
        "forms": [
            [f.op, str(f.engine), [list(a) for a in f.attrs], [operand(o) for o in f.operands]]
            for f in program.forms
        ],
        "sites": [[place(site.place), *map(place, site.callers)] for site in program.sites],
        "loops": [
            [
                loop.kind,
                loop.first,
                loop.last,
                loop.parent,
                loop.register,
                loop.start,
                loop.stop,
                loop.step,
                loop.start_register,
                loop.stop_register,
            ]
            for loop in program.loops
        ],
        "arguments": [
            [a.name, a.buffer, list(a.shape), a.dtype.name, a.is_written] for a in program.arguments
        ],
        "outputs": [[o.buffer, o.offset, patterns[o.pattern]] for o in program.outputs],
        "constants": [[_nki_name(c), list(c.shape)] for c in program.constants],
    }
    header["patterns"] = [[list(p.counts), list(p.strides), p.dtype.name] for p in patterns]
    header["strings"] = list(strings)
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":"))
    body = text.encode("utf-8", errors="replace")
    parts = [_PREFIX.pack(MAGIC, VERSION, 0, len(body)), body]
    for name, dtype in (*_INSTRUCTION_COLUMNS, *_OPERAND_COLUMNS):
        parts.append(getattr(program, name).astype(dtype).tobytes())
    buffers = _buffer_columns(program.buffers, names)
    parts += [np.array(buffers[name], dtype=dtype).tobytes() for name, dtype in _BUFFER_COLUMNS]
    parts += names
    parts += [np.ascontiguousarray(constant).tobytes() for constant in program.constants]
    return b"".join(parts)


def _utf8(name: str) -> bytes:
    """Return `name` as at most 200 bytes of valid UTF-8."""
    data = name.encode("utf-8", errors="replace")[:MAX_NAME_BYTES]
    return data.decode("utf-8", errors="ignore").encode()


def _nki_name(constant: npt.NDArray[np.generic]) -> str:
    dtype = lookup(constant.dtype)
    if dtype is None:
        raise ProgramError(f"a constant has dtype {constant.dtype}, which NKI does not have")
    return dtype.name


def _buffer_columns(buffers: Sequence[Buffer], names: list[bytes]) -> dict[str, Iterable[float]]:
    memory_number = {memory: i for i, memory in enumerate(MEMORIES)}
    kind_number = {kind: i for i, kind in enumerate(BUFFER_KINDS)}
    dtype_number = {name: i for i, name in enumerate(_DTYPE_NAMES)}

    def optional(values: Iterable[int | None]) -> list[int]:
        return [-1 if value is None else value for value in values]

    return {
        "memory": [memory_number[b.memory] for b in buffers],
        "kind": [kind_number[b.kind] for b in buffers],
        "dtype": [dtype_number[b.dtype.name] for b in buffers],
        "partitions": [b.partitions for b in buffers],
        "free_size": [b.free_size for b in buffers],
        "site": [b.site for b in buffers],
        "birth": [b.birth for b in buffers],
        "address": optional(b.address for b in buffers),
        "start_partition": [b.start_partition for b in buffers],
        "has_fill": [b.fill is not None for b in buffers],
        "fill": [0.0 if b.fill is None else b.fill for b in buffers],
        "constant": optional(b.constant for b in buffers),
        "loop": optional(b.loop for b in buffers),
        "name_bytes": [len(name) for name in names],
    }


def decode(data: bytes, limits: DecodeLimits = DEFAULT_LIMITS) -> Program:
    """Read a frame.

    The Program that comes out is well formed: every number that names a form, pattern, site,
    buffer, loop, constant or register is in range, and no size overflows.  Whether it obeys the
    rules of the language is for the validator.

    Raises:
        ProgramError: The frame is malformed or larger than `limits`.
    """
    try:
        return _decode(data, limits)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, ArithmeticError) as error:
        raise ProgramError(f"encoded Program is malformed: {error!r:.200}") from error
    except (RecursionError, MemoryError) as error:
        raise ProgramError(f"encoded Program is malformed: {type(error).__name__}") from error


def _unique_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ProgramError("encoded Program: a header key occurs twice")
    return result


def _header(data: bytes, limits: DecodeLimits) -> tuple[dict[str, object], int]:
    if len(data) > limits.frame_bytes:
        raise ProgramError(
            f"encoded Program: {len(data):,} bytes exceed the limit of {limits.frame_bytes:,}"
        )
    if len(data) < _PREFIX.size:
        raise ProgramError(f"encoded Program: {len(data)} bytes are too few")
    magic, version, reserved, header_bytes = _PREFIX.unpack_from(data)
    if magic != MAGIC or version != VERSION or reserved:
        raise ProgramError(f"encoded Program: expected version {VERSION}, got {data[:8]!r}")
    if header_bytes > limits.header_bytes or _PREFIX.size + header_bytes > len(data):
        raise ProgramError(f"encoded Program: a header of {header_bytes:,} bytes is too long")
    end = _PREFIX.size + header_bytes
    text = data[_PREFIX.size : end].decode("utf-8")
    header = json.loads(text, object_pairs_hook=_unique_object)
    if not isinstance(header, dict):
        raise ProgramError("encoded Program: the header is not an object")
    if header.keys() != _HEADER_KEYS:
        wrong = sorted(header.keys() ^ _HEADER_KEYS)[:5]
        raise ProgramError(f"encoded Program: unknown or missing header keys {wrong!r:.200}")
    return header, end


def _decode(data: bytes, limits: DecodeLimits) -> Program:
    header, end = _header(data, limits)
    read = Reader("encoded Program")
    count = {
        name: read.integer(header[name], name, 0, limit)
        for name, limit in (
            ("instructions", limits.instructions),
            ("operands", limits.operands),
            ("buffers", limits.buffers),
            ("name_bytes", limits.buffers * MAX_NAME_BYTES),
            ("registers", limits.registers),
        )
    }
    strings = [
        read.string(value, "strings", limits.string_chars)
        for value in read.array(header["strings"], "strings", limits.strings)
    ]
    tables = Tables(read, limits, count, strings)
    constant_shapes = tables.constants(header["constants"])
    constant_bytes = [prod(shape) * dtype.itemsize for dtype, shape in constant_shapes]
    groups = (
        (count["instructions"], _INSTRUCTION_COLUMNS),
        (count["operands"], _OPERAND_COLUMNS),
        (count["buffers"], _BUFFER_COLUMNS),
    )
    expected = sum(n * np.dtype(dtype).itemsize for n, columns in groups for _, dtype in columns)
    expected += end + count["name_bytes"] + sum(constant_bytes)
    if expected != len(data):
        raise ProgramError(f"encoded Program: expected {expected:,} bytes, got {len(data):,}")
    raw: dict[str, npt.NDArray[np.generic]] = {}
    for n, columns in groups:
        prefix = "buffer." if columns is _BUFFER_COLUMNS else ""
        for name, dtype in columns:
            raw[prefix + name] = np.frombuffer(data, dtype=dtype, count=n, offset=end)
            end += n * np.dtype(dtype).itemsize
    names_blob = data[end : end + count["name_bytes"]]
    end += count["name_bytes"]
    constants: list[npt.NDArray[np.generic]] = []
    for (element, shape), size in zip(constant_shapes, constant_bytes, strict=True):
        values = np.frombuffer(data, dtype=np.uint8, count=size, offset=end).copy()
        values.flags.writeable = False
        constants.append(values.view(element).reshape(shape))
        end += size

    patterns = tables.patterns(header["patterns"])
    forms = tables.forms(header["forms"], patterns)
    sites = tables.sites(header["sites"])
    loops = tables.loops(header["loops"])
    column = Columns(raw)
    form = column.integers("form", 0, len(forms) - 1)
    arity = np.array([len(f.operands) for f in forms] or [0], dtype=np.int64)
    operands = int(arity[form].sum())
    if operands != count["operands"]:
        raise ProgramError(f"encoded Program: {count['operands']} operands, forms have {operands}")
    program = Program(
        kernel=read.string(header["kernel"], "kernel", limits.string_chars),
        machine=read.string(header["machine"], "machine", 100),
        nki=read.string(header["nki"], "nki", 100),
        forms=forms,
        buffers=_buffers(column, names_blob, tables, len(sites), len(loops), len(constants)),
        constants=tuple(constants),
        sites=sites,
        loops=loops,
        arguments=tables.arguments(header["arguments"]),
        outputs=tables.outputs(header["outputs"], patterns),
        form=form,
        site=column.integers("site", 0, len(sites) - 1),
        operand_buffer=column.integers("operand_buffer", 0, 2**31 - 1),
        operand_offset=column.integers("operand_offset", -limits.size, limits.size),
        register_count=count["registers"],
        is_hybrid=read.boolean(header["is_hybrid"], "is_hybrid"),
    )
    limit = np.where(program.operand_is_register, count["registers"], count["buffers"])
    if (program.operand_buffer >= limit).any():
        raise ProgramError("encoded Program: an operand names a buffer or register not there")
    return program


@dataclass(frozen=True, slots=True)
class Columns:
    """Raw columns of a frame, checked for range as they are taken out."""

    raw: dict[str, npt.NDArray[np.generic]]

    def integers(self, name: str, low: int, high: int) -> IntColumn:
        """Return column `name` as int64, all values within [low, high]."""
        values = self.raw[name].astype(np.int64)
        if len(values) and not low <= int(values.min()) <= int(values.max()) <= high:
            raise ProgramError(
                f"encoded Program: column {name!r} holds values outside of [{low}, {high}]"
            )
        return values


def _buffers(
    column: Columns, names_blob: bytes, tables: Tables, sites: int, loops: int, constants: int
) -> tuple[Buffer, ...]:
    limits, count = tables.limits, tables.count

    def take(name: str, low: int, high: int) -> list[int]:
        values: list[int] = column.integers(f"buffer.{name}", low, high).tolist()
        return values

    def optional(name: str, high: int) -> list[int | None]:
        return [None if value < 0 else value for value in take(name, -1, high)]

    partitions = take("partitions", 1, 1 << 10)
    free_size = take("free_size", 1, limits.size)
    name_ends = list(accumulate(take("name_bytes", 0, MAX_NAME_BYTES), initial=0))
    if name_ends[-1] != len(names_blob):
        raise ProgramError("encoded Program: buffer names do not add up")
    names = [names_blob[a:b].decode() for a, b in pairwise(name_ends)]
    fills: list[float] = column.raw["buffer.fill"].tolist()
    has_fill = take("has_fill", 0, 1)
    dtypes = [DTYPES[name] for name in _DTYPE_NAMES]
    return tuple(
        map(
            Buffer,
            [MEMORIES[i] for i in take("memory", 0, len(MEMORIES) - 1)],
            [BUFFER_KINDS[i] for i in take("kind", 0, len(BUFFER_KINDS) - 1)],
            [dtypes[i] for i in take("dtype", 0, len(dtypes) - 1)],
            partitions,
            free_size,
            names,
            take("site", 0, sites - 1),
            take("birth", 0, count["instructions"]),
            optional("address", limits.size),
            take("start_partition", 0, 1 << 20),
            [fill if has else None for fill, has in zip(fills, has_fill, strict=True)],
            optional("constant", constants - 1),
            optional("loop", loops - 1),
        )
    )


__all__ = ["DEFAULT_LIMITS", "DecodeLimits", "decode", "encode"]
