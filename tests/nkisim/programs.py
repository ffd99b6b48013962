"""Random small Programs, and a slow interpreter that does everything element by element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from tests.nkisim.toy import Toy, View

from nkisim.ir.access import Memory
from nkisim.ir.program import AttrValue, Program

PARTITIONS, COLUMNS = 4, 12


class Unwritten(Exception):
    """The slow interpreter met a read of unwritten memory."""

    def __init__(self, instruction: int | None) -> None:
        super().__init__(instruction)
        self.instruction = instruction


def _indices(counts: Sequence[int], strides: Sequence[int], offset: int) -> npt.NDArray[np.int64]:
    index = np.full(tuple(counts), offset, dtype=np.int64)
    for axis, (count, stride) in enumerate(zip(counts, strides, strict=True)):
        shape = [1] * len(counts)
        shape[axis] = count
        index += (np.arange(count) * stride).reshape(shape)
    return index


def slow_execute(
    program: Program, inputs: Sequence[npt.NDArray[np.float32]]
) -> tuple[npt.NDArray[np.float32], ...]:
    """Run a straight-line float32 Program with explicit element numbers."""
    values = [np.zeros(b.size, dtype=np.float32) for b in program.buffers]
    written = [np.full(b.size, b.fill is not None) for b in program.buffers]
    results = [np.zeros(b.size, dtype=bool) for b in program.buffers]
    for number, buffer in enumerate(program.buffers):
        if buffer.fill is not None:
            values[number][:] = buffer.fill
    for argument, array in zip(program.arguments, inputs, strict=True):
        values[argument.buffer][:] = array.reshape(-1)
        written[argument.buffer][:] = True
    for i in range(len(program)):
        form = program.forms[program.form[i]]
        at: dict[str, tuple[int, npt.NDArray[np.int64]]] = {}
        for operand, buffer_number, offset in program.accesses(i):
            pattern = operand.pattern
            at[operand.role] = (
                buffer_number,
                _indices(pattern.counts, pattern.strides, offset),
            )
        dst, where = at["dst"]
        reads = [role for role in at if role != "dst"]
        if form.op == "dma_compute" or form.attr("accumulate") is True:
            reads.append("dst")
        for role in reads:
            if not written[at[role][0]][at[role][1]].all():
                raise Unwritten(i)
        got = {role: values[b][index] for role, (b, index) in at.items()}
        is_matmul = form.op == "nc_matmul"
        if form.op in ("dma_copy", "tensor_copy"):
            new = got["src"]
        elif form.op == "add":
            new = got["data1"] + got["data2"]
        elif form.op == "memset":
            new = np.full(where.shape, form.attr("value"), dtype=np.float32)
        elif form.op == "dma_compute":
            new = got["dst"] + got["src"]
        elif form.op == "nc_transpose":
            new = got["src"].T
        else:
            accumulate = form.attr("accumulate")
            adds = results[dst][where] if accumulate is None else np.full(where.shape, accumulate)
            new = got["stationary"].T @ got["moving"] + np.where(adds, got["dst"], np.float32(0))
        values[dst][where] = new
        written[dst][where] = True
        results[dst][where] = is_matmul
    outputs = []
    for output in program.outputs:
        index = _indices(output.pattern.counts, output.pattern.strides, output.offset)
        if not written[output.buffer][index].all():
            raise Unwritten(None)
        outputs.append(values[output.buffer][index])
    return tuple(outputs)


def _window(draw: st.DrawFn, tile: View, partitions: int, columns: int) -> View:
    """A part of a tile with the wanted shape, possibly strided in the free dimension."""
    step = draw(st.sampled_from([1, 1, 2])) if columns * 2 <= tile.counts[1] else 1
    start = draw(st.integers(0, tile.counts[1] - (columns - 1) * step - 1))
    return tile[:partitions, start : start + (columns - 1) * step + 1 : step]


class _Writer:
    """Emits instructions and keeps track of what is written, so that most Programs are legal."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.toy = Toy()
        self.source = self.toy.input(PARTITIONS, COLUMNS)
        self.written: dict[int, npt.NDArray[np.bool_]] = {}

    def flags(self, view: View) -> npt.NDArray[np.bool_]:
        """Flags of a buffer, all set for the input."""
        buffer = self.toy.buffers[view.buffer]
        is_whole = buffer.kind == "input" or buffer.fill is not None
        return self.written.setdefault(view.buffer, np.full(buffer.size, is_whole))

    def emit(self, op: str, attrs: dict[str, AttrValue] | None = None, **views: View) -> None:
        """Emit, writing first what the instruction reads; now and then this is forgotten."""
        reads = [view for role, view in views.items() if role != "dst"]
        if op == "dma_compute" or (attrs or {}).get("accumulate") is True:
            reads.append(views["dst"])
        for view in reads:
            where = _indices(view.counts, view.strides, view.offset)
            if not self.flags(view)[where].all() and self.draw(
                st.sampled_from([True] * 30 + [False])
            ):
                if view.memory is Memory.HBM:
                    part = replace(self.source, counts=view.counts, strides=view.strides)
                    self.toy.emit("dma_copy", dst=view, src=replace(part, offset=view.offset))
                else:
                    self.toy.emit("memset", attrs={"value": 3.0}, dst=view)
                self.flags(view)[where] = True
        self.toy.emit(op, attrs=attrs, line=None, engine=None, **views)
        dst = views["dst"]
        self.flags(dst)[_indices(dst.counts, dst.strides, dst.offset)] = True


_OPS = ["load", "store", "add", "copy", "memset", "matmul", "matmul", "transpose", "rmw", "fresh"]


@st.composite
def straight_line(draw: st.DrawFn) -> Program:
    """Copies, adds, matmuls and transposes between a few tiles and tensors, any part of them."""
    writer = _Writer(draw)
    toy, emit, source = writer.toy, writer.emit, writer.source
    result = toy.output(PARTITIONS, COLUMNS)
    fill = draw(st.sampled_from([None, 0.0, 1.5]))
    sbuf = [toy.sbuf(PARTITIONS, COLUMNS, fill=fill if i == 0 else None) for i in range(3)]
    psum = [toy.psum(PARTITIONS, COLUMNS) for _ in range(2)]
    for op in draw(st.lists(st.sampled_from(_OPS), min_size=1, max_size=14)):
        rows, columns = draw(st.integers(1, PARTITIONS)), draw(st.integers(1, COLUMNS))
        if draw(st.booleans()):
            rows, columns = PARTITIONS, COLUMNS

        def part(tiles: list[View], rows: int = rows, columns: int = columns) -> View:
            return _window(draw, draw(st.sampled_from(tiles)), rows, columns)

        on_chip = sbuf + psum
        if op == "load":
            emit("dma_copy", dst=part(sbuf), src=part([source, result]))
        elif op == "store":
            emit("dma_copy", dst=part([result]), src=part(sbuf))
        elif op == "add":
            emit("add", dst=part(on_chip), data1=part(on_chip), data2=part(on_chip))
        elif op == "copy":
            emit("tensor_copy", dst=part(on_chip), src=part(on_chip))
        elif op == "memset":
            emit("memset", {"value": 2.0}, dst=part(on_chip))
        elif op == "matmul":
            emit(
                "nc_matmul",
                {"accumulate": draw(st.sampled_from([None, None, None, True, False]))},
                dst=part(psum),
                stationary=part(sbuf, PARTITIONS, rows),
                moving=part(sbuf, PARTITIONS, columns),
            )
        elif op == "transpose":
            emit("nc_transpose", dst=part(psum, rows, rows), src=part(sbuf, rows, rows))
        elif op == "rmw":
            emit("dma_compute", dst=part([result]), src=part(sbuf))
        elif draw(st.booleans()):
            sbuf[draw(st.integers(0, 2))] = toy.sbuf(PARTITIONS, COLUMNS)
        else:
            psum[draw(st.integers(0, 1))] = toy.psum(PARTITIONS, COLUMNS)
    shown = draw(st.sampled_from(sbuf + psum))
    if shown.memory is Memory.PSUM:
        emit("tensor_copy", dst=sbuf[0][:, :6], src=shown[:, :6])
        shown = sbuf[0]
    if draw(st.booleans()):
        emit("dma_copy", dst=result[:, :6], src=shown[:, :6])
        if draw(st.sampled_from([True] * 8 + [False])):
            emit("dma_copy", dst=result[:, 6:], src=sbuf[1][:, 6:])
    else:
        emit("dma_copy", dst=result, src=shown)
    return toy.build(result)


def with_everything() -> Program:
    """One Program that uses every part of the format."""
    toy = Toy(is_hybrid=True)
    x = toy.input(8, 16)
    state = toy.input(4, 4, is_written=True)
    table = toy.constant(np.arange(12, dtype=np.int32).reshape(3, 4))
    y = toy.output(8, 16)
    tile = toy.buffer(Memory.SBUF, (8, 16), fill=float("-inf"), address=64, start_partition=32)
    index = toy.sbuf(4, 1, fill=0.0)
    toy.emit(
        "dma_copy",
        dst=tile,
        src=x,
        attrs={"label": 'quote " and ; and }', "list": (1, (2.5, None))},
    )
    toy.emit("dma_copy", dst=index.as_dtype(index.dtype), src=state[:4, :1])
    limit = toy.register()
    toy.emit("register_load", dst=limit, src=table[0:1, 1:2])
    with toy.loop(limit, start=0, step=2) as i:
        inner = toy.sbuf(1, 16)
        toy.emit("dma_copy", dst=inner, src=x[0:1].at(i, bound=8, step=16))
        with toy.loop(condition=toy.register()):
            toy.emit("add", dst=inner, data1=inner, data2=inner, attrs={"op": "add", "scale": 1.0})
        toy.emit("dma_copy", dst=y[0:1].at(i, bound=8, step=16, skip=True), src=inner)
    toy.emit(
        "dma_copy", dst=toy.sbuf(4, 16), src=x.rows(index.as_dtype(table.dtype), bound=8, skip=True)
    )
    assert Memory.REGISTER in {operand.memory for operand in list(toy.forms)[2].operands}
    return toy.build(y, y[2:4, ::2])


__all__ = ["Unwritten", "slow_execute", "straight_line", "with_everything"]
