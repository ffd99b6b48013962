"""`solve` and `asolve`: from a task to the fastest kernel that is proved correct."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from os import environ as process_environ
from pathlib import Path
from secrets import randbits
from typing import TYPE_CHECKING, Any

from nkiwright import tasks
from nkiwright.budget import Budget
from nkiwright.candidate import Candidate, best_of
from nkiwright.certificate import make_certificate
from nkiwright.config import Config, Settings
from nkiwright.config import load as load_config
from nkiwright.errors import NkiwrightError, redact
from nkiwright.evaluate import Evaluation, JudgeOptions
from nkiwright.events import (
    BudgetWarning,
    Event,
    RunFinished,
    RunStarted,
    StrategyNote,
)
from nkiwright.executor import EvaluatorPool
from nkiwright.llm.registry import is_autoschedule, make_model
from nkiwright.llm.replay import Recorder, ReplayModel, read_judge_seed
from nkiwright.loop.graph import build_graph
from nkiwright.loop.nodes import Nodes
from nkiwright.prompts import PromptLibrary
from nkiwright.resources import version
from nkiwright.result import BaselineResult, Result, UsageTotal, Winner
from nkiwright.store import RunFolder, RunRecord, RunStore
from nkiwright.strategies import BestOfN
from nkiwright.tasks import Task
from nkiwright.writers import Writer
from nkiwright.writers.model import ModelWriter

if TYPE_CHECKING:
    from nkiwright.llm.base import Model

OnEvent = Callable[[Event], None]
AUTOSCHEDULE_SAMPLES = 32
"""Plans that `autoschedule` tries unless told otherwise."""


class Interrupt:
    """Asks a running solve to finish early and keep what it found; safe from any thread."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Ask to stop."""
        self._event.set()

    def is_set(self) -> bool:
        """Whether stopping was asked for."""
        return self._event.is_set()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What the parts of one solve share."""

    task: Task
    settings: Settings
    folder: RunFolder
    options: JudgeOptions
    pool: EvaluatorPool
    budget: Budget
    emit: OnEvent
    start: float


def solve(task: str | Path | Task, **options: Any) -> Result:
    """Solve a task and return the result; takes what `asolve` takes.

    Works inside a running event loop too (in a thread of its own).
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(asolve(task, **options))
    found: list[Result] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(asyncio.run(asolve(task, **options)))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="nkiwright-solve")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


async def asolve(
    task: str | Path | Task,
    *,
    model: str | Model | None = None,
    config: Config | None = None,
    on_event: OnEvent | None = None,
    interrupt: Interrupt | None = None,
    pool: EvaluatorPool | None = None,
    environ: Mapping[str, str] | None = None,
    record: Path | None = None,
    unsafe_no_sandbox: bool = False,
    **settings: Any,
) -> Result:
    """Solve a task.

    Args:
        task: Name or folder of a task, or a loaded task.
        model: `provider:model`, `replay:FILE`, `autoschedule`, or a model object; default from
            configuration, else `autoschedule`.
        config: Loaded configuration; default is to load it as the command line does.
        on_event: Called with every event of the run.
        interrupt: Set it to finish early with what was found.
        pool: Evaluators to share between solves; default is a pool of this call's own.
        environ: Environment variables; default is the process's.
        record: File to append every model call to, for `replay:`.
        unsafe_no_sandbox: Run generated code without isolation; recorded in the result.
        **settings: Fields of `nkiwright.config.Settings`, such as `samples=4` or `max_usd=0.5`.

    Returns:
        The result; `solved` says whether a correct kernel was found.

    Raises:
        NkiwrightError: The task, the configuration, the model or the sandbox is at fault.
    """
    environ = process_environ if environ is None else environ
    if isinstance(model, str):
        settings["model"] = model
    if config is None or settings:
        config = load_config(settings, environ=environ, project_dir=Path.cwd())
    loaded = task if isinstance(task, Task) else tasks.load(task)
    chosen = config.settings
    secret = randbits(62)
    start = time.monotonic()
    async with AsyncExitStack() as stack:
        if pool is None:
            pool = await stack.enter_async_context(
                EvaluatorPool(workers=chosen.workers or 2, unsafe_no_sandbox=unsafe_no_sandbox)
            )
        spec = chosen.model or "autoschedule"
        made: Model | None = None
        if not isinstance(model, str) and model is not None:
            made = model
        elif not is_autoschedule(spec):
            made = make_model(
                spec,
                base_url=chosen.base_url,
                environ=environ,
                timeout_seconds=chosen.timeout_seconds,
            )
        if made is not None and record is not None:
            secret = read_judge_seed(record) or secret
            made = Recorder(made, record, judge_seed=secret)
        if isinstance(made, ReplayModel):
            secret = made.judge_seed or secret
        name = made.name if made is not None else "autoschedule"
        folder = RunStore(chosen.runs_dir).create(
            RunRecord(
                task=loaded.name,
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                config={**{row[0]: row[1] for row in config.rows()}, "model": name},
                seeds={"seed": chosen.seed},
                versions={"nkiwright": version()},
            ),
            now=datetime.now(UTC),
        )

        def emit(event: Event) -> None:
            folder.append(event, seconds=time.monotonic() - start)
            if on_event is not None:
                on_event(event)

        budget = _budget(chosen, emit)
        run = _Run(
            task=loaded,
            settings=chosen,
            folder=folder,
            options=JudgeOptions(machine=chosen.machine, nki=chosen.nki, seed=secret),
            pool=pool,
            budget=budget,
            emit=emit,
            start=start,
        )
        emit(
            RunStarted(
                run=folder.run,
                task=loaded.name,
                model=name,
                machine=chosen.machine,
                nki=chosen.nki,
                seed=chosen.seed,
            )
        )
        try:
            return await _solve(run, made, name, interrupt or Interrupt(), secret)
        except NkiwrightError as error:
            if folder.record().result is None:
                reason = redact(str(error))
                folder.finish({"task": loaded.name, "solved": False, "reason": reason})
            raise


async def _solve(
    run: _Run, model: Model | None, name: str, interrupt: Interrupt, secret: int
) -> Result:
    floor_ns, bound_ns = await run.pool.bounds(run.task.folder, run.options)
    baseline = await _baseline(run)
    limit = None if baseline is None or baseline.latency_ns is None else 50 * baseline.latency_ns
    options = JudgeOptions(
        machine=run.options.machine,
        nki=run.options.nki,
        seed=secret,
        max_latency_ns=limit,
    )
    writer = _writer(run, model, bound_ns, baseline)
    samples = run.settings.samples
    if model is None and "samples" not in run.settings.model_fields_set:
        samples = AUTOSCHEDULE_SAMPLES
    workers = run.pool.workers
    nodes = Nodes(
        writer=writer,
        judge=_judging(run, options),
        strategy=BestOfN(samples=samples, width=samples if writer.can_repair else 2 * workers),
        max_repairs=run.settings.repairs,
        baseline_ns=None if baseline is None else baseline.latency_ns,
        emit=run.emit,
        keep=lambda candidate: _keep(run.folder, candidate),
        should_stop=lambda: _stop_reason(run, interrupt),
    )
    if isinstance(writer, ModelWriter):
        estimate = writer.estimate(samples=samples, repairs=run.settings.repairs)
        run.emit(StrategyNote(text=estimate.text))
    reason = await _drive(run, nodes)
    result = await _finish(run, nodes, name, reason, baseline, floor_ns, bound_ns, options)
    if not nodes.candidates and nodes.model_error is not None:
        raise nodes.model_error
    return result


async def _drive(run: _Run, nodes: Nodes) -> str:
    """Run the loop to its end and say why it ended."""
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with AsyncSqliteSaver.from_conn_string(str(run.folder.state_path)) as saver:
        graph = build_graph(nodes, saver)
        final = await graph.ainvoke(
            {"round": 0, "drafted": 0, "width": 0, "candidates": [], "stopped": None},
            {
                "configurable": {"thread_id": run.folder.run},
                "recursion_limit": 10_000,
                "max_concurrency": 64,
            },
        )
    return str(final.get("stopped") or "done")


def _judging(run: _Run, options: JudgeOptions) -> Callable[[str], Any]:
    """Return the judge as a function of the source; equal sources are judged once."""
    seen: dict[str, asyncio.Task[Evaluation]] = {}

    async def judge(source: str) -> Evaluation:
        if source not in seen:
            run.budget.count_evaluation()
            seen[source] = asyncio.create_task(run.pool.evaluate(run.task.folder, source, options))
        return await seen[source]

    return judge


def _stop_reason(run: _Run, interrupt: Interrupt) -> str | None:
    if interrupt.is_set():
        return "interrupted"
    return run.budget.exhausted()


def _budget(settings: Settings, emit: OnEvent) -> Budget:
    def warn(warning: BudgetWarning) -> None:
        emit(warning)

    return Budget(
        max_usd=settings.max_usd,
        max_tokens=settings.max_tokens,
        max_evaluations=settings.max_evaluations,
        max_seconds=settings.max_seconds,
        on_warning=warn,
    )


async def _baseline(run: _Run) -> Evaluation | None:
    """Judge the task's naive kernel; without one there is no speed-up to report."""
    if run.task.baseline_text is None:
        run.emit(StrategyNote(text=f"task {run.task.name} has no baseline.py: no speed-ups"))
        return None
    evaluation = await run.pool.evaluate(run.task.folder, run.task.baseline_text, run.options)
    if not evaluation.is_correct:
        run.emit(StrategyNote(text=f"the task's own baseline is refused: {evaluation.message}"))
        return None
    return evaluation


def _writer(run: _Run, model: Model | None, bound_ns: float, baseline: Evaluation | None) -> Writer:
    if model is None:
        from nkiwright.writers.autoschedule import AutoscheduleWriter

        return AutoscheduleWriter(run.task, machine=run.settings.machine, seed=run.settings.seed)
    return ModelWriter(
        run.task,
        model,
        budget=run.budget,
        prompts=PromptLibrary(),
        emit=run.emit,
        machine=run.settings.machine,
        nki=run.settings.nki,
        bound_ns=bound_ns,
        baseline_ns=None if baseline is None else baseline.latency_ns,
    )


def _keep(folder: RunFolder, candidate: Candidate) -> None:
    evaluation = candidate.evaluation
    data = None if evaluation is None else evaluation.to_json()
    profile = None if data is None else data.pop("profile")
    folder.save_candidate(
        candidate.number,
        kernel=candidate.draft.source,
        evaluation=data or {"problem": candidate.draft.problem},
        profile=profile,
    )


async def _finish(
    run: _Run,
    nodes: Nodes,
    name: str,
    reason: str,
    baseline: Evaluation | None,
    floor_ns: float,
    bound_ns: float,
    options: JudgeOptions,
) -> Result:
    best = best_of(nodes.candidates)
    winner = None
    if best is not None and best.evaluation is not None and best.draft.source is not None:
        trace = await run.pool.chrome_trace(run.task.folder, best.draft.source, options)
        certificate = make_certificate(run.task, best, options, name)
        files: dict[str, Any] = {"kernel.py": best.draft.source, "certificate.json": certificate}
        if trace is not None:
            files["trace.json"] = trace
        source_path = run.folder.save_winner(files) / "kernel.py"
        evaluation = best.evaluation
        winner = Winner(
            candidate=best.number,
            source=best.draft.source,
            source_path=str(source_path),
            latency_ns=evaluation.latency_ns or 0.0,
            speedup=nodes.speedup(evaluation.latency_ns or 0.0),
            bound_fraction=evaluation.bound_fraction,
            error_ratio=evaluation.error_ratio,
            fingerprint=evaluation.fingerprint or "",
            instructions=evaluation.instructions or 0,
            certificate=str(source_path.parent / "certificate.json"),
        )
    judged = [c for c in nodes.candidates if c.evaluation is not None]
    layers = next((c.evaluation.layers for c in judged if c.evaluation and c.evaluation.layers), ())
    if winner is None and reason == "all drafts are judged":
        reason = _why_none(nodes.candidates)
    from nkisim.machine.load import load_machine

    result = Result(
        task=run.task.name,
        model=name,
        nki=run.settings.nki,
        machine=run.settings.machine,
        solved=winner is not None,
        reason=reason,
        winner=winner,
        baseline=None
        if baseline is None
        else BaselineResult(
            name="naive baseline",
            latency_ns=baseline.latency_ns or 0.0,
            bound_fraction=baseline.bound_fraction,
        ),
        tried=len(nodes.candidates),
        correct=sum(c.is_correct for c in nodes.candidates),
        usage=UsageTotal(
            tokens=run.budget.used_tokens,
            usd=run.budget.used_usd,
            evaluations=run.budget.used_evaluations,
            seconds=time.monotonic() - run.start,
        ),
        floor_ns=floor_ns,
        bound_ns=bound_ns,
        seeds={"search": run.settings.seed, "judge": options.seed},
        sandbox=tuple(layers),
        run=str(run.folder.path),
        machine_note=load_machine(run.settings.machine).calibration,
    )
    run.folder.finish(result.to_json())
    run.emit(RunFinished(result=result.to_json()))
    return result


def _why_none(candidates: list[Candidate]) -> str:
    last = [c for c in candidates if c.evaluation is not None]
    if not candidates:
        return "nothing was written"
    if not last:
        return "no reply contained a kernel"
    evaluation = last[-1].evaluation
    assert evaluation is not None
    return f"none of {len(candidates)} kernels is correct; the last: {evaluation.message}"


__all__ = ["Interrupt", "NkiwrightError", "asolve", "solve"]
