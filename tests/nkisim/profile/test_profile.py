"""The profile says where the time went, in every view the same."""

import json
from itertools import pairwise

import pytest
from tests.nkisim.kernels import (
    add_rows,
    add_rows_one_buffer,
    hoisted_matmul,
    nisa,
    nl,
    profile,
    tensor,
    tiled_matmul,
)

from nkisim.profile.chrome import chrome_trace
from nkisim.profile.insights import insights
from nkisim.profile.text import render_text
from nkisim.profile.what_if import FREE_ISSUE, UNLIMITED_MEMORY, what_if


@pytest.fixture(scope="module")
def matmul():
    return profile(tiled_matmul, tensor((512, 256)), tensor((512, 1024)))


def test_bytes_and_flops_are_counted_exactly(matmul):
    loads = 2 * 2 * 4 * (128 * 128 + 128 * 512) * 4
    stores = 256 * 1024 * 4
    assert matmul.hbm_bytes == loads + stores
    assert matmul.work.hbm_read_bytes == loads
    assert matmul.work.hbm_written_bytes == stores
    assert matmul.work.flops == 2.0 * 256 * 1024 * 512
    assert matmul.work.dma_count == 2 * 2 * 4 * 2 + 2 * 2


def test_the_critical_path_adds_up_to_the_latency(matmul):
    on_path = sum(line.path_ns for line in matmul.critical_lines)
    launch = matmul.machine.launch_after_ns
    assert on_path + launch + matmul.machine.launch_before_ns == pytest.approx(
        matmul.latency_ns, rel=1e-6
    )


def test_text_says_emulated_and_keeps_its_budget(matmul):
    text = render_text(matmul)
    assert text.startswith("emulated latency")
    assert "one physical core of trn2" in text
    for tokens in (100, 400, 1500, 4000):
        assert len(render_text(matmul, budget_tokens=tokens)) <= 4 * tokens + 10


def test_trn3_says_uncalibrated():
    found = profile(add_rows, tensor((128, 64)), tensor((128, 64)), machine="trn3")
    assert "uncalibrated, scaled from trn2" in render_text(found)


def test_json_round_trips(matmul):
    data = json.loads(json.dumps(matmul.to_json()))
    assert data["schema_version"] == 1
    assert data["latency_ns"] == matmul.latency_ns
    assert data["hbm_read_bytes"] + data["hbm_written_bytes"] == data["hbm_bytes"]


def test_chrome_trace_has_every_instruction_once(matmul, tmp_path):
    events = [e for e in chrome_trace(matmul)["traceEvents"] if e["ph"] == "X"]
    assert len(events) == len(matmul.timeline)
    end = max(e["ts"] + e["dur"] for e in events)
    assert end <= matmul.latency_ns / 1000
    path = tmp_path / "trace.json"
    matmul.to_chrome_trace(path)
    assert json.loads(path.read_text())["otherData"]["emulated"] is True


def test_small_copies_are_pointed_out():
    found = profile(add_rows, tensor((2560, 4)), tensor((2560, 4)))
    assert any("KiB on average" in i.condition for i in insights(found))


def test_waiting_for_tiles_is_pointed_out():
    found = profile(add_rows_one_buffer, tensor((1024, 2048)), tensor((1024, 2048)))
    assert any("free again" in i.condition for i in insights(found))


def test_copies_in_flight_at_once_stand_in_separate_rows(matmul):
    rows: dict[object, list[tuple[float, float]]] = {}
    for event in chrome_trace(matmul)["traceEvents"]:
        if event["ph"] == "X":
            rows.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in rows.values():
        spans.sort()
        assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(spans))


def test_memory_peaks_count_what_lives_at_once():
    found = profile(hoisted_matmul, tensor((256, 128)), tensor((256, 512)))
    operands = 2 * (128 + 512) * 4
    assert operands <= found.sbuf_peak_bytes <= operands + 512 * 4
    assert found.psum_peak_bytes == 512 * 4


@pytest.mark.parametrize(
    ("kernel", "shapes", "best"),
    [
        (tiled_matmul, [(512, 256), (512, 1024)], "DMA copies are issued without interval"),
        (hoisted_matmul, [(1024, 1024), (1024, 1024)], "Tensor Engine takes no time"),
        (add_rows_one_buffer, [(1024, 512), (1024, 512)], UNLIMITED_MEMORY),
    ],
    ids=["tiled matmul", "hoisted matmul", "one buffer"],
)
def test_what_if_names_what_holds_the_kernel_back(kernel, shapes, best):
    found = profile(kernel, *map(tensor, shapes))
    gains = what_if(found)
    assert gains[0].name == best
    assert all(w.gain_ns == pytest.approx(found.latency_ns - w.latency_ns) for w in gains)
    assert [w.gain_ns for w in gains] == sorted((w.gain_ns for w in gains), reverse=True)


def test_unlimited_memory_predicts_what_rotating_tiles_bring():
    operands = [tensor((1024, 2048))] * 2
    serial, rotating = profile(add_rows_one_buffer, *operands), profile(add_rows, *operands)
    gains = {w.name: w for w in what_if(serial)}
    assert gains[UNLIMITED_MEMORY].latency_ns == pytest.approx(rotating.latency_ns, rel=0.02)


def _stores_from(engine):
    def kernel(a):
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        for start in range(0, a.shape[0], 128):
            x = nl.ndarray((128, a.shape[1]), dtype=a.dtype, buffer=nl.sbuf)
            y = nl.ndarray((128, a.shape[1]), dtype=a.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=x, src=a[start : start + 128, :])
            nisa.activation(dst=y, op=nl.exp, data=x)
            for _ in range(4):
                nisa.tensor_tensor(dst=y, data1=y, data2=x, op=nl.add)
            nisa.dma_copy(dst=out[start : start + 128, :], src=y, engine=engine)
        return out

    return profile(kernel, tensor((1024, 256)))


def test_stores_that_hold_back_the_engine_that_issues_them_are_pointed_out():
    def is_said(found):
        return any("before their data is ready" in i.condition for i in insights(found))

    assert is_said(_stores_from(nisa.engine.scalar))
    assert not is_said(_stores_from(nisa.engine.sync))


def test_transposes_count_for_the_hardware_but_not_for_the_model():
    def kernel(a):
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        x = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
        y = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
        turned = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.psum)
        nisa.dma_copy(dst=x, src=a)
        nisa.nc_transpose(dst=turned, data=x, engine=nisa.engine.tensor)
        nisa.tensor_copy(dst=y, src=turned)
        nisa.dma_copy(dst=out, src=y)
        return out

    found = profile(kernel, tensor((128, 128), "bfloat16"))
    assert found.mfu == 0
    peak_flops = 79e12 * found.latency_ns * 1e-9
    assert found.hfu == pytest.approx(2 * 128**3 / peak_flops, rel=0.01)


def test_matrix_products_count_for_both(matmul):
    assert matmul.hfu == matmul.mfu > 0


def test_a_starved_tensor_engine_is_pointed_out_with_the_load(matmul):
    def is_said(found):
        return [
            i for i in insights(found, limit=9) if "tensor engine waits for loads" in i.condition
        ]

    assert "dma_copy" in _source_of(matmul, is_said(matmul)[0].line)
    busy = profile(hoisted_matmul, tensor((1024, 1024)), tensor((1024, 1024)))
    assert not is_said(busy)


def _source_of(found, line):
    return next(str(s.place.text) for s in found.program.sites if str(s.place) == line)


def test_what_if_puts_numbers_on_insights_and_into_the_text(matmul):
    gains = what_if(matmul)
    by_name = {gain.name: gain.gain_ns for gain in gains}
    first = insights(matmul, gains=gains)[0]
    assert first.gain_ns == by_name[FREE_ISSUE] > 0
    assert insights(matmul)[0].gain_ns is None
    text = render_text(matmul, gains=gains, budget_tokens=4000)
    assert f"at most {first.gain_ns / 1000:.1f} us" in text
    assert FREE_ISSUE in text
    assert "what if" not in render_text(matmul)
