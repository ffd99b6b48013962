"""Messages between the agent and its evaluator processes: length-prefixed JSON.

JSON, not pickle: an evaluator works on data that generated code shaped, and what it answers must
not be able to run anything in the process that holds the keys.
"""

from __future__ import annotations

import json
import struct
from typing import Any, BinaryIO

HEADER = struct.Struct("<I")
MAX_MESSAGE = 64 << 20


def pack(message: dict[str, Any]) -> bytes:
    """Return one message as bytes."""
    body = json.dumps(message).encode()
    if len(body) > MAX_MESSAGE:
        raise ValueError(f"message of {len(body):,} bytes exceeds {MAX_MESSAGE:,}")
    return HEADER.pack(len(body)) + body


def unpack(body: bytes) -> dict[str, Any]:
    """Return the message in `body`."""
    message = json.loads(body)
    if not isinstance(message, dict):
        raise ValueError(f"message is {type(message).__name__}, not an object")
    return message


def read_message(stream: BinaryIO) -> dict[str, Any] | None:
    """Read one message from a blocking stream; None at its end."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (size,) = HEADER.unpack(header)
    if size > MAX_MESSAGE:
        raise ValueError(f"message of {size:,} bytes exceeds {MAX_MESSAGE:,}")
    body = stream.read(size)
    return unpack(body) if len(body) == size else None
