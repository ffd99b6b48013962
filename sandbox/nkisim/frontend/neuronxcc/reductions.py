"""Reductions over free axes, and the functions made of them.

Source: NKI language reference, Neuron 2.26.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from nkisim.dtypes import DTYPES, DType
from nkisim.errors import KernelError
from nkisim.frontend.neuronxcc.arithmetic import binary, unary
from nkisim.frontend.neuronxcc.promotion import wanted_dtype
from nkisim.frontend.neuronxcc.tiles import (
    Part,
    finish,
    isa,
    new_tile,
    on_chip,
    part_of,
)
from nkisim.frontend.tensor import NkiTensor
from nkisim.ops.axes import reduced_axes
from nkisim.ops.masks import Terms

Operand = Any
F32 = DTYPES["float32"]


def _axes(tile: NkiTensor, axis: Operand, what: str) -> tuple[int, ...]:
    axes = reduced_axes(axis, tile.ndim)
    if not axes or axes[0] == 0 or len(set(axes)) != len(axes):
        raise KernelError(
            "NKS114",
            f"{what}: axis {axis!r} of {tile!r} is not a set of free axes",
            allowed=f"axes 1 to {tile.ndim - 1}",
            hint="reduce across partitions with a matmul by ones or nisa.tensor_partition_reduce",
        )
    return axes


def reduce(
    op: str,
    x: Operand,
    axis: Operand,
    dtype: object = None,
    mask: object = None,
    *,
    keepdims: bool = False,
    negate: bool = False,
    what: str = "nl.sum",
) -> NkiTensor:
    """Reduce over free axes; axes go unless `keepdims`, but a tile keeps (P, 1)."""
    tile = on_chip(x, what)
    axes = _axes(tile, axis, what)
    kept = [d for d in range(tile.ndim) if d not in axes]
    shape = tuple(
        1 if d in axes else n for d, n in enumerate(tile.shape) if keepdims or d not in axes
    )
    if len(shape) < 2:
        shape = (*shape, 1)
    result = new_tile(shape, wanted_dtype(dtype, tile.dtype))
    part = part_of(mask, tile.shape, (tile,))
    if part is False:
        return finish(result, part)
    order = (*kept, *axes)
    target, source, box = result, tile, None
    attrs: dict[str, object] = {}
    clauses: tuple[Terms, ...] = ()
    if isinstance(part, Part):
        source = tile.boxed(range(tile.ndim), part.box)
        dims: list[int | None] = [
            (None if d in axes else d) for d in range(tile.ndim) if keepdims or d not in axes
        ]
        dims += [None] * (len(shape) - len(dims))
        target = result.boxed(dims, part.box)
        box = tuple((0, n) if d is None else part.box[d] for d, n in zip(dims, shape, strict=True))
        attrs = part.in_order(order, axes, what)
        clauses = part.clauses_over(dims)
    moved = source.permute(order) if axes[0] != len(kept) else source
    reducer: object = tuple(range(len(kept), tile.ndim))
    isa("tensor_reduce", dst=target, op=op, data=moved, axis=reducer, negate=negate, **attrs)
    return finish(result, None if box is None else Part(shape, box, clauses))


def reduction_function(name: str, op: str) -> Callable[..., NkiTensor]:
    """Return the callable behind `nl.sum`, `nl.max`, `nl.min` and `nl.prod`."""

    def call(
        x: Operand,
        axis: Operand = -1,
        dtype: object = None,
        mask: object = None,
        keepdims: bool = False,
        **_: object,
    ) -> NkiTensor:
        return reduce(op, x, axis, dtype, mask, keepdims=bool(keepdims), what=f"nl.{name}")

    return call


def mean(
    x: Operand,
    axis: Operand = -1,
    dtype: object = None,
    mask: object = None,
    keepdims: bool = False,
    **_: object,
) -> NkiTensor:
    """Mean over free axes."""
    tile = on_chip(x, "nl.mean")
    part = part_of(mask, tile.shape, (tile,), is_single=False)
    box = part.box if isinstance(part, Part) else tuple((0, n) for n in tile.shape)
    count = prod(box[d][1] for d in _axes(tile, axis, "nl.mean"))
    total = reduce("add", tile, axis, "float32", mask, keepdims=bool(keepdims), what="nl.mean")
    return _scaled(total, 1.0 / count, wanted_dtype(dtype, tile.dtype), part)


def _scaled(total: NkiTensor, factor: float, dtype: DType, part: Part | bool | None) -> NkiTensor:
    result = new_tile(total.shape, dtype)
    if part is False:
        return finish(result, part)
    rows = (part.box[0] if isinstance(part, Part) else None) or (0, total.shape[0])
    box = (rows, *((0, n) for n in total.shape[1:]))
    dims = range(total.ndim)
    isa(
        "tensor_scalar",
        dst=result.boxed(dims, box),
        data=total.boxed(dims, box),
        op0="multiply",
        operand0=factor,
    )
    return finish(result, Part(total.shape, box) if isinstance(part, Part) else None)


def all_(
    x: Operand, axis: Operand = -1, dtype: object = bool, mask: object = None, **_: object
) -> NkiTensor:
    """Whether all elements along free axes are not zero."""
    flags = binary("not_equal", x, 0, "float32", mask)
    return reduce("minimum", flags, axis, dtype, mask, what="nl.all")


def var(
    x: Operand, axis: Operand = -1, dtype: object = None, mask: object = None, **_: object
) -> NkiTensor:
    """Population variance over free axes, which stay with size 1."""
    tile = _unmasked(on_chip(x, "nl.var"), mask, "nl.var")
    centre = mean(tile, axis, "float32", keepdims=True)
    squares = unary("square", binary("subtract", tile, centre, "float32"), "float32")
    return mean(squares, axis, dtype or tile.dtype, keepdims=True)


def softmax(
    x: Operand,
    axis: Operand = -1,
    dtype: object = None,
    compute_dtype: object = None,
    mask: object = None,
    **_: object,
) -> NkiTensor:
    """Softmax over free axes."""
    tile = on_chip(x, "nl.softmax")
    part = part_of(mask, tile.shape, (tile,), is_single=False)
    result = new_tile(tile.shape, wanted_dtype(dtype, tile.dtype))
    if part is False:
        return finish(result, part)
    target: Any = result
    if isinstance(part, Part):
        tile, target = part.take(tile), part.take(result)  # type: ignore[assignment]
    top = reduce("maximum", tile, axis, "float32", keepdims=True, what="nl.softmax")
    weights = unary("exp", binary("subtract", tile, top, "float32"), "float32")
    total = reduce("add", weights, axis, "float32", keepdims=True, what="nl.softmax")
    binary("divide", weights, total, into=target)
    return finish(result, part)


def rms_norm(
    x: Operand,
    w: Operand,
    axis: Operand,
    n: int | None = None,
    epsilon: float = 1e-6,
    dtype: object = None,
    compute_dtype: object = None,
    mask: object = None,
    **_: object,
) -> NkiTensor:
    """X / sqrt(sum(x²) / n + epsilon) * w over free axes."""
    tile = on_chip(x, "nl.rms_norm")
    part = part_of(mask, tile.shape, (tile,), is_single=False)
    result = new_tile(tile.shape, wanted_dtype(dtype, tile.dtype))
    if part is False:
        return finish(result, part)
    target: Any = result
    if isinstance(part, Part):
        tile, target, w = part.take(tile), part.take(result), part.take(w)  # type: ignore[assignment]
    count = n or prod(tile.shape[d] for d in _axes(tile, axis, "nl.rms_norm"))
    squares = unary("square", tile, "float32")
    total = reduce("add", squares, axis, "float32", keepdims=True, what="nl.rms_norm")
    scaled = new_tile(total.shape, F32)
    isa(
        "tensor_scalar",
        dst=scaled,
        data=total,
        op0="multiply",
        operand0=1.0 / count,
        op1="add",
        operand1=float(epsilon),
    )
    factor = unary("rsqrt", scaled, "float32")
    normal = binary("multiply", tile, factor, "float32")
    if w is None:
        unary("copy", normal, into=target)
    else:
        binary("multiply", normal, w, into=target)
    return finish(result, part)


def _unmasked(tile: NkiTensor, mask: object, what: str) -> NkiTensor:
    if mask is None or mask is True:
        return tile
    from nkisim.errors import UnsupportedError

    raise UnsupportedError("NKS502", f"{what} with a mask is not emulated", hint="slice the tile")
