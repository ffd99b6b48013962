"""Prints the instructions of a region: names, views, allocations, loops over packed rows.

Everything here works on one tile of rows.  The family decides what surrounds it: which tiles exist
already (loads, PSUM results), where results go, and what is hoisted out of the loops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from nkiwright.autoschedule.graph import COMPARISONS, Graph, Node, Op, refuse
from nkiwright.autoschedule.region import Layout, Number, Operand, Ref, Region, Step
from nkiwright.autoschedule.symbols import Traces
from nkiwright.autoschedule.writer import Account, Lines, Names

BN_STATS_MAX = 512
"""Elements that one bn_stats takes."""
FILL = -3.0e38
"""Stands for minus infinity in float32: exp of it is 0, and no NaN can come of it."""
PREDICATE = "uint8"
"""Dtype of conditions."""
_IN_PLACE = frozenset({"activation", "tensor_scalar", "tensor_tensor", "scalar_tensor_tensor"})
_NAMES: Mapping[Op, str] = {
    Op.EXP: "exponential",
    Op.SUM: "total",
    Op.MAX: "largest",
    Op.MIN: "smallest",
    Op.RSQRT: "inverse_root",
    Op.SQRT: "root",
    Op.SQUARE: "squared",
    Op.RECIPROCAL: "inverse",
    Op.ADD: "shifted",
    Op.SUBTRACT: "difference",
    Op.MULTIPLY: "scaled",
    Op.CUMSUM: "running",
    Op.MEAN: "mean",
    Op.VAR: "variance",
    Op.CONCAT: "joined",
    Op.SELECT_TRIANGLE: "masked",
}


@dataclass(frozen=True, slots=True)
class View:
    """Where a value is and how to write it down."""

    variable: str
    layout: Layout
    dtype: str
    is_packed: bool = False
    """Whether the variable has an axis of packed rows after the partition axis."""
    columns: str = ""
    """Slice of the last axis, or empty for all of it."""
    aggregate: str = ""
    """Column of a bn_aggr result that a ROW is, or empty."""
    in_psum: bool = False

    def whole(self, rows: str, pack: str) -> str:
        """All rows of the tile; `pack` is empty if rows are not packed."""
        if self.layout is Layout.COLUMN:
            view = f"{self.variable}[:{rows}, {self.columns or ':'}]"
            return f"{view}.expand_dim(1).broadcast(1, {pack})" if pack else view
        if self.aggregate:
            inner = self.aggregate if self.is_packed else f"{self.aggregate}:{self.aggregate} + 1"
            return f"{self.variable}[:, {':, ' if self.is_packed else ''}{inner}]"
        if not self.columns:
            return self.variable
        return f"{self.variable}[:, {':, ' if self.is_packed else ''}{self.columns}]"

    def row(self, rows: str, index: str) -> str:
        """The rows with packed index `index`, one on each partition."""
        if self.layout is Layout.COLUMN or not self.is_packed:
            return self.whole(rows, "")
        if self.layout is Layout.ROW:
            if self.aggregate:
                return f"{self.variable}[:, {index}, {self.aggregate}:{self.aggregate} + 1]"
            return f"{self.variable}[:, {index}:{index} + 1]"
        return f"{self.variable}[:, {index}, {self.columns or ':'}]"


@dataclass(slots=True, kw_only=True)
class Emitter:
    """Emits one region into a loop body."""

    traces: Traces
    region: Region
    layouts: Mapping[int, Layout]
    names: Names
    account: Account
    body: Lines
    hoisted: Lines
    """Lines that run once, before the loops."""
    rows: str
    """Rows of the tile, as source."""
    pack: str = ""
    """Packed rows of the tile, as source; empty if rows are not packed."""
    pack_max: int = 1
    row_start: str = "0"
    """First row of the tile in the whole matrix, as source."""
    column_start: str = "0"
    """First column of the tile, as source."""
    width: Callable[[int], str]
    """Node -> free size of its tile, as source."""
    widths: Callable[[int], tuple[int, ...]]
    """Node -> free size of its tile at each set of sizes."""
    dtype: Callable[[int], str]
    """Node -> dtype of its tile."""
    in_place: bool = False
    partitions: str = "PARTITIONS"
    copies: int = 2
    """Addresses that a tile allocated in the loop rotates over."""
    views: dict[int, View] = field(default_factory=dict)
    """Values that exist; the emitter adds what it makes."""
    destinations: dict[int, Callable[[], View]] = field(default_factory=dict)
    """Node -> makes the tile that it must be written to."""
    carries: Mapping[int, str] = field(default_factory=dict)
    """CUMSUM node -> variable that holds the sum of what came before this tile."""
    _row_lines: Lines | None = None
    _ones: str = ""
    _index: str = "j"
    _last_read: dict[int, int] = field(default_factory=dict)
    _slots: dict[int, tuple[int, str]] = field(default_factory=dict)
    _predicates: frozenset[int] = frozenset()

    @property
    def graph(self) -> Graph:
        """The graph at the main sizes."""
        return self.traces.main

    def run(self) -> None:
        """Emit every step."""
        self.prepare()
        self.emit(0, len(self.region.steps))

    def prepare(self) -> None:
        """Work out what has to be known before the first step."""
        if self.pack:
            self._index = self.names.new("j")
        self._find_slots()
        self._predicates = frozenset(
            step.operands[0][1].node
            for step in self.region.steps
            if step.call == "where" and isinstance(step.operands[0][1], Ref)
        )
        self._last_read = self._find_last_reads()

    def emit(self, first: int, last: int) -> None:
        """Emit steps `first` ≤ i < `last`."""
        for position in range(first, last):
            self._step(self.region.steps[position], position, self._last_read)
        self._flush()

    def carried(self, first: int) -> tuple[str, ...]:
        """Return variables that steps from `first` on read and earlier ones or loads made."""
        made = {n for step in self.region.steps[first:] for n in (step.dst, *_also(step))}
        read = [n for step in self.region.steps[first:] for n in step.reads if n not in made]
        read += [n for n in self.graph.outputs if n not in made]
        variables = (
            self.views[n].variable
            for n in read
            if n in self.views and self.views[n].layout is not Layout.COLUMN
        )
        return tuple(dict.fromkeys(variables))

    # -- what is known beforehand ----------------------------------------------------------------

    def _find_slots(self) -> None:
        """Let parts of a concatenation be computed in place if nobody else reads them."""
        uses = self.graph.uses()
        for step in self.region.steps:
            if step.call != Op.CONCAT:
                continue
            total = (0,) * len(self.traces.graphs)
            for part in self.graph[step.dst].args:
                sizes = self.traces.sizes(part, -1)
                end = tuple(a + b for a, b in zip(total, sizes, strict=True))
                columns = f"{self.traces.size_text(total)}:{self.traces.size_text(end)}"
                computed = part not in self.region.leaves and self.graph[part].op is not Op.SLICE
                if uses[part] == 1 and computed:
                    self._slots[part] = (step.dst, columns)
                else:
                    self._slots[-part - 1] = (step.dst, columns)
                total = end

    def _root(self, number: int) -> int:
        node = self.graph[number]
        while node.op in (Op.SLICE, Op.RESHAPE) and number not in self.region.leaves:
            number = node.args[0]
            node = self.graph[number]
        return self._slots[number][0] if number in self._slots else number

    def _find_last_reads(self) -> dict[int, int]:
        last: dict[int, int] = {}
        for position, step in enumerate(self.region.steps):
            for number in step.reads:
                last[self._root(number)] = position
        for number in (*self.destinations, *self.graph.outputs):
            last[self._root(number)] = len(self.region.steps)
        return last

    # -- one step --------------------------------------------------------------------------------

    def _step(self, step: Step, position: int, last_read: Mapping[int, int]) -> None:
        node = self.graph[step.dst]
        match step.call:
            case Op.SLICE:
                self.views[step.dst] = self._sliced(node)
                return
            case Op.RESHAPE:
                self.views[step.dst] = self.views[node.args[0]]
                return
            case Op.CONCAT:
                self._concat(node)
                return
            case "bn":
                self._statistics(step)
                return
            case "where":
                self._where(step, position, last_read)
                return
        dst = self._destination(step, position, last_read)
        total = None
        if step.reduce_to is not None:
            total = self._allocate_row(step.reduce_to)
            self.views[step.reduce_to] = total
        per_row = step.is_per_row and bool(self.pack)
        lines = self._lines(per_row)
        target = self._text(dst, per_row)
        arguments = [f"dst={target}"]
        call = step.call
        for key, operand in step.operands:
            arguments.append(f"{key}={self._operand(operand, per_row)}")
        match step.call:
            case "activation" if total is not None:
                call = "activation_reduce"
                arguments += ["reduce_op=nl.add", f"reduce_res={self._text(total, per_row)}"]
            case "tensor_reduce":
                arguments.append(f"axis={2 if self.pack else 1}")
            case "tensor_tensor_scan":
                ones = f"{self._ones_tile()}[:{self.rows}, :].broadcast(1, {self.width(step.dst)})"
                arguments[1:1] = [f"data0={ones}"]
                initial = self.carries.get(step.dst, "0.0")
                arguments += [f"initial={initial}", "op0=nl.multiply", "op1=nl.add"]
            case "affine_select":
                arguments += self._triangle(node)
        lines.call(f"nisa.{call}", *arguments)
        if step.dst in self.carries:
            width = self.width(step.dst)
            lines.add(f"{self.carries[step.dst]} = {dst.variable}[:, {width} - 1:{width}]")
        if step.dst != step.reduce_to:
            self.views[step.dst] = dst

    def _lines(self, per_row: bool) -> Lines:
        """Return where an instruction goes: the pending loop over packed rows, or the body."""
        if not per_row:
            self._flush()
            return self.body
        if self._row_lines is None:
            self._row_lines = Lines(self.body.depth + 1)
        return self._row_lines

    def _flush(self) -> None:
        if self._row_lines is not None:
            self.body.add(f"for {self._index} in range({self.pack}):")
            self.body.extend(self._row_lines)
            self._row_lines = None

    def _text(self, view: View, per_row: bool) -> str:
        return view.row(self.rows, self._index) if per_row else view.whole(self.rows, self.pack)

    def _operand(self, operand: Operand, per_row: bool) -> str:
        if isinstance(operand, Ref):
            return self._text(self.views[operand.node], per_row)
        if isinstance(operand, Number):
            return self.number(operand.node)
        return operand

    def number(self, number: int) -> str:
        """Return the source of a SCALAR node or a constant array."""
        node = self.graph[number]
        if node.op is Op.RESHAPE:
            node = self.graph[node.args[0]]
        text = self.traces.number_text(node)
        return {"-inf": repr(FILL), "inf": repr(-FILL)}.get(text, text)

    # -- tiles -----------------------------------------------------------------------------------

    def name(self, node: Node) -> str:
        """Return a fresh name for a node's tile."""
        return self.names.new(_NAMES.get(node.op, str(node.op)))

    def allocate(self, number: int, dtype: str, name: str) -> View:
        """Allocate a tile for a node in the loop body."""
        layout = self.layouts[number]
        packed = bool(self.pack) and layout is not Layout.COLUMN
        rows = self.partitions if layout is Layout.COLUMN else self.rows
        pack = (self.pack,) if packed else ()
        self.body.allocate(name, (rows, *pack, self.width(number)), dtype)
        elements = [w * self.pack_max for w in self.widths(number)]
        self.account.sbuf(elements, dtype, self.copies)
        return View(name, layout, dtype, packed)

    def _allocate_row(self, number: int) -> View:
        if number in self.destinations:
            return self.destinations[number]()
        name = self.name(self.graph[number])
        self.body.allocate(name, (self.rows, self.pack or "1"), "float32")
        return View(name, Layout.ROW, "float32", bool(self.pack))

    def _destination(self, step: Step, position: int, last_read: Mapping[int, int]) -> View:
        number = step.dst
        if step.reduce_to == number:
            # An input is copied only to be added up: the copy itself is not needed.
            data = next(o.node for key, o in step.operands if key == "data" and isinstance(o, Ref))
            return self.allocate(data, self.dtype(data), self.names.new("scratch"))
        if number in self.destinations and number not in self.region.leaves:
            return self.destinations[number]()
        if number in self._slots:
            owner, columns = self._slots[number]
            if owner not in self.views:
                self.views[owner] = self._new_tile(owner)
            return replace(self.views[owner], columns=columns)
        if self.layouts[number] is Layout.ROW:
            return self._allocate_row(number)
        if self.in_place and step.call in _IN_PLACE:
            for operand in step.reads:
                view = self.views[operand]
                if (
                    self.layouts[operand] is self.layouts[number] is Layout.TILE
                    and not view.columns
                    and not view.in_psum
                    and view.dtype == self._tile_dtype(number)
                    and self.widths(operand) == self.widths(number)
                    and last_read.get(self._root(operand)) == position
                ):
                    return view
        return self._new_tile(number)

    def _new_tile(self, number: int) -> View:
        if number in self.destinations:
            return self.destinations[number]()
        return self.allocate(number, self._tile_dtype(number), self.name(self.graph[number]))

    def _tile_dtype(self, number: int) -> str:
        is_predicate = number in self._predicates and self.graph[number].op in COMPARISONS
        return PREDICATE if is_predicate else self.dtype(number)

    def _sliced(self, node: Node) -> View:
        base = self.views[node.args[0]]
        if base.columns:
            raise refuse(node, "of a slice")
        bounds = [g[node.number].attr("bounds") for g in self.traces.graphs]
        starts, stops, steps = [], [], set()
        for entry in bounds:
            assert isinstance(entry, tuple)
            last = entry[-1]
            assert isinstance(last, tuple)
            starts.append(last[0])
            stops.append(last[1])
            steps.add(last[2])
        start = self.traces.size_text(tuple(starts), line=node.line)
        stop = self.traces.size_text(tuple(stops), line=node.line)
        step = "" if steps == {1} else f":{max(steps)}"
        return replace(base, columns=f"{start}:{stop}{step}")

    def _concat(self, node: Node) -> None:
        if node.number not in self.views:
            self.views[node.number] = self._new_tile(node.number)
        whole = self.views[node.number]
        for part in node.args:
            slot = self._slots.get(-part - 1)
            if slot is not None and slot[0] == node.number:
                target = replace(whole, columns=slot[1])
                self._flush()
                self.body.call(
                    "nisa.tensor_copy",
                    f"dst={self._text(target, False)}",
                    f"src={self._text(self.views[part], False)}",
                )

    def _ones_tile(self) -> str:
        if not self._ones:
            self._ones = self.names.new("ones")
            self.hoisted.allocate(self._ones, (self.partitions, 1), "float32")
            self.hoisted.add(f"nisa.memset(dst={self._ones}, value=1.0)")
        return self._ones

    # -- composite steps -------------------------------------------------------------------------

    def _triangle(self, node: Node) -> list[str]:
        """Arguments that keep elements with row - column + offset >= 0."""
        offsets = {int(g[node.number].number_attr("offset")) for g in self.traces.graphs}
        fills = {g[node.number].number_attr("fill") for g in self.traces.graphs}
        offset = (
            self.traces.size_text(
                tuple(int(g[node.number].number_attr("offset")) for g in self.traces.graphs)
            )
            if len(offsets) > 1
            else str(max(offsets))
        )
        fill = max(min(fills), FILL)
        width = self.width(node.number)
        pattern = f"[[1, {self.pack}], [-1, {width}]]" if self.pack else f"[[-1, {width}]]"
        terms = [t for t in (self.row_start, offset) if t != "0"] or ["0"]
        if self.column_start != "0":
            terms.append(f"- {self.column_start}")
        return [
            f"pattern={pattern}",
            f"offset={' + '.join(terms).replace('+ -', '-')}",
            f"channel_multiplier={self.pack or 1}",
            f"on_false_value={fill!r}",
            "cmp_op=nl.greater_equal",
        ]

    def _where(self, step: Step, position: int, last_read: Mapping[int, int]) -> None:
        """Copy what holds where the condition is false, then overwrite where it is true."""
        condition, yes, no = (operand for _, operand in step.operands)
        assert isinstance(condition, Ref)
        self._flush()
        predicate = self.views[condition.node]
        if predicate.dtype != PREDICATE:
            tile = self.allocate(condition.node, PREDICATE, self.names.new("predicate"))
            self.body.call(
                "nisa.tensor_scalar",
                f"dst={self._text(tile, False)}",
                f"data={self._text(predicate, False)}",
                "op0=nl.not_equal",
                "operand0=0.0",
            )
            predicate = tile
        dst = self._destination(step, position, last_read)
        target = self._text(dst, False)
        if isinstance(no, Number):
            self.body.call("nisa.memset", f"dst={target}", f"value={self.number(no.node)}")
        else:
            self.body.call("nisa.tensor_copy", f"dst={target}", f"src={self._operand(no, False)}")
        source = self._operand(yes, False)
        if isinstance(yes, Ref) and self.views[yes.node].dtype != dst.dtype:
            exact = self.allocate(step.dst, dst.dtype, self.names.new("exact"))
            self.body.call("nisa.tensor_copy", f"dst={exact.variable}", f"src={source}")
            source = self._text(exact, False)
        self.body.call(
            "nisa.tensor_copy_predicated",
            f"dst={target}",
            f"src={source}",
            f"predicate={self._text(predicate, False)}",
        )
        self.views[step.dst] = dst

    def _statistics(self, step: Step) -> None:
        """Mean and variance by bn_stats over runs of at most 512 and bn_aggr."""
        data = self.views[step.reads[0]]
        if data.columns:
            raise refuse(self.graph[step.dst], "of a slice")
        width = self.width(step.reads[0])
        stats, both = self.names.new("stats"), self.names.new("moments")
        runs, run = self.names.new("runs"), self.names.new("run")
        pack = (self.pack,) if self.pack else ()
        self.body.add(f"{runs} = -(-{_bracket(width)} // {BN_STATS_MAX})")
        self.body.allocate(stats, (self.rows, *pack, runs, 6), "float32")
        self.body.allocate(both, (self.rows, *pack, 2), "float32")
        per_row = bool(self.pack)
        lines = self._lines(per_row)
        at = f"{self._index}, " if per_row else ""
        start = f"{run} * {BN_STATS_MAX}"
        stop = f"min({start} + {BN_STATS_MAX}, {width})"
        source = replace(data, columns=f"{start}:{stop}")
        with lines.block(f"for {run} in range({runs}):"):
            lines.call(
                "nisa.bn_stats",
                f"dst={stats}[:, {at}{run}, :]",
                f"data={self._text(source, per_row)}",
            )
        lines.call("nisa.bn_aggr", f"dst={both}[:, {at}:]", f"data={stats}[:, {at}:, :]")
        for number, column in step.results:
            self.views[number] = View(
                both, Layout.ROW, "float32", bool(self.pack), aggregate=str(column)
            )


def _also(step: Step) -> tuple[int, ...]:
    """Return nodes that a step makes besides its destination."""
    total = () if step.reduce_to is None else (step.reduce_to,)
    return (*total, *(number for number, _ in step.results))


def _bracket(text: str) -> str:
    return text if text.isidentifier() or text.isdigit() else f"({text})"
