"""What identifies a Program: equal fingerprints mean equal results and equal time.

Lines, names and comments do not count.  Buffers count in order of first use.  Which buffers share
an allocation site does count, because instances of one site rotate over its addresses.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from nkisim.errors import Place
from nkisim.ir.encode import encode
from nkisim.ir.program import Buffer, IntColumn, Program, Site, compact

_NOWHERE = Place(file="", line=0)


def fingerprint(program: Program) -> str:
    """Return the SHA-256 of the canonical Program as 64 hexadecimal digits."""
    return hashlib.sha256(encode(canonical(program))).hexdigest()


def canonical(program: Program) -> Program:
    """Return `program` without lines and names, everything numbered by first use."""
    program = compact(program)
    is_register = program.operand_is_register
    used = np.concatenate(
        [
            np.array([a.buffer for a in program.arguments], dtype=np.int64),
            program.operand_buffer[~is_register],
            np.array([o.buffer for o in program.outputs], dtype=np.int64),
        ]
    )
    order = _first_uses(used)
    new_buffer = _inverse(order, len(program.buffers))
    kept = [program.buffers[i] for i in order]

    registers = np.concatenate(
        [
            program.operand_buffer[is_register],
            np.array(
                [
                    number
                    for loop in program.loops
                    for number in (loop.register, loop.start_register, loop.stop_register)
                    if number is not None
                ],
                dtype=np.int64,
            ),
        ]
    )
    new_register = _inverse(_first_uses(registers), program.register_count)

    sites: dict[int, int] = {}
    constants: dict[int, int] = {}
    buffers = []
    for buffer in kept:
        site = sites.setdefault(buffer.site, len(sites))
        constant = buffer.constant
        if constant is not None:
            constant = constants.setdefault(constant, len(constants))
        buffers.append(_canonical_buffer(buffer, site, constant))

    def register(number: int | None) -> int | None:
        return None if number is None else int(new_register[number])

    return replace(
        program,
        kernel="",
        buffers=tuple(buffers),
        constants=tuple(program.constants[i] for i in constants),
        sites=(Site(_NOWHERE),) * max(1, len(sites)),
        loops=tuple(
            replace(
                loop,
                register=int(new_register[loop.register]),
                start_register=register(loop.start_register),
                stop_register=register(loop.stop_register),
            )
            for loop in program.loops
        ),
        arguments=tuple(
            replace(a, name="", buffer=int(new_buffer[a.buffer])) for a in program.arguments
        ),
        outputs=tuple(replace(o, buffer=int(new_buffer[o.buffer])) for o in program.outputs),
        site=np.zeros_like(program.site),
        operand_buffer=_renumber(program.operand_buffer, is_register, new_buffer, new_register),
    )


def _first_uses(numbers: IntColumn) -> list[int]:
    unique, first = np.unique(numbers, return_index=True)
    order: list[int] = unique[np.argsort(first)].tolist()
    return order


def _inverse(order: list[int], size: int) -> IntColumn:
    inverse = np.zeros(max(1, size), dtype=np.int64)
    inverse[order] = np.arange(len(order))
    return inverse


def _renumber(
    operands: IntColumn, is_register: np.ndarray, buffers: IntColumn, registers: IntColumn
) -> IntColumn:
    result = np.empty_like(operands)
    result[is_register] = registers[operands[is_register]]
    result[~is_register] = buffers[operands[~is_register]]
    return result


def _canonical_buffer(buffer: Buffer, site: int, constant: int | None) -> Buffer:
    return replace(buffer, name="", site=site, birth=0, constant=constant)


def short(digest: str) -> str:
    """Return the first 12 digits, enough to tell candidates apart by eye."""
    return digest[:12]


__all__ = ["canonical", "fingerprint", "short"]
