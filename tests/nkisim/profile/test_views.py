"""Lanes, page, comparison, roofline, memory and slack agree with the schedule they show."""

import json
import re
import shutil
import subprocess

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

from nkisim.cli import main
from nkisim.ir.access import Memory
from nkisim.profile.diff import ProfileFormatError, diff_profiles
from nkisim.profile.html import render_html
from nkisim.profile.lanes import lane_cells, render_lanes
from nkisim.profile.memory_use import memory_use
from nkisim.profile.roofline import roofline
from nkisim.profile.slack import slack_ps
from nkisim.profile.what_if import what_if
from nkisim.timing.timeline import LANES

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)


@pytest.fixture(scope="module")
def matmul():
    return profile(tiled_matmul, tensor((512, 256)), tensor((512, 1024)))


@pytest.fixture(scope="module")
def adds():
    return profile(add_rows_one_buffer, tensor((1024, 1024)), tensor((1024, 1024)))


# -- lanes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [10, 37, 400])
def test_cells_hold_all_busy_time_of_engines(matmul, columns):
    cells = lane_cells(matmul, columns)
    step_ps = matmul.latency_ns * 1000 / columns
    busy = matmul.timeline.busy_ps()
    for name, row in zip(cells.lanes, cells.busy, strict=True):
        if not name.startswith("dma"):  # copies of one queue overlap
            assert row.sum() * step_ps == pytest.approx(busy[name], rel=1e-6)
    assert (cells.busy >= 0).all()
    assert (cells.busy <= 1).all()


def test_a_window_shows_what_runs_in_it(matmul):
    whole = lane_cells(matmul, 100)
    half = lane_cells(matmul, 50, end_ns=matmul.latency_ns / 2)
    for name, row in zip(half.lanes, half.busy, strict=True):
        assert row == pytest.approx(whole.busy[whole.lanes.index(name)][:50], abs=1e-9)


def test_lanes_as_text_keep_to_the_width_and_name_every_op(matmul):
    text = render_lanes(matmul, width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert all(op in text for op in matmul.op_counts())
    assert "\x1b" not in text
    assert "\x1b[" in render_lanes(matmul, width=80, colour=True)
    assert "emulated" in text


# -- the page ------------------------------------------------------------------------------------


def _page_data(page):
    found = re.search(r'type="application/json">(.*?)</script>', page, re.S)
    assert found
    return json.loads(found[1])


def _without_data(page):
    return re.sub(r'type="application/json">.*?</script>', "", page, flags=re.S)


def test_page_has_every_instruction_and_nothing_from_outside(matmul):
    page = render_html(matmul, gains=what_if(matmul))
    data = _page_data(page)
    events = data["events"]
    assert len(events["start"]) == len(matmul.timeline)
    names = [data["lanes"][lane]["name"] for lane in events["lane"]]
    assert names == [LANES[lane] for lane in matmul.timeline.lane.tolist()]
    assert events["dur"][5] == pytest.approx(
        (matmul.timeline.end_ps - matmul.timeline.start_ps)[5] / 1000
    )
    assert sum(line["path_ns"] for line in data["lines"]) == pytest.approx(
        sum(line.path_ns for line in matmul.critical_lines)
    )
    assert not re.search(r"""(src|href)\s*=|@import|https?://|url\(""", _without_data(page))
    assert "emulated" in page


def test_text_of_a_kernel_cannot_become_markup(matmul):
    evil = "</script><script>alert(1)</script>"
    file = matmul.program.sites[-1].place.file
    page = render_html(matmul, sources={file: evil})
    assert evil not in page
    assert page.count("</script>") == 2
    assert any(line["text"] == evil for line in _page_data(page)["lines"])


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium or chrome on PATH")
def test_page_draws_in_a_browser(matmul, tmp_path):
    path = tmp_path / "profile.html"
    # The page reports an error where a reader, and this test, can see it.
    guard = "<script>onerror = e => document.title = ['FAI', 'LED '].join('') + e</script><main>"
    page = render_html(matmul, gains=what_if(matmul)).replace("<main>", guard, 1)
    path.write_text(page, encoding="utf-8")
    run = subprocess.run(
        [
            str(CHROMIUM),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'browser'}",
            "--virtual-time-budget=2000",
            "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    dom = run.stdout
    assert "FAILED" not in dom
    assert " emulated</h1>" in dom
    assert dom.count('class="row is-site') >= 5
    assert "<circle" in dom
    assert "DMA copies are issued without interval" in dom


# -- comparison ----------------------------------------------------------------------------------


def test_comparison_says_what_moved(matmul):
    better = profile(hoisted_matmul, tensor((512, 256)), tensor((512, 1024)))
    found = diff_profiles(matmul.to_json(), better.to_json())
    assert found.latency.delta == better.latency_ns - matmul.latency_ns < 0
    ops = {change.name: change for change in found.ops}
    assert ops["dma_copy"].delta == better.work.dma_count - matmul.work.dma_count
    assert ops["nc_matmul"].delta == 0
    text = str(found)
    assert "dma copies" in text
    assert "emulated latency" in text
    same = diff_profiles(matmul.to_json(), matmul.to_json())
    assert str(same).count("\n") == 0


def test_comparison_refuses_what_is_no_profile(matmul, tmp_path, capsys):
    with pytest.raises(ProfileFormatError, match="schema_version"):
        diff_profiles({"schema_version": 99}, matmul.to_json())
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(matmul.to_json()))
    bad.write_text("[]")
    assert main(["compare", str(good), str(good)]) == 0
    assert main(["compare", str(good), str(bad)]) == 2
    assert main(["compare", str(tmp_path / "none.json"), str(good)]) == 2
    assert "cannot read profile" in capsys.readouterr().err


# -- roofline, memory, slack ---------------------------------------------------------------------


def test_roofline_of_a_matmul(matmul):
    roof = roofline(matmul)
    assert roof.unit == "flop"
    assert roof.intensity == pytest.approx(2 * 256 * 1024 * 512 / matmul.hbm_bytes)
    assert 0 < roof.achieved_per_ns < roof.attainable_per_ns


def test_roofline_of_elementwise_work_counts_elements():
    found = profile(exp_tile, tensor((128, 512)))
    roof = roofline(found)
    assert roof.unit == "element"
    assert roof.intensity == pytest.approx(128 * 512 / found.hbm_bytes)
    assert roof.side == "memory"


def test_memory_over_time_starts_and_ends_empty(matmul):
    for memory, tile in ((Memory.SBUF, 512 * 4), (Memory.PSUM, 512 * 4)):
        use = memory_use(matmul, memory)
        assert use.bytes[-1] == 0
        assert (use.bytes >= 0).all()
        assert (np.diff(use.time_ps) > 0).all()
        assert tile <= use.peak_bytes <= use.limit_bytes


@pytest.mark.parametrize("name", ["matmul", "adds"])
def test_nothing_on_the_critical_path_has_slack(name, request):
    found = request.getfixturevalue(name)
    slack = slack_ps(found)
    assert (slack >= 0).all()
    assert (slack[found.timeline.critical_path()] == 0).all()


def test_work_beside_the_critical_path_has_slack():
    found = profile(add_rows, tensor((1024, 64)), tensor((1024, 64)))
    ops = [found.program.forms[f].op for f in found.program.form[found.timeline.instruction]]
    slack = slack_ps(found)
    early = [s for op, s in zip(ops, slack.tolist(), strict=True) if op == "tensor_tensor"]
    assert early[0] > 0
