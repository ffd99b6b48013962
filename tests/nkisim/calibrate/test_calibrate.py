"""The command on figures of kernels of our own."""

import numpy as np
import pytest

from nkisim.calibrate import report
from nkisim.calibrate.bindings import read_bindings
from nkisim.calibrate.command import Options, calibrate, write_machine
from nkisim.calibrate.errors import CalibrationError
from nkisim.calibrate.fit import Constant, Fitter, folds
from nkisim.calibrate.measured import read_measured
from nkisim.calibrate.predict import Case
from nkisim.calibrate.programs import Tracer
from nkisim.calibrate.scores import kendall
from nkisim.cli import main
from nkisim.machine.load import FOLDER, load_machine

KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def copies(a, times, chained):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    x = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=x, src=a)
    for _ in range(times):
        y = x if chained else nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=y, src=x, engine=nisa.vector_engine)
    nisa.dma_copy(dst=out, src=y)
    return out
"""
SHAPES = {"a": (128, 40, False), "b": (512, 40, False), "c": (512, 40, True), "d": (32, 80, True)}


@pytest.fixture
def files(tmp_path):
    """Return (kernels, bindings) of four calls, two families."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "copies.py").write_text(KERNEL)
    rows = [
        f'[[row]]\nid = "{name}"\nfile = "own/copies.py"\nentry = "copies"\n'
        f'args = ["float32[128,{width}]", {times}, {str(chained).lower()}]\n'
        f'family = "{"chained" if chained else "free"}"\n'
        for name, (width, times, chained) in SHAPES.items()
    ]
    bindings = tmp_path / "rows.toml"
    bindings.write_text("".join(rows))
    return tmp_path, bindings


def _measured(folder, latencies):
    path = folder / "measured.csv"
    lines = ["id,generation,kernel,measured_latency_us,kind,ladder,scale,notes"]
    lines += [f"{name},trn1,copies,{us},measured,one,ok," for name, us in latencies.items()]
    path.write_text("\n".join(lines) + "\n")
    return path


def _cases(files, latencies):
    kernels, path = files
    rows, bindings = read_measured(_measured(kernels, latencies)), read_bindings(path)
    tracer = Tracer(kernels, isolated=False)
    machine = load_machine("trn1")
    return [
        Case(rows[i], b, "trn1", b.family or "", tracer.trace(b, machine))
        for i, b in bindings.items()
    ]


def _times(files, machine):
    return {c.row.id: c.predict(machine) for c in _cases(files, dict.fromkeys(SHAPES, 1.0))}


def test_constants_that_made_the_figures_are_found(files):
    truth = load_machine("trn1").with_changes(
        {"dve.overhead_cycles": 60.0, "dve.latency_cycles": 110.0}
    )
    cases = _cases(files, _times(files, truth))
    constants = (
        Constant("dve.overhead_cycles", 5, 200, spread=100.0),
        Constant("dve.latency_cycles", 5, 400, spread=100.0),
    )
    fitter = Fitter(load_machine("trn1"), constants, cases)
    fit = fitter.fit(range(4), rounds=8, report=lambda _: None)
    assert fit.values["dve.overhead_cycles"] == pytest.approx(60, rel=0.05)
    assert fit.values["dve.latency_cycles"] == pytest.approx(110, rel=0.05)
    again = Fitter(load_machine("trn1"), constants, _cases(files, _times(files, truth)))
    assert again.fit(range(4), rounds=8, report=lambda _: None).values == fit.values


def test_constants_stay_in_their_range_and_near_priors_without_data(files):
    truth = load_machine("trn1").with_changes({"dve.overhead_cycles": 300.0})
    cases = _cases(files, _times(files, truth))
    constants = (
        Constant("dve.overhead_cycles", 5, 90, spread=100.0),
        Constant("pe.overhead_cycles", 20, 90),
    )
    fit = Fitter(load_machine("trn1"), constants, cases).fit(
        range(4), rounds=6, report=lambda _: None
    )
    assert fit.values["dve.overhead_cycles"] == pytest.approx(90)
    assert fit.values["pe.overhead_cycles"] == load_machine("trn1").pe.overhead_cycles


def test_a_family_that_is_left_out_does_not_touch_its_prediction(files):
    base = _times(files, load_machine("trn1"))
    one, other = dict(base), dict(base)
    other["c"], other["d"] = base["c"] * 3, base["d"] * 3
    machines = []
    for latencies in (one, other):
        cases = _cases(files, latencies)
        constants = (Constant("dve.overhead_cycles", 5, 200, spread=100.0),)
        fitter = Fitter(load_machine("trn1"), constants, cases)
        fit = fitter.fit(range(4), rounds=6, report=lambda _: None)
        rest = folds(cases, range(4))["chained"]
        assert [cases[i].row.id for i in rest] == ["a", "b"]
        machines.append(fitter.without(fit, rest, rounds=8))
    first, second = (m.dve.overhead_cycles for m in machines)
    assert first == pytest.approx(second, rel=0.02)


def test_scoring_alone(files, capsys):
    kernels, bindings = files
    truth = _times(files, load_machine("trn1"))
    shown = {"a": truth["a"] / 1.25, "b": truth["b"] / 1.25, "c": truth["c"], "d": truth["d"] / 0.5}
    measured = _measured(kernels, shown)
    found = calibrate(
        Options(measured, kernels, bindings, ("trn1",), score_only=True, isolated=False),
        report=lambda _: None,
    )
    scores = found.reports[0].scores
    assert scores.rows == 4
    assert scores.median_error == pytest.approx(np.median([0.25, 0.25, 0.0, -0.5]))
    assert scores.median_absolute_error == pytest.approx(0.25)
    order = list(truth)
    expected = kendall([truth[i] for i in order], [shown[i] for i in order])
    assert scores.ladders["one"] == expected
    assert not found.reports[0].constants
    page = kernels / "out.md"
    arguments = ["calibrate", "--score", "--in-process", "--machine", "trn1"]
    arguments += ["--measured", str(measured), "--kernels", str(kernels)]
    arguments += ["--bindings", str(bindings), "--report", str(page)]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    assert "| median absolute error | 25.0% |" in first
    text = page.read_text()
    for name in SHAPES:
        assert f"| {name} |" in text
    svg = (kernels / "out-pictures" / "order-trn1.svg").read_text()
    assert svg.startswith("<svg")
    assert main(arguments) == 0
    assert capsys.readouterr().out == first


def test_what_cannot_be_bound(files, capsys):
    kernels, bindings = files
    measured = _measured(kernels, {"x": 1.0})
    options = Options(measured, kernels, bindings, ("trn1",), score_only=True, isolated=False)
    with pytest.raises(CalibrationError, match=r"binds no row of measured\.csv; for example 'a'"):
        calibrate(options, report=lambda _: None)
    (kernels / "own" / "copies.py").unlink()
    measured = _measured(kernels, {"a": 1.0})
    found = calibrate(options, report=lambda _: None)
    assert "there is no kernel file" in found.failed["a"]
    arguments = ["calibrate", "--measured", "none.csv", "--kernels", str(kernels)]
    assert main(arguments) == 2
    assert "cannot read none.csv" in capsys.readouterr().err


def test_fitted_machines_are_written_and_load(files, tmp_path):
    kernels, bindings = files
    measured = _measured(
        kernels, {i: us * 1.1 for i, us in _times(files, load_machine("trn1")).items()}
    )
    found = calibrate(
        Options(measured, kernels, bindings, ("trn1",), isolated=False), report=lambda _: None
    )
    folder = tmp_path / "machines"
    folder.mkdir()
    (folder / "trn1.toml").write_text((FOLDER / "trn1.toml").read_text())
    write_machine(found.reports[0], folder)
    text = (folder / "trn1.toml").read_text()
    constant = found.reports[0].constants[0]
    assert f"value = {constant.value:.4g}" in text
    assert "latency_band = { value = 0." in text
    assert "4 published figures" in text
    assert "### Constants of trn1" in report.markdown(found, "pictures")
