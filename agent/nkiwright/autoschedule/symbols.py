"""Sizes as names: what is common to the graphs of one function at several sets of sizes.

A kernel must be right at every shape, so nothing in it may be a number that happened to be a size.
The function is traced at each known set of sizes; what differs between the traces is expressed in
the names of the dimensions, and what cannot be is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from nkiwright.autoschedule.graph import Graph, Node, Op
from nkiwright.autoschedule.problem import NotCovered, Problem
from nkiwright.autoschedule.simplify import simplify
from nkiwright.autoschedule.tracer import trace

_POWERS = (-1.0, -0.5, 0.5, 1.0, -2.0, 2.0)
_SIZED_ATTRS = frozenset({"value", "bounds", "offset", "digest"})


@dataclass(frozen=True, slots=True)
class Traces:
    """One function at several sets of sizes; all graphs have the same nodes."""

    problem: Problem
    graphs: tuple[Graph, ...]

    @property
    def main(self) -> Graph:
        """The graph at the sizes that plans are made for."""
        return self.graphs[0]

    def sizes(self, number: int, axis: int) -> tuple[int, ...]:
        """Return the size of one axis of a node, per set of sizes."""
        return tuple(graph[number].shape[axis] for graph in self.graphs)

    def size_text(self, sizes: tuple[int, ...], *, line: int | None = None) -> str:
        """Return a Python expression in the dimensions' names that has these values.

        Raises:
            NotCovered: There is no such expression.
        """
        for text, values in self._candidates():
            if values == sizes:
                return text
        raise NotCovered(f"a size that is {sizes[0]} here and depends on the sizes", line=line)

    def number_text(self, node: Node) -> str:
        """Return a Python expression for the value of a SCALAR."""
        values = tuple(graph[node.number].value for graph in self.graphs)
        first = values[0]
        named = [k for k, v in self.problem.scalars.items() if _is_number(v) and v == first]
        if all(_close(v, first) for v in values):
            return named[0] if len(named) == 1 and first not in (0.0, 1.0, -1.0) else repr(first)
        for text, sizes in self._candidates():
            for power in _POWERS:
                ratios = [v / s**power for v, s in zip(values, sizes, strict=True)]
                if all(_close(r, ratios[0]) for r in ratios):
                    return _power_text(ratios[0], text, power)
        raise NotCovered(
            f"a number that is {first:g} here and depends on the sizes", line=node.line or None
        )

    def _candidates(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        problem = self.problem
        names = list(dict.fromkeys(s for a in problem.inputs for s in a.shape if isinstance(s, str)))
        columns = {name: tuple(dims[name] for dims in problem.shapes) for name in names}
        yield from columns.items()
        for name, values in columns.items():
            for divisor in (2, 4):
                yield f"{name} // {divisor}", tuple(v // divisor for v in values)
        for i, first in enumerate(names):
            for second in names[i:]:
                product = zip(columns[first], columns[second], strict=True)
                yield f"{first} * {second}", tuple(a * b for a, b in product)
        constants = {n for graph in self.graphs for node in graph for n in node.shape} | {0}
        for constant in sorted(constants):
            yield str(constant), (constant,) * len(problem.shapes)


def traces(problem: Problem) -> Traces:
    """Trace a problem at all its sizes.

    Raises:
        NotCovered: The reference cannot be traced, or its operations depend on the sizes.
    """
    graphs = tuple(simplify(trace(problem, dims)) for dims in problem.shapes)
    skeletons = {_skeleton(graph) for graph in graphs}
    if len(skeletons) > 1:
        raise NotCovered("a reference whose operations depend on the sizes")
    return Traces(problem, graphs)


def _skeleton(graph: Graph) -> Graph:
    """Return the graph without what may differ from size to size."""
    nodes = tuple(
        replace(
            node,
            shape=(len(node.shape),),
            attrs=tuple((k, v) for k, v in node.attrs if k not in _SIZED_ATTRS),
            line=0,
        )
        for node in graph
    )
    return Graph(nodes, graph.outputs)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _close(a: float, b: float) -> bool:
    return a == b or math.isclose(a, b, rel_tol=1e-12)


def _power_text(factor: float, base: str, power: float) -> str:
    name = base if base.isidentifier() else f"({base})"
    rounded = float(f"{factor:.12g}")
    lead = "" if rounded == 1.0 else f"{rounded!r} * "
    match power:
        case 1.0:
            return f"{lead}{name}"
        case -1.0:
            return f"{rounded!r} / {name}"
        case _:
            return f"{lead}{name} ** {power}"


__all__ = ["Op", "Traces", "traces"]
