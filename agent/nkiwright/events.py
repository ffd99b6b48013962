"""The one vocabulary in which a run tells what happens.

The loop yields these; terminal UI, command line, JSON lines, store and tests only listen.  A new
event is one dataclass and its row in `Event`; the type is closed, so that a listener can end its
`match` with `assert_never`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from pydantic import JsonValue, TypeAdapter, ValidationError

SCHEMA_VERSION = 1

JsonObject = dict[str, JsonValue]
Stage = Literal["extract", "static", "trace", "tiny", "main", "time", "confirm"]
"""Where a candidate failed: in the reply, or in which step of the judge's cascade."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one or more model calls used."""

    input_tokens: int = 0
    """Tokens sent, cached ones included."""
    cached_tokens: int = 0
    """Tokens of the input that the provider had cached."""
    output_tokens: int = 0
    """Tokens received, reasoning included."""
    usd: float | None = 0.0
    """Cost in dollars, or None if the price is not known."""

    @property
    def tokens(self) -> int:
        """All tokens, in and out."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        """Add up two usages; one unknown price makes the sum unknown."""
        known = self.usd is not None and other.usd is not None
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            usd=(self.usd or 0.0) + (other.usd or 0.0) if known else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """A run begins."""

    run: str
    """Id of the run, the name of its folder."""
    task: str
    model: str
    machine: str
    nki: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStarted:
    """A model is asked."""

    call: int
    """Number of the call in this run, from 0."""
    purpose: str
    """What for: draft, repair, plan, …"""
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDelta:
    """A piece of a reply arrived."""

    call: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFinished:
    """A model has answered, or failed to."""

    call: int
    usage: Usage
    seconds: float
    error: str | None = None
    """One line, if the call failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateDrafted:
    """There is a new candidate, not judged yet."""

    candidate: int
    """Number of the candidate in this run, from 0."""
    parent: int | None
    """The candidate that it repairs or improves, or None."""
    origin: str
    """How it came to be: draft, repair, plan, …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRejected:
    """A candidate failed the judge."""

    candidate: int
    stage: Stage
    error: str
    """The whole message, as the model gets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateVerified:
    """A candidate is correct and has been timed in the emulator."""

    candidate: int
    latency_ns: float
    speedup: float | None
    """Baseline's time over the candidate's, or None without a baseline."""
    bound_fraction: float | None
    """Bound over the candidate's time, 1.0 at best, or None if there is no bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestChanged:
    """A candidate is the fastest correct one so far."""

    candidate: int
    latency_ns: float
    speedup: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetWarning:
    """A limit is near or reached."""

    limit: Literal["usd", "tokens", "evaluations", "seconds"]
    used: float
    allowed: float
    is_exhausted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyNote:
    """Something worth telling that changes nothing."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """A run is over, for whatever reason."""

    result: JsonObject
    """The result as `solve --json` prints it."""


Event = (
    RunStarted
    | CallStarted
    | TokenDelta
    | CallFinished
    | CandidateDrafted
    | CandidateRejected
    | CandidateVerified
    | BestChanged
    | BudgetWarning
    | StrategyNote
    | RunFinished
)

EVENT_TYPES: Mapping[str, type[Event]] = {cls.__name__: cls for cls in get_args(Event)}


def to_json(event: Event) -> JsonObject:
    """Return an event as plain data; `from_json` turns it back."""
    return {
        "schema_version": SCHEMA_VERSION,
        "event": type(event).__name__,
        **dataclasses.asdict(event),
    }


def to_line(event: Event) -> str:
    """Return an event as one line of JSON without a line end."""
    return json.dumps(to_json(event), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def from_json(data: Mapping[str, object]) -> Event:
    """Rebuild an event.

    Raises:
        ValueError: It is of another schema version, unknown, or not complete.
    """
    fields = dict(data)
    version = fields.pop("schema_version", None)
    if version != SCHEMA_VERSION:
        raise ValueError(f"events of schema version {SCHEMA_VERSION} expected, got {version!r}")
    name = str(fields.pop("event", None))
    if name not in EVENT_TYPES:
        raise ValueError(f"unknown event {name!r}; known are {', '.join(EVENT_TYPES)}")
    known = {field.name for field in dataclasses.fields(EVENT_TYPES[name])}
    if unknown := fields.keys() - known:
        raise ValueError(f"{name} has no field {', '.join(map(repr, sorted(unknown)))}")
    try:
        return _adapter(name).validate_python(fields)
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{name}.{place}: {first['msg']}") from exc


@functools.cache
def _adapter(name: str) -> TypeAdapter[Event]:
    return TypeAdapter(EVENT_TYPES[name])
