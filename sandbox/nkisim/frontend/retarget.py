"""Assignments of results: which instruction writes the target itself, and what was kept.

`t[...] = nisa.f(x)` makes the instruction write t.  Should the kernel have kept the result under a
name and read it later, the instruction gets its own tile back and a copy follows it.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nkisim.errors import KernelError, UnsupportedError
from nkisim.ir.program import Form, Operand

if TYPE_CHECKING:
    from nkisim.frontend.recorder import Recorder
    from nkisim.frontend.tensor import NkiTensor


NOTHING = -1
"""Instead of an instruction's number: a mask left nothing to do."""


class Retarget(NamedTuple):
    """One instruction that writes an assignment's target instead of its own tile."""

    instruction: int
    form: int
    """Form before."""
    tile: int
    """Buffer of the tile."""
    offset: int
    accumulates: bool


def fitted(value: NkiTensor, target: NkiTensor) -> NkiTensor:
    """Return `value` broadcast to the shape of `target`; ranks may differ by dimensions of 1.

    Raises:
        KernelError: It does not broadcast: an assignment never shrinks a value.
    """
    if value.shape == target.shape or value.size == target.size:
        return value
    view = value
    if view.ndim != target.ndim:
        wide = [n for n in target.shape if n != 1]
        if view.ndim < target.ndim and view.shape[0] == target.shape[0]:
            while view.ndim < target.ndim:
                view = view.expand_dim(1)
        elif len([n for n in view.shape if n != 1]) > len(wide):
            view = value
    fits = view.ndim == target.ndim and all(
        n in (1, wanted) for n, wanted in zip(view.shape, target.shape, strict=True)
    )
    if not fits:
        raise KernelError(
            "NKS107",
            f"a value {list(value.shape)} cannot be assigned to a target {list(target.shape)}",
            got=f"{value!r}; {target!r}",
            allowed="equal shapes, or dimensions of 1 that are repeated",
        )
    return view.broadcast_to(target.shape)


def restore_used(recorder: Recorder) -> None:
    """Undo the retargets whose tile is used after all, and copy it to the target instead."""
    if not recorder._retargets:
        return
    used = set(np.unique(np.array(recorder._operand_buffer, dtype=np.int64)).tolist())
    wanted = [item for item in recorder._retargets if item.tile in used]
    recorder._retargets.clear()
    if not wanted:
        return
    if any(item.accumulates for item in wanted):
        raise UnsupportedError(
            "NKS502",
            "a matmul result that is added to PSUM and also used by itself is not emulated",
            hint="copy the result to SBUF first: y = nl.copy(nisa.nc_matmul(…))",
        )
    forms = recorder._forms
    arity = np.array([len(form.operands) for form in forms], dtype=np.int64)
    form_column = np.array(recorder._form, dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(arity[form_column])])
    site = np.array(recorder._site, dtype=np.int64)
    buffers = np.array(recorder._operand_buffer, dtype=np.int64)
    offsets = np.array(recorder._operand_offset, dtype=np.int64)
    new_form: list[int] = []
    new_buffers: list[int] = []
    new_offsets: list[int] = []
    for item in wanted:
        at = int(starts[item.instruction])
        into, own = forms[form_column[item.instruction]].operands[0], forms[item.form].operands[0]
        new_form.append(_copy_form(recorder, into, own))
        new_buffers += [int(buffers[at]), item.tile]
        new_offsets += [int(offsets[at]), item.offset]
        form_column[item.instruction] = item.form
        buffers[at], offsets[at] = item.tile, item.offset
    after = np.array([item.instruction + 1 for item in wanted], dtype=np.int64)
    place = starts[after].repeat(2)
    recorder._operand_buffer = _column(np.insert(buffers, place, new_buffers))
    recorder._operand_offset = _column(np.insert(offsets, place, new_offsets))
    recorder._form = _column(np.insert(form_column, after, new_form))
    recorder._site = _column(np.insert(site, after, site[after - 1]))

    def moved(position: int) -> int:
        return position + int(np.searchsorted(after, position, side="right"))

    recorder._buffers = [replace(b, birth=moved(b.birth)) for b in recorder._buffers]
    recorder._loops = [
        replace(loop, first=moved(loop.first), last=moved(loop.last)) for loop in recorder._loops
    ]


def _copy_form(recorder: Recorder, into: Operand, own: Operand) -> int:
    """Return the form that copies a tile to the target that was assigned."""
    copy = recorder.instructions.isa["tensor_copy"]
    spec = copy.spec  # type: ignore[attr-defined]
    operands = (
        Operand("dst", into.pattern, into.memory),
        Operand("src", own.pattern, own.memory),
    )
    form = Form(spec.name, spec.engines[0], (), operands)
    spec.check(form, recorder.machine)
    number = recorder._form_number.get(form)
    if number is None:
        number = recorder._form_number[form] = len(recorder._forms)
        recorder._forms.append(form)
        recorder._specs[spec.name] = spec
    return number


def _column(values: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> array[int]:
    return array("q", values.astype(np.int64).tobytes())
