"""A Program as text: read by people, read back exactly by `nkisim.ir.parser`.

    program "rmsnorm" machine="trn2" nki="0.6" …
    buffer 3 sbuf local float32 [128, 512] name="x_tile" site=2 birth=0
    …
    instructions
       12  vector.tensor_tensor{op="add"}  dst=sbuf.5[0; 128,512: 512,1] bfloat16  … ;4 kernel.py:41

Everything after the number that follows `;` is a comment: the source line.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator

import numpy as np

from nkisim.dtypes import lookup
from nkisim.errors import Place, ProgramError
from nkisim.ir.access import Memory, Pattern
from nkisim.ir.program import AttrValue, Buffer, Form, Loop, Operand, Program


def render(program: Program) -> str:
    """Return the whole Program as text that `parse` reads back."""
    return "\n".join(_lines(program)) + "\n"


def listing(program: Program, first: int = 0, last: int | None = None) -> str:
    """Return only the instructions `first` ≤ i < `last`, with loops and source lines."""
    return "\n".join(_instructions(program, first, len(program) if last is None else last)) + "\n"


def text(value: AttrValue) -> str:
    """Return an attribute as JSON; tuples become lists."""
    return json.dumps(value, ensure_ascii=True)


def access(memory: Memory, number: int, offset: int, pattern: Pattern) -> str:
    """Return `sbuf.5[0; 128,512: 512,1] bfloat16`."""
    counts = ",".join(map(str, pattern.counts))
    strides = ",".join(map(str, pattern.strides))
    return f"{memory}.{number}[{offset}; {counts}: {strides}] {pattern.dtype}"


def _operand(operand: Operand, number: int, offset: int) -> str:
    shown = f"{operand.role}={access(operand.memory, number, offset, operand.pattern)}"
    if operand.index is not None:
        index = operand.index
        skip = ", skip" if index.is_skip else ""
        shown += f" @{index.kind}({index.step}, {index.bound}{skip})"
    return shown


def _head(form: Form) -> str:
    attrs = ", ".join(f"{name}={text(value)}" for name, value in form.attrs)
    return f"{form.engine}.{form.op}{{{attrs}}}"


def _place(place: Place) -> str:
    return f"{text(place.file)} {place.line} {text(place.text)}"


def _buffer(number: int, buffer: Buffer) -> str:
    parts = [
        f"buffer {number} {buffer.memory} {buffer.kind} {buffer.dtype}",
        f"[{buffer.partitions}, {buffer.free_size}]",
        f"name={text(buffer.name)} site={buffer.site} birth={buffer.birth}",
        f"start_partition={buffer.start_partition}",
    ]
    for name in ("address", "fill", "constant", "loop"):
        value = getattr(buffer, name)
        if value is not None:
            parts.append(f"{name}={text(value)}")
    return " ".join(parts)


def _loop(number: int, loop: Loop) -> str:
    def or_none(value: int | None) -> str:
        return "null" if value is None else str(value)

    return (
        f"loop {number} {loop.kind} first={loop.first} last={loop.last} "
        f"parent={or_none(loop.parent)} register={loop.register} start={loop.start} "
        f"stop={loop.stop} step={loop.step} start_register={or_none(loop.start_register)} "
        f"stop_register={or_none(loop.stop_register)}"
    )


def _lines(program: Program) -> Iterator[str]:
    yield (
        f"program {text(program.kernel)} machine={text(program.machine)} nki={text(program.nki)} "
        f"registers={program.register_count} is_hybrid={text(program.is_hybrid)}"
    )
    for number, site in enumerate(program.sites):
        places = " <- ".join(map(_place, (site.place, *site.callers)))
        yield f"site {number} {places}"
    for number, constant in enumerate(program.constants):
        dtype = lookup(constant.dtype)
        if dtype is None:
            raise ProgramError(f"a constant has dtype {constant.dtype}, which NKI does not have")
        data = b64encode(np.ascontiguousarray(constant).tobytes()).decode()
        yield f"constant {number} {dtype} {text(constant.shape)} {text(data)}"
    for number, buffer in enumerate(program.buffers):
        yield _buffer(number, buffer)
    for argument in program.arguments:
        yield (
            f"argument {text(argument.name)} buffer={argument.buffer} {argument.dtype} "
            f"{text(argument.shape)} is_written={text(argument.is_written)}"
        )
    for output in program.outputs:
        memory = program.buffers[output.buffer].memory
        yield f"output {access(memory, output.buffer, output.offset, output.pattern)}"
    for number, loop in enumerate(program.loops):
        yield _loop(number, loop)
    yield "instructions"
    yield from _instructions(program, 0, len(program))


def _instructions(program: Program, first: int, last: int) -> Iterator[str]:
    heads = [_head(form) for form in program.forms]
    depth = program.loop_depth
    opening: dict[int, list[str]] = {}
    for number, loop in enumerate(program.loops):
        opening.setdefault(loop.first, []).append(f"# loop {number} r{loop.register}")
    for i in range(first, last):
        for comment in opening.get(i, ()):
            yield f"       {comment}"
        operands = "  ".join(_operand(*item) for item in program.accesses(i))
        site = int(program.site[i])
        place = program.sites[site].place
        indent = "  " * int(depth[i])
        source = f"{place} {place.text}".replace("\n", " ").replace("\r", " ")
        yield f"{i:>6} {indent} {heads[program.form[i]]}  {operands}  ;{site} {_one_line(source)}"


def _one_line(source: str) -> str:
    return " ".join(source.splitlines())
