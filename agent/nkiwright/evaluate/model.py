"""What the judge says about a kernel: plain data with a schema version."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from nkisim.errors import Diagnostic

SCHEMA_VERSION = 1


class Verdict(StrEnum):
    """The outcome of judging one kernel."""

    CORRECT = "correct"
    WRONG = "wrong"
    """The values differ from the reference."""
    ILLEGAL = "illegal"
    """It breaks a rule of the language or the machine."""
    UNSUPPORTED = "unsupported"
    """nkisim does not emulate something; says nothing about the kernel."""
    TOO_SLOW = "too_slow"
    """It ran out of fuel or time."""
    CRASHED = "crashed"
    """Its Python crashed, or exhausted memory or output, while it was traced."""
    BELOW_FLOOR = "below_floor"
    """Faster than the proved lower bound: refused, and our bug."""
    FAILED = "failed"
    """The judge itself failed; says nothing about the kernel."""


class Stage(StrEnum):
    """How far a kernel came in the cascade, cheap to costly."""

    STATIC = "static"
    TRACE = "trace"
    TINY = "tiny"
    MAIN = "main"
    TIME = "time"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The verdict on one kernel for one task, and what was measured."""

    verdict: Verdict
    stage: Stage
    """The stage that decided; `done` for a correct kernel."""
    message: str
    """One line for people."""
    diagnostic: Diagnostic | None = None
    """The emulator's own words, if it objected."""
    latency_ns: float | None = None
    """Emulated latency at the main shape."""
    floor_ns: float | None = None
    """Proved lower bound on the latency."""
    bound_ns: float | None = None
    """Engine-aware lower bound, launch cost included."""
    error_ratio: float | None = None
    """Largest |error| / (eps · s) over all seeds and outputs; the task allows `c`."""
    fingerprint: str | None = None
    """Of the Program at the main shape; equal fingerprints are equal kernels."""
    instructions: int | None = None
    hbm_bytes: int | None = None
    binding: str | None = None
    """Resource that the kernel is bound by."""
    profile_text: str | None = None
    profile: Mapping[str, Any] | None = None
    warnings: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    """Isolation layers that were active while the kernel's Python ran."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall time by step; not part of the result."""

    @property
    def is_correct(self) -> bool:
        """Whether the kernel is accepted."""
        return self.verdict is Verdict.CORRECT

    @property
    def bound_fraction(self) -> float | None:
        """Share of the lower bound reached: bound over latency, at most 1."""
        if self.latency_ns is None or self.bound_ns is None:
            return None
        return self.bound_ns / self.latency_ns

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        data: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Diagnostic):
                value = value.to_dict()
            elif isinstance(value, tuple):
                value = list(value)
            elif isinstance(value, Mapping):
                value = dict(value)
            data[item.name] = value
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        values = {k: v for k, v in data.items() if k != "schema_version"}
        diagnostic = values.get("diagnostic")
        values["diagnostic"] = None if diagnostic is None else Diagnostic.from_dict(diagnostic)
        values["verdict"] = Verdict(values["verdict"])
        values["stage"] = Stage(values["stage"])
        for name in ("warnings", "layers"):
            values[name] = tuple(values.get(name, ()))
        return cls(**values)
