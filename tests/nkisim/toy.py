"""A small machine, a small op table and a builder, to write Programs by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
import numpy.typing as npt

from nkisim.dtypes import DTYPES, DType, lookup, store, to_float32
from nkisim.errors import KernelError, Place
from nkisim.ir.access import Memory, Pattern
from nkisim.ir.program import (
    Argument,
    AttrValue,
    Buffer,
    BufferKind,
    Form,
    Index,
    Loop,
    Operand,
    Output,
    Program,
    Site,
)
from nkisim.machine import spec
from nkisim.machine.spec import Engine
from nkisim.ops.registry import OpSpec, OpTable, Param, ParamKind, Run, State

T, V, G, S = Engine.TENSOR, Engine.VECTOR, Engine.GPSIMD, Engine.SYNC
HBM, SBUF, PSUM, REGISTER = Memory.HBM, Memory.SBUF, Memory.PSUM, Memory.REGISTER
F32, BF16, I32 = DTYPES["float32"], DTYPES["bfloat16"], DTYPES["int32"]

MACHINE = spec.Machine(
    name="toy",
    core="toy",
    generation=3,
    limits=spec.Limits(
        partitions=128,
        stationary_free_max=128,
        moving_free_max=512,
        psum_banks=8,
        psum_bank_bytes=2048,
        sbuf_bytes=196608,
        sbuf_usable_bytes=4096,
        vector_transpose_max=32,
        bn_stats_free_max=512,
        free_dims_max=4,
        hbm_bytes=1 << 34,
        constant_bytes_max=1 << 20,
    ),
    pe=spec.TensorEngineCosts(
        clock_ghz=1.0,
        min_interval_cycles=64,
        fp32_passes=4,
        overhead_cycles=0,
        overhead_fp32_cycles=0,
        fill_cycles=0,
        load_stationary_divisor=4,
    ),
    dve=spec.VectorEngineCosts(
        clock_ghz=1.0,
        min_interval_cycles=64,
        overhead_cycles=0,
        latency_cycles=0,
        two_input_factor=1,
        fast_modes=False,
        reciprocal_cycles_per_element=1,
        accumulator_read_cycles=64,
        dynamic_access_cycles=600,
    ),
    act=spec.ScalarEngineCosts(
        clock_ghz=1.0,
        min_interval_cycles=64,
        overhead_cycles=0,
        latency_cycles=0,
        accumulator_read_cycles=64,
        table_load_ns=0,
        elements_per_cycle_16bit=1,
    ),
    pool=spec.GpSimdCosts(clock_ghz=1.0, start_cycles=0, latency_cycles=0, cycles_per_element=1),
    dma=spec.DmaCosts(
        engines=16,
        bytes_per_ns_per_engine=1,
        hbm_bytes_per_ns=1,
        issue_interval_ns=1,
        issue_stream_ns=50,
        trigger_ns=1,
        complete_ns=1,
        descriptor_bytes_min=1,
        transpose_fraction_hbm=1,
        transpose_fraction_sbuf=1,
        software_descriptor_ns=1,
    ),
    semaphore_ns=1,
    launch_before_ns=0,
    launch_after_ns=0,
    latency_band=0.0,
    stride_penalty_bytes=16,
    shared_ports_exclusive=False,
    calibration="a toy",
    sources={},
)


def _copy(form: Form) -> Run:
    dtype = form.operands[0].dtype

    def run(_: State, views: Sequence[npt.NDArray[np.generic]]) -> None:
        store(views[0], views[form.position("src") or 0], dtype)

    return run


def _add(form: Form) -> Run:
    dtype, sign = form["dst"].dtype, -1 if form.attr("op") == "subtract" else 1

    def run(_: State, views: Sequence[npt.NDArray[np.generic]]) -> None:
        store(views[0], to_float32(views[1]) + sign * to_float32(views[2]), dtype)

    return run


def _memset(form: Form) -> Run:
    value = form.attr("value")
    assert isinstance(value, (int, float))

    def run(_: State, views: Sequence[npt.NDArray[np.generic]]) -> None:
        views[0][...] = value

    return run


def _matmul(form: Form) -> Run:
    accumulate = form.attr("accumulate")
    assert accumulate is None or isinstance(accumulate, bool)

    def run(state: State, views: Sequence[npt.NDArray[np.generic]]) -> None:
        dst, stationary, moving = views
        product = to_float32(stationary).T @ to_float32(moving)
        adds = state.psum_accumulates(0) if accumulate is None else accumulate
        dst[...] = np.where(adds, dst, 0) + product

    return run


def _transpose(_: Form) -> Run:
    def run(_: State, views: Sequence[npt.NDArray[np.generic]]) -> None:
        views[0][...] = views[1].T

    return run


def _accumulate(form: Form) -> Run:
    source = form.position("src") or 0

    def run(_: State, views: Sequence[npt.NDArray[np.generic]]) -> None:
        views[0][...] = to_float32(views[0]) + to_float32(views[source])

    return run


def _check_add(form: Form, _: spec.Machine) -> None:
    if form["dst"].shape != form["data1"].shape:
        raise KernelError("NKS101", "add: shapes differ", got=str(form["data1"]))


def _pass(_: Form, __: spec.Machine) -> None:
    return


def _row(
    name: str,
    engines: tuple[Engine, ...],
    compile: Callable[[Form], Run],
    *params: Param,
    check: Callable[[Form, spec.Machine], None] = _pass,
    is_dma: bool = False,
) -> OpSpec:
    return OpSpec(
        name=name,
        params=params,
        engines=engines,
        summary="",
        semantics="",
        rules=(),
        example="",
        source="",
        check=check,
        compile=compile,
        cost=lambda *_: None,  # type: ignore[arg-type]
        is_dma=is_dma,
    )


def _tensor(name: str, access: str = "r", memories: tuple[Memory, ...] = (SBUF, PSUM)) -> Param:
    return Param(name=name, kind=ParamKind.TENSOR, access=access, memories=memories)  # type: ignore[arg-type]


_ANY = (HBM, SBUF)
OPS = OpTable(
    [
        _row(
            "dma_copy", (S, G), _copy, _tensor("dst", "w", _ANY), _tensor("src", "r", _ANY),
            Param(name="label", kind=ParamKind.OP, default=None), is_dma=True,
        ),
        _row(
            "dma_compute", (G,), _accumulate, _tensor("dst", "rw", _ANY), _tensor("src", "r", _ANY),
            is_dma=True,
        ),
        _row(
            "add", (V, G), _add, _tensor("dst", "w"), _tensor("data1"), _tensor("data2"),
            Param(name="op", kind=ParamKind.OP, default="add"),
            Param(name="scale", kind=ParamKind.NUMBER, default=1.0), check=_check_add,
        ),
        _row("tensor_copy", (V,), _copy, _tensor("dst", "w"), _tensor("src")),
        _row(
            "memset", (V,), _memset, _tensor("dst", "w"),
            Param(name="value", kind=ParamKind.NUMBER),
        ),
        _row(
            "nc_matmul", (T,), _matmul, _tensor("dst", "w", (PSUM,)),
            _tensor("stationary", "r", (SBUF,)), _tensor("moving", "r", (SBUF,)),
            Param(name="accumulate", kind=ParamKind.BOOL, default=None),
        ),
        _row("nc_transpose", (T,), _transpose, _tensor("dst", "w"), _tensor("src")),
        _row(
            "register_load", (S,), _copy,
            Param(name="dst", kind=ParamKind.REGISTER, access="w"), _tensor("src", "r", _ANY),
        ),
        _row(
            "register_store", (S,), _copy, _tensor("dst", "w", _ANY),
            Param(name="src", kind=ParamKind.REGISTER),
        ),
    ]
)  # fmt: skip


@dataclass(frozen=True)
class View:
    """An access to a toy buffer."""

    buffer: int
    memory: Memory
    offset: int
    counts: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    index: Index | None = None
    source: View | None = None

    def __getitem__(self, key: object) -> View:
        items = key if isinstance(key, tuple) else (key,)
        offset, counts, strides = self.offset, [], []
        for i, (count, stride) in enumerate(zip(self.counts, self.strides, strict=True)):
            item = items[i] if i < len(items) else slice(None)
            assert isinstance(item, slice)
            start, stop, step = item.indices(count)
            offset += start * stride
            counts.append(len(range(start, stop, step)))
            strides.append(stride * step)
        return replace(self, offset=offset, counts=tuple(counts), strides=tuple(strides))

    def at(self, source: View, *, bound: int, step: int = 1, skip: bool = False) -> View:
        """This access moved by a scalar index."""
        return replace(self, index=Index("scalar", step, bound, skip), source=source)

    def rows(self, source: View, *, bound: int, skip: bool = False) -> View:
        """Rows of a 2-D HBM tensor chosen by `source`."""
        step = self.strides[0]
        return replace(
            self,
            index=Index("vector", step, bound, skip),
            source=source,
            counts=(prod(source.counts), *self.counts[1:]),
            strides=(0, *self.strides[1:]),
        )

    def as_dtype(self, dtype: DType) -> View:
        """The same bytes as another dtype."""
        old, new = self.dtype.itemsize, dtype.itemsize
        return replace(
            self,
            dtype=dtype,
            offset=self.offset * old // new,
            counts=(*self.counts[:-1], self.counts[-1] * old // new),
            strides=(*(s * old // new for s in self.strides[:-1]), 1),
        )


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


@dataclass
class Toy:
    """Builds a Program; line numbers count emitted instructions and allocations from 1."""

    machine: str = "toy"
    forms: dict[Form, int] = field(default_factory=dict)
    buffers: list[Buffer] = field(default_factory=list)
    constants: list[npt.NDArray[np.generic]] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    open: list[int] = field(default_factory=list)
    arguments: list[Argument] = field(default_factory=list)
    form: list[int] = field(default_factory=list)
    site: list[int] = field(default_factory=list)
    operand_buffer: list[int] = field(default_factory=list)
    operand_offset: list[int] = field(default_factory=list)
    registers: int = 0
    is_hybrid: bool = False

    def _site(self, text: str) -> int:
        line = len(self.sites) + 1
        self.sites.append(Site(Place(file="kernel.py", line=line, text=text)))
        return len(self.sites) - 1

    def buffer(
        self,
        memory: Memory,
        shape: Sequence[int],
        dtype: DType = F32,
        *,
        kind: BufferKind = "local",
        fill: float | None = None,
        constant: int | None = None,
        address: int | None = None,
        start_partition: int = 0,
        site: int | None = None,
        loop: int | None = None,
    ) -> View:
        number = len(self.buffers)
        on_chip = memory is not HBM
        if loop is None and self.open:
            loop = self.open[-1]
        self.buffers.append(
            Buffer(
                memory,
                kind,
                dtype,
                shape[0] if on_chip else 1,
                prod(shape[1:]) if on_chip else prod(shape),
                f"t{number}",
                self._site(f"t{number} = ndarray({list(shape)})") if site is None else site,
                len(self.form),
                address,
                start_partition,
                fill,
                constant,
                loop,
            )
        )
        return View(number, memory, 0, tuple(shape), _row_major(shape), dtype)

    def sbuf(self, *shape: int, dtype: DType = F32, fill: float | None = None) -> View:
        return self.buffer(SBUF, shape, dtype, fill=fill)

    def psum(self, *shape: int, fill: float | None = None) -> View:
        return self.buffer(PSUM, shape, F32, fill=fill)

    def input(self, *shape: int, dtype: DType = F32, is_written: bool = False) -> View:
        view = self.buffer(HBM, shape, dtype, kind="input")
        name = f"x{len(self.arguments)}"
        self.arguments.append(Argument(name, view.buffer, tuple(shape), dtype, is_written))
        return view

    def output(self, *shape: int, dtype: DType = F32) -> View:
        return self.buffer(HBM, shape, dtype, kind="output")

    def constant(self, values: npt.NDArray[np.generic]) -> View:
        self.constants.append(values)
        dtype = lookup(values.dtype)
        assert dtype is not None
        return self.buffer(
            HBM, values.shape, dtype, kind="constant", constant=len(self.constants) - 1
        )

    def register(self) -> View:
        self.registers += 1
        return View(self.registers - 1, REGISTER, 0, (1,), (1,), I32)

    def emit(
        self,
        op: str,
        *,
        engine: Engine | None = None,
        attrs: dict[str, AttrValue] | None = None,
        line: int | None = None,
        **operands: View,
    ) -> None:
        rows: list[Operand] = []
        views: list[View] = []
        for role, view in operands.items():
            rows.append(
                Operand(
                    role, Pattern(view.counts, view.strides, view.dtype), view.memory, view.index
                )
            )
            views.append(view)
            if view.source is not None:
                source = view.source
                pattern = Pattern(source.counts, source.strides, source.dtype)
                rows.append(Operand(f"{role}.index", pattern, source.memory))
                views.append(source)
        form = Form(
            op,
            engine or (OPS[op].engines[0] if op in OPS else V),
            tuple(sorted((attrs or {}).items())),
            tuple(rows),
        )
        self.form.append(self.forms.setdefault(form, len(self.forms)))
        self.site.append(self._site(f"{op}(…)") if line is None else line)
        self.operand_buffer += [view.buffer for view in views]
        self.operand_offset += [view.offset for view in views]

    @contextmanager
    def loop(
        self,
        stop: int | View = 0,
        *,
        start: int | View = 0,
        step: int = 1,
        condition: View | None = None,
    ) -> Iterator[View]:
        """A device loop; yields its register."""
        register = condition or self.register()
        number = len(self.loops)
        self.loops.append(
            Loop(
                "for" if condition is None else "while",
                len(self.form),
                -1,
                self.open[-1] if self.open else None,
                register.buffer,
                0 if isinstance(start, View) else start,
                0 if isinstance(stop, View) else stop,
                step,
                start.buffer if isinstance(start, View) else None,
                stop.buffer if isinstance(stop, View) else None,
            )
        )
        self.open.append(number)
        yield register
        self.open.pop()
        self.loops[number] = replace(self.loops[number], last=len(self.form))

    def build(self, *outputs: View) -> Program:
        return Program(
            kernel="kernel",
            machine=self.machine,
            nki="0.6",
            forms=tuple(self.forms),
            buffers=tuple(self.buffers),
            constants=tuple(self.constants),
            sites=tuple(self.sites),
            loops=tuple(self.loops),
            arguments=tuple(self.arguments),
            outputs=tuple(
                Output(o.buffer, o.offset, Pattern(o.counts, o.strides, o.dtype)) for o in outputs
            ),
            form=np.array(self.form, dtype=np.int64),
            site=np.array(self.site, dtype=np.int64),
            operand_buffer=np.array(self.operand_buffer, dtype=np.int64),
            operand_offset=np.array(self.operand_offset, dtype=np.int64),
            register_count=self.registers,
            is_hybrid=self.is_hybrid,
        )


def tiled_add(rows: int = 256, columns: int = 512, tile: int = 128) -> Program:
    """A kernel with many instructions: y = a + b, tile by tile."""
    toy = Toy()
    a, b, y = toy.input(rows, columns), toy.input(rows, columns), toy.output(rows, columns)
    sites = [toy._site(f"line {i}") for i in range(7)]
    for r in range(0, rows, 128):
        for c in range(0, columns, tile):
            tiles = [toy.buffer(SBUF, (128, tile), site=site) for site in sites[:3]]
            window = (slice(r, r + 128), slice(c, c + tile))
            toy.emit("dma_copy", line=sites[3], dst=tiles[0], src=a[window])
            toy.emit("dma_copy", line=sites[4], dst=tiles[1], src=b[window])
            x, z = tiles[0], tiles[1]
            toy.emit("add", line=sites[5], attrs={"op": "add"}, dst=tiles[2], data1=x, data2=z)
            toy.emit("dma_copy", line=sites[6], dst=y[window], src=tiles[2])
    return toy.build(y)
