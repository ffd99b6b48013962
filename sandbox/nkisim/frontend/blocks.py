"""Tensors on chip with block dimensions before the partition dimension (old generation).

`nl.ndarray((B, nl.par_dim(128), 512), buffer=nl.sbuf)` is a list of tiles, not one tile: each is an
allocation of its own, made when it is first touched, so that it lives only as long as it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import TYPE_CHECKING, Any, NoReturn

from nkisim.dtypes import DType
from nkisim.errors import KernelError, UnsupportedError
from nkisim.frontend.tensor import NkiTensor, TracedBuffer

if TYPE_CHECKING:
    from nkisim.frontend.recorder import MemoryRegion, Recorder

Shape = tuple[int, ...]
MakeTile = Callable[[Shape], NkiTensor]


class ParDim(int):
    """A size marked as the partition dimension of a shape."""


def par_dim(size: int) -> ParDim:
    """Mark the partition dimension of a shape."""
    return ParDim(size)


def split_blocks(shape: object) -> tuple[Shape, Shape]:
    """Return block dimensions and tile shape of an on-chip shape."""
    items = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    marks = [i for i, n in enumerate(items) if isinstance(n, ParDim)]
    if len(marks) > 1:
        raise KernelError(
            "NKS101",
            f"a shape has one partition dimension, got {len(marks)} nl.par_dim in {shape!r:.80}",
        )
    at = marks[0] if marks else 0
    return items[:at], items[at:]


class BlockTensor(NkiTensor):
    """A list, of any rank, of equal tiles."""

    __slots__ = ("_blocks", "_make", "_prefix", "_tile_shape", "_tiles")

    def __init__(
        self,
        recorder: Recorder,
        blocks: Shape,
        tile_shape: Shape,
        dtype: DType,
        region: MemoryRegion,
        name: str,
        make: MakeTile,
    ) -> None:
        storage = TracedBuffer(-1, region.memory, dtype, 1, 1, name, recorder, region.name)
        shape = (*blocks, *tile_shape)
        super().__init__(storage, 0, shape, (0,) * len(shape), dtype)
        self._blocks = blocks
        self._tile_shape = tile_shape
        self._make = make
        self._prefix: Shape = ()
        self._tiles: dict[Shape, NkiTensor] = {}

    @property
    def key(self) -> NoReturn:
        """Refused: an instruction takes one tile."""
        raise KernelError(
            "NKS105",
            f"{self.storage.name} {list(self.shape)} is a list of tiles with "
            f"{len(self._blocks)} block dimensions; an instruction takes one tile",
            allowed=f"{len(self._blocks)} integers before the indices into the tile",
            hint="loop over the blocks and index them: t[b, i_p, i_f]",
        )

    def __repr__(self) -> str:
        dims = ", ".join(map(str, self.shape))
        return f"{self.storage.name}[{dims}] {self.dtype} in {self.memory}"

    def tile(self, at: Shape) -> NkiTensor:
        """Return one tile; the first use allocates it."""
        found = self._tiles.get(at)
        if found is None:
            found = self._tiles[at] = self._make(at)
        return found

    def tiles(self) -> Iterator[NkiTensor]:
        """Return every tile in order."""
        for rest in product(*(range(n) for n in self._blocks)):
            yield self.tile((*self._prefix, *rest))

    def __getitem__(self, key: object) -> NkiTensor:
        items = key if isinstance(key, tuple) else (key,)
        chosen: list[int] = []
        for position, item in enumerate(items):
            if len(chosen) == len(self._blocks):
                rest = items[position:]
                tile = self.tile((*self._prefix, *chosen))
                return tile[rest] if rest else tile
            if isinstance(item, int):
                chosen.append(self.integer_index(item, len(chosen), self._blocks[len(chosen)]))
            elif all(_is_full(other) for other in items[position:]):
                break
            else:
                chosen.append(self._block_index(item, len(chosen)))
        if len(chosen) == len(self._blocks):
            return self.tile((*self._prefix, *chosen))
        return self._partly(tuple(chosen))

    def _block_index(self, item: object, dim: int) -> int:
        if hasattr(item, "__index__"):
            return self.integer_index(item, dim, self._blocks[dim])
        raise UnsupportedError(
            "NKS502",
            f"block dimension {dim} of {self.storage.name} indexed by "
            f"{type(item).__name__}, which may span several tiles, is not emulated",
            hint="loop over the blocks and index them by integers",
        )

    def _partly(self, chosen: Shape) -> NkiTensor:
        if not chosen:
            return self
        part = BlockTensor.__new__(BlockTensor)
        NkiTensor.__init__(
            part,
            self.storage,
            0,
            self.shape[len(chosen) :],
            (0,) * (self.ndim - len(chosen)),
            self.dtype,
        )
        part._blocks = self._blocks[len(chosen) :]
        part._tile_shape = self._tile_shape
        part._make = self._make
        part._prefix = (*self._prefix, *chosen)
        part._tiles = self._tiles
        return part

    def __iter__(self) -> Iterator[NkiTensor]:
        return (self[i] for i in range(self._blocks[0]))

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        self.key  # noqa: B018  (raises)
        raise AssertionError

    reshape = permute = broadcast = broadcast_to = expand_dim = expand_dims = _refuse
    squeeze_dim = reshape_dim = flatten_dims = slice = select = view = ap = _refuse


def _is_full(item: object) -> bool:
    return item is Ellipsis or (isinstance(item, type(slice(0))) and item == slice(None))
