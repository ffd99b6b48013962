"""`nki.language`: allocation, tile functions and their lowering to `nki.isa` instructions.

Tile functions return a new SBUF tile (matmul and transpose a PSUM tile) of the input's dtype unless
`dtype=` is given.  Source: NKI language reference 0.6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from nkisim.dtypes import DTYPES, DType, lookup
from nkisim.errors import KernelError, UnsupportedError
from nkisim.frontend.context import current, target_machine
from nkisim.frontend.dynamic import DynamicSlice
from nkisim.frontend.index import IndexTensor
from nkisim.frontend.nki.records import NKIObject
from nkisim.frontend.recorder import REGIONS, MemoryRegion
from nkisim.frontend.register import Register
from nkisim.frontend.tensor import NkiTensor
from nkisim.ir.access import Memory

Tile = NkiTensor
Operand = Any  # a tile or a number, as kernels pass either


def isa(name: str, /, *args: object, **kwargs: object) -> None:
    """Emit an instruction of `nki.isa`."""
    current().instructions.isa[name](*args, **kwargs)


def dtype_or(value: object, default: DType) -> DType:
    """Return the dtype that `value` names, or `default` for None."""
    if value is None:
        return default
    found = lookup(value)
    if found is None:
        raise KernelError("NKS301", f"{value!r:.60} is not an NKI dtype")
    return found


def new_tile(shape: Sequence[int], dtype: DType, memory: str = "sbuf") -> Tile:
    """Allocate a tile for a result."""
    return current().allocate(tuple(shape), dtype, REGIONS[memory])


def require_tile(value: object, what: str) -> Tile:
    """Return `value`, which must be a tile on chip."""
    if not isinstance(value, NkiTensor):
        raise KernelError("NKS602", f"nl.{what} takes a tile, got {type(value).__name__}")
    if value.memory is Memory.HBM:
        raise KernelError(
            "NKS201",
            f"nl.{what} works on tiles in SBUF or PSUM, got {value!r}",
            hint="load it first: tile = nl.load(tensor[rows, columns])",
        )
    return value


# -- allocation ---------------------------------------------------------------------------------


def ndarray(
    shape: Sequence[int],
    dtype: object = None,
    buffer: object = None,
    name: str = "",
    address: Sequence[int] | None = None,
    **_: object,
) -> Tile:
    """Allocate an uninitialised tensor; on chip dimension 0 is the partition dimension."""
    region = REGIONS["sbuf"] if buffer is None else buffer
    return current().allocate(
        shape, DTYPES["float32"] if dtype is None else dtype, region, name=name, address=address
    )


def full(
    shape: Sequence[int],
    fill_value: float,
    dtype: object = None,
    buffer: object = None,
    name: str = "",
    **_: object,
) -> Tile:
    """Allocate a tile and set every element to `fill_value`."""
    region = REGIONS["sbuf"] if buffer is None else buffer
    element = DTYPES["float32"] if dtype is None else dtype
    memory = region.memory if isinstance(region, MemoryRegion) else None
    if memory is Memory.PSUM and fill_value == 0:
        return current().allocate(shape, element, region, name=name, fill=0.0)
    if memory is Memory.HBM:
        raise KernelError(
            "NKS201",
            "an HBM tensor cannot be created with a value",
            hint="allocate with nl.ndarray, fill an SBUF tile and nisa.dma_copy it",
        )
    tile = current().allocate(shape, element, region, name=name)
    value = int(fill_value) if tile.dtype.is_integer else float(fill_value)
    isa("memset", dst=tile, value=value)
    return tile


def zeros(
    shape: Sequence[int], dtype: object = None, buffer: object = None, name: str = "", **_: object
) -> Tile:
    """Allocate a tile of zeros; in PSUM this is the initial value and costs no instruction."""
    return full(shape, 0, dtype, buffer, name)


def ones(
    shape: Sequence[int], dtype: object = None, buffer: object = None, name: str = "", **_: object
) -> Tile:
    """Allocate a tile of ones."""
    return full(shape, 1, dtype, buffer, name)


def zeros_like(x: Tile, dtype: object = None, buffer: object = None, name: str = "") -> Tile:
    """Allocate zeros with the shape and dtype of `x`."""
    return full(x.shape, 0, dtype or x.dtype, buffer or x.buffer, name)


def empty_like(x: Tile, dtype: object = None, buffer: object = None, name: str = "") -> Tile:
    """Allocate an uninitialised tensor with the shape and dtype of `x`."""
    return ndarray(x.shape, dtype or x.dtype, buffer or x.buffer, name)


def shared_constant(constant: object, dtype: object = None, **_: object) -> Tile:
    """Embed a numpy array, or the array of an .npy file, as a tensor in HBM."""
    if isinstance(constant, str):
        try:
            constant = np.load(constant, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise KernelError(
                "NKS608", f"shared_constant: {constant!r:.80} cannot be read: {error}"[:200]
            ) from None
    values = np.asarray(constant)
    element = lookup(values.dtype) if dtype is None else lookup(dtype)
    if element is None:
        values, element = values.astype(np.float32), DTYPES["float32"]
    return current().add_constant(values.astype(element.storage), element)


def shared_identity_matrix(
    n: int, dtype: object = "uint8", dst: Tile | None = None, **_: object
) -> Tile:
    """Return an SBUF tile [n, n] that holds the identity matrix."""
    element = dtype_or(dtype, DTYPES["uint8"])
    source = current().add_constant(np.eye(n).astype(element.storage), element)
    tile = new_tile((n, n), element) if dst is None else dst
    isa("dma_copy", dst=tile, src=source)
    return tile


# -- data movement ------------------------------------------------------------------------------


def load(src: Tile, dtype: object = None, mask: object = None, **_: object) -> Tile:
    """Copy a view of HBM into a new SBUF tile; one dimension becomes [P, 1]."""
    refuse_mask(mask)
    view = src.expand_dim(1) if src.ndim == 1 else src
    tile = new_tile(view.shape, dtype_or(dtype, src.dtype))
    isa("dma_copy", dst=tile, src=view)
    return tile


def store(dst: Tile, value: Operand, mask: object = None, **_: object) -> None:
    """Copy a tile into a view of HBM."""
    refuse_mask(mask)
    if isinstance(value, NkiTensor) and value.memory is Memory.PSUM:
        value = copy(value, dtype=dst.dtype)
    view = dst
    if isinstance(value, NkiTensor) and dst.ndim == 1 and value.ndim == 2:
        view = dst.expand_dim(1) if value.shape[1] == 1 else dst.expand_dim(0)
    isa("dma_copy", dst=view, src=value)


def load_transpose2d(src: Tile, dtype: object = None, mask: object = None, **_: object) -> Tile:
    """Copy a view [a, b] of HBM into a new SBUF tile [b, a]."""
    refuse_mask(mask)
    rows, columns = src.shape
    tile = new_tile((columns, rows), dtype_or(dtype, src.dtype))
    isa("dma_transpose", dst=tile, src=src)
    return tile


def copy(src: Tile, dtype: object = None, mask: object = None, **_: object) -> Tile:
    """Copy a tile into a new SBUF tile."""
    refuse_mask(mask)
    tile = new_tile(src.shape, dtype_or(dtype, src.dtype))
    isa("dma_copy" if src.memory is Memory.HBM else "tensor_copy", dst=tile, src=src)
    return tile


def broadcast_to(src: Tile, shape: Sequence[int] | None = None, **_: object) -> Tile:
    """Repeat dimensions of size 1; along partitions this copies by DMA."""
    wanted = tuple(int(n) for n in shape or ())
    if len(wanted) != src.ndim:
        raise KernelError("NKS107", f"broadcast_to {list(wanted)} changes the rank of {src!r}")
    view = src
    for dim in range(1 if src.memory.is_on_chip else 0, src.ndim):
        if view.shape[dim] != wanted[dim]:
            view = view.broadcast(dim, wanted[dim])
    if view.shape[0] == wanted[0]:
        return view
    repeated = NkiTensor(
        view.storage, view.offset, wanted, (0, *view.strides[1:]), view.dtype, view.index
    )
    tile = new_tile(wanted, src.dtype)
    isa("dma_copy", dst=tile, src=repeated)
    return tile


def expand_dims(data: Tile, axis: int) -> Tile:
    """View with a dimension of size 1 inserted."""
    return data.expand_dim(axis)


def static_cast(data: Tile, dtype: object) -> Tile:
    """Copy as another dtype."""
    return copy(data, dtype=dtype)


def refuse_mask(mask: object) -> None:
    """Say that masks are not emulated."""
    if mask is not None:
        raise UnsupportedError("NKS502", "mask= is not emulated yet", hint="clamp the last tile")


# -- arithmetic ---------------------------------------------------------------------------------

REVERSIBLE = {"add", "multiply", "maximum", "minimum", "equal", "not_equal", "logical_and"}


def binary(name: str, x: Operand, y: Operand, dtype: object) -> Tile:
    """Emit x op y, choosing tensor_tensor or tensor_scalar by the shapes."""
    if name == "divide":
        return _divide(x, y, dtype)
    if not isinstance(x, NkiTensor):
        tile = require_tile(y, name)
        result = new_tile(tile.shape, dtype_or(dtype, tile.dtype))
        isa("tensor_scalar", dst=result, data=tile, op0=name, operand0=x, reverse0=True)
        return result
    x = require_tile(x, name)
    if not isinstance(y, NkiTensor):
        result = new_tile(x.shape, dtype_or(dtype, x.dtype))
        isa("tensor_scalar", dst=result, data=x, op0=name, operand0=y)
        return result
    y = require_tile(y, name)
    x_column, y_column = _is_column(x), _is_column(y)
    wide = y if x_column and not y_column else x
    result = new_tile(wide.shape, dtype_or(dtype, wide.dtype))
    if y_column and not x_column:
        isa("tensor_scalar", dst=result, data=x, op0=name, operand0=_column(y))
    elif x_column and not y_column:
        isa("tensor_scalar", dst=result, data=y, op0=name, operand0=_column(x), reverse0=True)
    else:
        if x.memory is y.memory is Memory.PSUM:
            x = copy(x)
        isa("tensor_tensor", dst=result, data1=x, data2=y, op=name)
    return result


def _is_column(tile: Tile) -> bool:
    return tile.size == tile.shape[0]


def _column(tile: Tile) -> Tile:
    """A (P, 1) float32 operand for tensor_scalar and activation."""
    return tile if tile.dtype == "float32" else copy(tile, dtype="float32")


def _divide(x: Operand, y: Operand, dtype: object) -> Tile:
    if not isinstance(y, NkiTensor):
        return binary("multiply", x, 1.0 / float(y), dtype)
    inverse = new_tile(y.shape, DTYPES["float32"])
    isa("reciprocal", dst=inverse, data=require_tile(y, "divide"))
    return binary("multiply", x, inverse, dtype if dtype is not None else y.dtype)


def unary(name: str, x: Operand, dtype: object) -> Tile:
    """Emit a function of one tile."""
    tile = require_tile(x, name)
    result = new_tile(tile.shape, dtype_or(dtype, tile.dtype))
    if name == "negative":
        isa("tensor_scalar", dst=result, data=tile, op0="multiply", operand0=-1.0)
    elif name == "reciprocal":
        isa("reciprocal", dst=result, data=tile)
    elif name in ("invert", "logical_not"):
        ones_mask = -1 if name == "invert" else 1
        op = "bitwise_xor" if name == "invert" else "logical_xor"
        isa("tensor_scalar", dst=result, data=tile, op0=op, operand0=ones_mask)
    else:
        isa("activation", dst=result, op=name, data=tile)
    return result


BINARY_NAMES = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "maximum",
    "minimum",
    "power",
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "left_shift",
    "right_shift",
    "abs_max",
    "abs_min",
]
UNARY_NAMES = [
    "abs",
    "square",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "tanh",
    "sigmoid",
    "relu",
    "gelu",
    "gelu_apprx_sigmoid",
    "gelu_apprx_tanh",
    "gelu_dx",
    "gelu_apprx_sigmoid_dx",
    "silu",
    "silu_dx",
    "softplus",
    "mish",
    "erf",
    "erf_dx",
    "reciprocal",
    "sin",
    "arctan",
    "negative",
    "sign",
    "invert",
    "logical_not",
]
TOKEN_NAMES = ("bypass", "average", "prelu")


def binary_function(name: str) -> Callable[..., Tile]:
    """Return the callable behind `nl.<name>(x, y)`."""

    def call(
        x: Operand, y: Operand, dtype: object = None, mask: object = None, **_: object
    ) -> Tile:
        refuse_mask(mask)
        return binary(name, x, y, dtype)

    return call


def unary_function(name: str) -> Callable[..., Tile]:
    """Return the callable behind `nl.<name>(x)`."""

    def call(x: Operand, dtype: object = None, mask: object = None, **_: object) -> Tile:
        refuse_mask(mask)
        return unary(name, x, dtype)

    return call


# -- reductions ---------------------------------------------------------------------------------


def _axes(x: Tile, axis: Operand) -> list[int]:
    items = axis if isinstance(axis, (list, tuple)) else [axis]
    return sorted(int(a) % x.ndim for a in items)


def reduce_free(
    op: str, x: Operand, axis: object, dtype: object, keepdims: bool, *, scale: float | None = None
) -> Tile:
    """Emit a reduction over trailing free dimensions, times `scale`."""
    tile = require_tile(x, op)
    axes = _axes(tile, axis)
    if not axes or axes[0] == 0 or axes != list(range(axes[0], tile.ndim)):
        raise KernelError(
            "NKS114",
            f"a reduction runs over trailing free dimensions, got axis {axis!r}",
            got=repr(tile),
            allowed=f"axes k … {tile.ndim - 1} with k ≥ 1",
            hint="reduce across partitions with a matmul by ones or nisa.tensor_partition_reduce",
        )
    kept = tile.shape[: axes[0]]
    shape = (*kept, *([1] * len(axes))) if keepdims or len(kept) < 2 else kept
    result = new_tile(shape if len(shape) > 1 else (*shape, 1), dtype_or(dtype, tile.dtype))
    reducer: object = axes[0] if len(axes) == 1 else tuple(axes)
    isa("tensor_reduce", dst=result, op=op, data=tile, axis=reducer)
    if scale is not None:
        isa("tensor_scalar", dst=result, data=result, op0="multiply", operand0=scale)
    return result


def reduction_function(op: str, *, is_mean: bool = False) -> Callable[..., Tile]:
    """Return the callable behind `nl.sum`, `nl.max`, `nl.min`, `nl.prod` or `nl.mean`."""

    def call(
        x: Operand,
        axis: object = -1,
        dtype: object = None,
        keepdims: bool = False,
        mask: object = None,
        **_: object,
    ) -> Tile:
        refuse_mask(mask)
        scale = None
        if is_mean:
            count = 1
            for a in _axes(x, axis):
                count *= x.shape[a]
            scale = 1.0 / count
        return reduce_free(op, x, axis, dtype, keepdims, scale=scale)

    return call


def var(x: Operand, axis: object = -1, dtype: object = None, **_: object) -> Tile:
    """Population variance over trailing free dimensions, as [P, 1]."""
    tile = require_tile(x, "var")
    mean = reduction_function("add", is_mean=True)(tile, axis, "float32", True)
    centred = binary("subtract", tile, mean, "float32")
    squares = unary("square", centred, "float32")
    return reduction_function("add", is_mean=True)(squares, axis, dtype or tile.dtype, True)


def softmax(x: Operand, axis: object = -1, dtype: object = None, **_: object) -> Tile:
    """Softmax over trailing free dimensions."""
    tile = require_tile(x, "softmax")
    top = reduce_free("maximum", tile, axis, "float32", True)
    shifted = binary("subtract", tile, top, "float32")
    weights = unary("exp", shifted, "float32")
    total = reduce_free("add", weights, axis, "float32", True)
    return _divide(weights, total, dtype or tile.dtype)


def rms_norm(
    x: Operand,
    w: Operand,
    axis: object = -1,
    n: int | None = None,
    epsilon: float = 1e-6,
    dtype: object = None,
    **_: object,
) -> Tile:
    """X / sqrt(mean(x²) + epsilon) * w over trailing free dimensions."""
    tile = require_tile(x, "rms_norm")
    squares = unary("square", tile, "float32")
    total = reduce_free("add", squares, axis, "float32", True)
    mean = new_tile(total.shape, DTYPES["float32"])
    count = n or tile.shape[-1]
    isa(
        "tensor_scalar",
        dst=mean,
        data=total,
        op0="multiply",
        operand0=1.0 / count,
        op1="add",
        operand1=epsilon,
    )
    factor = unary("rsqrt", mean, "float32")
    return binary("multiply", binary("multiply", tile, factor, "float32"), w, dtype or tile.dtype)


# -- matrices -----------------------------------------------------------------------------------


def transpose(x: Operand, dtype: object = None, **_: object) -> Tile:
    """Transpose a 2-D tile on the Tensor Engine; the result is in PSUM."""
    tile = require_tile(x, "transpose")
    result = new_tile(tile.shape[::-1], tile.dtype, "psum")
    isa("nc_transpose", dst=result, data=tile)
    return result if dtype is None else copy(result, dtype=dtype)


def matmul(
    x: Operand, y: Operand, transpose_x: bool = False, mask: object = None, **_: object
) -> Tile:
    """X @ y, or x.T @ y with `transpose_x`; the result is a float32 PSUM tile."""
    refuse_mask(mask)
    stationary, moving = require_tile(x, "matmul"), require_tile(y, "matmul")
    if not transpose_x:
        stationary = copy(transpose(stationary))
    result = new_tile((stationary.shape[1], moving.shape[1]), DTYPES["float32"], "psum")
    isa("nc_matmul", dst=result, stationary=stationary, moving=moving)
    return result


def where(condition: Tile, x: Operand, y: Operand, dtype: object = None, **_: object) -> Tile:
    """Select x where the condition tile is not zero, else y."""
    tile = require_tile(condition, "where")
    like = next((v for v in (x, y) if isinstance(v, NkiTensor)), tile)
    result = new_tile(tile.shape, dtype_or(dtype, like.dtype))
    if isinstance(y, NkiTensor):
        isa("tensor_copy", dst=result, src=y)
    else:
        isa("memset", dst=result, value=y)
    flags = binary("not_equal", tile, 0, "uint8")
    source = x
    if isinstance(x, NkiTensor) and x.dtype != result.dtype:
        source = copy(x, dtype=result.dtype)
    isa("tensor_copy_predicated", dst=result, src=source, predicate=flags)
    return result


# -- loops, grid, indices -------------------------------------------------------------------------


def affine_range(start: int, stop: int | None = None, step: int = 1, **_: object) -> Iterator[int]:
    """Loop at trace time; iterations are promised to be independent."""
    return iter(range(start) if stop is None else range(start, stop, step))


sequential_range = affine_range
static_range = affine_range


def dynamic_range(
    start: int | Register, stop: int | Register | None = None, step: int = 1
) -> Iterator[Register]:
    """Loop on the device; yields a frozen register once."""
    recorder = current()
    first: int | Register = 0 if stop is None else start
    last = start if stop is None else stop
    variable = recorder.new_register(is_frozen=True)
    number = recorder.open_loop("for", variable, start=first, stop=last, step=step)
    yield variable
    recorder.close_loop(number)


def fori_loop(
    lower: int | Register,
    upper: int | Register,
    body_fun: Callable[[Register], None],
    step: int = 1,
) -> None:
    """Run body_fun(i) on the device for i in range(lower, upper, step)."""
    recorder = current()
    variable = recorder.new_register(is_frozen=True)
    number = recorder.open_loop("for", variable, start=lower, stop=upper, step=step)
    body_fun(variable)
    recorder.close_loop(number)


def while_loop(init: int | Register, body_fun: Callable[[Register], Register]) -> None:
    """Run r = body_fun(r) on the device while r is not 0."""
    recorder = current()
    condition = recorder.new_register()
    isa("register_move", condition, init)
    number = recorder.open_loop("while", condition)
    result = body_fun(condition)
    if not isinstance(result, Register):
        raise KernelError(
            "NKS409",
            f"while_loop: the body must return the next condition register, got {result!r:.60}",
            hint="register_load a one-element tile and return the register",
        )
    if result is not condition:
        isa("register_move", condition, result)
    recorder.close_loop(number)


def ds(start: object, size: int) -> object:
    """Slice of `size` elements from `start`, which may be a register."""
    if isinstance(start, (Register, NkiTensor)):
        return DynamicSlice(start, int(size))
    first = start.__index__()  # type: ignore[attr-defined]
    return slice(first, first + int(size))


def arange(start: int, stop: int | None = None, step: int = 1) -> IndexTensor:
    """Index tensor of the old generation."""
    current().note_hybrid("index tensors (nl.arange)")
    return IndexTensor.arange(0, start) if stop is None else IndexTensor.arange(start, stop, step)


class ParDim(int):
    """A size marked as partition dimension (old generation)."""


def par_dim(size: int) -> ParDim:
    """Mark the partition dimension of a shape."""
    return ParDim(size)


def program_id(axis: int = 0) -> int:
    """Index of this program along a grid axis; 0 without a grid."""
    return 0


def num_programs(axes: object = 0) -> int:
    """Number of programs along a grid axis; 1 without a grid."""
    return 1


def program_ndim() -> int:
    """Number of grid axes."""
    return len(current().grid)


def no_reorder() -> AbstractContextManager[None]:
    """Keep program order inside; nkisim always does."""
    return nullcontext()


def device_print(print_prefix: str, x: object = None, **_: object) -> None:
    """Print a tile on the device; values do not exist while tracing, so nothing is printed."""


def is_hbm(buffer: object) -> bool:
    """Whether a memory region is in HBM."""
    return isinstance(buffer, MemoryRegion) and buffer.memory is Memory.HBM


def is_sbuf(buffer: object) -> bool:
    """Whether a memory region is SBUF."""
    return isinstance(buffer, MemoryRegion) and buffer.memory is Memory.SBUF


def is_psum(buffer: object) -> bool:
    """Whether a memory region is PSUM."""
    return isinstance(buffer, MemoryRegion) and buffer.memory is Memory.PSUM


def is_on_chip(buffer: object) -> bool:
    """Whether a memory region is on chip."""
    return isinstance(buffer, MemoryRegion) and buffer.memory.is_on_chip


class TileSize:
    """`nl.tile_size`: limits of the machine that the kernel is traced for."""

    @property
    def pmax(self) -> int:
        """Partitions."""
        return target_machine().limits.partitions

    @property
    def psum_fmax(self) -> int:
        """float32 elements of a PSUM bank."""
        return target_machine().limits.psum_bank_bytes // 4

    psum_bank_fmax = psum_fmax

    @property
    def psum_bank_fmax_bytes(self) -> int:
        """Bytes of a PSUM bank per partition."""
        return target_machine().limits.psum_bank_bytes

    @property
    def psum_num_banks(self) -> int:
        """PSUM banks."""
        return target_machine().limits.psum_banks

    @property
    def gemm_stationary_fmax(self) -> int:
        """Largest free size of a stationary matrix."""
        return target_machine().limits.stationary_free_max

    @property
    def gemm_moving_fmax(self) -> int:
        """Largest free size of a moving matrix on every machine."""
        return min(512, target_machine().limits.moving_free_max)

    @property
    def bn_stats_fmax(self) -> int:
        """Largest free size of bn_stats."""
        return target_machine().limits.bn_stats_free_max

    @property
    def sbuf_fmax_bytes(self) -> int:
        """Usable SBUF bytes per partition."""
        return target_machine().limits.sbuf_usable_bytes

    total_available_sbuf_size = sbuf_fmax_bytes

    @property
    def sbuf_fmax(self) -> int:
        """Usable SBUF per partition in float32 elements."""
        return target_machine().limits.sbuf_usable_bytes // 4

    @property
    def sbuf_size_bytes(self) -> int:
        """SBUF bytes of the hardware, all partitions."""
        limits = target_machine().limits
        return limits.sbuf_bytes * limits.partitions


EXPORTS: dict[str, object] = {
    "ndarray": ndarray,
    "full": full,
    "zeros": zeros,
    "ones": ones,
    "zeros_like": zeros_like,
    "empty_like": empty_like,
    "shared_constant": shared_constant,
    "shared_identity_matrix": shared_identity_matrix,
    "load": load,
    "store": store,
    "load_transpose2d": load_transpose2d,
    "broadcast_to": broadcast_to,
    "expand_dims": expand_dims,
    "static_cast": static_cast,
    "var": var,
    "softmax": softmax,
    "rms_norm": rms_norm,
    "transpose": transpose,
    "matmul": matmul,
    "where": where,
    "affine_range": affine_range,
    "sequential_range": sequential_range,
    "static_range": static_range,
    "range": affine_range,
    "dynamic_range": dynamic_range,
    "fori_loop": fori_loop,
    "while_loop": while_loop,
    "ds": ds,
    "arange": arange,
    "par_dim": par_dim,
    "program_id": program_id,
    "num_programs": num_programs,
    "program_ndim": program_ndim,
    "no_reorder": no_reorder,
    "device_print": device_print,
    "is_hbm": is_hbm,
    "is_sbuf": is_sbuf,
    "is_psum": is_psum,
    "is_on_chip": is_on_chip,
    "NKIObject": NKIObject,
    "tile_size": TileSize(),
    "_TileSize": TileSize,
    "MemoryRegion": MemoryRegion,
    "NkiTensor": NkiTensor,
    "DType": DType,
    "hbm": REGIONS["private_hbm"],
    "bool_": DTYPES["bool"],
    "fp32": DTYPES["float32"],
    "bfp16": DTYPES["bfloat16"],
    **REGIONS,
    **DTYPES,
}
"""Names of `nki.language` that are plain objects; op tokens are added by `modules`."""
