"""Writes the kernels of family `matmul`: loops over blocks, PSUM tiles and their epilogue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from nkisim.dtypes import DTYPES
from nkisim.machine.spec import Machine
from nkiwright.autoschedule.emit import Emitter, View
from nkiwright.autoschedule.grammar import Rendered
from nkiwright.autoschedule.graph import Node, Op
from nkiwright.autoschedule.plan import MatmulPlan
from nkiwright.autoschedule.region import Layout, Region
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


@dataclass(frozen=True, slots=True)
class Factor:
    """An operand of a product: an input as it lies in HBM."""

    node: int
    name: str
    dtype: str
    is_k_major: bool
    """Whether K is its first axis."""


@dataclass(frozen=True, slots=True)
class Product:
    """One matrix product of the graph."""

    node: int
    left: Factor
    right: Factor


def _same(view: View) -> View:
    return view


@dataclass(slots=True)
class _Side:
    """How one side of the product is named in the kernel."""

    factor: Factor
    tile: str
    size: str
    """Rows (left) or columns (right) of the whole matrix, as source."""
    sizes: tuple[int, ...]
    start: str
    stop: str
    block: str
    index: int


class MatmulKernel:
    """Writes one kernel."""

    def __init__(
        self,
        plan: MatmulPlan,
        products: tuple[Product, ...],
        region: Region,
        layouts: Mapping[int, Layout],
        traces: Traces,
        machine: Machine,
    ) -> None:
        self._plan = plan
        self._products = products
        self._region = region
        self._layouts = layouts
        self._traces = traces
        self._machine = machine
        problem = traces.problem
        sizes = {s for a in problem.inputs for s in a.shape if isinstance(s, str)}
        self._names = Names(
            [a.name for a in (*problem.inputs, *problem.outputs)]
            + [*sizes, *problem.scalars, "nl", "nki", "nisa", "kernel", "min", "range"]
        )
        self._account = Account(len(traces.dims), len(problem.shapes))
        self._hoisted = Lines(1)
        node = products[0].node
        graph = traces.main
        self._m_sizes, self._n_sizes = traces.sizes(node, 0), traces.sizes(node, 1)
        self._k_sizes = traces.sizes(graph[node].args[0], 1)
        self._m, self._n, self._k = map(
            traces.size_text, (self._m_sizes, self._n_sizes, self._k_sizes)
        )
        new = self._names.new
        self._p, self._bm, self._bn, self._tn, self._lk = map(
            new, ("PARTITIONS", "BLOCK_M", "BLOCK_N", "TILE_N", "LOAD_K")
        )
        self._k_tile, self._k_end, self._depth, self._row, self._row_stop = map(
            new, ("k_tile", "k_stop", "depth", "row", "row_stop")
        )
        self._kt, self._m0, self._m1, self._n0, self._n1 = map(
            new, ("k_tiles", "m_start", "m_stop", "n_start", "n_stop")
        )

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
        top.add(f"{self._p} = {self._machine.limits.partitions}")
        top.add(f"{self._bm} = {plan.block_m}  # rows of the result per block")
        top.add(f"{self._bn} = {plan.block_n}  # columns of the result per block")
        top.add(f"{self._tn} = {plan.tile_n}  # columns that one matmul moves")
        top.add(f"{self._lk} = {plan.load_k}  # K tiles that one copy brings")
        top.add(f"{self._kt} = ({self._k} + {self._p} - 1) // {self._p}")
        self._load_columns()
        body = Lines(1)
        self._blocks(body)
        lines = Lines(1)
        lines.extend(top)
        if self._hoisted:
            lines.add()
            lines.extend(self._hoisted)
        lines.add()
        lines.extend(body)
        lines.add()
        lines.add(f"return {', '.join(o.name for o in problem.outputs)}")
        text = "\n".join(
            [*header(problem, plan, what="matrix product with epilogue."), lines.text, ""]
        )
        return Rendered(
            source=text, sbuf_bytes=self._account.sbuf_bytes, psum_banks=self._account.banks
        )

    # -- blocks ----------------------------------------------------------------------------------

    def _blocks(self, body: Lines) -> None:
        lefts = {p.left.node: p.left for p in self._products}
        rights = {p.right.node: p.right for p in self._products}
        left = [
            _Side(f, self._names.new(f"{f.name}_block"), self._m, self._m_sizes, self._m0,
                  self._m1, self._bm, i)
            for i, f in enumerate(lefts.values())
        ]  # fmt: skip
        right = [
            _Side(f, self._names.new(f"{f.name}_block"), self._n, self._n_sizes, self._n0,
                  self._n1, self._bn, len(left) + i)
            for i, f in enumerate(rights.values())
        ]  # fmt: skip
        self._tiles = {s.factor.node: s for s in (*left, *right)}
        outer, inner = (left, right) if self._plan.order == "mn" else (right, left)
        body.comment(
            f"{'Rows' if outer is left else 'Columns'} are the outer loop: "
            f"{' and '.join(s.factor.name for s in outer)} is read once, "
            f"{' and '.join(s.factor.name for s in inner)} once per outer block."
        )
        prefetch = self._plan.prefetch
        if not prefetch:
            with self._each_block(body, outer[0], inner[0]):
                self._load_stage(body, outer, inner, loaded="")
                self._block(body)
            return
        new = self._names.new
        blocks, loaded, step = new("blocks"), new("loaded"), new("step")
        place = ", ".join((self._m0, self._m1, self._n0, self._n1))
        tiles = ", ".join(s.tile for s in (*outer, *inner))
        body.add(f"{blocks} = []")
        with self._each_block(body, outer[0], inner[0]):
            body.add(f"{blocks}.append(({place}))")
        body.add()
        body.comment(f"In program order loads run {prefetch} ahead of the block they are for.")
        body.add(f"{loaded} = []")
        with body.block(f"for {step} in range(len({blocks}) + {prefetch}):"):
            with body.block(f"if {step} < len({blocks}):"):
                body.add(f"{place} = {blocks}[{step}]")
                self._load_stage(body, outer, inner, loaded=loaded)
                body.add(f"{loaded}.append(({tiles}))")
            with body.block(f"if {step} >= {prefetch}:"):
                body.add(f"{place} = {blocks}[{step} - {prefetch}]")
                body.add(f"{tiles} = {loaded}[{step} - {prefetch}]")
                self._block(body)

    @contextmanager
    def _each_block(self, body: Lines, outer: _Side, inner: _Side) -> Iterator[None]:
        """Write the loops over blocks around what follows."""
        with body.block(f"for {outer.start} in range(0, {outer.size}, {outer.block}):"):
            body.add(f"{outer.stop} = min({outer.start} + {outer.block}, {outer.size})")
            with body.block(f"for {inner.start} in range(0, {inner.size}, {inner.block}):"):
                body.add(f"{inner.stop} = min({inner.start} + {inner.block}, {inner.size})")
                yield

    def _load_stage(
        self, body: Lines, outer: list[_Side], inner: list[_Side], *, loaded: str
    ) -> None:
        """Load what a block needs; the outer operand only when its block begins."""
        begins = f"{inner[0].start} == 0"
        with body.block(f"if {begins}:"):
            for side in outer:
                self._allocate_block(body, side, None)
        if loaded:
            with body.block("else:"):
                for position, side in enumerate(outer):
                    body.add(f"{side.tile} = {loaded}[-1][{position}]")
        for side in inner:
            self._allocate_block(body, side, outer[0])
        k_major = [s for s in (*outer, *inner) if s.factor.is_k_major]
        if k_major:
            self._load_k_major(body, k_major, outer, begins)

    def _allocate_block(self, body: Lines, side: _Side, outer: _Side | None) -> None:
        """Allocate an operand's block, and load it if it has to be transposed."""
        factor, plan = side.factor, self._plan
        body.allocate(side.tile, (self._p, self._kt, f"{side.stop} - {side.start}"), factor.dtype)
        block = plan.block_m if side.block == self._bm else plan.block_n
        other = plan.block_n if side.block == self._bm else plan.block_m
        for position in range(len(side.sizes)):
            trips = -(-side.sizes[position] // block)
            if outer is not None:
                trips *= -(-outer.sizes[position] // other)
            elements = [0] * len(side.sizes)
            k_tiles = -(-self._k_sizes[position] // self._machine.limits.partitions)
            elements[position] = k_tiles * min(block, side.sizes[position])
            self._account.sbuf(elements, factor.dtype, 2 if trips > 1 else 1)
        if factor.is_k_major:
            return
        if plan.transposition == "dma":
            self._load_transposed_by_dma(body, side)
        else:
            self._load_transposed_by_pe(body, side)

    def _load_k_major(
        self, body: Lines, sides: list[_Side], outer: list[_Side], begins: str
    ) -> None:
        """Copy [K, columns] so that K tiles lie one after another on the partitions.

        The operands take turns, so that the first products can start when little is loaded.
        """
        k, p, last = self._k_tile, self._p, self._k_end

        def copy(side: _Side, dst: str, src: str) -> None:
            queue = queue_arguments(self._plan.load_queue, side.index)
            body.call("nisa.dma_copy", f"dst={dst}", f"src={src}", *queue)

        def whole(side: _Side) -> None:
            part = f"{side.factor.name}_part"
            body.add(
                f"{part} = {side.factor.name}[{k} * {p}:{last} * {p}, {side.start}:{side.stop}]"
            )
            copy(
                side,
                f"{side.tile}[:, {k}:{last}, :]",
                f"{part}.reshape_dim(0, ({last} - {k}, {p})).permute((1, 0, 2))",
            )

        def rest(side: _Side) -> None:
            copy(
                side,
                f"{side.tile}[:{self._k} % {p}, {self._kt} - 1, :]",
                f"{side.factor.name}[{self._k} // {p} * {p}:{self._k}, {side.start}:{side.stop}]",
            )

        def each(emit: Callable[[_Side], None]) -> None:
            held = [s for s in sides if s in outer]
            if held:
                with body.block(f"if {begins}:"):
                    for side in held:
                        emit(side)
            for side in sides:
                if side not in outer:
                    emit(side)

        with body.block(f"for {k} in range(0, {self._k} // {p}, {self._lk}):"):
            body.add(f"{last} = min({k} + {self._lk}, {self._k} // {p})")
            each(whole)
        with body.block(f"if {self._k} % {p}:"):
            each(rest)

    def _load_transposed_by_dma(self, body: Lines, side: _Side) -> None:
        name, k, p, stop = side.factor.name, self._k_tile, self._p, self._k_end
        body.comment(f"{name} has its rows first: the copy transposes.")
        with body.block(f"for {k} in range({self._kt}):"):
            body.add(f"{stop} = min(({k} + 1) * {p}, {self._k})")
            body.call(
                "nisa.dma_transpose",
                f"dst={side.tile}[:{stop} - {k} * {p}, {k}, :]",
                f"src={name}[{side.start}:{side.stop}, {k} * {p}:{stop}]",
            )

    def _load_transposed_by_pe(self, body: Lines, side: _Side) -> None:
        """Load rows as they lie and transpose 128 × 128 tiles on the tensor engine."""
        factor, p = side.factor, self._p
        new = self._names.new
        tile, psum, at = map(new, (f"{factor.name}_rows", "turned", "at"))
        row, stop, k, end, group = self._row, self._row_stop, self._k_tile, self._k_end, "GROUP"
        size = DTYPES[factor.dtype].itemsize
        per_bank = self._machine.limits.psum_bank_bytes // (self._machine.limits.partitions * size)
        body.comment(f"{factor.name} has its rows first: 128 x 128 tiles are transposed on PE.")
        body.add(f"{group} = {per_bank}  # transposed tiles that fill a PSUM bank")
        queue = queue_arguments(self._plan.load_queue, side.index)
        with body.block(f"for {row} in range({side.start}, {side.stop}, {p}):"):
            body.add(f"{stop} = min({row} + {p}, {side.stop})")
            body.allocate(tile, (f"{stop} - {row}", self._k), factor.dtype)
            self._account.sbuf(self._k_sizes, factor.dtype, 2)
            self._account.psum(1)
            body.call("nisa.dma_copy", f"dst={tile}", f"src={factor.name}[{row}:{stop}, :]", *queue)
            with body.block(f"for {k} in range(0, {self._kt}, {group}):"):
                body.add(f"{end} = min({k} + {group}, {self._kt})")
                body.allocate(psum, (p, f"{end} - {k}", f"{stop} - {row}"), factor.dtype, "psum")
                depth = self._depth
                with body.block(f"for {at} in range({k}, {end}):"):
                    body.add(f"{depth} = min({p}, {self._k} - {at} * {p})")
                    body.call(
                        "nisa.nc_transpose",
                        f"dst={psum}[:{depth}, {at} - {k}, :]",
                        f"data={tile}[:, {at} * {p}:{at} * {p} + {depth}]",
                        "engine=nisa.engine.tensor",
                    )
                    body.call(
                        "nisa.tensor_copy",
                        f"dst={side.tile}[:{depth}, {at}, {row} - {side.start}:{stop} - "
                        f"{side.start}]",
                        f"src={psum}[:{depth}, {at} - {k}, :]",
                    )

    # -- one block -------------------------------------------------------------------------------

    def _block(self, body: Lines) -> None:
        problem, plan, graph = self._traces.problem, self._plan, self._traces.main
        new = self._names.new
        row, row_stop, rows = self._row, self._row_stop, new("rows")
        column, column_stop = new("column"), new("column_stop")
        span = self._tn if plan.banks == 1 else f"{plan.banks} * {self._tn}"
        body.add()
        held = self._multiply_block(body, row, row_stop) if plan.k_order == "outer" else {}
        with body.block(f"for {row} in range({self._m0}, {self._m1}, {self._p}):"):
            body.add(f"{row_stop} = min({row} + {self._p}, {self._m1})")
            body.add(f"{rows} = {row_stop} - {row}")
            outs: dict[int, str] = {}
            for out, number in zip(problem.outputs, graph.outputs, strict=True):
                tile = new(f"{out.name}_tile")
                outs[number] = tile
                body.allocate(tile, (rows, f"{self._n1} - {self._n0}"), out.dtype)
                widths = [min(plan.block_n, n) for n in self._n_sizes]
                self._account.sbuf(widths, out.dtype, 2)
            with body.block(f"for {column} in range({self._n0}, {self._n1}, {span}):"):
                body.add(f"{column_stop} = min({column} + {span}, {self._n1})")
                if held:
                    at = f"({row} - {self._m0}) // {self._p}"
                    part = f"{column} - {self._n0}:{column_stop} - {self._n0}"
                    views = {
                        node: View(
                            f"{psum}[:{rows}, {at}, {part}]",
                            Layout.TILE,
                            "float32",
                            in_psum=True,
                        )
                        for node, psum in held.items()
                    }
                else:
                    views = self._multiply(body, row, row_stop, rows, column, column_stop)
                self._epilogue(body, views, outs, row, row_stop, rows, column, column_stop)
            body.add()
            for out, number in zip(problem.outputs, graph.outputs, strict=True):
                body.call(
                    "nisa.dma_copy",
                    f"dst={out.name}[{row}:{row_stop}, {self._n0}:{self._n1}]",
                    f"src={outs[number]}",
                    *queue_arguments(plan.store_queue),
                )

    def _multiply_block(self, body: Lines, row: str, row_stop: str) -> dict[int, str]:
        """Emit the products of a whole block, K outside: work starts with the first load."""
        new, plan, limits = self._names.new, self._plan, self._machine.limits
        held: dict[int, str] = {}
        body.comment("The whole block accumulates in PSUM while K passes by.")
        for product in self._products:
            psum = new("product")
            held[product.node] = psum
            m_tiles = f"({self._m1} - {self._m0} + {self._p} - 1) // {self._p}"
            body.allocate(psum, (self._p, m_tiles, self._bn), "float32", "psum")
            tiles = -(-min(plan.block_m, max(self._m_sizes)) // limits.partitions)
            self._account.psum(tiles * plan.block_n * 4 // limits.psum_bank_bytes, 1)
        k, depth, at, end = self._k_tile, self._depth, new("move"), new("move_stop")
        with body.block(f"for {k} in range({self._kt}):"):
            body.add(f"{depth} = min({self._p}, {self._k} - {k} * {self._p})")
            with body.block(f"for {row} in range({self._m0}, {self._m1}, {self._p}):"):
                body.add(f"{row_stop} = min({row} + {self._p}, {self._m1})")
                with body.block(f"for {at} in range({self._n0}, {self._n1}, {self._tn}):"):
                    body.add(f"{end} = min({at} + {self._tn}, {self._n1})")
                    columns = f"{at} - {self._n0}:{end} - {self._n0}"
                    for product in self._products:
                        left = self._tiles[product.left.node]
                        right = self._tiles[product.right.node]
                        body.call(
                            "nisa.nc_matmul",
                            f"dst={held[product.node]}[:{row_stop} - {row}, "
                            f"({row} - {self._m0}) // {self._p}, {columns}]",
                            f"stationary={left.tile}[:{depth}, {k}, {row} - {self._m0}:"
                            f"{row_stop} - {self._m0}]",
                            f"moving={right.tile}[:{depth}, {k}, {columns}]",
                            f"accumulate={k} > 0",
                        )
        return held

    def _multiply(
        self, body: Lines, row: str, row_stop: str, rows: str, column: str, column_stop: str
    ) -> dict[int, View]:
        """Emit the products of one PSUM tile."""
        new, plan = self._names.new, self._plan
        views: dict[int, View] = {}
        k, depth, at, end = self._k_tile, self._depth, new("move"), new("move_stop")
        for product in self._products:
            psum = new("product")
            body.allocate(psum, (rows, f"{column_stop} - {column}"), "float32", "psum")
            self._account.psum(plan.banks)
            left, right = self._tiles[product.left.node], self._tiles[product.right.node]
            views[product.node] = View(psum, Layout.TILE, "float32", in_psum=True)

            across = f"{row} - {self._m0}:{row_stop} - {self._m0}"

            def matmul(
                start: str,
                stop: str,
                dst: str,
                left: _Side = left,
                right: _Side = right,
                across: str = across,
            ) -> None:
                with body.block(f"for {k} in range({self._kt}):"):
                    body.add(f"{depth} = min({self._p}, {self._k} - {k} * {self._p})")
                    body.call(
                        "nisa.nc_matmul",
                        f"dst={dst}",
                        f"stationary={left.tile}[:{depth}, {k}, {across}]",
                        f"moving={right.tile}[:{depth}, {k}, {start} - {self._n0}:{stop} - "
                        f"{self._n0}]",
                        f"accumulate={k} > 0",
                    )

            if plan.banks == 1:
                matmul(column, column_stop, psum)
            else:
                with body.block(f"for {at} in range({column}, {column_stop}, {self._tn}):"):
                    body.add(f"{end} = min({at} + {self._tn}, {column_stop})")
                    matmul(at, end, f"{psum}[:, {at} - {column}:{end} - {column}]")
        return views

    def _epilogue(
        self,
        body: Lines,
        views: dict[int, View],
        outs: Mapping[int, str],
        row: str,
        row_stop: str,
        rows: str,
        column: str,
        column_stop: str,
    ) -> None:
        """Emit the element functions on one PSUM tile, into the tiles that are stored."""
        problem, plan, graph = self._traces.problem, self._plan, self._traces.main
        span = plan.banks * plan.tile_n
        widths = tuple(min(span, n) for n in self._n_sizes)
        columns = f"{column} - {self._n0}:{column_stop} - {self._n0}"
        for index, number in enumerate(self._region.leaves):
            node = graph[number]
            if node.op is not Op.INPUT:
                continue
            layout = self._layouts[number]
            if layout is Layout.COLUMN:
                views[number] = View(
                    self._columns[number], layout, self._dtype_of(node),
                    columns=f"{column}:{column_stop}",
                )  # fmt: skip
                continue
            tile = self._names.new(f"{node.name}_tile")
            is_row = layout is Layout.ROW
            width = "1" if is_row else f"{column_stop} - {column}"
            body.allocate(tile, (rows, width), self._dtype_of(node))
            self._account.sbuf((1,) * len(widths) if is_row else widths, self._dtype_of(node), 2)
            part = f"{row}:{row_stop}, {':' if is_row else f'{column}:{column_stop}'}"
            body.call(
                "nisa.dma_copy",
                f"dst={tile}",
                f"src={node.name}[{part}]",
                *queue_arguments(plan.load_queue, index),
            )
            views[number] = View(tile, layout, self._dtype_of(node))
        emitter = Emitter(
            traces=self._traces,
            region=self._region,
            layouts=self._layouts,
            names=self._names,
            account=self._account,
            body=body,
            hoisted=self._hoisted,
            rows=rows,
            row_start=row,
            column_start=column,
            width=lambda number: f"{column_stop} - {column}",
            widths=lambda number: widths,
            dtype=lambda number: "float32",
            partitions=self._p,
            views=views,
        )
        for out, number in zip(problem.outputs, graph.outputs, strict=True):
            is_read = any(number in step.reads for step in self._region.steps)
            if number not in self._region.leaves and not (is_read and out.dtype != "float32"):
                target = View(outs[number], Layout.TILE, out.dtype, columns=columns)
                emitter.destinations[number] = partial(_same, target)
        emitter.run()
        for out, number in zip(problem.outputs, graph.outputs, strict=True):
            if number not in emitter.destinations:
                target = View(outs[number], Layout.TILE, out.dtype, columns=columns)
                self._evict(body, target.whole(rows, ""), emitter.views[number].whole(rows, ""),
                            f"({row} // {self._p} + {column} // {self._tn}) % 2")  # fmt: skip

    def _evict(self, body: Lines, dst: str, src: str, parity: str) -> None:
        def copy(engine: str) -> None:
            if engine == "scalar":
                body.call("nisa.activation", f"dst={dst}", "op=nl.copy", f"data={src}")
            else:
                body.call("nisa.tensor_copy", f"dst={dst}", f"src={src}")

        if self._plan.eviction != "alternate":
            copy(self._plan.eviction)
            return
        with body.block(f"if {parity} == 0:"):
            copy("vector")
        with body.block("else:"):
            copy("scalar")

    def _dtype_of(self, node: Node) -> str:
        return next(a.dtype for a in self._traces.problem.inputs if a.name == node.name)

    def _load_columns(self) -> None:
        self._columns: dict[int, str] = {}
        graph = self._traces.main
        for number in self._region.leaves:
            node = graph[number]
            if node.op is not Op.INPUT or self._layouts[number] is not Layout.COLUMN:
                continue
            tile = self._names.new(f"{node.name}_tile")
            self._columns[number] = tile
            if not self._hoisted:
                self._hoisted.comment(
                    "Vectors that all rows share: loaded once, repeated on every partition."
                )
            dtype = self._dtype_of(node)
            self._hoisted.allocate(tile, (self._p, self._n), dtype)
            self._account.sbuf(self._n_sizes, dtype)
            self._hoisted.call(
                "nisa.dma_copy",
                f"dst={tile}",
                f"src={node.name}.reshape((1, {self._n})).broadcast(0, {self._p})",
                *queue_arguments(self._plan.load_queue),
            )
