"""Rules of the field's practice: condition, cause, action, line.

Each rule looks at the profile alone and speaks only when its condition holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nkisim.machine.spec import Engine
from nkisim.memory.placement import DEFAULT_COPIES
from nkisim.ops.table import OPS
from nkisim.profile.model import Profile
from nkisim.profile.what_if import (
    FREE_GPSIMD,
    FREE_ISSUE,
    FREE_SCALAR,
    FREE_TENSOR,
    FREE_VECTOR,
    UNLIMITED_MEMORY,
    WhatIf,
)
from nkisim.timing.timeline import ENGINES, Wait

SMALL_DMA_BYTES = 64 * 1024
MIN_SHARE = 0.15


_ENGINE_IDEALS = {"vector": FREE_VECTOR, "scalar": FREE_SCALAR, "gpsimd": FREE_GPSIMD}


@dataclass(frozen=True, slots=True)
class Insight:
    """One finding."""

    condition: str
    cause: str
    action: str
    line: str | None = None
    ideal: str | None = None
    """The what-if that says what acting on it can bring at most."""
    gain_ns: float | None = None
    """What that what-if gains; None if it was not asked for."""


def insights(
    profile: Profile, *, limit: int = 4, gains: Sequence[WhatIf] = ()
) -> tuple[Insight, ...]:
    """Return what stands out, most important first.

    Args:
        profile: The profile.
        limit: Most findings to return.
        gains: What `what_if` found for the same Program, to put a number on each finding.
    """
    rules = (
        _issue_bound,
        _small_copies,
        _starved_tensor,
        _held_stream,
        _reuse,
        _fp32_matmul,
        _imbalance,
    )
    gain_of = {gain.name: gain.gain_ns for gain in gains}
    found = [rule(profile) for rule in rules]
    return tuple(
        replace(i, gain_ns=gain_of.get(i.ideal, 0.0)) if gains and i.ideal else i
        for i in found
        if i is not None
    )[:limit]


def _line(profile: Profile, op: str) -> str | None:
    """Return the line that emits most instructions of an op."""
    program = profile.program
    counts: dict[int, int] = {}
    for number, form in enumerate(program.forms):
        if form.op == op:
            for site in program.site[program.form == number].tolist():
                counts[site] = counts.get(site, 0) + 1
    if not counts:
        return None
    return str(program.sites[max(counts, key=lambda s: counts[s])].place)


def _issue_bound(profile: Profile) -> Insight | None:
    share = profile.busy.get("dma issue", 0.0)
    if share < 0.6 or share < profile.busy.get("dma bandwidth", 0.0):
        return None
    per_copy = profile.machine.dma.issue_interval_ns / 1000
    return Insight(
        f"DMA issue is busy {100 * share:.0f} % of the time",
        f"{profile.work.dma_count:,} copies, {per_copy:.2f} us each on one queue",
        "move more bytes per dma_copy, load what is reused once, and spread copies over "
        "engine=nisa.engine.sync, scalar and gpsimd",
        _line(profile, "dma_copy"),
        FREE_ISSUE,
    )


def _small_copies(profile: Profile) -> Insight | None:
    work = profile.work
    if not work.dma_count:
        return None
    mean = work.dma_bytes / work.dma_count
    if mean >= SMALL_DMA_BYTES or work.dma_count < 8:
        return None
    return Insight(
        f"copies move {mean / 1024:.1f} KiB on average",
        "a copy costs about 2 us whatever its size, and 2 KiB per partition is needed for rate",
        "load whole rows or several row tiles with one dma_copy",
        _line(profile, "dma_copy"),
    )


def _starved_tensor(profile: Profile) -> Insight | None:
    """The Tensor Engine stands still until its operands are loaded."""
    timeline = profile.timeline
    at = np.flatnonzero(timeline.lane == ENGINES.index(Engine.TENSOR))
    if len(at) < 2:
        return None
    gaps = timeline.start_ps[at[1:]] - timeline.end_ps[at[:-1]]
    at = at[1:]
    producer = timeline.predecessor[at]
    is_load = (timeline.wait[at] == int(Wait.DATA)) & (producer >= 0)
    is_load &= timeline.lane[np.maximum(producer, 0)] >= len(ENGINES)
    share = float(gaps[is_load].sum()) / max(1, timeline.latency_ps)
    if share < MIN_SHARE:
        return None
    loads = timeline.instruction[producer[is_load]]
    sites, counts = np.unique(profile.program.site[loads], return_counts=True)
    return Insight(
        f"the tensor engine waits for loads {100 * share:.0f} % of the time",
        f"{int(is_load.sum()):,} matmuls or transposes start when their operand arrives",
        "load operands that several matmuls share once, outside the loop; load the next tiles "
        "while these are multiplied, in larger copies",
        str(profile.program.sites[sites[counts.argmax()]].place),
    )


def _held_stream(profile: Profile) -> Insight | None:
    """A compute engine issues copies, and its own work waits behind them."""
    program, timeline = profile.program, profile.timeline
    is_dma = np.array([OPS[form.op].is_dma for form in program.forms], dtype=bool)
    issuer = np.array([ENGINES.index(form.engine) for form in program.forms], dtype=np.int64)
    forms = program.form[timeline.instruction]
    late = (timeline.wait == int(Wait.DATA)) | (timeline.wait == int(Wait.REUSE))
    for lane, engine in enumerate(ENGINES):
        if engine is Engine.SYNC or not (~is_dma & (issuer == lane)).any():
            continue
        mine = np.flatnonzero(issuer[forms] == lane)
        is_copy, start = is_dma[forms[mine]], timeline.start_ps[mine]
        moves_on = np.where(is_copy, start, timeline.end_ps[mine])
        held = np.maximum(0, start - np.concatenate([start[:1], moves_on[:-1]]))
        is_held = is_copy & late[mine]
        at = mine[is_held]
        share = float(held[is_held].sum()) / max(1, timeline.latency_ps)
        if share < MIN_SHARE:
            continue
        place = program.sites[program.site[timeline.instruction[at[0]]]].place
        return Insight(
            f"the {engine.value} engine issues {len(at):,} copies before their data is ready",
            "its own instructions wait behind them, in order",
            "issue these copies from engine=nisa.engine.sync, which has nothing else to do",
            str(place),
        )
    return None


def _reuse(profile: Profile) -> Insight | None:
    held = [c for c in profile.critical_lines if c.wait == "reuse"]
    share = sum(c.path_ns for c in held) / max(1.0, profile.latency_ns)
    if share < MIN_SHARE:
        return None
    return Insight(
        f"{100 * share:.0f} % of the critical path waits for tiles to be free again",
        "a tile is overwritten before its last reader is done",
        f"allocate it inside the loop (it rotates over {DEFAULT_COPIES} places), or use separate "
        "tiles",
        held[0].line,
        UNLIMITED_MEMORY,
    )


def _fp32_matmul(profile: Profile) -> Insight | None:
    if profile.busy.get("tensor", 0.0) < 0.5:
        return None
    for form in profile.program.forms:
        if form.op == "nc_matmul" and form["moving"].dtype.name == "float32":
            return Insight(
                "float32 matmuls keep the Tensor Engine busy",
                "float32 takes four passes",
                "if the task's dtype is bfloat16, keep the operands in bfloat16",
                _line(profile, "nc_matmul"),
                FREE_TENSOR,
            )
    return None


def _imbalance(profile: Profile) -> Insight | None:
    engines = {k: v for k, v in profile.busy.items() if k in ("vector", "scalar", "gpsimd")}
    if not engines:
        return None
    name = max(engines, key=lambda k: engines[k])
    rest = max([v for k, v in engines.items() if k != name], default=0.0)
    if engines[name] < 0.6 or rest > engines[name] / 2:
        return None
    return Insight(
        f"the {name} engine is busy {100 * engines[name]:.0f} %, the others at most "
        f"{100 * rest:.0f} %",
        "elementwise work is not shared",
        "fuse two ops into one instruction (scalar_tensor_tensor, tensor_scalar with op1, "
        "activation with scale and bias, activation_reduce), or move some to another engine",
        None,
        _ENGINE_IDEALS[name],
    )
