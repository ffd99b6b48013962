"""State of the loop: plain JSON data, so that a checkpoint can be read by anything."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict


class LoopState(TypedDict, total=False):
    """State of one run."""

    round: int
    """Rounds of drafts so far."""
    drafted: int
    """Lineages started so far."""
    width: int
    """Lineages of the round that is about to start."""
    candidates: Annotated[list[dict[str, Any]], operator.add]
    """Every candidate, in the order in which they were judged."""
    best: int | None
    """Number of the fastest correct candidate."""
    stopped: str | None
    """Why no further round starts."""


class LineageState(TypedDict, total=False):
    """State of one draft and its repairs."""

    lineage: int
    history: Annotated[list[dict[str, Any]], operator.add]
    pending: dict[str, Any] | None
    """The draft that has yet to be judged."""
    candidates: Annotated[list[dict[str, Any]], operator.add]
    stopped: str | None
