"""The autoscheduler as a writer: samples legal plans, then mutates the best by their profiles."""

from __future__ import annotations

import json
from collections.abc import Sequence

from nkisim.machine.load import load_machine
from nkiwright.autoschedule.plan import plan_to_json
from nkiwright.autoschedule.problem import Argument, NotCovered, Problem
from nkiwright.autoschedule.search import AutoscheduleSampler, Proposal
from nkiwright.candidate import Candidate, Draft
from nkiwright.errors import NotCoveredError
from nkiwright.tasks import Task
from nkiwright.writers.base import WriterStopped

NAME = "autoschedule"


def problem_of(task: Task) -> Problem:
    """Return the scheduling problem of a task; names nothing that only one task has."""
    return Problem(
        name=task.name,
        reference=task.reference_function(),
        inputs=tuple(Argument(name=s.name, shape=s.shape, dtype=s.dtype) for s in task.inputs),
        outputs=tuple(Argument(name=s.name, shape=s.shape, dtype=s.dtype) for s in task.outputs),
        scalars=dict(task.scalars),
        shapes=(task.main, task.tiny, *task.held_out),
    )


class AutoscheduleWriter:
    """Writes kernels without any model.

    Args:
        task: The task.
        machine: Machine whose limits the plans keep.
        seed: Seed of the sampling.
    """

    can_repair = False

    def __init__(self, task: Task, *, machine: str, seed: int) -> None:
        try:
            self._sampler = AutoscheduleSampler(problem_of(task), load_machine(machine), seed=seed)
        except NotCovered as error:
            raise NotCoveredError(
                str(error),
                hint=error.hint or "name a model with --model, for example openai:MODEL",
            ) from error
        self._open: dict[int, Proposal] = {}

    @property
    def name(self) -> str:
        """`autoschedule`."""
        return NAME

    async def draft(self, index: int) -> Draft:
        """Return the next plan, rendered."""
        proposals = self._sampler.propose(1)
        if not proposals:
            raise WriterStopped("every legal plan has been tried")
        proposal = proposals[0]
        self._open[index] = proposal
        return Draft(
            source=proposal.source,
            origin="sample" if proposal.parent is None else "mutation",
            plan=json.loads(plan_to_json(proposal.plan)),
        )

    async def repair(self, lineage: Sequence[Candidate]) -> Draft:
        """Refuse: plans are legal by construction, a failure is a bug of the scheduler."""
        raise WriterStopped("autoschedule does not repair")

    def tell(self, candidate: Candidate) -> None:
        """Guide later plans by what this one achieved."""
        proposal = self._open.pop(candidate.lineage, None)
        if proposal is None:
            return
        evaluation = candidate.evaluation
        error = None if candidate.is_correct or evaluation is None else evaluation.message
        binding = None if evaluation is None else evaluation.binding
        self._sampler.tell(proposal, candidate.latency_ns, error, binding=binding)
