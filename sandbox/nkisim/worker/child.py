"""What happens between the fork and the exit of a child that handles one request.

Until `HELLO` is written only our code runs; it decodes the request and calls the target after all
layers hold.  The function never returns: whatever happens ends in `os._exit`.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from nkisim.worker.limits import Confinement, LayerFailure, Limits
from nkisim.worker.protocol import (
    FrameKind,
    decode_request,
    encode_frame,
    encode_names,
    frame_header,
)

Target = Callable[[dict[str, object]], bytes]

ANSWER_DESCRIPTOR = 3
EXIT_REFUSED = 71
EXIT_RAISED = 72
EXIT_MEMORY = 73
_BALLAST_BYTES = 4 << 20
"""Address space, never touched, given back when memory runs out so that the child can say so."""
_TEXT_LIMIT = 8000
_MEMORY_FRAME = encode_frame(FrameKind.MEMORY, b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """Descriptors of one run, as the forked child inherits them."""

    request: int
    answer: int
    stdout: int
    stderr: int


def handle_request(
    target: Target,
    channels: Channels,
    confinement: Confinement,
    layers: Sequence[str],
    limits: Limits,
    *,
    parent_pid: int,
) -> NoReturn:
    """Confine this process, call the target with the request, answer and leave."""
    code = EXIT_REFUSED
    try:
        data = os.pread(channels.request, os.fstat(channels.request).st_size, 0)
        os.dup2(channels.stdout, 1)
        os.dup2(channels.stderr, 2)
        os.dup2(channels.answer, ANSWER_DESCRIPTOR)
        if "descriptors" in layers:
            os.closerange(ANSWER_DESCRIPTOR + 1, os.sysconf("SC_OPEN_MAX"))
        try:
            applied = confinement.apply(layers, limits, parent_pid=parent_pid)
        except LayerFailure as exc:
            _write(encode_frame(FrameKind.REFUSED, str(exc).encode()[:_TEXT_LIMIT]))
            os._exit(EXIT_REFUSED)
        by_construction = [name for name in layers if name not in applied]
        say_hello([*applied, *by_construction])
        code = answer_request(target, data)
    finally:
        os._exit(code)


def say_hello(layers: Sequence[str]) -> None:
    """Tell the parent which layers hold; no source has been looked at yet."""
    _write(encode_frame(FrameKind.HELLO, encode_names(layers)))


def answer_request(target: Target, data: bytes) -> int:
    """Call the target, write the closing frame and return the exit code."""
    ballast = mmap.mmap(-1, _BALLAST_BYTES)
    code = 0
    try:
        answer = target(decode_request(data))
        if not isinstance(answer, bytes):
            raise TypeError(f"the target must return bytes, got {type(answer).__name__}")
        _flush()
        _write(frame_header(FrameKind.ANSWER, len(answer)))
        _write(answer)
    except MemoryError:
        ballast.close()
        _flush()
        _write(_MEMORY_FRAME)
        code = EXIT_MEMORY
    except BaseException as exc:
        _flush()
        text = "".join(traceback.format_exception(exc))[-_TEXT_LIMIT:]
        _write(encode_frame(FrameKind.ERROR, text.encode("utf-8", "replace")))
        code = EXIT_RAISED
    return code


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(ANSWER_DESCRIPTOR, view) :]


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        # Generated code may have put anything in their place.
        with contextlib.suppress(Exception):
            stream.flush()
