"""Typed reading of JSON values that nobody vouches for: right type and size, or `ProgramError`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NoReturn, TypeVar

from nkisim.dtypes import DTYPES, DType
from nkisim.errors import ProgramError
from nkisim.ir.access import Memory

_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")

E = TypeVar("E", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads values of `what`, which begins each error message."""

    what: str

    def fail(self, name: str, wanted: str, value: object) -> NoReturn:
        """Raise for `value`."""
        shown = f"{type(value).__name__}" if isinstance(value, (list, dict)) else f"{value!r:.60}"
        raise ProgramError(f"{self.what}: {name} must be {wanted}, got {shown}")

    def integer(self, value: object, name: str, low: int, high: int) -> int:
        """Return an integer within [low, high]."""
        if type(value) is not int:
            self.fail(name, "an integer", value)
        if not low <= value <= high:
            raise ProgramError(f"{self.what}: {name} must be within [{low}, {high}]")
        return value

    def boolean(self, value: object, name: str) -> bool:
        """Return a boolean."""
        if not isinstance(value, bool):
            self.fail(name, "true or false", value)
        return value

    def string(self, value: object, name: str, max_chars: int) -> str:
        """Return a string that can be written as UTF-8."""
        if not isinstance(value, str) or len(value) > max_chars:
            self.fail(name, f"a string of at most {max_chars} characters", value)
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ProgramError(f"{self.what}: {name} holds lone surrogates") from None
        return value

    def identifier(self, value: object, name: str) -> str:
        """Return a dotted name of ASCII letters, digits and `_`."""
        if not isinstance(value, str) or len(value) > 100 or not _IDENTIFIER.fullmatch(value):
            self.fail(name, "an identifier", value)
        return value

    def choice(self, value: object, name: str, choices: Sequence[str]) -> str:
        """Return one of `choices`."""
        if not isinstance(value, str) or value not in choices:
            self.fail(name, f"one of {', '.join(choices)}", value)
        return value

    def member(self, value: object, name: str, enum: type[E]) -> E:
        """Return the member of `enum` with this value."""
        return enum(self.choice(value, name, [member.value for member in enum]))

    def memory(self, value: object) -> Memory:
        """Return the memory of this name."""
        return self.member(value, "memory", Memory)

    def dtype(self, value: object) -> DType:
        """Return the dtype of this name."""
        return DTYPES[self.choice(value, "dtype", tuple(DTYPES))]

    def array(self, value: object, name: str, max_items: int) -> list[object]:
        """Return a list of at most `max_items`."""
        if not isinstance(value, list) or len(value) > max_items:
            self.fail(name, f"a list of at most {max_items:,} items", value)
        return value

    def row(self, value: object, name: str, width: int) -> list[object]:
        """Return a list of exactly `width` items."""
        if not isinstance(value, list) or len(value) != width:
            self.fail(name, f"a list of {width} items", value)
        return value
