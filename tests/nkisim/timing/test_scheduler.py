"""What waits for what: order and ratio, never a magic nanosecond."""

import numpy as np
import pytest
from tests.nkisim.kernels import (
    add_rows,
    add_rows_one_buffer,
    exp_tile,
    hoisted_matmul,
    profile,
    tensor,
    tiled_matmul,
)

import nkisim
from nkisim.timing.timeline import LANES, Wait

nkisim.install()

import nki.isa as nisa  # type: ignore[import-not-found]  # noqa: E402 - served by install()
import nki.language as nl  # type: ignore[import-not-found]  # noqa: E402

WIDE = tensor((1024, 2048))


def test_equal_programs_have_equal_timelines():
    first, second = profile(add_rows, WIDE, WIDE), profile(add_rows, WIDE, WIDE)
    assert np.array_equal(first.timeline.start_ps, second.timeline.start_ps)


def test_tiles_allocated_in_the_loop_overlap_iterations():
    overlapped = profile(add_rows, WIDE, WIDE)
    serial = profile(add_rows_one_buffer, WIDE, WIDE)
    assert overlapped.latency_ns < 0.8 * serial.latency_ns
    reuse = int(Wait.REUSE)
    assert (serial.timeline.wait == reuse).sum() > (overlapped.timeline.wait == reuse).sum()


def test_an_engine_runs_one_instruction_at_a_time():
    timeline = profile(tiled_matmul, tensor((512, 256)), tensor((512, 1024))).timeline
    for lane, name in enumerate(LANES):
        if name.startswith("dma"):
            continue
        at = timeline.lane == lane
        starts, ends = timeline.start_ps[at], timeline.end_ps[at]
        assert (starts[1:] >= ends[:-1]).all(), name


def test_a_reader_starts_after_the_result_it_reads():
    found = profile(exp_tile, tensor((128, 512)))
    load, exp, store = range(3)
    timeline = found.timeline
    assert timeline.start_ps[exp] >= timeline.result_ps[load]
    assert timeline.start_ps[store] >= timeline.result_ps[exp]
    assert timeline.predecessor[exp] == load
    assert Wait(int(timeline.wait[exp])) is Wait.DATA


def test_more_dma_bandwidth_helps_a_memory_bound_kernel():
    base = profile(add_rows, WIDE, WIDE)
    rate = {"dma.bytes_per_ns_per_engine": 46.0, "dma.hbm_bytes_per_ns": 740.0}
    assert profile(add_rows, WIDE, WIDE, changes=rate).latency_ns < 0.7 * base.latency_ns


def test_two_queues_issue_faster_than_one():
    def copies(engines):
        def kernel(a):
            out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
            for i in range(a.shape[0] // 128):
                tile = nl.ndarray((128, 4), dtype=a.dtype, buffer=nl.sbuf)
                rows = slice(i * 128, i * 128 + 128)
                nisa.dma_copy(dst=tile, src=a[rows, :], engine=engines[0])
                nisa.dma_copy(dst=out[rows, :], src=tile, engine=engines[1])
            return out

        return profile(kernel, tensor((6400, 4))).latency_ns

    one = copies((nisa.engine.sync, nisa.engine.sync))
    two = copies((nisa.engine.sync, nisa.engine.gpsimd))
    assert two < 0.7 * one


@pytest.mark.parametrize("backlog", [1, 50])
def test_the_backlog_of_one_queue_does_not_hold_back_another(backlog):
    def kernel(a):
        out = nl.ndarray((128, 4), dtype=a.dtype, buffer=nl.shared_hbm)
        for i in range(backlog):
            tile = nl.ndarray((128, 4), dtype=a.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=a[i * 128 : i * 128 + 128, :])
        other = nl.ndarray((128, 4), dtype=a.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=other, src=a[0:128, :], engine=nisa.engine.scalar)
        nisa.dma_copy(dst=out, src=other, engine=nisa.engine.scalar)
        return out

    found = profile(kernel, tensor((6400, 4)))
    timeline, machine = found.timeline, found.machine
    copy_ns = (timeline.result_ps[backlog] - timeline.launch_before_ps) / 1000
    alone_ns = machine.dma.trigger_ns + machine.dma.complete_ns
    assert alone_ns < copy_ns < alone_ns + machine.dma.issue_interval_ns


def test_copies_of_several_queues_share_the_bandwidth():
    def kernel_of(engines):
        def kernel(a):
            out = nl.ndarray((128, 4), dtype=a.dtype, buffer=nl.shared_hbm)
            for i in range(8):
                tile = nl.ndarray((128, 4096), dtype=a.dtype, buffer=nl.sbuf)
                rows = slice(i * 128, i * 128 + 128)
                nisa.dma_copy(dst=tile, src=a[rows, :], engine=engines[i % len(engines)])
            nisa.dma_copy(dst=out, src=tile[:, 0:4])
            return out

        return profile(kernel, tensor((1024, 4096)))

    one = kernel_of([nisa.engine.sync])
    three = kernel_of([nisa.engine.sync, nisa.engine.scalar, nisa.engine.gpsimd])
    moving_ns = one.machine.transfer_ns(1024 * 4096 * 4)
    for found in (one, three):
        loads = found.timeline.end_ps[:8].max() - found.timeline.launch_before_ps
        assert moving_ns <= loads / 1000 < moving_ns * 1.05 + found.machine.dma.trigger_ns


def test_float32_matmul_takes_four_times_the_tensor_engine_of_bfloat16():
    def tensor_ns(dtype):
        found = profile(hoisted_matmul, tensor((512, 512), dtype), tensor((512, 1024), dtype))
        return found.busy["tensor"] * (found.latency_ns - found.launch_ns)

    assert tensor_ns("float32") == pytest.approx(4 * tensor_ns("bfloat16"), rel=0.15)


def test_alternating_activation_functions_reload_the_table():
    def kernel_of(functions):
        def kernel(a):
            out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
            x = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=x, src=a)
            for function in functions:
                nisa.activation(dst=x, op=function, data=x)
            nisa.dma_copy(dst=out, src=x)
            return out

        return profile(kernel, tensor((128, 64))).latency_ns

    grouped = kernel_of([nl.exp] * 4 + [nl.tanh] * 4)
    alternating = kernel_of([nl.exp, nl.tanh] * 4)
    assert alternating > grouped + 6 * 1000


def test_device_loops_are_timed_by_their_trips():
    def kernel_of(trips):
        def kernel(a):
            out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
            x = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=x, src=a)

            def body(i):
                nisa.tensor_scalar(dst=x, data=x, op0=nl.add, operand0=1.0)

            nl.fori_loop(0, trips, body)
            nisa.dma_copy(dst=out, src=x)
            return out

        return kernel

    from nkisim.api import run_kernel

    values = np.zeros((128, 512), np.float32)
    short, long = run_kernel(kernel_of(4), [values]), run_kernel(kernel_of(40), [values])
    assert (long.outputs[0] == 40).all()
    assert long.profile.latency_ns > short.profile.latency_ns + 30 * 500


def _issued_by(engine):
    """Store one row tile, whose values come late, beside work of the Scalar Engine."""

    def kernel(a):
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        x = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
        y = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
        z = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x, src=a)
        for _ in range(8):
            nisa.tensor_tensor(dst=x, data1=x, data2=x, op=nl.add)
        nisa.dma_copy(dst=out, src=x, engine=engine)
        nisa.memset(dst=y, value=1.0, engine=nisa.engine.gpsimd)
        nisa.activation(dst=z, op=nl.exp, data=y)
        return out

    found = profile(kernel, tensor((128, 512)))
    return found.timeline.start_ps[-1] - found.timeline.launch_before_ps


def test_a_copy_waits_at_the_head_of_the_engine_that_issues_it():
    assert _issued_by(nisa.engine.scalar) > 5 * _issued_by(nisa.engine.sync)


def test_engines_that_share_a_port_exclude_each_other_on_trn1():
    def kernel(a):
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        x = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
        y = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
        for _ in range(4):
            nisa.memset(dst=x, value=1.0, engine=nisa.engine.vector)
            nisa.memset(dst=y, value=1.0, engine=nisa.engine.gpsimd)
        nisa.dma_copy(dst=out, src=x)
        return out

    shared = profile(kernel, tensor((128, 2048)), machine="trn1").timeline
    apart = profile(
        kernel, tensor((128, 2048)), machine="trn1", changes={"shared_ports_exclusive": False}
    ).timeline
    memsets = np.argsort(shared.start_ps[:8], kind="stable")
    assert (shared.start_ps[memsets][1:] >= shared.end_ps[memsets][:-1]).all()
    assert (shared.wait == int(Wait.PORT)).any()
    assert apart.end_ps[:8].max() < shared.end_ps[:8].max()
    assert not (apart.wait == int(Wait.PORT)).any()
