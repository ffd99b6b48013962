"""What the parent concludes from what it saw of a run.

The order is the rule: what the parent saw itself (clock, caps, signals, exit code) counts before
what the child said.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from enum import StrEnum

from nkisim.worker.child import EXIT_MEMORY, EXIT_RAISED
from nkisim.worker.layers import LayerReport
from nkisim.worker.protocol import FrameKind
from nkisim.worker.supervise import Observation


class AnswerStatus(StrEnum):
    """How a run ended."""

    OK = "ok"
    """The target returned `payload`."""
    TIMEOUT = "timeout"
    """Wall clock or CPU time ran out."""
    CRASHED = "crashed"
    """It ended by a signal, with an exit code, or by an exception that the target let through."""
    MEMORY = "memory"
    """It needed more memory than it was given."""
    OUTPUT_LIMIT = "output_limit"
    """It printed too much."""
    ANSWER_TOO_LARGE = "answer_too_large"
    PROTOCOL_ERROR = "protocol_error"
    """Its answer is missing, short, forged or more than one."""
    REFUSED = "refused"
    """A layer failed in the child; nothing was run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one run took."""

    wall_seconds: float
    cpu_seconds: float | None = None
    max_rss_bytes: int | None = None
    """Largest resident memory, including pages shared with the fork server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildAnswer:
    """What came back from one run."""

    status: AnswerStatus
    payload: bytes = b""
    """What the target returned, if the status is `ok`; not to be trusted."""
    stdout: str = ""
    """The beginning of what was printed; text for a person, never a message."""
    stderr: str = ""
    usage: Usage
    layers: LayerReport
    """The layers that held for this run."""
    detail: str = ""
    """Why the status is not `ok`, in one line; after an exception, its traceback."""
    exit_code: int | None = None
    signal: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A status with its reason, and the payload if there is one."""

    status: AnswerStatus
    detail: str = ""
    payload: bytes = b""


def judge(seen: Observation, *, cpu_limit_seconds: int, lost: str | None) -> Verdict:
    """Decide on the status; what the parent saw itself counts before what the child said."""
    exit_code, number = _split_status(seen)
    reader = seen.reader
    if seen.frame_error is not None:
        too_large = seen.frame_error.reason == "too_large" and reader.layers is not None
        status = AnswerStatus.ANSWER_TOO_LARGE if too_large else AnswerStatus.PROTOCOL_ERROR
        return Verdict(status=status, detail=str(seen.frame_error))
    if seen.is_too_loud:
        total = seen.stdout.total + seen.stderr.total
        return Verdict(status=AnswerStatus.OUTPUT_LIMIT, detail=f"it printed {total:,} bytes")
    if seen.is_late:
        return Verdict(status=AnswerStatus.TIMEOUT, detail="the wall clock ran out")
    if lost is not None:
        return Verdict(status=AnswerStatus.CRASHED, detail=f"the fork server was lost: {lost}")
    if number is not None:
        return _judge_signal(seen, cpu_limit_seconds, number)
    if reader.closing is FrameKind.REFUSED:
        return Verdict(status=AnswerStatus.REFUSED, detail=_text(reader.body))
    if reader.closing is FrameKind.MEMORY:
        return Verdict(status=AnswerStatus.MEMORY, detail="it ran out of memory")
    if reader.closing is FrameKind.ERROR:
        return Verdict(status=AnswerStatus.CRASHED, detail=_text(reader.body))
    if exit_code != 0:
        return Verdict(status=AnswerStatus.CRASHED, detail=f"it ended with exit code {exit_code}")
    if reader.closing is FrameKind.ANSWER:
        return Verdict(status=AnswerStatus.OK, payload=reader.body)
    what = "in the middle of an answer" if reader.has_partial else "without an answer"
    return Verdict(status=AnswerStatus.PROTOCOL_ERROR, detail=f"it ended {what}")


def is_abnormal(seen: Observation, verdict: Verdict, lost: str | None) -> bool:
    """Return whether the fork server is to be replaced, to be safe.

    Not after an ordinary failure: a kill by our clock or cap, or an exception that was reported.
    Generated code often does that, and a new server takes a second.
    """
    if lost is not None or verdict.status in (AnswerStatus.PROTOCOL_ERROR, AnswerStatus.REFUSED):
        return True
    if seen.is_condemned:
        return False
    reported = {FrameKind.ANSWER: 0, FrameKind.ERROR: EXIT_RAISED, FrameKind.MEMORY: EXIT_MEMORY}
    closing = seen.reader.closing
    return closing is None or _split_status(seen)[0] != reported.get(closing)


def _judge_signal(seen: Observation, cpu_limit_seconds: int, number: int) -> Verdict:
    cpu_seconds = seen.ending.cpu_seconds if seen.ending is not None else None
    if number in (signal.SIGXCPU, signal.SIGKILL) and (cpu_seconds or 0) > cpu_limit_seconds - 0.5:
        return Verdict(status=AnswerStatus.TIMEOUT, detail="its CPU time ran out")
    if number == signal.SIGKILL:
        detail = "the system killed it, most likely for want of memory"
        return Verdict(status=AnswerStatus.MEMORY, detail=detail)
    name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
    return Verdict(status=AnswerStatus.CRASHED, detail=f"it ended by signal {name}")


def conclude(seen: Observation, verdict: Verdict, layers: LayerReport) -> ChildAnswer:
    """Put together what the caller gets."""
    exit_code, number = _split_status(seen)
    ending = seen.ending
    return ChildAnswer(
        status=verdict.status,
        payload=verdict.payload,
        stdout=seen.stdout.text,
        stderr=seen.stderr.text,
        usage=Usage(
            wall_seconds=seen.wall_seconds,
            cpu_seconds=ending.cpu_seconds if ending is not None else None,
            max_rss_bytes=ending.max_rss_bytes if ending is not None else None,
        ),
        layers=layers,
        detail=verdict.detail,
        exit_code=exit_code,
        signal=number,
    )


def _split_status(seen: Observation) -> tuple[int | None, int | None]:
    """Return exit code and signal; both None if nobody knows."""
    status = seen.ending.status if seen.ending is not None else None
    if status is None:
        return None, None
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None


def _text(body: bytes) -> str:
    return body.decode("utf-8", "replace")
