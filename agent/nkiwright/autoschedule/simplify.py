"""Rewrites a traced graph to one canonical form, so that lowering meets few ways of saying a thing.

Three kinds of rewriting: algebra (division becomes multiplication by a reciprocal, constants fold),
patterns of several nodes (variance, masks), and recognition of the functions that the scalar engine
has natively.  The last is numeric: a tree of element functions of one value is sampled and compared
with each native function, so any algebraic way of writing a GELU or a stable sigmoid is found.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from nkiwright.autoschedule.graph import (
    ELEMENTWISE,
    UNARY,
    Graph,
    GraphBuilder,
    Node,
    Op,
)

Samples = npt.NDArray[np.float64]

_ERF = np.vectorize(math.erf, otypes=[np.float64])
_MASKED_OUT = -1e9
"""An additive mask of at most this is a mask: softmax gives exactly 0 there."""


def _softplus(x: Samples) -> Samples:
    return np.logaddexp(0.0, x)


def _sigmoid(x: Samples) -> Samples:
    return np.exp(-np.logaddexp(0.0, -x))


FUNCTIONS: dict[Op, Callable[[Samples], Samples]] = {
    Op.EXP: np.exp,
    Op.LOG: np.log,
    Op.SQRT: np.sqrt,
    Op.RSQRT: lambda x: 1.0 / np.sqrt(x),
    Op.SQUARE: np.square,
    Op.RECIPROCAL: lambda x: 1.0 / x,
    Op.TANH: np.tanh,
    Op.SIGMOID: _sigmoid,
    Op.SILU: lambda x: x * _sigmoid(x),
    Op.GELU: lambda x: 0.5 * x * (1.0 + _ERF(x / math.sqrt(2.0))),
    Op.GELU_TANH: lambda x: (
        0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    ),
    Op.GELU_SIGMOID: lambda x: x * _sigmoid(1.702 * x),
    Op.SOFTPLUS: _softplus,
    Op.MISH: lambda x: x * np.tanh(_softplus(x)),
    Op.RELU: lambda x: np.maximum(x, 0.0),
    Op.ERF: _ERF,
    Op.ABS: np.abs,
    Op.SIGN: np.sign,
    Op.SIN: np.sin,
    Op.ARCTAN: np.arctan,
    Op.COPY: lambda x: x,
}
"""Meaning of every element function of one argument."""

_BINARY: dict[Op, Callable[[Samples, Samples], Samples]] = {
    Op.ADD: np.add,
    Op.SUBTRACT: np.subtract,
    Op.MULTIPLY: np.multiply,
    Op.DIVIDE: np.divide,
    Op.MAXIMUM: np.maximum,
    Op.MINIMUM: np.minimum,
    Op.POWER: np.power,
    Op.EQUAL: lambda a, b: (a == b).astype(np.float64),
    Op.NOT_EQUAL: lambda a, b: (a != b).astype(np.float64),
    Op.GREATER: lambda a, b: (a > b).astype(np.float64),
    Op.GREATER_EQUAL: lambda a, b: (a >= b).astype(np.float64),
    Op.LESS: lambda a, b: (a < b).astype(np.float64),
    Op.LESS_EQUAL: lambda a, b: (a <= b).astype(np.float64),
}
RECOGNISED = (
    Op.GELU_TANH, Op.GELU, Op.GELU_SIGMOID, Op.SILU, Op.MISH, Op.SIGMOID, Op.SOFTPLUS, Op.TANH,
    Op.RELU, Op.RSQRT, Op.SQUARE, Op.ABS, Op.RECIPROCAL, Op.EXP, Op.COPY,
)  # fmt: skip
SAMPLES: Samples = np.concatenate(
    [[-29.3, -16.9, -9.7], np.linspace(-6.3, 6.3, 84), [9.7, 16.9, 29.3]]
)
"""Symmetric about 0, so that reversed samples of f are samples of f(-x)."""


def evaluate(op: Op, args: list[Samples]) -> Samples:
    """Return an element function of sample values in float64."""
    with np.errstate(all="ignore"):
        if op in UNARY:
            return np.asarray(FUNCTIONS[op](args[0]), dtype=np.float64)
        if op is Op.WHERE:
            return np.where(args[0] != 0, args[1], args[2])
        return np.asarray(_BINARY[op](*args), dtype=np.float64)


_RECOGNISED_VALUES: dict[Op, Samples] = {op: evaluate(op, [SAMPLES]) for op in RECOGNISED}


def simplify(graph: Graph) -> Graph:
    """Return an equal graph in canonical form."""
    while True:
        simpler = _recognise(_rewrite(graph))
        if simpler == graph:
            return graph
        graph = simpler


# -- native functions ------------------------------------------------------------------------------


def _recognise(graph: Graph) -> Graph:
    """Replace the largest trees that equal a native function of one value."""
    builder = GraphBuilder()
    mapped: dict[int, int] = {}
    replaced: dict[int, tuple[Op, int, bool]] = {}
    for node in reversed(graph.nodes):
        found = _native(graph, node)
        if found is not None:
            replaced[node.number] = found
    for node in graph.nodes:
        if node.number in replaced:
            op, pivot, is_negated = replaced[node.number]
            argument = mapped[pivot]
            if is_negated:
                pair = (argument, builder.scalar(-1.0))
                argument = builder.add(Op.MULTIPLY, pair, shape=node.shape, line=node.line)
            if op is not Op.COPY:
                argument = builder.add(op, (argument,), shape=node.shape, line=node.line)
            mapped[node.number] = argument
        else:
            mapped[node.number] = builder.copy(node, tuple(mapped[a] for a in node.args))
    return builder.finish(tuple(mapped[n] for n in graph.outputs))


def _native(graph: Graph, node: Node) -> tuple[Op, int, bool] | None:
    """Return (function, argument, of minus it) if `node` is a native function of another node."""
    if node.op not in ELEMENTWISE or not any(graph[a].op in ELEMENTWISE for a in node.args):
        return None
    cone: set[int] = set()
    stack = [node.number]
    while stack:
        number = stack.pop()
        if number not in cone and len(cone) < 40:
            cone.add(number)
            if graph[number].op in ELEMENTWISE:
                stack.extend(graph[number].args)
    for pivot in sorted(cone - {node.number}):
        if graph[pivot].shape != node.shape or graph[pivot].op is Op.SCALAR:
            continue
        values = _sample(graph, node.number, pivot)
        if values is None:
            continue
        for op in RECOGNISED:
            if op is node.op and node.args == (pivot,):
                return None
            if _same(values, _RECOGNISED_VALUES[op]):
                return op, pivot, False
        for op in (Op.SIGMOID, Op.SOFTPLUS):
            if _same(values[::-1], _RECOGNISED_VALUES[op]):
                return op, pivot, True
    return None


def _sample(graph: Graph, target: int, pivot: int) -> Samples | None:
    """Return samples of `target` as a function of `pivot`, or None if it needs more than that."""
    known: dict[int, Samples] = {pivot: SAMPLES}

    def visit(number: int) -> Samples | None:
        if number in known:
            return known[number]
        node = graph[number]
        if node.op is Op.SCALAR:
            result = np.full_like(SAMPLES, node.value)
        elif node.op in ELEMENTWISE and number > pivot:
            args = []
            for arg in node.args:
                values = visit(arg)
                if values is None:
                    return None
                args.append(values)
            result = evaluate(node.op, args)
        else:
            return None
        known[number] = result
        return result

    return visit(target)


def _same(got: Samples, wanted: Samples) -> bool:
    finite = np.isfinite(wanted) & np.isfinite(got)
    if finite.sum() < 30 or (np.isnan(got) != np.isnan(wanted)).any():
        return False
    return bool(np.allclose(got[finite], wanted[finite], rtol=1e-9, atol=1e-11))


# -- algebra ---------------------------------------------------------------------------------------


def _rewrite(graph: Graph) -> Graph:
    rewriter = _Rewriter(GraphBuilder())
    mapped: dict[int, int] = {}
    for node in graph.nodes:
        mapped[node.number] = rewriter.node(node, [mapped[a] for a in node.args])
    return rewriter.builder.finish(tuple(mapped[n] for n in graph.outputs))


class _Rewriter:
    """Adds nodes to a graph in canonical form."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder

    def node(self, node: Node, args: list[int]) -> int:
        """Add a node like `node` with arguments of the new graph."""
        if node.op in ELEMENTWISE:
            args = [self._uniform(a) for a in args]
            if all(self._is_scalar(a) for a in args):
                values = [np.array([self.builder[a].value]) for a in args]
                number = self.builder.scalar(float(evaluate(node.op, values)[0]), node.line)
                if node.shape == ():
                    return number
                return self.builder.add(Op.RESHAPE, (number,), shape=node.shape, line=node.line)
        simpler = self._special(node, args)
        if simpler is not None:
            return simpler
        return self.builder.copy(node, tuple(args))

    def _add(self, op: Op, *args: int, like: Node) -> int:
        shape = np.broadcast_shapes(*(self.builder[a].shape for a in args))
        node = Node(number=0, op=op, args=args, shape=shape, line=like.line)
        return self.node(node, list(args))

    def _is_scalar(self, number: int) -> bool:
        return self.builder[number].op is Op.SCALAR

    def _scalar(self, number: int) -> float | None:
        node = self.builder[number]
        return node.value if node.op is Op.SCALAR else None

    def _uniform(self, number: int) -> int:
        """Return the scalar that a constant array repeats, or the array."""
        node = self.builder[number]
        if node.op is Op.RESHAPE and self._is_scalar(node.args[0]):
            return node.args[0]
        return number

    def _special(self, node: Node, args: list[int]) -> int | None:
        match node.op:
            case Op.SUBTRACT:
                return self._subtract(node, *args)
            case Op.DIVIDE:
                return self._divide(node, *args)
            case Op.MULTIPLY:
                return self._multiply(node, *args)
            case Op.ADD:
                return self._plus(node, *args)
            case Op.POWER:
                return self._power(node, *args)
            case Op.RECIPROCAL if self.builder[args[0]].op is Op.SQRT:
                return self._add(Op.RSQRT, self.builder[args[0]].args[0], like=node)
            case Op.MAXIMUM if 0.0 in (self._scalar(args[0]), self._scalar(args[1])):
                other = args[1] if self._scalar(args[0]) == 0.0 else args[0]
                return self._add(Op.RELU, other, like=node)
            case Op.MEAN:
                return self._mean(node, args[0])
            case Op.WHERE:
                return self._where(node, *args)
            case Op.COPY:
                return args[0]
            case Op.PERMUTE | Op.RESHAPE:
                return self._layout(node, args[0])
        return None

    def _subtract(self, node: Node, left: int, right: int) -> int | None:
        value = self._scalar(right)
        if value is not None:
            return self._add(Op.ADD, left, self.builder.scalar(-value), like=node)
        if self._scalar(left) is not None:
            negative = self._add(Op.MULTIPLY, right, self.builder.scalar(-1.0), like=node)
            return self._add(Op.ADD, negative, left, like=node)
        return None

    def _divide(self, node: Node, left: int, right: int) -> int:
        value = self._scalar(right)
        if value is not None:
            inverse = 1.0 / value if value else math.copysign(math.inf, value)
            return self._add(Op.MULTIPLY, left, self.builder.scalar(inverse), like=node)
        return self._add(Op.MULTIPLY, left, self._add(Op.RECIPROCAL, right, like=node), like=node)

    def _plus(self, node: Node, left: int, right: int) -> int | None:
        if (mask := self._mask(left, right)) is not None:
            table, other = mask
            high, low = table.number_attr("high"), table.number_attr("low")
            offset = int(table.number_attr("offset"))
            if high == 0.0 and low <= _MASKED_OUT:
                return self._triangle(node, other, offset, low)
        value, other = self._one_scalar(left, right)
        if value is None:
            return None
        inner = self.builder[other]
        if value == 0.0 and inner.shape == node.shape:
            return other
        if inner.op is Op.ADD:
            first, rest = self._one_scalar(*inner.args)
            if first is not None:
                return self._add(Op.ADD, rest, self.builder.scalar(first + value), like=node)
        return None

    def _multiply(self, node: Node, left: int, right: int) -> int | None:
        if left == right:
            return self._add(Op.SQUARE, left, like=node)
        if (mask := self._mask(left, right)) is not None:
            table, other = mask
            if (table.number_attr("high"), table.number_attr("low")) == (1.0, 0.0):
                return self._triangle(node, other, int(table.number_attr("offset")), 0.0)
        value, other = self._one_scalar(left, right)
        if value is None:
            return None
        inner = self.builder[other]
        if value == 1.0 and inner.shape == node.shape:
            return other
        if inner.op is Op.MULTIPLY:
            first, rest = self._one_scalar(*inner.args)
            if first is not None:
                return self._add(Op.MULTIPLY, rest, self.builder.scalar(first * value), like=node)
        if inner.op is Op.SUM:
            width = self.builder[inner.args[0]].shape[-1]
            if math.isclose(value * width, 1.0, rel_tol=1e-12):
                return self._mean(
                    Node(number=0, op=Op.MEAN, shape=inner.shape, line=node.line), inner.args[0]
                )
        return None

    def _one_scalar(self, left: int, right: int) -> tuple[float | None, int]:
        value = self._scalar(left)
        return (value, right) if value is not None else (self._scalar(right), left)

    def _mask(self, left: int, right: int) -> tuple[Node, int] | None:
        for table, other in ((left, right), (right, left)):
            if self.builder[table].op is Op.MASK:
                return self.builder[table], other
        return None

    def _power(self, node: Node, base: int, exponent: int) -> int | None:
        match self._scalar(exponent):
            case 1.0:
                return base
            case 2.0:
                return self._add(Op.SQUARE, base, like=node)
            case 3.0:
                return self._add(
                    Op.MULTIPLY, self._add(Op.SQUARE, base, like=node), base, like=node
                )
            case 0.5:
                return self._add(Op.SQRT, base, like=node)
            case -0.5:
                return self._add(Op.RSQRT, base, like=node)
            case -1.0:
                return self._add(Op.RECIPROCAL, base, like=node)
        return None

    def _mean(self, node: Node, arg: int) -> int:
        """Add a mean; the mean of squared distances from the mean is the variance."""
        square = self.builder[arg]
        if square.op is Op.SQUARE:
            centred = self.builder[square.args[0]]
            if centred.op is Op.SUBTRACT:
                x, mean = centred.args[0], self.builder[centred.args[1]]
                if mean.op is Op.MEAN and mean.args == (x,):
                    return self.builder.add(Op.VAR, (x,), shape=node.shape, line=node.line)
        return self.builder.add(Op.MEAN, (arg,), shape=node.shape, line=node.line)

    def _where(self, node: Node, condition: int, yes: int, no: int) -> int | None:
        mask = self.builder[condition]
        if mask.op is not Op.MASK:
            return None
        offset = int(mask.number_attr("offset"))
        keeps_lower = mask.number_attr("high") != 0.0
        kept, fill = (yes, self._scalar(no)) if keeps_lower else (no, self._scalar(yes))
        return None if fill is None else self._triangle(node, kept, offset, fill)

    def _triangle(self, node: Node, kept: int, offset: int, fill: float) -> int:
        return self.builder.add(
            Op.SELECT_TRIANGLE, (kept,), shape=node.shape, line=node.line, offset=offset, fill=fill
        )

    def _layout(self, node: Node, arg: int) -> int | None:
        """Merge chains of permutations and reshapes."""
        inner = self.builder[arg]
        if node.op is Op.RESHAPE:
            if inner.shape == node.shape:
                return arg
            if inner.op is Op.RESHAPE and not self._is_scalar(inner.args[0]):
                return self._layout(node, inner.args[0]) or self.builder.add(
                    Op.RESHAPE, inner.args, shape=node.shape, line=node.line
                )
            return None
        if inner.op is Op.PERMUTE:
            outer, first = node.ints_attr("order"), inner.ints_attr("order")
            order = tuple(first[a] for a in outer)
            if order == tuple(range(len(order))):
                return inner.args[0]
            return self.builder.add(
                Op.PERMUTE, inner.args, shape=node.shape, line=node.line, order=order
            )
        return None
