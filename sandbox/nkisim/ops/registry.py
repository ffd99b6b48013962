"""The op table: one `OpSpec` per instruction, the only place that defines it.

Front ends bind arguments by `params`, the validator calls `check`, the interpreter calls
`compile`, the timer calls `cost`; prompt cards, coverage tables and docs are printed from the same
rows.  Adding an instruction is adding one row in one of the engine modules beside this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, Protocol

import numpy as np
import numpy.typing as npt

from nkisim.dtypes import Array
from nkisim.ir.access import Memory
from nkisim.ir.program import AttrValue, Form, Operand
from nkisim.machine.spec import Engine, Machine
from nkisim.ops.axes import AxisMap, elementwise
from nkisim.ops.random_lanes import Lanes

ON_CHIP: Final = (Memory.SBUF, Memory.PSUM)
SBUF_ONLY: Final = (Memory.SBUF,)
PSUM_ONLY: Final = (Memory.PSUM,)
DMA_SIDES: Final = (Memory.HBM, Memory.SBUF)


class ParamKind(StrEnum):
    """What a parameter of an instruction accepts."""

    TENSOR = "tensor"
    TENSOR_OR_SCALAR = "tensor or scalar"
    TENSORS = "list of tensors"
    OP = "op"
    """An ALU op or activation function token such as `nl.add`; becomes its name."""
    NUMBER = "number"
    INTEGER = "integer"
    BOOL = "bool"
    ENUM = "enum"
    """A member of an NKI enum; becomes its name."""
    INTEGERS = "integers"
    """A possibly nested list of integers; becomes nested tuples."""
    ENGINE = "engine"
    REGISTER = "register"
    REGISTER_OR_INTEGER = "register or integer"
    LABEL = "label"
    """`name=` and scheduling hints without effect on values; dropped."""


Rows = Callable[[Form, Operand], tuple[tuple[int, int], ...]]
"""Gives the partitions of an operand that an instruction touches as (first, count) runs."""


class Required(StrEnum):
    """Marks a parameter without default."""

    REQUIRED = "required"


REQUIRED: Final = Required.REQUIRED


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """One parameter, in the order of the newest signature."""

    name: str
    kind: ParamKind
    default: AttrValue | Required = REQUIRED
    access: Literal["r", "w", "rw"] = "r"
    """For tensors: whether the instruction reads or writes it."""
    memories: tuple[Memory, ...] = ON_CHIP
    """For tensors: where it may live."""
    choices: tuple[str, ...] = ()
    """For ops and enums: the legal names; empty for any."""
    since: str = "0.1"
    """First NKI version that has it."""
    until: str | None = None
    """First NKI version that no longer has it."""
    rows: Rows | None = None
    """For tensors: which partitions are touched, if not all of them."""
    quadrant_starts: tuple[int, ...] = ()
    """For tensors: legal first partitions inside a quadrant of 32, instead of the rule by size."""

    @property
    def is_tensor(self) -> bool:
        """Whether a tensor may be passed."""
        return self.kind in (ParamKind.TENSOR, ParamKind.TENSOR_OR_SCALAR, ParamKind.TENSORS)


class State(Protocol):
    """What outlives an instruction on the device and is not in a buffer."""

    scalar_accumulator: npt.NDArray[np.float32]
    """[128]: ScalarE's accumulate registers."""
    vector_accumulator: npt.NDArray[np.float32]
    """[128]: VectorE's accumulate registers."""
    registers: npt.NDArray[np.int64]
    vector_random: Lanes
    """VectorE's random number generators."""
    gpsimd_random: Lanes
    """GpSimd's."""

    def psum_accumulates(self, position: int) -> bool | npt.NDArray[np.bool_]:
        """Say where operand `position` of the current instruction holds a matmul result already.

        True or False if that is so for all or none of its elements, else a mask of its shape.
        """
        ...


Run = Callable[[State, Sequence[Array]], None]
"""Executes one instruction: `run(state, views)`, one numpy view per operand of the form in order.
Views are strided windows on the buffers; writing to a view of role `w`/`rw` writes the buffer.
Views of registers are `registers[n:n+1]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Time of a compute instruction, in cycles of the executing engine."""

    interval: float
    """From its start to the earliest start of the next instruction on the engine."""
    latency: float
    """From its start until another instruction may use the result; at least `interval`."""
    table: str | None = None
    """ScalarE: function table that must be loaded."""
    flops: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DmaCost:
    """Work of a DMA instruction; the timer turns it into time."""

    bytes_read: int
    bytes_written: int
    hbm_bytes: int
    """Bytes that cross the HBM port, either way."""
    descriptors: int
    """Contiguous runs."""
    engines_used: int
    """DMA engines over which the copy spreads."""
    rate_fraction: float = 1.0
    """Share of the plain copy rate (transposes run slower)."""
    is_store: bool = False
    """Whether the destination is HBM."""
    is_software_generated: bool = False
    """GpSimd writes the descriptors (gather, scatter)."""


Check = Callable[[Form, Machine], None]
Compile = Callable[[Form], Run]
CostFunction = Callable[[Form, Machine], "Cost | DmaCost"]
EngineChoice = Callable[[Form, Machine], Engine]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSpec:
    """Everything that nkisim knows about one instruction."""

    name: str
    """Name in `nki.isa`."""
    params: tuple[Param, ...]
    engines: tuple[Engine, ...]
    """Engines that can execute it; the first is the default unless `choose_engine` decides."""
    summary: str
    """One line: what it computes."""
    semantics: str
    """The result as a formula in numpy words."""
    rules: tuple[str, ...]
    """Operand rules in words, as a kernel author needs them."""
    example: str
    """One legal call."""
    source: str
    """Documentation page that this row follows."""
    check: Check
    """Raises KernelError if the form breaks a rule; called once per form."""
    compile: Compile
    cost: CostFunction
    choose_engine: EngineChoice | None = None
    axes: AxisMap = elementwise
    """Which axes of the iteration space each operand has; a mask restricts iterations."""
    is_dma: bool = False
    min_generation: int = 2
    """First NeuronCore version that has it."""
    since: str = "0.1"
    until: str | None = None
    tested_on: tuple[str, ...] = ()

    def param(self, name: str) -> Param | None:
        """Return parameter `name` or None."""
        return next((p for p in self.params if p.name == name), None)

    @property
    def signature(self) -> str:
        """The newest signature as text."""
        parts = [
            p.name if p.default is REQUIRED else f"{p.name}={p.default}"
            for p in self.params
            if p.until is None
        ]
        return f"nisa.{self.name}({', '.join(parts)})"


class OpTable:
    """The instructions by name."""

    def __init__(self, specs: Sequence[OpSpec]) -> None:
        self._specs = {spec.name: spec for spec in specs}
        if len(self._specs) != len(specs):
            raise ValueError("two rows of the op table share a name")

    def __getitem__(self, name: str) -> OpSpec:
        return self._specs[name]

    def __contains__(self, name: object) -> bool:
        return name in self._specs

    def __iter__(self) -> Iterator[OpSpec]:
        return iter(self._specs.values())

    def __len__(self) -> int:
        return len(self._specs)
