"""Solves every task of a folder with one pool and one budget for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nkiwright import tasks
from nkiwright.api import Interrupt, OnEvent, asolve
from nkiwright.config import Config
from nkiwright.errors import ExitCode, NkiwrightError, TaskError
from nkiwright.executor import EvaluatorPool
from nkiwright.result import Result


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """Results by task, and why the other tasks have none."""

    results: tuple[Result, ...]
    failures: Mapping[str, str]
    """Reason by task, for tasks that could not be solved at all."""
    worst_code: ExitCode

    @property
    def exit_code(self) -> ExitCode:
        """0 if every task has a correct kernel."""
        if self.worst_code is not ExitCode.SOLVED:
            return self.worst_code
        solved = all(result.solved for result in self.results)
        return ExitCode.SOLVED if solved else ExitCode.UNSOLVED

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "schema_version": 1,
            "results": [result.to_json() for result in self.results],
            "failures": dict(self.failures),
        }


async def solve_all(
    folder: Path,
    *,
    config: Config,
    interrupt: Interrupt | None = None,
    on_event: OnEvent | None = None,
    on_error: Callable[[str, str], None] | None = None,
) -> BatchOutcome:
    """Solve the tasks of a folder one after the other; one bad task stops no other.

    Args:
        folder: Folder that holds task folders.
        config: Configuration; its caps hold for each task.
        interrupt: Set it to stop after the kernels in flight.
        on_event: Called with every event.
        on_error: Called with a task's name and the reason why it could not be solved.

    Raises:
        TaskError: The folder holds no task.
    """
    paths = tasks.discover(folder)
    if not paths:
        raise TaskError(f"{folder} holds no tasks", hint="a task is a folder with a task.toml")
    interrupt = interrupt or Interrupt()
    results: list[Result] = []
    failures: dict[str, str] = {}
    worst = ExitCode.SOLVED
    async with EvaluatorPool(workers=config.settings.workers or 2) as pool:
        for path in paths:
            if interrupt.is_set():
                break
            try:
                results.append(
                    await asolve(
                        path, config=config, on_event=on_event, interrupt=interrupt, pool=pool
                    )
                )
            except NkiwrightError as error:
                failures[path.name] = str(error)
                worst = max(worst, ExitCode(error.exit_code))
                if on_error is not None:
                    on_error(path.name, str(error))
    return BatchOutcome(tuple(results), failures, worst)
