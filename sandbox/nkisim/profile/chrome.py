"""A profile as a Chrome trace, which ui.perfetto.dev opens: one lane for each engine and queue.

Copies of one queue that are in flight at the same time stand in rows below each other.
"""

from __future__ import annotations

import json
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np

from nkisim.profile.model import Profile
from nkisim.timing.timeline import LANES, Timeline, Wait

PS_PER_US = 1_000_000
MAX_EVENTS = 200_000


def chrome_trace(profile: Profile) -> dict[str, Any]:
    """Return the trace as JSON data; times are emulated microseconds."""
    program, timeline = profile.program, profile.timeline
    count = min(len(timeline), MAX_EVENTS)
    rows = lane_rows(timeline, count)
    events: list[dict[str, Any]] = [
        {
            "name": "process_name",
            "ph": "M",
            "pid": 1,
            "args": {"name": f"{program.kernel} on {profile.machine.name}, emulated"},
        }
    ]
    for order, (lane, row) in enumerate(sorted(set(rows))):
        head = {"ph": "M", "pid": 1, "tid": _thread(lane, row)}
        name = LANES[lane] if row == 0 else f"{LANES[lane]} ({row + 1})"
        events.append({"name": "thread_name", **head, "args": {"name": name}})
        events.append({"name": "thread_sort_index", **head, "args": {"sort_index": order}})
    operands = [[str(operand) for operand in form.operands] for form in program.forms]
    starts, ends = timeline.start_ps.tolist(), timeline.end_ps.tolist()
    waits, numbers = timeline.wait.tolist(), timeline.instruction.tolist()
    for entry in range(count):
        number = numbers[entry]
        form = int(program.form[number])
        place = program.sites[program.site[number]].place
        events.append(
            {
                "name": program.forms[form].op,
                "ph": "X",
                "pid": 1,
                "tid": _thread(*rows[entry]),
                "ts": starts[entry] / PS_PER_US,
                "dur": (ends[entry] - starts[entry]) / PS_PER_US,
                "args": {
                    "instruction": number,
                    "line": str(place),
                    "source": place.text,
                    "waited_for": Wait(waits[entry]).name.lower(),
                    "operands": operands[form],
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


def _thread(lane: int, row: int) -> int:
    return lane + len(LANES) * row


def lane_rows(timeline: Timeline, count: int) -> list[tuple[int, int]]:
    """Return the (lane, row) of each entry; copies in flight at once get rows of their own."""
    starts, ends, lanes = timeline.start_ps, timeline.end_ps, timeline.lane
    rows = [(0, 0)] * count
    busy: dict[int, list[tuple[int, int]]] = {}
    """By lane: a heap of (end, row) of copies in flight."""
    idle: dict[int, list[int]] = {}
    for entry in np.argsort(starts[:count], kind="stable").tolist():
        lane, start = int(lanes[entry]), int(starts[entry])
        flying, free = busy.setdefault(lane, []), idle.setdefault(lane, [])
        while flying and flying[0][0] <= start:
            heappush(free, heappop(flying)[1])
        row = heappop(free) if free else len(flying)
        heappush(flying, (int(ends[entry]), row))
        rows[entry] = (lane, row)
    return rows


def write_chrome_trace(profile: Profile, path: str | Path) -> None:
    """Write the trace to a file."""
    Path(path).write_text(json.dumps(chrome_trace(profile)), encoding="utf-8")
