"""What the loop asks of a search strategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from nkiwright.candidate import Candidate


class Strategy(Protocol):
    """Decides how many lineages to start next."""

    @property
    def name(self) -> str:
        """Name in configuration and reports."""
        ...

    def next_width(self, drafted: int, candidates: Sequence[Candidate]) -> int:
        """Return the number of lineages of the next round; 0 ends the search.

        Args:
            drafted: Lineages started so far.
            candidates: Everything judged so far.
        """
        ...
