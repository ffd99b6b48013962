"""An evaluator process: reads jobs from stdin, answers on stdout.

Runs our own code on Programs that generated code shaped, so it holds no keys, has memory limits,
and may be killed at any moment by the pool.  It owns one sandbox for the kernels' Python.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import Any, BinaryIO

from nkiwright.executor.framing import pack, read_message

DEFAULT_MEMORY_BYTES = 12 << 30


def main() -> int:
    """Serve jobs until stdin ends."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    resource.setrlimit(resource.RLIMIT_AS, (DEFAULT_MEMORY_BYTES, DEFAULT_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    jobs, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # anything printed goes to stderr, never into the protocol
    server = Server()
    try:
        serve(jobs, answers, server)
    finally:
        server.close()
    return 0


def serve(jobs: BinaryIO, answers: BinaryIO, server: Server) -> None:
    """Answer every job of the stream."""
    while (job := read_message(jobs)) is not None:
        answers.write(pack(server.answer(job)))
        answers.flush()


class Server:
    """Keeps one judge per task and options, and one sandbox."""

    def __init__(self) -> None:
        self._judges: dict[str, Any] = {}
        self._sandbox: Any = None
        self._unsafe = False

    def answer(self, job: dict[str, Any]) -> dict[str, Any]:
        """Do one job and return its answer."""
        from nkiwright.errors import NkiwrightError

        try:
            if job["kind"] == "ping":
                return {"ok": True}
            judge = self._judge(job)
            if job["kind"] == "evaluate":
                evaluation = judge.evaluate(job["source"], secret=job.get("secret"))
                return {"ok": True, "evaluation": evaluation.to_json()}
            if job["kind"] == "bounds":
                bounds = judge.bounds
                return {"ok": True, "floor_ns": bounds.floor_ns, "bound_ns": bounds.bound_ns}
            if job["kind"] == "trace":
                return {"ok": True, "trace": judge.chrome_trace(job["source"])}
            return {"ok": False, "error": f"unknown job {job['kind']!r}", "hint": None}
        except NkiwrightError as error:
            return {
                "ok": False,
                "error": str(error),
                "hint": error.hint,
                "type": type(error).__name__,
            }
        except MemoryError:
            self._judges.clear()
            return {"ok": False, "error": "the evaluator ran out of memory", "type": "memory"}
        except Exception as error:
            return {
                "ok": False,
                "error": f"{type(error).__name__}: {error}"[:2000],
                "type": type(error).__name__,
            }

    def _judge(self, job: dict[str, Any]) -> Any:
        from nkiwright import tasks
        from nkiwright.evaluate import Judge
        from nkiwright.evaluate.options import options_from_json

        options = options_from_json(job["options"])
        key = repr((job["task"], job["options"]))
        if key not in self._judges:
            if len(self._judges) > 3:
                self._judges.clear()
            sandbox = self._get_sandbox(bool(job.get("unsafe_no_sandbox", False)))
            self._judges[key] = Judge(
                tasks.load(job["task"]),
                options,
                sandbox,
                keep_cases=bool(job.get("keep_cases", True)),
            )
        return self._judges[key]

    def _get_sandbox(self, unsafe: bool) -> Any:
        from nkisim.worker.runner import Sandbox

        if self._sandbox is None or unsafe != self._unsafe:
            self.close()
            self._sandbox = Sandbox(unsafe_no_sandbox=unsafe)
            self._unsafe = unsafe
        return self._sandbox

    def close(self) -> None:
        """End the sandbox's processes."""
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None


if __name__ == "__main__":
    sys.exit(main())
