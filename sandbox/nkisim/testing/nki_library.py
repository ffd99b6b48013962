"""Runs the tests of aws-neuron/nki-library on nkisim: a pytest plugin and a command.

That repository's tests draw inputs, run a kernel, and compare with a torch reference.  In its
simulation mode it asks an `nki_cpu_simulator` package to run the kernel; this plugin is that
package.  Use, with torch and the repository's own test requirements installed:

    python -m nkisim.testing.nki_library CHECKOUT --per-test 1 --report report.jsonl

or, inside the checkout, `pytest -p nkisim.testing.nki_library --test-mode=simulation test/…`.

Environment:
    NKISIM_LNC: cores of every launch, instead of the number that a test asks for.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import log
from pathlib import Path
from types import FrameType, ModuleType

import numpy as np
import pytest

from nkisim.api import run_kernel, run_standalone
from nkisim.errors import DiagnosticError, UnsupportedError
from nkisim.execute.validate import validate
from nkisim.frontend.importer import StandInModule
from nkisim.frontend.jit import Kernel, unwrap
from nkisim.frontend.trace import environment, trace_kernel
from nkisim.machine.load import load_machine
from nkisim.testing import host_dtypes

GENERATIONS = {"gen2": "trn1", "gen3": "trn2", "gen4": "trn3"}
SIMULATOR = "nki_cpu_simulator"
COMPILER_MODULES = ("neuronxcc.starfish", "neuronxcc.starfish.support")
"""Packages of the compiler that a few files import for a cast."""
PRIVATE_MODULES = (
    "test.utils.perf_analysis_private",
    "test.utils.scripts",
    "test.utils.scripts.remote_lock_scripts",
)
"""Modules that the public tests import for runs on hardware and that are not published."""


@dataclass
class Launch:
    """What the last emulated launch of a test came to."""

    kernel: str = ""
    cores: int = 1
    instructions: int = 0
    seconds: float = 0.0
    latency_ns: float = 0.0
    error: str = ""
    """Class name of the error that ended it, empty if it ran."""
    is_executed: bool = False
    """Whether values came out; a test that asks for compilation alone is only traced."""


LAST = Launch()


class Simulated:
    """`nki.cpu_simulate(kernel)`: launch with `[cores]`, then call with arrays."""

    def __init__(self, kernel: object, cores: int = 1) -> None:
        self.kernel = kernel
        self.cores = cores

    def __getitem__(self, cores: object) -> Simulated:
        return Simulated(self.kernel, int(cores))  # type: ignore[call-overload]

    def __call__(self, *args: object, **kwargs: object) -> object:
        function = unwrap(self.kernel)
        machine = GENERATIONS.get(os.environ.get("NKI_NC_VERSION", ""))
        LAST.__init__(getattr(function, "__name__", "kernel"), self.cores)  # type: ignore[misc]
        start = time.perf_counter()
        try:
            launch = Kernel(function, run_standalone, (cores_of_launch(self.cores),))
            result = run_kernel(launch, args, kwargs, machine=machine)
        except BaseException as error:
            LAST.error = type(error).__name__
            raise
        finally:
            LAST.seconds = time.perf_counter() - start
        LAST.is_executed = True
        LAST.instructions = len(result.program.form)
        LAST.latency_ns = result.profile.latency_ns
        return result.outputs[0] if len(result.outputs) == 1 else result.outputs


class Frontend:
    """`nki.compiler.frontend.ParserFrontend`: what tests without execution compile with."""

    def compile(
        self, kernel: object, *, inputs: Mapping[str, object], target: str, lnc: int, **_: object
    ) -> None:
        """Trace a kernel for the number of cores and apply the rules."""
        function = unwrap(kernel)
        machine = load_machine(os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE") or target)
        LAST.__init__(getattr(function, "__name__", "kernel"), lnc)  # type: ignore[misc]
        try:
            traced = trace_kernel(
                Kernel(function, run_standalone, (cores_of_launch(lnc),)),
                (),
                inputs,
                machine=machine,
                run=run_standalone,
            )
            validate(traced.program, machine, allow_unwritten_reads=True)
        except BaseException as error:
            LAST.error = type(error).__name__
            raise
        LAST.instructions = len(traced.program.form)


def cores_of_launch(asked: int) -> int:
    """Return the cores to launch on."""
    return int(os.environ.get("NKISIM_LNC") or asked)


def install_modules() -> None:
    """Put `nki`, `nki_cpu_simulator` and `neuron_dtypes` into `sys.modules`."""
    modules, _ = environment(run_standalone)
    sys.modules.update(modules)
    sys.modules["neuron_dtypes"] = host_dtypes.build()
    package = ModuleType(SIMULATOR)
    package.__dict__["__path__"] = []
    nki = modules["nki"]
    nki.__dict__["cpu_simulate"] = Simulated
    package.__dict__["nki"] = nki
    sys.modules[SIMULATOR] = package
    for name, module in modules.items():
        sys.modules[f"{SIMULATOR}.{name}"] = module
    for name in ("builtin", "compiler", "compiler.frontend", "tensor"):
        _add(f"nki.{name}")
    for name in ("NKIFrontend", "ParserFrontend"):
        sys.modules["nki.compiler.frontend"].__dict__[name] = Frontend
    _add("nki.language.dtypes")
    for name in COMPILER_MODULES:
        _add(name)
    sys.modules[f"{COMPILER_MODULES[-1]}.dtype"] = sys.modules["neuron_dtypes"]
    for name in PRIVATE_MODULES:
        sys.modules[name] = StandInModule(name)


def _add(name: str) -> ModuleType:
    module = ModuleType(name)
    module.__dict__["__path__"] = []
    sys.modules[name] = module
    if name.startswith("nki."):
        sys.modules[f"{SIMULATOR}.{name}"] = module
        parent, _, child = name.rpartition(".")
        sys.modules[parent].__dict__.setdefault(child, module)
    return module


# -- the plugin -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One test and what came of it."""

    test: str
    folder: str
    outcome: str
    """passed, traced (passed, and the test asked for no execution), rejected (a test of illegal
    input, as expected), refused, failed, slow, skipped, or broken (the test ends before it launches
    a kernel)."""
    reason: str
    kernel: str
    cores: int
    """Cores that the test asked for."""
    instructions: int
    seconds: float
    latency_ns: float


class OutOfTime(BaseException):
    """A case ran longer than its limit."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's options."""
    group = parser.getgroup("nkisim")
    group.addoption("--nkisim-per-test", type=int, default=0, help="run the N smallest cases")
    group.addoption("--nkisim-seconds", type=float, default=0.0, help="limit for each case")
    group.addoption("--nkisim-report", default="", help="append one JSON line for each case")


def case_size(item: pytest.Item) -> float:
    """Estimate how much work a case is: the product of its integer parameters, as a logarithm."""
    call = getattr(item, "callspec", None)
    return 0.0 if call is None else sum(_sizes(list(call.params.values())))


def _sizes(values: Sequence[object]) -> Iterator[float]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _sizes(value)
        elif isinstance(value, dict):
            yield from _sizes(list(value.values()))
        elif isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value > 1:
            yield log(value)
        elif hasattr(value, "__dict__") and not isinstance(value, type):
            yield from _sizes([v for v in vars(value).values() if isinstance(v, (int, tuple))])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the smallest cases of each test function."""
    orchestrator = sys.modules.get("test.utils.test_orchestrator")
    if orchestrator is not None:
        # Read after a simulation, but set by compilation only.
        orchestrator.Orchestrator._compiled_kernel = None
    count = config.getoption("--nkisim-per-test")
    if not count:
        return
    by_function: dict[tuple[str, object], list[pytest.Item]] = {}
    for item in items:
        key = (item.nodeid.partition("[")[0], bool(_negative(item)))
        by_function.setdefault(key, []).append(item)
    keep: set[pytest.Item] = set()
    for group in by_function.values():
        runnable = [item for item in group if item.get_closest_marker("skip") is None]
        keep.update(sorted(runnable or group, key=case_size)[:count])
    items[:] = [item for item in items if item in keep]


def _negative(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    return call is not None and bool(call.params.get("is_negative_test_case"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Stop a case that exceeds its limit."""
    LAST.__init__()  # type: ignore[misc]
    seconds = item.config.getoption("--nkisim-seconds")

    def stop(signum: int, frame: FrameType | None) -> None:
        raise OutOfTime(f"no result within {seconds:g} s")

    if seconds:
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return (yield)
    except OutOfTime as error:
        raise TimeoutError(str(error)) from error
    finally:
        if seconds:
            signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Classify a case and write its line."""
    report = yield
    if report.when == "call" or not report.passed:
        error = call.excinfo.value if call.excinfo is not None else None
        _write(item.config, item.nodeid, *classify(report.outcome, error))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Write a line for a file of tests that can't be imported."""
    report = yield
    if report.failed:
        _write(collector.config, collector.nodeid, "broken", last_line(str(report.longrepr)))
    return report


def _write(config: pytest.Config, test: str, outcome: str, reason: str) -> None:
    path = config.getoption("--nkisim-report")
    if not path:
        return
    folder = test.partition("::")[0].rpartition("/")[0]
    case = Case(
        test,
        folder.partition("nkilib/")[2] or folder,
        outcome,
        reason,
        LAST.kernel,
        LAST.cores,
        LAST.instructions,
        round(LAST.seconds, 3),
        LAST.latency_ns,
    )
    with Path(path).open("a") as file:
        file.write(json.dumps(asdict(case)) + "\n")


def last_line(text: str) -> str:
    """Return the last line of a traceback, which names the error."""
    lines = text.strip().splitlines() or [""]
    return lines[-1].removeprefix("E").strip()[:400]


def classify(outcome: str, error: BaseException | None) -> tuple[str, str]:
    """Return what a case came to, and why.

    Args:
        outcome: pytest's outcome.
        error: What the test raised.
    """
    if outcome == "passed":
        if LAST.error:
            return "rejected", ""
        return ("passed" if LAST.is_executed or not LAST.kernel else "traced"), ""
    if outcome == "skipped":
        return "skipped", str(error)
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    for item in chain:
        if isinstance(item, OutOfTime):
            return "slow", str(item)
    for item in chain:
        if isinstance(item, DiagnosticError):
            found = item.diagnostic
            where = f" ({found.place.file}:{found.place.line})" if found.place else ""
            kind = "refused" if isinstance(item, UnsupportedError) else "failed"
            return kind, f"{found.code} {found.message}{where}"[:400]
    last = chain[-1] if chain else None
    is_ours = LAST.kernel or (isinstance(last, ImportError) and "nki" in str(last))
    kind = "failed" if is_ours else "broken"
    return kind, f"{type(last).__name__}: {last}".replace("\n", " ")[:400]


# -- the command ----------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the repository's tests and leave a report of JSON lines."""
    parser = argparse.ArgumentParser(prog="python -m nkisim.testing.nki_library")
    parser.add_argument("checkout", type=Path, help="folder of the repository")
    parser.add_argument("tests", nargs="*", default=["test/integration"], help="tests to run")
    parser.add_argument("--report", type=Path, default=Path("nki_library.jsonl"))
    parser.add_argument("--per-test", type=int, default=1, help="cases of each test function")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit for each case")
    parser.add_argument("--scratch", type=Path, default=Path("/tmp/nkisim-nki-library"))
    parser.add_argument("--tb", default="no", help="style of tracebacks, as of pytest")
    given = parser.parse_intermixed_args(arguments)
    scratch = given.scratch.resolve()
    scratch.mkdir(parents=True, exist_ok=True)
    report = given.report.resolve()
    report.unlink(missing_ok=True)
    checkout = given.checkout.resolve()
    sys.path[:0] = [str(checkout), str(checkout / "src")]
    sys.dont_write_bytecode = True
    os.chdir(checkout)
    return int(
        pytest.main(
            [
                "-p",
                "nkisim.testing.nki_library",
                "-p",
                "no:cacheprovider",
                "--test-mode=simulation",
                f"--output-directory={scratch / 'output'}",
                f"--override-ini=artifacts_dir={scratch / 'artifacts'}",
                f"--nkisim-per-test={given.per_test}",
                f"--nkisim-seconds={given.seconds}",
                f"--nkisim-report={report}",
                "--continue-on-collection-errors",
                "-q",
                f"--tb={given.tb}",
                *given.tests,
            ]
        )
    )


if __name__ == "__main__":
    sys.exit(main())
else:
    install_modules()
