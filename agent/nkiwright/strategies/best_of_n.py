"""n independent drafts, the fastest correct one wins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nkiwright.candidate import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOfN:
    """Start `samples` lineages, at most `width` at a time.

    Rounds matter only to writers that learn from earlier candidates.
    """

    samples: int
    width: int

    @property
    def name(self) -> str:
        """`best-of-n`."""
        return "best-of-n"

    def next_width(self, drafted: int, candidates: Sequence[Candidate]) -> int:
        """Return how many of the remaining drafts start next."""
        return max(0, min(self.width, self.samples - drafted))
