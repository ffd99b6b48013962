"""`nkisim calibrate`: fit constants on measured kernels, or only score what is there."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nkisim.calibrate.assess import Scores, assess
from nkisim.calibrate.bindings import Binding, read_bindings
from nkisim.calibrate.constants import CONSTANTS
from nkisim.calibrate.errors import CalibrationError
from nkisim.calibrate.fit import Constant, Fitter, folds
from nkisim.calibrate.machine_file import with_values
from nkisim.calibrate.measured import Row, read_measured
from nkisim.calibrate.predict import Case, Report
from nkisim.calibrate.programs import Tracer
from nkisim.errors import NkisimError
from nkisim.machine.load import FOLDER, load_machine
from nkisim.machine.spec import Machine
from nkisim.timing.reorder import Schedule

ROWS = Path(__file__).with_name("rows.toml")
"""nkisim's own bindings."""
ROUNDS = 6
FOLD_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Options:
    """What the command was asked to do."""

    measured: Path
    kernels: Path
    bindings: Path = ROWS
    machines: tuple[str, ...] = ("trn1", "trn2")
    score_only: bool = False
    cache: Path | None = None
    isolated: bool = True
    schedule: Schedule | None = None
    """Whose order of instructions to time; None for that of each kernel's compiler."""


@dataclass(frozen=True, slots=True)
class FittedConstant:
    """One constant before and after."""

    constant: Constant
    prior: float
    value: float
    deviation: float
    """Standard error of its logarithm."""


@dataclass(frozen=True, eq=False, slots=True)
class MachineReport:
    """What was found for one machine."""

    machine: Machine
    """After the fit, or as it is if only scored."""
    cases: Sequence[Case]
    used: Sequence[int]
    """Cases that were fitted on; empty if only scored."""
    in_sample: Mapping[int, float]
    left_out: Mapping[int, float]
    """Microseconds with the case's kernel family left out of the fit; as `in_sample` for cases
    that no constant was fitted on."""
    roofline: Mapping[int, float]
    constants: Sequence[FittedConstant]
    scores: Scores
    """Of `left_out`."""
    in_sample_scores: Scores
    roofline_scores: Scores


@dataclass(frozen=True, eq=False, slots=True)
class Calibration:
    """The result of the command."""

    reports: Sequence[MachineReport]
    excluded: Mapping[str, str]
    """Bound rows that enter no score, with the reason."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Rows whose kernel nkisim refused, with the reason."""


def calibrate(options: Options, *, report: Report) -> Calibration:
    """Trace what is bound, fit unless told to score only, and score.

    Args:
        options: What to do.
        report: Told what goes on.

    Raises:
        CalibrationError: A file cannot be read, or nothing is bound for a machine.
    """
    rows, bindings = read_measured(options.measured), read_bindings(options.bindings)
    unknown = sorted(set(bindings) - set(rows))
    if len(unknown) == len(bindings):
        raise CalibrationError(
            f"{options.bindings.name} binds no row of {options.measured.name}; "
            f"for example {unknown[0]!r} is not there"
            if unknown
            else f"{options.bindings.name} binds no row"
        )
    excluded = {i: _why_excluded(rows[i]) for i in bindings if i in rows and _why_excluded(rows[i])}
    failed: dict[str, str] = {}
    cases = _trace(options, rows, bindings, failed, report)
    reports = []
    for name in options.machines:
        mine = [case for case in cases if case.machine == name]
        if mine:
            reports.append(_one_machine(name, mine, options, report))
    return Calibration(reports, excluded, failed)


def _why_excluded(row: Row) -> str:
    if row.is_spilled:
        return "the vendor's compiler spilled"
    if not row.counts and not row.is_micro:
        return f"kind {row.kind}, not a measurement"
    return ""


def _trace(
    options: Options,
    rows: Mapping[str, Row],
    bindings: Mapping[str, Binding],
    failed: dict[str, str],
    report: Report,
) -> list[Case]:
    tracer = Tracer(options.kernels, cache=options.cache, isolated=options.isolated)
    cases: list[Case] = []
    try:
        for i, binding in bindings.items():
            row = rows.get(i)
            if row is None or _why_excluded(row):
                continue
            name = binding.machine or row.machine
            if name not in options.machines:
                continue
            try:
                traced = None
                if binding.is_kernel:
                    traced = tracer.trace(binding, load_machine(name), row.variant)
            except NkisimError as error:
                failed[i] = str(error).splitlines()[0]
                report(f"{i}: {failed[i]}")
                continue
            family = binding.family or row.kernel
            cases.append(Case(row, binding, name, family, traced, options.schedule))
            report(f"{i}: traced")
    finally:
        tracer.close()
    return cases


def _one_machine(
    name: str, cases: Sequence[Case], options: Options, report: Report
) -> MachineReport:
    machine = load_machine(name)
    used = [i for i, case in enumerate(cases) if case.row.may_fit]
    constants = CONSTANTS.get(name, ())
    fitted: list[FittedConstant] = []
    left_out: dict[int, float] = {}
    if options.score_only or not constants or not used:
        used = []
    else:
        report(f"{name}: fitting {len(constants)} constants on {len(used)} figures")
        fitter = Fitter(machine, constants, cases)
        fit = fitter.fit(used, rounds=ROUNDS, report=report)
        fitted = [
            FittedConstant(c, math.exp(fitter.prior[k]), fit.values[c.path], fit.deviations[c.path])
            for k, c in enumerate(constants)
        ]
        for family, rest in folds(cases, used).items():
            other = fitter.without(fit, rest, rounds=FOLD_ROUNDS)
            report(f"{name}: {family} left out")
            for i, case in enumerate(cases):
                if case.family == family:
                    left_out[i] = case.predict(other)
        machine = fit.machine
    in_sample = {i: case.predict(machine) for i, case in enumerate(cases)}
    left_out = {**in_sample, **left_out}
    roofline = {
        i: case.roofline(machine) for i, case in enumerate(cases) if case.traced is not None
    }
    return MachineReport(
        machine,
        cases,
        used,
        in_sample,
        left_out,
        roofline,
        fitted,
        assess(cases, left_out.__getitem__),
        assess(cases, in_sample.__getitem__),
        assess(cases, roofline.__getitem__),
    )


def write_machine(found: MachineReport, folder: Path = FOLDER) -> None:
    """Write fitted constants and the band into the machine's file."""
    path = folder / f"{found.machine.name}.toml"
    count = len(found.used)
    source = f"nkisim calibrate, {count} published figures"
    values = {c.constant.path: c.value for c in found.constants}
    sources = dict.fromkeys(values, source)
    if not math.isnan(found.scores.band):
        values["latency_band"] = round(found.scores.band, 2)
        sources["latency_band"] = (
            f"two thirds of {found.scores.rows} kernels, each left out of the fit with its family"
        )
    path.write_text(with_values(path.read_text(encoding="utf-8"), values, sources), "utf-8")


def run(options: argparse.Namespace) -> int:
    """Run the command as it was given on the command line; return the exit code."""
    from nkisim.calibrate import report

    if options.write_machines and options.score:
        raise CalibrationError("--write-machines needs a fit, --score makes none")
    chosen = Options(
        Path(options.measured),
        Path(options.kernels),
        bindings=Path(options.bindings) if options.bindings else ROWS,
        machines=tuple(options.machine or ("trn1", "trn2")),
        score_only=options.score,
        cache=Path(options.cache) if options.cache else None,
        isolated=not options.in_process,
        schedule=options.schedule,
    )
    found = calibrate(chosen, report=lambda line: print(line, file=sys.stderr))  # noqa: T201
    sys.stdout.write(report.text(found))
    if options.report:
        report.write(found, Path(options.report))
    if options.write_machines:
        for machine in found.reports:
            if machine.constants:
                write_machine(machine)
    return 0
