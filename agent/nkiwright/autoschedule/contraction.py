"""Family `matmul`: products of two matrices followed by element functions.

The contraction axis K lies on the partitions of both operands; the left operand is stationary, the
right one moves, the result's rows come out on PSUM partitions.  An operand that arrives with its
rows first is transposed on the way in.  The result is computed in blocks; the plan says which
operand stays while the other passes by.  All of K is resident for a block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import cast

from nkisim.machine.spec import Machine
from nkiwright.autoschedule.contraction_kernel import Factor, MatmulKernel, Product
from nkiwright.autoschedule.grammar import Knob, Rendered, queues_of
from nkiwright.autoschedule.graph import ELEMENTWISE, Node, Op, refuse
from nkiwright.autoschedule.plan import Eviction, MatmulPlan, Plan, Queue, Value
from nkiwright.autoschedule.problem import NotCovered
from nkiwright.autoschedule.region import Region, Selector, layouts_of
from nkiwright.autoschedule.symbols import Traces

_BLOCKS = (128, 256, 512, 1024, 2048, 4096, 8192)
_FLOATS = ("float32", "bfloat16", "float16")


def products_of(traces: Traces) -> tuple[Product, ...]:
    """Return the products of a graph that this family covers.

    Raises:
        NotCovered: With the operation and its line.
    """
    graph = traces.main
    found = [n for n in graph if n.op is Op.MATMUL]
    if not found:
        raise NotCovered("a function without a matrix product")
    products = []
    for node in found:
        left = _factor(traces, node, 0)
        right = _factor(traces, node, 1)
        if {left.dtype, right.dtype} not in ({"float32"}, {"bfloat16"}, {"float16"}):
            raise refuse(node, f"of {left.dtype} and {right.dtype}")
        products.append(Product(node.number, left, right))
    shapes = {graph[p.node].shape for p in products}
    depths = {graph[graph[p.node].args[0]].shape[1] for p in products}
    if len(shapes) > 1 or len(depths) > 1:
        raise refuse(found[-1], "of another size than the first")
    inside = {a for p in products for a in _below(traces, p.node)}
    numbers = {p.node for p in products}
    for node in graph:
        if node.number in inside or node.number in numbers:
            continue
        allowed = ELEMENTWISE - {Op.WHERE} | {Op.INPUT, Op.SCALAR}
        if node.op not in allowed:
            raise refuse(node, "beside a matrix product")
    for number in graph.outputs:
        if graph[number].shape not in shapes or number in inside:
            raise refuse(graph[number], "as a second kind of result")
    return tuple(products)


def _below(traces: Traces, number: int) -> set[int]:
    """Return the operands of a product, as long as they are only reorderings of inputs."""
    found: set[int] = set()
    for argument in traces.main[number].args:
        node = traces.main[argument]
        while node.op is Op.PERMUTE:
            found.add(node.number)
            node = traces.main[node.args[0]]
        found.add(node.number)
    return found


def _factor(traces: Traces, product: Node, side: int) -> Factor:
    graph = traces.main
    node = graph[product.args[side]]
    is_permuted = node.op is Op.PERMUTE
    if is_permuted:
        node = graph[node.args[0]]
    if node.op is not Op.INPUT:
        raise refuse(product, f"of a computed operand ({node.op})")
    dtype = next(a.dtype for a in traces.problem.inputs if a.name == node.name)
    if dtype not in _FLOATS:
        raise refuse(product, f"of dtype {dtype}")
    return Factor(product.args[side], node.name, dtype, is_permuted == (side == 0))


class MatmulFamily:
    """Plans and kernels for matrix products with an epilogue."""

    def __init__(self, traces: Traces, machine: Machine) -> None:
        self._traces = traces
        self._machine = machine
        self._products = products_of(traces)
        graph = traces.main
        self._numbers = frozenset(p.node for p in self._products)
        self._layouts = layouts_of(graph, leaves=self._numbers)
        self._leaves = self._numbers | {n.number for n in graph if n.op is Op.INPUT}
        self._is_fp32 = any(a.dtype == "float32" for a in traces.problem.outputs)
        self._options = dict(self._region({}).options)
        for name, options in list(self._options.items()):
            for option in options:
                self._options.update(self._region({name: option}).options)
        self.knobs: tuple[Knob, ...] = tuple(self._make_knobs())

    def _make_knobs(self) -> list[Knob]:
        m, n = self._traces.main[self._products[0].node].shape
        limits = self._machine.limits
        bank = limits.psum_bank_bytes // 4
        needs_transposition = any(
            not f.is_k_major for p in self._products for f in (p.left, p.right)
        )
        has_epilogue = set(self._traces.main.outputs) - self._numbers
        step = limits.partitions
        return [
            Knob("block_m", tuple(b for b in _BLOCKS if b < m + step and b >= step)),
            Knob("block_n", tuple(b for b in _BLOCKS if b < max(n + bank, 2 * bank) and b >= bank)),
            Knob("tile_n", tuple(t for t in (256, 512) if t <= min(bank, limits.moving_free_max))),
            Knob("banks", (1, 2, 4)),
            Knob("order", ("mn", "nm")),
            Knob("k_order", ("inner", "outer")),
            Knob("load_k", (1, 2, 4, 8, 16)),
            Knob("prefetch", (0, 1)),
            Knob("transposition", ("dma", "pe") if needs_transposition else ("dma",)),
            Knob("eviction", ("vector",) if has_epilogue else ("vector", "scalar", "alternate")),
            Knob("load_queue", queues_of(self._machine, is_many=True)),
            Knob("store_queue", queues_of(self._machine)),
            *(Knob(f"engines.{name}", values) for name, values in self._options.items()),
        ]

    def build(self, values: Mapping[str, Value]) -> Plan:
        """Return the plan with these knob values, in canonical form."""
        tile_n = int(values["tile_n"])
        bank = self._machine.limits.psum_bank_bytes // 4
        engines = {
            name.removeprefix("engines."): str(value)
            for name, value in values.items()
            if name.startswith("engines.")
        }
        reached = self._region(engines).options
        return MatmulPlan(
            block_m=int(values["block_m"]),
            block_n=int(values["block_n"]),
            tile_n=tile_n,
            banks=int(values["banks"]) if tile_n == bank else 1,
            order="mn" if values["order"] == "mn" else "nm",
            k_order="outer" if values["k_order"] == "outer" else "inner",
            load_k=int(values["load_k"]),
            prefetch=int(values["prefetch"]),
            transposition="pe" if values["transposition"] == "pe" else "dma",
            eviction=cast("Eviction", values["eviction"]),
            load_queue=cast("Queue", values["load_queue"]),
            store_queue=cast("Queue", values["store_queue"]),
            engines=tuple(sorted((k, v) for k, v in engines.items() if k in reached)),
        )

    def values(self, plan: Plan) -> dict[str, Value]:
        """Return the knob values of a plan."""
        assert isinstance(plan, MatmulPlan)
        values: dict[str, Value] = {
            f.name: getattr(plan, f.name)
            for f in dataclasses.fields(plan)
            if f.name not in ("engines", "family")
        }
        chosen = dict(plan.engines)
        for name, options in self._options.items():
            values[f"engines.{name}"] = chosen.get(name, options[0])
        return values

    def _region(self, engines: Mapping[str, str]) -> Region:
        selector = Selector(
            self._traces.main,
            self._layouts,
            engines.get,
            frozenset(self._leaves),
            in_psum=self._numbers,
            is_fp32=self._is_fp32,
            number_bias=self._machine.generation >= 3,
        )
        return selector.select(self._traces.main.outputs)

    def render(self, plan: Plan) -> Rendered:
        """Return the kernel that a plan stands for."""
        assert isinstance(plan, MatmulPlan)
        region = self._region(dict(plan.engines))
        return MatmulKernel(
            plan, self._products, region, self._layouts, self._traces, self._machine
        ).render()
