"""`neuronxcc.nki.compiler`: where tiles go, and promises to a compiler that is not here.

Source: NKI direct allocation guide, Neuron 2.26.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

from nkisim.errors import KernelError
from nkisim.frontend.context import active, current
from nkisim.frontend.recorder import REGIONS, MemoryRegion

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Allocation:
    """Where each tile of a tensor goes."""

    region: MemoryRegion
    place: Callable[[Shape, int, int], Sequence[int]] | None
    """From block index, partitions and bytes per partition to an address; None for anywhere."""

    def address(self, block: Shape, partitions: int, size_bytes: int) -> tuple[int, int] | None:
        """Return start partition and byte address of one tile, or None to leave it open."""
        if self.place is None:
            return None
        result = tuple(int(n) for n in self.place(block, partitions, size_bytes))
        if self.region.name == "psum":
            if len(result) != 3:
                raise self._malformed(result, "(bank, start partition, byte address)")
            bank, start, byte = result
            return start, bank * current().machine.limits.psum_bank_bytes + byte
        if len(result) != 2:
            raise self._malformed(result, "(start partition, byte address)")
        return result[0], result[1]

    def _malformed(self, got: object, allowed: str) -> KernelError:
        return KernelError(
            "NKS201",
            f"the function given to {self.region.name}.alloc returned {got!r:.60}",
            allowed=allowed,
        )


def _modulo(index: Shape, tiles: Sequence[int], size: int, base: int) -> int:
    """Return base + size times the linear index of a block modulo the number of tiles."""
    counts = tuple(int(n) for n in tiles) or (1,) * len(index)
    if len(counts) != len(index):
        raise KernelError(
            "NKS201",
            f"mod_alloc: {len(counts)} tile counts {counts} for {len(index)} block dimensions",
            allowed="one count for each block dimension",
        )
    linear = 0
    for i, count in zip(index, counts, strict=True):
        linear = linear * count + i % count
    return base + linear * size


class MemoryAllocator:
    """`ncc.sbuf` or `ncc.psum`."""

    def __init__(self, region: MemoryRegion) -> None:
        self.region = region

    def alloc(self, func: Callable[[Shape, int, int], Sequence[int]]) -> Allocation:
        """Place tiles by a function of block index, partitions and bytes per partition."""
        return Allocation(self.region, func)

    def auto_alloc(self) -> Allocation:
        """Leave the place open."""
        return Allocation(self.region, None)

    def mod_alloc(
        self,
        *,
        base_addr: int = 0,
        base_bank: int = 0,
        base_partition: int = 0,
        num_bank_tiles: Sequence[int] = (),
        num_par_tiles: Sequence[int] = (),
        num_free_tiles: Sequence[int] = (),
    ) -> Allocation:
        """Place tiles in turn: block i goes to tile i modulo the number of tiles."""

        def place(index: Shape, partitions: int, size_bytes: int) -> Sequence[int]:
            start = _modulo(index, num_par_tiles, partitions, int(base_partition))
            address = _modulo(index, num_free_tiles, size_bytes, int(base_addr))
            if self.region.name == "psum":
                return _modulo(index, num_bank_tiles, 1, int(base_bank)), start, address
            return start, address

        if prod((*num_bank_tiles, *num_par_tiles, *num_free_tiles)) < 1:
            raise KernelError("NKS201", "mod_alloc: tile counts must be positive")
        return Allocation(self.region, place)


def _transparent(*args: Any, **_: object) -> Any:
    """Decorator, plain or with options, that changes nothing."""
    if len(args) == 1 and callable(args[0]):
        return args[0]
    return lambda function: function


@contextmanager
def scope(*_: object, **__: object) -> Iterator[None]:
    """Context without effect: program order is kept and tiles are placed by liveness."""
    active()
    yield


MEMBERS: dict[str, object] = {
    "sbuf": MemoryAllocator(REGIONS["sbuf"]),
    "psum": MemoryAllocator(REGIONS["psum"]),
    "skip_middle_end_transformations": _transparent,
    "enable_stack_allocator": _transparent,
    "force_auto_alloc": _transparent,
    "no_reorder": scope,
    "allocation_scope": scope,
    "multi_buffer": scope,
}
"""Names of the module."""
