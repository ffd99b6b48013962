"""What the loop asks of a writer of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from nkiwright.candidate import Candidate, Draft


class WriterStopped(Exception):
    """The writer has nothing more to give: a budget is used up or its choices are exhausted."""


class Writer(Protocol):
    """Writes kernels for one task."""

    @property
    def name(self) -> str:
        """Model id, such as `openai:gpt-5` or `autoschedule`."""
        ...

    @property
    def can_repair(self) -> bool:
        """Whether `repair` is worth calling."""
        ...

    async def draft(self, index: int) -> Draft:
        """Write draft number `index`, independent of other drafts.

        Raises:
            WriterStopped: There is no further draft.
        """
        ...

    async def repair(self, lineage: Sequence[Candidate]) -> Draft:
        """Write the last candidate of a lineage again, knowing what was wrong with it.

        Args:
            lineage: The draft and its repairs so far, oldest first.

        Raises:
            WriterStopped: There is no further attempt.
        """
        ...

    def tell(self, candidate: Candidate) -> None:
        """Learn the outcome of a candidate."""
        ...
