"""The rules behind the insights: each looks at a profile and speaks when its condition holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nkisim.ir.access import Memory
from nkisim.ir.program import Form
from nkisim.machine.spec import Engine
from nkisim.memory.placement import DEFAULT_COPIES
from nkisim.ops.registry import Cost
from nkisim.ops.table import OPS
from nkisim.profile.model import Profile, is_transpose
from nkisim.profile.what_if import (
    ALWAYS_LOADED_TABLES,
    FREE_GPSIMD,
    FREE_ISSUE,
    FREE_SCALAR,
    FREE_TENSOR,
    FREE_VECTOR,
    UNLIMITED_BANDWIDTH,
    UNLIMITED_MEMORY,
)
from nkisim.timing.timeline import ENGINES, Wait

SMALL_DMA_BYTES = 64 * 1024
MIN_SHARE = 0.15
FEW_PARTITIONS = 64
SHORT_ELEMENTS = 64
"""Elements per partition below which an instruction costs its fixed minimum."""
REPEATS = 1.5
"""Times that inputs are read from HBM before it is worth a word."""

_ENGINE_IDEALS = {"vector": FREE_VECTOR, "scalar": FREE_SCALAR, "gpsimd": FREE_GPSIMD}
_COMPUTE = (Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD)


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


def _form_ps(profile: Profile) -> npt.NDArray[np.float64]:
    """Return for each form how long its instructions occupy their lane."""
    timeline, program = profile.timeline, profile.program
    forms = program.form[timeline.instruction]
    spent = (timeline.end_ps - timeline.start_ps).astype(np.float64)
    totals = np.zeros(len(program.forms))
    np.add.at(totals, forms, spent)
    return totals


def _share_of(profile: Profile, engine: Engine, holds: Callable[[Form], bool]) -> float:
    """Return the share of an engine's busy time in instructions for which something holds."""
    spent, program = _form_ps(profile), profile.program
    mine = [form.engine is engine and not OPS[form.op].is_dma for form in program.forms]
    total = float(spent[np.array(mine, dtype=bool)].sum()) if program.forms else 0.0
    chosen = [m and holds(form) for m, form in zip(mine, program.forms, strict=True)]
    return float(spent[np.array(chosen, dtype=bool)].sum()) / total if total else 0.0


def _pe_transposes(profile: Profile) -> Insight | None:
    share = _share_of(profile, Engine.TENSOR, is_transpose)
    if profile.busy.get("tensor", 0.0) < 0.3 or share < 0.25:
        return None
    return Insight(
        f"{100 * share:.0f} % of the tensor engine's time goes into transposes",
        "operands arrive with the contracted axis along the free dimension",
        "load them transposed (nisa.dma_transpose), swap stationary and moving so that the result "
        "comes out as needed, or transpose once what is used several times",
        _line(profile, "nc_transpose"),
        FREE_TENSOR,
    )


def _evictions(profile: Profile) -> Insight | None:
    """Matmuls wait until the accumulator they write is free again."""
    timeline = profile.timeline
    at = np.flatnonzero(timeline.lane == ENGINES.index(Engine.TENSOR))
    if len(at) < 2:
        return None
    gaps = timeline.start_ps[at[1:]] - timeline.end_ps[at[:-1]]
    is_reuse = timeline.wait[at[1:]] == int(Wait.REUSE)
    share = float(gaps[is_reuse].sum()) / max(1, timeline.latency_ps)
    if share < MIN_SHARE:
        return None
    first = int(at[1:][is_reuse][0])
    site = profile.program.site[timeline.instruction[first]]
    return Insight(
        f"the tensor engine waits {100 * share:.0f} % of the time for PSUM to be evicted",
        "the next product is written where the last one still waits to be copied out",
        "allocate the accumulator inside the loop so that it rotates over banks, and evict with "
        "an engine that is idle",
        str(profile.program.sites[site].place),
        UNLIMITED_MEMORY,
    )


def _table_loads(profile: Profile) -> Insight | None:
    program, timeline, machine = profile.program, profile.timeline, profile.machine
    costs = [OPS[form.op].cost(form, machine) for form in program.forms]
    tables = [
        cost.table if isinstance(cost, Cost) and form.engine is Engine.SCALAR else None
        for form, cost in zip(program.forms, costs, strict=True)
    ]
    at = np.flatnonzero(timeline.lane == ENGINES.index(Engine.SCALAR))
    forms = program.form[timeline.instruction[at]].tolist()
    used = [tables[form] for form in forms if tables[form] is not None]
    loads = sum(a != b for a, b in zip([None, *used], used, strict=False))
    share = loads * machine.act.table_load_ns / max(1.0, profile.latency_ns)
    if loads < 4 or share < 0.05:
        return None
    names = ", ".join(sorted({name for name in used if name is not None})[:4])
    return Insight(
        f"{loads:,} activation tables are loaded, {machine.act.table_load_ns / 1000:.1f} us each",
        f"the scalar engine alternates between {names}",
        "do one function for several tiles before the next, or move one of them to the vector "
        "engine (tensor_scalar takes power and rsqrt)",
        _line(profile, "activation"),
        ALWAYS_LOADED_TABLES,
    )


def _few_partitions(profile: Profile) -> Insight | None:
    for engine in _COMPUTE:
        if profile.busy.get(engine.value, 0.0) < 0.3:
            continue
        share = _share_of(profile, engine, lambda f: f.operands[0].partitions <= FEW_PARTITIONS)
        if share >= 0.5:
            return Insight(
                f"{100 * share:.0f} % of the {engine.value} engine's time uses at most "
                f"{FEW_PARTITIONS} of 128 partitions",
                "an instruction takes as long for one partition as for 128",
                "fold free elements into the partition dimension: tiles of 128 rows",
                None,
                _ENGINE_IDEALS[engine.value],
            )
    return None


def _short_instructions(profile: Profile) -> Insight | None:
    for engine in _COMPUTE:
        if profile.busy.get(engine.value, 0.0) < 0.3:
            continue
        share = _share_of(
            profile,
            engine,
            lambda f: max(o.free_size for o in f.operands if not o.is_index) < SHORT_ELEMENTS,
        )
        if share >= 0.5:
            return Insight(
                f"{100 * share:.0f} % of the {engine.value} engine's time goes into instructions "
                f"on fewer than {SHORT_ELEMENTS} elements per partition",
                "each costs its fixed minimum",
                "do several tiles in one instruction: a tile (128, n, m) and one op over all of it",
                None,
                _ENGINE_IDEALS[engine.value],
            )
    return None


def _repeated_loads(profile: Profile) -> Insight | None:
    columns = profile.program.buffer_columns
    is_source = columns.is_kind("input") | columns.is_kind("constant")
    unique = int(columns.size_bytes[is_source].sum())
    pressure = max(profile.busy.get("dma bandwidth", 0.0), profile.busy.get("dma issue", 0.0))
    times = profile.work.hbm_read_bytes / unique if unique else 0.0
    if pressure < 0.5 or times < REPEATS:
        return None
    free = profile.machine.limits.sbuf_usable_bytes - profile.sbuf_peak_bytes
    by_issue = profile.busy.get("dma issue", 0.0) > profile.busy.get("dma bandwidth", 0.0)
    return Insight(
        f"inputs of {unique / 1e6:,.1f} MB are read from HBM {times:.1f} times",
        "the same tiles are loaded again in an inner loop",
        f"keep what is read again in SBUF ({free / 1024:.0f} KiB per partition are free), or "
        "reorder the loops so that the larger operand is loaded once",
        _line(profile, "dma_copy"),
        FREE_ISSUE if by_issue else UNLIMITED_BANDWIDTH,
    )


def _round_trip(profile: Profile) -> Insight | None:
    """Bytes that the kernel itself wrote to HBM are loaded again."""
    program, timeline = profile.program, profile.timeline
    columns = program.buffer_columns
    scratch = columns.is_in(Memory.HBM) & ~columns.is_kind("input") & ~columns.is_kind("constant")
    counts = np.bincount(timeline.instruction, minlength=len(program)).tolist()
    read = 0
    site: int | None = None
    for number, form in enumerate(program.forms):
        spec = OPS[form.op]
        for k, operand in enumerate(form.operands):
            param = spec.param(operand.param)
            is_read = param is not None and param.access != "w" and operand.memory is Memory.HBM
            if not is_read:
                continue
            at = np.flatnonzero(program.form == number)
            again = at[scratch[program.operand_buffer[program.operand_start[at] + k]]]
            read += operand.size_bytes * sum(counts[i] for i in again.tolist())
            if len(again) and site is None:
                site = int(program.site[again[0]])
    if site is None or read < 0.1 * max(1, profile.work.hbm_bytes):
        return None
    return Insight(
        f"{read / 1e6:,.1f} MB of the kernel's own results are read back from HBM",
        "an intermediate goes through HBM",
        "keep it in SBUF: fuse the loops that write and read it, tile by tile",
        str(program.sites[site].place),
        UNLIMITED_BANDWIDTH,
    )


def _reduce_after_activation(profile: Profile) -> Insight | None:
    program = profile.program
    if profile.busy.get("vector", 0.0) < 0.4:
        return None
    written: set[tuple[int, int]] = set()
    reduced: list[tuple[int, int, int]] = []
    for number, form in enumerate(program.forms):
        at = np.flatnonzero(program.form == number)
        if form.op == "activation":
            position = form.position("dst")
        elif form.op == "tensor_reduce" and form.attr("op") == "add":
            position = form.position("data")
        else:
            continue
        if position is None:
            continue
        where = program.operand_start[at] + position
        pairs = zip(
            program.operand_buffer[where].tolist(),
            program.operand_offset[where].tolist(),
            at.tolist(),
            strict=True,
        )
        if form.op == "activation":
            written.update((buffer, offset) for buffer, offset, _ in pairs)
        else:
            reduced += pairs
    riding = [i for buffer, offset, i in reduced if (buffer, offset) in written]
    if not riding:
        return None
    return Insight(
        f"{len(riding):,} row sums are a pass of their own on the vector engine",
        "their input was just written by an activation",
        "let the sum ride on it: nisa.activation_reduce, or reduce_op and reduce_res of "
        "nisa.activation",
        str(program.sites[program.site[riding[0]]].place),
        FREE_VECTOR,
    )


def _launch(profile: Profile) -> Insight | None:
    share = profile.launch_ns / max(1.0, profile.latency_ns)
    if share < 0.5:
        return None
    return Insight(
        f"the fixed launch cost is {100 * share:.0f} % of the latency",
        f"{profile.launch_ns / 1000:.0f} us are spent before and after the first instruction",
        "put more work into one kernel: fuse it with the op before or after",
    )


def _chain(profile: Profile) -> Insight | None:
    if profile.binding != "latency" or not profile.critical_lines:
        return None
    waited = sum(c.path_ns for c in profile.critical_lines if c.wait == "data")
    share = waited / max(1.0, profile.latency_ns - profile.launch_ns)
    if share < 0.5:
        return None
    return Insight(
        f"no engine is busy for most of the time; {100 * share:.0f} % of the critical path waits "
        "for the result before",
        "each tile goes through its steps before the next one starts",
        "allocate tiles inside the loop and issue the next tile's loads early, so that tiles "
        "overlap; or use larger tiles",
        profile.critical_lines[0].line,
    )


RULES: tuple[Callable[[Profile], Insight | None], ...] = (
    _issue_bound,
    _small_copies,
    _starved_tensor,
    _held_stream,
    _evictions,
    _reuse,
    _repeated_loads,
    _round_trip,
    _fp32_matmul,
    _pe_transposes,
    _reduce_after_activation,
    _table_loads,
    _few_partitions,
    _short_instructions,
    _imbalance,
    _chain,
    _launch,
)
"""Most specific first."""

__all__ = ["RULES", "Insight"]
