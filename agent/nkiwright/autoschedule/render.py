"""From a problem to its space of kernels: trace, choose the family, render plans.

Families are tried in order; the first that covers the graph has it.  If none does, the refusal of
the family that came nearest is what the user reads.
"""

from __future__ import annotations

from collections.abc import Callable

from nkisim.machine.spec import Machine
from nkiwright.autoschedule.attention import AttentionFamily
from nkiwright.autoschedule.contraction import MatmulFamily
from nkiwright.autoschedule.grammar import Family, Rendered, Space
from nkiwright.autoschedule.graph import Graph, Op
from nkiwright.autoschedule.layout import TransposeFamily
from nkiwright.autoschedule.plan import Plan
from nkiwright.autoschedule.problem import NotCovered, Problem
from nkiwright.autoschedule.rows import RowFamily
from nkiwright.autoschedule.symbols import Traces, traces

FAMILIES: dict[str, Callable[[Traces, Machine], Family]] = {
    "transpose": TransposeFamily,
    "matmul": MatmulFamily,
    "attention": AttentionFamily,
    "rows": RowFamily,
}


def space_of(problem: Problem, machine: Machine) -> Space:
    """Return the legal plans for a problem on a machine.

    Raises:
        NotCovered: No family covers the reference; the message names the operation and its line.
    """
    traced = traces(problem)
    refusals: dict[str, NotCovered] = {}
    for name, family in FAMILIES.items():
        try:
            return Space(family(traced, machine), machine)
        except NotCovered as refusal:
            refusals[name] = refusal
    raise refusals[_nearest(traced.main)]


def _nearest(graph: Graph) -> str:
    """Return the family that a graph looks most like."""
    ops = {node.op for node in graph}
    if Op.MATMUL in ops:
        return "attention" if {Op.EXP, Op.MAX} <= ops else "matmul"
    if graph[graph.outputs[0]].op is Op.PERMUTE:
        return "transpose"
    return "rows"


def render(problem: Problem, plan: Plan, machine: Machine) -> Rendered:
    """Return the kernel that a plan stands for.

    Raises:
        NotCovered: No family covers the reference.
    """
    return space_of(problem, machine).render(plan)
