"""The parent's handle of one fork server and of the children that it forks."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from nkisim.worker import bubblewrap, launch
from nkisim.worker.errors import WorkerError
from nkisim.worker.forkserver import MESSAGE_BYTES
from nkisim.worker.supervise import GRACE_SECONDS, Ending

START_SECONDS = 60.0
"""How long a server may take to import everything, on a very busy machine."""


class ServerLost(Exception):
    """The fork server has gone or keeps silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the fork server is told about one run; all of it is chosen by the parent."""

    target: str
    layers: tuple[str, ...]
    cpu_seconds: int
    memory_bytes: int


class ForkServer:
    """A running fork server; used by one thread at a time."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        control: socket.socket,
        complaints: IO[bytes],
        handle: int,
    ) -> None:
        self._process = process
        self._control = control
        self._complaints = complaints
        self._handle = handle
        self._loaded: set[str] = set()
        self.runs = 0
        """How many children it was asked for."""

    @classmethod
    def start(
        cls,
        *,
        roots: Sequence[str],
        preload: Sequence[str] = (),
        bwrap: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> ForkServer:
        """Start a server and wait until it has imported everything.

        Args:
            roots: Folders to import from.
            preload: Modules to import beforehand, besides the usual ones.
            bwrap: Path of bubblewrap, empty for no wrapping.
            environment: Instead of the scrubbed one.

        Raises:
            WorkerError: It did not become ready.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Closed by `close`, which is why it is no context manager.
        complaints = tempfile.TemporaryFile()  # noqa: SIM115
        config = {"control": theirs.fileno(), "preload": list(preload)}
        command = launch.python_command("nkisim.worker.forkserver:main", roots, config)
        if bwrap:
            command = bubblewrap.wrap(bwrap, command, roots)
        try:
            with theirs:
                process = subprocess.Popen(
                    command,
                    env=launch.scrubbed_environment() if environment is None else environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=complaints,
                    pass_fds=(theirs.fileno(),),
                    cwd="/",
                    start_new_session=True,
                )
        except OSError as exc:
            ours.close()
            complaints.close()
            raise WorkerError(f"the worker process did not start: {exc}") from exc
        server = cls(process, ours, complaints, -1)
        try:
            message, descriptors = server._receive(START_SECONDS)
            if message.get("event") != "ready" or len(descriptors) != 1:
                raise ServerLost(f"its first words are {message!r:.200}")
            server._handle = descriptors[0]
        except ServerLost as exc:
            text = server._complaint()
            server.close()
            raise WorkerError(f"the worker process did not get ready: {exc}{text}") from exc
        except BaseException:
            server.close()
            raise
        return server

    @property
    def pid(self) -> int:
        """Process id as we see it; a wrapped server is not the process that we started."""
        for line in Path(f"/proc/self/fdinfo/{self._handle}").read_text().splitlines():
            if line.startswith("Pid:"):
                return int(line.removeprefix("Pid:"))
        return self._process.pid

    def load(self, target: str) -> None:
        """Let the server import a target, if it has not yet; takes none of a run's time.

        Raises:
            ServerLost: The server has gone.
            WorkerError: The target cannot be had.
        """
        if target in self._loaded:
            return
        self._send({"load": target})
        message, _ = self._receive(START_SECONDS)
        if message.get("event") != "loaded":
            raise WorkerError(f"cannot run {target!r}: {message.get('message')}")
        self._loaded.add(target)

    def begin(self, job: Job, descriptors: Sequence[int]) -> ForkedChild:
        """Ask for a child.

        Args:
            job: What it shall do.
            descriptors: Request, answer, stdout and stderr; the caller closes its own copies.

        Raises:
            ServerLost: Nothing was begun; a new server may be tried.
        """
        message = {
            "target": job.target,
            "layers": job.layers,
            "cpu_seconds": job.cpu_seconds,
            "memory_bytes": job.memory_bytes,
        }
        self._send(message, descriptors)
        self.runs += 1
        return ForkedChild(self)

    def kill(self) -> None:
        """End the server, and with it every child that it has.

        A wrapper is left alone: it ends after the server, which it alone can reap.
        """
        if self._handle >= 0:
            _kill_handle(self._handle)
        else:
            self._process.kill()

    def close(self) -> None:
        """End the server, wait for it and give back all descriptors."""
        self._control.close()
        self.kill()
        try:
            self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        self._complaints.close()

    def forget(self) -> None:
        """Give back the descriptors without ending the server: it belongs to another process."""
        self._control.close()
        self._complaints.close()
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _send(self, message: Mapping[str, object], descriptors: Sequence[int] = ()) -> None:
        """Send one message; raises `ServerLost` if nobody takes it."""
        self._control.settimeout(GRACE_SECONDS)
        try:
            socket.send_fds(self._control, [json.dumps(message).encode()], list(descriptors))
        except OSError as exc:
            raise ServerLost(str(exc)) from exc

    def _receive(self, seconds: float) -> tuple[Mapping[str, object], list[int]]:
        """Return the next message; raises `ServerLost` if none comes."""
        self._control.settimeout(seconds)
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 4)
        except TimeoutError as exc:
            raise ServerLost("it keeps silent") from exc
        except OSError as exc:
            raise ServerLost(str(exc)) from exc
        if not data:
            raise ServerLost("it ended")
        try:
            message = json.loads(data)
        except ValueError as exc:
            raise ServerLost(f"it sent {data!r:.200}") from exc
        if not isinstance(message, dict):
            raise ServerLost(f"it sent {data!r:.200}")
        return message, descriptors

    def _complaint(self) -> str:
        self._complaints.seek(0)
        text = self._complaints.read().decode("utf-8", "replace").strip()
        return f"\n{text[-4000:]}" if text else ""


class ForkedChild:
    """A child of a fork server; implements `supervise.ChildHandle`."""

    def __init__(self, server: ForkServer) -> None:
        self._server = server
        self._handle = -1
        self._dead_since: float | None = None
        self.lost: str | None = None
        """Why the server gave no account of the child, if so."""

    def watched(self) -> Sequence[int]:
        """Watch the server's words; the child's own end is looked at as well."""
        if self._handle >= 0 and self._dead_since is None:
            return (self._server._control.fileno(), self._handle)
        return (self._server._control.fileno(),)

    def poll(self) -> Ending | None:
        """Read the server's words, if any."""
        while select.select([self._server._control], [], [], 0)[0]:
            try:
                message, descriptors = self._server._receive(0.1)
            except ServerLost as exc:
                return self._lose(str(exc))
            match message:
                case {"event": "started"} if len(descriptors) == 1 and self._handle < 0:
                    self._handle = descriptors[0]
                case {
                    "event": "ended",
                    "status": int() as status,
                    "cpu_seconds": float() as cpu_seconds,
                    "max_rss_bytes": int() as max_rss_bytes,
                }:
                    return Ending(
                        status=status, cpu_seconds=cpu_seconds, max_rss_bytes=max_rss_bytes
                    )
                case _:
                    for descriptor in descriptors:
                        os.close(descriptor)
                    return self._lose(f"it sent {message!r:.200}")
        if self._dead_since is not None:
            if time.monotonic() > self._dead_since + GRACE_SECONDS:
                return self._lose("it keeps silent about a child that has ended")
        elif self._handle >= 0 and _wait_handle(self._handle, 0):
            self._dead_since = time.monotonic()
        return None

    def kill(self) -> None:
        """Kill the child alone; if it is unknown yet, the server as well."""
        if self._handle >= 0:
            _kill_handle(self._handle)
        else:
            self.abandon()

    def abandon(self) -> None:
        """Kill the server, whose children die with it."""
        self.lost = self.lost or "it did not report the end of a killed child"
        if self._handle >= 0:
            _kill_handle(self._handle)
        self._server.kill()

    @property
    def is_started(self) -> bool:
        """Whether the server has said that the child exists."""
        return self._handle >= 0

    def close(self) -> None:
        """Make sure that the child has ended and give back its descriptor."""
        if self._handle >= 0:
            _kill_handle(self._handle)
            _wait_handle(self._handle, GRACE_SECONDS)
            os.close(self._handle)
            self._handle = -1

    def _lose(self, reason: str) -> Ending:
        self.lost = reason
        self.abandon()
        return Ending(status=None)


def _kill_handle(handle: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(handle, signal.SIGKILL)


def _wait_handle(handle: int, seconds: float) -> bool:
    """Return whether the process has ended within this time."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
