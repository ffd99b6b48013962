import json
import struct
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nkisim.programs import straight_line, with_everything
from tests.nkisim.toy import Toy, tiled_add

from nkisim.errors import ProgramError
from nkisim.ir.encode import DecodeLimits, decode, encode
from nkisim.ir.program import Program, is_equal

Header = dict[str, object]


def _with_header(data: bytes, change: Callable[[Header], object]) -> bytes:
    """Return a frame with its header changed."""
    magic, version, reserved, size = struct.unpack_from("<4sHHI", data)
    header = json.loads(data[12 : 12 + size])
    change(header)
    text = json.dumps(header).encode()
    return struct.pack("<4sHHI", magic, version, reserved, len(text)) + text + data[12 + size :]


def test_a_frame_decodes_to_an_equal_program():
    program = with_everything()
    assert is_equal(decode(encode(program)), program)


@given(straight_line())
@settings(max_examples=50, deadline=None)
def test_any_program_survives_the_wire(program: Program):
    data = encode(program)
    assert is_equal(decode(data), program)
    assert encode(decode(data)) == data


def test_is_equal_notices_differences():
    first, other = tiled_add(), tiled_add(columns=256)
    assert not is_equal(first, other)
    toys = [Toy(), Toy()]
    for toy, value in zip(toys, (1, 1.0), strict=True):
        toy.emit("memset", attrs={"value": value}, dst=toy.sbuf(1, 1))
    assert not is_equal(toys[0].build(), toys[1].build())


def test_constants_keep_their_bits():
    toy = Toy()
    values = np.array([[np.nan, -0.0, 1e-45]], dtype=np.float32)
    toy.constant(values)
    assert decode(encode(toy.build())).constants[0].tobytes() == values.tobytes()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("surprise", 1, "unknown or missing header keys"),
        ("kernel", 7, "kernel must be a string"),
        ("kernel", "k" * 5000, "at most 2000 characters"),
        ("instructions", True, "instructions must be an integer"),
        ("instructions", 3_000_000, "within"),
        ("instructions", -1, "within"),
        ("registers", 10**30, "within"),
        ("is_hybrid", 0, "true or false"),
        ("loops", [["for", 0, 99, None, 0, 0, 1, 1, None, None]], "within"),
        ("patterns", [[[0], [1], "float32"]], "dimension must be within"),
        ("patterns", [[[2], [1, 1], "float32"]], "differ in rank"),
        ("patterns", [[[1 << 40, 1 << 40], [1, 1], "float32"]], "too large"),
        ("patterns", [[[1], [1], "float33"]], "dtype must be one of"),
        ("forms", [["memset; import os", "vector", [], []]], "op must be an identifier"),
        ("forms", [["memset", "warp", [], []]], "engine must be one of"),
        ("forms", [["memset", "vector", [["v", {"a": 1}]], []]], "attribute is a dict"),
        ("forms", [["memset", "vector", [["b", 1], ["a", 1]], []]], "not sorted"),
        ("constants", [["float32", [1 << 30]]], "exceed the limit of"),
        ("strings", ["\ud800"], "lone surrogates"),
        ("outputs", [[0, 0, 99]], "pattern must be within"),
        ("arguments", [["x", 99, [1], "float32", False]], "buffer must be within"),
    ],
)
def test_a_malformed_header_is_refused_in_one_line(name: str, value: object, words: str):
    data = _with_header(encode(tiled_add()), lambda header: header.update({name: value}))
    with pytest.raises(ProgramError) as caught:
        decode(data)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_key_is_refused():
    data = _with_header(encode(tiled_add()), lambda header: header.pop("nki"))
    with pytest.raises(ProgramError, match="nki"):
        decode(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"NKIP",
        b"\x80\x04\x95",
        b"PK\x03\x04" + bytes(100),
        b"NKIP" + bytes(8),
        struct.pack("<4sHHI", b"NKIP", 1, 0, 2**32 - 1),
        struct.pack("<4sHHI", b"NKIP", 1, 0, 100_000) + b"[" * 100_000,
        struct.pack("<4sHHI", b"NKIP", 1, 0, 4) + b"null",
    ],
    ids=["empty", "magic only", "pickle", "zip", "version 0", "huge header", "nesting", "null"],
)
def test_foreign_bytes_are_refused(data: bytes):
    with pytest.raises(ProgramError):
        decode(data)


def test_truncated_and_extended_frames_are_refused():
    data = encode(tiled_add())
    for wrong in (data[:-1], data + b"\0"):
        with pytest.raises(ProgramError, match=r"expected .* bytes"):
            decode(wrong)


@pytest.mark.parametrize(
    "column",
    ["form", "site", "operand_buffer"],
)
def test_numbers_that_name_nothing_are_refused(column: str):
    program = tiled_add()
    getattr(program, column)[3] = 10_000
    with pytest.raises(ProgramError):
        decode(encode(program))


def test_limits_are_obeyed():
    data = encode(tiled_add())
    with pytest.raises(ProgramError, match="instructions"):
        decode(data, DecodeLimits(instructions=10))
    with pytest.raises(ProgramError, match="bytes exceed the limit"):
        decode(data, DecodeLimits(frame_bytes=100))


_FRAMES = (encode(with_everything()), encode(tiled_add(128, 256)))


@given(
    st.sampled_from(_FRAMES),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=6),
    st.booleans(),
)
@settings(max_examples=400, deadline=None)
def test_mutated_frames_never_crash_the_decoder(
    frame: bytes, changes: list[tuple[float, int]], in_header: bool
):
    data = bytearray(frame)
    size = struct.unpack_from("<I", frame, 8)[0] + 12 if in_header else len(data)
    for place, value in changes:
        data[int(place * size)] = value
    try:
        program = decode(bytes(data))
    except ProgramError:
        return
    assert is_equal(decode(encode(program)), program)


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes):
    with pytest.raises(ProgramError):
        decode(b"NKIP\x01\x00\x00\x00" + data)
