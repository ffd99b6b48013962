"""Judges kernels for one task: the cascade of design, one candidate at a time.

The kernel's Python runs only in the sandboxed child, which never sees a value.  Everything here is
our own code working on the Program that came back.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from nkisim.api import TraceFailed, TraceResult, trace_bundle
from nkisim.dtypes import DTYPES
from nkisim.errors import (
    Diagnostic,
    DiagnosticError,
    NkisimError,
    OutOfFuel,
    ProgramError,
    UnsupportedError,
)
from nkisim.execute.fuel import Fuel
from nkisim.execute.interpreter import Execution, Interpreter
from nkisim.execute.result import TripLog
from nkisim.frontend.arguments import TensorSpec as TensorArgument
from nkisim.frontend.static import check_source
from nkisim.ir.fingerprint import fingerprint
from nkisim.machine.load import load_machine
from nkisim.profile.chrome import chrome_trace
from nkisim.profile.model import Profile, profile_program
from nkisim.profile.text import render_text
from nkisim.profile.what_if import what_if
from nkisim.sources import from_text
from nkisim.worker.runner import Sandbox
from nkiwright.evaluate.bounds import Bounds, bounds_of
from nkiwright.evaluate.model import Evaluation, Stage, Verdict
from nkiwright.evaluate.tolerance import Comparison, compare
from nkiwright.tasks import Dims, Float64Array, Task

Array = npt.NDArray[np.generic]
WHAT_IF_INSTRUCTIONS = 20_000
"""Longest Program that is timed again with one thing idealised, for the writer."""
JUDGE_FUEL = Fuel(instructions=1_000_000, loop_trips=200_000)
"""Ends a runaway device loop within seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeOptions:
    """How to judge."""

    machine: str = "trn2"
    nki: str = "0.6"
    """NKI version whose rules are enforced."""
    seed: int = 0
    """Secret of the run: every input seed is derived from it."""
    seeds: int = 3
    """Fresh inputs at the main shape."""
    entry: str = "kernel"
    trace_seconds: float = 8.0
    """Wall clock for tracing one shape."""
    max_latency_ns: float | None = None
    """Emulated time above which a kernel is not worth more work; None for no limit."""
    fuel: Fuel = JUDGE_FUEL
    static_rules: bool = True
    with_profile: bool = True


@dataclass(frozen=True, slots=True)
class Case:
    """Inputs of one shape and seed with what is expected of them."""

    inputs: Mapping[str, Array]
    expected: tuple[Float64Array, ...]
    scales: tuple[Float64Array, ...]


class Judge:
    """Judges kernels for one task.

    Args:
        task: The task.
        options: How to judge.
        sandbox: Where kernels' Python runs; None runs it in this process (trusted code only).
        keep_cases: Keep inputs and references between candidates; False draws and computes them
            afresh for each.
    """

    def __init__(
        self,
        task: Task,
        options: JudgeOptions,
        sandbox: Sandbox | None,
        *,
        keep_cases: bool = True,
    ) -> None:
        self.task = task
        self.options = options
        self.sandbox = sandbox
        self.keep_cases = keep_cases
        self.machine = load_machine(options.machine)
        self._bounds: Bounds | None = None
        self._cases: dict[tuple[str, int, int], Case] = {}
        self._secret = options.seed
        self._seconds: dict[str, float] = {}
        self._trips: TripLog | None = None

    @property
    def bounds(self) -> Bounds:
        """Lower bounds at the main shape."""
        if self._bounds is None:
            self._bounds = bounds_of(self.task, self.task.main, self.machine)
        return self._bounds

    def evaluate(self, source: str, *, secret: int | None = None) -> Evaluation:
        """Judge one kernel.

        Args:
            source: The kernel file.
            secret: Secret to derive input seeds from instead of the options' own.
        """
        self._seconds = {}
        self._secret = self.options.seed if secret is None else secret
        result = self._cascade(source)
        return replace(result, seconds=dict(self._seconds))

    def chrome_trace(self, source: str) -> dict[str, object]:
        """Return the Chrome trace of a kernel at the main shape."""
        self._trips = None
        return chrome_trace(self._profile(self._trace(source, self.task.main)))

    # -- the cascade --------------------------------------------------------------------------

    def _cascade(self, source: str) -> Evaluation:
        if self.options.static_rules:
            problems = check_source(source, entry=self.options.entry)
            if problems:
                return _illegal(Stage.STATIC, problems[0])
        warnings: list[str] = []
        layers: tuple[str, ...] = ()
        ratio = 0.0
        traced: TraceResult | None = None
        for stage, dims, count in (
            (Stage.TINY, self.task.tiny, 1),
            (Stage.MAIN, self.task.main, self.options.seeds),
        ):
            try:
                with self._timed("trace"):
                    traced = self._trace(source, dims)
            except (NkisimError, ProgramError) as error:
                return self._refused(error, Stage.TRACE, dims)
            layers = traced.layers
            self._trips = None
            warnings += [str(d) for d in traced.diagnostics if d.kind == "warning"]
            try:
                with self._timed("plan"):
                    interpreter = Interpreter(traced.program, fuel=self.options.fuel)
            except (NkisimError, ProgramError) as error:
                return self._refused(error, stage, dims)
            for number in range(count):
                outcome = self._run(interpreter, dims, stage, number)
                if isinstance(outcome, Evaluation):
                    return replace(outcome, layers=layers)
                ratio = max(ratio, outcome.ratio)
        assert traced is not None
        return self._time(traced, ratio, tuple(warnings), layers)

    def _trace(self, source: str, dims: Dims) -> TraceResult:
        arguments = [
            TensorArgument(spec.resolve(dims), DTYPES[spec.dtype]) for spec in self.task.inputs
        ]
        return trace_bundle(
            from_text(source),
            self.options.entry,
            arguments,
            dict(self.task.scalars),
            machine=self.machine,
            nki=self.options.nki,
            sandbox=self.sandbox,
            wall_seconds=self.options.trace_seconds,
            stand_ins=False,
        )

    def _run(
        self, interpreter: Interpreter, dims: Dims, stage: Stage, number: int
    ) -> Evaluation | Comparison:
        with self._timed("inputs"):
            case = self._case(stage, dims, number)
        try:
            with self._timed("execute"):
                execution = self._execute(interpreter, case)
                self._trips = execution.trips or self._trips
        except (NkisimError, ProgramError) as error:
            return self._refused(error, stage, dims)
        with self._timed("compare"):
            found = compare(
                execution.outputs,
                case.expected,
                case.scales,
                self.task.outputs,
                self.task.check,
            )
        if found.is_within:
            return found
        return Evaluation(
            verdict=Verdict.WRONG,
            stage=stage,
            message=f"at {_shape_text(dims)}: {found.message}",
            error_ratio=None if np.isinf(found.ratio) else found.ratio,
        )

    def _execute(self, interpreter: Interpreter, case: Case) -> Execution:
        return interpreter.run([case.inputs[spec.name] for spec in self.task.inputs])

    def _case(self, stage: Stage, dims: Dims, number: int) -> Case:
        key = (stage.value, self._secret, number)
        found = self._cases.get(key)
        if found is not None:
            return found
        seed = seed_for(self._secret, stage, number)
        inputs = self.task.draw(dims, seed=seed, family=self.task.check.families[0])
        expected = self.task.reference(inputs)
        case = Case(inputs, expected, self.task.error_scale(inputs, expected))
        if self.keep_cases:
            self._cases[key] = case
        return case

    def _profile_text(self, profile: Profile) -> str | None:
        """Return the profile for the writer, with what could be gained where that is cheap."""
        if not self.options.with_profile:
            return None
        is_small = len(profile.timeline) <= WHAT_IF_INSTRUCTIONS
        return render_text(profile, gains=what_if(profile) if is_small else ())

    def _time(
        self,
        traced: TraceResult,
        ratio: float,
        warnings: tuple[str, ...],
        layers: tuple[str, ...],
    ) -> Evaluation:
        with self._timed("time"):
            profile = self._profile(traced)
        with self._timed("fingerprint"):
            print_ = fingerprint(traced.program)
        bounds = self.bounds
        limit = self.options.max_latency_ns
        measured = Evaluation(
            verdict=Verdict.CORRECT,
            stage=Stage.DONE,
            message=f"correct on {self.options.seeds} secret seeds; "
            f"{profile.latency_ns / 1000:,.2f} us emulated",
            latency_ns=profile.latency_ns,
            floor_ns=bounds.floor_ns,
            bound_ns=bounds.bound_ns,
            error_ratio=ratio,
            fingerprint=print_,
            instructions=len(traced.program),
            hbm_bytes=profile.hbm_bytes,
            binding=profile.binding,
            profile_text=self._profile_text(profile),
            profile=profile.to_json() if self.options.with_profile else None,
            warnings=warnings,
            layers=layers,
        )
        if profile.latency_ns < bounds.floor_ns:
            return replace(
                measured,
                verdict=Verdict.BELOW_FLOOR,
                stage=Stage.TIME,
                message=f"emulated {profile.latency_ns:,.0f} ns is below the proved floor of "
                f"{bounds.floor_ns:,.0f} ns; this is a bug of the emulator, please report it",
            )
        if limit is not None and profile.latency_ns > limit:
            return replace(
                measured,
                verdict=Verdict.TOO_SLOW,
                stage=Stage.TIME,
                message=f"emulated {profile.latency_ns:,.0f} ns exceeds the limit of "
                f"{limit:,.0f} ns",
            )
        return measured

    def _profile(self, traced: TraceResult) -> Profile:
        trips = self._trips
        if traced.program.is_dynamic and trips is None:
            case = self._case(Stage.MAIN, self.task.main, 0)
            trips = self._execute(Interpreter(traced.program), case).trips
        executed = None if trips is None or not traced.program.loops else trips.executed
        return profile_program(traced.program, self.machine, executed=executed)

    # -- refusals -----------------------------------------------------------------------------

    def _refused(self, error: Exception, stage: Stage, dims: Dims) -> Evaluation:
        where = f"at {_shape_text(dims)}: "
        if isinstance(error, UnsupportedError):
            return Evaluation(
                verdict=Verdict.UNSUPPORTED,
                stage=stage,
                message=where + error.diagnostic.message,
                diagnostic=error.diagnostic,
            )
        if isinstance(error, DiagnosticError):
            return _illegal(stage, error.diagnostic, where)
        if isinstance(error, OutOfFuel):
            return Evaluation(verdict=Verdict.TOO_SLOW, stage=stage, message=where + str(error))
        if isinstance(error, TraceFailed):
            verdict = Verdict.TOO_SLOW if error.status == "timeout" else Verdict.CRASHED
            return Evaluation(verdict=verdict, stage=stage, message=where + str(error))
        if isinstance(error, ProgramError):
            return Evaluation(
                verdict=Verdict.CRASHED,
                stage=stage,
                message=f"{where}the kernel's process returned a malformed program: {error}",
            )
        return Evaluation(verdict=Verdict.FAILED, stage=stage, message=where + str(error))

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self._seconds[step] = self._seconds.get(step, 0.0) + spent


def seed_for(secret: int, stage: Stage, number: int) -> int:
    """Derive the seed of one set of inputs from the run's secret."""
    return (secret * 1_000_003 + {"tiny": 1, "main": 2}.get(stage.value, 3) * 1009 + number) % 2**63


def input_seeds(options: JudgeOptions) -> dict[str, list[int]]:
    """Return the seeds that a judgement with `options` uses, by stage."""
    return {
        "tiny": [seed_for(options.seed, Stage.TINY, 0)],
        "main": [seed_for(options.seed, Stage.MAIN, number) for number in range(options.seeds)],
    }


def _illegal(stage: Stage, diagnostic: Diagnostic, where: str = "") -> Evaluation:
    return Evaluation(
        verdict=Verdict.ILLEGAL,
        stage=stage,
        message=f"{where}{diagnostic.code} {diagnostic.message}",
        diagnostic=diagnostic,
    )


def _shape_text(dims: Dims) -> str:
    return " ".join(f"{name}={size}" for name, size in dims.items())
