"""Which operands an instruction reads and writes, by its row of the op table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nkisim.ir.access import Memory, Pattern
from nkisim.ir.program import Form, Program
from nkisim.machine.spec import Engine
from nkisim.ops.masks import is_masked
from nkisim.ops.registry import OpSpec, OpTable


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an operand that is touched whole."""

    pattern: Pattern
    offset: int
    """From the operand's first element, in elements."""


@dataclass(frozen=True, slots=True)
class SlotAccess:
    """Reads and writes of every operand of every form, in the order of `Program.slots`."""

    reads: npt.NDArray[np.bool_]
    writes: npt.NDArray[np.bool_]
    accumulates: npt.NDArray[np.bool_]
    """Matmul results in PSUM, to which a later matmul adds."""
    is_conditional: npt.NDArray[np.bool_]
    """Writes that may leave elements untouched: masked out, rows out of bounds, or rows that are
    not for the instruction."""
    parts: tuple[tuple[Part, ...], ...]
    """What each operand touches."""


def access_of(spec: OpSpec, form: Form, position: int) -> str:
    """Return `r`, `w` or `rw` for operand `position` of `form`."""
    operand = form.operands[position]
    if operand.is_index:
        return "r"
    param = spec.param(operand.param)
    access = "r" if param is None else param.access
    if access == "w":
        accumulates = form.attr("accumulate") is True and operand.memory is Memory.PSUM
        if accumulates or form.attr("dst_rmw_op") is not None:
            return "rw"
    return access


def parts_of(spec: OpSpec, form: Form, position: int) -> tuple[Part, ...]:
    """Return what operand `position` touches: all of it, or some of its partitions."""
    operand = form.operands[position]
    param = spec.param(operand.param)
    pattern = operand.pattern
    if operand.is_index or param is None or param.rows is None:
        return (Part(pattern, 0),)
    return tuple(
        Part(
            Pattern((count, *pattern.counts[1:]), pattern.strides, pattern.dtype),
            first * pattern.strides[0],
        )
        for first, count in param.rows(form, operand)
    )


def slot_access(program: Program, ops: OpTable) -> SlotAccess:
    """Work out the access of every operand of every form."""
    reads: list[bool] = []
    writes: list[bool] = []
    accumulates: list[bool] = []
    conditional: list[bool] = []
    parts: list[tuple[Part, ...]] = []
    for form in program.forms:
        spec = ops[form.op]
        skips = any(o.index is not None and o.index.is_skip for o in form.operands)
        skips |= is_masked(form)
        adds = form.engine is Engine.TENSOR and spec.param("accumulate") is not None
        adds = adds and form.attr("is_transpose") is not True
        for position, operand in enumerate(form.operands):
            access = access_of(spec, form, position)
            reads.append("r" in access)
            writes.append("w" in access)
            accumulates.append("w" in access and adds and operand.memory is Memory.PSUM)
            touched = parts_of(spec, form, position)
            is_partial = len(touched) != 1 or touched[0].pattern != operand.pattern
            conditional.append(is_partial or ("w" in access and skips))
            parts.append(touched)
    return SlotAccess(
        np.array(reads, dtype=np.bool_),
        np.array(writes, dtype=np.bool_),
        np.array(accumulates, dtype=np.bool_),
        np.array(conditional, dtype=np.bool_),
        tuple(parts),
    )
