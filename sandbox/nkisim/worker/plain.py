"""The same target in an ordinary process without isolation, for systems that have none.

Used only when the caller says so.  The environment is scrubbed, output is capped and the clock is
kept as ever, since these need no help from the system; nothing else stands between the code and the
user's files.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

from nkisim.worker import launch
from nkisim.worker.child import ANSWER_DESCRIPTOR, answer_request, say_hello
from nkisim.worker.errors import WorkerError
from nkisim.worker.supervise import Ending


class PlainChild:
    """A child without isolation; implements `supervise.ChildHandle`."""

    def __init__(
        self,
        *,
        target: str,
        request: bytes,
        answer: int,
        stdout: int,
        stderr: int,
        roots: Sequence[str],
        memory_bytes: int,
    ) -> None:
        config = {"answer": answer, "target": target, "memory_bytes": memory_bytes}
        with tempfile.TemporaryFile() as file:
            file.write(request)
            file.seek(0)
            try:
                self._process = subprocess.Popen(
                    launch.python_command("nkisim.worker.plain:main", roots, config),
                    env=launch.scrubbed_environment(),
                    stdin=file,
                    stdout=stdout,
                    stderr=stderr,
                    pass_fds=(answer,),
                    start_new_session=True,
                )
            except OSError as exc:
                raise WorkerError(f"the worker process did not start: {exc}") from exc

    def watched(self) -> Sequence[int]:
        """Nothing portable tells of its end; it is asked."""
        return ()

    def poll(self) -> Ending | None:
        """Ask whether it has ended."""
        code = self._process.poll()
        if code is None:
            return None
        return Ending(status=-code if code < 0 else code << 8)

    def kill(self) -> None:
        """Kill it; what it may have started itself is beyond reach."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def abandon(self) -> None:
        """Kill it; there is nobody in between."""
        self.kill()

    def close(self) -> None:
        """Make sure that it has ended."""
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)


def main(config: Mapping[str, object]) -> None:
    """Answer the request on stdin without any confinement."""
    from nkisim.worker.forkserver import find_target

    name, answer, memory_bytes = config["target"], config["answer"], config["memory_bytes"]
    assert isinstance(name, str)
    assert isinstance(answer, int)
    assert isinstance(memory_bytes, int)
    sys.argv = ["nkisim"]
    data = sys.stdin.buffer.read()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(answer, ANSWER_DESCRIPTOR)
    for descriptor in {nothing, answer} - {0, ANSWER_DESCRIPTOR}:
        os.close(descriptor)
    target = find_target(name)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # text of a lost child
    _limit_memory(memory_bytes)
    say_hello(())
    os._exit(answer_request(target, data))


def _limit_memory(memory_bytes: int) -> None:
    """Spare the user's machine where the system can."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    except (ImportError, OSError, ValueError):
        return
