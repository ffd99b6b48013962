"""Kernels that compute nothing, or with too few bits, are refused on every task."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from nkiwright import tasks
from nkiwright.evaluate import Judge, JudgeOptions, Verdict
from nkiwright.evaluate.lint import is_refused, lint_task, narrowed
from nkiwright.evaluate.nulls import null_outputs
from nkiwright.evaluate.tolerance import compare
from nkiwright.resources import data_dir

NAMES = [path.name for path in tasks.discover(data_dir("tasks"))]
FP32 = ["cumsum", "layernorm", "rope", "softmax", "transpose", "vector_add"]


def at_tiny(name: str) -> tasks.Task:
    task = tasks.load(name)
    return replace(task, main=task.tiny, held_out=())


def nulls_of(name: str, family=None):
    task = at_tiny(name)
    inputs = task.draw(task.tiny, seed=5, family=family or task.check.families[0])
    expected = task.reference(inputs)
    return task, inputs, expected, list(null_outputs(task, inputs, expected))


def test_there_are_twelve_tasks_and_six_in_float32() -> None:
    assert len(NAMES) == 12
    assert [n for n in NAMES if tasks.load(n).outputs[0].dtype == "float32"] == FP32


@pytest.mark.parametrize("name", NAMES)
def test_null_kernels_are_refused_on_every_family(name: str) -> None:
    for family in tasks.load(name).check.families:
        task, inputs, expected, nulls = nulls_of(name, family)
        scales = task.error_scale(inputs, expected)
        assert len(nulls) >= 5
        for null in nulls:
            found = compare(null.outputs, expected, scales, task.outputs, task.check)
            assert not found.is_within, f"{null.name} on {family.value}"
            # The shape and the dtype are right: it is the values that are refused.
            assert "elements violate" in found.message
            assert is_refused(null.outputs, expected, scales, task)


@pytest.mark.parametrize("name", NAMES)
def test_the_answer_itself_is_not_refused(name: str) -> None:
    task, inputs, expected, _ = nulls_of(name)
    scales = task.error_scale(inputs, expected)
    dtype = np.float32 if name in FP32 else ml_dtypes.bfloat16
    assert not is_refused([expected[0].astype(dtype)], expected, scales, task)


@pytest.mark.parametrize("name", NAMES)
def test_the_check_of_every_task_is_sound_at_its_smallest_shape(name: str) -> None:
    report = lint_task(at_tiny(name), sandbox=None)
    assert not report.notes
    # How far the error grows at the main shape shows only there.
    assert [p for p in report.problems if "is far from" not in p] == []
    assert report.ratio is not None
    assert report.stored_c is not None
    assert report.ratio < report.stored_c


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_the_check_of_every_task_is_sound(name: str) -> None:
    report = lint_task(tasks.load(name), sandbox=None)
    assert report.problems == ()
    assert report.notes == ()


@pytest.mark.parametrize("name", FP32)
def test_the_baseline_at_bfloat16_precision_has_wrong_values(name: str) -> None:
    task = at_tiny(name)
    source = narrowed(task.baseline_text or "")
    assert source is not None
    assert "nl.bfloat16" in source
    found = Judge(task, JudgeOptions(with_profile=False), None).evaluate(source)
    assert found.verdict is Verdict.WRONG, found.message


def test_names_of_null_kernels_say_what_they_return() -> None:
    _, _, _, nulls = nulls_of("rmsnorm")
    assert [null.name for null in nulls] == [
        "zeros",
        "constant",
        "mean of the answer",
        "copy of x",
        "copy of w",
        "first half of the answer",
    ]


def test_copies_are_broadcast_cut_or_reshaped() -> None:
    _, inputs, _, nulls = nulls_of("rmsnorm")
    copy = next(null for null in nulls if null.name == "copy of w").outputs[0]
    assert (copy == np.broadcast_to(inputs["w"], copy.shape)).all()
    _, inputs, expected, nulls = nulls_of("transpose")
    copy = next(null for null in nulls if null.name == "copy of x").outputs[0]
    assert (copy == inputs["x"].reshape(expected[0].shape)).all()
    _, inputs, expected, nulls = nulls_of("matmul")
    copy = next(null for null in nulls if null.name == "copy of w").outputs[0]
    assert (copy == inputs["w"][: expected[0].shape[0]]).all()


def test_half_an_answer_is_right_in_its_first_rows_only() -> None:
    _, _, expected, nulls = nulls_of("vector_add")
    half = nulls[-1].outputs[0]
    rows = len(half) // 2
    assert (half[:rows] == expected[0][:rows].astype(np.float32)).all()
    assert not half[rows:].any()
