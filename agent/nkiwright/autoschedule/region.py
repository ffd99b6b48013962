"""Instruction selection for a region of element functions and last-axis reductions.

A region works on tiles: rows on partitions, the last axis on the free axis.  A value is laid out
as a TILE `[rows, width]`, a ROW (one number a row), a COLUMN (one row that all rows share) or a
NUMBER.  Selection walks from the results to the inputs; each node takes one instruction, which may
absorb the producers that nobody else reads.  Where several engines can do it, the plan's choice
decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from nkiwright.autoschedule.graph import (
    BINARY,
    COMPARISONS,
    REDUCTIONS,
    UNARY,
    Graph,
    GraphBuilder,
    Node,
    Op,
    refuse,
)
from nkiwright.autoschedule.problem import NotCovered

Choose = Callable[[str], str | None]
"""Label of a node -> the plan's choice, or None for the first legal one."""


class Layout(StrEnum):
    """How a value lies on the partitions."""

    TILE = "tile"
    ROW = "row"
    COLUMN = "column"
    NUMBER = "number"


@dataclass(frozen=True, slots=True)
class Ref:
    """A node as an operand."""

    node: int


@dataclass(frozen=True, slots=True)
class Number:
    """A SCALAR node as an operand."""

    node: int


Operand = Ref | Number | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One instruction, before names and views are known."""

    call: str
    """Name in `nki.isa`, or `bn` for the pair bn_stats and bn_aggr."""
    dst: int
    operands: tuple[tuple[str, Operand], ...]
    layout: Layout
    """What is iterated over."""
    is_per_row: bool = False
    """Whether packed rows need one instruction each, because an operand is one number a row."""
    reduce_to: int | None = None
    """ROW node that receives the sum of the result."""
    results: tuple[tuple[int, int], ...] = ()
    """For `bn`: (node, column of the aggregate)."""

    @property
    def reads(self) -> tuple[int, ...]:
        """Nodes read."""
        return tuple(o.node for _, o in self.operands if isinstance(o, Ref))


@dataclass(frozen=True, slots=True)
class Region:
    """The selected instructions, in program order."""

    steps: tuple[Step, ...]
    leaves: tuple[int, ...]
    """Nodes read that no step makes: inputs and results of other regions."""
    scratch: frozenset[int]
    """Nodes whose tile nobody reads: they were computed only for their sum."""
    options: Mapping[str, tuple[str, ...]]
    """Choice points met and what is legal there."""


def expand(graph: Graph, statistics: str) -> Graph:
    """Write means and variances as sums, or keep them for bn_stats, and normalise subtraction.

    Args:
        graph: A simplified graph.
        statistics: `two_pass` or `bn_stats`.
    """
    layouts = layouts_of(graph)
    builder = GraphBuilder()
    mapped: dict[int, int] = {}

    def make(op: Op, *args: int, like: Node) -> int:
        shape = max((builder[a].shape for a in args), key=lambda s: (len(s), s))
        return builder.add(op, args, shape=shape, line=like.line)

    def negate(number: int, like: Node) -> int:
        inner = builder[number]
        if inner.op is Op.MULTIPLY:
            for factor, other in (inner.args, inner.args[::-1]):
                if builder[factor].op is Op.SCALAR:
                    opposite = builder.scalar(-builder[factor].value)
                    return make(Op.MULTIPLY, other, opposite, like=like)
        return make(Op.MULTIPLY, number, builder.scalar(-1.0), like=like)

    def total(number: int, node: Node) -> int:
        return builder.add(Op.SUM, (number,), shape=node.shape, line=node.line)

    def mean(number: int, node: Node) -> int:
        if statistics == "bn_stats":
            argument = builder[number]
            if argument.op is Op.SQUARE:
                x = argument.args[0]
                first = builder.add(Op.MEAN, (x,), shape=node.shape, line=node.line)
                variance = builder.add(Op.VAR, (x,), shape=node.shape, line=node.line)
                return make(Op.ADD, variance, make(Op.SQUARE, first, like=node), like=node)
            return builder.add(Op.MEAN, (number,), shape=node.shape, line=node.line)
        width = builder[number].shape[-1]
        return make(Op.MULTIPLY, total(number, node), builder.scalar(1.0 / width), like=node)

    def variance(number: int, node: Node) -> int:
        if statistics == "bn_stats":
            return builder.add(Op.VAR, (number,), shape=node.shape, line=node.line)
        centred = make(Op.ADD, number, negate(mean(number, node), node), like=node)
        return mean(make(Op.SQUARE, centred, like=node), node)

    for node in graph:
        args = [mapped[a] for a in node.args]
        if node.op is Op.MEAN:
            mapped[node.number] = mean(args[0], node)
        elif node.op is Op.VAR:
            mapped[node.number] = variance(args[0], node)
        elif (
            node.op is Op.SUBTRACT
            and Layout.ROW in (kinds := [layouts[a] for a in node.args])
            and kinds != [Layout.ROW, Layout.ROW]
        ):
            if kinds[1] is Layout.ROW:
                mapped[node.number] = make(Op.ADD, args[0], negate(args[1], node), like=node)
            else:
                mapped[node.number] = make(Op.ADD, negate(args[1], node), args[0], like=node)
        else:
            mapped[node.number] = builder.copy(node, tuple(args))
    return builder.finish(tuple(mapped[n] for n in graph.outputs))


def layouts_of(graph: Graph, *, leaves: Iterable[int] = ()) -> dict[int, Layout]:
    """Return how each value of a graph lies, rows being all axes but the last.

    Args:
        graph: The graph.
        leaves: Nodes not looked into, such as matrix products.
    """
    stops = set(leaves)
    rank = max(len(node.shape) for node in graph)
    layouts: dict[int, Layout] = {}
    for node in graph:
        layouts[node.number] = _layout(node, layouts, rank, node.number in stops)
    return layouts


def _layout(node: Node, layouts: Mapping[int, Layout], rank: int, is_leaf: bool) -> Layout:
    if node.op is Op.SCALAR:
        return Layout.NUMBER
    if is_leaf or node.op not in (Op.INPUT, Op.RESHAPE):
        if is_leaf or node.op in REDUCTIONS or not node.args:
            return Layout.ROW if node.op in REDUCTIONS else Layout.TILE
        kinds = {layouts[a] for a in node.args}
        for kind in (Layout.TILE, Layout.ROW, Layout.COLUMN):
            if kind in kinds:
                if kind is Layout.ROW and Layout.COLUMN in kinds:
                    return Layout.TILE
                return kind
        return Layout.NUMBER
    shape = node.shape
    if node.op is Op.RESHAPE and layouts[node.args[0]] is Layout.NUMBER:
        return Layout.NUMBER
    if node.op is Op.RESHAPE and layouts[node.args[0]] is Layout.ROW:
        return Layout.ROW
    leading = [n for n in shape[:-1] if n != 1]
    if len(shape) == rank and rank > 1 and shape[-1] == 1 and leading:
        return Layout.ROW
    if not leading and rank > 1:
        return Layout.COLUMN
    if rank == 1 and len(shape) == 1:
        return Layout.TILE
    return Layout.TILE


def label(graph: Graph, number: int) -> str:
    """Return the name of a choice point: the op and its ordinal among nodes of that op."""
    op = graph[number].op
    ordinal = sum(1 for node in graph.nodes[:number] if node.op is op)
    return f"{op}{ordinal}"


@dataclass(slots=True)
class Selector:
    """Selects instructions for the nodes above some leaves."""

    graph: Graph
    layouts: Mapping[int, Layout]
    choose: Choose
    leaves: frozenset[int]
    """Nodes that are there already."""
    in_psum: frozenset[int] = frozenset()
    """Leaves that lie in PSUM; gpsimd cannot read them, nor one instruction two of them."""
    is_fp32: bool = True
    """Whether results must be as exact as float32 allows."""
    number_bias: bool = True
    """Whether an activation's bias may be a number (NeuronCore-v3 and later)."""
    _uses: list[int] = field(default_factory=list)
    _needed: set[int] = field(default_factory=set)
    _sums: dict[int, int] = field(default_factory=dict)
    _steps: list[Step] = field(default_factory=list)
    _options: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _scratch: set[int] = field(default_factory=set)

    def select(self, results: Iterable[int]) -> Region:
        """Return the instructions that compute `results`.

        Raises:
            NotCovered: A node has no instruction here.
        """
        self._uses = self.graph.uses()
        self._needed = {n for n in results if n not in self.leaves}
        read: set[int] = {n for n in results if n in self.leaves}
        for node in reversed(self.graph.nodes):
            if node.number in self._needed:
                step = self._select(node)
                if step is not None:
                    self._steps.append(step)
                    for operand in step.reads:
                        self._need(operand, read)
        return Region(
            tuple(reversed(self._steps)),
            tuple(sorted(read)),
            frozenset(self._scratch),
            dict(self._options),
        )

    def _need(self, number: int, read: set[int]) -> None:
        if number in self.leaves:
            read.add(number)
        else:
            self._needed.add(number)

    # -- helpers -------------------------------------------------------------------------------

    def _choice(self, node: Node, *options: str) -> str:
        if len(options) == 1:
            return options[0]
        name = label(self.graph, node.number)
        self._options[name] = options
        chosen = self.choose(name)
        return chosen if chosen in options else options[0]

    def _operand(self, number: int) -> Operand:
        is_number = self.layouts[number] is Layout.NUMBER
        return Number(number) if is_number else Ref(number)

    def _is_free(self, number: int, layout: Layout) -> bool:
        """Say whether the reader may absorb this node.

        It may if nobody else reads it, or if the plan computes it anew for each reader.
        """
        if number in self.leaves or number in self._sums or self.layouts[number] is not layout:
            return False
        if self._uses[number] == 1:
            return True
        node = self.graph[number]
        if layout is not Layout.TILE or number in self.graph.outputs:
            return False
        if self._narrow(node, (Op.ADD, Op.MULTIPLY)) is None:
            return False
        name = f"{label(self.graph, number)}.readers"
        self._options[name] = ("share", "recompute")
        return self.choose(name) == "recompute"

    def _narrow(self, node: Node, ops: Iterable[Op]) -> tuple[int, int, bool] | None:
        """Split `node` into (base, narrow operand, narrow one stands first) if it is such a thing.

        Narrow is what tensor_scalar takes: a number, or for tiles one number a row.
        """
        if node.op not in ops or len(node.args) != 2:
            return None
        layout = self.layouts[node.number]
        narrow = (Layout.NUMBER, Layout.ROW) if layout is Layout.TILE else (Layout.NUMBER,)
        first, second = node.args
        if self.layouts[second] in narrow and self.layouts[first] is layout:
            return first, second, False
        if self.layouts[first] in narrow and self.layouts[second] is layout:
            return second, first, True
        return None

    def _per_row(self, layout: Layout, *operands: int | None) -> bool:
        return layout is Layout.TILE and any(
            o is not None and self.layouts[o] is Layout.ROW for o in operands
        )

    # -- one node ------------------------------------------------------------------------------

    def _select(self, node: Node) -> Step | None:
        if node.op in REDUCTIONS:
            return self._reduction(node)
        if node.number in self._sums:
            return self._activation(node)
        match node.op:
            case Op.CUMSUM:
                return Step(
                    call="tensor_tensor_scan",
                    dst=node.number,
                    operands=(("data1", Ref(node.args[0])),),
                    layout=Layout.TILE,
                    is_per_row=True,
                )
            case Op.SELECT_TRIANGLE:
                return Step(
                    call="affine_select",
                    dst=node.number,
                    operands=(("on_true_tile", Ref(node.args[0])),),
                    layout=Layout.TILE,
                )
            case Op.WHERE:
                return self._where(node)
            case Op.SLICE | Op.CONCAT | Op.RESHAPE:
                return Step(
                    call=node.op,
                    dst=node.number,
                    operands=tuple((f"part{i}", Ref(a)) for i, a in enumerate(node.args)),
                    layout=self.layouts[node.number],
                )
        if node.op in UNARY:
            return self._unary(node)
        if node.op in BINARY:
            return self._binary(node)
        raise refuse(node, "inside a fused region")

    def _where(self, node: Node) -> Step:
        layout = self.layouts[node.number]
        legal = {layout, Layout.COLUMN, Layout.NUMBER}
        if any(self.layouts[a] not in legal for a in node.args):
            raise refuse(node, "between a tensor and one number a row")
        if self.layouts[node.args[0]] is Layout.NUMBER or layout is not Layout.TILE:
            raise refuse(node, "with a condition that all rows share")
        names = ("condition", "yes", "no")
        return Step(
            call="where",
            dst=node.number,
            operands=tuple((n, self._operand(a)) for n, a in zip(names, node.args, strict=True)),
            layout=layout,
        )

    def _unary(self, node: Node) -> Step:
        layout = self.layouts[node.number]
        argument = node.args[0]
        match node.op:
            case Op.SQUARE:
                engines = ["scalar", "vector"]
                if argument in self.in_psum:
                    engines = ["scalar"]
                elif layout is Layout.TILE:
                    engines.append("gpsimd")
                engine = self._choice(node, *engines)
                if engine != "scalar":
                    return self._tensor_tensor(node, argument, argument, Op.MULTIPLY, engine)
            case Op.RSQRT | Op.SQRT if layout is Layout.ROW and argument not in self.in_psum:
                if self._choice(node, "scalar", "vector") == "vector":
                    return self._power(node)
            case Op.RELU if self._choice(node, "scalar", "vector") == "vector":
                return self._tensor_scalar(node)
            case Op.RECIPROCAL:
                fast = layout is Layout.TILE and not self.is_fp32
                engine = self._choice(node, *(("scalar", "vector") if fast else ("vector",)))
                if engine == "vector":
                    return Step(
                        call="reciprocal",
                        dst=node.number,
                        operands=(("data", Ref(argument)),),
                        layout=layout,
                    )
        return self._activation(node)

    def _power(self, node: Node) -> Step:
        """Select a root as a power on the vector engine, with the addition before it."""
        base = node.args[0]
        operands: list[tuple[str, Operand]] = []
        inner = self._narrow(self.graph[base], (Op.ADD, Op.MULTIPLY))
        if inner is not None and self._is_free(base, Layout.ROW):
            operands = [("op0", f"nl.{self.graph[base].op}"), ("operand0", self._operand(inner[1]))]
            base = inner[0]
        stage = 1 if operands else 0
        exponent = "-0.5" if node.op is Op.RSQRT else "0.5"
        operands += [(f"op{stage}", "nl.power"), (f"operand{stage}", exponent)]
        return Step(
            call="tensor_scalar",
            dst=node.number,
            operands=(("data", Ref(base)), *operands),
            layout=Layout.ROW,
        )

    def _activation(self, node: Node) -> Step:
        """Select `f(data * scale + bias)` on the scalar engine."""
        layout = self.layouts[node.number]
        number, function = node.number, "copy"
        if node.op in UNARY and number not in self.leaves:
            function, number = node.op, node.args[0]
        scale: int | None = None
        bias: int | None = None

        def may_absorb(at: int) -> bool:
            return at == node.number or self._is_free(at, layout)

        inner = self.graph[number]
        split = self._narrow(inner, (Op.ADD,))
        if split is not None and may_absorb(number) and self._may_bias(split[1]):
            number, bias = split[0], split[1]
            inner = self.graph[number]
        split = self._narrow(inner, (Op.MULTIPLY,))
        if split is not None and may_absorb(number):
            number, scale = split[0], split[1]
        operands: list[tuple[str, Operand]] = [("op", f"nl.{function}"), ("data", Ref(number))]
        if bias is not None:
            operands.append(("bias", self._operand(bias)))
        if scale is not None:
            operands.append(("scale", self._operand(scale)))
        total = self._sums.get(node.number)
        return Step(
            call="activation",
            dst=node.number,
            operands=tuple(operands),
            layout=layout,
            is_per_row=total is not None or self._per_row(layout, bias, scale),
            reduce_to=total,
        )

    def _may_bias(self, number: int) -> bool:
        return self.number_bias or self.layouts[number] is Layout.ROW

    def _binary(self, node: Node) -> Step:
        if node.op in (Op.POWER, Op.DIVIDE):
            raise refuse(node, "with an exponent that is not ±1, ±1/2, 2 or 3")
        layout = self.layouts[node.number]
        split = self._narrow(node, BINARY)
        if split is not None:
            negated = self._negated_reduction(node, split[0], split[1])
            if negated is not None:
                return negated
            engines = ["vector"]
            linear = node.op is Op.MULTIPLY or (node.op is Op.ADD and self._may_bias(split[1]))
            if layout is Layout.TILE and linear:
                engines.append("scalar")
            if self._choice(node, *engines) == "scalar":
                return self._activation(node)
            return self._tensor_scalar(node)
        left, right = node.args
        if {self.layouts[left], self.layouts[right]} == {Layout.ROW, Layout.COLUMN}:
            raise refuse(node, "of a column vector with a row vector")
        fusable = [
            (base, narrow, first, other, at)
            for at, (arg, other) in enumerate(((left, right), (right, left)))
            if self._is_free(arg, layout)
            and (s := self._narrow(self.graph[arg], BINARY - COMPARISONS - {Op.SUBTRACT}))
            is not None
            for base, narrow, first in [s]
            if {base, other} - self.in_psum or base == other
        ]
        both_psum = left in self.in_psum and right in self.in_psum
        engines = ["vector"]
        if layout is Layout.TILE and not {left, right} & self.in_psum:
            engines.append("gpsimd")
        if fusable and layout is Layout.TILE:
            engines.insert(0, "fused")
        engine = self._choice(node, *engines)
        if engine == "fused":
            base, narrow, _, other, at = fusable[0]
            arg = node.args[at]
            return Step(
                call="scalar_tensor_tensor",
                dst=node.number,
                operands=(
                    ("data", Ref(base)),
                    ("op0", f"nl.{self.graph[arg].op}"),
                    ("operand0", self._operand(narrow)),
                    ("op1", f"nl.{node.op}"),
                    ("operand1", Ref(other)),
                    *((("reverse1", "True"),) if at == 1 and node.op is Op.SUBTRACT else ()),
                ),
                layout=layout,
                is_per_row=self._per_row(layout, narrow),
            )
        if both_psum and left != right:
            raise NotCovered("an element function of two matrix products", line=node.line)
        return self._tensor_tensor(node, left, right, node.op, engine)

    def _tensor_tensor(self, node: Node, left: int, right: int, op: Op, engine: str) -> Step:
        return Step(
            call="tensor_tensor",
            dst=node.number,
            operands=(
                ("data1", Ref(left)),
                ("data2", Ref(right)),
                ("op", f"nl.{op}"),
                *((("engine", f"nisa.engine.{engine}"),) if engine == "gpsimd" else ()),
            ),
            layout=self.layouts[node.number],
        )

    def _tensor_scalar(self, node: Node) -> Step:
        """Select `(data op0 operand0) op1 operand1` on the vector engine."""
        layout = self.layouts[node.number]
        if node.op is Op.RELU:
            base = node.args[0]
            outer: tuple[str, Operand, bool] = ("nl.maximum", "0.0", False)
            narrow_nodes: list[int | None] = []
        else:
            split = self._narrow(node, BINARY)
            assert split is not None
            base, narrow, first = split
            outer = (f"nl.{node.op}", self._operand(narrow), first)
            narrow_nodes = [narrow]
        stages: list[tuple[str, Operand, bool]] = [outer]
        if self._is_free(base, layout):
            inner = self._narrow(self.graph[base], BINARY)
            if inner is not None:
                stages.insert(0, (f"nl.{self.graph[base].op}", self._operand(inner[1]), inner[2]))
                narrow_nodes.append(inner[1])
                base = inner[0]
        operands: list[tuple[str, Operand]] = [("data", Ref(base))]
        for i, (op, operand, is_reversed) in enumerate(stages):
            operands += [(f"op{i}", op), (f"operand{i}", operand)]
            commutes = op in ("nl.add", "nl.multiply", "nl.maximum", "nl.minimum")
            if is_reversed and not commutes:
                operands.append((f"reverse{i}", "True"))
        return Step(
            call="tensor_scalar",
            dst=node.number,
            operands=tuple(operands),
            layout=layout,
            is_per_row=self._per_row(layout, *narrow_nodes),
        )

    # -- reductions ----------------------------------------------------------------------------

    def _reduction(self, node: Node) -> Step | None:
        argument = node.args[0]
        if node.op in (Op.MEAN, Op.VAR):
            pair = [
                (other.number, 0 if other.op is Op.MEAN else 1)
                for other in self.graph
                if other.op in (Op.MEAN, Op.VAR) and other.args == node.args
            ]
            first = min(n for n, _ in pair)
            if first != node.number:
                self._needed.add(first)
                return None
            return Step(
                call="bn",
                dst=first,
                operands=(("data", Ref(argument)),),
                layout=Layout.TILE,
                is_per_row=True,
                results=tuple(pair),
            )
        accumulates = node.op is Op.SUM and self._can_accumulate(argument)
        if accumulates and self._choice(node, "scalar", "vector") == "scalar":
            return self._accumulated(node, argument)
        return self._tensor_reduce(node, node.number, negate=False)

    def _accumulated(self, node: Node, argument: int) -> Step | None:
        """Let the activation that makes the argument add it up on the way."""
        if argument not in self.leaves:
            self._sums[argument] = node.number
            if argument not in self._needed:
                self._needed.add(argument)
                self._scratch.add(argument)
            return None
        self._scratch.add(node.number)
        return Step(
            call="activation",
            dst=node.number,
            operands=(("op", "nl.copy"), ("data", Ref(argument))),
            layout=Layout.TILE,
            is_per_row=True,
            reduce_to=node.number,
        )

    def _can_accumulate(self, number: int) -> bool:
        node = self.graph[number]
        if number in self.leaves:
            return True
        if node.op in UNARY:
            return not (node.op is Op.RECIPROCAL and self.is_fp32)
        split = self._narrow(node, (Op.ADD, Op.MULTIPLY))
        return split is not None and (node.op is Op.MULTIPLY or self._may_bias(split[1]))

    def _negated_reduction(self, node: Node, base: int, narrow: int) -> Step | None:
        """Select one instruction for minus a maximum, minimum or sum that only this node reads."""
        inner, factor = self.graph[base], self.graph[narrow]
        if (
            node.op is Op.MULTIPLY
            and factor.op is Op.SCALAR
            and factor.value == -1.0
            and inner.op in (Op.MAX, Op.MIN)
            and self._is_free(base, Layout.ROW)
        ):
            return self._tensor_reduce(inner, node.number, negate=True)
        return None

    def _tensor_reduce(self, node: Node, dst: int, *, negate: bool) -> Step:
        op = {Op.SUM: "add", Op.MAX: "maximum", Op.MIN: "minimum"}[node.op]
        return Step(
            call="tensor_reduce",
            dst=dst,
            operands=(
                ("op", f"nl.{op}"),
                ("data", Ref(node.args[0])),
                *((("negate", "True"),) if negate else ()),
            ),
            layout=Layout.TILE,
        )
