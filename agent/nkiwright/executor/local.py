"""A pool of evaluator processes on this machine.

The pool holds the clock: a job that does not end in time, or an evaluator that dies, costs that job
a verdict and the pool a restart, never more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from nkiwright.errors import NkiwrightError, SandboxError, TaskError
from nkiwright.evaluate import Evaluation, JudgeOptions, Stage, Verdict
from nkiwright.evaluate.options import options_to_json
from nkiwright.executor.framing import HEADER, MAX_MESSAGE, pack, unpack

PASSED_ENVIRONMENT = (
    "PATH",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "HOME",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
    "NKI_PRECISE_FP",
)
"""What evaluators inherit; keys never."""

KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 33),
}
"""glibc settings: freed arrays are reused instead of being paged in anew (a float64 reference of
2 Mi elements takes a third of the time).  Other allocators ignore them."""


@dataclass(slots=True)
class _Evaluator:
    process: asyncio.subprocess.Process
    is_warm: bool = False


@dataclass(slots=True, kw_only=True)
class EvaluatorPool:
    """Evaluates kernels in `workers` processes.

    Use as an async context manager.
    """

    workers: int = 2
    job_seconds: float = 120.0
    """Wall clock for one evaluation, tracing included."""
    unsafe_no_sandbox: bool = False
    keep_cases: bool = True
    _free: asyncio.Queue[_Evaluator | None] = field(default_factory=asyncio.Queue)
    _all: set[int] = field(default_factory=set)
    _is_open: bool = False
    restarts: int = 0
    """Evaluators that had to be replaced."""

    async def __aenter__(self) -> Self:
        self._free = asyncio.Queue()
        for _ in range(self.workers):
            self._free.put_nowait(None)
        self._is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_open = False
        while not self._free.empty():
            evaluator = self._free.get_nowait()
            if evaluator is not None:
                await self._stop(evaluator)

    async def evaluate(
        self, task: Path, source: str, options: JudgeOptions, *, secret: int | None = None
    ) -> Evaluation:
        """Judge one kernel and return the verdict; never raises for what the kernel does.

        Args:
            task: The task's folder.
            source: The kernel file.
            options: How to judge.
            secret: Secret to derive input seeds from instead of the options' own.

        Raises:
            TaskError: The task itself is broken.
            SandboxError: Generated code cannot be run safely on this machine.
        """
        job = self._job("evaluate", task, options, source=source, secret=secret)
        try:
            answer = await self._submit(job)
        except TimeoutError:
            return _verdict(
                Verdict.TOO_SLOW, f"judging did not end within {self.job_seconds:g} s of wall clock"
            )
        except _EvaluatorDied as error:
            return _verdict(Verdict.FAILED, str(error))
        if not answer["ok"]:
            return _failed(answer)
        return Evaluation.from_json(answer["evaluation"])

    async def bounds(self, task: Path, options: JudgeOptions) -> tuple[float, float]:
        """Return (floor_ns, bound_ns) of a task at its main shape."""
        answer = await self._submit(self._job("bounds", task, options))
        if not answer["ok"]:
            _failed(answer)
            raise SandboxError(answer["error"])
        return float(answer["floor_ns"]), float(answer["bound_ns"])

    async def chrome_trace(
        self, task: Path, source: str, options: JudgeOptions
    ) -> dict[str, Any] | None:
        """Return the Chrome trace of a kernel that was accepted, or None if it cannot be made."""
        try:
            answer = await self._submit(self._job("trace", task, options, source=source))
        except (TimeoutError, _EvaluatorDied):
            return None
        trace = answer.get("trace")
        return trace if isinstance(trace, dict) else None

    def _job(self, kind: str, task: Path, options: JudgeOptions, **more: object) -> dict[str, Any]:
        return {
            "kind": kind,
            "task": str(task),
            "options": options_to_json(options),
            "unsafe_no_sandbox": self.unsafe_no_sandbox,
            "keep_cases": self.keep_cases,
            **more,
        }

    async def _submit(self, job: dict[str, Any]) -> dict[str, Any]:
        """Run one job on a free evaluator."""
        if not self._is_open:
            raise RuntimeError("the evaluator pool is closed")
        evaluator = await self._free.get()
        try:
            if evaluator is None or evaluator.process.returncode is not None:
                evaluator = await self._start()
            answer = await asyncio.wait_for(self._exchange(evaluator, job), self.job_seconds)
        except BaseException:
            # Timeout, death or cancellation: this evaluator's stream is out of step, replace it.
            if evaluator is not None:
                await asyncio.shield(self._stop(evaluator))
                self.restarts += 1
            self._free.put_nowait(None)
            raise
        self._free.put_nowait(evaluator)
        return answer

    async def _start(self) -> _Evaluator:
        environment = {k: os.environ[k] for k in PASSED_ENVIRONMENT if k in os.environ}
        environment |= {
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            "PYTHONDONTWRITEBYTECODE": "1",
            **KEEP_FREED_MEMORY,
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "nkiwright.executor.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
            limit=MAX_MESSAGE,
        )
        return _Evaluator(process)

    async def _exchange(self, evaluator: _Evaluator, job: dict[str, Any]) -> dict[str, Any]:
        process = evaluator.process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(pack(job))
            await process.stdin.drain()
            (size,) = HEADER.unpack(await process.stdout.readexactly(HEADER.size))
            if size > MAX_MESSAGE:
                raise _EvaluatorDied("the evaluator answered with an oversized message")
            return unpack(await process.stdout.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
            raise _EvaluatorDied(
                "the evaluator process died while judging this kernel (out of memory?)"
            ) from error

    @staticmethod
    async def _stop(evaluator: _Evaluator) -> None:
        process = evaluator.process
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 5.0)


class _EvaluatorDied(Exception):
    """The evaluator's stream ended in the middle of a job."""


def _verdict(verdict: Verdict, message: str) -> Evaluation:
    return Evaluation(verdict=verdict, stage=Stage.MAIN, message=message)


def _failed(answer: dict[str, Any]) -> Evaluation:
    """Raise what concerns the user, return a verdict for what concerns the candidate."""
    kind, message = answer.get("type"), str(answer.get("error", ""))
    if kind == "TaskError":
        raise TaskError(message, hint=answer.get("hint"))
    if kind == "SandboxUnavailable":
        raise SandboxError(message)
    if kind == "memory":
        return _verdict(Verdict.TOO_SLOW, "judging this kernel needs more memory than allowed")
    return _verdict(Verdict.FAILED, message)


__all__ = ["EvaluatorPool", "NkiwrightError"]
