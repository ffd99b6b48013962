"""Frames between the parent and the confined child.

A request goes in as JSON in a sealed memory file.  Answers come back through a pipe as frames: a
fixed header (magic, version, kind, length) and that many bytes.  The child writes `HELLO` once it
is confined and before it looks at any source, then exactly one closing frame.  Generated code
shares the child's process and may write to the pipe as well, so the reader trusts nothing: it
checks every header, caps every length before it stores a byte, and refuses whatever comes early,
twice or too much.  Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

MAGIC = b"NKSW"
VERSION = 1
HEADER = struct.Struct("<4sHHQ")
"""Magic, version, kind, length of the body in bytes."""
ANSWER_CAP_BYTES = 256 << 20
SMALL_CAP_BYTES = 64 << 10
"""Largest body of any frame but `ANSWER`."""


class FrameKind(IntEnum):
    """What a frame says."""

    HELLO = 1
    """All layers hold; the body lists them as JSON.  Always first."""
    ANSWER = 2
    """The target returned these bytes."""
    ERROR = 3
    """The target raised; the body is text."""
    MEMORY = 4
    """The target ran out of memory."""
    REFUSED = 5
    """A layer could not be applied; nothing was run.  Takes the place of `HELLO`."""


class FrameError(Exception):
    """The child's bytes are not what the protocol allows."""

    def __init__(
        self,
        message: str,
        *,
        reason: Literal["malformed", "too_large"] = "malformed",
    ) -> None:
        super().__init__(message)
        self.reason = reason


def frame_header(kind: FrameKind, length: int) -> bytes:
    """Return the header of a frame whose body has `length` bytes."""
    return HEADER.pack(MAGIC, VERSION, kind, length)


def encode_frame(kind: FrameKind, body: bytes) -> bytes:
    """Return one frame."""
    return frame_header(kind, len(body)) + body


def encode_request(request: Mapping[str, object]) -> bytes:
    """Return the request as JSON; raises TypeError or ValueError if it is not plain data."""
    return json.dumps(request, ensure_ascii=False, allow_nan=True).encode("utf-8", "surrogatepass")


def decode_request(data: bytes) -> dict[str, object]:
    """Read what `encode_request` wrote."""
    request = json.loads(data.decode("utf-8", "surrogatepass"))
    if not isinstance(request, dict):
        raise TypeError(f"a request must be a JSON object, got {type(request).__name__}")
    return request


def encode_names(names: Sequence[str]) -> bytes:
    """Return the body of `HELLO`."""
    return json.dumps(list(names)).encode()


def decode_names(body: bytes) -> tuple[str, ...]:
    """Read the body of `HELLO`."""
    try:
        names = json.loads(body)
    except ValueError as exc:
        raise FrameError(f"the list of layers is not JSON: {exc}") from exc
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise FrameError("the list of layers is not a list of text")
    return tuple(names)


@dataclass(slots=True)
class FrameReader:
    """Collects the child's frames from arbitrary pieces of bytes."""

    answer_cap_bytes: int = ANSWER_CAP_BYTES
    layers: tuple[str, ...] | None = None
    """The layers that the child reported before it ran anything, or None until then."""
    closing: FrameKind | None = None
    """Kind of the closing frame, once that is complete."""
    body: bytes = b""
    """Body of the closing frame."""
    _buffer: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> None:
        """Add bytes; raises `FrameError` at the first that cannot belong there."""
        self._buffer += data
        while self._buffer:
            if self.closing is not None:
                raise FrameError("there are bytes after the closing frame")
            if len(self._buffer) < HEADER.size:
                return
            magic, version, number, length = HEADER.unpack_from(self._buffer)
            if magic != MAGIC or version != VERSION:
                raise FrameError(f"the header is {bytes(self._buffer[: HEADER.size])!r}")
            kind = self._expected(number)
            cap = self.answer_cap_bytes if kind is FrameKind.ANSWER else SMALL_CAP_BYTES
            if length > cap:
                raise FrameError(
                    f"{kind.name} announces {length:,} bytes, at most {cap:,} are allowed",
                    reason="too_large",
                )
            if len(self._buffer) < HEADER.size + length:
                return
            body = bytes(memoryview(self._buffer)[HEADER.size : HEADER.size + length])
            del self._buffer[: HEADER.size + length]
            if kind is FrameKind.HELLO:
                self.layers = decode_names(body)
            else:
                self.closing, self.body = kind, body

    @property
    def has_partial(self) -> bool:
        """Whether bytes of an unfinished frame are waiting."""
        return bool(self._buffer)

    def _expected(self, number: int) -> FrameKind:
        first = (FrameKind.HELLO, FrameKind.REFUSED)
        later = (FrameKind.ANSWER, FrameKind.ERROR, FrameKind.MEMORY)
        allowed = first if self.layers is None else later
        for kind in allowed:
            if kind == number:
                return kind
        names = " or ".join(kind.name for kind in allowed)
        raise FrameError(f"frame kind {number} came where {names} was expected")
