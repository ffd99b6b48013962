"""The parent's side: run a trusted target on untrusted data in a confined child.

`Sandbox.run` always returns, whatever the child or the fork server does, and says what happened as
one of a closed set of states.  The payload of an answer is bytes that generated code may have
chosen: decode it strictly.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import Self

from nkisim.worker import launch
from nkisim.worker.errors import SandboxUnavailable, WorkerError
from nkisim.worker.layers import LayerReport, no_layers, probe_layers
from nkisim.worker.limits import MEMORY_BYTES
from nkisim.worker.plain import PlainChild
from nkisim.worker.protocol import ANSWER_CAP_BYTES, encode_request
from nkisim.worker.server import START_SECONDS, ForkServer, Job, ServerLost
from nkisim.worker.supervise import ChildHandle, Observation, supervise
from nkisim.worker.verdict import ChildAnswer, conclude, is_abnormal, judge

WALL_SECONDS = 20.0
RUNS_PER_SERVER = 500
"""After so many children a server is replaced: they all share its memory layout."""


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

    def start(self, target: str | None = None) -> None:
        """Start the fork server, and import a target, now rather than with the first run."""
        with self._lock:
            if not self._is_plain:
                server = self._ready_server()
                if target is not None:
                    server.load(target)

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
                never take it from a request.  A function `prepare` of its module is called once
                in the fork server, to read what no confined child can.
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
        for _ in range(2):
            server = self._new_server() if cold else self._ready_server()
            if cold:
                stack.callback(server.close)
            pipes = _Pipes(stack)
            try:
                server.load(job.target)
                child = server.begin(job, (request, *pipes.writers))
            except ServerLost:
                if not cold:
                    self._drop_server()
                continue
            must_go = True
            try:
                pipes.close_writers()
                seen = self._supervise(child, pipes, wall_seconds)
                verdict = judge(seen, cpu_limit_seconds=job.cpu_seconds, lost=child.lost)
                must_go = is_abnormal(seen, verdict, child.lost)
            finally:
                is_unborn = child.lost is not None and not child.is_started
                child.close()
                if not cold and (must_go or server.runs >= self._runs_per_server):
                    self._drop_server()
            if is_unborn and not seen.is_condemned:
                # The server had died before; no source has been looked at.
                continue
            held = (*(seen.reader.layers or ()), *(("bubblewrap",) if self.layers.bwrap else ()))
            return conclude(seen, verdict, self.layers.held(held))
        raise WorkerError("the worker process ended twice before it began a run")

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
        seen = self._supervise(child, pipes, wall_seconds, start_seconds=START_SECONDS)
        if seen.reader.layers is None and not seen.is_condemned:
            lines = seen.stderr.text.strip().splitlines() or ["it ended without a word"]
            raise WorkerError(f"cannot run {job.target!r}: {lines[-1]}")
        verdict = judge(seen, cpu_limit_seconds=job.cpu_seconds, lost=None)
        return conclude(seen, verdict, self.layers)

    def _supervise(
        self,
        child: ChildHandle,
        pipes: _Pipes,
        wall_seconds: float,
        *,
        start_seconds: float = 0.0,
    ) -> Observation:
        answer, stdout, stderr = pipes.readers
        return supervise(
            child,
            answer=answer,
            stdout=stdout,
            stderr=stderr,
            wall_seconds=wall_seconds,
            answer_cap_bytes=self._answer_cap_bytes,
            start_seconds=start_seconds,
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
