"""Two lower bounds on a task's latency: one proved, one engine-aware.

`floor_ns` counts only what no kernel can avoid: every input and output byte crosses HBM once, and
matmul columns stream at the best rate that the input dtypes allow.  A result below it is our bug.
`bound_ns` adds the elementwise and reduction work of the reference's op graph, two ops fused in
each pass, spread perfectly over Vector, Scalar and GpSimd engines at their fastest modes.  Both
include the fixed launch cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from nkisim.dtypes import DTYPES
from nkisim.machine.spec import Machine
from nkiwright.autoschedule.graph import ELEMENTWISE, REDUCTIONS, Graph, Op
from nkiwright.autoschedule.problem import Argument, NotCovered, Problem
from nkiwright.autoschedule.simplify import simplify
from nkiwright.autoschedule.tracer import trace
from nkiwright.tasks import Dims, Task, TensorSpec

FUSED_OPS_PER_PASS = 2.0
"""scalar_tensor_tensor and tensor_scalar do two ops in one pass over the data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Lower bounds on the emulated latency, launch cost included."""

    floor_ns: float
    bound_ns: float
    launch_ns: float
    bytes_ns: float
    """Input and output bytes at the DMA and HBM cap."""
    tensor_ns: float
    """Matmul columns at the best rate."""
    elementwise_ns: float
    """Elementwise and reduction work; 0 if the reference cannot be traced."""
    is_traced: bool
    """Whether the reference's op graph is known."""

    @property
    def binding(self) -> str:
        """What binds `bound_ns`."""
        terms = {
            "dma": self.bytes_ns,
            "tensor": self.tensor_ns,
            "elementwise": self.elementwise_ns,
        }
        return max(terms, key=lambda name: terms[name])


def bounds_of(task: Task, dims: Dims, machine: Machine) -> Bounds:
    """Return the bounds of a task at one shape.

    Args:
        task: The task.
        dims: Size of each symbolic dimension.
        machine: The machine.
    """
    launch = machine.launch_before_ns + machine.launch_after_ns
    total = sum(_bytes(spec, dims) for spec in (*task.inputs, *task.outputs))
    dma = machine.dma
    rate = min(dma.hbm_bytes_per_ns, dma.engines * dma.bytes_per_ns_per_engine)
    bytes_ns = total / rate
    graph = graph_of(task, dims)
    tensor_ns = elementwise_ns = 0.0
    if graph is not None:
        narrow = all(DTYPES[spec.dtype].itemsize <= 2 for spec in task.inputs)
        tensor_ns = _tensor_ns(graph, machine, _passes(task, machine))
        elementwise_ns = _elementwise_ns(graph, machine, is_16bit=narrow)
    return Bounds(
        floor_ns=launch + max(bytes_ns, tensor_ns),
        bound_ns=launch + max(bytes_ns, tensor_ns, elementwise_ns),
        launch_ns=launch,
        bytes_ns=bytes_ns,
        tensor_ns=tensor_ns,
        elementwise_ns=elementwise_ns,
        is_traced=graph is not None,
    )


def graph_of(task: Task, dims: Dims) -> Graph | None:
    """Return the op graph of a task's reference, or None if it cannot be traced."""
    problem = Problem(
        name=task.name,
        reference=task.reference_function(),
        inputs=tuple(Argument(name=s.name, shape=s.shape, dtype=s.dtype) for s in task.inputs),
        outputs=tuple(Argument(name=s.name, shape=s.shape, dtype=s.dtype) for s in task.outputs),
        scalars=dict(task.scalars),
        shapes=(dims,),
    )
    try:
        return simplify(trace(problem, dims))
    except NotCovered:
        return None


def _bytes(spec: TensorSpec, dims: Dims) -> int:
    return prod(spec.resolve(dims)) * DTYPES[spec.dtype].itemsize


def _passes(task: Task, machine: Machine) -> float:
    """Passes over the PE array per 128 rows of a contraction, at the best dtype of the inputs."""
    widest = max(DTYPES[spec.dtype].itemsize for spec in task.inputs)
    if widest == 1:
        return 0.5  # perf_mode=double_row
    return 1.0 if widest == 2 else machine.pe.fp32_passes


def _tensor_ns(graph: Graph, machine: Machine, passes: float) -> float:
    """Columns that the PE array must stream; a triangular mask may spare half of them."""
    lanes = machine.limits.partitions
    columns = 0.0
    for node in graph:
        if node.op is Op.MATMUL:
            depth = graph[node.args[0]].shape[-1]
            columns += prod(node.shape) * depth / (lanes * machine.limits.stationary_free_max)
    if any(node.op in (Op.MASK, Op.SELECT_TRIANGLE) for node in graph):
        columns /= 2
    return columns * passes / machine.pe.clock_ghz


def _elementwise_ns(graph: Graph, machine: Machine, *, is_16bit: bool) -> float:
    """Work of wide nodes, two fused in a pass, over all engines at their fastest."""
    lanes = machine.limits.partitions
    elements = 0.0
    for node in graph:
        if node.op in REDUCTIONS or node.op is Op.CUMSUM:
            elements += prod(graph[node.args[0]].shape)
        elif (node.op in ELEMENTWISE or node.op is Op.SELECT_TRIANGLE) and node.args:
            elements += prod(node.shape)
    if any(node.op in (Op.MASK, Op.SELECT_TRIANGLE) for node in graph):
        elements /= 2
    fastest = 4.0 if machine.dve.fast_modes and is_16bit else 1.0
    rate = (
        machine.dve.clock_ghz * fastest
        + machine.act.clock_ghz * machine.act.elements_per_cycle_16bit
        + machine.pool.clock_ghz / machine.pool.cycles_per_element
    )
    return elements / FUSED_OPS_PER_PASS / lanes / rate
