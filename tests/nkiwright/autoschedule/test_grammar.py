"""Every plan of a space is legal, renders, and can be walked from."""

from __future__ import annotations

import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nkiwright.autoschedule.functions import PROBLEMS, SMALL, problem, softmax

from nkisim.machine.load import load_machine
from nkiwright.autoschedule import RowPlan, space_of

seeds = st.integers(0, 2**32)
names = st.sampled_from(sorted(PROBLEMS))


@cache
def space(name):
    return space_of(PROBLEMS[name], load_machine("trn2"))


@settings(max_examples=60, deadline=None)
@given(name=names, seed=seeds)
def test_sampled_plans_render_to_python_and_fit(name, seed):
    plans = space(name)
    plan = plans.sample(random.Random(seed))
    rendered = plans.render(plan)
    compile(rendered.source, f"{name}.py", "exec")
    limits = plans.machine.limits
    assert max(rendered.sbuf_bytes) <= limits.sbuf_usable_bytes
    assert rendered.psum_banks <= limits.psum_banks


@settings(max_examples=40, deadline=None)
@given(name=names, seed=seeds)
def test_knob_values_determine_the_plan(name, seed):
    plans = space(name)
    plan = plans.sample(random.Random(seed))
    assert plans.family.build(plans.family.values(plan)) == plan


@settings(max_examples=40, deadline=None)
@given(name=names, seed=seeds)
def test_mutation_gives_another_legal_plan(name, seed):
    plans, rng = space(name), random.Random(seed)
    plan = plans.sample(rng)
    other = plans.mutate(plan, rng)
    assert other != plan
    assert plans.is_legal(other)


@pytest.mark.parametrize("name", ["softmax", "transpose", "matmul"])
def test_neighbours_are_legal_distinct_and_mutual(name):
    plans = space(name)
    plan = plans.sample(random.Random(3))
    around = list(plans.neighbours(plan))
    assert around
    assert len({plan, *around}) == len(around) + 1
    assert all(plans.is_legal(p) for p in around)


def test_enumeration_yields_each_legal_plan_once():
    plans = space_of(SMALL, load_machine("trn2"))
    everything = list(plans)
    assert len(everything) == len(set(everything))
    assert plans.sample(random.Random(0)) in everything


def test_equal_seeds_draw_equal_plans():
    plans = space("layer_norm")
    first, second = (
        [plans.sample(rng) for _ in range(10)] for rng in (random.Random(5), random.Random(5))
    )
    assert first == second


def test_plans_that_do_not_fit_sbuf_are_not_legal():
    wide = problem(softmax, "x:n,d", "y:n,d", sizes=({"n": 4096, "d": 26000},))
    plans = space_of(wide, load_machine("trn2"))
    rng = random.Random(0)
    for _ in range(30):
        plan = plans.sample(rng)
        assert isinstance(plan, RowPlan)
        assert plan.pack == 1


def test_held_out_sizes_count_for_capacity():
    sizes = ({"n": 4096, "d": 512}, {"n": 4096, "d": 26000})
    plans = space_of(problem(softmax, "x:n,d", "y:n,d", sizes=sizes), load_machine("trn2"))
    rng = random.Random(0)
    for _ in range(30):
        plan = plans.sample(rng)
        assert isinstance(plan, RowPlan)
        assert plan.pack == 1
