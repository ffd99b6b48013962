"""OpenAI's models, and every server that speaks its chat completions.

The service itself is asked through its Responses interface, also where `OPENAI_BASE_URL` says that
it is reached through a gateway.  A server named by our own base URL is asked through chat
completions, which is what compatible servers speak, each in its own dialect.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nkiwright.errors import ModelError
from nkiwright.llm.base import Completion, FinishReason, Model, ModelCall, OnDelta, Usage
from nkiwright.llm.counting import estimated_usage
from nkiwright.llm.reply import Reply, read, read_count, read_list, read_text
from nkiwright.llm.service import (
    CONNECT_SECONDS,
    Exchange,
    Service,
    broken_off,
    failed_response,
    find_key,
    guarded,
    http_options,
    no_answer,
    opened,
)

if TYPE_CHECKING:
    from openai import AsyncOpenAI

KEY_VARIABLE = "OPENAI_API_KEY"
URL_VARIABLE = "OPENAI_BASE_URL"
HOSTED_URL = "https://api.openai.com/v1"


def make_openai(
    name: str,
    *,
    base_url: str | None,
    environ: Mapping[str, str],
    timeout_seconds: float,
    max_retries: int,
) -> Model:
    """Make a model of the hosted service, or of a compatible server.

    Args:
        name: The model's name.
        base_url: Address of a compatible server, usually ending in `/v1`.  Without one it is the
            service itself, at `OPENAI_BASE_URL` if that is set.
        environ: The environment.
        timeout_seconds: Longest silence.
        max_retries: Times that a refused or failed request is sent again.

    Raises:
        ModelError: The key is missing.
    """
    url = (base_url or environ.get(URL_VARIABLE) or HOSTED_URL).rstrip("/")
    model = f"openai:{name}"
    service = Service(
        model=model,
        url=url,
        is_hosted=url == HOSTED_URL,
        key_variable=KEY_VARIABLE,
        key=find_key(KEY_VARIABLE, model, url, environ),
        timeout_seconds=timeout_seconds,
    )
    kind = ResponsesModel if base_url is None else ChatModel
    return kind(service, max_retries=max_retries)


def _client(service: Service, exchange: Exchange, max_retries: int) -> AsyncOpenAI:
    """Make the client of one call; a shared one would be bound to one event loop."""
    import openai

    http = openai.DefaultAsyncHttpxClient(**http_options(service, exchange))
    return openai.AsyncOpenAI(
        api_key=service.key,
        base_url=service.url,
        max_retries=max_retries,
        timeout=openai.Timeout(None, connect=CONNECT_SECONDS),
        http_client=http,
    )


class ResponsesModel:
    """A model of the hosted service, through the Responses interface.

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
        final: object = None
        async with _client(service, exchange, self._max_retries) as client:
            opening = client.responses.create(
                stream=True, **_responses_request(service.model, call)
            )
            stream = await opened(opening, service, exchange)
            request_id = stream.response.headers.get("x-request-id")
            async with aclosing(guarded(aiter(stream), service, exchange)) as events:
                async for event in events:
                    kind = read(event, "type")
                    if kind in ("response.output_text.delta", "response.refusal.delta"):
                        reply.add(read(event, "delta"))
                    elif kind in ("response.completed", "response.incomplete"):
                        final = read(event, "response")
                    elif kind == "response.failed":
                        words = read_text(event, "response", "error", "message")
                        raise failed_response(words or "", service)
                    elif kind == "error":
                        raise failed_response(read_text(event, "message") or "", service)
                    if final is not None or reply.is_overlong:
                        break
        if final is None and not reply.is_overlong:
            raise (
                broken_off(service, len(reply.text)) if reply.text else no_answer(service, exchange)
            )
        if not reply.text:
            for part in _parts(final):
                reply.add(read(part, "text"))
        return Completion(
            text=reply.text,
            usage=_responses_usage(read(final, "usage"), call, reply.text),
            model=read_text(final, "model") or service.model,
            finish_reason=_responses_finish(final),
            request_id=request_id or read_text(final, "id"),
        )


def _responses_request(model: str, call: ModelCall) -> dict[str, Any]:
    request: dict[str, Any] = {
        "model": model.partition(":")[2],
        "instructions": call.system,
        "input": [{"role": message.role, "content": message.text} for message in call.messages],
        "max_output_tokens": call.max_output_tokens,
        "store": False,
    }
    if call.temperature is not None:
        request["temperature"] = call.temperature
    if call.effort is not None:
        request["reasoning"] = {"effort": call.effort}
    return request


_INCOMPLETE: Mapping[str, FinishReason] = {
    "max_output_tokens": "length",
    "content_filter": "refusal",
}


def _responses_finish(final: object) -> FinishReason:
    if final is None:
        return "length"
    if read(final, "status") == "incomplete":
        reason = read_text(final, "incomplete_details", "reason")
        return _INCOMPLETE.get(reason or "", "other")
    kinds = {read(part, "type") for part in _parts(final)}
    return "refusal" if kinds == {"refusal"} else "stop"


def _parts(final: object) -> list[object]:
    """Return the pieces of content of the messages in a response."""
    items = read_list(final, "output")
    return [part for item in items for part in read_list(item, "content")]


def _responses_usage(usage: object, call: ModelCall, text: str) -> Usage:
    received, sent = read_count(usage, "output_tokens"), read_count(usage, "input_tokens")
    if received is None or sent is None:
        return estimated_usage(call, text)
    return Usage(
        input_tokens=sent,
        output_tokens=received,
        cached_input_tokens=read_count(usage, "input_tokens_details", "cached_tokens"),
        reasoning_tokens=read_count(usage, "output_tokens_details", "reasoning_tokens"),
    )


@dataclass(slots=True)
class _Dialect:
    """What a compatible server turned out to understand."""

    limit_name: str = "max_tokens"
    """The older name is the one that every server honours; a server that no longer takes it says
    so, while one that doesn't know the newer name would write without limit."""
    has_stream_options: bool = True
    has_seed: bool = True

    def learn(self, words: str) -> bool:
        """Change after a refusal, and return whether there was something to learn from it."""
        if "max_completion_tokens" in words and self.limit_name == "max_tokens":
            self.limit_name = "max_completion_tokens"
        elif "stream_options" in words and self.has_stream_options:
            self.has_stream_options = False
        elif "seed" in words and self.has_seed:
            self.has_seed = False
        else:
            return False
        return True


class ChatModel:
    """A model of a compatible server, through chat completions.

    Args:
        service: Where it is.
        max_retries: Times that a refused or failed request is sent again.
    """

    def __init__(self, service: Service, *, max_retries: int = 2) -> None:
        self._service = service
        self._max_retries = max_retries
        self._dialect = _Dialect()

    @property
    def name(self) -> str:
        """Model id."""
        return self._service.model

    async def complete(self, call: ModelCall, on_delta: OnDelta | None = None) -> Completion:
        """Answer one call; see `Model.complete`."""
        service, exchange, reply = self._service, Exchange(), Reply(call, on_delta)
        usage: object = None
        finish: str | None = None
        model, request_id = service.model, None
        async with _client(service, exchange, self._max_retries) as client:
            stream = await self._open(client, call, exchange)
            async with aclosing(guarded(stream, service, exchange)) as chunks:
                async for chunk in chunks:
                    usage = read(chunk, "usage") or usage
                    model = read_text(chunk, "model") or model
                    request_id = request_id or read_text(chunk, "id")
                    for choice in read_list(chunk, "choices"):
                        if read(choice, "index"):
                            continue
                        reply.add(read(choice, "delta", "content"))
                        reply.add(read(choice, "delta", "refusal"))
                        finish = read_text(choice, "finish_reason") or finish
                    if reply.is_overlong:
                        finish = "length"
                        break
        if finish is None and not reply.text:
            raise no_answer(service, exchange)
        return Completion(
            text=reply.text,
            usage=_chat_usage(usage, call, reply.text),
            model=model,
            finish_reason=_CHAT_FINISH.get(finish or "", "other"),
            request_id=request_id,
        )

    async def _open(
        self, client: AsyncOpenAI, call: ModelCall, exchange: Exchange
    ) -> AsyncIterator[object]:
        """Send the request, again if the server objects to a part that it can do without."""
        while True:
            request = _chat_request(self._service.model, call, self._dialect)
            try:
                stream = await opened(
                    client.chat.completions.create(stream=True, **request), self._service, exchange
                )
                return aiter(stream)
            except ModelError as error:
                if exchange.status not in (400, 422) or not self._dialect.learn(str(error)):
                    raise


def _chat_request(model: str, call: ModelCall, dialect: _Dialect) -> dict[str, Any]:
    messages = [{"role": "system", "content": call.system}] if call.system else []
    messages += [{"role": message.role, "content": message.text} for message in call.messages]
    request: dict[str, Any] = {
        "model": model.partition(":")[2],
        "messages": messages,
        dialect.limit_name: call.max_output_tokens,
    }
    if dialect.has_stream_options:
        request["stream_options"] = {"include_usage": True}
    if dialect.has_seed:
        request["seed"] = call.sample
    if call.temperature is not None:
        request["temperature"] = call.temperature
    if call.effort is not None:
        request["reasoning_effort"] = call.effort
    return request


_CHAT_FINISH: Mapping[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "refusal",
}


def _chat_usage(usage: object, call: ModelCall, text: str) -> Usage:
    received, sent = read_count(usage, "completion_tokens"), read_count(usage, "prompt_tokens")
    if received is None or sent is None:
        return estimated_usage(call, text)
    total = read_count(usage, "total_tokens") or 0
    return Usage(
        input_tokens=sent,
        output_tokens=max(received, total - sent),  # some servers count reasoning in the total only
        cached_input_tokens=read_count(usage, "prompt_tokens_details", "cached_tokens"),
        reasoning_tokens=read_count(usage, "completion_tokens_details", "reasoning_tokens"),
    )
