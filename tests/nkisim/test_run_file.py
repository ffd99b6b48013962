"""Kernel files of all kinds through the public door."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest

import nkisim
from nkisim.api import TraceFailed
from nkisim.errors import KernelError, NkisimError, UnsupportedError

SCALE = """
    import nki
    import nki.isa as nisa
    import nki.language as nl
    import torch
    from helper import Options

    @nki.jit
    def kernel(x, factor, options=None, op=nl.multiply, dtype=None, names=(), extra=None):
        assert isinstance(names, tuple) and extra == {"deep": [1, None, True]}
        assert options.rows == 4
        out = nl.ndarray(x.shape, dtype=dtype or x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        result = nl.ndarray(x.shape, dtype=out.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=result, data=tile, op0=op, operand0=factor)
        nisa.dma_copy(dst=out, src=result)
        print("traced", names[0])
        return out
"""
HELPER = """
    class Options:
        def __init__(self, rows):
            self.rows = rows
"""
IN_PLACE = """
    import nki
    import nki.isa as nisa
    import nki.language as nl

    def kernel(x, out):
        tile = sbuf.view(dtype=x.dtype, shape=x.shape)
        nisa.dma_copy(dst=tile, src=x)
        nisa.activation(dst=tile, op=nl.exp, data=tile)
        nisa.dma_copy(dst=out, src=tile)
"""


def write(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    return folder / f"{next(iter(files))}.py"


@pytest.mark.parametrize("isolated", [True, False], ids=["sandboxed", "in process"])
def test_arguments_of_every_kind_reach_the_kernel(tmp_path, isolated):
    path = write(tmp_path, scale=SCALE, helper=HELPER)
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    result = nkisim.run_file(
        path,
        "kernel",
        [x, 3],
        {
            "options": nkisim.construct("helper.Options", rows=4),
            "op": nkisim.symbol("nl.add"),
            "dtype": np.dtype(np.float16),
            "names": ("first", 2),
            "extra": {"deep": [1, None, True]},
        },
        isolated=isolated,
    )
    assert result.outputs[0].dtype == np.float16
    assert np.array_equal(result.outputs[0], (x + 3).astype(np.float16))
    assert any("torch" in d.message for d in result.diagnostics)
    assert result.profile.latency_ns > 0
    if isolated:
        assert "traced first" in result.stdout
        assert "seccomp" in result.layers


def test_kernels_that_write_into_their_arguments_do_so(tmp_path):
    path = write(tmp_path, inplace=IN_PLACE)
    x, out = np.ones((4, 4), np.float32), np.zeros((4, 4), np.float32)
    nkisim.run_file(path, "kernel", [x, out])
    assert out == pytest.approx(np.e)
    out.flags.writeable = False
    with pytest.raises(NkisimError, match="read-only"):
        nkisim.run_file(path, "kernel", [x, out], isolated=False)


def test_jitted_kernels_run_on_arrays_in_this_process():
    nkisim.install()
    import nki  # type: ignore[import-not-found]  # served by install()
    import nki.isa as nisa  # type: ignore[import-not-found]
    import nki.language as nl  # type: ignore[import-not-found]

    @nki.jit
    def double(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.load(x)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        nl.store(out, tile)
        return out

    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for run in (double, nki.simulate(double), nkisim.simulate(double)):
        assert np.array_equal(np.asarray(run(x)), 2 * x)


@pytest.mark.parametrize("precise", ["1", "0"], ids=["rounded", "kept in float32"])
def test_precise_fp_switch(tmp_path, monkeypatch, precise):
    path = write(
        tmp_path,
        rounding="""
        import nki.isa as nisa
        import nki.language as nl

        def kernel(x):
            out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
            low = nl.ndarray(x.shape, dtype=nl.bfloat16, buffer=nl.sbuf)
            wide = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=wide, src=x)
            nisa.tensor_copy(dst=low, src=wide)
            nisa.tensor_copy(dst=wide, src=low)
            nisa.dma_copy(dst=out, src=wide)
            return out
        """,
    )
    monkeypatch.setenv("NKI_PRECISE_FP", precise)
    x = np.full((2, 2), 1.001, np.float32)
    result = nkisim.run_file(path, "kernel", [x], isolated=False).outputs[0]
    assert np.array_equal(result, x) == (precise == "0")


def test_the_machine_comes_from_neurons_own_variable(tmp_path, monkeypatch):
    path = write(tmp_path, inplace=IN_PLACE)
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "gen2")
    x, out = np.ones((4, 4), np.float32), np.zeros((4, 4), np.float32)
    assert nkisim.run_file(path, "kernel", [x, out]).program.machine == "trn1"


FAILURES = {
    "syntax": ("def kernel(x):\n    return x)\n", KernelError, "NKS600"),
    "no such entry": ("import nki\n", KernelError, "NKS608"),
    "raises": ("def kernel(x):\n    return 1 / 0\n", KernelError, "ZeroDivisionError"),
    "first generation": ("import neuronxcc.nki.raw\n", UnsupportedError, "NKS504"),
    "returns nothing": ("def kernel(x):\n    pass\n", KernelError, "NKS205"),
    "collectives": (
        "import nki.collectives as ncc\ndef kernel(x):\n    return ncc.all_reduce(x)\n",
        UnsupportedError,
        "not emulated",
    ),
}


@pytest.mark.parametrize(("text", "kind", "words"), FAILURES.values(), ids=FAILURES.keys())
def test_failures_are_one_diagnostic(tmp_path, text, kind, words):
    path = write(tmp_path, kernel=text)
    with pytest.raises(kind) as caught:
        nkisim.run_file(path, "kernel", [np.ones((2, 2), np.float32)])
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 8


def test_an_endless_loop_is_stopped_by_the_clock(tmp_path):
    path = write(tmp_path, kernel="def kernel(x):\n    while True:\n        pass\n")
    with pytest.raises(TraceFailed, match="did not finish"):
        nkisim.run_file(path, "kernel", [np.ones((2, 2), np.float32)], wall_seconds=0.5)


def cli(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "nkisim.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_command_line_exit_codes_and_streams(tmp_path):
    path = write(tmp_path, inplace=IN_PLACE)
    fine = cli("profile", f"{path}:kernel", "float32[4,4]", "float32[4,4]")
    assert fine.returncode == 0
    assert fine.stdout.startswith("emulated latency")
    wrong = cli("check", f"{path}:kernel", "float32[256,4]", "float32[256,4]")
    assert wrong.returncode == 1
    assert "NKS103" in wrong.stdout
    usage = cli("run", f"{path}:kernel", "nonsense[")
    assert usage.returncode == 2
    assert usage.stdout == ""
    assert "expected for example" in usage.stderr
    assert cli("run", f"{path}:kernel", "--machine", "trn9").returncode == 2
