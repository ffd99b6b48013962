"""What is to be scheduled: a numpy function, the shapes and dtypes of its arguments, its constants.

A problem names no task: whoever has a function and the sizes it is called with can make one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Dims = Mapping[str, int]
"""Size of each symbolic dimension."""
Scalar = bool | int | float | str


class NotCovered(Exception):
    """No family of kernels fits the function: says which operation and where, and what would fit.

    This is a statement about this scheduler, never about the function.
    """

    def __init__(self, what: str, *, line: int | None = None, hint: str | None = None) -> None:
        self.what = what
        self.line = line
        """Line of the reference's file, or None if it concerns the function as a whole."""
        self.hint = hint
        place = "" if line is None else f" (reference line {line})"
        super().__init__(f"autoschedule does not cover {what}{place}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """A tensor that goes into the kernel or comes out."""

    name: str
    shape: tuple[str | int, ...]
    """Sizes; a name stands for a symbolic dimension."""
    dtype: str
    """NKI name, such as `bfloat16`."""

    def resolve(self, dims: Dims) -> tuple[int, ...]:
        """Return the shape at given sizes of the symbolic dimensions."""
        return tuple(size if isinstance(size, int) else dims[size] for size in self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A function to write a kernel for."""

    name: str
    reference: Callable[..., object]
    """`reference(**inputs, **scalars)` on float64 arrays; it is called without values."""
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    shapes: tuple[Dims, ...]
    """Sizes that the kernel must be legal for; plans are made for the first."""

    def __post_init__(self) -> None:
        if not self.shapes:
            raise ValueError("a problem needs at least one set of sizes, got none")
