"""Loops, grids and what accumulates over them.

Loop variables are integers that know whether they are at their first value, because
`nl.loop_reduce` starts afresh there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from nkisim.dtypes import DTYPES
from nkisim.errors import KernelError, UnsupportedError
from nkisim.frontend.bind import NUMPY_OPS, NlFunction
from nkisim.frontend.context import current
from nkisim.frontend.emission import result_of
from nkisim.frontend.index import Grid, IndexTensor, MeshGrid, as_integer
from nkisim.frontend.neuronxcc.arithmetic import binary
from nkisim.frontend.neuronxcc.promotion import wanted_dtype
from nkisim.frontend.neuronxcc.tiles import finish, isa, new_tile, on_chip
from nkisim.frontend.tensor import NkiTensor


class LoopIndex(int):
    """The variable of an `affine_range`, `sequential_range` or `static_range`."""

    is_first: bool
    """Whether this is the loop's first iteration."""


def loop(*args: Any, **_: object) -> Iterator[LoopIndex]:
    """Loop at trace time over range(*args)."""
    try:
        values = range(*(as_integer(arg) for arg in args))
    except (TypeError, ValueError) as error:
        raise KernelError("NKS105", f"a loop takes integers, got {args!r:.80}: {error}") from None
    running = current().loop_variables
    depth = len(running)
    is_first = True
    try:
        for value in values:
            variable = LoopIndex(value)
            variable.is_first, is_first = is_first, False
            del running[depth:]
            running.append(variable)
            yield variable
    finally:
        del running[depth:]


def arange(*args: Any) -> IndexTensor:
    """Index tensor start, start + step, … below stop."""
    current().note_hybrid("index tensors (nl.arange)")
    numbers = [as_integer(arg) for arg in args]
    if not 1 <= len(numbers) <= 3:
        raise KernelError("NKS602", f"nl.arange takes 1 to 3 integers, got {len(numbers)}")
    return IndexTensor.arange(0, *numbers) if len(numbers) == 1 else IndexTensor.arange(*numbers)


MGRID = MeshGrid()


def gemm_grid() -> Grid:
    """Index tensors of a matmul's moving tile: partitions by the largest free size."""
    limits = current().machine.limits
    return MGRID[0 : limits.partitions, 0 : min(512, limits.moving_free_max)]


def gemm_stationary_grid() -> Grid:
    """Index tensors of a matmul's stationary tile."""
    limits = current().machine.limits
    return MGRID[0 : limits.partitions, 0 : limits.stationary_free_max]


class CoreDim(int):
    """`nl.nc(n)`: a grid dimension spread over physical cores; a number of programs here."""

    def __mul__(self, other: object) -> CoreDim:
        return CoreDim(int(self) * as_integer(other))

    __rmul__ = __mul__


def nc(count: int) -> CoreDim:
    """Mark a grid dimension as physical cores."""
    return CoreDim(count)


def spmd_dim(*parts: int) -> CoreDim:
    """Compose a grid dimension of programs and cores."""
    total = 1
    for part in parts:
        total *= int(part)
    return CoreDim(total)


def loop_reduce(
    x: Any,
    op: object,
    loop_indices: Sequence[object],
    dtype: object = None,
    mask: object = None,
    **_: object,
) -> NkiTensor:
    """Accumulate x over the iterations of the loops named; the result so far is returned."""
    tile = on_chip(x, "nl.loop_reduce")
    recorder = current()
    given = loop_indices if isinstance(loop_indices, (list, tuple)) else [loop_indices]
    indices = [index for index in given if isinstance(index, LoopIndex)]
    if not indices or len(indices) != len(given):
        raise KernelError(
            "NKS602",
            "nl.loop_reduce: loop_indices must be loop variables as they came from the range",
            got=f"{loop_indices!r:.80}",
            hint="pass the variable of nl.affine_range or nl.sequential_range itself",
        )
    name = _op_name(op)
    others = tuple(int(v) for v in recorder.loop_variables if not any(v is i for i in indices))
    key = (recorder.source_map.site_of_call(), others, tile.shape)
    wanted = wanted_dtype(dtype, tile.dtype)
    total = recorder.accumulators.get(key)
    if total is None or all(i.is_first for i in indices):
        total = new_tile(tile.shape, DTYPES["float32"] if wanted.is_float else wanted)
        recorder.accumulators[key] = total
        result_of("tensor_copy", total, mask, src=tile)
        recorder.fresh = None  # later iterations add to it, so it is never a mere temporary
    else:
        binary(name, total, tile, mask=mask, into=total)
    if total.dtype == wanted:
        return total
    result = new_tile(tile.shape, wanted)
    isa("tensor_copy", dst=result, src=total)
    return finish(result, None)


def _op_name(op: object) -> str:
    if isinstance(op, NlFunction):
        return op.name
    try:
        found = NUMPY_OPS.get(op)
    except TypeError:
        found = None
    if found is None:
        raise KernelError("NKS304", f"op must be such as nl.add or np.add, got {op!r:.60}")
    return found


def all_reduce(
    x: Any,
    op: object,
    program_axes: object,
    dtype: object = None,
    mask: object = None,
    **_: object,
) -> NkiTensor:
    """Reduce over programs of the grid; with one program this is x itself."""
    tile = on_chip(x, "nl.all_reduce")
    grid = current().grid
    axes = program_axes if isinstance(program_axes, (list, tuple)) else [program_axes]
    if any(grid[as_integer(a)] != 1 for a in axes if as_integer(a) < len(grid)):
        raise UnsupportedError(
            "NKS505",
            f"nl.all_reduce over programs of a grid {list(grid)} is not emulated",
            hint="reduce in one program, or store partial results and add them in a second kernel",
        )
    result = new_tile(tile.shape, wanted_dtype(dtype, tile.dtype))
    isa("tensor_copy", dst=result, src=tile)
    return finish(result, None)
