"""A reply while it arrives, and how to read what a server sent without trusting its shape."""

from __future__ import annotations

from nkiwright.llm.base import ModelCall, OnDelta

_MOST_CHARACTERS_PER_TOKEN = 12
"""More than any text has; a reply that is longer ignores its limit."""
_SLACK_CHARACTERS = 4096


class Reply:
    """Collects the pieces of a reply and passes them on.

    Args:
        call: What was asked.
        on_delta: Called with each piece.
    """

    def __init__(self, call: ModelCall, on_delta: OnDelta | None) -> None:
        self._pieces: list[str] = []
        self._size = 0
        self._most = call.max_output_tokens * _MOST_CHARACTERS_PER_TOKEN + _SLACK_CHARACTERS
        self._on_delta = on_delta

    def add(self, piece: object) -> None:
        """Take a piece; anything but text is no piece."""
        if not isinstance(piece, str) or not piece:
            return
        self._pieces.append(piece)
        self._size += len(piece)
        if self._on_delta is not None:
            self._on_delta(piece)

    @property
    def text(self) -> str:
        """All pieces so far."""
        return "".join(self._pieces)

    @property
    def is_overlong(self) -> bool:
        """Whether the server writes on past the limit that it was given."""
        return self._size > self._most


def read(data: object, *path: str) -> object:
    """Return what lies at the end of a path of attributes, or None if anything is missing."""
    for name in path:
        data = getattr(data, name, None)
    return data


def read_text(data: object, *path: str) -> str | None:
    """Return the text at the end of a path, or None if there is none."""
    value = read(data, *path)
    return value if isinstance(value, str) and value else None


def read_count(data: object, *path: str) -> int | None:
    """Return the count at the end of a path, or None if there is none."""
    value = read(data, *path)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def read_list(data: object, *path: str) -> list[object]:
    """Return the items at the end of a path; empty if there are none."""
    value = read(data, *path)
    return list(value) if isinstance(value, list) else []
