"""Plans: the decisions that turn an op graph into one kernel, as small frozen records.

A plan says nothing about what is computed.  Together with the graph it determines the source to the
letter, so a plan is also a compact name for a kernel; it travels as JSON.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Queue = Literal["default", "sync", "scalar", "gpsimd", "spread"]
"""Who issues a copy: `spread` alternates sync and scalar over the tensors."""
Statistics = Literal["two_pass", "bn_stats"]
Eviction = Literal["vector", "scalar", "alternate"]
Order = Literal["mn", "nm"]
Transposition = Literal["dma", "pe"]
Value = int | str | bool

QUEUES: tuple[Queue, ...] = get_args(Queue)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """Element functions and last-axis reductions on `[rows, width]`."""

    layout: Literal["rows", "flat"]
    """`flat` forgets the shape: every tile is a run of consecutive elements."""
    pack: int
    """Rows that one partition holds; one copy moves 128 × pack rows."""
    chunk: int
    """Free-axis elements of a tile; 0 takes whole rows."""
    buffers: int
    """Tiles that loads and stores rotate over; 1 serialises load, work and store."""
    prefetch: int
    """How many tiles ahead loads are issued in program order."""
    skewed: bool
    """Whether a tile's reductions are issued before the tile before it is finished."""
    load_queue: Queue
    store_queue: Queue
    statistics: Statistics
    """Means and variances by sums, or by bn_stats and bn_aggr."""
    in_place: bool
    """Whether an instruction may overwrite the operand that it reads last."""
    rounding: Literal["once", "each"]
    """Whether intermediates stay float32 or take the result's 16-bit dtype."""
    engines: tuple[tuple[str, str], ...]
    """Choice point -> engine or form, where several are legal; sorted."""
    family: Literal["rows"] = "rows"

    def to_json(self) -> dict[str, object]:
        """Return the plan as plain data."""
        return plain(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulPlan:
    """A matrix product with an epilogue of element functions."""

    block_m: int
    """Rows of the result per block; a multiple of 128."""
    block_n: int
    """Columns of the result per block; a multiple of `tile_n`."""
    tile_n: int
    """Columns that one matmul moves, at most a PSUM bank."""
    banks: int
    """PSUM banks that one epilogue reads at a time."""
    order: Order
    """Which block loop is outside: its operand is loaded once."""
    k_order: Literal["inner", "outer"]
    """Whether K runs inside each PSUM tile, or outside over a whole block held in PSUM."""
    load_k: int
    """K tiles of 128 that one copy brings."""
    prefetch: int
    """How many blocks ahead loads are issued in program order."""
    transposition: Transposition
    """How an operand that comes with rows first gets K onto the partitions."""
    eviction: Eviction
    """Who copies PSUM where the epilogue leaves a choice."""
    load_queue: Queue
    store_queue: Queue
    engines: tuple[tuple[str, str], ...]
    family: Literal["matmul"] = "matmul"

    def to_json(self) -> dict[str, object]:
        """Return the plan as plain data."""
        return plain(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransposePlan:
    """A matrix transpose."""

    method: Transposition
    tile_rows: int
    """Source rows per tile, which become columns: the length of a stored run."""
    tile_columns: int
    """Source columns per load."""
    group: int
    """128×128 transposes that share one PSUM tile and one copy out of it."""
    eviction: Eviction
    load_queue: Queue
    store_queue: Queue
    family: Literal["transpose"] = "transpose"

    def to_json(self) -> dict[str, object]:
        """Return the plan as plain data."""
        return plain(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPlan:
    """Softmax attention of one head, whole score rows at a time."""

    key_tile: int
    """Keys per score matmul, at most a PSUM bank."""
    transposition: Transposition
    """How queries and keys get the head dimension onto the partitions."""
    eviction: Eviction
    """Who copies scores out of PSUM."""
    transpose_group: int
    """Transposed probability tiles per PSUM tile."""
    transpose_eviction: Eviction
    skip_masked: bool
    """Whether key tiles that the mask hides wholly are left out."""
    scale_on: Literal["scores", "exponent"]
    """Where the factor on the scores is applied."""
    mask_all: bool
    """Whether the mask is applied to whole rows instead of the tile on the diagonal."""
    stages: int
    """Tiles under way in program order: 1 finishes each before the next, 2 begins the next tile's
    weights before this tile's product, 3 its scores before this tile's weights too."""
    hoist_queries: bool
    """Whether all queries are loaded and turned at the start."""
    load_queue: Queue
    store_queue: Queue
    family: Literal["attention"] = "attention"

    def to_json(self) -> dict[str, object]:
        """Return the plan as plain data."""
        return plain(self)


Plan = RowPlan | MatmulPlan | TransposePlan | AttentionPlan

_CLASSES: Mapping[str, type[RowPlan | MatmulPlan | TransposePlan | AttentionPlan]] = {
    "rows": RowPlan,
    "matmul": MatmulPlan,
    "transpose": TransposePlan,
    "attention": AttentionPlan,
}


def plain(plan: Plan) -> dict[str, object]:
    """Return a plan as plain data."""
    data: dict[str, object] = dataclasses.asdict(plan)
    if not isinstance(plan, TransposePlan | AttentionPlan):
        data["engines"] = dict(plan.engines)
    return data


def plan_to_json(plan: Plan) -> str:
    """Return a plan as one line of JSON with sorted keys."""
    return json.dumps(plain(plan), sort_keys=True)


def plan_from_json(text: str) -> Plan:
    """Return the plan that `plan_to_json` wrote.

    Raises:
        ValueError: The text is no plan: the message says which field.
    """
    data = json.loads(text)
    if not isinstance(data, dict):
        raise ValueError(f"a plan must be a JSON object, got {type(data).__name__}")
    kind = _CLASSES.get(str(data.get("family")))
    if kind is None:
        raise ValueError(
            f"plan family must be one of {', '.join(_CLASSES)}, got {data.get('family')!r}"
        )
    fields = {f.name: f for f in dataclasses.fields(kind)}
    if unknown := sorted(data.keys() - fields.keys()):
        raise ValueError(f"a {kind.__name__} has no field {unknown[0]!r}")
    if missing := sorted(fields.keys() - data.keys()):
        raise ValueError(f"a {kind.__name__} needs the field {missing[0]!r}")
    for name, value in data.items():
        wanted = str(fields[name].type)
        is_right = {
            "int": isinstance(value, int) and not isinstance(value, bool),
            "bool": isinstance(value, bool),
        }.get(wanted, isinstance(value, dict if name == "engines" else str))
        if not is_right:
            raise ValueError(f"{kind.__name__}.{name} must be {wanted}, got {value!r}")
    if "engines" in data:
        data["engines"] = tuple(sorted((str(k), str(v)) for k, v in data["engines"].items()))
    return kind(**data)
