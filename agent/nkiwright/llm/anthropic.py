"""Anthropic's models, through the messages interface, and servers that speak it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from nkiwright.llm.base import Completion, FinishReason, Model, ModelCall, OnDelta, Usage
from nkiwright.llm.counting import estimated_usage
from nkiwright.llm.reply import Reply, read, read_count, read_text
from nkiwright.llm.service import (
    CONNECT_SECONDS,
    Exchange,
    Service,
    broken_off,
    find_key,
    guarded,
    http_options,
    no_answer,
    opened,
)

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

KEY_VARIABLE = "ANTHROPIC_API_KEY"
URL_VARIABLE = "ANTHROPIC_BASE_URL"
HOSTED_URL = "https://api.anthropic.com"


def make_anthropic(
    name: str,
    *,
    base_url: str | None,
    environ: Mapping[str, str],
    timeout_seconds: float,
    max_retries: int,
) -> Model:
    """Make a model of the hosted service, or of a server that speaks its protocol.

    Args:
        name: The model's name.
        base_url: Address of a server; the `/v1` that other providers' addresses end in is dropped.
            Without one, `ANTHROPIC_BASE_URL` counts, then the hosted service.
        environ: The environment.
        timeout_seconds: Longest silence.
        max_retries: Times that a refused or failed request is sent again.

    Raises:
        ModelError: The key is missing.
    """
    url = base_url or environ.get(URL_VARIABLE) or HOSTED_URL
    url = url.rstrip("/").removesuffix("/v1")
    model = f"anthropic:{name}"
    service = Service(
        model=model,
        url=url,
        is_hosted=url == HOSTED_URL,
        key_variable=KEY_VARIABLE,
        key=find_key(KEY_VARIABLE, model, url, environ),
        timeout_seconds=timeout_seconds,
    )
    return AnthropicModel(service, max_retries=max_retries)


class AnthropicModel:
    """A model behind the messages interface.

    Args:
        service: Where it is.
        max_retries: Times that a refused or failed request is sent again.
    """

    def __init__(self, service: Service, *, max_retries: int = 2) -> None:
        self._service = service
        self._max_retries = max_retries

    @property
    def name(self) -> str:
        """Model id."""
        return self._service.model

    async def complete(self, call: ModelCall, on_delta: OnDelta | None = None) -> Completion:
        """Answer one call; see `Model.complete`."""
        service, exchange, reply = self._service, Exchange(), Reply(call, on_delta)
        counts: dict[str, int] = {}
        model = service.model
        stop: str | None = None
        async with _client(service, exchange, self._max_retries) as client:
            manager = client.messages.stream(**_request(service.model, call))
            stream = await opened(manager.__aenter__(), service, exchange)
            request_id = stream.request_id
            async with aclosing(guarded(aiter(stream), service, exchange)) as events:
                async for event in events:
                    kind = read(event, "type")
                    if kind == "message_start":
                        model = read_text(event, "message", "model") or model
                        request_id = request_id or read_text(event, "message", "id")
                        _merge(counts, read(event, "message", "usage"))
                    elif kind == "text":
                        reply.add(read(event, "text"))
                    elif kind == "message_delta":
                        stop = read_text(event, "delta", "stop_reason") or stop
                        _merge(counts, read(event, "usage"))
                    if reply.is_overlong:
                        stop = "max_tokens"
                        break
        if stop is None:
            raise (
                broken_off(service, len(reply.text)) if reply.text else no_answer(service, exchange)
            )
        return Completion(
            text=reply.text,
            usage=_usage(counts, call, reply.text),
            model=model,
            finish_reason=_FINISH.get(stop, "other"),
            request_id=request_id,
        )


def _client(service: Service, exchange: Exchange, max_retries: int) -> AsyncAnthropic:
    """Make the client of one call; a shared one would be bound to one event loop."""
    import anthropic

    http = anthropic.DefaultAsyncHttpxClient(**http_options(service, exchange))
    return anthropic.AsyncAnthropic(
        api_key=service.key,
        base_url=service.url,
        # The SDK sends the key as a bearer token; other servers may look where it used to stand.
        default_headers=None if service.is_hosted else {"x-api-key": service.key},
        max_retries=max_retries,
        timeout=anthropic.Timeout(None, connect=CONNECT_SECONDS),
        http_client=http,
    )


def _request(model: str, call: ModelCall) -> dict[str, Any]:
    request: dict[str, Any] = {
        "model": model.partition(":")[2],
        "messages": [{"role": message.role, "content": message.text} for message in call.messages],
        "max_tokens": call.max_output_tokens,
    }
    if call.system:
        request["system"] = call.system
    if call.temperature is not None:
        # The SDK has no argument for it; the wire still has the field.
        request["extra_body"] = {"temperature": call.temperature}
    if call.effort is not None:
        request["thinking"] = {"type": "adaptive"}
        request["output_config"] = {"effort": call.effort}
    return request


_FINISH: Mapping[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}
_INPUT_FIELDS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


def _merge(counts: dict[str, int], usage: object) -> None:
    """Keep the latest of each count; input comes with the first event, output with the last."""
    for name in (*_INPUT_FIELDS, "output_tokens"):
        value = read_count(usage, name)
        if value is not None:
            counts[name] = value
    thinking = read_count(usage, "output_tokens_details", "thinking_tokens")
    if thinking is not None:
        counts["thinking_tokens"] = thinking


def _usage(counts: Mapping[str, int], call: ModelCall, text: str) -> Usage:
    """Cached input is counted apart by this provider; we count all input together."""
    if "input_tokens" not in counts or "output_tokens" not in counts:
        return estimated_usage(call, text)
    return Usage(
        input_tokens=sum(counts.get(name, 0) for name in _INPUT_FIELDS),
        output_tokens=counts["output_tokens"],
        cached_input_tokens=counts.get("cache_read_input_tokens"),
        reasoning_tokens=counts.get("thinking_tokens"),
    )


__all__ = ["AnthropicModel", "make_anthropic"]
