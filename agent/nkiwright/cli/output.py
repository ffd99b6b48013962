"""What the command line prints: results on stdout, everything else on stderr, secrets nowhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console, RenderableType

from nkiwright.errors import NkiwrightError, redact
from nkiwright.events import (
    BestChanged,
    BudgetWarning,
    CallFinished,
    CandidateRejected,
    CandidateVerified,
    Event,
    RunStarted,
    StrategyNote,
    to_line,
)
from nkiwright.report.table import microseconds, percent, times


def stderr_console() -> Console:
    """Return the console for talk."""
    return Console(stderr=True, highlight=False)


def print_result(renderable: RenderableType) -> None:
    """Print a result on stdout."""
    Console(highlight=False).print(renderable)


def print_json(data: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout."""
    sys.stdout.write(json.dumps(data, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def print_error(error: NkiwrightError) -> None:
    """Print an error as one line, and how to mend it as another."""
    sys.stdout.flush()
    sys.stderr.write(f"nkiwright: error: {redact(str(error))}\n")
    if error.hint:
        sys.stderr.write(f"hint: {redact(error.hint)}\n")


def say(text: str) -> None:
    """Print one line of talk on stderr."""
    sys.stderr.write(f"{redact(text)}\n")
    sys.stderr.flush()


def json_lines() -> Callable[[Event], None]:
    """Return a listener that prints every event as one line of JSON on stdout."""

    def listen(event: Event) -> None:
        sys.stdout.write(to_line(event) + "\n")
        sys.stdout.flush()

    return listen


def progress_lines(prefix: str = "") -> Callable[[Event], None]:
    """Return a listener that tells on stderr what a person wants to follow."""

    def listen(event: Event) -> None:
        text = describe(event)
        if text:
            say(f"{prefix}{text}")

    return listen


def describe(event: Event) -> str | None:
    """Return an event as one line for people, or None if it is not worth one."""
    if isinstance(event, RunStarted):
        return f"{event.task}: {event.model} on {event.machine}, NKI {event.nki} ({event.run})"
    if isinstance(event, CandidateVerified):
        return (
            f"  #{event.candidate:<3} correct   {microseconds(event.latency_ns):>12} emulated  "
            f"{times(event.speedup):>7}  {percent(event.bound_fraction):>5} of the bound"
        )
    if isinstance(event, CandidateRejected):
        first = event.error.splitlines()[0]
        return f"  #{event.candidate:<3} refused   {first[:110]}"
    if isinstance(event, BestChanged):
        return f"  #{event.candidate:<3} is the best so far"
    if isinstance(event, CallFinished) and event.error is not None:
        return f"  call {event.call} failed: {event.error}"
    if isinstance(event, BudgetWarning):
        state = "is used up" if event.is_exhausted else "is nearly used up"
        return f"  budget: {event.limit} {state} ({event.used:g} of {event.allowed:g})"
    if isinstance(event, StrategyNote):
        return f"  note: {event.text}"
    return None
