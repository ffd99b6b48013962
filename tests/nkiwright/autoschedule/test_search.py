"""The sampler is reproducible, never repeats itself, and gets better by what it is told."""

from __future__ import annotations

import pytest
from tests.nkiwright.autoschedule.functions import PROBLEMS, SMALL, problem

from nkiwright.autoschedule import AutoscheduleSampler, NotCovered, RowPlan


def cost(plan):
    """A made-up latency that rewards packing, a separate store queue and four buffers."""
    return 1000.0 / plan.pack + 100.0 * (plan.store_queue != "scalar") + 50.0 / plan.buffers


def search(machine, seed, rounds=12, size=4):
    sampler = AutoscheduleSampler(PROBLEMS["rms_norm"], machine, seed=seed)
    history = []
    for _ in range(rounds):
        for proposal in sampler.propose(size):
            sampler.tell(proposal, cost(proposal.plan), binding="dma")
            history.append(proposal)
    return sampler, history


def test_equal_seeds_propose_equal_proposals(machine):
    assert search(machine, 7)[1] == search(machine, 7)[1]
    assert search(machine, 7)[1] != search(machine, 8)[1]


def test_no_source_is_proposed_twice(machine):
    _, history = search(machine, 1)
    bodies = [c.source.partition('"""\n')[2] for c in history]
    assert len(set(bodies)) == len(history) == 48
    assert [c.number for c in history] == list(range(48))


def test_later_proposals_are_better_than_first_draws(machine):
    sampler, history = search(machine, 2)
    early = sorted(cost(c.plan) for c in history[:16])
    late = sorted(cost(c.plan) for c in history[32:])
    assert late[len(late) // 2] < early[len(early) // 2]
    assert sampler.best is not None
    assert cost(sampler.best.plan) == min(cost(c.plan) for c in history)
    assert any(c.parent is not None for c in history[16:])


def test_values_that_always_fail_are_avoided(machine):
    sampler = AutoscheduleSampler(PROBLEMS["softmax"], machine, seed=0)
    for _ in range(8):
        for proposal in sampler.propose(4):
            plan = proposal.plan
            assert isinstance(plan, RowPlan)
            if plan.store_queue == "gpsimd":
                sampler.tell(proposal, None, "refused")
            else:
                sampler.tell(proposal, 1.0)
    later = [c.plan.store_queue for c in sampler.propose(12)]
    assert "gpsimd" not in later


def test_exhausted_spaces_give_fewer_proposals(machine):
    sampler = AutoscheduleSampler(SMALL, machine, seed=0)
    found = len(sampler.propose(2000))
    assert 10 < found < 2000
    assert sampler.propose(1) == []


def test_uncovered_functions_are_refused_at_once(machine):
    with pytest.raises(NotCovered):
        AutoscheduleSampler(problem(lambda x: x.sum(0), "x:n,d", "y:d"), machine)
