"""The tensor that a kernel's Python handles: a view of a buffer, without values.

A view is (buffer, offset, shape, strides, dtype); making one never copies.  Two indexing rules are
NKI's own: an integer on the partition dimension of an on-chip tile keeps that dimension, and an
on-chip view never has fewer than two dimensions.  Source: NKI tensor indexing guide, NkiTensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from nkisim.dtypes import DType, lookup
from nkisim.errors import KernelError, UnsupportedError
from nkisim.frontend.dynamic import DynamicIndex, DynamicSlice
from nkisim.frontend.predicate import Predicate, resolve
from nkisim.frontend.register import Register
from nkisim.frontend.subscript import Reach, has_index_tensor, subscript
from nkisim.ir.access import Memory, Pattern
from nkisim.ir.program import Index

if TYPE_CHECKING:
    from nkisim.frontend.recorder import Recorder


@dataclass(slots=True, eq=False)
class TracedBuffer:
    """An allocation while tracing."""

    number: int
    memory: Memory
    dtype: DType
    partitions: int
    free_size: int
    """Elements per partition; all elements in HBM."""
    name: str
    recorder: Recorder
    region: str
    """NKI name of the memory region, such as `shared_hbm`."""
    is_argument: bool = False
    has_fill: bool = False
    has_values: bool = False
    """Something else than a matmul wrote it since it was allocated."""

    @property
    def pitch_bytes(self) -> int:
        """Bytes from one partition to the next in flat storage."""
        return self.free_size * self.dtype.itemsize


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense row-major tensor of `shape`."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    return tuple(strides)


class NkiTensor:
    """A tensor or tile inside a kernel.

    Attributes:
        shape: Elements along each dimension; on chip the first is the partition dimension.
        dtype: Element type.
        offset: First element, in elements of `dtype` from the start of the buffer.
        strides: Elements from one index to the next, per dimension.
    """

    __slots__ = ("_key", "beyond", "dtype", "index", "offset", "shape", "storage", "strides")
    __array_priority__ = 1000
    __array_ufunc__ = None

    def __init__(
        self,
        storage: TracedBuffer,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: DType,
        index: DynamicIndex | None = None,
    ) -> None:
        self.storage = storage
        self.offset = offset
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self.index = index
        self.beyond: tuple[Reach, ...] = ()
        self._key: tuple[object, ...] | None = None

    # -- what kernels ask ---------------------------------------------------------------------

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def name(self) -> str:
        """Name given at allocation."""
        return self.storage.name

    @property
    def buffer(self) -> object:
        """The memory region, comparable with `nl.sbuf`, `nl.psum`, `nl.shared_hbm`."""
        return self.storage.recorder.regions[self.storage.region]

    @property
    def memory(self) -> Memory:
        """Where the buffer lives."""
        return self.storage.memory

    def is_contiguous(self) -> bool:
        """Whether elements are adjacent in row-major order (per partition on chip)."""
        first = 1 if self.memory.is_on_chip else 0
        dense = row_major(self.shape[first:])
        return all(
            count == 1 or got == want
            for count, got, want in zip(
                self.shape[first:], self.strides[first:], dense, strict=True
            )
        )

    def is_indirect(self) -> bool:
        """Whether the address depends on values at run time."""
        return self.index is not None

    def get_pattern(self) -> list[list[int]]:
        """The access pattern as [[step, count], …], outermost first."""
        return [[s, c] for s, c in zip(self.strides, self.shape, strict=True)]

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        dims = ", ".join(map(str, self.shape))
        return f"{self.storage.name}[{dims}] {self.dtype} in {self.memory}"

    # -- for the recorder ---------------------------------------------------------------------

    @property
    def key(self) -> tuple[object, ...]:
        """All that an instruction's form knows of this operand."""
        if self._key is None:
            self.require_in_bounds()
            index = self.index
            self._key = (
                self.shape,
                self.strides,
                self.dtype.name,
                self.storage.memory,
                None if index is None else (index.kind, index.step, index.bound),
            )
        return self._key

    @property
    def pattern(self) -> Pattern:
        """Counts, strides and dtype as the Program stores them."""
        return Pattern(self.shape, self.strides, self.dtype)

    def program_index(self, *, is_skip: bool = False) -> Index | None:
        """The run-time part of the address as the Program stores it."""
        if self.index is None:
            return None
        return Index(
            "vector" if self.index.kind == "vector" else "scalar",
            self.index.step,
            self.index.bound,
            is_skip,
        )

    def _view(
        self,
        offset: int,
        shape: Sequence[int],
        strides: Sequence[int],
        dtype: DType | None = None,
        index: DynamicIndex | None = None,
    ) -> NkiTensor:
        return NkiTensor(
            self.storage,
            offset,
            tuple(shape),
            tuple(strides),
            dtype or self.dtype,
            index if index is not None else self.index,
        )

    # -- indexing -----------------------------------------------------------------------------

    def __getitem__(self, key: object) -> NkiTensor:
        items = key if isinstance(key, tuple) else (key,)
        if has_index_tensor(items):
            return subscript(self, items)
        if len(items) == 1 and isinstance(items[0], Predicate):
            return self._masked(items[0])
        return self._basic_index(items)

    def _masked(self, mask: Predicate) -> NkiTensor:
        """View of the box where `mask` holds (masks on a matmul's operands)."""
        region = resolve(mask, self.shape)
        if region is None or region.clauses:
            raise UnsupportedError(
                "NKS502",
                "a tile under a mask that is not a box is not emulated",
                hint="pass mask= to the instruction",
            )
        return self.boxed(tuple(range(self.ndim)), region.box)

    def boxed(self, dims: Sequence[int | None], box: Sequence[tuple[int, int]]) -> NkiTensor:
        """View of a box of an iteration space.

        Args:
            dims: Axis of the space of each dimension, or None.
            box: (start, count) along each axis.
        """
        offset, shape = self.offset, list(self.shape)
        starts = [0] * len(shape)
        for d, axis in enumerate(dims):
            if axis is not None:
                starts[d], shape[d] = box[axis]
                offset += starts[d] * self.strides[d]
        index = self.index
        if (
            index is not None
            and index.kind == "vector"
            and (starts[0] or shape[0] != self.shape[0])
        ):
            assert isinstance(index.source, NkiTensor)
            source = index.source[starts[0] : starts[0] + shape[0]]
            index = DynamicIndex(index.kind, source, index.step, index.bound)
        view = NkiTensor(self.storage, offset, tuple(shape), self.strides, self.dtype, index)
        view.beyond = tuple(
            moved
            for reach in self.beyond
            if not (moved := reach.moved(starts)).is_inside(view.shape)
        )
        return view

    def require_in_bounds(self) -> None:
        """Refuse a view that reaches outside of its tensor."""
        for reach in self.beyond:
            low, high = reach.span(self.shape)
            raise KernelError(
                "NKS106",
                f"index {low}..{high} is out of bounds on dimension {reach.dim} of size "
                f"{reach.size}",
                got=f"a view {list(self.shape)} of {self.storage.name}",
                allowed=f"0 to {reach.size - 1}",
                hint="mask the last tile: mask=(i < size), or clamp its size",
            )

    def _basic_index(self, items: tuple[object, ...]) -> NkiTensor:
        self.require_in_bounds()
        on_chip = self.storage.memory.is_on_chip
        given = sum(1 for item in items if item is not None and item is not Ellipsis)
        if given > len(self.shape):
            raise KernelError(
                "NKS105",
                f"too many indices: {given} for a tensor of {len(self.shape)} dimensions",
                got=repr(self),
                hint="give at most one index for each dimension",
            )
        offset = self.offset
        shape: list[int] = []
        strides: list[int] = []
        index: DynamicIndex | None = None
        dim = 0
        seen_ellipsis = False
        last_was_dropped: tuple[int, int] | None = None
        for position, item in enumerate(items):
            if item is Ellipsis:
                if seen_ellipsis:
                    raise KernelError("NKS105", "an index may contain only one '...'")
                seen_ellipsis = True
                skip = len(self.shape) - given
                shape.extend(self.shape[dim : dim + skip])
                strides.extend(self.strides[dim : dim + skip])
                dim += skip
                continue
            if item is None:
                shape.append(1)
                strides.append(0)
                continue
            size, stride = self.shape[dim], self.strides[dim]
            if isinstance(item, slice):
                start, count, step = self.slice_bounds(item, dim, size)
                offset += start * stride
                shape.append(count)
                strides.append(stride * step)
            elif isinstance(item, DynamicSlice):
                index = self._dynamic(item.start, stride, size - item.size + 1, index)
                shape.append(item.size)
                strides.append(stride)
            elif isinstance(item, (Register, NkiTensor)):
                index = self._dynamic(item, stride, size, index)
                if on_chip and dim == 0:
                    shape.append(1)
                    strides.append(stride)
                else:
                    last_was_dropped = (position, stride)
            else:
                at = self.integer_index(item, dim, size)
                offset += at * stride
                if on_chip and dim == 0:
                    shape.append(1)
                    strides.append(stride)
                else:
                    last_was_dropped = (position, stride)
            dim += 1
        shape.extend(self.shape[dim:])
        strides.extend(self.strides[dim:])
        minimum = 2 if on_chip else 1
        if len(shape) < minimum and last_was_dropped is not None:
            shape.append(1)
            strides.append(1 if on_chip else last_was_dropped[1])
        return NkiTensor(
            self.storage, offset, tuple(shape), tuple(strides), self.dtype, index or self.index
        )

    def slice_bounds(self, item: slice, dim: int, size: int) -> tuple[int, int, int]:
        """Return start, count and step of a slice, which must not be empty."""
        step = 1 if item.step is None else self._plain_int(item.step, dim, "step")
        if step < 1:
            raise KernelError(
                "NKS105",
                f"slice step {step} on dimension {dim} is not positive",
                got=repr(self),
                hint="access patterns run forwards; use a positive step",
            )
        start = 0 if item.start is None else self._plain_int(item.start, dim, "start")
        stop = size if item.stop is None else self._plain_int(item.stop, dim, "stop")
        start = start + size if start < 0 else start
        stop = stop + size if stop < 0 else stop
        if not 0 <= start < size or not start < stop <= size:
            if start >= stop:
                message = f"empty slice {start}:{stop} on dimension {dim} of size {size}"
                hint = "skip the iteration when nothing is left, or check the tile count"
            else:
                message = f"slice {start}:{stop} is out of bounds on dimension {dim} of size {size}"
                hint = f"clamp the last tile: end = min(start + tile, {size})"
            raise KernelError(
                "NKS106", message, got=repr(self), allowed=f"0 <= start < stop <= {size}", hint=hint
            )
        return start, (stop - start + step - 1) // step, step

    def _plain_int(self, value: object, dim: int, what: str) -> int:
        if isinstance(value, Register):
            raise KernelError(
                "NKS405",
                f"slice {what} on dimension {dim} is a register, which has no value at trace time",
                got=repr(self),
                hint="use nl.ds(register, size): the size must be known, the start may be dynamic",
            )
        try:
            return value.__index__()  # type: ignore[attr-defined, no-any-return]
        except AttributeError:
            raise KernelError(
                "NKS105",
                f"slice {what} on dimension {dim} must be an integer, "
                f"got {type(value).__name__} {value!r:.60}",
                got=repr(self),
                hint="use // instead of / for tile arithmetic",
            ) from None

    def integer_index(self, item: object, dim: int, size: int) -> int:
        """Return an integer index counted from 0, which must be in bounds."""
        try:
            at: int = item.__index__()  # type: ignore[attr-defined]
        except AttributeError:
            raise KernelError(
                "NKS105",
                f"index on dimension {dim} must be an integer, a slice or nl.ds, "
                f"got {type(item).__name__} {item!r:.60}",
                got=repr(self),
                hint="use // instead of / for tile arithmetic",
            ) from None
        if not -size <= at < size:
            raise KernelError(
                "NKS106",
                f"index {at} is out of bounds on dimension {dim} of size {size}",
                got=repr(self),
                allowed=f"0 <= index < {size}",
                hint="check the loop's trip count against the tensor's shape",
            )
        return at + size if at < 0 else at

    def _dynamic(
        self,
        source: Register | NkiTensor,
        stride: int,
        bound: int,
        already: DynamicIndex | None,
    ) -> DynamicIndex:
        if already is not None or self.index is not None:
            raise KernelError(
                "NKS405",
                "a view may have one dynamic index only",
                got=repr(self),
                hint="combine the two into one register or one index tile",
            )
        if isinstance(source, NkiTensor) and source.size != 1:
            raise KernelError(
                "NKS405",
                f"a dynamic index must be a register or a tile of one element, got {source!r}",
                hint="for per-partition rows use .ap(..., vector_offset=tile, indirect_dim=0)",
            )
        return DynamicIndex("scalar", source, stride, bound)

    def __setitem__(self, key: object, value: object) -> None:
        self.storage.recorder.assign(self, key, value)

    def __iter__(self) -> Iterator[NkiTensor]:
        return (self[i] for i in range(self.shape[0]))

    # -- views --------------------------------------------------------------------------------

    def reshape(self, *shape: int | Sequence[int]) -> NkiTensor:
        """View with another shape and the same elements in row-major order."""
        wanted = self._shape_argument(shape)
        if wanted.count(-1) == 1:
            known = -prod(wanted)
            wanted = tuple(self.size // known if n == -1 and known else n for n in wanted)
        if prod(wanted) != self.size:
            raise KernelError(
                "NKS107",
                f"reshape of {self.size} elements to {list(wanted)}, which has {prod(wanted)}",
                got=repr(self),
                hint="both shapes must hold the same number of elements",
            )
        if self.memory.is_on_chip and (len(wanted) < 2 or wanted[0] != self.shape[0]):
            raise KernelError(
                "NKS107",
                f"reshape of an on-chip tile to {list(wanted)} changes its partition dimension",
                got=repr(self),
                hint="only free dimensions can be reshaped; move data across partitions with "
                "nc_transpose or dma_copy",
            )
        strides = self._reshaped_strides(wanted)
        return self._view(self.offset, wanted, strides)

    @staticmethod
    def _shape_argument(shape: Sequence[int | Sequence[int]]) -> tuple[int, ...]:
        if len(shape) == 1 and not isinstance(shape[0], int) and hasattr(shape[0], "__iter__"):
            shape = tuple(shape[0])
        return tuple(int(n) for n in shape)  # type: ignore[arg-type]

    def _reshaped_strides(self, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """Strides of the reshaped view; raises if it would need a copy."""
        old = [(c, s) for c, s in zip(self.shape, self.strides, strict=True) if c != 1]
        result: list[int] = []
        position = 0
        pending: list[tuple[int, int]] = []
        i = 0
        sizes = list(wanted)
        while i < len(sizes):
            if sizes[i] == 1:
                result.append(0)
                i += 1
                continue
            # take old dimensions until their product matches a product of new dimensions
            old_product, first_old = 1, position
            new_product, first_new = 1, i
            while True:
                if old_product == new_product and old_product != 1:
                    break
                if old_product <= new_product:
                    if position >= len(old):
                        break
                    old_product *= old[position][0]
                    position += 1
                else:
                    if i >= len(sizes):
                        break
                    new_product *= sizes[i]
                    i += 1
            while i < len(sizes) and sizes[i] == 1:
                i += 1
            pending = old[first_old:position]
            for (_, outer), (inner_count, inner) in pairwise(pending):
                if outer != inner_count * inner:
                    self._not_contiguous("reshape")
            stride = pending[-1][1]
            block: list[int] = []
            for n in reversed(sizes[first_new:i]):
                block.append(stride if n != 1 else 0)
                stride *= n
            result.extend(reversed(block))
        return tuple(result)

    def _not_contiguous(self, what: str) -> NoReturn:
        raise KernelError(
            "NKS107",
            f"{what} of a view whose elements are not adjacent would need a copy",
            got=f"{self!r}, strides {list(self.strides)}",
            hint="copy into a new tile with nisa.tensor_copy first, or view before slicing",
        )

    def permute(self, dims: Sequence[int]) -> NkiTensor:
        """View with dimensions reordered; dimension 0 of an on-chip tile stays."""
        order = tuple(int(d) for d in dims)
        if sorted(order) != list(range(self.ndim)):
            raise KernelError("NKS107", f"permute{order} is not a permutation of {self.ndim} dims")
        if self.memory.is_on_chip and order[0] != 0:
            raise KernelError(
                "NKS107",
                f"permute{order} moves the partition dimension of an on-chip tile",
                got=repr(self),
                hint="transpose across partitions with nisa.nc_transpose or nisa.dma_transpose",
            )
        return self._view(
            self.offset, [self.shape[d] for d in order], [self.strides[d] for d in order]
        )

    def broadcast(self, dim: int, size: int) -> NkiTensor:
        """View that repeats dimension `dim` of size 1 `size` times."""
        if self.shape[dim] != 1:
            raise KernelError(
                "NKS107",
                f"broadcast of dimension {dim}, whose size is {self.shape[dim]} and not 1",
                got=repr(self),
            )
        if self.memory.is_on_chip and dim == 0 and size != 1:
            return self.storage.recorder.partition_broadcast(self, int(size))
        shape, strides = list(self.shape), list(self.strides)
        shape[dim], strides[dim] = int(size), 0
        return self._view(self.offset, shape, strides)

    def broadcast_to(self, *shape: int | Sequence[int]) -> NkiTensor:
        """View of the same rank in which dimensions of size 1 are repeated."""
        wanted = self._shape_argument(shape)
        if len(wanted) != self.ndim:
            raise KernelError(
                "NKS107", f"broadcast_to {list(wanted)} changes the rank", got=repr(self)
            )
        view = self
        for dim, (have, want) in enumerate(zip(self.shape, wanted, strict=True)):
            if have != want:
                view = view.broadcast(dim, want)
        return view

    def expand_dim(self, dim: int) -> NkiTensor:
        """View with a dimension of size 1 inserted at `dim`."""
        shape, strides = list(self.shape), list(self.strides)
        shape.insert(dim, 1)
        strides.insert(dim, 0)
        return self._view(self.offset, shape, strides)

    expand_dims = expand_dim

    def squeeze_dim(self, dim: int) -> NkiTensor:
        """View without dimension `dim`, whose size must be 1."""
        if self.shape[dim] != 1:
            raise KernelError(
                "NKS107", f"squeeze_dim({dim}): size is {self.shape[dim]}, not 1", got=repr(self)
            )
        shape, strides = list(self.shape), list(self.strides)
        del shape[dim], strides[dim]
        return self._view(self.offset, shape, strides)

    def reshape_dim(self, dim: int, shape: Sequence[int]) -> NkiTensor:
        """View with dimension `dim` split into `shape`."""
        parts = tuple(int(n) for n in shape)
        if parts.count(-1) == 1:
            known = -prod(parts)
            parts = tuple(self.shape[dim] // known if n == -1 else n for n in parts)
        if prod(parts) != self.shape[dim]:
            raise KernelError(
                "NKS107",
                f"reshape_dim({dim}, {list(parts)}): size is {self.shape[dim]}, not {prod(parts)}",
                got=repr(self),
            )
        inner = [s * self.strides[dim] for s in row_major(parts)]
        return self._view(
            self.offset,
            self.shape[:dim] + parts + self.shape[dim + 1 :],
            (*self.strides[:dim], *inner, *self.strides[dim + 1 :]),
        )

    def flatten_dims(self, start_dim: int, end_dim: int) -> NkiTensor:
        """View with dimensions `start_dim` … `end_dim` (inclusive) merged."""
        end_dim = end_dim % self.ndim
        merged = prod(self.shape[start_dim : end_dim + 1])
        shape = (*self.shape[:start_dim], merged, *self.shape[end_dim + 1 :])
        return self._view(self.offset, shape, self._reshaped_strides(shape))

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> NkiTensor:
        """View of `start:end:step` along `dim`."""
        items: list[object] = [slice(None)] * self.ndim
        items[dim] = slice(start, end, step)
        return self._basic_index(tuple(items))

    def select(self, dim: int, index: object) -> NkiTensor:
        """View without `dim`, at an integer, a register or a one-element tile."""
        items: list[object] = [slice(None)] * self.ndim
        items[dim] = index
        return self._basic_index(tuple(items))

    def vector_select(self, dim: int, vector_offset: NkiTensor) -> NkiTensor:
        """View whose row p is row `vector_offset[p]` of dimension `dim` (0 only, HBM only)."""
        if dim != 0 or self.memory is not Memory.HBM:
            raise KernelError(
                "NKS405", "vector_select works on dimension 0 of an HBM tensor", got=repr(self)
            )
        rows = vector_offset.shape[0]
        index = DynamicIndex("vector", vector_offset, self.strides[0], self.shape[0])
        return self._view(self.offset, (rows, *self.shape[1:]), (0, *self.strides[1:]), None, index)

    def view(self, dtype: object, shape: Sequence[int] | None = None) -> NkiTensor:
        """View the same bytes as another dtype; the last dimension is rescaled."""
        wanted = lookup(dtype)
        if wanted is None:
            raise KernelError("NKS301", f"view: {dtype!r} is not an NKI dtype")
        view = self
        if wanted.itemsize != self.dtype.itemsize:
            view = self._rescaled(wanted)
        else:
            view = self._view(self.offset, self.shape, self.strides, wanted)
        return view if shape is None else view.reshape(shape)

    reinterpret_cast = view

    def _rescaled(self, wanted: DType) -> NkiTensor:
        old, new = self.dtype.itemsize, wanted.itemsize
        if self.strides[-1] != 1 and self.shape[-1] != 1:
            self._not_contiguous(f"view as {wanted}")
        scaled = [*self.strides[:-1], self.offset, self.shape[-1]]
        if any((n * old) % new for n in scaled):
            raise KernelError(
                "NKS107",
                f"view as {wanted} needs offsets and last dimension in multiples of {new} bytes",
                got=repr(self),
            )
        *strides, offset, last = (n * old // new for n in scaled)
        return self._view(offset, (*self.shape[:-1], last), (*strides, 1), wanted)

    def ap(
        self,
        pattern: Sequence[Sequence[int]],
        offset: int | None = None,
        scalar_offset: Register | NkiTensor | None = None,
        vector_offset: NkiTensor | None = None,
        indirect_dim: int = 0,
        dtype: object = None,
    ) -> NkiTensor:
        """View by an explicit access pattern over the underlying storage.

        Args:
            pattern: [[step, count], …] outermost first, in elements; on chip the first pair is the
                partition pair and its step the elements per partition.
            offset: First element from the start of the storage; None keeps this view's offset.
            scalar_offset: Register or one-element tile added to dimension `indirect_dim`.
            vector_offset: Tile [P, 1] of row numbers for dimension 0.
            indirect_dim: Dimension that the dynamic offset counts.
            dtype: Reinterpret the storage as this dtype first.
        """
        wanted = self.dtype if dtype is None else lookup(dtype)
        if wanted is None:
            raise KernelError("NKS301", f"ap: {dtype!r} is not an NKI dtype")
        try:
            pairs = [(int(step), int(count)) for step, count in pattern]
        except (TypeError, ValueError):
            raise KernelError(
                "NKS105",
                f"ap: pattern must be [[step, count], …] of integers, got {pattern!r:.80}",
                hint="for example t.ap([[t.shape[1], 128], [1, 512]])",
            ) from None
        start = self.offset * self.dtype.itemsize // wanted.itemsize if offset is None else offset
        shape = tuple(count for _, count in pairs)
        strides = tuple(step for step, _ in pairs)
        if any(count < 1 for count in shape):
            raise KernelError("NKS105", f"ap: counts must be positive, got {list(shape)}")
        index = None
        if scalar_offset is not None or vector_offset is not None:
            base = self.shape
            if scalar_offset is not None:
                step = prod(base[indirect_dim + 1 :])
                index = DynamicIndex("scalar", scalar_offset, step, base[indirect_dim])
            else:
                assert vector_offset is not None
                index = DynamicIndex("vector", vector_offset, prod(base[1:]), base[0])
                strides = (0, *strides[1:])
        return self._view(start, shape, strides, wanted, index)

    def rearrange(self, *args: object, **kwargs: object) -> NkiTensor:
        """Not emulated."""
        raise UnsupportedError(
            "NKS501", "NkiTensor.rearrange is not emulated", hint="use reshape_dim and permute"
        )

    def indirect(self, *args: object, **kwargs: object) -> NkiTensor:
        """Not emulated."""
        raise UnsupportedError("NKS501", "NkiTensor.indirect is not emulated")

    def astype(self, dtype: object) -> NkiTensor:
        """Copy into a new tile of another dtype (old-generation idiom)."""
        return self.storage.recorder.tile_operation("copy", self, dtype=dtype)

    def assert_shape(self, shape: Sequence[int]) -> NkiTensor:
        """Check the shape and return self."""
        if tuple(shape) != self.shape:
            raise KernelError("NKS101", f"expected shape {list(shape)}, got {self!r}")
        return self

    # -- operators on tiles (old-generation idiom; refused under newer versions) ----------------

    def __add__(self, other: object) -> NkiTensor:
        return self.storage.recorder.tile_operation("add", self, other)

    def __radd__(self, other: object) -> NkiTensor:
        return self.storage.recorder.tile_operation("add", other, self)

    def __iadd__(self, other: object) -> NkiTensor:
        return self.storage.recorder.accumulate(self, other)

    def __sub__(self, other: object) -> NkiTensor:
        return self.storage.recorder.tile_operation("subtract", self, other)

    def __rsub__(self, other: object) -> NkiTensor:
        return self.storage.recorder.tile_operation("subtract", other, self)

    def __isub__(self, other: object) -> NkiTensor:
        return self.storage.recorder.update("subtract", self, other)

    def __mul__(self, other: object) -> NkiTensor:
        return self.storage.recorder.tile_operation("multiply", self, other)

    def __rmul__(self, other: object) -> NkiTensor:
        return self.storage.recorder.tile_operation("multiply", other, self)

    def __imul__(self, other: object) -> NkiTensor:
        return self.storage.recorder.update("multiply", self, other)

    def __truediv__(self, other: object) -> NkiTensor:
        return self.storage.recorder.tile_operation("divide", self, other)

    def __rtruediv__(self, other: object) -> NkiTensor:
        return self.storage.recorder.tile_operation("divide", other, self)

    def __itruediv__(self, other: object) -> NkiTensor:
        return self.storage.recorder.update("divide", self, other)

    def __pow__(self, other: object) -> NkiTensor:
        return self.storage.recorder.tile_operation("power", self, other)

    def __rpow__(self, other: object) -> NkiTensor:
        return self.storage.recorder.tile_operation("power", other, self)

    def __ipow__(self, other: object) -> NkiTensor:
        return self.storage.recorder.update("power", self, other)

    def __and__(self, other: object) -> NkiTensor:
        return self.storage.recorder.tile_operation("bitwise_and", self, other)

    def __rand__(self, other: object) -> NkiTensor:
        return self.storage.recorder.tile_operation("bitwise_and", other, self)

    def __iand__(self, other: object) -> NkiTensor:
        return self.storage.recorder.update("bitwise_and", self, other)

    def __or__(self, other: object) -> NkiTensor:
        return self.storage.recorder.tile_operation("bitwise_or", self, other)

    def __ror__(self, other: object) -> NkiTensor:
        return self.storage.recorder.tile_operation("bitwise_or", other, self)

    def __ior__(self, other: object) -> NkiTensor:
        return self.storage.recorder.update("bitwise_or", self, other)

    def __xor__(self, other: object) -> NkiTensor:
        return self.storage.recorder.tile_operation("bitwise_xor", self, other)

    def __rxor__(self, other: object) -> NkiTensor:
        return self.storage.recorder.tile_operation("bitwise_xor", other, self)

    def __ixor__(self, other: object) -> NkiTensor:
        return self.storage.recorder.update("bitwise_xor", self, other)

    def __lshift__(self, other: object) -> NkiTensor:
        return self.storage.recorder.tile_operation("left_shift", self, other)

    def __rshift__(self, other: object) -> NkiTensor:
        return self.storage.recorder.tile_operation("right_shift", self, other)

    def __mod__(self, other: object) -> NkiTensor:
        return self.storage.recorder.tile_operation("mod", self, other)

    def __neg__(self) -> NkiTensor:
        return self.storage.recorder.tile_operation("negative", self)

    def __invert__(self) -> NkiTensor:
        return self.storage.recorder.tile_operation("invert", self)

    def __abs__(self) -> NkiTensor:
        return self.storage.recorder.tile_operation("abs", self)

    def __lt__(self, other: object) -> NkiTensor:
        return self._compared("less", other)

    def __le__(self, other: object) -> NkiTensor:
        return self._compared("less_equal", other)

    def __gt__(self, other: object) -> NkiTensor:
        return self._compared("greater", other)

    def __ge__(self, other: object) -> NkiTensor:
        return self._compared("greater_equal", other)

    def __eq__(self, other: object) -> object:  # type: ignore[override]  # a tile
        return self._compared("equal", other) if self._compares_with(other) else self is other

    def __ne__(self, other: object) -> object:  # type: ignore[override]  # a tile
        return (
            self._compared("not_equal", other) if self._compares_with(other) else self is not other
        )

    def _compares_with(self, other: object) -> bool:
        """Whether == means the values; newer kernels ask so whether a parameter is a number."""
        if self.storage.recorder.is_beta1:
            return isinstance(other, (NkiTensor, int, float))
        return self.size == 1 and isinstance(other, (int, float, np.number))

    def _compared(self, name: str, other: object) -> NkiTensor:
        recorder = self.storage.recorder
        if recorder.version is not None or self.memory is Memory.HBM:
            raise self._no_value("compare")
        return recorder.tile_operation(name, self, other)

    def _no_value(self, what: str) -> KernelError:
        """Return the error for Python that needs the values of a tensor."""
        return KernelError(
            "NKS404",
            f"Python cannot {what} the values of a tensor: they are not known at trace time",
            got=repr(self),
            hint="select by values with nl.where(condition, a, b) or nisa.tensor_copy_predicated, "
            "by position with nisa.affine_select; branch on shapes and constants",
        )

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        if not self.storage.recorder.is_presence_test(self):
            raise self._no_value("branch on")
        return True

    def __float__(self) -> float:
        raise self._no_value("read")

    def __int__(self) -> int:
        raise self._no_value("read")

    def __array__(self, *args: object, **kwargs: object) -> NoReturn:
        raise KernelError(
            "NKS404",
            f"numpy cannot read a tile inside a kernel: {self!r}",
            hint="use nki.isa instructions; numpy works on trace-time constants only",
        )
