"""What a machine is: typed constants, read from TOML by `nkisim.machine.load`.

A `Machine` is one physical NeuronCore.  Units stand in the names; `Quantity` keeps where each
number comes from.  A what-if machine is a copy with fields changed (`Machine.with_changes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import StrEnum
from typing import Any, Literal, cast

from nkisim.errors import MachineError

Confidence = Literal["doc", "figure", "fit", "inferred", "conflict", "assumed"]


class Engine(StrEnum):
    """An in-order instruction stream of a NeuronCore, under its NKI name."""

    TENSOR = "tensor"
    VECTOR = "vector"
    SCALAR = "scalar"
    GPSIMD = "gpsimd"
    SYNC = "sync"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a machine constant comes from."""

    source: str
    confidence: Confidence
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the hardware and its compiler accept."""

    partitions: int
    """Lanes of SBUF and PSUM; the largest partition count of any tile."""
    stationary_free_max: int
    moving_free_max: int
    psum_banks: int
    psum_bank_bytes: int
    """Per partition; a matmul result must fit one bank on trn1 and trn2."""
    sbuf_bytes: int
    """SBUF bytes per partition of the hardware."""
    sbuf_usable_bytes: int
    """SBUF bytes per partition that a kernel may use."""
    vector_transpose_max: int
    bn_stats_free_max: int
    free_dims_max: int
    """Free dimensions of an on-chip access pattern."""
    hbm_bytes: int
    constant_bytes_max: int
    """Trace-time constants that a kernel may embed, all together."""

    @property
    def psum_bytes(self) -> int:
        """PSUM bytes per partition."""
        return self.psum_banks * self.psum_bank_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEngineCosts:
    """PE array."""

    clock_ghz: float
    min_interval_cycles: float
    fp32_passes: float
    """Cycles per moving column for 4-byte floats (1 for 16-bit)."""
    overhead_cycles: float
    """Added to each 16-bit matmul."""
    overhead_fp32_cycles: float
    fill_cycles: float
    """From the last moving column to the result in PSUM."""
    load_stationary_divisor: float
    """Loading M stationary columns takes M divided by this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorEngineCosts:
    """DVE."""

    clock_ghz: float
    min_interval_cycles: float
    overhead_cycles: float
    latency_cycles: float
    """From the last element in to the result readable by a dependent instruction."""
    two_input_factor: float
    """Cycles per element of a tensor_tensor whose fp32 operands both sit in SBUF."""
    fast_modes: bool
    """Whether the 2x and 4x modes of NeuronCore-v3 exist."""
    reciprocal_cycles_per_element: float
    accumulator_read_cycles: float
    dynamic_access_cycles: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarEngineCosts:
    """ACT."""

    clock_ghz: float
    min_interval_cycles: float
    overhead_cycles: float
    latency_cycles: float
    accumulator_read_cycles: float
    table_load_ns: float
    elements_per_cycle_16bit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpSimdCosts:
    """Pool."""

    clock_ghz: float
    start_cycles: float
    latency_cycles: float
    cycles_per_element: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DmaCosts:
    """The DMA engines that serve one core and the queues that feed them."""

    engines: int
    bytes_per_ns_per_engine: float
    hbm_bytes_per_ns: float
    """This core's share of HBM bandwidth."""
    issue_interval_ns: float
    """Shortest time between two copies issued by one engine's queue."""
    issue_stream_ns: float
    """Time that issuing a copy takes of the issuing engine's own stream."""
    trigger_ns: float
    """From issue to the first byte."""
    complete_ns: float
    """From the last byte to the semaphore seen by a waiting engine."""
    descriptor_bytes_min: int
    """A descriptor costs at least as much as moving this many bytes."""
    transpose_fraction_hbm: float
    transpose_fraction_sbuf: float
    software_descriptor_ns: float
    """GpSimd time to write the descriptors of one gather or scatter."""

    @property
    def bytes_per_ns(self) -> float:
        """Most bytes that cross HBM in a nanosecond: all engines, or the share of HBM."""
        return min(self.hbm_bytes_per_ns, self.engines * self.bytes_per_ns_per_engine)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One NeuronCore: limits and costs."""

    name: str
    """`trn1`, `trn2` or `trn3`."""
    core: str
    generation: int
    """NeuronCore version: 2, 3 or 4."""
    limits: Limits
    pe: TensorEngineCosts
    dve: VectorEngineCosts
    act: ScalarEngineCosts
    pool: GpSimdCosts
    dma: DmaCosts
    semaphore_ns: float
    """Engine to engine."""
    launch_before_ns: float
    """Fixed time before the first instruction."""
    launch_after_ns: float
    """Fixed time after the last one."""
    latency_band: float
    """Two of three kernels run within this share of their emulated latency; 0 if unknown."""
    stride_penalty_bytes: int
    """An innermost stride of at least this many bytes halves the port rate."""
    shared_ports_exclusive: bool
    """Whether DVE and Pool exclude each other on SBUF, DVE and ACT on PSUM (trn1)."""
    calibration: str
    """One phrase for headlines, such as `uncalibrated, scaled from trn2`."""
    sources: Mapping[str, Source]
    """Dotted field name -> where its number comes from."""

    def clock_ghz(self, engine: Engine) -> float:
        """Return the clock of `engine`; Sync runs at the Pool clock."""
        match engine:
            case Engine.TENSOR:
                return self.pe.clock_ghz
            case Engine.VECTOR:
                return self.dve.clock_ghz
            case Engine.SCALAR:
                return self.act.clock_ghz
            case Engine.GPSIMD | Engine.SYNC:
                return self.pool.clock_ghz

    def transfer_ns(self, hbm_bytes: float) -> float:
        """Return the least time in which bytes can cross HBM, whatever the copies look like."""
        return hbm_bytes / self.dma.bytes_per_ns

    def columns_ns(self, columns: float, *, is_fp32: bool = False) -> float:
        """Return the least time in which the PE array can stream moving columns."""
        passes = self.pe.fp32_passes if is_fp32 else 1.0
        return columns * passes / self.pe.clock_ghz

    @property
    def flops_per_ns(self) -> float:
        """Peak of the PE array for 16-bit floats."""
        return 2.0 * self.limits.partitions * self.limits.stationary_free_max * self.pe.clock_ghz

    def with_changes(self, changes: Mapping[str, Any]) -> Machine:
        """Return a what-if copy with dotted fields replaced, e.g. `{"dma.trigger_ns": 0.0}`.

        Raises:
            MachineError: There is no such field.
        """
        machine: Any = self
        for path, value in changes.items():
            group, _, field = path.rpartition(".")
            part = getattr(machine, group, None) if group else machine
            if not is_dataclass(part) or field not in {f.name for f in fields(part)}:
                raise MachineError(f"a machine has no field {path!r}")
            changed = replace(cast(Any, part), **{field: value})
            machine = replace(machine, **{group: changed}) if group else changed
        return cast(Machine, machine)
