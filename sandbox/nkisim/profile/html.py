"""A profile as one HTML file without outside parts: zoomable lanes, source, roofline, what-if.

The page itself is `page.html` beside this module; here its data are put together.  Text of kernels
stands in the page as JSON only and is shown as text, never as markup.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from math import inf, isfinite, log10
from pathlib import Path
from typing import Any

import numpy as np

from nkisim.ir.access import Memory
from nkisim.profile.chrome import lane_rows
from nkisim.profile.insights import MIN_GAIN, insights
from nkisim.profile.latency import latency_text
from nkisim.profile.memory_use import memory_use
from nkisim.profile.model import Profile
from nkisim.profile.roofline import Roofline, roofline
from nkisim.profile.slack import slack_ps
from nkisim.profile.what_if import WhatIf
from nkisim.timing.timeline import LANES, PS_PER_NS, Wait

MAX_EVENTS = 100_000
"""Instructions drawn at most; the page says so when there are more."""
MAX_MEMORY_STEPS = 4_000
MAX_INSIGHTS = 8
_PAGE = Path(__file__).with_name("page.html")


def render_html(
    profile: Profile,
    *,
    gains: Sequence[WhatIf] = (),
    sources: Mapping[str, str] | None = None,
) -> str:
    """Return the page.

    Args:
        profile: The profile.
        gains: What `what_if` found for it.
        sources: Text of the kernel's files by the name that its sites carry; without it only
            lines that emit instructions are shown.
    """
    data = json.dumps(_data(profile, gains, sources or {}), separators=(",", ":"))
    title = f"{profile.program.kernel}: emulated on {profile.machine.name}"
    page = _PAGE.read_text(encoding="utf-8").replace("@TITLE@", escape(title), 1)
    # "</script>" inside of a string would end the element that holds the data.
    return page.replace("@DATA@", data.replace("<", "\\u003c"), 1)


def write_html(
    profile: Profile,
    path: str | Path,
    *,
    gains: Sequence[WhatIf] = (),
    sources: Mapping[str, str] | None = None,
) -> None:
    """Write the page to a file."""
    Path(path).write_text(render_html(profile, gains=gains, sources=sources), encoding="utf-8")


def _data(profile: Profile, gains: Sequence[WhatIf], sources: Mapping[str, str]) -> dict[str, Any]:
    program, machine, work = profile.program, profile.machine, profile.work
    slack = slack_ps(profile)
    ops = list(profile.op_counts())
    count = len(profile.timeline)
    shown = f"{count:,} instructions"
    if count > MAX_EVENTS:
        shown += f", the first {MAX_EVENTS:,} drawn"
    return {
        "title": f"{program.kernel}: {latency_text(profile.latency_ns, machine)} emulated",
        "subtitle": f"{machine.name}, {machine.calibration}; NKI {program.nki}; launch "
        f"{profile.launch_ns / 1000:.0f} us included; {shown}",
        "latency_ns": profile.latency_ns,
        "figures": [
            ["bound by", profile.binding],
            ["MFU", f"{100 * profile.mfu:.1f} %"],
            ["HFU", f"{100 * profile.hfu:.1f} %"],
            ["MBU", f"{100 * profile.mbu:.1f} %"],
            ["read from HBM", f"{work.hbm_read_bytes / 1e6:,.1f} MB"],
            ["written to HBM", f"{work.hbm_written_bytes / 1e6:,.1f} MB"],
            ["copies", f"{work.dma_count:,}"],
            ["peak SBUF per partition", f"{profile.sbuf_peak_bytes / 1024:.1f} KiB"],
            ["peak PSUM per partition", f"{profile.psum_peak_bytes / 1024:.1f} KiB"],
        ],
        "ops": ops,
        "waits": [wait.name.lower() for wait in Wait],
        "forms": ["; ".join(map(str, form.operands)) for form in program.forms],
        "sites": [{"place": str(s.place), "text": s.place.text} for s in program.sites],
        **_events(profile, ops, slack),
        "memory": [_memory(profile, memory) for memory in (Memory.SBUF, Memory.PSUM)],
        "lines": _lines(profile, slack, sources),
        "insights": [
            {
                "condition": i.condition,
                "cause": i.cause,
                "action": i.action,
                "line": i.line,
                "gain_ns": i.gain_ns,
            }
            for i in insights(profile, limit=MAX_INSIGHTS, gains=gains)
        ],
        "what_if": [
            {"name": g.name, "latency_ns": g.latency_ns, "gain_ns": g.gain_ns}
            for g in gains
            if g.gain_ns >= MIN_GAIN * profile.latency_ns
        ],
        "busy": [
            {"name": name, "share": share, "idle": _idle(profile, name)}
            for name, share in sorted(profile.busy.items(), key=lambda item: -item[1])
        ],
        "roofline": _roofline(roofline(profile)),
    }


def _events(profile: Profile, ops: Sequence[str], slack: Any) -> dict[str, Any]:
    """Return the drawn instructions as columns, the lanes and the critical path."""
    program, timeline = profile.program, profile.timeline
    count = min(len(timeline), MAX_EVENTS)
    rows = lane_rows(timeline, count)
    used = sorted({lane for lane, _ in rows})
    lane_number = {lane: i for i, lane in enumerate(used)}
    heights = dict.fromkeys(used, 1)
    for lane, row in rows:
        heights[lane] = max(heights[lane], row + 1)
    number = timeline.instruction[:count]
    forms = program.form[number]
    op_of = np.array([ops.index(form.op) for form in program.forms] or [0], dtype=np.int64)
    cause = timeline.predecessor[:count]

    def ns(values: Any) -> list[float]:
        return np.round(values[:count] / PS_PER_NS, 3).tolist()  # type: ignore[no-any-return]

    return {
        "lanes": [{"name": LANES[lane], "rows": heights[lane]} for lane in used],
        "events": {
            "lane": [lane_number[lane] for lane, _ in rows],
            "row": [row for _, row in rows],
            "start": ns(timeline.start_ps),
            "dur": ns(timeline.end_ps - timeline.start_ps),
            "op": op_of[forms].tolist(),
            "form": forms.tolist(),
            "site": program.site[number].tolist(),
            "number": number.tolist(),
            "wait": timeline.wait[:count].tolist(),
            "cause": np.where(cause < count, cause, -1).tolist(),
            "slack": ns(slack),
        },
        "path": [entry for entry in timeline.critical_path() if entry < count],
    }


def _memory(profile: Profile, memory: Memory) -> dict[str, Any]:
    use = memory_use(profile, memory)
    time, size = use.time_ps, use.bytes
    if len(time) > MAX_MEMORY_STEPS:  # the highest of each stretch, so that the peak stays
        cuts = np.linspace(0, len(time), MAX_MEMORY_STEPS + 1).astype(np.int64)[:-1]
        time, size = time[cuts], np.maximum.reduceat(size, cuts)
    return {
        "name": memory.value.upper(),
        "limit": use.limit_bytes,
        "peak": use.peak_bytes,
        "time": np.round(time / PS_PER_NS, 3).tolist(),
        "bytes": size.tolist(),
    }


def _lines(profile: Profile, slack: Any, sources: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return source lines with their costs: whole files where the text is known."""
    program, timeline = profile.program, profile.timeline
    least = np.full(len(program.sites), np.iinfo(np.int64).max)
    emitting = program.site[timeline.instruction]
    np.minimum.at(least, emitting, slack)
    counts = np.bincount(emitting, minlength=len(program.sites))
    path = {cost.line: cost.path_ns for cost in profile.critical_lines}
    by_line: dict[tuple[str, int], list[int]] = {}
    for site, item in enumerate(program.sites):
        if counts[site]:
            by_line.setdefault((item.place.file, item.place.line), []).append(site)
    texts = {
        file: sources[file].splitlines()
        for file in dict.fromkeys(f for f, _ in by_line)
        if file in sources
    }
    wanted = sorted(by_line)
    for file, lines in texts.items():
        wanted += [(file, n) for n in range(1, len(lines) + 1) if (file, n) not in by_line]
    rows: list[dict[str, Any]] = []
    for file, number in sorted(set(wanted)):
        sites = by_line.get((file, number), [])
        known = texts.get(file)
        text = known[number - 1] if known and 0 < number <= len(known) else ""
        if not text and sites:
            text = program.sites[sites[0]].place.text
        rows.append(
            {
                "number": str(number)
                if len(texts) + len({f for f, _ in by_line}) <= 2
                else f"{file}:{number}",
                "text": text,
                "site": sites[0] if sites else -1,
                "sites": sites,
                "count": int(sum(counts[site] for site in sites)),
                "path_ns": path.get(str(program.sites[sites[0]].place), 0.0) if sites else 0.0,
                "slack_ns": min((int(least[site]) for site in sites), default=0) / PS_PER_NS,
            }
        )
    return rows


def _idle(profile: Profile, name: str) -> str:
    waits = sorted(profile.waits.get(name, {}).items(), key=lambda item: -item[1])[:3]
    shown = ", ".join(f"{100 * part:.0f} % {what}" for what, part in waits)
    return f"idle: {shown}" if shown else ""


def _roofline(roof: Roofline) -> dict[str, str]:
    rate = (
        f"{roof.achieved_per_ns / 1000:,.2f} TFLOP/s"
        if roof.unit == "flop"
        else f"{roof.achieved_per_ns:,.1f} elements per ns"
    )
    text = (
        f"{roof.intensity:,.2f} {roof.unit}s per HBM byte, {rate}, "
        f"{100 * roof.fraction:.0f} % of the {roof.side} roof"
    )
    return {"text": text, "svg": _roofline_svg(roof)}


def _roofline_svg(roof: Roofline, width: int = 460, height: int = 240) -> str:
    """Draw the roofs on logarithmic axes."""
    left, right, top, bottom = 46, 14, 12, 30
    ridge = roof.peaks[0].per_ns / roof.bytes_per_ns
    here = roof.intensity if isfinite(roof.intensity) and roof.intensity > 0 else ridge
    low, high = min(here, ridge) / 8, max(here, ridge) * 8
    floor = min(roof.achieved_per_ns or inf, low * roof.bytes_per_ns) / 2
    ceiling = roof.peaks[0].per_ns * 2

    def x(value: float) -> float:
        return left + (width - left - right) * log10(value / low) / log10(high / low)

    def y(value: float) -> float:
        share = log10(max(value, floor) / floor) / log10(ceiling / floor)
        return height - bottom - (height - top - bottom) * share

    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="roofline">']
    for axis_value in _decades(low, high):
        at = x(axis_value)
        parts.append(
            f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{height - bottom}"/>'
            f'<text x="{at:.1f}" y="{height - 14}" text-anchor="middle">{axis_value:g}</text>'
        )
    for axis_value in _decades(floor, ceiling):
        at = y(axis_value)
        parts.append(
            f'<line class="grid" x1="{left}" x2="{width - right}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text x="{left - 5}" y="{at + 4:.1f}" text-anchor="end">{axis_value:g}</text>'
        )
    parts.append(
        f'<polyline fill="none" stroke="var(--ink)" stroke-width="1.6" points="{x(low):.1f},'
        f"{y(low * roof.bytes_per_ns):.1f} {x(ridge):.1f},{y(roof.peaks[0].per_ns):.1f} "
        f'{x(high):.1f},{y(roof.peaks[0].per_ns):.1f}"/>'
    )
    for number, peak in enumerate(roof.peaks):
        start = peak.per_ns / roof.bytes_per_ns
        at = y(peak.per_ns)
        dash = "" if number == 0 else ' stroke-dasharray="4 3"'
        parts.append(
            f'<line x1="{x(max(low, start)):.1f}" x2="{x(high):.1f}" y1="{at:.1f}" y2="{at:.1f}" '
            f'stroke="var(--dim)"{dash}/>'
            f'<text x="{width - right}" y="{at - 4:.1f}" text-anchor="end">{escape(peak.name)}'
            f" {peak.per_ns:,.0f} {roof.unit}/ns</text>"
        )
    parts.append(
        f'<circle cx="{x(here):.1f}" cy="{y(roof.achieved_per_ns):.1f}" r="5" fill="var(--hot)"/>'
        f'<text x="{(left + width - right) / 2:.0f}" y="{height - 2}" text-anchor="middle">'
        f"{roof.unit}s per HBM byte (memory roof {roof.bytes_per_ns:,.0f} B/ns)</text></svg>"
    )
    return "".join(parts)


def _decades(low: float, high: float) -> list[float]:
    first = int(np.ceil(log10(low)))
    last = int(np.floor(log10(high)))
    return [10.0**n for n in range(first, last + 1)]
