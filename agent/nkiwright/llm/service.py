"""What the HTTP providers share: keys, waiting, and one line for everything that can go wrong.

Retries are the SDKs' own.  Waiting is ours: a provider's silence, its retries included, is limited,
because an SDK that waits out a timeout and sends the request again may cause it to be billed twice.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from nkiwright.errors import ModelError, redact

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")
CONNECT_SECONDS = 10.0
_MAX_WORDS = 200
"""Characters of a server's own words that are shown."""
_MAX_READ = 1 << 20
_AUTOSCHEDULE_HINT = "'--model autoschedule' needs no key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Where a model is, and how it is reached."""

    model: str
    """Model id, `provider:model`."""
    url: str
    is_hosted: bool
    """Whether it is the provider's own service, not a server that was named."""
    key_variable: str
    key: str
    timeout_seconds: float

    @property
    def place(self) -> str:
        """The model and, unless it is the provider's own service, its address."""
        return self.model if self.is_hosted else f"{self.model} at {self.url}"


@dataclass(slots=True)
class Exchange:
    """What is known of the last HTTP answer of one call; for messages."""

    status: int | None = None
    """None while a request, the first or a retry, waits for its answer."""
    content_type: str = ""
    body: str | None = None
    """The answer's text, if it is no event stream and short."""

    async def begin(self, request: httpx2.Request) -> None:
        """Forget the answer before; an HTTP client's request hook."""
        self.status = None

    async def note(self, response: httpx2.Response) -> None:
        """Remember an answer; an HTTP client's response hook."""
        self.status = response.status_code
        self.content_type = response.headers.get("content-type", "").partition(";")[0]
        self.body = None
        if response.status_code == 200 and self.content_type != "text/event-stream":
            size = response.headers.get("content-length", "")
            if size.isdigit() and int(size) <= _MAX_READ:
                await response.aread()
                self.body = response.text


def is_loopback(url: str) -> bool:
    """Return whether a URL names this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def http_options(service: Service, exchange: Exchange) -> dict[str, Any]:
    """Return the options of the HTTP client of one call.

    A server on this machine is reached without proxies, and no certificates are loaded for it
    (which takes longer than its shortest answers): without redirects it cannot lead to TLS.
    """
    options: dict[str, Any] = {
        "event_hooks": {"request": [exchange.begin], "response": [exchange.note]}
    }
    if is_loopback(service.url):
        options["trust_env"] = False
        if service.url.startswith("http://"):
            options |= {"verify": False, "follow_redirects": False}
    return options


def find_key(variable: str, model: str, url: str, environ: Mapping[str, str]) -> str:
    """Return the provider's key; a server on this machine needs none.

    Raises:
        ModelError: There is no key.
    """
    if key := environ.get(variable, "").strip():
        if key.isascii() and key.isprintable() and " " not in key:
            return key
        raise ModelError(
            f"the key in {variable} has characters that no key has (a space, a line end or a "
            f"letter outside ASCII)",
            hint=f"set {variable} again; {_AUTOSCHEDULE_HINT}",
        )
    if is_loopback(url):
        return "none"
    raise ModelError(
        f"{model} needs a key in the environment variable {variable}, which is not set",
        hint=f"set {variable}; {_AUTOSCHEDULE_HINT}",
    )


async def opened(opening: Awaitable[T], service: Service, exchange: Exchange) -> T:
    """Wait for an answer to begin.

    Raises:
        ModelError: It did not.
    """
    try:
        async with asyncio.timeout(service.timeout_seconds):
            return await opening
    except Exception as exc:
        raise explain(exc, service, exchange) from exc


async def guarded(
    stream: AsyncIterator[object], service: Service, exchange: Exchange
) -> AsyncGenerator[object, None]:
    """Pass on the items of a stream, and turn whatever it raises into one line.

    What the consumer of the items raises is not touched.  The items are whatever the server sent,
    as SDKs do not validate it: take them apart with `read`.

    Raises:
        ModelError: The stream broke, was no stream, or fell silent.
    """
    while True:
        try:
            async with asyncio.timeout(service.timeout_seconds):
                item = await anext(stream)
        except StopAsyncIteration:
            return
        except Exception as exc:
            raise explain(exc, service, exchange) from exc
        yield item


def explain(error: Exception, service: Service, exchange: Exchange) -> ModelError:
    """Return the one line for whatever an SDK raised.

    Both SDKs name things alike: an HTTP error has `status_code` and `body`, and a failed connection
    has its cause.

    Args:
        error: What was raised.
        service: Whom we talked to.
        exchange: What is known of the last answer.
    """
    if isinstance(error, ModelError):
        return error
    if isinstance(error, TimeoutError):
        return _silent(service, exchange)
    status = getattr(error, "status_code", None)
    body = getattr(error, "body", None)
    if isinstance(status, int) and status >= 400:
        return _refused(status, server_words(body) or server_words(str(error)), service)
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        text = error.doc if isinstance(error, json.JSONDecodeError) else ""
        return _garbage(f"a stream that is not JSON{_quoted(text)}", service)
    name = type(error).__name__
    if name in ("APIConnectionError", "APITimeoutError"):
        return _unreachable(error, service, exchange)
    words = server_words(body) or _clipped(str(error))
    if name in ("APIError", "APIStatusError"):
        return _failed_midway(words, service)
    return _garbage(f"something unexpected ({name}: {words})", service)


def no_answer(service: Service, exchange: Exchange) -> ModelError:
    """Return the one line for an answer that held neither text nor an end."""
    if exchange.content_type == "text/event-stream":
        return _garbage("an event stream without an answer in it", service)
    if exchange.body is not None and not exchange.body.strip():
        return _garbage(f"an empty body (status {exchange.status})", service)
    kind = exchange.content_type or "data of no stated type"
    words = server_words(exchange.body)
    return _garbage(f"{kind} instead of an event stream{_quoted(words)}", service)


def broken_off(service: Service, received: int) -> ModelError:
    """Return the one line for a stream that ended before its end was announced.

    Args:
        service: Whom we talked to.
        received: Characters that had come.
    """
    return ModelError(
        f"{service.place} broke off its answer after {received} characters",
        hint="try again; if it happens again, ask for fewer samples at once",
        is_transient=True,
        may_be_billed=True,
    )


def failed_response(words: str, service: Service) -> ModelError:
    """Return the one line for an error that came inside the stream."""
    return _failed_midway(_clipped(words), service)


def server_words(body: object) -> str:
    """Return what a server's error body says, clipped to one short line."""
    if isinstance(body, str):
        try:
            parsed: Any = json.loads(body)
        except ValueError:
            return _clipped(body)
        return server_words(parsed) if isinstance(parsed, Mapping) else _clipped(body)
    if isinstance(body, Mapping):
        for key in ("error", "message", "detail"):
            if body.get(key):
                return server_words(body[key])
        return _clipped(json.dumps(body, default=str))
    return "" if body is None else _clipped(str(body))


def _silent(service: Service, exchange: Exchange) -> ModelError:
    """The provider said nothing for too long, or kept refusing."""
    seconds = f"{service.timeout_seconds:g} s"
    if exchange.status is not None and exchange.status >= 400:
        return ModelError(
            f"{service.place} gave no answer within {seconds}; its last one was HTTP "
            f"{exchange.status}",
            hint=_status_hint(exchange.status, "", service),
            is_transient=True,
        )
    return ModelError(
        f"{service.place} said nothing for {seconds}",
        hint="try again, or wait longer with NKIWRIGHT_TIMEOUT_SECONDS",
        is_transient=True,
        may_be_billed=True,
    )


def _refused(status: int, words: str, service: Service) -> ModelError:
    """The provider answered with an HTTP error."""
    what = {
        401: f"did not accept the key in {service.key_variable}",
        403: f"does not let the key in {service.key_variable} use this model",
        404: "does not know this model or address",
        413: "finds the request too long",
        429: "limits its use",
    }.get(status, "failed" if status >= 500 else "refused the request")
    said = f": {words}" if words else ""
    return _model_error(
        f"{service.place} {what} (HTTP {status}){said}",
        service,
        hint=_status_hint(status, words, service),
        is_transient=status in (408, 409, 429) or status >= 500,
    )


def _status_hint(status: int, words: str, service: Service) -> str:
    if status in (401, 403):
        return f"check {service.key_variable}; {_AUTOSCHEDULE_HINT}"
    if status == 404:
        if service.is_hosted:
            return "check the model's name"
        return "check the model's name, and that --base-url is right: it usually ends in /v1"
    if status == 429:
        if "quota" in words or "billing" in words or "credit" in words:
            return f"the account has no credit left: add some; {_AUTOSCHEDULE_HINT}"
        return "wait a minute, or ask for fewer --samples"
    if status >= 500:
        return "the fault is the server's: try again later, or name another --model"
    return "another --model may accept the request"


def _unreachable(error: Exception, service: Service, exchange: Exchange) -> ModelError:
    """No connection, or one that was closed without an answer."""
    cause = error.__cause__
    kind = type(cause).__name__ if cause is not None else ""
    words = _clipped(str(cause or error))
    if exchange.status is not None:
        return _model_error(
            f"{service.place} closed the connection in the middle of its answer ({words})",
            service,
            hint="try again; if it happens again, ask for fewer samples at once",
            is_transient=True,
            may_be_billed=True,
        )
    if kind in ("RemoteProtocolError", "ReadError", "WriteError"):
        return _model_error(
            f"{service.place} closed the connection without an answer ({words})",
            service,
            hint=_connect_hint(service),
            is_transient=True,
            may_be_billed=True,
        )
    return _model_error(
        f"{service.place} cannot be reached ({words})",
        service,
        hint=_connect_hint(service),
        is_transient=True,
    )


def _connect_hint(service: Service) -> str:
    if service.is_hosted:
        return "check the network connection; '--model autoschedule' needs none"
    return "check that the server runs and that --base-url is its address"


def _failed_midway(words: str, service: Service) -> ModelError:
    return _model_error(
        f"{service.place} reported an error in its answer: {words or 'without saying which'}",
        service,
        hint="the fault is the server's: try again later, or name another --model",
        is_transient=True,
        may_be_billed=True,
    )


def _garbage(what: str, service: Service) -> ModelError:
    hint = (
        "a proxy may stand in between: check the network connection"
        if service.is_hosted
        else "check that --base-url is the address of a server that speaks this provider's protocol"
    )
    return _model_error(f"{service.place} answered with {what}", service, hint=hint)


def _model_error(
    message: str,
    service: Service,
    *,
    hint: str,
    is_transient: bool = False,
    may_be_billed: bool = False,
) -> ModelError:
    """Make an error whose text holds no key, whatever the server said."""
    environ = {service.key_variable: service.key}
    return ModelError(
        redact(message, environ),
        hint=hint,
        is_transient=is_transient,
        may_be_billed=may_be_billed,
    )


def _quoted(words: str) -> str:
    return f" ({_clipped(words)!r})" if words else ""


def _clipped(text: str) -> str:
    """Return text as one line that is not too long."""
    line = " ".join(text[: 4 * _MAX_WORDS].split())
    return line if len(line) <= _MAX_WORDS else f"{line[: _MAX_WORDS - 1]}…"
