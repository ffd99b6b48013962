"""Family `transpose`: the transpose of a matrix.

Either the copy transposes on the way in, or 128 × 128 tiles go through the tensor engine and PSUM.
What is stored are runs of `tile_rows` elements, so longer tiles make longer runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import cast

from nkisim.dtypes import DTYPES
from nkisim.machine.spec import Machine
from nkiwright.autoschedule.grammar import Knob, Rendered, queues_of
from nkiwright.autoschedule.graph import Op, refuse
from nkiwright.autoschedule.plan import Eviction, Plan, Queue, TransposePlan, Value
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

_ROWS = (128, 256, 512, 1024, 2048, 4096)
_COLUMNS = (128, 256, 512, 1024, 2048)


class TransposeFamily:
    """Plans and kernels for one matrix transpose."""

    def __init__(self, traces: Traces, machine: Machine) -> None:
        self._traces = traces
        self._machine = machine
        graph = traces.main
        if len(graph.outputs) != 1:
            raise NotCovered("a transpose beside other results")
        node = graph[graph.outputs[0]]
        if node.op is not Op.PERMUTE or graph[node.args[0]].op is not Op.INPUT:
            raise refuse(node, "is not the transpose of an input")
        if len(node.shape) != 2:
            raise refuse(node, f"of {len(node.shape)} axes")
        self._source = graph[node.args[0]]
        argument = next(a for a in traces.problem.inputs if a.name == self._source.name)
        output = traces.problem.outputs[0]
        if argument.dtype != output.dtype or DTYPES[argument.dtype].itemsize not in (2, 4):
            raise refuse(node, f"from {argument.dtype} to {output.dtype}")
        self._dtype = argument.dtype
        rows, columns = self._source.shape
        step = machine.limits.partitions
        per_bank = machine.limits.psum_bank_bytes // (step * DTYPES[self._dtype].itemsize)
        groups = tuple(g for g in (1, 2, 4, 8) if g <= per_bank)
        self.knobs: tuple[Knob, ...] = (
            Knob("method", ("dma", "pe")),
            Knob("tile_rows", tuple(r for r in _ROWS if r < rows + step)),
            Knob("tile_columns", tuple(c for c in _COLUMNS if c < columns + step)),
            Knob("group", groups),
            Knob("eviction", ("vector", "scalar", "alternate")),
            Knob("load_queue", queues_of(machine)),
            Knob("store_queue", queues_of(machine, is_many=True)),
        )

    def build(self, values: Mapping[str, Value]) -> Plan:
        """Return the plan with these knob values, in canonical form."""
        is_dma = values["method"] == "dma"
        return TransposePlan(
            method="dma" if is_dma else "pe",
            tile_rows=int(values["tile_rows"]),
            tile_columns=128 if is_dma else int(values["tile_columns"]),
            group=1 if is_dma else int(values["group"]),
            eviction="vector" if is_dma else cast("Eviction", values["eviction"]),
            load_queue="default" if is_dma else cast("Queue", values["load_queue"]),
            store_queue=cast("Queue", values["store_queue"]),
        )

    def values(self, plan: Plan) -> dict[str, Value]:
        """Return the knob values of a plan."""
        return {
            f.name: getattr(plan, f.name) for f in dataclasses.fields(plan) if f.name != "family"
        }

    def render(self, plan: Plan) -> Rendered:
        """Return the kernel that a plan stands for."""
        assert isinstance(plan, TransposePlan)
        traces, problem = self._traces, self._traces.problem
        source, out = self._source.name, problem.outputs[0]
        m_sizes, n_sizes = (traces.sizes(self._source.number, axis) for axis in (0, 1))
        m, n = traces.size_text(m_sizes), traces.size_text(n_sizes)
        sizes = {s for a in problem.inputs for s in a.shape if isinstance(s, str)}
        names = Names([source, out.name, *sizes, *problem.scalars, "nl", "nki", "nisa"])
        account = Account(len(traces.dims), len(problem.shapes))
        top = Lines(1)
        for line in unpack_sizes(problem):
            top.add(line)
        top.add(
            f"{out.name} = nl.ndarray({shape_text(out.shape)}, dtype=nl.{out.dtype}, "
            "buffer=nl.shared_hbm)"
        )
        top.add()
        p, tile_rows = names.new("PARTITIONS"), names.new("TILE_ROWS")
        top.add(f"{p} = {self._machine.limits.partitions}")
        top.add(f"{tile_rows} = {plan.tile_rows}  # rows of the source per tile")
        rows = [min(plan.tile_rows, size) for size in m_sizes]
        if plan.method == "dma":
            account.sbuf(rows, self._dtype, 2)
            self._by_dma(top, names, plan, source, out.name, m, n, p, tile_rows)
        else:
            blocks = plan.tile_columns // self._machine.limits.partitions
            account.sbuf([r * blocks for r in rows], self._dtype, 2)
            account.sbuf([min(plan.tile_columns, size) for size in n_sizes], self._dtype, 2)
            account.psum(1)
            self._by_pe(top, names, plan, source, out.name, m, n, p, tile_rows)
        top.add()
        top.add(f"return {out.name}")
        text = "\n".join([*header(problem, plan, what="transpose of a matrix."), top.text, ""])
        return Rendered(source=text, sbuf_bytes=account.sbuf_bytes, psum_banks=account.banks)

    def _by_dma(
        self, lines: Lines, names: Names, plan: TransposePlan, source: str, out: str,
        m: str, n: str, p: str, tile_rows: str,
    ) -> None:  # fmt: skip
        column, column_stop, row, row_stop, tile = map(
            names.new, ("column", "column_stop", "row", "row_stop", "tile")
        )
        lines.add()
        with lines.block(f"for {column} in range(0, {n}, {p}):"):
            lines.add(f"{column_stop} = min({column} + {p}, {n})")
            with lines.block(f"for {row} in range(0, {m}, {tile_rows}):"):
                lines.add(f"{row_stop} = min({row} + {tile_rows}, {m})")
                lines.allocate(
                    tile, (f"{column_stop} - {column}", f"{row_stop} - {row}"), self._dtype
                )
                lines.call(
                    "nisa.dma_transpose",
                    f"dst={tile}",
                    f"src={source}[{row}:{row_stop}, {column}:{column_stop}]",
                )
                lines.call(
                    "nisa.dma_copy",
                    f"dst={out}[{column}:{column_stop}, {row}:{row_stop}]",
                    f"src={tile}",
                    *queue_arguments(plan.store_queue),
                )

    def _by_pe(
        self, lines: Lines, names: Names, plan: TransposePlan, source: str, out: str,
        m: str, n: str, p: str, tile_rows: str,
    ) -> None:  # fmt: skip
        new = names.new
        tile_columns, group = new("TILE_COLUMNS"), new("GROUP")
        lines.add(f"{tile_columns} = {plan.tile_columns}  # columns of the source per load")
        lines.add(f"{group} = {plan.group}  # transposed tiles that share one PSUM tile")
        lines.add()
        column, column_stop, row, row_stop = map(new, ("column", "column_stop", "row", "row_stop"))
        part, part_stop, tile, turned = map(new, ("part", "part_stop", "tile", "turned"))
        first, last, at, width, psum = map(new, ("first", "last", "at", "width", "psum"))
        blocks = new("blocks")
        dtype = self._dtype
        with lines.block(f"for {column} in range(0, {n}, {tile_columns}):"):
            lines.add(f"{column_stop} = min({column} + {tile_columns}, {n})")
            lines.add(f"{blocks} = ({column_stop} - {column} + {p} - 1) // {p}")
            with lines.block(f"for {row} in range(0, {m}, {tile_rows}):"):
                lines.add(f"{row_stop} = min({row} + {tile_rows}, {m})")
                lines.allocate(turned, (p, blocks, f"{row_stop} - {row}"), dtype)
                with lines.block(f"for {part} in range({row}, {row_stop}, {p}):"):
                    lines.add(f"{part_stop} = min({part} + {p}, {row_stop})")
                    lines.allocate(
                        tile, (f"{part_stop} - {part}", f"{column_stop} - {column}"), dtype
                    )
                    lines.call(
                        "nisa.dma_copy",
                        f"dst={tile}",
                        f"src={source}[{part}:{part_stop}, {column}:{column_stop}]",
                        *queue_arguments(plan.load_queue),
                    )
                    with lines.block(f"for {first} in range(0, {blocks}, {group}):"):
                        lines.add(f"{last} = min({first} + {group}, {blocks})")
                        lines.allocate(
                            psum, (p, f"{last} - {first}", f"{part_stop} - {part}"), dtype, "psum"
                        )
                        with lines.block(f"for {at} in range({first}, {last}):"):
                            lines.add(f"{width} = min({p}, {column_stop} - {column} - {at} * {p})")
                            lines.call(
                                "nisa.nc_transpose",
                                f"dst={psum}[:{width}, {at} - {first}, :]",
                                f"data={tile}[:, {at} * {p}:{at} * {p} + {width}]",
                                "engine=nisa.engine.tensor",
                            )
                        lines.comment("A last tile of fewer than 128 columns is copied by itself.")
                        place = f"{part} - {row}:{part_stop} - {row}"
                        self._evict(
                            lines, plan, names, p, psum, turned, first, last, width, place,
                            f"({part} // {p} + {first} // {group}) % 2",
                        )  # fmt: skip
                index = 0
                with lines.block(f"for {at} in range({blocks}):"):
                    lines.add(f"{width} = min({p}, {column_stop} - {column} - {at} * {p})")
                    lines.call(
                        "nisa.dma_copy",
                        f"dst={out}[{column} + {at} * {p}:{column} + {at} * {p} + {width}, "
                        f"{row}:{row_stop}]",
                        f"src={turned}[:{width}, {at}, :]",
                        *queue_arguments(plan.store_queue, index),
                    )

    def _evict(
        self, lines: Lines, plan: TransposePlan, names: Names, p: str, psum: str, turned: str,
        first: str, last: str, width: str, place: str, parity: str,
    ) -> None:  # fmt: skip
        full = names.new("full")
        lines.add(f"{full} = {last} - {first} if {width} == {p} else {last} - {first} - 1")
        with lines.block(f"if {full}:"):
            copy(
                lines,
                plan.eviction,
                f"{turned}[:, {first}:{first} + {full}, {place}]",
                f"{psum}[:, :{full}, :]",
                parity,
            )
        with lines.block(f"if {width} < {p}:"):
            copy(
                lines,
                "vector",
                f"{turned}[:{width}, {last} - 1, {place}]",
                f"{psum}[:{width}, {last} - {first} - 1, :]",
                parity,
            )


def copy(lines: Lines, eviction: Eviction, dst: str, src: str, parity: str) -> None:
    """Emit a copy out of PSUM on the planned engine.

    Args:
        lines: Where to.
        eviction: The plan's choice.
        dst: Destination view.
        src: Source view.
        parity: Expression that is 0 or 1 by turns, for `alternate`.
    """
    if eviction == "alternate":
        with lines.block(f"if {parity} == 0:"):
            copy(lines, "vector", dst, src, parity)
        with lines.block("else:"):
            copy(lines, "scalar", dst, src, parity)
    elif eviction == "scalar":
        lines.call("nisa.activation", f"dst={dst}", "op=nl.copy", f"data={src}")
    else:
        lines.call("nisa.tensor_copy", f"dst={dst}", f"src={src}")
