"""The parent's watch over one child: it reads, counts, keeps the clock and kills.

Nothing here believes the child or the fork server.  Reading goes on until the child is known to be
dead or the clock has run out; what is still in the pipes then is taken, but nobody is waited for.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from nkisim.worker.protocol import FrameError, FrameReader

KEPT_OUTPUT_BYTES = 64 << 10
"""How much of each of stdout and stderr is kept."""
TOTAL_OUTPUT_BYTES = 1 << 20
"""How much a child may print in all before it is killed."""
GRACE_SECONDS = 2.0
"""How long a killed child may take to be reported as dead."""
_READ_BYTES = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a child ended."""

    status: int | None
    """As `os.waitpid` gives it, or None if nobody knows."""
    cpu_seconds: float | None = None
    max_rss_bytes: int | None = None


class ChildHandle(Protocol):
    """A running child, seen from the parent."""

    def watched(self) -> Sequence[int]:
        """Return the descriptors that become readable when its state may have changed."""

    def poll(self) -> Ending | None:
        """Return how it ended, or None while it runs; never blocks."""

    def kill(self) -> None:
        """Send SIGKILL; harmless if it has ended."""

    def abandon(self) -> None:
        """End it together with whatever stands between it and us."""


@dataclass(slots=True)
class Capture:
    """The kept beginning of what a child printed."""

    limit: int = KEPT_OUTPUT_BYTES
    data: bytearray = field(default_factory=bytearray)
    total: int = 0

    def add(self, piece: bytes) -> None:
        """Count all of it, keep what fits."""
        self.total += len(piece)
        self.data += piece[: self.limit - len(self.data)]

    @property
    def text(self) -> str:
        """What was kept, with a note if that is not all."""
        text = self.data.decode("utf-8", "replace")
        if self.total > len(self.data):
            text += f"\n[{self.total - len(self.data):,} more bytes were dropped]\n"
        return text


@dataclass(slots=True, kw_only=True)
class Observation:
    """All that the parent saw of one run."""

    reader: FrameReader
    stdout: Capture = field(default_factory=Capture)
    stderr: Capture = field(default_factory=Capture)
    ending: Ending | None = None
    frame_error: FrameError | None = None
    is_late: bool = False
    """The wall clock ran out."""
    is_too_loud: bool = False
    """It printed more than is allowed."""
    wall_seconds: float = 0.0

    @property
    def is_condemned(self) -> bool:
        """Whether the parent has a reason to end it."""
        return self.is_late or self.is_too_loud or self.frame_error is not None


def supervise(
    handle: ChildHandle,
    *,
    answer: int,
    stdout: int,
    stderr: int,
    wall_seconds: float,
    answer_cap_bytes: int,
    start_seconds: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
) -> Observation:
    """Watch a child until it has ended or has been given up.

    Args:
        handle: The child.
        answer: Read end of its answer pipe; stays the caller's to close, as the next two.
        stdout: Read end of its standard output.
        stderr: Read end of its standard error.
        wall_seconds: When to kill it.
        answer_cap_bytes: Longest allowed answer.
        start_seconds: What it may take in addition until it says hello.
        clock: Monotonic seconds.
    """
    seen = Observation(reader=FrameReader(answer_cap_bytes=answer_cap_bytes))
    start = clock()
    deadline = start + start_seconds + wall_seconds
    is_killed = has_begun = False
    sinks: dict[int, Callable[[bytes], None]] = {
        answer: seen.reader.feed,
        stdout: seen.stdout.add,
        stderr: seen.stderr.add,
    }
    for descriptor in sinks:
        os.set_blocking(descriptor, False)
    with selectors.DefaultSelector() as selector:
        for descriptor in sinks:
            selector.register(descriptor, selectors.EVENT_READ)
        watched: set[int] = set()
        while seen.ending is None:
            wanted = set(handle.watched())
            for descriptor in watched - wanted:
                selector.unregister(descriptor)
            for descriptor in wanted - watched:
                selector.register(descriptor, selectors.EVENT_READ)
            watched = wanted
            # Without descriptors to watch, look again soon.
            longest = 0.02 if not watched else 1.0
            events = selector.select(min(max(deadline - clock(), 0.0), longest))
            for key, _ in events:
                if key.fd in sinks and _read_once(key.fd, sinks[key.fd], seen) == "end":
                    selector.unregister(key.fd)
            seen.ending = handle.poll()
            if seen.ending is not None:
                break
            if not has_begun and seen.reader.layers is not None:
                has_begun = True
                deadline = clock() + wall_seconds
            if not is_killed and (seen.is_condemned or clock() >= deadline):
                seen.is_late = not seen.is_condemned
                is_killed = True
                handle.kill()
                deadline = clock() + GRACE_SECONDS
            elif is_killed and clock() >= deadline:
                handle.abandon()
                seen.ending = Ending(status=None)
    seen.wall_seconds = clock() - start
    for descriptor, sink in sinks.items():
        while _read_once(descriptor, sink, seen) == "more":
            pass
    return seen


def _read_once(
    descriptor: int, sink: Callable[[bytes], None], seen: Observation
) -> Literal["more", "nothing", "end"]:
    """Read what is there now and pass it on."""
    try:
        piece = os.read(descriptor, _READ_BYTES)
    except BlockingIOError:
        return "nothing"
    if not piece:
        return "end"
    if seen.frame_error is None:
        try:
            sink(piece)
        except FrameError as exc:
            seen.frame_error = exc
    seen.is_too_loud = seen.stdout.total + seen.stderr.total > TOTAL_OUTPUT_BYTES
    return "more"
