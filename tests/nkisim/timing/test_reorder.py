"""The list scheduler's order keeps every dependence, and overlaps what program order does not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nkisim.kernels import add_rows_one_buffer, nisa, nl, profile, tensor
from tests.nkisim.timing.test_dependence import MACHINE, OPS, programs

from nkisim.api import resolve_machine, run_standalone
from nkisim.frontend.trace import trace_kernel
from nkisim.machine.load import load_machine
from nkisim.memory.placement import place_tiles
from nkisim.ops.table import OPS as NKI_OPS
from nkisim.profile.model import profile_program
from nkisim.timing.boxes import boxes_of
from nkisim.timing.dependence import FormAccess
from nkisim.timing.reorder import list_order


def _accesses(program, ops, machine, placement):
    """Return (is_write, bytes) of each operand of each instruction, as sets of (row, byte)."""
    boxes, found = boxes_of(program, placement), []
    spans = np.stack([boxes.row_start, boxes.row_end, boxes.byte_start, boxes.byte_end]).T
    for number in range(len(program)):
        form = program.forms[program.form[number]]
        access = FormAccess.of(form, ops[form.op], ops[form.op].cost(form, machine))
        mine = []
        for positions, is_write in ((access.reads, False), (access.writes, True)):
            for k in positions:
                at = int(program.operand_start[number]) + k
                buffer = int(program.operand_buffer[at])
                memory = form.operands[k].memory
                where = (memory, buffer if not memory.is_on_chip else None)
                mine.append((is_write, where, spans[at].tolist()))
        found.append(mine)
    return found


def _conflict(one, other):
    for is_write, where, (r0, r1, b0, b1) in one:
        for also_writes, there, (s0, s1, c0, c1) in other:
            if where != there or not (is_write or also_writes):
                continue
            if r0 < s1 and s0 < r1 and b0 < c1 and c0 < b1:
                return True
    return False


@settings(max_examples=40, deadline=None)
@given(programs(), st.sampled_from([2, 8, 256]))
def test_whatever_touches_the_same_bytes_keeps_its_order(program, window):
    placement = place_tiles(program, MACHINE)
    order = list_order(program, MACHINE, OPS, placement, window=window)
    assert sorted(order.tolist()) == list(range(len(program)))
    position = np.argsort(order)
    accesses = _accesses(program, OPS, MACHINE, placement)
    for later in range(len(program)):
        for earlier in range(later):
            if _conflict(accesses[earlier], accesses[later]):
                assert position[earlier] < position[later]


@settings(max_examples=20, deadline=None)
@given(programs())
def test_a_window_of_one_keeps_each_stream_in_order(program):
    placement = place_tiles(program, MACHINE)
    order = list_order(program, MACHINE, OPS, placement, window=1)
    lanes = [FormAccess.of(f, OPS[f.op], OPS[f.op].cost(f, MACHINE)).stream for f in program.forms]
    streams = np.array(lanes)[program.form[order]]
    for stream in set(streams.tolist()):
        assert (np.diff(order[streams == stream]) > 0).all()


def alternate(a):
    """Each tile goes to the Vector Engine, to the Scalar Engine and back."""
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    for start in range(0, a.shape[0], 128):
        rows = slice(start, start + 128)
        w = nl.ndarray((128, a.shape[1]), dtype=a.dtype, buffer=nl.sbuf)
        x = nl.ndarray((128, a.shape[1]), dtype=a.dtype, buffer=nl.sbuf)
        y = nl.ndarray((128, a.shape[1]), dtype=a.dtype, buffer=nl.sbuf)
        z = nl.ndarray((128, a.shape[1]), dtype=a.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=w, src=a[rows, :])
        nisa.tensor_scalar(dst=x, data=w, op0=nl.add, operand0=1.0)
        nisa.activation(dst=y, op=nl.exp, data=x)
        nisa.tensor_scalar(dst=z, data=y, op0=nl.add, operand0=1.0)
        nisa.dma_copy(dst=out[rows, :], src=z)
    return out


@pytest.fixture
def alternating():
    machine = load_machine("trn1").with_changes({"dma.bytes_per_ns_per_engine": 1e6})
    machine = machine.with_changes({"dma.hbm_bytes_per_ns": 1e6, "dma.issue_interval_ns": 1.0})
    kernel = trace_kernel(
        alternate, (tensor((2048, 1024)),), machine=resolve_machine("trn1"), run=run_standalone
    )
    return kernel.program, machine


def test_iterations_that_wait_for_two_engines_overlap(alternating):
    program, machine = alternating
    written = profile_program(program, machine, order="program")
    listed = profile_program(program, machine, order="list")
    assert (written.schedule, listed.schedule) == ("program", "list")
    assert listed.busy["vector"] > 0.85 > 0.7 > written.busy["vector"]
    assert listed.to_json()["schedule"] == "list"


def test_the_order_is_deterministic(alternating):
    program, machine = alternating
    placement = place_tiles(program, machine)
    first = list_order(program, machine, NKI_OPS, placement)
    assert np.array_equal(first, list_order(program, machine, NKI_OPS, placement))
    assert not np.array_equal(first, np.arange(len(program)))


def test_a_serial_kernel_gains_nothing():
    wide = tensor((512, 512))
    found = profile(add_rows_one_buffer, wide, wide)
    listed = profile_program(found.program, found.machine, order="list")
    assert listed.latency_ns == pytest.approx(found.latency_ns, rel=0.02)
    assert found.schedule == "program"
