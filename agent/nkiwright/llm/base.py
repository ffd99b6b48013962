"""The protocol between the agent and a language model, as plain data.

A call is data, so that it can be recorded, priced before it is made, and replayed.  Providers
differ behind `Model`; nothing above it imports a provider's SDK.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self

Role = Literal["user", "assistant"]
FinishReason = Literal["stop", "length", "refusal", "other"]
"""Why a reply ended: by itself, at the output limit, by a refusal, or otherwise."""
OnDelta = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one call."""

    input_tokens: int
    """Tokens sent, cached ones included."""
    output_tokens: int
    """Tokens received, reasoning included."""
    cached_input_tokens: int | None = None
    """Tokens of the input that the provider had cached, or None if it does not tell."""
    reasoning_tokens: int | None = None
    """Tokens of the output that are hidden reasoning, or None if it does not tell."""
    is_estimated: bool = False
    """Whether the counts come from the length of the text, not from the provider."""

    @property
    def tokens(self) -> int:
        """All tokens, in and out."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """What is asked of a model."""

    system: str
    messages: tuple[Message, ...]
    max_output_tokens: int
    temperature: float | None = None
    """None leaves it to the provider."""
    effort: str | None = None
    """How much to reason, in the provider's own words (`low`, `medium`, `high`, …), or None."""
    sample: int = 0
    """Which of several answers to an equal request; servers that take a seed get it as one."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        values = dict(data)
        values["messages"] = tuple(Message(**message) for message in values["messages"])
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What a model answered."""

    text: str
    usage: Usage
    model: str
    """Name of the model as the provider reports it."""
    finish_reason: FinishReason
    request_id: str | None = None
    """The provider's id of the call, for its support."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        values = dict(data)
        values["usage"] = Usage(**values["usage"])
        return cls(**values)


class Model(Protocol):
    """A language model."""

    @property
    def name(self) -> str:
        """Model id, `provider:model`."""
        ...

    async def complete(self, call: ModelCall, on_delta: OnDelta | None = None) -> Completion:
        """Answer one call.

        Args:
            call: What is asked.
            on_delta: Called with each piece of the reply as it arrives; all pieces together are
                the completion's text.

        Raises:
            ModelError: The provider could not be used or did not answer.
        """
        ...
