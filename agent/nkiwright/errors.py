"""What can go wrong for a person, the exit code of each, and the one place that hides secrets.

An error's text is one line that says what was expected and what came; `hint` says how to mend it.
Errors of a kernel are not here: they are verdicts of the judge.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """What the command line's exit status means."""

    SOLVED = 0
    """Every task has a correct kernel."""
    UNSOLVED = 1
    """At least one task has no correct kernel."""
    USAGE = 2
    """The command, the configuration or a task file is wrong."""
    MODEL = 3
    """A model provider failed: key, quota, network or answer."""
    SANDBOX = 4
    """The sandbox or the emulator failed."""
    INTERRUPTED = 130
    """Stopped by the user."""


class NkiwrightError(Exception):
    """Base of all errors that are shown to people as one line.

    Args:
        message: What was expected and what came, as one line.
        hint: How to mend it, or None if there is nothing to say.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(NkiwrightError):
    """The command line or a call of the API cannot be carried out as given."""


class ConfigError(NkiwrightError):
    """A setting is not legal."""


class TaskError(NkiwrightError):
    """A task is unknown, incomplete or broken."""


class StoreError(NkiwrightError):
    """A run folder is missing, broken or cannot be written."""


class PromptError(NkiwrightError):
    """A prompt is missing or asks for a value that it was not given."""


class NotCoveredError(NkiwrightError):
    """A way of writing kernels does not cover this task, so that nothing was tried.

    The task may well be right; the request needs another writer.
    """


class ModelError(NkiwrightError):
    """A model provider could not be used or did not answer.

    Args:
        message: What came, as one line.
        hint: How to mend it.
        is_transient: Whether the same call may succeed later.
        may_be_billed: Whether the provider may charge for the failed call.
    """

    exit_code = ExitCode.MODEL

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        is_transient: bool = False,
        may_be_billed: bool = False,
    ) -> None:
        super().__init__(message, hint=hint)
        self.is_transient = is_transient
        self.may_be_billed = may_be_billed


class SandboxError(NkiwrightError):
    """The sandbox or the emulator could not do its work."""

    exit_code = ExitCode.SANDBOX


class Interrupted(NkiwrightError):
    """The user stopped the work."""

    exit_code = ExitCode.INTERRUPTED


REDACTED = "[redacted]"
_SECRET_VARIABLES = ("_API_KEY", "_AUTH_TOKEN")
_SHORTEST_SECRET = 6
"""Shorter values are placeholders such as `none`; hiding them would hide ordinary words."""
_SECRETS = (
    re.compile(r"(?<![A-Za-z0-9])sk-[A-Za-z0-9_*-]{6,}"),
    re.compile(r"(?<=bearer )\s*[A-Za-z0-9._~+/=-]{4,}", re.IGNORECASE),
    re.compile(r"(?<=x-api-key: )\s*\S+", re.IGNORECASE),
    re.compile(r"(?<=://)[^\s/@:]+:[^\s/@]+(?=@)"),
)


def redact(text: str, environ: Mapping[str, str] | None = None) -> str:
    """Return `text` without API keys.

    Everything that is printed or logged passes here.

    Args:
        text: Any text.
        environ: Environment whose keys are hidden by value; default is the process's.
    """
    values = (
        value.strip()
        for name, value in (os.environ if environ is None else environ).items()
        if name.upper().endswith(_SECRET_VARIABLES)
    )
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, REDACTED)
    for pattern in _SECRETS:
        text = pattern.sub(REDACTED, text)
    return text


class RedactingFilter(logging.Filter):
    """Hides API keys in log records; add it to every handler."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact the record's text and let it pass."""
        record.msg = redact(record.getMessage())
        record.args = None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = redact(record.exc_text)
        return True
