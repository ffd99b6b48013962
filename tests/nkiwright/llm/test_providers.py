"""Providers against servers that speak the real protocols over HTTP."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest
from tests.nkiwright.fake_servers import Failure, FakeServer, Reply, Request, Tokens, scripted

from nkiwright.errors import ExitCode, ModelError
from nkiwright.llm.base import Message, Model, ModelCall
from nkiwright.llm.registry import make_model

KEY = "sk-ant-0123456789abcdef"
KEYS = {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY}
CALL = ModelCall(
    system="You write kernels.",
    messages=(
        Message("user", "Write one."),
        Message("assistant", "Here."),
        Message("user", "Another."),
    ),
    max_output_tokens=1000,
)
PROTOCOLS = ("chat", "responses", "messages")


def connect(
    server: FakeServer | str, protocol: str, *, timeout_seconds: float = 10.0, max_retries: int = 0
) -> Model:
    """Return a model on a server, named as a user names it."""
    url = server if isinstance(server, str) else server.url
    environ = dict(KEYS)
    base_url: str | None = f"{url}/v1"
    if protocol == "responses":
        environ["OPENAI_BASE_URL"] = f"{url}/v1"
        base_url = None
    return make_model(
        "anthropic:fake" if protocol == "messages" else "openai:fake",
        base_url=base_url,
        environ=environ,
        timeout_seconds=timeout_seconds,
        max_retries=max_retries,
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_reply_arrives_whole_and_in_pieces(protocol):
    text = "Tiles of 512.\n```python\nimport nki\n```\n" * 5
    pieces: list[str] = []
    with FakeServer(lambda _: Reply(text, thoughts="hmm, let me think")) as server:
        completion = await connect(server, protocol).complete(CALL, pieces.append)
    assert completion.text == text
    assert "".join(pieces) == text
    assert len(pieces) > 3
    assert completion.finish_reason == "stop"
    assert completion.model == "fake"
    assert completion.request_id


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_request_carries_the_conversation_and_the_limit(protocol):
    with FakeServer(lambda _: Reply("ok")) as server:
        await connect(server, protocol).complete(CALL)
    (request,) = server.requests
    assert request.protocol == protocol
    assert request.model == "fake"
    assert request.system == CALL.system
    assert request.messages == tuple((m.role, m.text) for m in CALL.messages)
    assert request.max_output_tokens == 1000
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.body["stream"] is True
    assert "temperature" not in request.body
    if protocol == "messages":  # servers other than the hosted one may look for the key here
        assert request.headers["x-api-key"] == KEY


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_temperature_and_effort_reach_the_wire(protocol):
    call = ModelCall(
        system="s",
        messages=CALL.messages,
        max_output_tokens=10,
        temperature=0.5,
        effort="low",
        sample=3,
    )
    with FakeServer(lambda _: Reply("ok")) as server:
        await connect(server, protocol).complete(call)
    body = server.requests[0].body
    assert body["temperature"] == 0.5
    efforts = {
        "chat": lambda: body["reasoning_effort"],
        "responses": lambda: body["reasoning"]["effort"],
        "messages": lambda: body["output_config"]["effort"],
    }
    assert efforts[protocol]() == "low"
    if protocol == "chat":
        assert body["seed"] == 3


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_usage_is_what_the_server_counts(protocol):
    tokens = Tokens(input=120, output=70, cached=100, reasoning=20)
    with FakeServer(lambda _: Reply("ok", tokens=tokens)) as server:
        usage = (await connect(server, protocol).complete(CALL)).usage
    assert (usage.input_tokens, usage.output_tokens) == (120, 70)
    assert (usage.cached_input_tokens, usage.reasoning_tokens) == (100, 20)
    assert not usage.is_estimated


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_missing_usage_is_estimated_and_said(protocol):
    with FakeServer(lambda _: Reply("x" * 400, tokens="none")) as server:
        usage = (await connect(server, protocol).complete(CALL)).usage
    assert usage.is_estimated
    assert 100 <= usage.output_tokens <= 200
    assert usage.input_tokens > 5


async def test_missing_details_of_a_compatible_server_are_unknown_not_zero():
    with FakeServer(lambda _: Reply("ok", tokens=Tokens(input=5, output=1))) as server:
        usage = (await connect(server, "chat").complete(CALL)).usage
    assert usage.cached_input_tokens is None
    assert usage.reasoning_tokens is None


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_reply_cut_at_its_limit_says_so(protocol):
    with FakeServer(lambda _: Reply("word " * 5000)) as server:
        completion = await connect(server, protocol).complete(CALL)
    assert completion.finish_reason == "length"
    assert len(completion.text) == 4000


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_refusal_is_a_reply_that_says_so(protocol):
    with FakeServer(lambda _: Reply("I cannot do that.", finish="refusal")) as server:
        completion = await connect(server, protocol).complete(CALL)
    assert completion.finish_reason == "refusal"


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_server_that_writes_past_its_limit_is_stopped(protocol):
    call = ModelCall(system="", messages=CALL.messages, max_output_tokens=100)
    endless = Reply("word " * 200_000, obeys_limit=False, piece=1000, tokens="none")
    with FakeServer(lambda _: endless) as server:
        completion = await connect(server, protocol).complete(call)
    assert completion.finish_reason == "length"
    assert len(completion.text) < 10_000


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_calls_run_side_by_side(protocol):
    with FakeServer(lambda _: Reply("ok", delay_seconds=0.02)) as server:
        model = connect(server, protocol)
        await model.complete(CALL)
        start = time.monotonic()
        await model.complete(CALL)
        one = time.monotonic() - start
        start = time.monotonic()
        replies = await asyncio.gather(*(model.complete(CALL) for _ in range(4)))
        assert time.monotonic() - start < 3 * one
    assert [reply.text for reply in replies] == ["ok"] * 4


async def test_unlike_choices_of_one_answer_are_kept_apart():
    import openai

    def behaviour(request: Request) -> Reply:
        return Reply("one two three", piece=4)

    with FakeServer(behaviour) as server:
        client = openai.AsyncOpenAI(api_key="k", base_url=server.openai_url)
        async with client:
            whole = await client.chat.completions.create(
                model="fake", messages=[{"role": "user", "content": "hi"}], n=3
            )
            texts = ["", "", ""]
            async for chunk in await client.chat.completions.create(
                model="fake", messages=[{"role": "user", "content": "hi"}], n=3, stream=True
            ):
                for choice in chunk.choices:
                    texts[choice.index] += choice.delta.content or ""
    assert [choice.message.content for choice in whole.choices] == ["one two three"] * 3
    assert texts == ["one two three"] * 3


@pytest.mark.parametrize(
    "field", ["max_tokens", "stream_options", "seed"], ids=lambda field: f"without {field}"
)
async def test_compatible_server_may_refuse_a_field(field):
    with FakeServer(lambda _: Reply("ok"), refuses=[field]) as server:
        model = connect(server, "chat")
        first = await model.complete(CALL)
        second = await model.complete(CALL)
    assert (first.text, second.text) == ("ok", "ok")
    assert len(server.requests) == 3  # the refusal is learnt once
    assert all(request.max_output_tokens == 1000 for request in server.requests)


async def test_other_refusals_are_not_repeated():
    with (
        FakeServer(lambda _: Reply("ok"), refuses=["messages"]) as server,
        pytest.raises(ModelError, match="refused the request"),
    ):
        await connect(server, "chat").complete(CALL)
    assert len(server.requests) == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_busy_server_is_asked_again(protocol):
    replies: list[Reply | Failure | str] = [Failure.RATE_LIMIT, Failure.BROKEN, "at last"]
    with FakeServer(scripted(replies), retry_after_seconds=0.01) as server:
        completion = await connect(server, protocol, max_retries=2).complete(CALL)
    assert completion.text == "at last"
    assert len(server.requests) == 3


FAILURES = {
    Failure.BAD_KEY: ("did not accept the key in", "_API_KEY"),
    Failure.NO_MODEL: ("does not know this model", "model's name"),
    Failure.RATE_LIMIT: ("limits its use (HTTP 429): Rate limit", "--samples"),
    Failure.NO_CREDIT: ("current quota", "credit"),
    Failure.BROKEN: ("failed (HTTP 500): The server had an error", "try again later"),
    Failure.OVERLOADED: ("failed (HTTP 529): Overloaded", "try again later"),
    Failure.HTML: ("answered with text/html instead of an event stream", "--base-url"),
    Failure.NOT_JSON: ("not JSON", "--base-url"),
    Failure.ODD_EVENTS: ("answered with", "--base-url"),
    Failure.EMPTY_BODY: ("answered with an empty body", "--base-url"),
    Failure.EMPTY_STREAM: ("answered with an event stream without an answer", "--base-url"),
    Failure.HANG_UP: ("closed the connection without an answer", "--base-url"),
    Failure.ERROR_IN_STREAM: ("The engine died", "again"),
    Failure.HANG: ("said nothing for 0.5 s", "NKIWRIGHT_TIMEOUT_SECONDS"),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.name.lower())
async def test_failure_is_one_line_with_a_way_out(failure, protocol):
    words, hint = FAILURES[failure]
    with FakeServer(lambda _: failure) as server:
        model = connect(server, protocol, timeout_seconds=0.5 if failure is Failure.HANG else 10)
        with pytest.raises(ModelError) as caught:
            await model.complete(CALL)
    error = caught.value
    assert words in str(error)
    assert error.hint is not None
    assert hint in error.hint
    assert "\n" not in str(error) + error.hint
    assert server.url in str(error)
    assert KEY not in str(error)
    assert error.exit_code is ExitCode.MODEL


@pytest.mark.parametrize("protocol", ["responses", "messages"])
async def test_answer_that_breaks_off_is_a_failure(protocol):
    with (
        FakeServer(lambda _: Failure.BREAK_OFF) as server,
        pytest.raises(ModelError, match="broke off its answer after") as caught,
    ):
        await connect(server, protocol).complete(CALL)
    assert caught.value.may_be_billed


async def test_compatible_server_may_end_without_saying_so():
    with FakeServer(lambda _: Failure.BREAK_OFF) as server:
        completion = await connect(server, "chat").complete(CALL)
    assert completion.finish_reason == "other"
    assert completion.usage.is_estimated


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_nobody_listening_is_one_line(protocol):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(ModelError, match="cannot be reached") as caught:
            await connect(url, protocol).complete(CALL)
    assert url in str(caught.value)
    assert not caught.value.may_be_billed


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_patience_includes_the_retries(protocol):
    with FakeServer(lambda _: Failure.BROKEN, retry_after_seconds=30) as server:
        model = connect(server, protocol, timeout_seconds=0.5, max_retries=3)
        start = time.monotonic()
        with pytest.raises(ModelError, match=r"within 0\.5 s; its last one was HTTP 500"):
            await model.complete(CALL)
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_silent_server_is_not_asked_twice(protocol):
    with (
        FakeServer(lambda _: Failure.HANG) as server,
        pytest.raises(ModelError, match="said nothing"),
    ):
        await connect(server, protocol, timeout_seconds=0.5, max_retries=3).complete(CALL)
    assert len(server.requests) == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_slow_but_steady_reply_is_waited_for(protocol):
    with FakeServer(lambda _: Reply("x" * 200, piece=50, delay_seconds=0.1)) as server:
        completion = await connect(server, protocol, timeout_seconds=0.6).complete(CALL)
    assert len(completion.text) == 200


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_cancelled_call_ends_at_once(protocol):
    begun = asyncio.Event()
    with FakeServer(lambda _: Reply("x" * 4000, piece=1, delay_seconds=0.05)) as server:
        model = connect(server, protocol)
        task = asyncio.create_task(model.complete(CALL, lambda _: begun.set()))
        await begun.wait()
        start = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - start < 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_listener_that_fails_is_not_blamed_on_the_provider(protocol):
    def listen(_: str) -> None:
        raise LookupError("the listener's own")

    with (
        FakeServer(lambda _: Reply("hello")) as server,
        pytest.raises(LookupError, match="listener's own"),
    ):
        await connect(server, protocol).complete(CALL, listen)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_model_serves_more_than_one_event_loop(protocol):
    with FakeServer(lambda _: Reply("ok")) as server:
        model = connect(server, protocol)
        texts = [asyncio.run(model.complete(CALL)).text for _ in range(2)]
    assert texts == ["ok", "ok"]
