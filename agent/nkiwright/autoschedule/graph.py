"""The op graph of a reference function: what it computes, without how.

Nodes are numbered in topological order.  Shapes are concrete, for one set of sizes; `symbols` turns
graphs of several sets of sizes into one whose sizes are names.  Equal nodes are one node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from nkiwright.autoschedule.problem import NotCovered

Attr = int | float | str | tuple[int, ...] | tuple[tuple[int, int, int], ...]
Shape = tuple[int, ...]


class Op(StrEnum):
    """What a node does; element functions carry the names of `nki.language`."""

    INPUT = "input"
    SCALAR = "scalar"
    MASK = "mask"
    """Constant matrix, `high` where row - column + offset >= 0, else `low`."""
    TABLE = "table"
    """Any other constant array; nothing covers it."""
    EXP = "exp"
    LOG = "log"
    SQRT = "sqrt"
    RSQRT = "rsqrt"
    SQUARE = "square"
    RECIPROCAL = "reciprocal"
    TANH = "tanh"
    SIGMOID = "sigmoid"
    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_apprx_tanh"
    GELU_SIGMOID = "gelu_apprx_sigmoid"
    SOFTPLUS = "softplus"
    MISH = "mish"
    RELU = "relu"
    ERF = "erf"
    ABS = "abs"
    SIGN = "sign"
    SIN = "sin"
    ARCTAN = "arctan"
    COPY = "copy"
    ADD = "add"
    SUBTRACT = "subtract"
    MULTIPLY = "multiply"
    DIVIDE = "divide"
    MAXIMUM = "maximum"
    MINIMUM = "minimum"
    POWER = "power"
    EQUAL = "equal"
    NOT_EQUAL = "not_equal"
    GREATER = "greater"
    GREATER_EQUAL = "greater_equal"
    LESS = "less"
    LESS_EQUAL = "less_equal"
    WHERE = "where"
    SELECT_TRIANGLE = "select_triangle"
    """args[0] where row - column + offset >= 0, else the number `fill`."""
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    MEAN = "mean"
    VAR = "var"
    CUMSUM = "cumsum"
    MATMUL = "matmul"
    PERMUTE = "permute"
    RESHAPE = "reshape"
    SLICE = "slice"
    CONCAT = "concat"


UNARY = frozenset(
    {
        Op.EXP, Op.LOG, Op.SQRT, Op.RSQRT, Op.SQUARE, Op.RECIPROCAL, Op.TANH, Op.SIGMOID, Op.SILU,
        Op.GELU, Op.GELU_TANH, Op.GELU_SIGMOID, Op.SOFTPLUS, Op.MISH, Op.RELU, Op.ERF, Op.ABS,
        Op.SIGN, Op.SIN, Op.ARCTAN, Op.COPY,
    }
)  # fmt: skip
COMPARISONS = frozenset(
    {Op.EQUAL, Op.NOT_EQUAL, Op.GREATER, Op.GREATER_EQUAL, Op.LESS, Op.LESS_EQUAL}
)
BINARY = COMPARISONS | {
    Op.ADD, Op.SUBTRACT, Op.MULTIPLY, Op.DIVIDE, Op.MAXIMUM, Op.MINIMUM, Op.POWER,
}  # fmt: skip
COMMUTATIVE = frozenset({Op.ADD, Op.MULTIPLY, Op.MAXIMUM, Op.MINIMUM, Op.EQUAL, Op.NOT_EQUAL})
ELEMENTWISE = UNARY | BINARY | {Op.WHERE}
REDUCTIONS = frozenset({Op.SUM, Op.MAX, Op.MIN, Op.MEAN, Op.VAR})


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operation."""

    number: int
    op: Op
    args: tuple[int, ...] = ()
    shape: Shape = ()
    attrs: tuple[tuple[str, Attr], ...] = ()
    line: int = 0
    """Line of the reference that asked for it first; 0 if unknown."""

    def attr(self, name: str) -> Attr:
        """Return attribute `name`, which must be there."""
        return next(value for key, value in self.attrs if key == name)

    def number_attr(self, name: str) -> float:
        """Return a numeric attribute."""
        value = self.attr(name)
        if not isinstance(value, int | float):
            raise TypeError(f"{name} of {self.op} is {value!r}, not a number")
        return value

    def ints_attr(self, name: str) -> tuple[int, ...]:
        """Return an attribute that is a tuple of integers."""
        value = self.attr(name)
        if not isinstance(value, tuple):
            raise TypeError(f"{name} of {self.op} is {value!r}, not a tuple")
        return tuple(int(v) for v in value if not isinstance(v, tuple))

    @property
    def value(self) -> float:
        """The number that a SCALAR stands for."""
        return self.number_attr("value")

    @property
    def name(self) -> str:
        """The name of an INPUT."""
        return str(self.attr("name"))


@dataclass(frozen=True, slots=True)
class Graph:
    """A traced function."""

    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def uses(self) -> list[int]:
        """Return how often each node is read; an output counts as one reading."""
        counts = [0] * len(self.nodes)
        for node in self.nodes:
            for arg in node.args:
                counts[arg] += 1
        for number in self.outputs:
            counts[number] += 1
        return counts

    def __str__(self) -> str:
        lines = []
        for node in self.nodes:
            attrs = "".join(f" {key}={value}" for key, value in node.attrs)
            args = ", ".join(f"%{a}" for a in node.args)
            lines.append(f"%{node.number} = {node.op}({args}){attrs} {list(node.shape)}")
        return "\n".join([*lines, "return " + ", ".join(f"%{n}" for n in self.outputs)])


class GraphBuilder:
    """Makes a graph node by node; asking twice for a node gives the same number."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._known: dict[tuple[object, ...], int] = {}

    def __getitem__(self, number: int) -> Node:
        return self._nodes[number]

    def add(
        self,
        op: Op,
        args: tuple[int, ...] = (),
        *,
        shape: Shape,
        line: int = 0,
        **attrs: Attr,
    ) -> int:
        """Return the number of a node, making it if there is none like it."""
        if op in COMMUTATIVE and len(args) == 2 and args[0] > args[1]:
            args = (args[1], args[0])
        items = tuple(sorted(attrs.items()))
        key = (op, args, shape, repr(items))
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = len(self._nodes)
            self._nodes.append(
                Node(number=number, op=op, args=args, shape=shape, attrs=items, line=line)
            )
        return number

    def scalar(self, value: float, line: int = 0) -> int:
        """Return the node of a number."""
        return self.add(Op.SCALAR, shape=(), line=line, value=float(value))

    def copy(self, node: Node, args: tuple[int, ...]) -> int:
        """Add `node` of another graph with other arguments."""
        return self.add(node.op, args, shape=node.shape, line=node.line, **dict(node.attrs))

    def finish(self, outputs: tuple[int, ...]) -> Graph:
        """Return the graph of `outputs` without what they don't need."""
        needed: set[int] = set()
        stack = list(outputs)
        while stack:
            number = stack.pop()
            if number not in needed:
                needed.add(number)
                stack.extend(self._nodes[number].args)
        keep = sorted(needed)
        renumber = {old: new for new, old in enumerate(keep)}
        nodes = tuple(
            replace(
                self._nodes[old],
                number=renumber[old],
                args=tuple(renumber[a] for a in self._nodes[old].args),
            )
            for old in keep
        )
        return Graph(nodes, tuple(renumber[n] for n in outputs))


def refuse(node: Node, why: str) -> NotCovered:
    """Return the error for a node that no family can take."""
    return NotCovered(f"{node.op} {why}", line=node.line or None)
