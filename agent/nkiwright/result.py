"""The result of a solve: what `solve --json` prints and the API returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.console import RenderableType

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """The fastest kernel that was proved correct."""

    candidate: int
    source: str
    source_path: str
    latency_ns: float
    """Emulated, at the task's main shape."""
    speedup: float | None
    """Baseline over winner, or None without a baseline."""
    bound_fraction: float | None
    """Lower bound over latency."""
    error_ratio: float | None
    """Largest |error| / (eps · s); the task allows `c`."""
    fingerprint: str
    instructions: int
    certificate: str | None = None
    """Path of the certificate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineResult:
    """The kernel that speed-ups are measured against."""

    name: str
    latency_ns: float
    bound_fraction: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageTotal:
    """What the run used."""

    tokens: int = 0
    usd: float | None = 0.0
    """None if a price is unknown."""
    evaluations: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Outcome of solving one task."""

    task: str
    model: str
    nki: str
    machine: str
    solved: bool
    reason: str
    """Why the search ended, or why there is no kernel."""
    winner: Winner | None
    baseline: BaselineResult | None
    tried: int
    correct: int
    usage: UsageTotal
    floor_ns: float | None
    bound_ns: float | None
    seeds: dict[str, int] = field(default_factory=dict)
    sandbox: tuple[str, ...] = ()
    run: str = ""
    """Path of the run folder."""
    machine_note: str = ""
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        data = dataclasses.asdict(self)
        data["sandbox"] = list(self.sandbox)
        data["candidates"] = {"tried": data.pop("tried"), "correct": data.pop("correct")}
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        values = dict(data)
        counts = values.pop("candidates")
        values |= {"tried": counts["tried"], "correct": counts["correct"]}
        values["sandbox"] = tuple(values["sandbox"])
        values["usage"] = UsageTotal(**values["usage"])
        if values["winner"] is not None:
            values["winner"] = Winner(**values["winner"])
        if values["baseline"] is not None:
            values["baseline"] = BaselineResult(**values["baseline"])
        return cls(**values)

    def __rich__(self) -> RenderableType:
        """Return the table that a terminal shows."""
        from nkiwright.report.table import result_table

        return result_table(self)
