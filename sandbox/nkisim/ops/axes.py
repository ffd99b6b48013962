"""Which axes of an instruction's iteration space each operand has.

A mask restricts iterations, not operands: a row that is masked out of a matmul's result is a column
of its stationary operand.  Each row of the op table names one of these maps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from nkisim.errors import UnsupportedError

Shape = tuple[int, ...]
Dims = tuple[int | None, ...]
"""For each dimension of an operand its axis of the iteration space; None if it has none."""


class Iterations(NamedTuple):
    """An iteration space and how the operands see it."""

    shape: Shape
    dims: dict[str, Dims]


Shapes = Mapping[str, Shape]
"""Shape of each operand by role."""
Attrs = Mapping[str, Any]
AxisMap = Callable[[Shapes, Attrs], Iterations]


def matching(shape: Shape, space: Shape) -> Dims:
    """Return the axes of an operand that is read element by element, or broadcast.

    Dimensions match by position, or in order without those of size 1 if ranks differ.
    """
    if shape == space:
        return tuple(range(len(space)))
    if len(shape) == len(space) and all(
        n in (1, extent) for n, extent in zip(shape, space, strict=True)
    ):
        return tuple(None if n == 1 else d for d, n in enumerate(shape))
    dims: list[int | None] = []
    axis = 0
    for n in shape:
        if n == 1:
            dims.append(None)
            continue
        while axis < len(space) and space[axis] != n:
            axis += 1
        if axis == len(space):
            raise UnsupportedError(
                "NKS502",
                f"a mask over {list(space)} on an operand of shape {list(shape)} is not emulated",
                hint="give all operands of a masked instruction the same shape",
            )
        dims.append(axis)
        axis += 1
    return tuple(dims)


def elementwise(shapes: Shapes, attrs: Attrs) -> Iterations:
    """Iterations are the elements of dst."""
    space = shapes["dst"]
    return Iterations(space, {role: matching(shape, space) for role, shape in shapes.items()})


def over(role: str) -> AxisMap:
    """Iterations are the elements of an input; other operands share its partitions."""

    def axes(shapes: Shapes, attrs: Attrs) -> Iterations:
        space = shapes[role]
        dims: dict[str, Dims] = {}
        for other, shape in shapes.items():
            if other == role:
                dims[other] = tuple(range(len(space)))
            else:
                dims[other] = (0, *(None,) * (len(shape) - 1))
        return Iterations(space, dims)

    return axes


def rows_of(role: str, *like: str) -> AxisMap:
    """Iterations are the elements of `role` and those `like` it; others share its partitions."""
    base = over(role)

    def axes(shapes: Shapes, attrs: Attrs) -> Iterations:
        space, dims = base(shapes, attrs)
        for other in like:
            if other in shapes:
                dims[other] = matching(shapes[other], space)
        return Iterations(space, dims)

    return axes


def reduced_axes(axis: Any, rank: int) -> tuple[int, ...]:
    """Return the axes that a reduction removes, counted from 0 and sorted."""
    items = axis if isinstance(axis, (tuple, list)) else (axis,)
    return tuple(sorted(int(a) % rank for a in items))


def reduction(shapes: Shapes, attrs: Attrs) -> Iterations:
    """Iterations are the elements of data; dst has the axes that are kept."""
    space = shapes["data"]
    gone = reduced_axes(attrs["axis"], len(space))
    kept = [d for d in range(len(space)) if d not in gone]
    dst = shapes["dst"]
    if len(dst) == len(space):
        dims: Dims = tuple(None if d in gone else d for d in range(len(space)))
    else:
        dims = tuple(kept[d] if d < len(kept) else None for d in range(len(dst)))
    return Iterations(space, {"data": tuple(range(len(space))), "dst": dims})


def matmul(shapes: Shapes, attrs: Attrs) -> Iterations:
    """Iterations are the elements [M, N…] of dst; the contraction is not masked."""
    stationary, moving = shapes["stationary"], shapes["moving"]
    space = (shapes["dst"][0], *moving[1:])
    dst = shapes["dst"]
    return Iterations(
        space,
        {
            "dst": (0, *matching(dst[1:], space[1:]))
            if len(dst) != len(space)
            else tuple(range(len(space))),
            "stationary": (None, *(0 if n == space[0] else None for n in stationary[1:])),
            "moving": (None, *range(1, len(space))),
        },
    )


def transpose(shapes: Shapes, attrs: Attrs) -> Iterations:
    """Iterations are the elements of data [P, F]; dst [F, P] has the axes swapped."""
    return Iterations(shapes["data"], {"data": (0, 1), "dst": (1, 0)})


def permutation(shapes: Shapes, attrs: Attrs) -> Iterations:
    """Iterations are the elements of src; dst has its axes in the order of `axes`."""
    rank = len(shapes["src"])
    default = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}.get(rank, tuple(range(rank))[::-1])
    order = tuple(int(a) for a in attrs.get("axes") or default)
    return Iterations(shapes["src"], {"src": tuple(range(rank)), "dst": order})


def partition_reduction(shapes: Shapes, attrs: Attrs) -> Iterations:
    """Iterations are the elements of data; dst has one partition."""
    rank = len(shapes["data"])
    return Iterations(shapes["data"], {"data": tuple(range(rank)), "dst": (None, *range(1, rank))})
