"""Every way in which a kernel can fail ends in a verdict, and the judge lives on."""

from dataclasses import replace

import numpy as np
import pytest
from tests.nkiwright.conftest import small_copy

from nkisim.worker import Sandbox
from nkiwright import tasks
from nkiwright.evaluate import Evaluation, Judge, JudgeOptions, Stage, Verdict
from nkiwright.evaluate.judge import input_seeds

HEAD = """import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x, w, eps):
    n, d = x.shape
    y = nl.ndarray((n, d), dtype=x.dtype, buffer=nl.shared_hbm)
    a = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=a, value=1)
"""


def kernel(body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"{HEAD}{lines}    return y\n"


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    folder = small_copy("rmsnorm", tmp_path_factory.mktemp("judge"), "{ n = 200, d = 512 }")
    with Sandbox() as sandbox:
        # Short, so that runaways cost little; an honest trace takes milliseconds.
        yield Judge(tasks.load(folder), JudgeOptions(trace_seconds=1.5), sandbox)


RUNAWAYS = {
    "endless python loop": ("while True:\n    pass", Verdict.TOO_SLOW, "endless loop"),
    "ten million instructions": (
        "for i in range(10**7):\n    nisa.memset(dst=a, value=1)",
        Verdict.TOO_SLOW,
        "unrolled instructions",
    ),
    "endless device loop": (
        "def body(r):\n    nisa.memset(dst=a, value=1)\n    q = nisa.register_alloc()\n"
        "    nisa.register_load(q, a)\n    return q\nnl.while_loop(1, body)",
        Verdict.TOO_SLOW,
        "out of fuel",
    ),
    "a thousand million trips": (
        "def body(i):\n    nisa.memset(dst=a, value=1)\nnl.fori_loop(0, 10**9, body)",
        Verdict.TOO_SLOW,
        "1,000,000,000",
    ),
    "two hundred gigabytes": (
        "z = nl.ndarray((50 * 2**30,), dtype=nl.int32, buffer=nl.private_hbm)\n"
        "nisa.dma_copy(dst=z[0:1], src=a)",
        Verdict.ILLEGAL,
        "HBM",
    ),
    "endless output": ("while True:\n    print('x' * 1000)", Verdict.CRASHED, "printed without"),
    "a huge power": ("q = 9**9**9", Verdict.TOO_SLOW, "did not finish"),
    "a huge list": ("q = [0] * 10**11", Verdict.ILLEGAL, "memory"),
    "endless recursion": (
        "def f(i):\n    return f(i + 1)\nf(0)",
        Verdict.ILLEGAL,
        "RecursionError",
    ),
}


@pytest.mark.parametrize(("body", "verdict", "words"), RUNAWAYS.values(), ids=RUNAWAYS.keys())
def test_runaways_end_in_a_verdict(judge: Judge, body: str, verdict: Verdict, words: str) -> None:
    found = judge.evaluate(kernel(body))
    assert found.verdict is verdict, found.message
    assert words in found.message
    assert judge.evaluate(judge.task.baseline_text or "").is_correct


REFUSED = {
    "syntax": ("y = )", Stage.STATIC, "NKS600"),
    "an import that kernels have no use for": ("import os", Stage.STATIC, "NKS612"),
    "exit": ("raise SystemExit(0)", Stage.TRACE, "NKS603"),
    "a result that is never written": ("", Stage.TRACE, "NKS209"),
    "a write to an input": ("nisa.dma_copy(dst=x[0:1, 0:1], src=a)", Stage.TRACE, "NKS203"),
    "an unknown argument": ("nisa.memset(dst=a, value=1, mask=None)", Stage.TRACE, "NKS601"),
    "an unknown name": ("nl.expp(a)", Stage.TRACE, "NKS604"),
    "too many partitions": (
        "nl.ndarray((256, 4), dtype=nl.float32, buffer=nl.sbuf)",
        Stage.TRACE,
        "NKS103",
    ),
    "a tile larger than SBUF": (
        "nl.ndarray((128, 10**6), dtype=nl.float32, buffer=nl.sbuf)",
        Stage.TRACE,
        "NKS202",
    ),
    "more tiles than SBUF holds": (
        "t = [nl.ndarray((128, 20000), dtype=nl.float32, buffer=nl.sbuf) for _ in range(4)]\n"
        "for s in t:\n    nisa.memset(dst=s, value=0.0)\n"
        "for s in t:\n    nisa.tensor_copy(dst=s, src=s)",
        Stage.TRACE,
        "NKS207",
    ),
}


@pytest.mark.parametrize(("body", "stage", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_broken_rules_are_named_with_their_line(
    judge: Judge, body: str, stage: Stage, code: str
) -> None:
    found = judge.evaluate(kernel(body))
    assert found.verdict is Verdict.ILLEGAL
    assert found.stage is stage
    assert found.diagnostic is not None
    assert found.diagnostic.code == code, str(found.diagnostic)
    assert found.diagnostic.place is not None
    assert found.diagnostic.place.line >= 9 or code == "NKS600"


def test_a_file_without_the_kernel_is_refused(judge: Judge) -> None:
    found = judge.evaluate("import nki\n\n\ndef other(x):\n    return x\n")
    assert found.diagnostic is not None
    assert found.diagnostic.code == "NKS608"


def test_the_baseline_is_correct_timed_and_above_the_floor(judge: Judge) -> None:
    found = judge.evaluate(judge.task.baseline_text or "")
    assert found.is_correct, found.message
    assert found.latency_ns is not None
    assert found.floor_ns is not None
    assert found.latency_ns > found.floor_ns
    assert found.error_ratio is not None
    assert judge.task.check.c is not None
    assert found.error_ratio <= judge.task.check.c
    assert {"seccomp", "landlock"} <= set(found.layers)
    assert found.profile_text is not None
    assert "emulated" in found.profile_text


def test_wrong_values_name_the_worst_element_and_the_tiles(judge: Judge) -> None:
    source = (judge.task.baseline_text or "").replace("operand0=1.0 / d", "operand0=1.1 / d")
    found = judge.evaluate(source)
    assert found.verdict is Verdict.WRONG
    assert "worst at [" in found.message
    assert "expected" in found.message


def test_evaluations_survive_json(judge: Judge) -> None:
    found = judge.evaluate(judge.task.baseline_text or "")
    again = Evaluation.from_json(found.to_json())
    assert again == found


def test_fingerprints_ignore_comments_and_names(judge: Judge) -> None:
    source = judge.task.baseline_text or ""
    renamed = source.replace("x_tile", "rows_of_x").replace("# The weight row", "# Another comment")
    assert renamed != source
    assert judge.evaluate(renamed).fingerprint == judge.evaluate(source).fingerprint


def test_seeds_differ_between_runs_and_stages() -> None:
    first, second = input_seeds(JudgeOptions(seed=1)), input_seeds(JudgeOptions(seed=2))
    every = [*first["tiny"], *first["main"], *second["tiny"], *second["main"]]
    assert len(set(every)) == len(every)


@pytest.mark.parametrize("name", [p.name for p in tasks.discover(tasks.load("rope").folder.parent)])
def test_baselines_are_right_and_null_kernels_are_not(name: str) -> None:
    from nkiwright.evaluate.tolerance import compare

    task = tasks.load(name)
    task = replace(task, main=task.tiny)  # judged at its smallest shape only
    inputs = task.draw(task.tiny, seed=11)
    expected = task.reference(inputs)
    scales = task.error_scale(inputs, expected)
    judge = Judge(task, JudgeOptions(with_profile=False), None)
    found = judge.evaluate(task.baseline_text or "")
    assert found.is_correct, found.message
    dtype = task.outputs[0].dtype
    from nkisim.dtypes import DTYPES

    storage = DTYPES[dtype].storage
    shape = expected[0].shape
    nulls = [np.zeros(shape), np.ones(shape), np.full(shape, expected[0].mean())]
    nulls += [value.astype(np.float64) for value in inputs.values() if value.shape == shape]
    for null in nulls:
        outcome = compare([null.astype(storage)], expected, scales, task.outputs, task.check)
        assert not outcome.is_within
