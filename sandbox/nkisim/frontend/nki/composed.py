"""Functions of `nki.language` that no single instruction computes: they emit a few.

Rounding goes through int32, which the engines round to; angles are reduced to [-π, π] first, where
the Scalar Engine knows the sine.  Source: NKI language reference 0.6.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi
from typing import Final

from nkisim.dtypes import DTYPES
from nkisim.errors import KernelError, UnsupportedError
from nkisim.frontend.context import current
from nkisim.frontend.nki.language import (
    Operand,
    Tile,
    binary,
    copy,
    dtype_or,
    isa,
    new_tile,
    reduce_free,
    refuse_mask,
    require_tile,
    unary,
)
from nkisim.frontend.recorder import MemoryRegion
from nkisim.frontend.tensor import NkiTensor

# 2π as a sum whose first two terms have few bits, so that their products with small integers are
# exact in float32.
TWO_PI_PARTS: Final = (6.28125, 0.001934051513671875, 1.2556659146989193e-06)
WHOLE_FROM: Final = float(1 << 23)
"""From here on every float32 is a whole number."""


# -- rounding ---------------------------------------------------------------------------------


def _rounded(name: str, x: Operand, dtype: object, compare: str, correction: str) -> Tile:
    """Round to the nearest integer, then step by one where that went the wrong way."""
    tile = require_tile(x, name)
    if tile.dtype.is_integer:
        return copy(tile, dtype=dtype)
    nearest = copy(copy(tile, dtype="int32"), dtype="float32")
    wrong = new_tile(tile.shape, DTYPES["float32"])
    isa("tensor_tensor", dst=wrong, data1=nearest, data2=tile, op=compare)
    whole = binary(correction, nearest, wrong, "float32")
    return _keep_large(tile, whole, dtype)


def _keep_large(tile: Tile, whole: Tile, dtype: object) -> Tile:
    """Return `whole` where |tile| < 2^23, else `tile`: large numbers, infinities and NaN."""
    kept = copy(tile, dtype="float32")
    small = new_tile(tile.shape, DTYPES["uint8"])
    isa("tensor_scalar", dst=small, data=tile, op0="abs", op1="less", operand1=WHOLE_FROM)
    isa("tensor_copy_predicated", dst=kept, src=whole, predicate=small)
    return copy(kept, dtype=dtype_or(dtype, tile.dtype))


def floor(x: Operand, dtype: object = None, mask: object = None, **_: object) -> Tile:
    """Round down."""
    refuse_mask(mask)
    return _rounded("floor", x, dtype, "greater", "subtract")


def ceil(x: Operand, dtype: object = None, mask: object = None, **_: object) -> Tile:
    """Round up."""
    refuse_mask(mask)
    return _rounded("ceil", x, dtype, "less", "add")


def trunc(x: Operand, dtype: object = None, mask: object = None, **_: object) -> Tile:
    """Round towards zero."""
    refuse_mask(mask)
    tile = require_tile(x, "trunc")
    if tile.dtype.is_integer:
        return copy(tile, dtype=dtype)
    down = floor(unary("abs", tile, "float32"), dtype="float32")
    whole = binary("multiply", unary("sign", tile, "float32"), down, "float32")
    return _keep_large(tile, whole, dtype)


# -- angles -----------------------------------------------------------------------------------


def _sine(name: str, x: Operand, dtype: object, phase: float) -> Tile:
    """Emit sin(x + phase) for any x: take off whole turns, exactly for small numbers of them."""
    tile = require_tile(x, name)
    turns = new_tile(tile.shape, DTYPES["int32"])
    isa(
        "tensor_scalar",
        dst=turns,
        data=tile,
        op0="add",
        operand0=phase,
        op1="multiply",
        operand1=0.5 / pi,
    )
    angle = new_tile(tile.shape, DTYPES["float32"])
    rest = tile
    for part in TWO_PI_PARTS:
        isa(
            "scalar_tensor_tensor",
            dst=angle,
            data=turns,
            op0="multiply",
            operand0=-part,
            op1="add",
            operand1=rest,
        )
        rest = angle
    if phase:
        isa("tensor_scalar", dst=angle, data=angle, op0="add", operand0=phase)
    return unary("sin", angle, dtype_or(dtype, tile.dtype))


def sin(x: Operand, dtype: object = None, mask: object = None, **_: object) -> Tile:
    """Sine of any angle."""
    refuse_mask(mask)
    return _sine("sin", x, dtype, 0.0)


def cos(x: Operand, dtype: object = None, mask: object = None, **_: object) -> Tile:
    """Cosine of any angle."""
    refuse_mask(mask)
    return _sine("cos", x, dtype, pi / 2)


def tan(x: Operand, dtype: object = None, mask: object = None, **_: object) -> Tile:
    """Tangent: sine times the reciprocal of the cosine."""
    refuse_mask(mask)
    tile = require_tile(x, "tan")
    inverse = unary("reciprocal", cos(tile, dtype="float32"), "float32")
    return binary("multiply", sin(tile, dtype="float32"), inverse, dtype_or(dtype, tile.dtype))


# -- remainders -------------------------------------------------------------------------------


def mod(x: Operand, y: Operand, dtype: object = None, mask: object = None, **_: object) -> Tile:
    """Remainder with the sign of y, as Python's %."""
    refuse_mask(mask)
    like = _like(x, y, "mod")
    quotient = floor(binary("multiply", x, _inverse(y), "float32"), dtype="float32")
    rest = binary("subtract", x, binary("multiply", quotient, y, "float32"), "float32")
    # The reciprocal is rounded: near a multiple of y the quotient may be off by one.
    below = binary("less", binary("multiply", rest, y, "float32"), 0.0, "float32")
    rest = binary("add", rest, binary("multiply", below, y, "float32"), "float32")
    size = unary("abs", y, "float32") if isinstance(y, NkiTensor) else abs(y)
    above = binary("greater_equal", unary("abs", rest, "float32"), size, "float32")
    rest = binary("subtract", rest, binary("multiply", above, y, "float32"), "float32")
    return copy(rest, dtype=dtype_or(dtype, like.dtype))


def fmod(x: Operand, y: Operand, dtype: object = None, mask: object = None, **_: object) -> Tile:
    """Remainder with the sign of x, as C's fmod."""
    refuse_mask(mask)
    like = _like(x, y, "fmod")

    def size(value: Operand) -> Operand:
        return unary("abs", value, "float32") if isinstance(value, NkiTensor) else abs(value)

    rest = mod(size(x), size(y), dtype="float32")
    sign = unary("sign", x, "float32") if isinstance(x, NkiTensor) else (x > 0) - (x < 0)
    return binary("multiply", rest, sign, dtype_or(dtype, like.dtype))


def _like(x: Operand, y: Operand, name: str) -> Tile:
    return require_tile(x if isinstance(x, NkiTensor) else y, name)


def _inverse(y: Operand) -> Operand:
    if isinstance(y, NkiTensor):
        return unary("reciprocal", y, "float32")
    if y == 0:
        raise KernelError("NKS305", "the divisor is 0", hint="divide by a nonzero number")
    return 1.0 / y


# -- reductions, gathers ----------------------------------------------------------------------


def all_(
    x: Operand,
    axis: object = -1,
    dtype: object = None,
    keepdims: bool = False,
    mask: object = None,
    **_: object,
) -> Tile:
    """Whether all elements along trailing free dimensions are nonzero, as 1 and 0."""
    refuse_mask(mask)
    return reduce_free("logical_and", x, axis, dtype, keepdims)


def gather_flattened(
    data: Tile,
    indices: Tile,
    axis: int = 0,
    dtype: object = None,
    mask: object = None,
    **_: object,
) -> Tile:
    """Gather from each partition's elements, counted in row-major order, by uint32 indices."""
    refuse_mask(mask)
    if axis != 0:
        raise UnsupportedError("NKS502", f"nl.gather_flattened with axis={axis!r} is not emulated")
    source = require_tile(data, "gather_flattened")
    index = require_tile(indices, "gather_flattened")
    if index.dtype.name != "uint32" and index.dtype.is_integer:
        index = copy(index, dtype="uint32")
    picked = new_tile(index.shape, source.dtype)
    isa("nc_n_gather", dst=picked, data=source, indices=index)
    return picked if dtype is None else copy(picked, dtype=dtype)


# -- random numbers ---------------------------------------------------------------------------


def dropout(
    x: Operand, rate: Operand, dtype: object = None, mask: object = None, **_: object
) -> Tile:
    """Replace elements by zero with probability `rate`."""
    refuse_mask(mask)
    tile = require_tile(x, "dropout")
    result = new_tile(tile.shape, tile.dtype)
    isa("dropout", dst=result, data=tile, prob=rate)
    return result if dtype is None else copy(result, dtype=dtype)


def rand(
    shape: tuple[int, ...],
    dtype: object = None,
    buffer: object = None,
    name: str = "",
    **_: object,
) -> Tile:
    """Return a tile of uniform random numbers in [0, 1)."""
    element = dtype_or(dtype, DTYPES["float32"])
    if not element.is_float:
        raise KernelError(
            "NKS303", f"nl.rand makes floats, not {element}", hint="nisa.rng makes integers"
        )
    recorder = current()
    region = recorder.regions["sbuf"] if buffer is None else buffer
    if isinstance(region, MemoryRegion) and not region.memory.is_on_chip:
        raise KernelError(
            "NKS201",
            "nl.rand makes a tile in SBUF or PSUM",
            hint="store it in HBM with nl.store or nisa.dma_copy",
        )
    result = recorder.allocate(tuple(shape), element, region, name=name)
    if recorder.machine.generation >= 4:
        isa("rand2", dst=result, min=0.0, max=1.0)
        return result
    bits = new_tile(result.shape, DTYPES["uint32"])
    isa("rng", dst=bits)
    isa("tensor_scalar", dst=bits, data=bits, op0="right_shift", operand0=8)
    isa("tensor_scalar", dst=result, data=bits, op0="multiply", operand0=2.0**-24)
    return result


def random_seed(seed: Operand, mask: object = None, **_: object) -> None:
    """Seed the random numbers with a [1, 1] tile or a number."""
    refuse_mask(mask)
    tile = seed
    if not isinstance(seed, NkiTensor):
        tile = new_tile((1, 1), DTYPES["uint32"])
        isa("memset", dst=tile, value=int(seed))
    isa("set_rng_seed", src_seeds=tile)


FUNCTIONS: Final[dict[str, Callable[..., object]]] = {
    "floor": floor,
    "ceil": ceil,
    "trunc": trunc,
    "sin": sin,
    "cos": cos,
    "tan": tan,
    "mod": mod,
    "fmod": fmod,
    "all": all_,
    "gather_flattened": gather_flattened,
    "dropout": dropout,
    "rand": rand,
    "random_seed": random_seed,
}
"""By NKI name."""
