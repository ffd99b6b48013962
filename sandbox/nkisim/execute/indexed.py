"""Runs one instruction that has run-time indices: resolve, check, gather, run, scatter, note."""

from __future__ import annotations

from itertools import count
from typing import Protocol

import numpy as np

from nkisim.dtypes import Array
from nkisim.errors import Diagnostic, UnsupportedError, Warnings
from nkisim.execute.coverage import Coverage, Flags
from nkisim.execute.indexing import Rows, choose_rows, occurrence, scalar_offset, scalar_value
from nkisim.execute.plan import Plan, PlannedForm, Slot
from nkisim.execute.result import TripRecorder
from nkisim.execute.state import DeviceState
from nkisim.execute.storage import Bytes
from nkisim.execute.unwritten import unwritten_read
from nkisim.ir.access import Pattern


class Windows(Protocol):
    """What an indexed instruction needs of the run that it is part of."""

    plan: Plan
    state: DeviceState
    storage: list[Bytes]
    written: Coverage
    warnings: Warnings

    def view(self, slot: Slot, k: int, offset: int | None = None) -> Array:
        """Return operand `k` as a window on its buffer or register."""
        ...

    def check_written(self, planned: PlannedForm, position: int, buffer: int, offset: int) -> None:
        """Raise if an operand reads unwritten elements."""
        ...

    def mark(self, buffer: int, flags: Flags | None, is_valid: Flags | None) -> None:
        """Note that elements are written now."""
        ...

    def note_results(self, slots: tuple[Slot, ...]) -> None:
        """Note where matmul results are now."""
        ...


class IndexedRunner:
    """Runs indexed instructions of one run."""

    def __init__(self, windows: Windows, recorder: TripRecorder) -> None:
        self.windows = windows
        self.recorder = recorder
        self.plan = windows.plan
        self.program = windows.plan.program

    def run(self, planned: PlannedForm, k: int, position: int) -> None:
        """Run an instruction with run-time indices."""
        form, slots, buffers = planned.form, planned.slots, self.plan.operand_buffer
        flags = self.windows.written.flags
        for p, slot in enumerate(slots):
            is_plain = form.operands[p].index is None and not slot.is_register
            if is_plain and slot.reads and flags[buffers[k + p]] is not None:
                self.windows.check_written(
                    planned, p, buffers[k + p], self.plan.operand_bytes[k + p]
                )
        views: list[Array] = []
        rows: list[Rows] = []
        for p, (slot, operand) in enumerate(zip(slots, form.operands, strict=True)):
            index, buffer = operand.index, buffers[k + p]
            if index is None:
                views.append(self.windows.view(slot, k + p))
                continue
            source = self.windows.view(slots[p + 1], k + p + 1)
            offset = self.plan.operand_bytes[k + p]
            block = self.windows.storage[buffer]
            if index.kind == "scalar":
                moved = scalar_offset(form.op, operand, offset, scalar_value(source), block.nbytes)
                if moved is None:
                    self.recorder.access(position, p, 0, -1, 0)
                    return
                self.windows.state.resolved[k + p] = moved
                if slot.reads and flags[buffer] is not None:
                    self.windows.check_written(planned, p, buffer, moved)
                views.append(self.windows.view(slot, k + p, moved))
                first = moved // slot.dtype.itemsize
                pattern = operand.pattern
                self.recorder.access(
                    position, p, first + pattern.reach_low, first + pattern.reach_high, 1
                )
            else:
                chosen = choose_rows(form.op, operand, slot, p, block, offset, source)
                self._check_rows(planned, chosen, buffer)
                rows.append(chosen)
                views.append(chosen.temporary)
                self._record_rows(chosen, operand.pattern, position)
        is_valid = self._valid_rows(form.op, rows)
        self._run_rows(planned, views, rows, is_valid)
        for p, slot in enumerate(slots):
            if not slot.writes or slot.is_register or flags[buffers[k + p]] is None:
                continue
            match = next((chosen for chosen in rows if chosen.position == p), None)
            if match is not None:
                self._mark_rows(match, slot, buffers[k + p])
            else:
                at = self.windows.state.resolved.get(k + p, self.plan.operand_bytes[k + p])
                view = self.windows.written.view(buffers[k + p], slot.pattern, at)
                self.windows.mark(buffers[k + p], view, is_valid)
        if planned.writes_psum:
            self.windows.note_results(slots)

    def _record_rows(self, rows: Rows, pattern: Pattern, position: int) -> None:
        chosen = rows.values[rows.is_valid]
        if not len(chosen):
            self.recorder.access(position, rows.position, 0, -1, 0)
            return
        size = pattern.dtype.itemsize
        tail = list(zip(pattern.counts[1:], pattern.strides[1:], strict=True))
        starts = (rows.offset_bytes + chosen * rows.step_bytes) // size
        low = int(starts.min()) + sum(min(0, (c - 1) * s) for c, s in tail)
        high = int(starts.max()) + sum(max(0, (c - 1) * s) for c, s in tail)
        self.recorder.access(position, rows.position, low, high, len(chosen))

    def _valid_rows(self, op: str, rows: list[Rows]) -> Flags | None:
        """Return which rows all vector indices have in bounds; None if all are."""
        if all(chosen.is_valid.all() for chosen in rows):
            return None
        if len({len(chosen.is_valid) for chosen in rows}) > 1:
            raise UnsupportedError(
                "NKS507", f"{op}: skipped rows with vector indices of different lengths"
            )
        both: Flags = np.logical_and.reduce([chosen.is_valid for chosen in rows])
        return both

    def _run_rows(
        self, planned: PlannedForm, views: list[Array], rows: list[Rows], is_valid: Flags | None
    ) -> None:
        """Run, keep what skipped rows held, and scatter."""
        slots, op = planned.slots, planned.form.op
        scattered = {chosen.position for chosen in rows if slots[chosen.position].writes}
        if is_valid is not None:
            for chosen in rows:
                chosen.is_valid = is_valid
        kept: list[tuple[Array, Array, Flags]] = []
        if is_valid is not None:
            for p, slot in enumerate(slots):
                if slot.writes and not slot.is_register and p not in scattered:
                    view = views[p]
                    if view.size % len(is_valid):
                        raise UnsupportedError(
                            "NKS507", f"{op}: skipped rows do not divide {planned.form.operands[p]}"
                        )
                    skipped = np.repeat(~is_valid, view.size // len(is_valid)).reshape(view.shape)
                    kept.append((view, view[skipped], skipped))
        repeated = [
            chosen for chosen in rows if chosen.position in scattered and chosen.has_duplicates
        ]
        if repeated:
            self._warn_duplicates(planned, repeated[0])
        if repeated and any(slots[chosen.position].reads for chosen in repeated):
            self._run_rounds(planned, views, rows, repeated[0])
        else:
            planned.run(self.windows.state, views)
            for chosen in rows:
                if chosen.position in scattered:
                    chosen.write_back()
        for view, values, skipped in kept:
            view[skipped] = values

    def _run_rounds(
        self, planned: PlannedForm, views: list[Array], rows: list[Rows], repeated: Rows
    ) -> None:
        """Read-modify-write of equal rows: one round for each occurrence of a row."""
        writes = [p for p, slot in enumerate(planned.slots) if slot.writes and not slot.is_register]
        if writes != [repeated.position]:
            raise UnsupportedError(
                "NKS507", f"{planned.form.op}: equal rows with several written operands"
            )
        turn = occurrence(np.where(repeated.is_valid, repeated.values, -1))
        for r in count():
            picked = np.flatnonzero((turn == r) & repeated.is_valid)
            if not len(picked):
                return
            for chosen in rows:
                if planned.slots[chosen.position].reads:
                    views[chosen.position] = chosen.table[chosen.values]
            planned.run(self.windows.state, views)
            repeated.table[repeated.values[picked]] = views[repeated.position][picked]

    def _warn_duplicates(self, planned: PlannedForm, rows: Rows) -> None:
        operand = planned.form.operands[rows.position]
        if planned.slots[rows.position].reads and planned.form.attr("unique_indices") is not True:
            return
        self.windows.warnings.add(
            Diagnostic(
                code="NKS408",
                message=f"{planned.form.op}: {operand.role} writes one row more than once; "
                "the device does not guarantee the order",
                kind="warning",
            )
        )

    def _check_rows(self, planned: PlannedForm, rows: Rows, buffer: int) -> None:
        slot = planned.slots[rows.position]
        if not slot.reads or self.windows.written.is_whole(buffer):
            return
        flags = self._row_flags(rows, slot, buffer)
        chosen = rows.values[rows.is_valid]
        if flags is not None and not flags[chosen].all():
            grain = self.windows.written.grain[buffer]
            bad = chosen[~flags[chosen].reshape(len(chosen), -1).all(axis=1)]
            first = rows.offset_bytes + int(bad[0]) * rows.step_bytes
            operand = planned.form.operands[rows.position]
            raise unwritten_read(
                self.program, planned.form.op, operand, buffer, (len(bad) * grain, first)
            )

    def _row_flags(self, rows: Rows, slot: Slot, buffer: int) -> Flags | None:
        return self.windows.written.rows(
            buffer, slot.pattern, rows.offset_bytes, rows.step_bytes, len(rows.table)
        )

    def _mark_rows(self, rows: Rows, slot: Slot, buffer: int) -> None:
        flags = self._row_flags(rows, slot, buffer)
        chosen = rows.values[rows.is_valid]
        if flags is not None and len(chosen):
            flags[chosen] = True
            self.windows.written.touch(buffer)
