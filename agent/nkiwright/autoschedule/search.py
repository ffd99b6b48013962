"""Search among the plans of a space: draw some, keep the best, change them one decision at a time.

The sampler never evaluates anything: whoever owns it proposes its proposals to the judge and tells
it what came out.  Equal seeds and equal answers give equal proposals.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from nkisim.machine.load import load_machine
from nkisim.machine.spec import Machine
from nkiwright.autoschedule.grammar import Space
from nkiwright.autoschedule.plan import Plan, Value
from nkiwright.autoschedule.problem import Problem
from nkiwright.autoschedule.render import space_of

_FIRST_DRAWS = 16
"""Plans drawn before any is changed: enough to meet each value of the important knobs."""
_PARENTS = 4
_FRESH_SHARE = 0.2
_FAILURES = 3
"""A knob value that failed this often and never worked is not proposed again."""
_MISSES = 40
"""Draws in a row that may be repeats before the rest of the space is walked through in order."""

RELEVANT: Mapping[str, frozenset[str]] = {
    "dma": frozenset(
        {"layout", "pack", "chunk", "buffers", "load_queue", "store_queue", "load_k", "block_m",
         "block_n", "order", "transposition", "tile_rows", "tile_columns", "method", "rounding"}
    ),
    "tensor": frozenset({"tile_n", "banks", "block_m", "block_n", "order", "transposition",
                         "key_tile", "skip_masked", "load_k", "method"}),
    "vector": frozenset({"engines", "statistics", "eviction", "transpose_eviction", "rounding",
                         "banks", "pack", "chunk", "scale_on", "group", "transpose_group"}),
    "scalar": frozenset({"engines", "statistics", "eviction", "transpose_eviction", "banks",
                         "pack", "chunk", "scale_on", "group", "load_queue", "store_queue"}),
    "gpsimd": frozenset({"engines", "store_queue", "load_queue", "mask_all"}),
}  # fmt: skip
"""First word of a profile's binding resource -> knobs that may relieve it, as name prefixes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A kernel to evaluate."""

    number: int
    """Counts from 0 in the order of proposal."""
    plan: Plan
    source: str
    parent: int | None = None
    """Number of the proposal it was changed from, or None if drawn."""

    @property
    def is_mutation(self) -> bool:
        """Whether it is a change of an earlier proposal."""
        return self.parent is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    proposal: Proposal
    latency_ns: float
    binding: str | None


class AutoscheduleSampler:
    """Proposes kernels for one problem and learns from their latencies.

    Args:
        problem: What to compute.
        machine: Where it will run, or its name.
        seed: Equal seeds and equal answers give equal proposals.

    Raises:
        NotCovered: No family of kernels covers the problem's reference.
    """

    def __init__(self, problem: Problem, machine: Machine | str, *, seed: int = 0) -> None:
        self.problem = problem
        target = load_machine(machine) if isinstance(machine, str) else machine
        self.space: Space = space_of(problem, target)
        self._rng = random.Random(seed)
        self._seen_plans: set[Plan] = set()
        self._seen_sources: set[str] = set()
        self._best: list[_Outcome] = []
        self._failures: Counter[tuple[str, Value]] = Counter()
        self._successes: Counter[tuple[str, Value]] = Counter()
        self._count = 0
        self._all_plans = iter(self.space)

    @property
    def best(self) -> Proposal | None:
        """The fastest proposal told so far that worked."""
        return self._best[0].proposal if self._best else None

    def propose(self, count: int) -> list[Proposal]:
        """Return up to `count` new proposals; fewer only when the space is exhausted.

        Args:
            count: How many to return.
        """
        proposals: list[Proposal] = []
        misses = 0
        while len(proposals) < count:
            misses += 1
            parent = self._parent() if misses < _MISSES else None
            plan = self._draw(parent) if misses < 2 * _MISSES else next(self._all_plans, None)
            if plan is None and misses >= 2 * _MISSES:
                break
            if plan is None or plan in self._seen_plans:
                continue
            self._seen_plans.add(plan)
            source = self.space.render(plan).source
            body = source.partition('"""\n')[2]
            if body in self._seen_sources:
                continue
            self._seen_sources.add(body)
            misses = 0
            proposals.append(
                Proposal(
                    number=self._count,
                    plan=plan,
                    source=source,
                    parent=None if parent is None else parent.proposal.number,
                )
            )
            self._count += 1
        return proposals

    def tell(
        self,
        proposal: Proposal,
        latency_ns: float | None,
        error: str | None = None,
        *,
        binding: str | None = None,
    ) -> None:
        """Report what became of a proposal.

        Args:
            proposal: What was evaluated.
            latency_ns: Its emulated latency, or None if it was not accepted.
            error: Why it was not accepted, or None.
            binding: The profile's binding resource (`dma` or an engine), which guides changes.
        """
        values = self.space.family.values(proposal.plan)
        if latency_ns is None or error is not None:
            self._failures.update(values.items())
            return
        self._successes.update(values.items())
        outcome = _Outcome(proposal=proposal, latency_ns=latency_ns, binding=binding)
        self._best.append(outcome)
        self._best.sort(key=lambda o: (o.latency_ns, o.proposal.number))
        del self._best[32:]

    def _parent(self) -> _Outcome | None:
        if self._count < _FIRST_DRAWS or not self._best:
            return None
        if self._rng.random() < _FRESH_SHARE:
            return None
        parents = self._best[:_PARENTS]
        weights = [2.0**-i for i in range(len(parents))]
        return self._rng.choices(parents, weights)[0]

    def _draw(self, parent: _Outcome | None) -> Plan | None:
        if parent is None:
            plan = self.space.sample(self._rng)
        else:
            only = RELEVANT.get((parent.binding or "").partition(" ")[0])
            guided = only is not None and self._rng.random() < 0.6
            plan = self.space.mutate(parent.proposal.plan, self._rng, only=only if guided else None)
        return None if self._is_hopeless(plan) else plan

    def _is_hopeless(self, plan: Plan) -> bool:
        return any(
            self._failures[item] >= _FAILURES and not self._successes[item]
            for item in self.space.family.values(plan).items()
        )
