"""Writes the kernels of family `attention`: loops over query tiles and keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nkisim.machine.spec import Machine
from nkiwright.autoschedule.emit import FILL
from nkiwright.autoschedule.grammar import Rendered
from nkiwright.autoschedule.graph import Node
from nkiwright.autoschedule.layout import copy
from nkiwright.autoschedule.plan import AttentionPlan, Eviction
from nkiwright.autoschedule.problem import NotCovered
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
class Head:
    """The parts of an attention graph."""

    query: str
    key: str
    value: str
    scale: int | None
    """SCALAR that multiplies the scores."""
    triangle: int | None
    """SELECT_TRIANGLE that masks the scores."""
    scores: int
    """The product of queries and keys."""
    dtype: str


class AttentionKernel:
    """Writes one kernel."""

    def __init__(
        self,
        plan: AttentionPlan,
        head: Head,
        nodes: Mapping[str, Node],
        traces: Traces,
        machine: Machine,
    ) -> None:
        self._plan, self._head, self._traces, self._machine = plan, head, traces, machine
        problem = traces.problem
        sizes = {s for a in problem.inputs for s in a.shape if isinstance(s, str)}
        self._names = Names(
            [a.name for a in (*problem.inputs, *problem.outputs)]
            + [*sizes, *problem.scalars, "nl", "nki", "nisa", "kernel", "min", "max", "range"]
        )
        self._account = Account(len(traces.dims), len(problem.shapes))
        self._n_sizes = traces.sizes(nodes["q"].number, 0)
        self._s_sizes = traces.sizes(nodes["k"].number, 0)
        self._d_sizes = traces.sizes(nodes["q"].number, 1)
        self._v_sizes = traces.sizes(nodes["v"].number, 1)
        self._n, self._s, self._d, self._v = map(
            traces.size_text, (self._n_sizes, self._s_sizes, self._d_sizes, self._v_sizes)
        )
        new = self._names.new
        self._p = new("PARTITIONS")
        self._key, self._key_stop = new("key"), new("key_stop")
        self._lines = Lines(1)

    def render(self) -> Rendered:
        """Return the source and what it takes on chip."""
        problem, plan, head, lines = self._traces.problem, self._plan, self._head, self._lines
        out = problem.outputs[0]
        new = self._names.new
        for line in unpack_sizes(problem):
            lines.add(line)
        lines.add(
            f"{out.name} = nl.ndarray({shape_text(out.shape)}, dtype=nl.{out.dtype}, "
            "buffer=nl.shared_hbm)"
        )
        lines.add()
        self._key_tile, self._group = new("KEY_TILE"), new("GROUP")
        lines.add(f"{self._p} = {self._machine.limits.partitions}")
        lines.add(f"{self._key_tile} = {plan.key_tile}  # keys per matmul of scores")
        lines.add(f"{self._group} = {plan.transpose_group}  # transposed tiles per PSUM tile")
        self._scale = ""
        if head.scale is not None:
            self._scale = new("SCALE")
            lines.add(f"{self._scale} = {self._traces.number_text(self._traces.main[head.scale])}")
        lines.add()
        keys_turned, values = new(f"{head.key}_turned"), new(f"{head.value}_tiles")
        lines.comment("Keys [head, sequence] and values [sequence, head] stay in SBUF throughout.")
        lines.allocate(keys_turned, (self._d, self._s), head.dtype)
        self._account.sbuf(self._s_sizes, head.dtype)
        self._load_turned(head.key, keys_turned, "0", self._s, 0)
        self._load_values(values)
        lines.add()
        self._queries = ""
        if plan.hoist_queries:
            self._queries = new(f"{head.query}_turned")
            lines.allocate(self._queries, (self._d, self._n), head.dtype)
            self._account.sbuf(self._n_sizes, head.dtype)
            self._load_turned(head.query, self._queries, "0", self._n, 1)
        lines.add()
        self._tiles(keys_turned, values)
        lines.add()
        lines.add(f"return {out.name}")
        text = "\n".join(
            [*header(problem, plan, what="softmax attention of one head."), lines.text, ""]
        )
        return Rendered(
            source=text, sbuf_bytes=self._account.sbuf_bytes, psum_banks=self._account.banks
        )

    def _tiles(self, keys_turned: str, values: str) -> None:
        """Emit the loop over query tiles, whose parts may run some tiles apart."""
        lines, plan, new = self._lines, self._plan, self._names.new
        query, stop, rows, keys = new("query"), new("query_stop"), new("rows"), new("keys")
        scores, weights, total = new("scores"), new("weights"), new("total")
        place = ", ".join((query, stop, rows, keys))
        if plan.stages == 1:
            with lines.block(f"for {query} in range(0, {self._n}, {self._p}):"):
                self._scores(keys_turned, scores, query, stop, rows, keys)
                self._softmax(scores, weights, total, rows, keys)
                self._product(weights, total, values, rows, keys, query, stop)
            return
        lag, step, count = plan.stages - 1, new("step"), new("query_tiles")
        scored, weighted = new("scored"), new("weighted")
        lines.comment(
            "The parts of a tile are issued some tiles apart, so that no engine waits at the head "
            "of its stream for another engine's part of the same tile."
        )
        lines.add(f"{count} = ({self._n} + {self._p} - 1) // {self._p}")
        if plan.stages == 3:
            lines.add(f"{scored} = []")
        lines.add(f"{weighted} = []")
        with lines.block(f"for {step} in range({count} + {lag}):"):
            with lines.block(f"if {step} < {count}:"):
                lines.add(f"{query} = {step} * {self._p}")
                self._scores(keys_turned, scores, query, stop, rows, keys)
                if plan.stages == 3:
                    lines.add(f"{scored}.append(({place}, {scores}))")
                else:
                    self._softmax(scores, weights, total, rows, keys)
                    lines.add(f"{weighted}.append(({place}, {weights}, {total}))")
            if plan.stages == 3:
                with lines.block(f"if 1 <= {step} < {count} + 1:"):
                    lines.add(f"{place}, {scores} = {scored}[{step} - 1]")
                    self._softmax(scores, weights, total, rows, keys)
                    lines.add(f"{weighted}.append(({place}, {weights}, {total}))")
            with lines.block(f"if {step} >= {lag}:"):
                lines.add(f"{place}, {weights}, {total} = {weighted}[{step} - {lag}]")
                self._product(weights, total, values, rows, keys, query, stop)

    def _scores(
        self, keys_turned: str, scores: str, query: str, stop: str, rows: str, keys: str
    ) -> None:
        """Emit the scores of one query tile, masked."""
        lines, plan, head = self._lines, self._plan, self._head
        lines.add(f"{stop} = min({query} + {self._p}, {self._n})")
        lines.add(f"{rows} = {stop} - {query}")
        if self._queries:
            turned = f"{self._queries}[:, {query}:{stop}]"
        else:
            turned = self._names.new(f"{head.query}_turned")
            lines.allocate(turned, (self._d, rows), head.dtype)
            self._account.sbuf((128,) * len(self._n_sizes), head.dtype, 2)
            self._load_turned(head.query, turned, query, stop, 1)
        if plan.skip_masked:
            lines.comment("Keys after the last query of the tile are masked: leave them out.")
            lines.add(f"{keys} = min({stop}{self._offset()}, {self._s})")
        else:
            lines.add(f"{keys} = {self._s}")
        self._multiply_keys(turned, keys_turned, scores, rows, keys)
        self._mask(scores, keys, query)

    def _offset(self) -> str:
        """The mask's diagonal as something to add: queries see keys up to row + offset."""
        assert self._head.triangle is not None
        offsets = tuple(
            int(g[self._head.triangle].number_attr("offset")) for g in self._traces.graphs
        )
        if set(offsets) == {0}:
            return ""
        if min(offsets) < 0:
            raise NotCovered("a mask that hides every key from some query")
        return f" + {self._traces.size_text(offsets)}"

    def _load_turned(self, name: str, dst: str, start: str, stop: str, index: int) -> None:
        """Load rows of [sequence, head] as [head, sequence]."""
        lines, dtype = self._lines, self._head.dtype
        if self._plan.transposition == "dma":
            lines.call("nisa.dma_transpose", f"dst={dst}", f"src={name}[{start}:{stop}, :]")
            return
        new = self._names.new
        tile, psum = new(f"{name}_rows"), new("turned")
        row, row_stop = self._key, self._key_stop
        self._account.sbuf(self._d_sizes, dtype, 2)
        self._account.psum(1)
        with lines.block(f"for {row} in range({start}, {stop}, {self._p}):"):
            lines.add(f"{row_stop} = min({row} + {self._p}, {stop})")
            lines.allocate(tile, (f"{row_stop} - {row}", self._d), dtype)
            lines.call(
                "nisa.dma_copy",
                f"dst={tile}",
                f"src={name}[{row}:{row_stop}, :]",
                *queue_arguments(self._plan.load_queue, index),
            )
            lines.allocate(psum, (self._d, f"{row_stop} - {row}"), dtype, "psum")
            lines.call("nisa.nc_transpose", f"dst={psum}", f"data={tile}",
                       "engine=nisa.engine.tensor")  # fmt: skip
            lines.call(
                "nisa.tensor_copy", f"dst={dst}[:, {row} - {start}:{row_stop} - {start}]",
                f"src={psum}",
            )  # fmt: skip

    def _load_values(self, values: str) -> None:
        lines, p, name = self._lines, self._p, self._head.value
        tiles, s = self._names.new("tiles"), self._s
        lines.add(f"{tiles} = {s} // {p}")
        lines.allocate(values, (p, f"({s} + {p} - 1) // {p}", self._v), self._head.dtype)
        counts = [
            -(-s_size // 128) * v for s_size, v in zip(self._s_sizes, self._v_sizes, strict=True)
        ]
        self._account.sbuf(counts, self._head.dtype)
        queue = queue_arguments(self._plan.load_queue, 1)
        with lines.block(f"if {tiles}:"):
            lines.call(
                "nisa.dma_copy",
                f"dst={values}[:, :{tiles}, :]",
                f"src={name}[:{tiles} * {p}, :].reshape_dim(0, ({tiles}, {p})).permute((1, 0, 2))",
                *queue,
            )
        with lines.block(f"if {s} % {p}:"):
            lines.call(
                "nisa.dma_copy",
                f"dst={values}[:{s} % {p}, {tiles}, :]",
                f"src={name}[{tiles} * {p}:{s}, :]",
                *queue,
            )

    def _multiply_keys(
        self, query: str, keys_turned: str, scores: str, rows: str, keys: str
    ) -> None:
        lines, plan = self._lines, self._plan
        psum = self._names.new("score_tile")
        key, stop = self._key, self._key_stop
        lines.allocate(scores, (rows, keys), "float32")
        self._account.sbuf(self._s_sizes, "float32", 2)
        self._account.psum(1)
        with lines.block(f"for {key} in range(0, {keys}, {self._key_tile}):"):
            lines.add(f"{stop} = min({key} + {self._key_tile}, {keys})")
            lines.allocate(psum, (rows, f"{stop} - {key}"), "float32", "psum")
            lines.call(
                "nisa.nc_matmul",
                f"dst={psum}",
                f"stationary={query}",
                f"moving={keys_turned}[:, {key}:{stop}]",
                "accumulate=False",
            )
            dst = f"{scores}[:, {key}:{stop}]"
            parity = f"({key} // {self._key_tile}) % 2"
            if self._scale and plan.scale_on == "scores":
                self._scaled_copy(plan.eviction, dst, psum, parity)
            else:
                copy(lines, plan.eviction, dst, psum, parity)

    def _scaled_copy(self, eviction: Eviction, dst: str, src: str, parity: str) -> None:
        lines = self._lines
        if eviction == "alternate":
            with lines.block(f"if {parity} == 0:"):
                self._scaled_copy("vector", dst, src, parity)
            with lines.block("else:"):
                self._scaled_copy("scalar", dst, src, parity)
        elif eviction == "scalar":
            lines.call(
                "nisa.activation", f"dst={dst}", "op=nl.copy", f"data={src}", f"scale={self._scale}"
            )
        else:
            lines.call(
                "nisa.tensor_scalar",
                f"dst={dst}",
                f"data={src}",
                "op0=nl.multiply",
                f"operand0={self._scale}",
            )

    def _mask(self, scores: str, keys: str, query: str) -> None:
        if self._head.triangle is None:
            return
        lines, offset = self._lines, self._offset()
        first = "0"
        if not self._plan.mask_all:
            first = self._names.new("diagonal")
            lines.comment("Only keys after the tile's first query can be masked.")
            lines.add(f"{first} = min({query}{offset}, {keys} - 1)")
        part = f"{scores}[:, {first}:]"
        terms = f"{query}{offset}" + ("" if first == "0" else f" - {first}")
        lines.call(
            "nisa.affine_select",
            f"dst={part}",
            f"pattern=[[-1, {keys}{'' if first == '0' else f' - {first}'}]]",
            f"offset={terms}",
            "channel_multiplier=1",
            f"on_true_tile={part}",
            f"on_false_value={FILL!r}",
            "cmp_op=nl.greater_equal",
        )

    def _softmax(self, scores: str, weights: str, total: str, rows: str, keys: str) -> None:
        lines, plan, head = self._lines, self._plan, self._head
        largest = self._names.new("minus_largest")
        lines.allocate(largest, (rows, 1), "float32")
        lines.call(
            "nisa.tensor_reduce", f"dst={largest}", "op=nl.maximum", f"data={scores}", "axis=1",
            "negate=True",
        )  # fmt: skip
        scale: tuple[str, ...] = ()
        if self._scale and plan.scale_on == "exponent":
            lines.call(
                "nisa.tensor_scalar", f"dst={largest}", f"data={largest}", "op0=nl.multiply",
                f"operand0={self._scale}",
            )  # fmt: skip
            scale = (f"scale={self._scale}",)
        lines.allocate(weights, (rows, keys), head.dtype)
        self._account.sbuf(self._s_sizes, head.dtype, 2)
        lines.allocate(total, (rows, 1), "float32")
        lines.call(
            "nisa.activation_reduce", f"dst={weights}", "op=nl.exp", f"data={scores}",
            "reduce_op=nl.add", f"reduce_res={total}", f"bias={largest}", *scale,
        )  # fmt: skip

    def _product(
        self,
        weights: str,
        total: str,
        values: str,
        rows: str,
        keys: str,
        query: str,
        query_stop: str,
    ) -> None:
        """Emit the product of one tile's weights with the values, normalised, and its store."""
        lines, plan, new = self._lines, self._plan, self._names.new
        product, inverse = new("product"), new("inverse")
        lines.allocate(product, (rows, self._v), "float32", "psum")
        self._account.psum(1)
        self._multiply_values(weights, values, product, rows, keys)
        out = self._traces.problem.outputs[0]
        tile = new(f"{out.name}_tile")
        lines.allocate(inverse, (rows, 1), "float32")
        lines.call("nisa.reciprocal", f"dst={inverse}", f"data={total}")
        lines.allocate(tile, (rows, self._v), out.dtype)
        self._account.sbuf(self._v_sizes, out.dtype, 2)
        lines.call(
            "nisa.tensor_scalar", f"dst={tile}", f"data={product}", "op0=nl.multiply",
            f"operand0={inverse}",
        )  # fmt: skip
        lines.call(
            "nisa.dma_copy",
            f"dst={out.name}[{query}:{query_stop}, :]",
            f"src={tile}",
            *queue_arguments(plan.store_queue),
        )

    def _multiply_values(
        self, weights: str, values: str, product: str, rows: str, keys: str
    ) -> None:
        """Transpose the weights tile by tile and contract them with the values over keys."""
        lines, p, head, plan = self._lines, self._p, self._head, self._plan
        new = self._names.new
        tiles, first, last, at, width, full = map(
            new, ("key_tiles", "first", "last", "at", "width", "full")
        )
        psum, turned = new("weights_psum"), new("weights_turned")
        lines.add(f"{tiles} = ({keys} + {p} - 1) // {p}")
        with lines.block(f"for {first} in range(0, {tiles}, {self._group}):"):
            lines.add(f"{last} = min({first} + {self._group}, {tiles})")
            lines.allocate(psum, (p, f"{last} - {first}", rows), head.dtype, "psum")
            lines.allocate(turned, (p, f"{last} - {first}", rows), head.dtype)
            self._account.psum(1)
            self._account.sbuf((128 * plan.transpose_group,) * len(self._n_sizes), head.dtype, 2)
            with lines.block(f"for {at} in range({first}, {last}):"):
                lines.add(f"{width} = min({p}, {keys} - {at} * {p})")
                lines.call(
                    "nisa.nc_transpose",
                    f"dst={psum}[:{width}, {at} - {first}, :]",
                    f"data={weights}[:, {at} * {p}:{at} * {p} + {width}]",
                    "engine=nisa.engine.tensor",
                )
            lines.comment("A last tile of fewer than 128 keys is copied by itself.")
            lines.add(f"{full} = {last} - {first} if {width} == {p} else {last} - {first} - 1")
            parity = f"({first} // {self._group}) % 2"
            with lines.block(f"if {full}:"):
                copy(
                    lines,
                    plan.transpose_eviction,
                    f"{turned}[:, :{full}, :]",
                    f"{psum}[:, :{full}, :]",
                    parity,
                )
            with lines.block(f"if {width} < {p}:"):
                copy(
                    lines,
                    "vector",
                    f"{turned}[:{width}, {last} - {first} - 1, :]",
                    f"{psum}[:{width}, {last} - {first} - 1, :]",
                    parity,
                )
            with lines.block(f"for {at} in range({first}, {last}):"):
                lines.add(f"{width} = min({p}, {keys} - {at} * {p})")
                lines.call(
                    "nisa.nc_matmul",
                    f"dst={product}",
                    f"stationary={turned}[:{width}, {at} - {first}, :]",
                    f"moving={values}[:{width}, {at}, :]",
                    f"accumulate={at} > 0",
                )
