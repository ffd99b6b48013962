"""A candidate: one kernel on its way through a run, as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from nkiwright.evaluate import Evaluation

Origin = Literal["draft", "repair", "sample", "mutation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A kernel that was written but not judged yet, or the reason why there is none."""

    source: str | None
    """The kernel file, or None if the writer's reply held none."""
    origin: Origin
    problem: str | None = None
    """What was wrong with the reply, in words that the writer can act on."""
    plan: Mapping[str, Any] | None = None
    """The schedule that it was rendered from, if it was."""
    call: int | None = None
    """Model call that produced it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One kernel of a run."""

    number: int
    parent: int | None
    lineage: int
    """Draft that it descends from."""
    attempt: int
    """0 for a draft, then the number of the repair."""
    draft: Draft
    evaluation: Evaluation | None
    """None if there was nothing to judge."""

    @property
    def is_correct(self) -> bool:
        """Whether the judge accepted it."""
        return self.evaluation is not None and self.evaluation.is_correct

    @property
    def latency_ns(self) -> float | None:
        """Emulated latency, if it is correct."""
        if self.evaluation is None or not self.evaluation.is_correct:
            return None
        return self.evaluation.latency_ns

    @property
    def fingerprint(self) -> str | None:
        """Equal for candidates that compile to the same Program."""
        return None if self.evaluation is None else self.evaluation.fingerprint

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        data["draft"] = dataclasses.asdict(self.draft)
        data["evaluation"] = None if self.evaluation is None else self.evaluation.to_json()
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        values = dict(data)
        values["draft"] = Draft(**values["draft"])
        evaluation = values["evaluation"]
        values["evaluation"] = None if evaluation is None else Evaluation.from_json(evaluation)
        return cls(**values)


def best_of(candidates: list[Candidate]) -> Candidate | None:
    """Return the fastest correct candidate; ties go to fewer instructions, then to the earlier."""
    correct = [c for c in candidates if c.latency_ns is not None]
    if not correct:
        return None

    def order(candidate: Candidate) -> tuple[float, int, int]:
        evaluation = candidate.evaluation
        count = evaluation.instructions if evaluation is not None else None
        return (candidate.latency_ns or 0.0, count or 0, candidate.number)

    return min(correct, key=order)
