"""Dependences against a slow reference that compares every pair of instructions."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.nkisim import toy
from tests.nkisim.toy import HBM, SBUF, Toy

from nkisim.machine.spec import Engine
from nkisim.memory.placement import place_tiles
from nkisim.ops.registry import Cost, DmaCost, OpTable
from nkisim.timing.boxes import boxes_of
from nkisim.timing.dependence import (
    AFTER_READER,
    AFTER_WRITER,
    DATA,
    KIND_BITS,
    Dependences,
    dependences_of,
)
from nkisim.timing.scheduler import simulate

MACHINE = toy.MACHINE.with_changes(
    {"dma.issue_interval_ns": 40.0, "dma.trigger_ns": 90.0, "dma.complete_ns": 30.0}
)
PARTITIONS, COLUMNS = 4, 256


def _cost(form, _):
    size = max(o.size_bytes for o in form.operands)
    if form.op.startswith("dma"):
        is_store = form["dst"].memory is HBM
        return DmaCost(
            bytes_read=size,
            bytes_written=size,
            hbm_bytes=size,
            descriptors=1,
            engines_used=1 + size % 16,
            is_store=is_store,
        )
    interval = 20 + size // 16
    return Cost(interval=interval, latency=interval + 7 * len(form.op) % 50)


OPS = OpTable([replace(spec, cost=_cost) for spec in toy.OPS])


@st.composite
def programs(draw):
    """Copies and arithmetic on tiles that rotate, share addresses and do not all fit."""
    build = Toy()
    source = build.input(64, COLUMNS)
    scratch = build.buffer(HBM, (64, COLUMNS))
    sites = [build._site(f"tile {n}") for n in range(3)]
    widths = [64, 128, 256]
    tiles = [build.buffer(SBUF, (PARTITIONS, 64), address=a, site=sites[0]) for a in (0, 128)]
    banks = [build.psum(PARTITIONS, COLUMNS) for _ in range(2)]

    def part(views):
        view = draw(st.sampled_from(views[-5:]))
        first = draw(st.sampled_from([0, 0, 16, 32]))
        return view[
            0 : draw(st.sampled_from([2, 4])), first : first + draw(st.sampled_from([16, 32]))
        ]

    def same_shape(dst, view):
        rows, columns = dst.counts
        return replace(view, counts=(rows, columns))

    def rows_of(view):
        first = 4 * draw(st.integers(0, 2))
        start = draw(st.sampled_from([0, 32, 64]))
        return view[first : first + 4, start : start + 64]

    for kind in draw(st.lists(st.sampled_from("nnlladcmst"), min_size=16, max_size=48)):
        engine = draw(st.sampled_from([Engine.SYNC, Engine.SYNC, Engine.SCALAR, Engine.GPSIMD]))
        if kind == "n":
            n = draw(st.integers(0, 2))
            tiles.append(build.buffer(SBUF, (PARTITIONS, widths[n]), site=sites[n]))
            continue
        dst = part(tiles)
        match kind:
            case "l":
                src = same_shape(dst, rows_of(draw(st.sampled_from([source, scratch]))))
                build.emit("dma_copy", engine=engine, dst=dst, src=src)
            case "s":
                out = same_shape(dst, rows_of(scratch))
                build.emit("dma_copy", engine=engine, dst=out, src=dst)
            case "a":
                build.emit(
                    "add", dst=dst, data1=same_shape(dst, part(tiles)), data2=same_shape(dst, dst)
                )
            case "d":
                build.emit("memset", engine=Engine.GPSIMD, attrs={"value": 1.0}, dst=dst)
            case "c":
                compute = draw(st.sampled_from([Engine.VECTOR, Engine.SCALAR]))
                build.emit("tensor_copy", engine=compute, dst=dst, src=same_shape(dst, part(tiles)))
            case "m":
                left = replace(dst, counts=(2, 2))
                bank = draw(st.sampled_from(banks))
                build.emit("nc_matmul", dst=bank[:2, :16], stationary=left, moving=dst[:2, :16])
            case "t":
                bank = draw(st.sampled_from(banks))
                build.emit("tensor_copy", dst=dst, src=same_shape(dst, bank))
    # HBM that is only written is not tracked: read it as well.
    build.emit("dma_copy", dst=tiles[0], src=same_shape(tiles[0], scratch))
    return build.build(scratch)


def _every_pair(program, found, placement):
    """All dependences between two instructions, however old, from the boxes of their operands."""
    boxes = boxes_of(program, placement)
    starts = program.operand_start
    columns = (boxes.row_start, boxes.row_end, boxes.byte_start, boxes.byte_end)
    corners = np.stack(columns, axis=1).tolist()

    def accesses(i, positions):
        at = [int(starts[i]) + k for k in positions]
        return [(int(boxes.place[k]), corners[k]) for k in at]

    def meet(xs, ys):
        return any(
            (p == q or q in placement.overlaps.get(p, ()))
            and a[0] < b[1]
            and b[0] < a[1]
            and a[2] < b[3]
            and b[2] < a[3]
            for p, a in xs
            for q, b in ys
        )

    edges, edge_start = [], [0]
    forms = [found.access[f] for f in found.forms]
    reads = [accesses(i, form.reads) for i, form in enumerate(forms)]
    writes = [accesses(i, form.writes) for i, form in enumerate(forms)]
    for j, later in enumerate(forms):
        for i, earlier in enumerate(forms[:j]):
            in_order = earlier.track == later.track and not later.is_dma
            if meet(writes[i], reads[j]):
                edges.append((i << KIND_BITS) + DATA)
            if meet(writes[i], writes[j]) and not in_order:
                edges.append((i << KIND_BITS) + AFTER_WRITER)
            if meet(reads[i], writes[j]) and not in_order:
                edges.append((i << KIND_BITS) + AFTER_READER)
        edge_start.append(len(edges))
    return Dependences(found.order, found.forms, found.access, edge_start, edges)


@settings(max_examples=80, deadline=None)
@given(programs())
def test_pruned_dependences_give_the_same_times_as_all_pairs(program):
    placement = place_tiles(program, MACHINE)
    found = dependences_of(program, MACHINE, OPS, placement)
    pruned = simulate(program, MACHINE, OPS, found)
    slow = simulate(program, MACHINE, OPS, _every_pair(program, found, placement))
    assert pruned.start_ps.tolist() == slow.start_ps.tolist()
    assert pruned.result_ps.tolist() == slow.result_ps.tolist()


def _bytes(program, placement, i, positions):
    """Physical bytes that some operands of an instruction touch, one by one."""
    touched = set()
    for k, (operand, buffer, offset) in enumerate(program.accesses(i)):
        if k not in positions:
            continue
        columns = program.buffer_columns
        index = np.zeros(1, dtype=np.int64) + offset
        for count, stride in zip(operand.shape, operand.pattern.strides, strict=True):
            index = (index[:, None] + np.arange(count) * stride).reshape(-1)
        first = index * operand.dtype.itemsize
        where = (first[:, None] + np.arange(operand.dtype.itemsize)).reshape(-1)
        if operand.memory is HBM:
            touched |= {(buffer, 0, b) for b in where.tolist()}
            continue
        pitch = int(columns.pitch_bytes[buffer])
        row = where // pitch + int(columns.start_partition[buffer])
        byte = where % pitch + int(placement.address[buffer])
        touched |= set(
            zip([str(operand.memory)] * len(where), row.tolist(), byte.tolist(), strict=True)
        )
    return touched


@settings(max_examples=40, deadline=None)
@given(programs())
def test_every_byte_is_read_after_it_is_written_and_overwritten_after_it_is_read(program):
    placement = place_tiles(program, MACHINE)
    found = dependences_of(program, MACHINE, OPS, placement)
    timeline = simulate(program, MACHINE, OPS, found)
    forms = [found.access[f] for f in found.forms]
    reads = [_bytes(program, placement, i, f.reads) for i, f in enumerate(forms)]
    writes = [_bytes(program, placement, i, f.writes) for i, f in enumerate(forms)]
    start, end, result = timeline.start_ps, timeline.end_ps, timeline.result_ps
    tracks = np.array([f.track for f in forms])
    for track in np.unique(tracks):
        assert (np.diff(result[tracks == track]) >= 0).all()
    for j in range(len(forms)):
        for i in range(j):
            if writes[i] & reads[j]:
                assert start[j] >= result[i], (i, j)
            if writes[i] & writes[j]:
                assert result[j] >= result[i], (i, j)
            if reads[i] & writes[j]:
                assert result[j] > end[i] or start[j] >= start[i], (i, j)


@st.composite
def accesses(draw, size):
    """An offset, counts and strides that stay inside `size` elements."""
    rank = draw(st.integers(1, 4))
    counts = [draw(st.integers(1, 5)) for _ in range(rank)]
    strides = [draw(st.sampled_from([-64, -16, -1, 0, 1, 2, 3, 7, 16, 64])) for _ in range(rank)]
    low = sum(min(0, (c - 1) * s) for c, s in zip(counts, strides, strict=True))
    high = sum(max(0, (c - 1) * s) for c, s in zip(counts, strides, strict=True))
    assume(high - low < size)
    offset = draw(st.integers(-low, size - 1 - high))
    return offset, tuple(counts), tuple(strides)


@settings(max_examples=150, deadline=None)
@given(st.lists(accesses(1024), min_size=1, max_size=4), st.sampled_from([SBUF, HBM]))
def test_a_box_holds_every_byte_that_its_access_touches(found, memory):
    build = Toy()
    tensor = build.buffer(memory, (16, 64))
    source = build.buffer(HBM, (16, 64))
    for offset, counts, strides in found:
        view = replace(tensor, offset=offset, counts=counts, strides=strides)
        build.emit("dma_copy", dst=view, src=replace(source, counts=counts, strides=strides))
    program = build.build()
    boxes = boxes_of(program, place_tiles(program, MACHINE))
    # HBM has no rows of its own: the pitch is the smallest outermost stride in use.
    pitches = [max((abs(s) for c, s in zip(n, t, strict=True) if c > 1), default=0)
               for _, n, t in found]  # fmt: skip
    pitch = 4 * (64 if memory is SBUF else min([p for p in pitches if p > 1], default=1 << 50))
    for i, (offset, counts, strides) in enumerate(found):
        index = np.array([offset])
        for count, stride in zip(counts, strides, strict=True):
            index = (index[:, None] + np.arange(count) * stride).reshape(-1)
        k = int(program.operand_start[i])
        row, byte = index * 4 // pitch, index * 4 % pitch
        assert (boxes.row_start[k] <= row).all()
        assert (row < boxes.row_end[k]).all()
        assert (boxes.byte_start[k] <= byte).all()
        assert (byte + 4 <= boxes.byte_end[k]).all()


def _edges(build, *, machine=MACHINE, executed=None):
    program = build.build()
    placement = place_tiles(program, machine)
    return dependences_of(program, machine, OPS, placement, executed=executed)


def test_disjoint_column_tiles_of_a_scratch_tensor_do_not_wait_for_each_other():
    build = Toy()
    scratch = build.buffer(HBM, (8, COLUMNS))
    tiles = [build.sbuf(4, 32, fill=0.0) for _ in range(2)]
    build.emit("dma_copy", dst=scratch[0:4, 0:32], src=tiles[0])
    build.emit("dma_copy", dst=scratch[0:4, 32:64], src=tiles[1])
    build.emit("dma_copy", dst=tiles[1], src=scratch[0:4, 0:32])
    assert _edges(build).of(1) == []
    assert (0, DATA) in _edges(build).of(2)
    assert (1, DATA) not in _edges(build).of(2)


def test_matmuls_accumulate_without_waiting_for_each_other():
    build = Toy()
    left, right, acc = build.sbuf(4, 4, fill=0.0), build.sbuf(4, 32, fill=0.0), build.psum(4, 32)
    for _ in range(3):
        build.emit("nc_matmul", dst=acc, stationary=left, moving=right)
    build.emit("tensor_copy", dst=right, src=acc)
    found = _edges(build)
    assert [found.of(i) for i in range(3)] == [[], [], []]
    assert found.of(3) == [(2, DATA)]


def test_tiles_at_overlapping_addresses_wait_for_each_other():
    build = Toy()
    low = build.buffer(SBUF, (4, 64), address=0)
    high = build.buffer(SBUF, (4, 64), address=128)
    apart = build.buffer(SBUF, (4, 64), address=1024)
    build.emit("memset", attrs={"value": 1.0}, engine=Engine.VECTOR, dst=low)
    build.emit("memset", attrs={"value": 1.0}, engine=Engine.GPSIMD, dst=high)
    build.emit("memset", attrs={"value": 1.0}, engine=Engine.SCALAR, dst=apart)
    found = _edges(build)
    assert found.of(1) == [(0, AFTER_WRITER)]
    assert found.of(2) == []


def test_registers_carry_dependences():
    build = Toy()
    tile, register = build.sbuf(1, 1, dtype=toy.I32, fill=0), build.register()
    build.emit("memset", attrs={"value": 1}, dst=tile)
    build.emit("register_load", dst=register, src=tile)
    build.emit("register_store", dst=tile, src=register)
    found = _edges(build)
    assert found.of(1) == [(0, DATA)]
    assert (1, DATA) in found.of(2)


def test_repeated_instructions_depend_on_their_previous_trip():
    build = Toy()
    tile = build.sbuf(4, 64)
    build.emit("memset", attrs={"value": 1.0}, dst=tile)
    build.emit("add", dst=tile, data1=tile, data2=tile)
    found = _edges(build, executed=np.array([0, 1, 1, 1]))
    assert [found.of(i) for i in range(4)] == [[], [(0, DATA)], [(1, DATA)], [(2, DATA)]]


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_without_reuse_only_results_are_waited_for(copies):
    build = Toy()
    site = build._site("tile")
    source = build.input(64, 64)
    for _ in range(4):
        tile = build.buffer(SBUF, (4, 64), site=site)
        build.emit("dma_copy", dst=tile, src=source[0:4, :])
        build.emit("add", dst=tile, data1=tile, data2=tile)
    program = build.build()
    found = dependences_of(program, MACHINE, OPS, place_tiles(program, MACHINE, copies=copies))
    waits = [i for i in range(8) if any(kind != DATA for _, kind in found.of(i))]
    assert waits == list(range(2 * copies, 8, 2))
    ideal = found.without_reuse()
    assert all(kind == DATA for i in range(8) for _, kind in ideal.of(i))
    assert len(ideal.edges) == 4
