"""The child's answer as bytes: a JSON header, then an encoded Program or nothing.

The decoder runs in the trusted parent and believes nothing.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass

from nkisim.errors import Diagnostic, ProgramError

MAGIC = b"NKTA"
MAX_HEADER = 1 << 20
_HEAD = struct.Struct("<4sIQ")


@dataclass(frozen=True, slots=True)
class TraceAnswer:
    """Either an encoded Program or the diagnostic that says why there is none."""

    program: bytes | None
    diagnostic: Diagnostic | None
    diagnostics: tuple[Diagnostic, ...] = ()
    """Warnings and notes."""


def encode_answer(answer: TraceAnswer) -> bytes:
    """Return the answer as one message."""
    header = json.dumps(
        {
            "diagnostic": None if answer.diagnostic is None else answer.diagnostic.to_dict(),
            "diagnostics": [d.to_dict() for d in answer.diagnostics[:50]],
        }
    ).encode()
    body = answer.program or b""
    return _HEAD.pack(MAGIC, len(header), len(body)) + header + body


def decode_answer(data: bytes) -> TraceAnswer:
    """Read a message of the child.

    Raises:
        ProgramError: The message is malformed.
    """
    if len(data) < _HEAD.size:
        raise ProgramError(f"the child's answer has {len(data)} bytes, too few for its header")
    magic, header_size, body_size = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise ProgramError("the child's answer does not start with the expected mark")
    if header_size > MAX_HEADER or _HEAD.size + header_size + body_size != len(data):
        raise ProgramError("the child's answer has inconsistent lengths")
    try:
        header = json.loads(data[_HEAD.size : _HEAD.size + header_size])
    except (ValueError, RecursionError) as error:
        raise ProgramError(f"the child's answer has an unreadable header: {error}") from None
    if not isinstance(header, dict) or set(header) != {"diagnostic", "diagnostics"}:
        raise ProgramError("the child's answer has a header of the wrong form")
    items = header["diagnostics"]
    if not isinstance(items, list) or len(items) > 50:
        raise ProgramError("the child's answer has malformed diagnostics")
    if not all(isinstance(item, dict) for item in items):
        raise ProgramError("the child's answer has malformed diagnostics")
    diagnostics = tuple(Diagnostic.from_dict(item) for item in items)
    found = header["diagnostic"]
    if found is not None and not isinstance(found, dict):
        raise ProgramError("the child's answer has a malformed diagnostic")
    diagnostic = None if found is None else Diagnostic.from_dict(found)
    body = data[_HEAD.size + header_size :]
    if (diagnostic is None) == (not body):
        raise ProgramError("the child's answer holds neither or both of a Program and an error")
    return TraceAnswer(body or None, diagnostic, diagnostics)
