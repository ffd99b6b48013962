"""The parent's reader takes what the protocol allows and refuses the rest early."""

from __future__ import annotations

import itertools
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkisim.worker.protocol import (
    HEADER,
    MAGIC,
    SMALL_CAP_BYTES,
    VERSION,
    FrameError,
    FrameKind,
    FrameReader,
    decode_request,
    encode_frame,
    encode_names,
    encode_request,
    frame_header,
)

HELLO = encode_frame(FrameKind.HELLO, encode_names(["seccomp", "landlock"]))


def test_reader_takes_hello_and_one_closing_frame() -> None:
    reader = FrameReader()
    reader.feed(HELLO)
    assert (reader.layers, reader.closing) == (("seccomp", "landlock"), None)
    reader.feed(encode_frame(FrameKind.ANSWER, b"program"))
    assert (reader.closing, reader.body) == (FrameKind.ANSWER, b"program")
    assert not reader.has_partial


@given(body=st.binary(max_size=200), cuts=st.lists(st.integers(0, 300), max_size=6))
def test_reader_does_not_care_how_the_bytes_are_cut(body: bytes, cuts: list[int]) -> None:
    data = HELLO + encode_frame(FrameKind.ANSWER, body)
    reader = FrameReader()
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, stop in itertools.pairwise(places):
        reader.feed(data[start:stop])
    assert (reader.closing, reader.body) == (FrameKind.ANSWER, body)


@given(data=st.binary(max_size=300))
def test_reader_never_fails_in_any_other_way(data: bytes) -> None:
    for prefix in (b"", HELLO, HELLO + frame_header(FrameKind.ANSWER, 10)):
        reader = FrameReader(answer_cap_bytes=100)
        try:
            reader.feed(prefix + data)
        except FrameError:
            continue
        assert len(reader.body) <= max(100, SMALL_CAP_BYTES)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(encode_frame(FrameKind.ANSWER, b"early"), id="answer_before_hello"),
        pytest.param(HELLO + HELLO, id="hello_twice"),
        pytest.param(HELLO + encode_frame(FrameKind.REFUSED, b""), id="refused_after_hello"),
        pytest.param(HELLO + encode_frame(FrameKind.ANSWER, b"x") * 2, id="two_answers"),
        pytest.param(HELLO + encode_frame(FrameKind.ANSWER, b"x") + b"y", id="bytes_after_answer"),
        pytest.param(HELLO + HEADER.pack(MAGIC, VERSION + 1, 2, 0), id="other_version"),
        pytest.param(HELLO + HEADER.pack(MAGIC, VERSION, 99, 0), id="unknown_kind"),
        pytest.param(HELLO + pickle.dumps({"a": list(range(9))}), id="pickle"),
        pytest.param(encode_frame(FrameKind.HELLO, b"{}"), id="hello_is_no_list"),
        pytest.param(encode_frame(FrameKind.HELLO, b"[1]"), id="hello_is_no_text"),
        pytest.param(encode_frame(FrameKind.HELLO, b"\xff"), id="hello_is_no_json"),
    ],
)
def test_reader_refuses_malformed_bytes(data: bytes) -> None:
    with pytest.raises(FrameError) as caught:
        FrameReader().feed(data)
    assert caught.value.reason == "malformed"


@pytest.mark.parametrize("kind", [FrameKind.ANSWER, FrameKind.ERROR, FrameKind.MEMORY])
def test_reader_refuses_a_length_before_it_reads_the_body(kind: FrameKind) -> None:
    reader = FrameReader(answer_cap_bytes=1000)
    with pytest.raises(FrameError) as caught:
        reader.feed(HELLO + frame_header(kind, 1 << 60))
    assert caught.value.reason == "too_large"


def test_answer_of_exactly_the_cap_is_taken() -> None:
    reader = FrameReader(answer_cap_bytes=1000)
    reader.feed(HELLO + encode_frame(FrameKind.ANSWER, b"x" * 1000))
    assert len(reader.body) == 1000


def test_request_comes_back_equal_and_must_be_plain() -> None:
    request = {"source": "x = 'ä\ud800'", "shapes": [[1, 2]], "flag": None, "nan": float("inf")}
    assert decode_request(encode_request(request)) == request
    with pytest.raises(TypeError):
        encode_request({"source": object()})
