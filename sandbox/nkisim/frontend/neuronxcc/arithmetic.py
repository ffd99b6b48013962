"""Elementwise functions of `neuronxcc.nki.language`: masks, promotion, broadcasting.

Each is lowered to the one or two instructions that the hardware has for it.
Source: NKI language reference, Neuron 2.26.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nkisim.dtypes import DTYPES, DType
from nkisim.errors import KernelError
from nkisim.frontend.neuronxcc.promotion import COMPARISONS, dtype_of, promote, wanted_dtype
from nkisim.frontend.neuronxcc.tiles import (
    Part,
    Shape,
    copied,
    finish,
    float_column,
    in_sbuf,
    is_column,
    isa,
    new_tile,
    on_chip,
    part_of,
)
from nkisim.frontend.tensor import NkiTensor
from nkisim.ir.access import Memory
from nkisim.ops import alu

Operand = Any  # a tile or a number, as kernels pass either


def broadcast(a: Shape, b: Shape, what: str) -> Shape:
    """Return the shape of an operation on two tiles."""
    if a == b:
        return a
    rank = max(len(a), len(b))
    wide_a = a if len(a) == rank else (a[0], *(1,) * (rank - len(a)), *a[1:])
    wide_b = b if len(b) == rank else (b[0], *(1,) * (rank - len(b)), *b[1:])
    shape: list[int] = []
    for m, n in zip(wide_a, wide_b, strict=True):
        if m != n and 1 not in (m, n):
            if int(np.prod(a)) == int(np.prod(b)) and a[0] == b[0]:
                return a  # the same elements, in another grouping of the free axis
            raise KernelError(
                "NKS107",
                f"{what}: tiles {list(a)} and {list(b)} do not broadcast",
                allowed="equal shapes, or dimensions of 1",
                hint="slice both tiles to the same rows and columns",
            )
        shape.append(max(m, n))
    return tuple(shape)


def stretched(tile: NkiTensor, shape: Shape) -> NkiTensor:
    """Return a view (along partitions a copy) of a tile in the shape of an operation."""
    if tile.shape == shape or tile.size == int(np.prod(shape)):
        return tile
    view = tile
    while view.ndim < len(shape):
        view = view.expand_dim(1)
    return view.broadcast_to(shape)


def binary(
    name: str,
    x: Operand,
    y: Operand,
    dtype: object = None,
    mask: object = None,
    into: NkiTensor | None = None,
) -> NkiTensor:
    """Emit x op y."""
    what = f"nl.{name}"
    tiles = [on_chip(v, what) for v in (x, y) if isinstance(v, NkiTensor)]
    if not tiles:
        on_chip(x, what)
    space = tiles[0].shape if len(tiles) == 1 else broadcast(x.shape, y.shape, what)
    if into is not None:
        result, space = into, (into.shape if into.size == int(np.prod(space)) else space)
    else:
        if name in COMPARISONS:
            default = DTYPES["bool"]
        else:
            default = promote(dtype_of(x), dtype_of(y))
            if name == "divide" and not default.is_float:
                default = DTYPES["float32"]
        result = new_tile(space, wanted_dtype(dtype, default))
    part = part_of(mask, space, (x, y, result))
    if part is False:
        return finish(result, part)
    target = result
    attrs: dict[str, object] = {}
    if isinstance(part, Part):
        x, y = part.take(x), part.take(y)
        target = part.take(result)  # type: ignore[assignment]  # a tile stays a tile
        attrs = part.attrs
    if name == "divide":
        _divide(x, y, target, attrs)
    else:
        _binary(name, x, y, target, attrs)
    return finish(result, part) if into is None else result


def _binary(name: str, x: Operand, y: Operand, target: NkiTensor, attrs: dict[str, object]) -> None:
    x_tile, y_tile = isinstance(x, NkiTensor), isinstance(y, NkiTensor)
    is_bits = alu.is_bitvec(name)
    if not (x_tile and y_tile):
        tile, number = (x, y) if x_tile else (y, x)
        isa(
            "tensor_scalar",
            dst=target,
            data=tile,
            op0=name,
            operand0=number,
            reverse0=not x_tile,
            **attrs,
        )
        return
    x_column, y_column = is_column(x), is_column(y)
    if x_column != y_column and x.shape[0] == y.shape[0]:
        tile, column = (x, y) if y_column else (y, x)
        column = column if is_bits else float_column(column)
        isa(
            "tensor_scalar",
            dst=target,
            data=tile,
            op0=name,
            operand0=column,
            reverse0=x_column,
            **attrs,
        )
        return
    x, y = stretched(x, target.shape), stretched(y, target.shape)
    if x.memory is Memory.PSUM is y.memory:
        if target.storage is y.storage:
            x = copied(x)
        else:
            y = copied(y)
    if name == "power":  # runs on GpSimd, which reaches SBUF only
        x, y = in_sbuf(x), in_sbuf(y)
    isa("tensor_tensor", dst=target, data1=x, data2=y, op=name, **attrs)


def _divide(x: Operand, y: Operand, target: NkiTensor, attrs: dict[str, object]) -> None:
    if not isinstance(y, NkiTensor):
        value = float(y)
        if value == 0:
            raise KernelError("NKS305", "nl.divide: division by the number 0")
        isa("tensor_scalar", dst=target, data=x, op0="multiply", operand0=1.0 / value, **attrs)
        return
    inverse = new_tile(y.shape, DTYPES["float32"])
    own = attrs if y.shape == target.shape else {}
    isa("reciprocal", dst=inverse, data=y, **own)
    if isinstance(x, NkiTensor):
        _binary("multiply", x, inverse, target, attrs)
    else:
        isa("tensor_scalar", dst=target, data=inverse, op0="multiply", operand0=x, **attrs)


def unary(
    name: str,
    x: Operand,
    dtype: object = None,
    mask: object = None,
    into: NkiTensor | None = None,
) -> NkiTensor:
    """Emit op(x)."""
    tile = on_chip(x, f"nl.{name}")
    result = into or new_tile(tile.shape, wanted_dtype(dtype, _unary_dtype(name, tile.dtype)))
    part = part_of(mask, tile.shape, (tile, result))
    if part is False:
        return finish(result, part)
    target: Any = result
    attrs: dict[str, object] = {}
    if isinstance(part, Part):
        tile, target, attrs = part.take(tile), part.take(result), part.attrs  # type: ignore[assignment]
    _unary(name, tile, target, attrs)
    return finish(result, part) if into is None else result


def _unary_dtype(name: str, dtype: DType) -> DType:
    if name == "logical_not":
        return DTYPES["bool"]
    keeps = name in ("negative", "abs", "square", "relu", "sign", "invert", "copy")
    return dtype if dtype.is_float or keeps else DTYPES["float32"]


def _unary(name: str, tile: NkiTensor, target: NkiTensor, attrs: dict[str, object]) -> None:
    if name == "negative":
        isa("tensor_scalar", dst=target, data=tile, op0="multiply", operand0=-1.0, **attrs)
    elif name == "reciprocal":
        isa("reciprocal", dst=target, data=tile, **attrs)
    elif name == "invert":
        isa("tensor_scalar", dst=target, data=tile, op0="bitwise_xor", operand0=-1, **attrs)
    elif name == "logical_not":
        isa("tensor_scalar", dst=target, data=tile, op0="equal", operand0=0, **attrs)
    elif name == "copy":
        isa("tensor_copy", dst=target, src=tile, **attrs)
    else:
        isa("activation", dst=target, op=name, data=tile, **attrs)


def where(
    condition: Operand,
    x: Operand,
    y: Operand,
    dtype: object = None,
    mask: object = None,
    **_: object,
) -> NkiTensor:
    """Select x where the condition tile is not zero, else y."""
    flags = on_chip(condition, "nl.where")
    space = flags.shape
    for other in (x, y):
        if isinstance(other, NkiTensor):
            space = broadcast(space, on_chip(other, "nl.where").shape, "nl.where")
    result = new_tile(space, wanted_dtype(dtype, promote(dtype_of(x), dtype_of(y))))
    part = part_of(mask, space, (flags, x, y, result))
    if part is False:
        return finish(result, part)
    target, attrs = result, {}
    if isinstance(part, Part):
        flags, x, y = part.take(flags), part.take(x), part.take(y)  # type: ignore[assignment]
        target, attrs = part.take(result), part.attrs  # type: ignore[assignment]
    if isinstance(y, NkiTensor):
        isa("tensor_copy", dst=target, src=stretched(y, target.shape), **attrs)
    else:
        isa("memset", dst=target, value=_fill_value(y, target.dtype), **attrs)
    if flags.dtype.kind not in ("uint", "bool") or flags.memory is Memory.PSUM:
        raised = new_tile(flags.shape, DTYPES["uint8"])
        own = attrs if flags.shape == target.shape else {}
        isa("tensor_scalar", dst=raised, data=flags, op0="not_equal", operand0=0, **own)
        flags = raised
    source: Any = x
    if isinstance(x, NkiTensor):
        source = stretched(x, target.shape)
        if x.dtype != target.dtype:
            cast = new_tile(source.shape, target.dtype)
            isa("tensor_copy", dst=cast, src=source, **attrs)
            source = cast
    flags = stretched(flags, target.shape)
    isa("tensor_copy_predicated", dst=target, src=source, predicate=flags, **attrs)
    finish(result, part)
    return result


def _fill_value(value: Operand, dtype: DType) -> float | int:
    return int(value) if dtype.is_integer else float(value)


def binary_function(name: str) -> Callable[..., NkiTensor]:
    """Return the callable behind `nl.<name>(x, y)`."""

    def call(
        x: Operand,
        y: Operand,
        dtype: object = None,
        mask: object = None,
        into: NkiTensor | None = None,
        **_: object,
    ) -> NkiTensor:
        return binary(name, x, y, dtype, mask, into)

    return call


def unary_function(name: str) -> Callable[..., NkiTensor]:
    """Return the callable behind `nl.<name>(x)`."""

    def call(
        x: Operand,
        dtype: object = None,
        mask: object = None,
        into: NkiTensor | None = None,
        **_: object,
    ) -> NkiTensor:
        return unary(name, x, dtype, mask, into)

    return call
