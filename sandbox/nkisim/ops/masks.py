"""Masks that a box cannot say: inequalities over an instruction's iteration space.

They are the attribute `mask` of a form: (shape of the iteration space, clauses), where some clause
must hold and a clause holds if `constant + Σ step[d] * i_d >= 0` for each of its terms.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from nkisim.errors import ProgramError
from nkisim.ir.program import Form
from nkisim.ops.axes import Dims, Shape
from nkisim.ops.registry import OpSpec

MASK: Final = "mask"
"""Name of the attribute."""
Terms = tuple[tuple[int, ...], ...]
"""Terms of one clause, each (constant, step, …)."""
MAX_CLAUSES: Final = 64
MAX_TERMS: Final = 64
Flags = npt.NDArray[np.bool_]


class MaskArgument(NamedTuple):
    """What a front end passes as the argument `mask`; instructions take no mask from kernels."""

    counts: tuple[int, ...]
    """Shape of the iteration space."""
    clauses: tuple[Terms, ...]


def evaluate(clauses: tuple[Terms, ...], shape: Shape) -> Flags:
    """Return where any clause holds, in `shape`."""
    result = np.zeros(shape, dtype=np.bool_)
    for clause in clauses:
        holds = np.ones(shape, dtype=np.bool_)
        for constant, *steps in clause:
            total = np.full((1,) * len(shape), constant, dtype=np.int64)
            for axis, step in enumerate(steps):
                extent = [1] * len(shape)
                extent[axis] = shape[axis]
                total = total + (np.arange(shape[axis], dtype=np.int64) * step).reshape(extent)
            holds &= total >= 0
        result |= holds
    return result


def is_masked(form: Form) -> bool:
    """Whether some iterations of a form are masked out."""
    return form.attr(MASK) is not None


def read_mask(form: Form) -> tuple[Shape, tuple[Terms, ...]]:
    """Return the attribute `mask` of a form.

    Raises:
        ProgramError: It is malformed.
    """
    match form.attr(MASK):
        case (tuple() as shape, tuple() as clauses):
            pass
        case other:
            raise ProgramError(f"{form.op}: malformed mask {other!r:.100}")
    rank = len(shape)
    if not all(isinstance(n, int) and n > 0 for n in shape) or len(clauses) > MAX_CLAUSES:
        raise ProgramError(f"{form.op}: malformed mask")
    for clause in clauses:
        if not isinstance(clause, tuple) or len(clause) > MAX_TERMS:
            raise ProgramError(f"{form.op}: malformed clause of a mask")
        for term in clause:
            is_term = isinstance(term, tuple) and len(term) == rank + 1
            if not is_term or not all(
                isinstance(n, int) and abs(n) < 1 << 40  # so that sums stay in int64
                for n in term
            ):
                raise ProgramError(f"{form.op}: malformed term of a mask")
    return shape, clauses


def operand_flags(form: Form, spec: OpSpec) -> tuple[Flags, ...]:
    """Return for each operand which of its elements some iteration touches.

    Raises:
        ProgramError: The mask does not fit the operands.
    """
    shape, clauses = read_mask(form)
    shapes = {o.role: o.shape for o in form.operands if not o.is_index}
    space, dims = spec.axes(shapes, dict(form.attrs))
    if space != shape:
        raise ProgramError(f"{form.op}: a mask over {shape} on iterations {space}")
    holds = evaluate(clauses, shape)
    return tuple(
        np.ones(o.shape, dtype=np.bool_) if o.is_index else _project(holds, dims[o.role], o.shape)
        for o in form.operands
    )


def _project(holds: Flags, dims: Dims, shape: Shape) -> Flags:
    """Return the flags of one operand: an element counts if any of its iterations does."""
    kept = [d for d in dims if d is not None]
    gone = tuple(axis for axis in range(holds.ndim) if axis not in kept)
    flags = holds.any(axis=gone) if gone else holds
    order = sorted(kept)
    flags = np.transpose(flags, [order.index(d) for d in kept])
    extents = [holds.shape[d] if d is not None else 1 for d in dims]
    return np.broadcast_to(flags.reshape(extents), shape)
