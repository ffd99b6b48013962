"""The parent's side: run a trusted target on untrusted data in a confined child.

`Sandbox.run` always returns, whatever the child or the fork server does, and says what happened as
one of a closed set of states.  The payload of an answer is bytes that generated code may have
chosen: decode it strictly.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Self

from nkisim.worker import launch
from nkisim.worker.child import EXIT_MEMORY, EXIT_RAISED
from nkisim.worker.errors import SandboxUnavailable, WorkerError
from nkisim.worker.layers import LayerReport, no_layers, probe_layers
from nkisim.worker.limits import MEMORY_BYTES
from nkisim.worker.plain import PlainChild
from nkisim.worker.protocol import ANSWER_CAP_BYTES, FrameKind, encode_request
from nkisim.worker.server import ForkServer, Job, ServerLost
from nkisim.worker.supervise import ChildHandle, Observation, supervise

WALL_SECONDS = 20.0
RUNS_PER_SERVER = 500
"""After so many children a server is replaced: they all share its memory layout."""


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
class _Verdict:
    status: AnswerStatus
    detail: str = ""
    payload: bytes = b""


class Sandbox:
    """Runs targets in confined children; use it as a context manager, from any thread.

    One run at a time: each evaluator owns one.  The fork server starts with the first run.
    """

    def __init__(
        self,
        *,
        import_path: Sequence[str] = (),
        preload: Sequence[str] = (),
        runs_per_server: int = RUNS_PER_SERVER,
        answer_cap_bytes: int = ANSWER_CAP_BYTES,
        probe: Callable[[], LayerReport] = probe_layers,
        unsafe_no_sandbox: bool = False,
        unsafe_without: Collection[str] = (),
    ) -> None:
        """Find out which layers there are.

        Args:
            import_path: Further folders from which targets are imported.
            preload: Modules to import before any child is confined, besides the usual ones.
            runs_per_server: After how many runs the fork server is replaced.
            answer_cap_bytes: Longest answer that is read.
            probe: Says which layers this system has.
            unsafe_no_sandbox: Run in an ordinary process, with no isolation at all.
            unsafe_without: Layers to leave out, for experiments on the others.

        Raises:
            SandboxUnavailable: A mandatory layer is missing.
        """
        if unsafe_no_sandbox:
            if os.name != "posix":
                raise SandboxUnavailable(
                    f"refusing to run generated code: not supported on {sys.platform}, not even "
                    "without a sandbox. Fix: use Linux, in WSL 2 for example."
                )
            self.layers = no_layers()
        else:
            self.layers = probe().without(unsafe_without)
            self.layers.require()
        self._is_plain = unsafe_no_sandbox
        self._roots = launch.import_roots(import_path)
        self._preload = tuple(preload)
        self._runs_per_server = runs_per_server
        self._answer_cap_bytes = answer_cap_bytes
        self._server: ForkServer | None = None
        self._owner_pid = os.getpid()
        self._lock = threading.Lock()
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def server_pid(self) -> int | None:
        """Process id of the fork server, if one is running."""
        return None if self._server is None else self._server.pid

    def close(self) -> None:
        """End the fork server; harmless if done twice."""
        with self._lock:
            self._is_closed = True
            self._drop_server()

    def start(self) -> None:
        """Start the fork server now rather than with the first run."""
        with self._lock:
            if not self._is_plain:
                self._ready_server()

    def run(
        self,
        request: Mapping[str, object],
        *,
        target: str,
        wall_seconds: float = WALL_SECONDS,
        cpu_seconds: int | None = None,
        memory_bytes: int = MEMORY_BYTES,
        cold: bool = False,
    ) -> ChildAnswer:
        """Call `target` with `request` in a confined child.

        Args:
            request: Plain data, as JSON knows it; may be untrusted.
            target: "module:function" to call, taking the request and returning bytes.  Trusted:
                never take it from a request.
            wall_seconds: When to kill the child.
            cpu_seconds: CPU time of the child; by default a little more than `wall_seconds`.
            memory_bytes: Address space of the child, interpreter included.
            cold: Use a fresh fork server for this run alone.

        Raises:
            WorkerError: The target cannot be imported, or no worker process can be started.
            TypeError: The request is not plain data.
        """
        data = encode_request(request)
        job = Job(
            target=target,
            layers=tuple(name for name in self.layers.active if name != "bubblewrap"),
            cpu_seconds=cpu_seconds or math.ceil(wall_seconds) + 1,
            memory_bytes=memory_bytes,
        )
        with self._lock, contextlib.ExitStack() as stack:
            if self._is_closed:
                raise WorkerError("the sandbox is closed")
            if self._is_plain:
                return self._run_plain(stack, data, job, wall_seconds)
            return self._run_forked(stack, data, job, wall_seconds, cold=cold)

    def _run_forked(
        self,
        stack: contextlib.ExitStack,
        data: bytes,
        job: Job,
        wall_seconds: float,
        *,
        cold: bool,
    ) -> ChildAnswer:
        request = _memory_file(stack, data)
        if cold:
            server = self._new_server()
            stack.callback(server.close)
        else:
            server = self._ready_server()
        pipes = _Pipes(stack)
        try:
            child = server.begin(job, (request, *pipes.writers))
        except ServerLost:
            # It died between two runs; nothing was begun, so a new one may try.
            if cold:
                raise WorkerError("the worker process ended before its first run") from None
            self._drop_server()
            server = self._ready_server()
            try:
                child = server.begin(job, (request, *pipes.writers))
            except ServerLost as exc:
                self._drop_server()
                raise WorkerError(f"the worker process ended twice: {exc}") from exc
        is_abnormal = True
        try:
            pipes.close_writers()
            seen = self._supervise(child, pipes, wall_seconds)
            if child.failure is not None:
                raise WorkerError(f"cannot run {job.target!r}: {child.failure}")
            verdict = _judge(seen, job, child.lost)
            is_abnormal = _is_abnormal(seen, verdict, child.lost)
        finally:
            child.close()
            if not cold and (is_abnormal or server.runs >= self._runs_per_server):
                self._drop_server()
        held = (*(seen.reader.layers or ()), *(("bubblewrap",) if self.layers.bwrap else ()))
        return _answer(seen, verdict, self.layers.held(held))

    def _run_plain(
        self, stack: contextlib.ExitStack, data: bytes, job: Job, wall_seconds: float
    ) -> ChildAnswer:
        pipes = _Pipes(stack)
        answer, stdout, stderr = pipes.writers
        child = PlainChild(
            target=job.target,
            request=data,
            answer=answer,
            stdout=stdout,
            stderr=stderr,
            roots=self._roots,
            memory_bytes=job.memory_bytes,
        )
        stack.callback(child.close)
        pipes.close_writers()
        seen = self._supervise(child, pipes, wall_seconds)
        return _answer(seen, _judge(seen, job, None), self.layers)

    def _supervise(self, child: ChildHandle, pipes: _Pipes, wall_seconds: float) -> Observation:
        answer, stdout, stderr = pipes.readers
        return supervise(
            child,
            answer=answer,
            stdout=stdout,
            stderr=stderr,
            wall_seconds=wall_seconds,
            answer_cap_bytes=self._answer_cap_bytes,
        )

    def _ready_server(self) -> ForkServer:
        if self._server is not None and self._owner_pid != os.getpid():
            # This process is a fork of the one that owns the server.
            self._server.forget()
            self._server = None
        if self._server is None:
            self._server = self._new_server()
            self._owner_pid = os.getpid()
        return self._server

    def _new_server(self) -> ForkServer:
        is_scrubbed = "environment" in self.layers.active
        return ForkServer.start(
            roots=self._roots,
            preload=self._preload,
            bwrap=self.layers.bwrap,
            environment=None if is_scrubbed else os.environ,
        )

    def _drop_server(self) -> None:
        if self._server is not None:
            if self._owner_pid == os.getpid():
                self._server.close()
            else:
                self._server.forget()
            self._server = None


class _Pipes:
    """Answer, stdout and stderr of one run."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        pairs = [os.pipe() for _ in range(3)]
        self.readers = tuple(pair[0] for pair in pairs)
        self.writers = tuple(pair[1] for pair in pairs)
        self._open = {descriptor for pair in pairs for descriptor in pair}
        stack.callback(self._close, frozenset(self._open))

    def close_writers(self) -> None:
        """Leave the write ends to the child."""
        self._close(frozenset(self.writers))

    def _close(self, descriptors: frozenset[int]) -> None:
        for descriptor in descriptors & self._open:
            os.close(descriptor)
        self._open -= descriptors


def _memory_file(stack: contextlib.ExitStack, data: bytes) -> int:
    """Return the descriptor of a sealed memory file holding `data`."""
    import fcntl

    descriptor = os.memfd_create("request", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    stack.callback(os.close, descriptor)
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def _judge(seen: Observation, job: Job, lost: str | None) -> _Verdict:
    """Decide on the status; what the parent saw itself counts before what the child said."""
    exit_code, number = _split_status(seen)
    reader = seen.reader
    if seen.frame_error is not None:
        too_large = seen.frame_error.reason == "too_large" and reader.layers is not None
        status = AnswerStatus.ANSWER_TOO_LARGE if too_large else AnswerStatus.PROTOCOL_ERROR
        return _Verdict(status=status, detail=str(seen.frame_error))
    if seen.is_too_loud:
        total = seen.stdout.total + seen.stderr.total
        return _Verdict(status=AnswerStatus.OUTPUT_LIMIT, detail=f"it printed {total:,} bytes")
    if seen.is_late:
        return _Verdict(status=AnswerStatus.TIMEOUT, detail="the wall clock ran out")
    if lost is not None:
        return _Verdict(status=AnswerStatus.CRASHED, detail=f"the fork server was lost: {lost}")
    if number is not None:
        return _judge_signal(seen, job, number)
    if reader.closing is FrameKind.REFUSED:
        return _Verdict(status=AnswerStatus.REFUSED, detail=_text(reader.body))
    if reader.closing is FrameKind.MEMORY:
        return _Verdict(status=AnswerStatus.MEMORY, detail="it ran out of memory")
    if reader.closing is FrameKind.ERROR:
        return _Verdict(status=AnswerStatus.CRASHED, detail=_text(reader.body))
    if exit_code != 0:
        return _Verdict(status=AnswerStatus.CRASHED, detail=f"it ended with exit code {exit_code}")
    if reader.closing is FrameKind.ANSWER:
        return _Verdict(status=AnswerStatus.OK, payload=reader.body)
    what = "in the middle of an answer" if reader.has_partial else "without an answer"
    return _Verdict(status=AnswerStatus.PROTOCOL_ERROR, detail=f"it ended {what}")


def _is_abnormal(seen: Observation, verdict: _Verdict, lost: str | None) -> bool:
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


def _judge_signal(seen: Observation, job: Job, number: int) -> _Verdict:
    cpu_seconds = seen.ending.cpu_seconds if seen.ending is not None else None
    if number in (signal.SIGXCPU, signal.SIGKILL) and (cpu_seconds or 0) > job.cpu_seconds - 0.5:
        return _Verdict(status=AnswerStatus.TIMEOUT, detail="its CPU time ran out")
    if number == signal.SIGKILL:
        detail = "the system killed it, most likely for want of memory"
        return _Verdict(status=AnswerStatus.MEMORY, detail=detail)
    name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
    return _Verdict(status=AnswerStatus.CRASHED, detail=f"it ended by signal {name}")


def _answer(seen: Observation, verdict: _Verdict, layers: LayerReport) -> ChildAnswer:
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
