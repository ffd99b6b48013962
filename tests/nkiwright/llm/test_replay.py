"""Recorded conversations replay to the same answers, in whatever order they are asked."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.nkiwright.fake_servers import FakeServer, Reply, Tokens

from nkiwright.errors import ConfigError, ExitCode, ModelError
from nkiwright.llm.base import Completion, Message, ModelCall, OnDelta, Usage
from nkiwright.llm.registry import make_model
from nkiwright.llm.replay import Recorder, ReplayModel


class Scripted:
    """A model that answers from a function."""

    name = "scripted"

    def __init__(self, answer: Callable[[ModelCall, int], str]) -> None:
        self._answer = answer
        self.asked = 0

    async def complete(self, call: ModelCall, on_delta: OnDelta | None = None) -> Completion:
        number = self.asked
        self.asked += 1
        text = self._answer(call, number)
        await asyncio.sleep(0.001 * (5 - number % 5))  # answers come in another order
        if "fail" in text:
            raise ModelError("failed")
        if on_delta is not None:
            on_delta(text)
        return Completion(
            text=text,
            usage=Usage(input_tokens=10, output_tokens=number),
            model="scripted-1",
            finish_reason="stop",
        )


def ask(text: str = "write", **values: object) -> ModelCall:
    call = ModelCall(system="system", messages=(Message("user", text),), max_output_tokens=100)
    return dataclasses.replace(call, **values)  # type: ignore[arg-type] # names are fields


async def record(
    path: Path, calls: list[ModelCall], answer: Callable[..., str]
) -> list[Completion]:
    recorder = Recorder(Scripted(answer), path)
    return list(await asyncio.gather(*(recorder.complete(call) for call in calls)))


async def test_equal_requests_replay_different_answers_in_order(tmp_path):
    path = tmp_path / "run.jsonl"
    calls = [ask("a"), ask("b"), ask("a"), ask("a")]
    recorded = await record(path, calls, lambda call, n: f"{call.messages[0].text} {n}")
    replay = ReplayModel(path)
    again = [await replay.complete(call) for call in calls]
    assert [c.text for c in recorded] == ["a 0", "b 1", "a 2", "a 3"]
    assert again == recorded


async def test_order_of_unlike_requests_does_not_matter(tmp_path):
    path = tmp_path / "run.jsonl"
    calls = [ask(sample=sample) for sample in range(5)]
    recorded = await record(path, calls, lambda call, n: f"sample {call.sample}")
    replay = ReplayModel(path)
    again = {call.sample: (await replay.complete(call)).text for call in reversed(calls)}
    assert again == {call.sample: c.text for call, c in zip(calls, recorded, strict=True)}


async def test_output_limit_is_not_part_of_the_question(tmp_path):
    path = tmp_path / "run.jsonl"
    await record(path, [ask()], lambda call, n: "answer")
    completion = await ReplayModel(path).complete(ask(max_output_tokens=7))
    assert completion.text == "answer"


async def test_pieces_add_up_to_the_answer(tmp_path):
    path = tmp_path / "run.jsonl"
    text = "ä line\nanother \u2028 one\r\n😀 last"
    await record(path, [ask()], lambda call, n: text)
    pieces: list[str] = []
    completion = await ReplayModel(path).complete(ask(), pieces.append)
    assert "".join(pieces) == completion.text == text


async def test_failed_call_leaves_no_gap(tmp_path):
    path = tmp_path / "run.jsonl"
    recorder = Recorder(Scripted(lambda call, n: "fail" if n == 0 else f"answer {n}"), path)
    with pytest.raises(ModelError):
        await recorder.complete(ask())
    await recorder.complete(ask())
    assert (await ReplayModel(path).complete(ask())).text == "answer 1"


async def test_recording_goes_on_in_a_later_run(tmp_path):
    path = tmp_path / "run.jsonl"
    await record(path, [ask()], lambda call, n: "first run")
    await record(path, [ask()], lambda call, n: "second run")
    replay = ReplayModel(path)
    texts = [(await replay.complete(ask())).text for _ in range(2)]
    assert texts == ["first run", "second run"]


async def test_last_line_cut_by_a_crash_is_left_out_and_written_over(tmp_path):
    path = tmp_path / "run.jsonl"
    await record(path, [ask("a")], lambda call, n: "a")
    await record(path, [ask("b")], lambda call, n: "b")
    whole = path.read_text()
    path.write_text(whole[:-20])
    assert (await ReplayModel(path).complete(ask("a"))).text == "a"
    with pytest.raises(ModelError):
        await ReplayModel(path).complete(ask("b"))
    await record(path, [ask("b")], lambda call, n: "b again")
    assert (await ReplayModel(path).complete(ask("b"))).text == "b again"


async def test_last_line_without_its_end_counts_if_it_is_whole(tmp_path):
    path = tmp_path / "run.jsonl"
    await record(path, [ask("a")], lambda call, n: "a")
    path.write_text(path.read_text().rstrip("\n"))
    await record(path, [ask("b")], lambda call, n: "b")
    replay = ReplayModel(path)
    assert [(await replay.complete(ask(text))).text for text in "ab"] == ["a", "b"]


async def test_rows_say_what_was_asked_and_answered(tmp_path):
    path = tmp_path / "run.jsonl"
    await record(path, [ask()], lambda call, n: "answer")
    (row,) = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(row) == ["completion", "key", "request", "schema_version"]
    assert row["request"]["messages"] == [{"role": "user", "text": "write"}]
    assert row["completion"]["text"] == "answer"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (ask(system="systematic"), "the system prompt differs first: at character 6"),
        (ask("write a kernel"), r"message 1 \(user\) differs first: at character 5"),
        (ask(temperature=0.5), "temperature differs first: at character 0, recorded 'null'"),
        (ask(sample=1), "sample differs first"),
        (
            ask(messages=(Message("user", "write"), Message("assistant", "no"))),
            r"message 2 \(assistant\) differs first",
        ),
    ],
    ids=["system", "message", "temperature", "sample", "longer"],
)
async def test_request_that_was_not_recorded_says_what_differs(tmp_path, call, words):
    path = tmp_path / "run.jsonl"
    await record(path, [ask()], lambda call, n: "answer")
    with pytest.raises(ModelError, match=words) as caught:
        await ReplayModel(path).complete(call)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code is ExitCode.MODEL


async def test_asking_more_often_than_recorded_says_so(tmp_path):
    path = tmp_path / "run.jsonl"
    await record(path, [ask()], lambda call, n: "answer")
    replay = ReplayModel(path)
    await replay.complete(ask())
    with pytest.raises(ModelError, match="holds 1 answers to this request"):
        await replay.complete(ask())


async def test_conversation_with_a_server_replays_without_it(tmp_path):
    path = tmp_path / "run.jsonl"
    tokens = Tokens(input=50, output=9, cached=3)
    with FakeServer(lambda request: Reply(f"to {request.prompt}", tokens=tokens)) as server:
        model = make_model("openai:fake", base_url=server.openai_url, environ={})
        recorder = Recorder(model, path)
        recorded = [await recorder.complete(ask(text)) for text in ("one", "two")]
    replay = make_model(f"replay:{path}", environ={})
    assert replay.name == f"replay:{path}"
    assert [await replay.complete(ask(text)) for text in ("one", "two")] == recorded


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"not json\n", "run.jsonl:1: not a row"),
        (b'\n{"schema_version": 1}\n', "run.jsonl:2: .*missing field 'request'"),
        (b'{"schema_version": 9}\n', "schema version 1 expected, got 9"),
        (b"[1]\n", "run.jsonl:1"),
        (b"\xff\xfe\n", "not UTF-8"),
    ],
    ids=["text", "fields", "version", "list", "bytes"],
)
def test_file_that_is_no_recording_is_one_line(tmp_path, content, words):
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        make_model(f"replay:{path}", environ={})


def test_missing_recording_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match="No such file") as caught:
        make_model(f"replay:{tmp_path / 'none.jsonl'}", environ={})
    assert caught.value.exit_code is ExitCode.USAGE


async def test_row_that_was_edited_is_refused(tmp_path):
    path = tmp_path / "run.jsonl"
    await record(path, [ask()], lambda call, n: "answer")
    path.write_text(path.read_text().replace('"write"', '"wrote"'))
    with pytest.raises(ConfigError, match="key does not belong"):
        ReplayModel(path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("file/calls.jsonl", "Not a directory|File exists"),
        ("folder", "cannot read the recording"),
    ],
    ids=["below a file", "a folder"],
)
def test_recording_that_cannot_be_written_is_said_before_anything_is_paid(tmp_path, name, words):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match=words):
        Recorder(Scripted(lambda *_: "a"), tmp_path / name)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
async def test_recording_on_a_full_disk_is_one_line(tmp_path):
    path = tmp_path / "calls.jsonl"
    recorder = Recorder(Scripted(lambda *_: "a"), path)
    path.symlink_to("/dev/full")
    with pytest.raises(ModelError, match="No space left") as caught:
        await recorder.complete(ask())
    assert caught.value.may_be_billed
    assert not caught.value.is_transient
