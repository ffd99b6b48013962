"""Family `attention`: softmax attention of one head, optionally causal.

Queries go 128 at a time; all scores of a query tile are kept in SBUF, so that maximum, exponential
and sum are one instruction each.  The probabilities are transposed on the tensor engine, because
the second product contracts over keys, and normalised after it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import cast

from nkisim.dtypes import DTYPES
from nkisim.machine.spec import Machine
from nkiwright.autoschedule.attention_kernel import AttentionKernel, Head
from nkiwright.autoschedule.grammar import Knob, Rendered, queues_of
from nkiwright.autoschedule.graph import Graph, Node, Op, refuse
from nkiwright.autoschedule.plan import AttentionPlan, Eviction, Plan, Queue, Value
from nkiwright.autoschedule.problem import NotCovered
from nkiwright.autoschedule.symbols import Traces

_FLOATS = ("float32", "bfloat16", "float16")


def head_of(traces: Traces) -> Head:
    """Recognise softmax attention.

    Raises:
        NotCovered: The graph is something else.
    """
    graph = traces.main
    if len(graph.outputs) != 1:
        raise NotCovered("attention with more than one result")
    out = graph[graph.outputs[0]]
    if out.op is Op.MATMUL:
        weights, value = graph[out.args[0]], graph[out.args[1]]
        inverse, exponential = _two(graph, weights, Op.MULTIPLY, Op.RECIPROCAL)
    else:
        inverse, product = _two(graph, out, Op.MULTIPLY, Op.RECIPROCAL)
        if product.op is not Op.MATMUL:
            raise refuse(out, "is not softmax attention")
        exponential, value = graph[product.args[0]], graph[product.args[1]]
    total = graph[inverse.args[0]]
    if total.op is not Op.SUM or total.args != (exponential.number,):
        raise refuse(total, "is not the sum of a softmax")
    if exponential.op is not Op.EXP:
        raise refuse(exponential, "is not the exponential of a softmax")
    shifted = graph[exponential.args[0]]
    if shifted.op is not Op.SUBTRACT:
        raise refuse(shifted, "is not a softmax stabilised by its maximum")
    scores, largest = graph[shifted.args[0]], graph[shifted.args[1]]
    if largest.op is not Op.MAX or largest.args != (scores.number,):
        raise refuse(largest, "is not the maximum of a softmax")
    scale: int | None = None
    triangle: int | None = None
    while scores.op is not Op.MATMUL:
        if scores.op is Op.SELECT_TRIANGLE and triangle is None:
            if scores.number_attr("fill") > -1e9:
                raise refuse(scores, "with a mask that is not minus infinity")
            triangle = scores.number
            scores = graph[scores.args[0]]
        elif scores.op is Op.MULTIPLY and scale is None:
            factor, scores = _two(graph, scores, Op.MULTIPLY, Op.SCALAR)
            if factor.value <= 0:
                raise refuse(factor, "as a negative factor on attention scores")
            scale = factor.number
        else:
            raise refuse(scores, "on attention scores")
    query, keys = graph[scores.args[0]], graph[scores.args[1]]
    if keys.op is not Op.PERMUTE:
        raise refuse(scores, "with keys that are not transposed in the reference")
    key = graph[keys.args[0]]
    for node in (query, key, value):
        if node.op is not Op.INPUT:
            raise refuse(node, "as an operand of attention")
    dtypes = {a.name: a.dtype for a in traces.problem.inputs}
    kinds = {dtypes[n.name] for n in (query, key, value)}
    if len(kinds) > 1 or not kinds <= set(_FLOATS):
        raise NotCovered(f"attention on {', '.join(sorted(kinds))}")
    return Head(query.name, key.name, value.name, scale, triangle, scores.number, kinds.pop())


def _two(graph: Graph, node: Node, op: Op, first: Op) -> tuple[Node, Node]:
    """Return the arguments of a commutative node, the one of kind `first` first."""
    if node.op is op and len(node.args) == 2:
        a, b = graph[node.args[0]], graph[node.args[1]]
        if a.op is first:
            return a, b
        if b.op is first:
            return b, a
    raise refuse(node, f"where a {op} with a {first} would be softmax attention")


class AttentionFamily:
    """Plans and kernels for one attention head."""

    def __init__(self, traces: Traces, machine: Machine) -> None:
        self._traces = traces
        self._machine = machine
        self._head = head_of(traces)
        limits = machine.limits
        inputs = {n.name: n for n in traces.main if n.op is Op.INPUT}
        self._nodes = {role: inputs[name] for role, name in (
            ("q", self._head.query), ("k", self._head.key), ("v", self._head.value),
        )}  # fmt: skip
        for graph in traces.known:
            depth = graph[self._nodes["q"].number].shape[1]
            width = graph[self._nodes["v"].number].shape[1]
            if depth > limits.partitions:
                raise NotCovered(f"heads of size {depth}, above {limits.partitions}")
            if width > limits.psum_bank_bytes // 4:
                raise NotCovered(f"values of size {width}")
        per_bank = limits.psum_bank_bytes // (limits.partitions * DTYPES[self._head.dtype].itemsize)
        is_causal = self._head.triangle is not None
        self.knobs: tuple[Knob, ...] = (
            Knob("key_tile", (128, 256, 512)),
            Knob("transposition", ("dma", "pe")),
            Knob("eviction", ("vector", "scalar", "alternate")),
            Knob("transpose_group", tuple(g for g in (1, 2, 4, 8) if g <= per_bank)),
            Knob("transpose_eviction", ("vector", "scalar", "alternate")),
            Knob("skip_masked", (True, False) if is_causal else (False,)),
            Knob("scale_on", ("scores", "exponent") if self._head.scale else ("scores",)),
            Knob("mask_all", (False, True) if is_causal else (False,)),
            Knob("stages", (1, 2, 3)),
            Knob("hoist_queries", (False, True)),
            Knob("load_queue", queues_of(machine, is_many=True)),
            Knob("store_queue", queues_of(machine)),
        )

    def build(self, values: Mapping[str, Value]) -> Plan:
        """Return the plan with these knob values."""
        return AttentionPlan(
            key_tile=int(values["key_tile"]),
            transposition="pe" if values["transposition"] == "pe" else "dma",
            eviction=cast("Eviction", values["eviction"]),
            transpose_group=int(values["transpose_group"]),
            transpose_eviction=cast("Eviction", values["transpose_eviction"]),
            skip_masked=bool(values["skip_masked"]),
            scale_on="exponent" if values["scale_on"] == "exponent" else "scores",
            mask_all=bool(values["mask_all"]),
            stages=int(values["stages"]),
            hoist_queries=bool(values["hoist_queries"]),
            load_queue=cast("Queue", values["load_queue"]),
            store_queue=cast("Queue", values["store_queue"]),
        )

    def values(self, plan: Plan) -> dict[str, Value]:
        """Return the knob values of a plan."""
        return {
            f.name: getattr(plan, f.name) for f in dataclasses.fields(plan) if f.name != "family"
        }

    def render(self, plan: Plan) -> Rendered:
        """Return the kernel that a plan stands for."""
        assert isinstance(plan, AttentionPlan)
        return AttentionKernel(plan, self._head, self._nodes, self._traces, self._machine).render()
