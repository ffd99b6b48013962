"""The profile says where the time went, in every view the same."""

import json

import pytest
from tests.nkisim.kernels import add_rows, add_rows_one_buffer, profile, tensor, tiled_matmul

from nkisim.profile.chrome import chrome_trace
from nkisim.profile.insights import insights
from nkisim.profile.text import render_text


@pytest.fixture(scope="module")
def matmul():
    return profile(tiled_matmul, tensor((512, 256)), tensor((512, 1024)))


def test_bytes_and_flops_are_counted_exactly(matmul):
    loads = 2 * 2 * 4 * (128 * 128 + 128 * 512) * 4
    stores = 256 * 1024 * 4
    assert matmul.hbm_bytes == loads + stores
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
    assert len(render_text(matmul, budget_chars=400)) <= 410


def test_trn3_says_uncalibrated():
    found = profile(add_rows, tensor((128, 64)), tensor((128, 64)), machine="trn3")
    assert "uncalibrated, scaled from trn2" in render_text(found)


def test_json_round_trips(matmul):
    data = json.loads(json.dumps(matmul.to_json()))
    assert data["schema_version"] == 1
    assert data["latency_ns"] == matmul.latency_ns


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
