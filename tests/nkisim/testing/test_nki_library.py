"""The plugin for nki-library's tests, on tests written as that repository writes its own."""

import json
import subprocess
import sys
import textwrap

import pytest

TESTS = """
    import nki
    import nki.isa as nisa
    import nki.language as nl
    import numpy as np
    import pytest
    from neuron_dtypes import static_cast
    from nki_cpu_simulator import nki as simulator


    @nki.jit
    def double(x):
        tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        return out


    @nki.jit
    def custom(x):
        nisa.builtin_custom_op("mine", x)


    def launch(x):
        return simulator.cpu_simulate(double)[1](x)


    @pytest.mark.parametrize("columns", [512, 32, 64])
    def test_right(columns):
        x = static_cast(np.ones((8, columns)), nl.bfloat16)
        assert (np.asarray(launch(x), np.float32) == 2).all()


    def test_wrong():
        assert (launch(np.ones((8, 8), np.float32)) == 3).all()


    def test_illegal_as_expected():
        with pytest.raises(Exception):
            launch(np.ones((200, 8), np.float32))


    def test_illegal():
        launch(np.ones((200, 8), np.float32))


    def test_refused():
        simulator.cpu_simulate(custom)[1](np.ones((8, 8), np.float32))


    def test_slow():
        while True:
            pass
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("library")
    (folder / "test_double.py").write_text(textwrap.dedent(TESTS))
    (folder / "test_broken.py").write_text("import a_module_that_is_not_published\n")
    path = folder / "report.jsonl"
    plugin = ["-p", "nkisim.testing.nki_library", "-p", "no:cacheprovider", "-q"]
    options = ["--nkisim-per-test=1", "--nkisim-seconds=1", f"--nkisim-report={path}"]
    subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, "--continue-on-collection-errors", *options, "."],
        cwd=folder,
        capture_output=True,
        check=False,
    )
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("test", "outcome", "reason"),
    [
        ("test_right[32]", "passed", ""),
        ("test_wrong", "failed", "AssertionError"),
        ("test_illegal_as_expected", "rejected", ""),
        ("test_illegal", "failed", "partition"),
        ("test_refused", "refused", "NKS5"),
        ("test_slow", "slow", "1 s"),
        ("test_broken.py", "broken", "a_module_that_is_not_published"),
    ],
)
def test_each_case_is_reported_as_what_it_is(report, test, outcome, reason):
    [line] = [line for line in report if line["test"].endswith(test)]
    assert line["outcome"] == outcome
    assert reason in line["reason"]


def test_only_the_smallest_case_of_a_function_runs(report):
    right = [line for line in report if "test_right" in line["test"]]
    assert len(right) == 1
    assert right[0]["instructions"] == 3
    assert right[0]["latency_ns"] > 0
