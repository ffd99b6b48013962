"""Rules of the field's practice: condition, cause, action, line.

Each rule looks at the profile alone and speaks only when its condition holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nkisim.machine.spec import Engine
from nkisim.ops.table import OPS
from nkisim.profile.model import Profile
from nkisim.timing.timeline import ENGINES, Wait

SMALL_DMA_BYTES = 64 * 1024
MIN_SHARE = 0.15


@dataclass(frozen=True, slots=True)
class Insight:
    """One finding."""

    condition: str
    cause: str
    action: str
    line: str | None = None


def insights(profile: Profile, *, limit: int = 4) -> tuple[Insight, ...]:
    """Return what stands out, most important first."""
    found = [
        rule(profile)
        for rule in (_issue_bound, _small_copies, _held_stream, _reuse, _fp32_matmul, _imbalance)
    ]
    return tuple(insight for insight in found if insight is not None)[:limit]


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
        "allocate it inside the loop (two places), or use separate tiles",
        held[0].line,
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
    )
