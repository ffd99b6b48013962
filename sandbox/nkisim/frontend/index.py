"""Index tensors of the old generation (`nl.arange`, `nl.mgrid`) as affine forms.

Each `arange` owns one axis; sums and integer multiples of them stay affine, so a subscript with
index tensors is again an access pattern.  A term that feeds two dimensions gives a diagonal, two
terms in one dimension a sliding window, both exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from nkisim.errors import KernelError, UnsupportedError

if TYPE_CHECKING:
    from nkisim.frontend.tensor import NkiTensor


@dataclass(frozen=True, slots=True)
class IndexTensor:
    """`constant + Σ coefficient[d] * i_d` over a grid of `shape`."""

    shape: tuple[int, ...]
    coefficients: tuple[int, ...]
    constant: int = 0

    @classmethod
    def arange(cls, start: int, stop: int, step: int = 1) -> IndexTensor:
        """Return the one-dimensional index start, start + step, … below stop."""
        count = max(0, -(-(stop - start) // step))
        return cls((count,), (step,), start)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def __getitem__(self, key: object) -> IndexTensor:
        items = key if isinstance(key, tuple) else (key,)
        shape: list[int] = []
        coefficients: list[int] = []
        dim = 0
        for item in items:
            if item is None:
                shape.append(1)
                coefficients.append(0)
            elif item is Ellipsis or (isinstance(item, slice) and item == slice(None)):
                take = self.ndim - dim if item is Ellipsis else 1
                shape.extend(self.shape[dim : dim + take])
                coefficients.extend(self.coefficients[dim : dim + take])
                dim += take
            else:
                raise UnsupportedError(
                    "NKS502", f"subscript {item!r} of an index tensor is not emulated"
                )
        shape.extend(self.shape[dim:])
        coefficients.extend(self.coefficients[dim:])
        return IndexTensor(tuple(shape), tuple(coefficients), self.constant)

    def __add__(self, other: object) -> IndexTensor:
        if isinstance(other, IndexTensor):
            rank = max(self.ndim, other.ndim)
            a, b = self._ranked(rank), other._ranked(rank)
            shape: list[int] = []
            for m, n in zip(a.shape, b.shape, strict=True):
                if m != n and 1 not in (m, n):
                    raise KernelError(
                        "NKS105", f"index tensors {a.shape} and {b.shape} do not broadcast"
                    )
                shape.append(max(m, n))
            total = tuple(p + q for p, q in zip(a.coefficients, b.coefficients, strict=True))
            return IndexTensor(tuple(shape), total, a.constant + b.constant)
        return IndexTensor(self.shape, self.coefficients, self.constant + self._int(other))

    __radd__ = __add__

    def __mul__(self, other: object) -> IndexTensor:
        factor = self._int(other)
        return IndexTensor(
            self.shape, tuple(c * factor for c in self.coefficients), self.constant * factor
        )

    __rmul__ = __mul__

    def __neg__(self) -> IndexTensor:
        return self * -1

    def __sub__(self, other: object) -> IndexTensor:
        if isinstance(other, IndexTensor):
            return self + other * -1
        return self + -self._int(other)

    def __rsub__(self, other: object) -> IndexTensor:
        return self * -1 + other

    def _ranked(self, rank: int) -> IndexTensor:
        extra = rank - self.ndim
        return IndexTensor(
            (1,) * extra + self.shape, (0,) * extra + self.coefficients, self.constant
        )

    @staticmethod
    def _int(value: object) -> int:
        try:
            return value.__index__()  # type: ignore[attr-defined, no-any-return]
        except AttributeError:
            raise UnsupportedError(
                "NKS502", f"an index tensor combined with {type(value).__name__} is not emulated"
            ) from None

    def _no_mask(self, *_: object) -> NoReturn:
        raise UnsupportedError("NKS502", "masks over index tensors are not emulated yet")

    __lt__ = __le__ = __gt__ = __ge__ = __and__ = _no_mask
    __floordiv__ = __mod__ = _no_mask


def resolve_index_tensors(
    tensor: NkiTensor, items: Sequence[object]
) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Turn a subscript with index tensors into (offset, shape, strides).

    Args:
        tensor: What is subscripted.
        items: One entry per leading dimension: index tensors, integers or full slices.

    Returns:
        The view's offset, shape and strides in elements.
    """
    indices = [item for item in items if isinstance(item, IndexTensor)]
    rank = max(index.ndim for index in indices)
    shape = [1] * rank
    strides = [0] * rank
    offset = tensor.offset
    for dim, item in enumerate(items):
        size, stride = tensor.shape[dim], tensor.strides[dim]
        if isinstance(item, IndexTensor):
            ranked = item._ranked(rank)
            low = high = ranked.constant
            for axis, (count, coefficient) in enumerate(
                zip(ranked.shape, ranked.coefficients, strict=True)
            ):
                if count != 1 and shape[axis] not in (1, count):
                    raise KernelError(
                        "NKS105",
                        f"index tensors of shapes that do not broadcast on axis {axis}: "
                        f"{shape[axis]} and {count}",
                    )
                shape[axis] = max(shape[axis], count)
                strides[axis] += coefficient * stride
                reach = (count - 1) * coefficient
                low, high = low + min(0, reach), high + max(0, reach)
            offset += ranked.constant * stride
            if low < 0 or high >= size:
                raise KernelError(
                    "NKS106",
                    f"index {low}..{high} is out of bounds on dimension {dim} of size {size}",
                    got=repr(tensor),
                    allowed=f"0 to {size - 1}",
                    hint="mask the last tile or clamp its size",
                )
        elif isinstance(item, slice) and item == slice(None):
            raise UnsupportedError(
                "NKS502", "mixing slices and index tensors in one subscript is not emulated"
            )
        else:
            at = tensor._integer(item, dim, size)
            offset += at * stride
    if len(items) != tensor.ndim:
        raise KernelError(
            "NKS105",
            f"{len(items)} index tensors for a tensor of {tensor.ndim} dimensions",
            got=repr(tensor),
        )
    return offset, tuple(shape), tuple(strides)
