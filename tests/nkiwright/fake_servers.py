"""Local servers that speak the providers' protocols over HTTP on the loopback interface.

A test says what the model answers as a function of the request; the server puts it on the wire as
OpenAI chat completions, OpenAI responses or Anthropic messages, with or without streaming, or fails
in one of the ways in which real servers fail.

    with FakeServer(lambda request: Reply("hello")) as server:
        model = make_model("openai:fake", base_url=server.openai_url, environ={})
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, Self

Protocol = Literal["chat", "responses", "messages"]
Events = Iterable[tuple[str | None, object]]


class Failure(Enum):
    """A way in which a server fails."""

    BAD_KEY = "401"
    NO_MODEL = "404"
    RATE_LIMIT = "429"
    NO_CREDIT = "429 quota"
    BROKEN = "500"
    OVERLOADED = "529"
    HTML = "200 with a web page"
    NOT_JSON = "an event stream of something else"
    ODD_EVENTS = "an event stream of JSON of another shape"
    EMPTY_BODY = "200 with nothing in it"
    EMPTY_STREAM = "an event stream without events"
    HANG_UP = "the connection is closed without an answer"
    BREAK_OFF = "the connection is closed in the middle of the answer"
    ERROR_IN_STREAM = "an error event in the middle of the answer"
    HANG = "no answer at all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a client asked, the same for all protocols."""

    number: int
    """Order of arrival, from 0."""
    protocol: Protocol
    model: str
    system: str
    messages: tuple[tuple[str, str], ...]
    """Role and text of each turn."""
    max_output_tokens: int | None
    headers: Mapping[str, str]
    """Names in lower case."""
    body: Mapping[str, Any]
    """The whole request."""

    @property
    def prompt(self) -> str:
        """The last turn."""
        return self.messages[-1][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The usage that a server reports."""

    input: int
    output: int
    cached: int | None = None
    reasoning: int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model answers."""

    text: str
    finish: Literal["stop", "length", "refusal"] = "stop"
    tokens: Tokens | Literal["count", "none"] = "count"
    """What is reported: counted at four characters a token, left out, or as given."""
    thoughts: str = ""
    """Hidden reasoning that comes before the text."""
    piece: int = 40
    """Characters in one piece of the stream."""
    delay_seconds: float = 0.0
    """Before each piece."""
    obeys_limit: bool = True
    """Whether the text is cut at the request's limit."""


Behaviour = Callable[[Request], Reply | Failure]


def scripted(replies: Sequence[Reply | Failure | str]) -> Behaviour:
    """Answer the n-th request with the n-th reply, and all later ones with the last."""
    made = [Reply(reply) if isinstance(reply, str) else reply for reply in replies]
    return lambda request: made[min(request.number, len(made) - 1)]


@dataclass
class FakeServer:
    """A server on a free port of the loopback interface.

    Speaks all protocols at once.  Use it as a context manager.
    """

    behaviour: Behaviour
    key: str | None = None
    """If given, requests with another key are answered with 401."""
    retry_after_seconds: float | None = None
    """What failures that may be retried tell the client to wait."""
    refuses: Sequence[str] = ()
    """Fields of a request that are answered with 400, as some servers do."""
    requests: list[Request] = field(default_factory=list)
    """All requests so far."""

    def __post_init__(self) -> None:
        self.stopping = threading.Event()
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"fake": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stopping.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """Address without a path: what Anthropic's client wants."""
        return f"http://127.0.0.1:{self._http.server_port}"

    @property
    def openai_url(self) -> str:
        """Address that OpenAI's client wants."""
        return f"{self.url}/v1"

    def read(self, protocol: Protocol, headers: Mapping[str, str], body: Any) -> Request:
        """Note a request."""
        with self._lock:
            request = _request(next(self._numbers), protocol, headers, body)
            self.requests.append(request)
        return request


def _request(number: int, protocol: Protocol, headers: Mapping[str, str], body: Any) -> Request:
    turns = body.get("messages", body.get("input", []))
    if isinstance(turns, str):
        turns = [{"role": "user", "content": turns}]
    system = _text(body.get("system") or body.get("instructions") or "")
    messages = []
    for turn in turns:
        if turn["role"] in ("system", "developer"):
            system = _text(turn["content"])
        else:
            messages.append((turn["role"], _text(turn["content"])))
    limits = ("max_output_tokens", "max_completion_tokens", "max_tokens")
    return Request(
        number=number,
        protocol=protocol,
        model=body["model"],
        system=system,
        messages=tuple(messages),
        max_output_tokens=next((body[name] for name in limits if name in body), None),
        headers={name.lower(): value for name, value in headers.items()},
        body=body,
    )


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content)


class _Handler(BaseHTTPRequestHandler):
    fake: FakeServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def handle(self) -> None:
        try:
            super().handle()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        protocol = _PATHS.get(self.path)
        if protocol is None:
            self._error(404, "not_found_error", f"no such address: {self.path}")
            return
        request = self.fake.read(protocol, dict(self.headers), json.loads(raw))
        if self.fake.key is not None and self.fake.key not in (
            request.headers.get("authorization", "").removeprefix("Bearer "),
            request.headers.get("x-api-key"),
        ):
            self._fail(Failure.BAD_KEY, request)
            return
        for name in self.fake.refuses:
            if name in request.body:
                words = f"Unsupported parameter: '{name}' is not supported."
                if name == "max_tokens":
                    words += " Use 'max_completion_tokens' instead."
                self._error(400, "invalid_request_error", words)
                return
        count = int(request.body.get("n") or 1)
        answers = [self.fake.behaviour(request) for _ in range(count)]
        failed = next((answer for answer in answers if isinstance(answer, Failure)), None)
        if failed is not None:
            self._fail(failed, request)
            return
        replies = [answer for answer in answers if isinstance(answer, Reply)]
        self._answer(request, replies)

    # -- answers --------------------------------------------------------------------------------

    def _answer(self, request: Request, replies: Sequence[Reply]) -> None:
        cut = [_limited(reply, request.max_output_tokens) for reply in replies]
        if request.body.get("stream"):
            self._stream(_EVENTS[request.protocol](request, cut), cut[0].delay_seconds)
        else:
            self._json(200, _WHOLE[request.protocol](request, cut))

    def _stream(self, events: Events, delay_seconds: float = 0.0) -> None:
        self._start_stream()
        for name, data in events:
            if delay_seconds and self.fake.stopping.wait(delay_seconds):
                return
            self._event(name, data)

    def _start_stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("connection", "close")
        self.send_header("x-request-id", "req_fake")
        self.send_header("request-id", "req_fake")
        self.end_headers()
        self.close_connection = True

    def _event(self, name: str | None, data: object) -> None:
        text = data if isinstance(data, str) else json.dumps(data)
        self.wfile.write(f"{f'event: {name}' if name else ': ping'}\ndata: {text}\n\n".encode())
        self.wfile.flush()

    def _json(self, status: int, data: object) -> None:
        self._body(status, "application/json", json.dumps(data).encode())

    def _body(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        if status in (429, 500, 529) and self.fake.retry_after_seconds is not None:
            self.send_header("retry-after-ms", str(self.fake.retry_after_seconds * 1000))
        self.end_headers()
        self.wfile.write(body)

    # -- failures -------------------------------------------------------------------------------

    def _error(self, status: int, kind: str, words: str, code: str | None = None) -> None:
        error = {"type": kind, "message": words, "code": code, "param": None}
        self._json(status, {"type": "error", "error": error})

    def _fail(self, failure: Failure, request: Request) -> None:
        sent = request.headers.get("authorization", "").removeprefix("Bearer ")
        match failure:
            case Failure.BAD_KEY:
                self._error(401, "authentication_error", f"Incorrect API key provided: {sent}")
            case Failure.NO_MODEL:
                self._error(404, "not_found_error", f"The model `{request.model}` does not exist")
            case Failure.RATE_LIMIT:
                self._error(429, "rate_limit_error", "Rate limit reached for requests")
            case Failure.NO_CREDIT:
                words = "You exceeded your current quota, please check your billing details"
                self._error(429, "insufficient_quota", words, "insufficient_quota")
            case Failure.BROKEN:
                self._error(500, "server_error", "The server had an error")
            case Failure.OVERLOADED:
                self._error(529, "overloaded_error", "Overloaded")
            case Failure.HTML:
                self._body(200, "text/html", b"<html><body>Please log in</body></html>")
            case Failure.NOT_JSON:
                self._stream([("message", "<<<not json>>>")])
            case Failure.ODD_EVENTS:
                odd = {"type": "message_delta", "choices": "many", "delta": None, "usage": [1]}
                self._stream([("message_delta", odd), ("response.completed", [odd])])
            case Failure.EMPTY_BODY:
                self._body(200, "application/json", b"")
            case Failure.EMPTY_STREAM:
                self._stream([])
            case Failure.HANG_UP:
                self.close_connection = True
            case Failure.BREAK_OFF | Failure.ERROR_IN_STREAM:
                self._fail_midway(failure, request)
            case Failure.HANG:
                self.fake.stopping.wait(60)
                self.close_connection = True

    def _fail_midway(self, failure: Failure, request: Request) -> None:
        events = list(
            _EVENTS[request.protocol](request, [Reply("half an answer, and then", piece=6)])
        )
        self._start_stream()
        for name, data in events[: len(events) // 2]:
            self._event(name, data)
        if failure is Failure.ERROR_IN_STREAM:
            error = {"type": "overloaded_error", "message": "The engine died"}
            if request.protocol == "responses":
                self._event("error", {**error, "type": "error", "code": "server_error"})
            else:
                name = "error" if request.protocol == "messages" else None
                self._event(name, {"type": "error", "error": error})


_PATHS: Mapping[str, Protocol] = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}


def _limited(reply: Reply, limit: int | None) -> Reply:
    """Cut a reply at the request's limit, at four characters a token."""
    if limit is None or not reply.obeys_limit or len(reply.text) <= 4 * limit:
        return reply
    return Reply(
        reply.text[: 4 * limit],
        finish="length",
        tokens=reply.tokens,
        thoughts=reply.thoughts,
        piece=reply.piece,
        delay_seconds=reply.delay_seconds,
    )


def _tokens(request: Request, replies: Sequence[Reply]) -> Tokens | None:
    first = replies[0]
    if first.tokens == "none":
        return None
    if isinstance(first.tokens, Tokens):
        return first.tokens
    sent = request.system + "".join(text for _, text in request.messages)
    return Tokens(
        input=max(1, len(sent) // 4),
        output=sum(max(1, len(reply.text + reply.thoughts) // 4) for reply in replies),
        cached=0,
        reasoning=sum(len(reply.thoughts) // 4 for reply in replies),
    )


def _pieces(reply: Reply) -> Iterator[str]:
    for start in range(0, len(reply.text), reply.piece):
        yield reply.text[start : start + reply.piece]


# -- OpenAI chat completions ------------------------------------------------

_CHAT_FINISH = {"stop": "stop", "length": "length", "refusal": "content_filter"}


def _chat_usage(request: Request, replies: Sequence[Reply]) -> dict[str, Any] | None:
    tokens = _tokens(request, replies)
    if tokens is None:
        return None
    usage: dict[str, Any] = {
        "prompt_tokens": tokens.input,
        "completion_tokens": tokens.output,
        "total_tokens": tokens.input + tokens.output,
    }
    if tokens.cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": tokens.cached}
    if tokens.reasoning is not None:
        usage["completion_tokens_details"] = {"reasoning_tokens": tokens.reasoning}
    return usage


def _chat_base(request: Request, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{request.number}",
        "object": kind,
        "created": int(time.time()),
        "model": request.model,
    }


def _chat_whole(request: Request, replies: Sequence[Reply]) -> dict[str, Any]:
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": reply.text},
            "finish_reason": _CHAT_FINISH[reply.finish],
        }
        for index, reply in enumerate(replies)
    ]
    whole = {**_chat_base(request, "chat.completion"), "choices": choices}
    usage = _chat_usage(request, replies)
    return whole if usage is None else {**whole, "usage": usage}


def _chat_events(request: Request, replies: Sequence[Reply]) -> Events:
    base = _chat_base(request, "chat.completion.chunk")

    def chunk(index: int, delta: dict[str, str], finish: str | None = None) -> dict[str, Any]:
        return {**base, "choices": [{"index": index, "delta": delta, "finish_reason": finish}]}

    for index in range(len(replies)):
        yield None, chunk(index, {"role": "assistant", "content": ""})
    streams = [(index, iter(_pieces(reply))) for index, reply in enumerate(replies)]
    while streams:  # choices arrive interleaved
        for index, stream in list(streams):
            piece = next(stream, None)
            if piece is None:
                streams.remove((index, stream))
            else:
                yield None, chunk(index, {"content": piece})
    for index, reply in enumerate(replies):
        yield None, chunk(index, {}, _CHAT_FINISH[reply.finish])
    options = request.body.get("stream_options") or {}
    usage = _chat_usage(request, replies)
    if options.get("include_usage") and usage is not None:
        yield None, {**base, "choices": [], "usage": usage}
    yield None, "[DONE]"


# -- OpenAI responses ------------------------------------------------


def _response(request: Request, reply: Reply, status: str) -> dict[str, Any]:
    tokens = _tokens(request, [reply])
    part: dict[str, Any] = (
        {"type": "refusal", "refusal": reply.text}
        if reply.finish == "refusal"
        else {"type": "output_text", "text": reply.text, "annotations": []}
    )
    message = {
        "id": f"msg_{request.number}",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [part],
    }
    return {
        "id": f"resp_{request.number}",
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "model": request.model,
        "output": [message],
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": tokens
        and {
            "input_tokens": tokens.input,
            "output_tokens": tokens.output,
            "total_tokens": tokens.input + tokens.output,
            "input_tokens_details": {"cached_tokens": tokens.cached or 0},
            "output_tokens_details": {"reasoning_tokens": tokens.reasoning or 0},
        },
    }


def _responses_whole(request: Request, replies: Sequence[Reply]) -> dict[str, Any]:
    reply = replies[0]
    return _response(request, reply, "incomplete" if reply.finish == "length" else "completed")


def _responses_events(request: Request, replies: Sequence[Reply]) -> Events:
    reply = replies[0]
    whole = _responses_whole(request, replies)
    at = {"item_id": f"msg_{request.number}", "output_index": 0, "content_index": 0}
    kind = "refusal" if reply.finish == "refusal" else "output_text"
    started = {**whole, "status": "in_progress", "output": [], "usage": None}
    events: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": started}),
        ("response.in_progress", {"response": started}),
        ("response.output_item.added", {"output_index": 0, "item": whole["output"][0]}),
    ]
    events += [(f"response.{kind}.delta", {**at, "delta": piece}) for piece in _pieces(reply)]
    events.append((f"response.{whole['status']}", {"response": whole}))
    for number, (name, data) in enumerate(events):
        yield name, {"type": name, "sequence_number": number, **data}


# -- Anthropic messages ------------------------------------------------

_STOP = {"stop": "end_turn", "length": "max_tokens", "refusal": "refusal"}


def _message(request: Request, reply: Reply) -> dict[str, Any]:
    tokens = _tokens(request, [reply])
    usage: dict[str, Any] = {}
    if tokens is not None:
        usage = {"input_tokens": tokens.input, "output_tokens": tokens.output}
        if tokens.cached:
            usage["input_tokens"] -= tokens.cached
            usage["cache_read_input_tokens"] = tokens.cached
        if tokens.reasoning is not None:
            usage["output_tokens_details"] = {"thinking_tokens": tokens.reasoning}
    content = [{"type": "text", "text": reply.text}]
    if reply.thoughts:
        content.insert(0, {"type": "thinking", "thinking": reply.thoughts, "signature": "c2ln"})
    return {
        "id": f"msg_{request.number}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": content,
        "stop_reason": _STOP[reply.finish],
        "stop_sequence": None,
        "usage": usage,
    }


def _messages_whole(request: Request, replies: Sequence[Reply]) -> dict[str, Any]:
    return _message(request, replies[0])


def _messages_events(request: Request, replies: Sequence[Reply]) -> Events:
    reply = replies[0]
    whole = _message(request, reply)
    usage = dict(whole["usage"])
    final = {k: usage.pop(k) for k in ("output_tokens", "output_tokens_details") if k in usage}
    started = {**whole, "content": [], "stop_reason": None}
    started["usage"] = {**usage, "output_tokens": 1} if usage else {}
    events: list[tuple[str, dict[str, Any]]] = [
        ("message_start", {"message": started}),
        ("ping", {}),
    ]
    index = 0
    if reply.thoughts:
        block = {"type": "thinking", "thinking": "", "signature": ""}
        thought = {"type": "thinking_delta", "thinking": reply.thoughts}
        events += [
            ("content_block_start", {"index": 0, "content_block": block}),
            ("content_block_delta", {"index": 0, "delta": thought}),
            ("content_block_stop", {"index": 0}),
        ]
        index = 1
    text = {"type": "text", "text": ""}
    events.append(("content_block_start", {"index": index, "content_block": text}))
    for piece in _pieces(reply):
        delta = {"type": "text_delta", "text": piece}
        events.append(("content_block_delta", {"index": index, "delta": delta}))
    events.append(("content_block_stop", {"index": index}))
    stop = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    events += [("message_delta", {"delta": stop, "usage": final}), ("message_stop", {})]
    for name, data in events:
        yield name, {"type": name, **data}


_EVENTS: Mapping[Protocol, Callable[[Request, Sequence[Reply]], Events]] = {
    "chat": _chat_events,
    "responses": _responses_events,
    "messages": _messages_events,
}
_WHOLE: Mapping[Protocol, Callable[[Request, Sequence[Reply]], dict[str, Any]]] = {
    "chat": _chat_whole,
    "responses": _responses_whole,
    "messages": _messages_whole,
}
