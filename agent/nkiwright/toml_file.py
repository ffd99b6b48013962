"""TOML files that people write: read, validate, and say which line is wrong.

Both readers (`tasks`, `config`) go through here, so that every mistake in a file is reported in one
form: `FILE:LINE: what was expected and what came`, plus a hint.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nkiwright.errors import NkiwrightError

if TYPE_CHECKING:
    from pydantic import ValidationError

Key = tuple[str | int, ...]

_HEADER = re.compile(r"^\s*\[{1,2}([^\[\]]+)\]{1,2}\s*(?:#.*)?$")
_ASSIGNMENT = re.compile(r"^\s*([A-Za-z0-9_.\"' -]+?)\s*=")
_PLACE_IN_MESSAGE = re.compile(r"^(.*) \(at (?:line (\d+), column \d+|end of document)\)$")


@dataclass(frozen=True, slots=True)
class TomlFile:
    """A parsed TOML file that still knows its lines."""

    path: Path
    text: str
    data: dict[str, object]

    def line_of(self, key: Key) -> int:
        """Return the line (from 1) of a key, or of the nearest table around it."""
        best_line, best_length = 1, 0
        table: tuple[str, ...] = ()
        for number, line in enumerate(self.text.splitlines(), start=1):
            if header := _HEADER.match(line):
                here = table = _split(header[1])
            elif assignment := _ASSIGNMENT.match(line):
                here = table + _split(assignment[1])
            else:
                continue
            if len(here) > best_length and key[: len(here)] == here:
                best_line, best_length = number, len(here)
        return best_line


@dataclass(frozen=True, slots=True)
class Complaint:
    """What is wrong with one field, for people."""

    key: Key
    """Where, as a path of keys."""
    text: str
    """What was expected and what came."""
    hint: str | None
    """How to fix it."""


def read_toml(path: Path, *, error: type[NkiwrightError]) -> TomlFile:
    """Read and parse one TOML file.

    Args:
        path: The file.
        error: The class of error to raise when the file can't be read or isn't TOML.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as exc:
        raise error(f"{path}: not a text file in UTF-8 ({exc.reason} at byte {exc.start})") from exc
    except OSError as exc:
        raise error(f"cannot read {path}: {exc.strerror}") from exc
    try:
        return TomlFile(path, text, tomllib.loads(text))
    except tomllib.TOMLDecodeError as exc:
        message = str(exc)
        line = len(text.splitlines()) or 1
        if match := _PLACE_IN_MESSAGE.match(message):
            message = match[1]
            line = int(match[2] or line)
        raise error(
            f"{path}:{line}: not valid TOML: {message[:1].lower()}{message[1:]}",
            hint=_quote_hint(text, line),
        ) from exc


def explain(exc: ValidationError, fields_at: Callable[[Key], Sequence[str]]) -> Complaint:
    """Turn pydantic's most telling complaint into ours.

    A misspelt name is both unknown and missing; the unknown one is where the mistake is.

    Args:
        exc: What pydantic raised.
        fields_at: Returns the names of the fields that may stand where a key stands.
    """
    errors = exc.errors(include_url=False)
    first = next((error for error in errors if error["type"] == "extra_forbidden"), errors[0])
    key: Key = tuple(first["loc"])
    name = ".".join(str(part) for part in key) or "file"
    match first["type"]:
        case "missing":
            return Complaint(key, f"missing field {name!r}", None)
        case "extra_forbidden":
            return Complaint(
                key, f"unknown field {name!r}", suggestion(str(key[-1]), fields_at(key), "fields")
            )
        case "literal_error" | "enum":
            expected = str(first.get("ctx", {}).get("expected", ""))
            return Complaint(key, f"{name} must be {expected}, got {first['input']!r}", None)
        case "model_type" | "model_attributes_type" | "dict_type":
            return Complaint(key, f"{name} must be a table, got {first['input']!r}", None)
        case "value_error":
            problem = str(first["msg"]).removeprefix("Value error, ")
            return Complaint(key, problem if not key else f"{name}: {problem}", None)
        case _:
            problem = str(first["msg"])
            problem = problem.removeprefix("Input ").removeprefix("should be ")
            problem = problem.replace("should be ", "").replace("valid ", "")
            return Complaint(key, f"{name} must be {problem}, got {first['input']!r}", None)


def suggestion(wrong: str, known: Sequence[str], kind: str) -> str:
    """Return a hint that names the nearest of the known words, or lists them."""
    near = difflib.get_close_matches(wrong, known, n=3, cutoff=0.6)
    if near:
        return "did you mean " + " or ".join(repr(name) for name in near) + "?"
    return f"{kind}: " + ", ".join(sorted(known))


def _split(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def _quote_hint(text: str, line: int) -> str | None:
    """Guess the commonest mistake: a string without quotes."""
    lines = text.splitlines()
    source = lines[line - 1] if line <= len(lines) else ""
    if re.match(r"^\s*[\w-]+\s*=\s*[A-Za-z_]", source):
        return 'text needs quotes: name = "value"'
    return None
