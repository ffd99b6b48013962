"""Sizes as names: what is common to the graphs of one function at several sets of sizes.

A kernel must be right at every shape, so nothing in it may be a number that happened to be a size.
The function is traced at each known set of sizes; what differs between the traces is expressed in
the names of the dimensions, and what cannot be is refused.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from nkiwright.autoschedule.graph import Graph, Node
from nkiwright.autoschedule.problem import Argument, Dims, NotCovered, Problem
from nkiwright.autoschedule.simplify import simplify
from nkiwright.autoschedule.tracer import trace

_POWERS = (-1.0, -0.5, 0.5, 1.0, -2.0, 2.0)
RESERVED = frozenset({"nki", "nl", "nisa", "kernel", "min", "max", "range"})
"""Names that kernels use themselves."""
_PROBE_FACTOR = 3
_SIZED_ATTRS = frozenset({"value", "bounds", "offset", "digest"})


@dataclass(frozen=True, slots=True)
class Traces:
    """One function at several sets of sizes; all graphs have the same nodes."""

    problem: Problem
    dims: tuple[Dims, ...]
    """The problem's sets of sizes, then more that only tell sizes apart."""
    graphs: tuple[Graph, ...]
    """One for each of `dims`."""

    @property
    def known(self) -> tuple[Graph, ...]:
        """The graphs at the sizes that a kernel has to be legal for."""
        return self.graphs[: len(self.problem.shapes)]

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
        if len(set(sizes)) == 1:
            return str(sizes[0])
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
        names = list(
            dict.fromkeys(s for a in problem.inputs for s in a.shape if isinstance(s, str))
        )
        columns = {name: tuple(dims[name] for dims in self.dims) for name in names}
        yield from columns.items()
        for name, values in columns.items():
            for divisor in (2, 4):
                yield f"{name} // {divisor}", tuple(v // divisor for v in values)
        for i, first in enumerate(names):
            for second in names[i:]:
                product = zip(columns[first], columns[second], strict=True)
                yield f"{first} * {second}", tuple(a * b for a, b in product)


def traces(problem: Problem) -> Traces:
    """Trace a problem at all its sizes.

    Raises:
        NotCovered: The reference cannot be traced, or its operations depend on the sizes.
    """
    problem = _with_safe_names(problem)
    graphs = [simplify(trace(problem, dims)) for dims in problem.shapes]
    skeleton = _skeleton(graphs[0])
    if any(_skeleton(graph) != skeleton for graph in graphs):
        raise NotCovered("a reference whose operations depend on the sizes")
    dims = list(problem.shapes)
    for probe in _probes(problem):
        try:
            graph = simplify(trace(problem, probe))
        except NotCovered:
            continue  # the dimensions depend on each other
        if _skeleton(graph) == skeleton:
            graphs.append(graph)
            dims.append(probe)
    return Traces(problem, tuple(dims), tuple(graphs))


def _with_safe_names(problem: Problem) -> Problem:
    """Rename dimensions whose names mean something else in a kernel, such as that of an input."""
    tensors = {a.name for a in (*problem.inputs, *problem.outputs)} | set(problem.scalars)
    for name in tensors:
        if name in RESERVED or keyword.iskeyword(name):
            raise NotCovered(f"a tensor or constant named {name!r}, which kernels need themselves")
    renamed: dict[str | int, str] = {}
    for name in {name for dims in problem.shapes for name in dims}:
        if name in tensors or name in RESERVED or keyword.iskeyword(name):
            renamed[name] = f"{name}_size"

    def argument(spec: Argument) -> Argument:
        return replace(spec, shape=tuple(renamed.get(s, s) for s in spec.shape))

    return replace(
        problem,
        inputs=tuple(map(argument, problem.inputs)),
        outputs=tuple(map(argument, problem.outputs)),
        shapes=tuple({renamed.get(k, k): v for k, v in dims.items()} for dims in problem.shapes),
    )


def _probes(problem: Problem) -> Iterator[Dims]:
    """Yield sizes that tell apart dimensions which are equal in all known sets of sizes."""
    smallest = min(problem.shapes, key=lambda dims: math.prod(dims.values()))
    for name in smallest:
        yield {**smallest, name: smallest[name] * _PROBE_FACTOR}


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
