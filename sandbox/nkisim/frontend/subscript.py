"""Subscripts with index tensors: an access pattern again, worked out once per combination of forms.

Index tensors broadcast together to one group of axes; integers choose, slices keep their own axis.
Without slices the group is the whole result.  With slices its axes of extent 1 are dropped, so that
`x[i[:, None], 0:512]` is [128, 512].  Bounds are checked when an instruction uses the view, because
only then is its mask known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from nkisim.errors import KernelError, UnsupportedError
from nkisim.frontend.dynamic import DynamicIndex
from nkisim.frontend.index import (
    DenseIndex,
    IndexForm,
    IndexTensor,
    affine_together,
    broadcast_shape,
)

if TYPE_CHECKING:
    from nkisim.frontend.tensor import NkiTensor

Shape = tuple[int, ...]


class Reach(NamedTuple):
    """An index that leaves its dimension unless a mask holds it back."""

    dim: int
    size: int
    constant: int
    steps: tuple[int, ...]
    """Per axis of the view."""

    def span(self, shape: Shape) -> tuple[int, int]:
        """Return the lowest and highest index over a view of `shape`."""
        reaches = [(n - 1) * step for n, step in zip(shape, self.steps, strict=True)]
        low = self.constant + sum(min(0, reach) for reach in reaches)
        return low, self.constant + sum(max(0, reach) for reach in reaches)

    def is_inside(self, shape: Shape) -> bool:
        """Whether a view of `shape` stays inside of the dimension."""
        low, high = self.span(shape)
        return low >= 0 and high < self.size

    def moved(self, starts: Sequence[int]) -> Reach:
        """Return the same index for a view that starts further on."""
        shift = sum(step * start for step, start in zip(self.steps, starts, strict=True))
        return self._replace(constant=self.constant + shift)


@dataclass(frozen=True, slots=True)
class Layout:
    """What a combination of forms makes of a tensor's shape and strides."""

    shape: Shape
    strides: Shape
    steps: tuple[tuple[int, Shape] | None, ...]
    """For each item that is an index tensor: its dimension and its steps per axis of the result."""
    dims: tuple[int, ...]
    """Dimension of each item; -1 for None."""


def has_index_tensor(items: Sequence[object]) -> bool:
    """Whether a subscript needs the rules of index tensors."""
    for item in items:
        kind = type(item)
        if kind is IndexTensor or kind is DenseIndex:
            return True
    return False


def subscript(tensor: NkiTensor, items: tuple[object, ...]) -> NkiTensor:
    """Return the view of `tensor` under a subscript that holds index tensors."""
    tile_type = type(tensor)
    tensor.require_in_bounds()
    items = _expanded(tensor, items)
    storage = tensor.storage
    on_chip = storage.memory.is_on_chip
    signature: list[object] = []
    for item in items:
        kind = type(item)
        if kind is IndexTensor:
            signature.append(item.form)  # type: ignore[attr-defined]
        elif isinstance(item, slice):
            signature.append((item.start, item.stop, item.step))
        elif isinstance(item, tile_type):
            signature.append(("tile", item.shape))
        else:
            signature.append(None if item is None else 0)
    key = (tensor.shape, tensor.strides, on_chip, *signature)
    layouts = storage.recorder.layouts
    layout = layouts.get(key)
    if layout is None:
        layout = layouts[key] = _layout(tensor, items, on_chip)
    offset = tensor.offset
    beyond: list[Reach] = []
    index: DynamicIndex | None = tensor.index
    for item, dim, steps in zip(items, layout.dims, layout.steps, strict=True):
        if steps is not None:
            form, constant = item.form, item.constant  # type: ignore[attr-defined]
            size = tensor.shape[dim]
            offset += constant * tensor.strides[dim]
            if constant + form.low < 0 or constant + form.high >= size:
                beyond.append(Reach(dim, size, constant, steps[1]))
        elif isinstance(item, tile_type):
            if index is not None:
                raise KernelError(
                    "NKS405",
                    "a subscript may hold one tile of indices only",
                    got=repr(tensor),
                    hint="combine the two into one index tile",
                )
            how = "scalar" if item.size == 1 else "vector"
            index = DynamicIndex(how, item, tensor.strides[dim], tensor.shape[dim])
        elif isinstance(item, slice):
            start, _, _ = tensor.slice_bounds(item, dim, tensor.shape[dim])
            offset += start * tensor.strides[dim]
        elif item is not None:
            offset += tensor.integer_index(item, dim, tensor.shape[dim]) * tensor.strides[dim]
    view = tile_type(storage, offset, layout.shape, layout.strides, tensor.dtype, index)
    if beyond:
        view.beyond = tuple(beyond)
    return view


def _expanded(tensor: NkiTensor, items: tuple[object, ...]) -> tuple[object, ...]:
    """Replace the ellipsis and missing trailing items by full slices, dense indices by affine."""
    result: list[object] = []
    given = sum(1 for item in items if item is not None and item is not Ellipsis)
    missing = tensor.ndim - given
    if missing < 0:
        raise KernelError(
            "NKS105",
            f"too many indices: {given} for a tensor of {tensor.ndim} dimensions",
            got=repr(tensor),
        )
    seen = False
    for item in items:
        if item is Ellipsis:
            if not seen:
                result.extend([slice(None)] * missing)
            seen = True
        else:
            result.append(item)
    if not seen:
        result.extend([slice(None)] * missing)
    if any(type(item) is DenseIndex for item in result):
        result = _affine(result)
    return tuple(result)


def _affine(items: list[object]) -> list[object]:
    """Return a subscript with // and % rewritten over finer axes."""
    places = [i for i, item in enumerate(items) if isinstance(item, (IndexTensor, DenseIndex))]
    indices = affine_together([items[i] for i in places])  # type: ignore[misc]  # chosen above
    if indices is None:
        raise UnsupportedError(
            "NKS502",
            "index tensors with //, % or products that form no regular pattern are not emulated",
            hint="use // and % with divisors of the axis, or gather by an index tile",
        )
    result = list(items)
    for place, index in zip(places, indices, strict=True):
        result[place] = index
    return result


def _layout(tensor: NkiTensor, items: tuple[object, ...], on_chip: bool) -> Layout:
    from nkisim.frontend.tensor import NkiTensor

    dims: list[int] = []
    dim = 0
    for item in items:
        dims.append(-1 if item is None else dim)
        dim += item is not None
    group = _group_shape(tensor, items)
    has_slices = any(item is None or isinstance(item, slice) for item in items)
    axes = list(range(len(group)))  # axes of the group that the result keeps
    if has_slices:
        axes = [a for a in axes if group[a] != 1] or axes[:1]
    kinds = [
        "g" if isinstance(i, (IndexTensor, NkiTensor)) else "s" if has_own(i) else "" for i in items
    ]
    word = "".join(kinds)
    first = word.find("g")
    is_together = "s" not in word[first : word.rfind("g") + 1]
    before = word[:first].count("s") if is_together else 0
    shape: list[int] = []
    strides: list[int] = []
    own: list[tuple[int, int]] = []
    for item, at in zip(items, dims, strict=True):
        if item is None:
            own.append((1, 0))
        elif isinstance(item, slice):
            _, count, step = tensor.slice_bounds(item, at, tensor.shape[at])
            own.append((count, tensor.strides[at] * step))
    shape = [n for n, _ in own[:before]] + [group[a] for a in axes] + [n for n, _ in own[before:]]
    strides = [s for _, s in own[:before]] + [0] * len(axes) + [s for _, s in own[before:]]
    steps: list[tuple[int, Shape] | None] = []
    for item, at in zip(items, dims, strict=True):
        if not isinstance(item, IndexTensor):
            steps.append(None)
            continue
        form = item.form.ranked(len(group))
        per_axis = [0] * len(shape)
        for position, axis in enumerate(axes):
            if form.shape[axis] != 1:
                per_axis[before + position] = form.coefficients[axis]
                strides[before + position] += form.coefficients[axis] * tensor.strides[at]
        steps.append((at, tuple(per_axis)))
    if on_chip:
        _check_partition_axis(tensor, items, dims, steps, shape)
    while len(shape) < (2 if on_chip else 1):
        shape.append(1)
        strides.append(1)
        steps = [s and (s[0], (*s[1], 0)) for s in steps]
    return Layout(tuple(shape), tuple(strides), tuple(steps), tuple(dims))


def has_own(item: object) -> bool:
    """Whether an item of a subscript keeps an axis of its own."""
    return item is None or isinstance(item, slice)


def _group_shape(tensor: NkiTensor, items: tuple[object, ...]) -> Shape:
    from nkisim.frontend.tensor import NkiTensor

    shapes = [item.shape for item in items if isinstance(item, (IndexTensor, NkiTensor))]
    rank = max(len(shape) for shape in shapes)
    group: Shape = (1,) * rank
    for shape in shapes:
        group = broadcast_shape(group, (1,) * (rank - len(shape)) + shape)
    for item in items:
        if isinstance(item, NkiTensor) and item.size not in (1, group[0]):
            raise KernelError(
                "NKS405",
                f"a tile of indices must hold one index for each partition, got {item!r}",
                got=repr(tensor),
                hint="for example x[index[i_p, 0], i_f] with an index tile (P, 1)",
            )
    return group


def _check_partition_axis(
    tensor: NkiTensor,
    items: tuple[object, ...],
    dims: Sequence[int],
    steps: Sequence[tuple[int, Shape] | None],
    shape: Sequence[int],
) -> None:
    """Refuse views whose first axis does not walk the partitions of an on-chip tile."""
    walks: dict[int, set[int]] = {}
    for at, entry in zip(dims, steps, strict=True):
        if entry is not None:
            axes = {a for a, step in enumerate(entry[1]) if step and shape[a] > 1}
            walks.setdefault(at, set()).update(axes)
    partition = walks.get(0)
    others = set().union(*(axes for at, axes in walks.items() if at != 0), set())
    is_sliced = any(
        at == 0 and isinstance(item, slice) for item, at in zip(items, dims, strict=True)
    )
    wrong = bool(partition) and partition != {0}
    if not is_sliced and 0 in others:
        wrong = True
    if wrong:
        raise KernelError(
            "NKS105",
            "the first axis of a tile must walk its partitions, and no other axis may",
            got=f"{tensor!r} indexed to shape {list(shape)}",
            allowed="t[i_p[:, None], i_f[None, :]] with the partition index first",
            hint="transpose with nisa.nc_transpose or nl.load_transpose2d",
        )


__all__ = ["IndexForm", "Layout", "Reach", "has_index_tensor", "subscript"]
