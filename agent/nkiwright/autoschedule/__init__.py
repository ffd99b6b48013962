"""Writes kernels without a model: numpy reference → op graph → plan → readable NKI source."""

from nkiwright.autoschedule.grammar import Knob, Rendered, Space
from nkiwright.autoschedule.graph import Graph, Node, Op
from nkiwright.autoschedule.plan import (
    AttentionPlan,
    MatmulPlan,
    Plan,
    RowPlan,
    TransposePlan,
    plan_from_json,
    plan_to_json,
)
from nkiwright.autoschedule.problem import Argument, NotCovered, Problem
from nkiwright.autoschedule.render import render, space_of
from nkiwright.autoschedule.search import AutoscheduleSampler, Proposal
from nkiwright.autoschedule.simplify import simplify
from nkiwright.autoschedule.tracer import trace

__all__ = [
    "Argument",
    "AttentionPlan",
    "AutoscheduleSampler",
    "Graph",
    "Knob",
    "MatmulPlan",
    "Node",
    "NotCovered",
    "Op",
    "Plan",
    "Problem",
    "Proposal",
    "Rendered",
    "RowPlan",
    "Space",
    "TransposePlan",
    "plan_from_json",
    "plan_to_json",
    "render",
    "simplify",
    "space_of",
    "trace",
]
