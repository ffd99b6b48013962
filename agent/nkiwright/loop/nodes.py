"""The nodes of the loop.  They know a writer, a pool and a store, no provider and no front end."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from nkiwright.budget import BudgetExceeded
from nkiwright.candidate import Candidate, Draft, best_of
from nkiwright.errors import ModelError
from nkiwright.evaluate import Evaluation, Stage
from nkiwright.events import (
    BestChanged,
    CandidateDrafted,
    CandidateRejected,
    CandidateVerified,
    Event,
    StrategyNote,
)
from nkiwright.events import Stage as EventStage
from nkiwright.feedback import feedback_on
from nkiwright.loop.state import LineageState, LoopState
from nkiwright.strategies.base import Strategy
from nkiwright.writers import Writer, WriterStopped

Judging = Callable[[str], Awaitable[Evaluation]]


@dataclass(slots=True, kw_only=True)
class Nodes:
    """Node functions bound to one run.

    Mutable only in what can be rebuilt from the state: counters and the best so far.
    """

    writer: Writer
    judge: Judging
    strategy: Strategy
    max_repairs: int
    baseline_ns: float | None
    emit: Callable[[Event], None]
    keep: Callable[[Candidate], None]
    """Stores a judged candidate."""
    should_stop: Callable[[], str | None]
    """Reason to start nothing new (budget, interrupt), or None."""
    candidates: list[Candidate] = field(default_factory=list)
    exhausted: str | None = None
    """Why the writer has nothing more to give."""
    model_error: ModelError | None = None
    """The last failure of the model provider."""
    _numbers: Any = field(default_factory=itertools.count)

    # -- rounds -------------------------------------------------------------------------------

    async def plan_round(self, state: LoopState) -> dict[str, Any]:
        """Decide how many lineages to start next, or stop."""
        reason = self.should_stop() or self.exhausted
        drafted = state.get("drafted", 0)
        width = self.strategy.next_width(drafted, self.candidates)
        if reason is None and width == 0:
            reason = "all drafts are judged"
        if reason is not None:
            return {"stopped": reason, "width": 0}
        return {
            "round": state.get("round", 0) + 1,
            "drafted": drafted + width,
            "width": width,
            "stopped": None,
        }

    async def select(self, state: LoopState) -> dict[str, Any]:
        """Note the fastest correct candidate."""
        best = best_of(self.candidates)
        return {"best": None if best is None else best.number}

    # -- one lineage --------------------------------------------------------------------------

    async def draft(self, state: LineageState) -> dict[str, Any]:
        """Write a first kernel."""
        return await self._write(lambda: self.writer.draft(state["lineage"]))

    async def repair(self, state: LineageState) -> dict[str, Any]:
        """Write the last kernel again, knowing its error."""
        history = [Candidate.from_json(item) for item in state["history"]]
        return await self._write(lambda: self.writer.repair(history))

    async def _write(self, write: Callable[[], Awaitable[Draft]]) -> dict[str, Any]:
        reason = self.should_stop() or self.exhausted
        if reason is not None:
            return {"pending": None, "stopped": reason}
        try:
            draft = await write()
        except WriterStopped as stop:
            if self.exhausted is None:
                self.emit(StrategyNote(text=str(stop)))
                self.exhausted = str(stop)
            return {"pending": None, "stopped": str(stop)}
        except ModelError as error:
            self.model_error = error
            if not error.is_transient:
                self.exhausted = str(error)
            return {"pending": None, "stopped": str(error)}
        return {
            "pending": {
                "source": draft.source,
                "origin": draft.origin,
                "problem": draft.problem,
                "plan": None if draft.plan is None else dict(draft.plan),
                "call": draft.call,
            }
        }

    async def verify(self, state: LineageState) -> dict[str, Any]:
        """Judge the pending kernel."""
        pending = state["pending"]
        assert pending is not None
        draft = Draft(**pending)
        history = state.get("history", [])
        number = next(self._numbers)
        parent = history[-1]["number"] if history else None
        self.emit(CandidateDrafted(candidate=number, parent=parent, origin=draft.origin))
        evaluation: Evaluation | None = None
        if draft.source is not None:
            try:
                evaluation = await self.judge(draft.source)
            except BudgetExceeded as stop:
                self.exhausted = self.exhausted or str(stop)
                return {"pending": None}
        candidate = Candidate(
            number=number,
            parent=parent,
            lineage=state["lineage"],
            attempt=len(history),
            draft=draft,
            evaluation=evaluation,
        )
        self._record(candidate)
        data = candidate.to_json()
        return {"history": [data], "candidates": [data], "pending": None}

    def after_writing(self, state: LineageState) -> Literal["verify", "end"]:
        """Judge what was written, if anything was."""
        return "verify" if state.get("pending") is not None else "end"

    def after_verifying(self, state: LineageState) -> Literal["repair", "end"]:
        """Repair a refused kernel unless it is hopeless."""
        history = [Candidate.from_json(item) for item in state["history"]]
        if self.exhausted is not None or not history:
            return "end"
        last = history[-1]
        if last.is_correct or not self.writer.can_repair or last.attempt >= self.max_repairs:
            return "end"
        if len(history) > 2:
            prints = [feedback_on(candidate).fingerprint for candidate in history[-3:]]
            if len(set(prints)) == 1:
                return "end"  # the same mistake three times
        return "repair"

    # -- bookkeeping --------------------------------------------------------------------------

    def _record(self, candidate: Candidate) -> None:
        before = best_of(self.candidates)
        self.candidates.append(candidate)
        self.keep(candidate)
        self.writer.tell(candidate)
        evaluation = candidate.evaluation
        latency = candidate.latency_ns
        if evaluation is None or latency is None:
            feedback = feedback_on(candidate)
            stage: EventStage = "extract" if evaluation is None else _event_stage(evaluation.stage)
            self.emit(
                CandidateRejected(
                    candidate=candidate.number,
                    stage=stage,
                    error=f"{feedback.error_class}: {feedback.text}",
                )
            )
            return
        speedup = self.speedup(latency)
        self.emit(
            CandidateVerified(
                candidate=candidate.number,
                latency_ns=latency,
                speedup=speedup,
                bound_fraction=evaluation.bound_fraction,
            )
        )
        best = best_of(self.candidates)
        if best is not None and (before is None or best.number != before.number):
            self.emit(
                BestChanged(candidate=best.number, latency_ns=best.latency_ns or 0, speedup=speedup)
            )

    def speedup(self, latency_ns: float) -> float | None:
        """Baseline over candidate, or None without a baseline."""
        return None if self.baseline_ns is None else self.baseline_ns / latency_ns


_EVENT_STAGES: Mapping[Stage, EventStage] = {
    Stage.STATIC: "static",
    Stage.TRACE: "trace",
    Stage.TINY: "tiny",
    Stage.MAIN: "main",
    Stage.TIME: "time",
    Stage.DONE: "time",
}


def _event_stage(stage: Stage) -> EventStage:
    return _EVENT_STAGES[stage]
