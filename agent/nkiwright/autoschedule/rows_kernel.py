"""Writes the kernels of family `rows`: the loop over tiles of rows around one region.

A tile is loaded, computed and stored; the plan says how many rows it packs, over how many buffers
it rotates, and how far loads and reductions run ahead in program order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from nkisim.machine.spec import Machine
from nkiwright.autoschedule.emit import Emitter, View
from nkiwright.autoschedule.grammar import Rendered
from nkiwright.autoschedule.graph import REDUCTIONS, Op
from nkiwright.autoschedule.plan import RowPlan
from nkiwright.autoschedule.region import Layout, Region, Step, layouts_of
from nkiwright.autoschedule.symbols import Traces
from nkiwright.autoschedule.writer import (
    Account,
    Lines,
    Names,
    header,
    queue_arguments,
    shape_text,
    unpack_sizes,
)


def _last_reduction(steps: tuple[Step, ...]) -> int:
    """Return the position of the last step that reduces rows."""
    return max(
        i
        for i, step in enumerate(steps)
        if step.call in ("tensor_reduce", "bn") or step.reduce_to is not None
    )


class RowKernel:
    """Writes one kernel."""

    def __init__(self, plan: RowPlan, region: Region, traces: Traces, machine: Machine) -> None:
        self._plan = plan
        self._region = region
        self._traces = traces
        self._graph = traces.main
        self._layouts = layouts_of(self._graph)
        self._partitions = machine.limits.partitions
        problem = traces.problem
        sizes = {s for a in problem.inputs for s in a.shape if isinstance(s, str)}
        self._names = Names(
            [a.name for a in (*problem.inputs, *problem.outputs)]
            + [*sizes, *problem.scalars, "nl", "nki", "nisa", "kernel", "min", "range"]
        )
        self._account = Account(len(traces.dims), len(problem.shapes))
        self._hoisted = Lines(1)
        self._views: dict[int, View] = {}
        self._stores: list[tuple[str, int]] = []
        self._after_reductions = self._find_after_reductions()
        new = self._names.new
        self._n_partitions = new("PARTITIONS")
        self._rows, self._start, self._stop = new("rows"), new("start"), new("stop")
        self._is_packed = plan.layout == "rows" and plan.pack > 1
        self._pack = new("pack") if self._is_packed else ""
        self._block = new("block")
        self._width = new("width") if plan.chunk else ""
        self._column = new("column") if plan.chunk and plan.layout == "rows" else ""
        self._n_pack = new("PACK") if self._is_packed else ""
        self._n_chunk = new("CHUNK") if plan.chunk else ""
        self._n_buffers = new("BUFFERS") if plan.buffers > 2 else ""
        self._slot = new("slot") if plan.buffers > 2 else ""
        self._carries = {
            n.number: new("carry") for n in self._graph if n.op is Op.CUMSUM and self._column
        }
        """Running sums that continue from one piece of a row to the next."""

    # -- the kernel ------------------------------------------------------------------------------

    def render(self) -> Rendered:
        """Return the source and what it takes on chip."""
        problem, plan = self._traces.problem, self._plan
        top = Lines(1)
        for line in unpack_sizes(problem):
            top.add(line)
        for out in problem.outputs:
            top.add(
                f"{out.name} = nl.ndarray({shape_text(out.shape)}, dtype=nl.{out.dtype}, "
                "buffer=nl.shared_hbm)"
            )
        top.add()
        top.add(f"{self._n_partitions} = {self._partitions}")
        if self._is_packed:
            top.add(f"{self._n_pack} = {plan.pack}  # rows that one partition holds")
        if plan.chunk:
            top.add(f"{self._n_chunk} = {plan.chunk}  # elements of a row per tile")
        if self._n_buffers:
            top.add(
                f"{self._n_buffers} = {plan.buffers}  # tiles that loads and stores rotate over"
            )
        total = " * ".join(self._leading() or ["1"])
        if plan.layout == "flat":
            total = " * ".join(map(str, problem.outputs[0].shape))
        n_rows = total
        if not total.isidentifier():
            n_rows = self._names.new("total")
            top.add(f"{n_rows} = {total}")
        self._n_rows = n_rows
        body = self._loop_body(plan)
        self._load_columns()
        lines = Lines(1)
        lines.extend(top)
        if self._hoisted:
            lines.add()
            lines.extend(self._hoisted)
        lines.add()
        lines.extend(body)
        lines.add()
        lines.add(f"return {', '.join(o.name for o in problem.outputs)}")
        what = "element functions and reductions along rows."
        text = "\n".join([*header(problem, plan, what=what), lines.text, ""])
        return Rendered(source=text, sbuf_bytes=self._account.sbuf_bytes, psum_banks=0)

    def _leading(self) -> list[str]:
        """Sizes of the row axes, as source."""
        rank = max(len(node.shape) for node in self._graph)
        number = next(
            n
            for n, layout in self._layouts.items()
            if layout is Layout.TILE and len(self._graph[n].shape) == rank
        )
        return [
            self._traces.size_text(self._traces.sizes(number, axis)) for axis in range(rank - 1)
        ]

    def _loop_body(self, plan: RowPlan) -> Lines:
        """Write the loop over tiles, as one pass or as stages that run some tiles apart."""
        lines = Lines(1)
        lag = plan.prefetch + plan.skewed
        if not lag:
            self._each_tile(lines, lambda: self._tile(lines))
            return lines
        new = self._names.new
        tiles, step = new("tiles"), new("step")
        lines.add(f"{tiles} = []")
        self._each_tile(lines, lambda: lines.add(f"{tiles}.append(({self._fields()}))"))
        lines.add()
        self._stages(lines, tiles, step)
        return lines

    def _fields(self) -> str:
        """The variables that say where a tile is."""
        names = (self._start, self._stop, self._rows, self._pack, self._column, self._width)
        return ", ".join(name for name in names if name)

    def _each_tile(self, lines: Lines, body: Callable[[], None]) -> None:
        """Write the loops that visit the tiles one after another."""
        start, stop, rows, n = self._start, self._stop, self._rows, self._n_rows
        plan, partitions = self._plan, self._n_partitions
        counts = bool(self._n_buffers) and not (plan.prefetch + plan.skewed)
        if counts:
            lines.add(f"{self._block} = 0")
        if plan.layout == "flat":
            lines.comment(
                "The shape does not matter here: each tile is a run of consecutive elements, "
                "CHUNK of them on each partition; what is left over makes narrower tiles."
            )
            lines.add(f"{start} = 0")
            with lines.block(f"while {start} < {n}:"):
                left = f"({n} - {start})"
                lines.add(f"{self._width} = min({self._n_chunk}, max(1, {left} // {partitions}))")
                lines.add(f"{rows} = min({partitions}, {left} // {self._width})")
                lines.add(f"{stop} = {start} + {rows} * {self._width}")
                body()
                lines.add(f"{start} = {stop}")
                if counts:
                    lines.add(f"{self._block} += 1")
            return
        if self._is_packed:
            lines.comment(
                f"{self._n_pack} consecutive rows lie side by side on a partition, so that copies "
                "are long; the rows left over at the end take a partition each."
            )
            lines.add(f"{start} = 0")
            with lines.block(f"while {start} < {n}:"):
                lines.add(
                    f"{self._pack} = {self._n_pack} if {n} - {start} >= "
                    f"{partitions} * {self._n_pack} else 1"
                )
                lines.add(f"{rows} = min({partitions}, {n} - {start})")
                lines.add(f"{stop} = {start} + {rows} * {self._pack}")
                body()
                lines.add(f"{start} = {stop}")
                if counts:
                    lines.add(f"{self._block} += 1")
            return
        with lines.block(f"for {start} in range(0, {n}, {partitions}):"):
            lines.add(f"{stop} = min({start} + {partitions}, {n})")
            lines.add(f"{rows} = {stop} - {start}")
            if not self._column:
                body()
                if counts:
                    lines.add(f"{self._block} += 1")
                return
            width = self._row_width()
            with lines.block(f"for {self._column} in range(0, {width}, {self._n_chunk}):"):
                lines.add(f"{self._width} = min({self._n_chunk}, {width} - {self._column})")
                body()
                if counts:
                    lines.add(f"{self._block} += 1")

    def _stages(self, lines: Lines, tiles: str, step: str) -> None:
        """Write loads, reductions and the rest as stages, each some tiles behind the first."""
        plan, new = self._plan, self._names.new
        lag = plan.prefetch + plan.skewed
        split = _last_reduction(self._region_of_tiles().steps) + 1 if plan.skewed else 0
        parts = []
        if plan.prefetch:
            parts.append(f"loads run {plan.prefetch} ahead of the tile they are for")
        if plan.skewed:
            parts.append("a tile's reductions are issued before the tile before it is finished")
        lines.comment(
            f"In program order {' and '.join(parts)}, so that no engine waits at the head of its "
            "stream."
        )
        loaded = new("loaded")
        begun = new("begun") if plan.skewed else ""
        lines.add(f"{loaded} = []")
        if begun:
            lines.add(f"{begun} = []")
        with lines.block(f"for {step} in range(len({tiles}) + {lag}):"):
            with lines.block(f"if {step} < len({tiles}):"):
                self._enter(lines, tiles, step)
                self._load_stage(lines)
                self._views.update(self._column_views())
                emitter = self._emitter(lines)
                variables = emitter.carried(0)
                lines.add(f"{loaded}.append({shape_text(variables)})")
            if begun:
                at = f"{step} - {plan.prefetch}" if plan.prefetch else step
                upper = f" < len({tiles})"
                condition = f"0 <= {at}{upper}" if plan.prefetch else f"{at}{upper}"
                with lines.block(f"if {condition}:"):
                    self._enter(lines, tiles, at)
                    lines.add(f"{shape_text(variables)} = {loaded}[{at}]")
                    emitter.emit(0, split)
                    variables = emitter.carried(split)
                    lines.add(f"{begun}.append({shape_text(variables)})")
            with lines.block(f"if {step} >= {lag}:"):
                at = f"{step} - {lag}"
                self._enter(lines, tiles, at)
                lines.add(f"{shape_text(variables)} = {begun or loaded}[{at}]")
                for carry in self._carries.values():
                    with lines.block(f"if {self._column} == 0:"):
                        lines.add(f"{carry} = 0.0")
                emitter.emit(split, len(emitter.region.steps))
                self._store_stage(lines)

    def _enter(self, lines: Lines, tiles: str, at: str) -> None:
        lines.add(f"{self._fields()} = {tiles}[{at}]")
        if self._n_buffers:
            inner = at if at.isidentifier() else f"({at})"
            lines.add(f"{self._slot} = {inner} % {self._n_buffers}")

    def _row_width(self) -> str:
        graph = self._graph
        return self._traces.size_text(self._traces.sizes(graph.outputs[0], -1))

    # -- one tile --------------------------------------------------------------------------------

    def _tile(self, body: Lines) -> None:
        if self._n_buffers:
            body.add(f"{self._slot} = {self._block} % {self._n_buffers}")
        for carry in self._carries.values():
            with body.block(f"if {self._column} == 0:"):
                body.add(f"{carry} = 0.0")
        body.add()
        self._load_stage(body)
        self._views.update(self._column_views())
        emitter = self._emitter(body)
        emitter.emit(0, len(emitter.region.steps))
        self._store_stage(body)

    def _load_stage(self, body: Lines) -> None:
        tiles = [n for n in self._region.leaves if self._layouts[n] in (Layout.TILE, Layout.ROW)]
        for index, number in enumerate(tiles):
            self._load(body, number, index)

    def _store_stage(self, body: Lines) -> None:
        body.add()
        for out, number in zip(self._traces.problem.outputs, self._graph.outputs, strict=True):
            self._store(body, number, out.name, out.dtype)

    def _column_views(self) -> dict[int, View]:
        """Name the tiles of column vectors, and emit what depends on them alone."""
        columns = [n for n in self._region.leaves if self._layouts[n] is Layout.COLUMN]
        for number in columns:
            self._views[number] = View(
                self._names.new(f"{self._input(number)}_tile"),
                Layout.COLUMN,
                self._dtype_of_input(number),
                columns=f"{self._column}:{self._column} + {self._width}" if self._column else "",
            )
        self._columns = columns
        self._emit_columns()
        return self._views

    def _emitter(self, body: Lines) -> Emitter:
        """Return the emitter of what is computed per tile, ready for its first step."""
        emitter = Emitter(
            traces=self._traces,
            region=self._region_of_tiles(),
            layouts=self._layouts,
            names=self._names,
            account=self._account,
            body=body,
            hoisted=self._hoisted,
            rows=self._rows,
            pack=self._pack,
            pack_max=self._plan.pack,
            row_start=self._start,
            column_start=self._column or "0",
            width=self._tile_width,
            widths=self._tile_widths,
            dtype=self._dtype,
            in_place=self._plan.in_place,
            partitions=self._n_partitions,
            views=self._views,
            carries=self._carries,
        )
        for out, number in zip(self._traces.problem.outputs, self._graph.outputs, strict=True):
            if self._writes_directly(number, out.dtype):
                emitter.destinations[number] = partial(
                    self._io_tile, body, number, f"{out.name}_tile", out.dtype
                )
        emitter.prepare()
        return emitter

    def _region_of_tiles(self) -> Region:
        steps = tuple(s for s in self._region.steps if s.layout is not Layout.COLUMN)
        return Region(steps, self._region.leaves, self._region.scratch, self._region.options)

    def _emit_columns(self) -> None:
        """Compute what depends on column vectors only, once."""
        steps = tuple(s for s in self._region.steps if s.layout is Layout.COLUMN)
        self._column_lines = Lines(1)
        if not steps:
            return
        plain = {n: View(v.variable, v.layout, v.dtype) for n, v in self._views.items()}
        emitter = Emitter(
            traces=self._traces,
            region=Region(steps, self._region.leaves, self._region.scratch, {}),
            layouts=self._layouts,
            names=self._names,
            account=self._account,
            body=self._column_lines,
            hoisted=self._hoisted,
            rows=self._n_partitions,
            width=lambda n: self._traces.size_text(self._traces.sizes(n, -1)),
            widths=lambda n: self._traces.sizes(n, -1),
            dtype=lambda n: "float32",
            partitions=self._n_partitions,
            copies=1,
            views=plain,
        )
        emitter.run()
        for number, view in plain.items():
            if number not in self._views:
                columns = f"{self._column}:{self._column} + {self._width}" if self._column else ""
                self._views[number] = View(view.variable, view.layout, view.dtype, columns=columns)

    def _load_columns(self) -> None:
        """Write the loads of column vectors, before everything else that is hoisted."""
        loads = Lines(1)
        if self._columns:
            loads.comment("Vectors that all rows share: loaded once, repeated on every partition.")
        for index, number in enumerate(self._columns):
            view = self._views[number]
            width = self._traces.size_text(self._traces.sizes(number, -1))
            loads.allocate(view.variable, (self._n_partitions, width), view.dtype)
            self._account.sbuf(self._traces.sizes(number, -1), view.dtype)
            source = self._input(number)
            loads.call(
                "nisa.dma_copy",
                f"dst={view.variable}",
                f"src={source}.reshape((1, {width})).broadcast(0, {self._n_partitions})",
                *queue_arguments(self._plan.load_queue, index),
            )
        loads.extend(self._column_lines)
        loads.extend(self._hoisted)
        self._hoisted = loads

    # -- sizes and dtypes ------------------------------------------------------------------------

    def _tile_width(self, number: int) -> str:
        if self._layouts[number] is Layout.TILE and self._width:
            return self._width
        return self._traces.size_text(self._traces.sizes(number, -1))

    def _tile_widths(self, number: int) -> tuple[int, ...]:
        sizes = self._traces.sizes(number, -1)
        if self._plan.chunk and self._layouts[number] is Layout.TILE:
            if self._plan.layout == "flat":
                return (self._plan.chunk,) * len(sizes)
            return tuple(min(self._plan.chunk, size) for size in sizes)
        return sizes

    def _dtype(self, number: int) -> str:
        """Dtype of an intermediate: float32, unless rounding each step is planned and harmless."""
        if self._plan.rounding == "each" and number in self._after_reductions:
            return self._traces.problem.outputs[0].dtype
        return "float32"

    def _find_after_reductions(self) -> frozenset[int]:
        """Return nodes whose rounding no sum adds up."""
        graph = self._graph
        summed: set[int] = set()
        for node in reversed(graph.nodes):
            if node.op in REDUCTIONS or node.op is Op.CUMSUM or node.number in summed:
                summed.update(node.args)
        return frozenset(n.number for n in graph if n.number not in summed)

    def _input(self, number: int) -> str:
        node = self._graph[number]
        return node.name if node.op is Op.INPUT else self._graph[node.args[0]].name

    def _dtype_of_input(self, number: int) -> str:
        name = self._input(number)
        return next(a.dtype for a in self._traces.problem.inputs if a.name == name)

    # -- copies ----------------------------------------------------------------------------------

    def _io_tile(self, body: Lines, number: int, name: str, dtype: str) -> View:
        """Make a tile that a copy fills or empties, with the planned number of buffers."""
        layout = self._layouts[number]
        is_row = layout is Layout.ROW
        width = "1" if is_row else self._tile_width(number)
        sizes = (1,) * len(self._traces.graphs) if is_row else self._tile_widths(number)
        variable = self._names.new(name)
        pack = (self._pack,) if self._pack else ()
        buffers = self._plan.buffers
        if buffers == 2 or is_row:
            shape = (self._rows, self._pack or 1) if is_row else (self._rows, *pack, width)
            body.allocate(variable, shape, dtype)
            alive = max(2, self._plan.prefetch + self._plan.skewed + 1)
            self._account.sbuf([s * self._plan.pack for s in sizes], dtype, alive)
            return View(variable, layout, dtype, self._is_packed)
        ring = self._names.new(f"{name}_ring" if buffers > 2 else f"{name}_buffer")
        full = self._n_chunk if self._width else width
        if self._column:
            full = f"min({self._n_chunk}, {self._row_width()})"
        parts = [self._n_partitions]
        slices = [f":{self._rows}"]
        if buffers > 2:
            parts.append(self._n_buffers)
            slices.append(self._slot)
        if self._is_packed:
            parts.append(self._n_pack)
            slices.append(f":{self._pack}")
        parts.append(full)
        slices.append(f":{width}" if self._width else ":")
        self._hoisted.allocate(ring, parts, dtype)
        self._account.sbuf([s * self._plan.pack for s in sizes], dtype, buffers)
        body.add(f"{variable} = {ring}[{', '.join(slices)}]")
        return View(variable, layout, dtype, self._is_packed)

    def _load(self, body: Lines, number: int, index: int) -> None:
        name, dtype = self._input(number), self._dtype_of_input(number)
        view = self._io_tile(body, number, f"{name}_tile", dtype)
        body.call(
            "nisa.dma_copy",
            f"dst={view.variable}",
            f"src={self._region_of(name, number)}",
            *queue_arguments(self._plan.load_queue, index),
        )
        if view.layout is Layout.ROW and dtype != "float32":
            exact = self._names.new(f"{name}_exact")
            body.allocate(exact, (self._rows, self._pack or 1), "float32")
            body.call("nisa.tensor_copy", f"dst={exact}", f"src={view.variable}")
            view = View(exact, Layout.ROW, "float32", self._is_packed)
        self._views[number] = view

    def _region_of(self, name: str, number: int) -> str:
        """Return the part of an HBM tensor that the current tile covers, in the tile's shape."""
        node = self._graph[number]
        layout = self._layouts[number]
        span = f"{self._start}:{self._stop}"
        if self._plan.layout == "flat":
            flat = name if len(node.shape) == 1 else f"{name}.reshape(({self._n_rows},))"
            return f"{flat}[{span}].reshape(({self._rows}, {self._width}))"
        width = (
            "1" if layout is Layout.ROW else self._traces.size_text(self._traces.sizes(number, -1))
        )
        argument = next(
            a
            for a in (*self._traces.problem.inputs, *self._traces.problem.outputs)
            if a.name == name
        )
        is_matrix = len(argument.shape) == 2 and len(node.shape) == 2
        matrix = name if is_matrix else f"{name}.reshape(({self._n_rows}, {width}))"
        if self._column and layout is Layout.TILE:
            return f"{matrix}[{span}, {self._column}:{self._column} + {self._width}]"
        view = f"{matrix}[{span}, :]"
        if not self._is_packed:
            return view
        if layout is Layout.ROW:
            return f"{view}.reshape(({self._rows}, {self._pack}))"
        return f"{view}.reshape(({self._rows}, {self._pack}, {width}))"

    def _writes_directly(self, number: int, dtype: str) -> bool:
        """Say whether the result may be computed straight into the tile that is stored."""
        if number in self._region.leaves:
            return False
        node = self._graph[number]
        if node.op in (Op.SLICE, Op.RESHAPE):
            return False
        if self._layouts[number] is Layout.ROW:
            return False
        if self._graph.outputs.count(number) > 1:
            return False
        is_read = any(number in step.reads for step in self._region.steps)
        is_read = is_read or number in self._carries
        same = dtype == "float32"
        if is_read and not same:
            return False
        # A result with the dtype of intermediates may take over the tile of an operand instead.
        may_overwrite = node.op is not Op.CONCAT and self._dtype(number) == dtype
        return not (self._plan.in_place and may_overwrite)

    def _store(self, body: Lines, number: int, name: str, dtype: str) -> None:
        view = self._views[number]
        if view.dtype != dtype or view.columns or view.aggregate:
            copy = self._io_tile(body, number, f"{name}_tile", dtype)
            body.call(
                "nisa.tensor_copy",
                f"dst={copy.whole(self._rows, self._pack)}",
                f"src={view.whole(self._rows, self._pack)}",
            )
            view = copy
        body.call(
            "nisa.dma_copy",
            f"dst={self._region_of(name, number)}",
            f"src={view.variable}",
            *queue_arguments(self._plan.store_queue),
        )
