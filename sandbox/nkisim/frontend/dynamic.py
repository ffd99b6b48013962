"""The parts of a view's address that are known only on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nkisim.frontend.register import Register

if TYPE_CHECKING:
    from nkisim.frontend.tensor import NkiTensor


@dataclass(frozen=True, slots=True)
class DynamicIndex:
    """The run-time part of a view's address."""

    kind: str
    """`scalar` or `vector`."""
    source: Register | NkiTensor
    step: int
    """Elements of the view's dtype per unit."""
    bound: int


@dataclass(frozen=True, slots=True)
class DynamicSlice:
    """`nl.ds(start, size)` whose start is known only on the device."""

    start: Register | NkiTensor
    size: int
