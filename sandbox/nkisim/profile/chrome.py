"""A profile as a Chrome trace, which ui.perfetto.dev opens: one lane for each engine and queue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nkisim.profile.model import Profile
from nkisim.timing.timeline import LANES, Wait

PS_PER_US = 1_000_000
MAX_EVENTS = 200_000


def chrome_trace(profile: Profile) -> dict[str, Any]:
    """Return the trace as JSON data; times are emulated microseconds."""
    program, timeline = profile.program, profile.timeline
    used = sorted(set(timeline.lane.tolist()))
    events: list[dict[str, Any]] = [
        {
            "name": "process_name",
            "ph": "M",
            "pid": 1,
            "args": {"name": f"{program.kernel} on {profile.machine.name}, emulated"},
        }
    ]
    for lane in used:
        events.append(
            {"name": "thread_name", "ph": "M", "pid": 1, "tid": lane, "args": {"name": LANES[lane]}}
        )
        events.append(
            {
                "name": "thread_sort_index",
                "ph": "M",
                "pid": 1,
                "tid": lane,
                "args": {"sort_index": lane},
            }
        )
    for entry in range(min(len(timeline), MAX_EVENTS)):
        number = int(timeline.instruction[entry])
        form = program.forms[program.form[number]]
        place = program.sites[program.site[number]].place
        start, end = int(timeline.start_ps[entry]), int(timeline.end_ps[entry])
        events.append(
            {
                "name": form.op,
                "ph": "X",
                "pid": 1,
                "tid": int(timeline.lane[entry]),
                "ts": start / PS_PER_US,
                "dur": (end - start) / PS_PER_US,
                "args": {
                    "instruction": number,
                    "line": str(place),
                    "source": place.text,
                    "waited_for": Wait(int(timeline.wait[entry])).name.lower(),
                    "operands": [str(operand) for operand in form.operands],
                },
            }
        )
    return {
        "displayTimeUnit": "ns",
        "otherData": {
            "emulated": True,
            "machine": profile.machine.name,
            "latency_ns": profile.latency_ns,
            "truncated": len(timeline) > MAX_EVENTS,
        },
        "traceEvents": events,
    }


def write_chrome_trace(profile: Profile, path: str | Path) -> None:
    """Write the trace to a file."""
    Path(path).write_text(json.dumps(chrome_trace(profile)), encoding="utf-8")
