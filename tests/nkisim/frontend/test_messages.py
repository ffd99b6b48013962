"""What a kernel's author reads: the right rule, the right line, and a way out."""

import subprocess
import sys

import pytest
from tests.nkisim.texts import HEADER, diagnostic, trace

from nkisim.cli import parser
from nkisim.errors import MachineError
from nkisim.machine.load import ALIASES, load_machine, machine_names

TWO_ARGUMENTS = """
    @nki.jit
    def kernel(x, y, eps=1e-6):
        return x
"""


@pytest.mark.parametrize(
    ("args", "kwargs", "message", "hint"),
    [
        (["float32[2,2]"], {}, "needs an argument for 'y', which is not given", "one argument"),
        ([], {}, "needs an argument for 'x', 'y'", "one argument for each parameter"),
        (["float32[2,2]"] * 4, {}, "takes 3 arguments, 4 are given", "one argument"),
        (["float32[2,2]"] * 2, {"epss": 1.0}, "has no parameter 'epss'", "did you mean 'eps'?"),
        (["float32[2,2]"] * 2, {"x": 1.0}, "'x' of kernel is given twice", "not both"),
    ],
)
def test_arguments_that_do_not_fit_are_named(args, kwargs, message, hint):
    found = diagnostic(TWO_ARGUMENTS, *args, **kwargs)
    assert found.code == "NKS609"
    assert message in found.message
    assert found.place is not None
    assert found.place.text == "def kernel(x, y, eps=1e-6):"
    assert found.allowed == "kernel(x, y, eps=1e-06)"
    assert found.hint is not None
    assert hint in found.hint


def test_a_missing_argument_is_a_usage_error_on_the_command_line(tmp_path):
    path = tmp_path / "ok.py"
    path.write_text(HEADER + "@nki.jit\ndef kernel(x, y):\n    return x\n")
    for command in ("run", "check"):
        done = subprocess.run(
            [sys.executable, "-m", "nkisim.cli", command, f"{path}:kernel", "float32[2,2]"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 2
        assert "needs an argument for 'y'" in done.stdout + done.stderr


@pytest.mark.parametrize("reduce", ["nisa.tensor_reduce(r, nl.add, a, axis=0)", "nl.sum(a, 0)"])
def test_a_reduction_over_partitions_is_about_its_axis(reduce):
    found = diagnostic(
        f"""
        def kernel(x):
            a = nl.load(x)
            r = nl.ndarray((1, 512), dtype=nl.float32, buffer=nl.sbuf)
            {reduce}
            return x
        """,
        "float32[128,512]",
    )
    assert found.code == "NKS114"
    assert found.hint is not None
    assert "matmul by ones" in found.hint


@pytest.mark.parametrize("nki", [None, "0.6"])
@pytest.mark.parametrize(
    "line",
    [
        "if x[0, 0] > 0: pass",
        "if a[0, 0] > 0: pass",
        "if a[0, 0] == 0: pass",
        "while a[0, 0] < 3: pass",
        "m = max(a[0, 0], a[0, 1])",
        "m = float(a[0, 0])",
        "m = range(a[0, 0])",
    ],
)
def test_python_cannot_read_values(line, nki):
    found = diagnostic(
        f"""
        @nki.jit
        def kernel(x):
            a = nl.load(x)
            {line}
            return x
        """,
        "float32[128,512]",
        nki=nki,
    )
    assert found.code == "NKS404"
    assert "not known at trace time" in found.message + (found.hint or "")
    assert found.hint is not None
    assert "nl.where" in found.hint
    assert found.place is not None
    assert found.place.text == line


def test_a_tensor_parameter_may_be_compared_with_a_number():
    traced = trace(
        """
        def kernel(x, scale):
            if scale == 1.0:
                return x
            return scale
        """,
        "float32[2,2]",
        "float32[2,1]",
    )
    assert traced.program.outputs[0].pattern.counts == (2, 1)


def test_a_forgotten_return_names_what_to_return():
    found = diagnostic(
        """
        @nki.jit
        def kernel(x):
            result = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
            nisa.dma_copy(dst=result, src=x)
        """,
        "float32[128,512]",
    )
    assert (found.code, found.hint) == ("NKS205", "end the kernel with `return result`")
    assert found.place is not None
    assert found.place.text == "def kernel(x):"


def test_a_result_on_chip_is_refused_at_its_return():
    found = diagnostic(
        """
        def kernel(x):
            a = nl.load(x)
            return a
        """,
        "float32[128,512]",
    )
    assert found.code == "NKS205"
    assert found.place is not None
    assert found.place.text == "return a"


def test_an_incomplete_result_is_named_by_variable_and_index():
    found = diagnostic(
        """
        def kernel(x):
            sums = nl.ndarray((256, 4, 8), dtype=x.dtype, buffer=nl.shared_hbm)
            nisa.dma_copy(dst=sums[0:100], src=x[0:100])
            nisa.dma_copy(dst=sums[100:256, 0:2], src=x[100:256, 0:2])
            nisa.dma_copy(dst=sums[100:200, 2:4], src=x[100:200, 2:4])
            return sums
        """,
        "float32[256,4,8]",
    )
    assert found.code == "NKS209"
    assert found.message == "result 'sums' [256, 4, 8] is not written completely"
    assert found.got == "896 of 8,192 elements unwritten, the first is sums[200, 2, 0]"


def test_a_huge_integer_is_a_value_that_does_not_fit():
    found = diagnostic(
        """
        def kernel(x):
            a = nl.ndarray((128, 4), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=a, value=10**400)
            return x
        """,
        "float32[128,4]",
    )
    assert found.code == "NKS305"
    assert found.place is not None
    assert found.place.line == 7


def test_help_and_error_list_the_same_machines():
    with pytest.raises(MachineError) as error:
        load_machine("trn9")
    listed = str(error.value).partition("known are ")[2]
    for name in (*machine_names(), *ALIASES):
        assert name in listed
    run = parser()._subparsers._group_actions[0].choices["run"]  # type: ignore[union-attr,index]
    option = next(action for action in run._actions if action.dest == "machine")
    assert listed in option.help
