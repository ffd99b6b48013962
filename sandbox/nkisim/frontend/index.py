"""Index tensors of the old generation (`nl.arange`, `nl.mgrid`) as affine forms.

Each `arange` owns one axis; sums and integer multiples of them stay affine, so a subscript with
index tensors is again an access pattern.  A term that feeds two dimensions gives a diagonal, two
terms in one dimension a sliding window, both exactly.

Kernels build the same few forms over and over, with other constants: a form is interned, and its
sums, multiples and subscripts are looked up, so that tracing spends no time on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from nkisim.errors import KernelError, UnsupportedError

if TYPE_CHECKING:
    from nkisim.frontend.predicate import Predicate

Shape = tuple[int, ...]
MAX_DENSE = 1 << 20
"""Elements of an index tensor that is not affine."""


class IndexForm:
    """`Σ coefficient[d] * i_d` over a grid of `shape`; equal forms are one object.

    Attributes:
        shape: Extent of each axis.
        coefficients: Step along each axis.
        low: Smallest value.
        high: Largest value.
    """

    __slots__ = ("_sums", "_views", "coefficients", "high", "low", "shape")

    def __init__(self, shape: Shape, coefficients: tuple[int, ...]) -> None:
        self.shape = shape
        self.coefficients = coefficients
        reaches = [(n - 1) * c for n, c in zip(shape, coefficients, strict=True)]
        self.low = sum(min(0, reach) for reach in reaches)
        self.high = sum(max(0, reach) for reach in reaches)
        self._sums: dict[IndexForm, IndexForm] = {}
        self._views: dict[object, IndexForm] = {}

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def plus(self, other: IndexForm) -> IndexForm:
        """Return the sum of two forms, broadcast like numpy arrays."""
        found = self._sums.get(other)
        if found is None:
            rank = max(self.ndim, other.ndim)
            a, b = self.ranked(rank), other.ranked(rank)
            shape = broadcast_shape(a.shape, b.shape)
            total = tuple(p + q for p, q in zip(a.coefficients, b.coefficients, strict=True))
            found = self._sums[other] = index_form(shape, total)
        return found

    def times(self, factor: int) -> IndexForm:
        """Return the form with every step multiplied."""
        found = self._views.get(factor)
        if found is None:
            scaled = tuple(c * factor for c in self.coefficients)
            found = self._views[factor] = index_form(self.shape, scaled)
        return found

    def ranked(self, rank: int) -> IndexForm:
        """Return the form with axes of extent 1 in front."""
        extra = rank - len(self.shape)
        if extra <= 0:
            return self
        return index_form((1,) * extra + self.shape, (0,) * extra + self.coefficients)

    def subscript(self, key: tuple[object, ...]) -> IndexForm:
        """Return the form under a subscript of None, `:` and `...`."""
        names = tuple(_kind(item) for item in key)
        found = self._views.get(names)
        if found is None:
            found = self._views[names] = self._subscripted(names)
        return found

    def _subscripted(self, names: tuple[str, ...]) -> IndexForm:
        shape: list[int] = []
        coefficients: list[int] = []
        dim, taken = 0, names.count(":")
        for name in names:
            if name == "None":
                shape.append(1)
                coefficients.append(0)
                continue
            take = self.ndim - taken if name == "..." else 1
            shape.extend(self.shape[dim : dim + take])
            coefficients.extend(self.coefficients[dim : dim + take])
            dim += take
        if dim > self.ndim or names.count("...") > 1:
            raise KernelError(
                "NKS105", f"too many subscripts for an index tensor of {self.ndim} dimensions"
            )
        shape.extend(self.shape[dim:])
        coefficients.extend(self.coefficients[dim:])
        return index_form(tuple(shape), tuple(coefficients))

    def values(self) -> npt.NDArray[np.int64]:
        """Return every value; for the few index tensors that do not stay affine."""
        size = int(np.prod(self.shape, dtype=object))
        if size > MAX_DENSE:
            raise UnsupportedError(
                "NKS502",
                f"an index tensor of {size:,} elements that is not affine is not emulated",
                hint="apply // and % to a smaller index tensor, before broadcasting it",
            )
        total = np.zeros(self.shape, dtype=np.int64)
        for axis, (n, step) in enumerate(zip(self.shape, self.coefficients, strict=True)):
            extent = [1] * self.ndim
            extent[axis] = n
            total += (np.arange(n, dtype=np.int64) * step).reshape(extent)
        return total


def _kind(item: object) -> str:
    if item is None:
        return "None"
    if item is Ellipsis:
        return "..."
    if isinstance(item, slice) and item.start is None and item.stop is None and item.step is None:
        return ":"
    raise UnsupportedError(
        "NKS502",
        f"subscript {item!r:.60} of an index tensor is not emulated",
        hint="subscript index tensors with None, ':' and '...' only",
    )


@lru_cache(maxsize=1 << 16)
def index_form(shape: Shape, coefficients: tuple[int, ...]) -> IndexForm:
    """Return the one form with this shape and these steps."""
    return IndexForm(shape, coefficients)


def broadcast_shape(a: Shape, b: Shape) -> Shape:
    """Return the shape that two shapes of equal rank broadcast to."""
    shape: list[int] = []
    for m, n in zip(a, b, strict=True):
        if m != n and 1 not in (m, n):
            raise KernelError(
                "NKS105",
                f"index tensors of shapes {list(a)} and {list(b)} do not broadcast",
                hint="give each index tensor its own axis: i[:, None] and j[None, :]",
            )
        shape.append(max(m, n))
    return tuple(shape)


class IndexTensor:
    """A form plus a constant.

    Attributes:
        form: The steps along each axis.
        constant: Value at the origin.
    """

    __slots__ = ("constant", "form")
    __array_ufunc__ = None

    def __init__(self, form: IndexForm, constant: int = 0) -> None:
        self.form = form
        self.constant = constant

    @classmethod
    def arange(cls, start: int, stop: int, step: int = 1) -> IndexTensor:
        """Return the one-dimensional index start, start + step, … below stop."""
        count = -(-(stop - start) // step) if step else 0
        if count < 1:
            raise KernelError(
                "NKS105", f"an index tensor from {start} to {stop} in steps of {step} is empty"
            )
        return cls(index_form((count,), (step,)), start)

    @property
    def shape(self) -> Shape:
        """Extent of each axis."""
        return self.form.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.form.shape)

    def __repr__(self) -> str:
        steps = " + ".join(f"{c}*i{axis}" for axis, c in enumerate(self.form.coefficients) if c)
        return f"index tensor {list(self.shape)} of {self.constant}{' + ' if steps else ''}{steps}"

    def __getitem__(self, key: object) -> IndexTensor:
        items = key if isinstance(key, tuple) else (key,)
        return IndexTensor(self.form.subscript(items), self.constant)

    def values(self) -> npt.NDArray[np.int64]:
        """Return every value."""
        return self.form.values() + self.constant

    # -- arithmetic ---------------------------------------------------------------------------

    def __add__(self, other: object) -> IndexTensor:
        if isinstance(other, int):
            return IndexTensor(self.form, self.constant + other)
        if isinstance(other, IndexTensor):
            return IndexTensor(self.form.plus(other.form), self.constant + other.constant)
        if isinstance(other, DenseIndex):
            return NotImplemented
        return IndexTensor(self.form, self.constant + as_integer(other))

    __radd__ = __add__

    def __mul__(self, other: object) -> IndexTensor | DenseIndex:
        if isinstance(other, IndexTensor):
            return DenseIndex(self.values()) * other
        if isinstance(other, DenseIndex):
            return NotImplemented
        factor = as_integer(other)
        return IndexTensor(self.form.times(factor), self.constant * factor)

    __rmul__ = __mul__

    def __neg__(self) -> IndexTensor:
        return IndexTensor(self.form.times(-1), -self.constant)

    def __pos__(self) -> IndexTensor:
        return self

    def __sub__(self, other: object) -> IndexTensor:
        if isinstance(other, IndexTensor):
            return self + -other
        if isinstance(other, DenseIndex):
            return NotImplemented
        return IndexTensor(self.form, self.constant - as_integer(other))

    def __rsub__(self, other: object) -> IndexTensor:
        return -self + other

    def __floordiv__(self, other: object) -> IndexTensor | DenseIndex:
        divisor = _positive(other)
        parts = (self.constant, *self.form.coefficients)
        if all(part % divisor == 0 for part in parts):
            quotients = tuple(c // divisor for c in self.form.coefficients)
            return IndexTensor(index_form(self.shape, quotients), self.constant // divisor)
        return DenseIndex(self.values() // divisor)

    def __mod__(self, other: object) -> IndexTensor | DenseIndex:
        divisor = _positive(other)
        low, high = self.form.low + self.constant, self.form.high + self.constant
        if low // divisor == high // divisor:
            return IndexTensor(self.form, self.constant - low // divisor * divisor)
        return DenseIndex(self.values() % divisor)

    # -- comparisons make predicates ----------------------------------------------------------

    def __ge__(self, other: object) -> Predicate:
        return _at_least(self - other)

    def __gt__(self, other: object) -> Predicate:
        return _at_least(self - other - 1)

    def __le__(self, other: object) -> Predicate:
        return _at_least(other - self)

    def __lt__(self, other: object) -> Predicate:
        return _at_least(other - self - 1)

    def __eq__(self, other: object) -> Predicate | bool:  # type: ignore[override]
        return _at_least(self - other) & _at_least(other - self)

    def __ne__(self, other: object) -> Predicate | bool:  # type: ignore[override]
        return _at_least(self - other - 1) | _at_least(other - self - 1)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise KernelError(
            "NKS404",
            f"the truth of an {self!r} is not one value",
            hint="branch on loop variables and constants only",
        )


class DenseIndex:
    """An index tensor that is not affine: quotients, remainders and products."""

    __slots__ = ("array",)
    __array_ufunc__ = None

    def __init__(self, array: npt.NDArray[np.int64]) -> None:
        if array.size > MAX_DENSE:
            raise UnsupportedError(
                "NKS502", f"an index tensor of {array.size:,} elements that is not affine"
            )
        self.array = array

    @property
    def shape(self) -> Shape:
        """Extent of each axis."""
        return self.array.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.array.ndim

    def __getitem__(self, key: object) -> DenseIndex:
        for item in key if isinstance(key, tuple) else (key,):
            _kind(item)
        return DenseIndex(self.array[key])  # type: ignore[call-overload]  # None, : and … only

    def __add__(self, other: object) -> DenseIndex:
        return DenseIndex(self.array + _array(other))

    __radd__ = __add__

    def __sub__(self, other: object) -> DenseIndex:
        return DenseIndex(self.array - _array(other))

    def __rsub__(self, other: object) -> DenseIndex:
        return DenseIndex(_array(other) - self.array)

    def __mul__(self, other: object) -> DenseIndex:
        return DenseIndex(self.array * _array(other))

    __rmul__ = __mul__

    def __neg__(self) -> DenseIndex:
        return DenseIndex(-self.array)

    def __floordiv__(self, other: object) -> DenseIndex:
        return DenseIndex(self.array // _positive(other))

    def __mod__(self, other: object) -> DenseIndex:
        return DenseIndex(self.array % _positive(other))

    def _compare(self, *_: object) -> Predicate:
        raise UnsupportedError(
            "NKS502",
            "a mask over an index tensor that is not affine (//, %, products) is not emulated",
            hint="write the condition with sums and integer multiples of nl.arange",
        )

    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _compare  # type: ignore[assignment]
    __hash__ = object.__hash__


def affine_together(
    indices: Sequence[IndexTensor | DenseIndex],
) -> list[IndexTensor] | None:
    """Return the same values as affine forms over finer axes, in the same row-major order.

    `i // 2` and `i % 4` over an axis that the divisors divide become affine when that axis is split
    in nested ones, for all index tensors of a subscript alike.  None if no split does it.
    """
    rank = max(index.ndim for index in indices)
    arrays = [_array(index) for index in indices]
    arrays = [a.reshape((1,) * (rank - a.ndim) + a.shape) for a in arrays]
    shape: Shape = (1,) * rank
    for array in arrays:
        shape = broadcast_shape(shape, array.shape)
    origin = (0,) * rank
    splits: list[list[tuple[int, npt.NDArray[np.int64]]]] = []
    for axis in range(rank):
        at = [0] * rank
        lines = []
        for array in arrays:
            at[axis] = slice(None)  # type: ignore[call-overload]
            line = array[tuple(at)] - array[origin]
            lines.append(np.broadcast_to(line, (shape[axis],)))
        split = _mixed_radix(np.array(lines))
        if split is None:
            return None
        splits.append(split)
    finer = tuple(n for split in splits for n, _ in split)
    result: list[IndexTensor] = []
    for number, array in enumerate(arrays):
        steps = tuple(int(step[number]) for split in splits for _, step in split)
        index = IndexTensor(index_form(finer, steps), int(array[origin]))
        if not np.array_equal(index.values().reshape(shape), np.broadcast_to(array, shape)):
            return None
        result.append(index)
    return result


def _mixed_radix(
    lines: npt.NDArray[np.int64],
) -> list[tuple[int, npt.NDArray[np.int64]]] | None:
    """Split offsets [index tensor, position] into nested (count, steps), outermost first."""
    inner: list[tuple[int, npt.NDArray[np.int64]]] = []
    while lines.shape[1] > 1:
        count = lines.shape[1]
        step = lines[:, 1] - lines[:, 0]
        straight = step[:, None] * np.arange(count)
        breaks = np.flatnonzero((lines - lines[:, :1] != straight).any(axis=0))
        run = int(breaks[0]) if len(breaks) else count
        if count % run:
            return None
        blocks = lines.reshape(len(lines), -1, run)
        if not np.array_equal(
            blocks - blocks[:, :, :1],
            np.broadcast_to((step[:, None] * np.arange(run))[:, None, :], blocks.shape),
        ):
            return None
        inner.append((run, step))
        lines = blocks[:, :, 0]
    return inner[::-1] or [(1, np.zeros(len(lines), dtype=np.int64))]


def _array(other: object) -> npt.NDArray[np.int64]:
    if isinstance(other, DenseIndex):
        return other.array
    if isinstance(other, IndexTensor):
        return other.values()
    return np.int64(as_integer(other))  # type: ignore[return-value]


def as_integer(value: object) -> int:
    """Return what an index tensor may be combined with as an integer."""
    try:
        return value.__index__()  # type: ignore[attr-defined, no-any-return]
    except AttributeError:
        raise UnsupportedError(
            "NKS502",
            f"an index tensor combined with {type(value).__name__} {value!r:.40} is not emulated",
            hint="index arithmetic takes integers and index tensors; use // instead of /",
        ) from None


def _positive(value: object) -> int:
    divisor = as_integer(value)
    if divisor < 1:
        raise KernelError("NKS105", f"index tensors are divided by positive numbers, got {divisor}")
    return divisor


def _at_least(difference: object) -> Predicate:
    """Return `difference >= 0`."""
    from nkisim.frontend.predicate import Predicate

    if not isinstance(difference, IndexTensor):
        raise UnsupportedError("NKS502", f"a mask over {type(difference).__name__}")
    return Predicate(((difference,),))


class Grid(tuple[IndexTensor, ...]):
    """What `nl.mgrid[...]` returns: index tensors, also by the names p, x, y, z, w."""

    __slots__ = ()

    def __getattr__(self, name: str) -> IndexTensor:
        axis = "pxyzw".find(name) if len(name) == 1 else -1
        if 0 <= axis < len(self):
            return self[axis]
        raise AttributeError(f"a grid of {len(self)} axes has no {name!r}")


class MeshGrid:
    """`nl.mgrid`: subscripted with slices, returns one index tensor for each."""

    def __getitem__(self, key: object) -> Grid:
        items = key if isinstance(key, tuple) else (key,)
        axes = list(self._axes(items))
        shape = tuple(axis.shape[0] for axis in axes)
        result: list[IndexTensor] = []
        for number, axis in enumerate(axes):
            steps = [0] * len(axes)
            steps[number] = axis.form.coefficients[0]
            result.append(IndexTensor(index_form(shape, tuple(steps)), axis.constant))
        return Grid(result)

    @staticmethod
    def _axes(items: tuple[object, ...]) -> Iterator[IndexTensor]:
        for item in items:
            if not isinstance(item, slice) or item.stop is None:
                raise KernelError(
                    "NKS105",
                    f"nl.mgrid is subscripted with start:stop, got {item!r:.60}",
                    hint="for example i, j = nl.mgrid[0:128, 0:512]",
                )
            start = 0 if item.start is None else as_integer(item.start)
            step = 1 if item.step is None else as_integer(item.step)
            yield IndexTensor.arange(start, as_integer(item.stop), step)
