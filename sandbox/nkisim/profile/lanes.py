"""Engine lanes as terminal text: one row for each engine and DMA queue, time from left to right.

Each cell shows how much of its slice of time the lane was busy; with colour, which op kept it busy.
Nothing is told by colour alone: a row of letters under each lane names the op.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nkisim.profile.model import Profile
from nkisim.timing.timeline import LANES, PS_PER_NS

SHADES = " ░▒▓█"
COLOURS = (36, 33, 32, 35, 34, 31, 96, 93, 92, 95, 94, 91)
"""ANSI foreground codes, by op in order of time."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"
NAME_WIDTH = 17


@dataclass(frozen=True, eq=False, slots=True)
class Cells:
    """What each lane did in each slice of time."""

    lanes: tuple[str, ...]
    busy: npt.NDArray[np.float64]
    """[lane, column]: share of the slice that the lane was busy, 0 to 1."""
    op: npt.NDArray[np.int64]
    """[lane, column]: op that was busy longest, -1 for none."""
    ops: tuple[str, ...]
    start_ns: float
    end_ns: float


def lane_cells(
    profile: Profile, columns: int, *, start_ns: float = 0.0, end_ns: float | None = None
) -> Cells:
    """Cut a window of the emulated time into columns.

    Args:
        profile: The profile.
        columns: Slices.
        start_ns: First moment shown.
        end_ns: Last moment shown; default is the end of the launch.
    """
    timeline, program = profile.timeline, profile.program
    end_ns = profile.latency_ns if end_ns is None else end_ns
    first, last = start_ns * PS_PER_NS, max(end_ns, start_ns + 1e-3) * PS_PER_NS
    step = (last - first) / columns
    names = list(dict.fromkeys(form.op for form in program.forms))
    op_of = np.array([names.index(form.op) for form in program.forms] or [0], dtype=np.int64)
    seen = (timeline.end_ps > first) & (timeline.start_ps < last)
    lane, op = timeline.lane[seen], op_of[program.form[timeline.instruction[seen]]]
    begin = (np.maximum(timeline.start_ps[seen], first) - first) / step
    end = (np.minimum(timeline.end_ps[seen], last) - first) / step
    used = np.unique(lane)
    row = np.searchsorted(used, lane)
    share = np.zeros((max(1, len(names)), len(used), columns))
    head = np.minimum(begin.astype(np.int64), columns - 1)
    tail = np.minimum(np.ceil(end).astype(np.int64) - 1, columns - 1)
    tail = np.maximum(head, tail)
    np.add.at(share, (op, row, head), np.minimum(end, head + 1) - begin)
    longer = tail > head
    np.add.at(share, (op[longer], row[longer], tail[longer]), (end - tail)[longer])
    # Whole slices between head and tail, as a difference array.
    steps = np.zeros((max(1, len(names)), len(used), columns + 1))
    np.add.at(steps, (op[longer], row[longer], head[longer] + 1), 1.0)
    np.add.at(steps, (op[longer], row[longer], tail[longer]), -1.0)
    share += np.cumsum(steps, axis=-1)[..., :columns]
    busy = np.minimum(share.sum(axis=0), 1.0)
    by_time = np.argsort(-share.sum(axis=(1, 2)), kind="stable")
    ranked = share[by_time]
    top = np.where(busy > 0, ranked.argmax(axis=0), -1)
    ordered = tuple(names[i] for i in by_time.tolist() if names and share[i].sum() > 0)
    return Cells(tuple(LANES[i] for i in used.tolist()), busy, top, ordered, start_ns, end_ns)


def render_lanes(
    profile: Profile,
    *,
    width: int = 100,
    start_ns: float = 0.0,
    end_ns: float | None = None,
    colour: bool = False,
) -> str:
    """Return the lanes as text.

    Args:
        profile: The profile.
        width: Characters in a row.
        start_ns: First moment shown.
        end_ns: Last moment shown; default is the end of the launch.
        colour: Use ANSI colours, one for each op.
    """
    columns = max(10, width - NAME_WIDTH - 8)
    cells = lane_cells(profile, columns, start_ns=start_ns, end_ns=end_ns)
    lines = [_axis(cells, columns)]
    for name, busy, ops in zip(cells.lanes, cells.busy, cells.op, strict=True):
        total = f"{100 * busy.mean():5.1f} %"
        lines.append(f"{name:<{NAME_WIDTH}}{_row(busy, ops, colour)} {total}")
        letters = "".join(" " if op < 0 else LETTERS[op % len(LETTERS)] for op in ops.tolist())
        lines.append(f"{'':<{NAME_WIDTH}}{letters}".rstrip())
    legend = [
        _paint(f"{LETTERS[i % len(LETTERS)]} {op}", i, colour) for i, op in enumerate(cells.ops)
    ]
    lines += _wrapped(legend, [len(op) + 2 for op in cells.ops], width)
    lines.append(
        f"emulated; a column is {(cells.end_ns - cells.start_ns) / columns / 1000:.3f} us, "
        f"shade is the busy share of it"
    )
    return "\n".join(lines)


def _row(busy: npt.NDArray[np.float64], ops: npt.NDArray[np.int64], colour: bool) -> str:
    parts: list[str] = []
    for share, op in zip(busy.tolist(), ops.tolist(), strict=True):
        level = 0 if share <= 0 else max(1, round(share * (len(SHADES) - 1)))
        parts.append(_paint(SHADES[level], op, colour and op >= 0))
    return "".join(parts)


def _paint(text: str, op: int, colour: bool) -> str:
    return f"\x1b[{COLOURS[op % len(COLOURS)]}m{text}\x1b[0m" if colour else text


def _axis(cells: Cells, columns: int) -> str:
    left = f"{cells.start_ns / 1000:.1f} us"
    middle = f"{(cells.start_ns + cells.end_ns) / 2000:.1f}"
    right = f"{cells.end_ns / 1000:.1f}"
    text = left.ljust(columns)
    at = columns // 2 - len(middle) // 2
    text = text[:at] + middle + text[at + len(middle) :]
    return " " * NAME_WIDTH + text[: columns - len(right)] + right


def _wrapped(parts: Sequence[str], lengths: Sequence[int], width: int) -> list[str]:
    lines: list[str] = []
    line, used = "", 0
    for part, length in zip(parts, lengths, strict=True):
        if used and used + length + 3 > width:
            lines.append(line)
            line, used = "", 0
        line += ("   " if used else "") + part
        used += length + (3 if used else 0)
    return [*lines, line] if line else lines
