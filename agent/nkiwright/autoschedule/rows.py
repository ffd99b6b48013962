"""Family `rows`: element functions and last-axis reductions on rows.

Covers chains of element functions with row and column vectors, softmax, norms, running sums and
half-row rotations: everything where each row of the result depends on that row of the inputs.  Rows
lie on partitions; several consecutive rows may share a partition, which makes copies long and
instructions few.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import cast

from nkisim.dtypes import DTYPES
from nkisim.machine.spec import Machine
from nkiwright.autoschedule.grammar import Knob, Rendered, queues_of
from nkiwright.autoschedule.graph import ELEMENTWISE, REDUCTIONS, Graph, Op, refuse
from nkiwright.autoschedule.plan import Plan, Queue, RowPlan, Value
from nkiwright.autoschedule.problem import NotCovered
from nkiwright.autoschedule.region import Layout, Region, Selector, expand, layouts_of
from nkiwright.autoschedule.rows_kernel import RowKernel
from nkiwright.autoschedule.symbols import Traces

_PACKS = (1, 2, 4, 8, 16)
_CHUNKS = (512, 1024, 2048, 4096, 8192)
_FLOATS = ("float32", "bfloat16", "float16")
_ROW_OPS = ELEMENTWISE | REDUCTIONS | {
    Op.INPUT, Op.SCALAR, Op.RESHAPE, Op.SLICE, Op.CONCAT, Op.CUMSUM, Op.SELECT_TRIANGLE,
}  # fmt: skip


class RowFamily:
    """Plans and kernels for one function on rows."""

    def __init__(self, traces: Traces, machine: Machine) -> None:
        self._machine = machine
        self._problem = traces.problem
        check(traces)
        self._traces: dict[str, Traces] = {}
        for statistics in ("two_pass", "bn_stats"):
            graphs = tuple(expand(graph, statistics) for graph in traces.graphs)
            self._traces[statistics] = Traces(traces.problem, traces.dims, graphs)
        self._has_statistics = self._traces["two_pass"].main != self._traces["bn_stats"].main
        self._has_reductions = any(n.op in REDUCTIONS for n in traces.main)
        self._is_flat = _is_flat(traces)
        self._is_fp32 = any(a.dtype == "float32" for a in self._problem.outputs)
        self._is_16bit = all(
            DTYPES[a.dtype].itemsize == 2 for a in (*self._problem.inputs, *self._problem.outputs)
        )
        self._options = self._choice_points()
        self.knobs: tuple[Knob, ...] = tuple(self._make_knobs(traces))

    def _make_knobs(self, traces: Traces) -> list[Knob]:
        graph = traces.main
        shape = graph[graph.outputs[0]].shape
        rows, width = math.prod(shape[:-1]), shape[-1]
        packs = [p for p in _PACKS if p == 1 or self._machine.limits.partitions * p <= rows]
        chunks = [0]
        if all(n.op in ELEMENTWISE | {Op.INPUT, Op.SCALAR, Op.CUMSUM} for n in graph):
            chunks += [c for c in _CHUNKS if c < width]
        layouts: list[Value] = ["rows"]
        if self._is_flat:
            # Whole rows are one of many widths here; the flat layout has them all.
            layouts = ["flat"] if len(shape) == 1 else ["flat", "rows"]
            chunks += [c for c in _CHUNKS if c not in chunks]
        knobs = [
            Knob("layout", tuple(layouts)),
            Knob("pack", tuple(packs)),
            Knob("chunk", tuple(sorted(chunks))),
            Knob("buffers", (1, 2, 3, 4)),
            Knob("prefetch", (0, 1, 2)),
            Knob("skewed", (False, True) if self._has_reductions else (False,)),
            Knob("load_queue", queues_of(self._machine, is_many=len(self._problem.inputs) > 1)),
            Knob("store_queue", queues_of(self._machine)),
            Knob("statistics", ("two_pass", "bn_stats") if self._has_statistics else ("two_pass",)),
            Knob("in_place", (False, True)),
            Knob("rounding", ("once", "each") if self._is_16bit else ("once",)),
        ]
        knobs += [Knob(f"engines.{name}", values) for name, values in self._options.items()]
        return knobs

    def build(self, values: Mapping[str, Value]) -> Plan:
        """Return the plan with these knob values, in canonical form."""
        chunk, pack = int(values["chunk"]), int(values["pack"])
        if values["layout"] == "flat":
            pack = 1
            chunk = chunk or 2048
        elif chunk:
            pack = 1
        buffers = int(values["buffers"])
        prefetch = (
            min(int(values["prefetch"]), buffers - 1) if buffers != 2 else int(values["prefetch"])
        )
        # A ring must hold every tile that is under way; one allocated in the loop grows by itself.
        skewed = bool(values["skewed"]) and (buffers == 2 or prefetch + 1 < buffers)
        plan = RowPlan(
            layout="flat" if values["layout"] == "flat" else "rows",
            pack=pack,
            chunk=chunk,
            buffers=buffers,
            prefetch=prefetch,
            skewed=skewed,
            load_queue=cast("Queue", values["load_queue"]),
            store_queue=cast("Queue", values["store_queue"]),
            statistics="bn_stats" if values["statistics"] == "bn_stats" else "two_pass",
            in_place=bool(values["in_place"]),
            rounding="each" if values["rounding"] == "each" else "once",
            engines=tuple(
                sorted(
                    (name.removeprefix("engines."), str(value))
                    for name, value in values.items()
                    if name.startswith("engines.")
                )
            ),
        )
        return self._canonical(plan)

    def _canonical(self, plan: RowPlan) -> RowPlan:
        """Drop choices at points that this plan never reaches."""
        reached = self._select(plan)[0].options
        engines = tuple((name, value) for name, value in plan.engines if name in reached)
        return dataclasses.replace(plan, engines=engines)

    def values(self, plan: Plan) -> dict[str, Value]:
        """Return the knob values of a plan."""
        assert isinstance(plan, RowPlan)
        values: dict[str, Value] = {
            knob.name: getattr(plan, knob.name)
            for knob in self.knobs
            if not knob.name.startswith("engines.")
        }
        chosen = dict(plan.engines)
        for name, options in self._options.items():
            values[f"engines.{name}"] = chosen.get(name, options[0])
        return values

    def _choice_points(self) -> dict[str, tuple[str, ...]]:
        """Collect every choice point that some plan reaches."""
        found: dict[str, tuple[str, ...]] = {}
        for traces in self._traces.values():
            frontier: list[dict[str, str]] = [{}]
            seen: set[tuple[tuple[str, str], ...]] = set()
            while frontier and len(seen) < 200:
                chosen = frontier.pop()
                key = tuple(sorted(chosen.items()))
                if key in seen:
                    continue
                seen.add(key)
                region = self._region(traces, chosen)
                for name, options in region.options.items():
                    found.setdefault(name, options)
                    if len(options) > len(found[name]):
                        found[name] = options
                    frontier += [{**chosen, name: o} for o in options if chosen.get(name) != o]
        return found

    def _region(self, traces: Traces, chosen: Mapping[str, str]) -> Region:
        graph = traces.main
        leaves = _leaves(graph)
        selector = Selector(
            graph,
            layouts_of(graph),
            chosen.get,
            leaves,
            is_fp32=self._is_fp32,
            number_bias=self._machine.generation >= 3,
        )
        return selector.select(graph.outputs)

    def _select(self, plan: RowPlan) -> tuple[Region, Traces]:
        traces = self._traces[plan.statistics]
        return self._region(traces, dict(plan.engines)), traces

    def render(self, plan: Plan) -> Rendered:
        """Return the kernel that a plan stands for."""
        assert isinstance(plan, RowPlan)
        region, traces = self._select(plan)
        return RowKernel(plan, region, traces, self._machine).render()


def check(traces: Traces) -> None:
    """Refuse graphs that this family does not cover.

    Raises:
        NotCovered: With the operation and its line.
    """
    graph = traces.main
    for node in graph:
        if node.op not in _ROW_OPS:
            raise refuse(node, "in a function on rows")
        if node.op is Op.SLICE:
            bounds = node.attr("bounds")
            assert isinstance(bounds, tuple)
            for size, bound in zip(graph[node.args[0]].shape[:-1], bounds, strict=False):
                assert isinstance(bound, tuple)
                if bound != (0, size, 1):
                    raise refuse(node, "along an axis that is not the last")
    for argument in (*traces.problem.inputs, *traces.problem.outputs):
        if argument.dtype not in _FLOATS:
            raise NotCovered(f"{argument.name!r} of dtype {argument.dtype}")
    layouts = layouts_of(graph)
    rows = {
        graph[n].shape[:-1]
        for n, layout in layouts.items()
        if layout is Layout.TILE or (layout is Layout.ROW and graph[n].op in REDUCTIONS)
    }
    if len(rows) > 1:
        raise NotCovered(f"tensors of different row shapes {sorted(rows)} in one function")
    if not rows:
        raise NotCovered("a function without a tensor of rows")
    for number in graph.outputs:
        if layouts[number] in (Layout.COLUMN, Layout.NUMBER):
            raise refuse(graph[number], "as a result that all rows share")


def _is_flat(traces: Traces) -> bool:
    """Say whether shapes don't matter: element functions of tensors of one shape."""
    for graph in traces.graphs:
        shape = graph[graph.outputs[0]].shape
        for node in graph:
            if node.op is Op.SCALAR:
                continue
            if node.op not in ELEMENTWISE | {Op.INPUT} or node.shape != shape:
                return False
    return True


def _leaves(graph: Graph) -> frozenset[int]:
    """Return inputs, and reshapes of inputs, which are loaded as reshaped."""
    leaves = set()
    for node in graph:
        if node.op is Op.INPUT or (node.op is Op.RESHAPE and graph[node.args[0]].op is Op.INPUT):
            leaves.add(node.number)
    return frozenset(leaves)
