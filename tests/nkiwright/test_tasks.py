"""Tasks load, compute what they say, and a broken one says what is wrong and where."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from nkisim.dtypes import DTYPES
from nkiwright import tasks
from nkiwright.errors import TaskError
from nkiwright.inputs import Family
from nkiwright.resources import data_dir

NAMES = [folder.name for folder in tasks.discover(data_dir("tasks"))]

TOML = """\
name = "scaled"
op_class = "elementwise"
level = 1
description = "x times w times factor."

[inputs]
x = { shape = ["n", "d"], dtype = "bfloat16" }
w = { shape = ["d"], dtype = "float32", scale = 0.5 }

[scalars]
factor = 2.0

[outputs]
y = { shape = ["n", "d"], dtype = "bfloat16" }

[shapes]
tiny = { n = 2, d = 3 }
main = { n = 4, d = 8 }
held_out = [{ n = 5, d = 7 }]

[check]
families = ["normal", "zeros"]
"""
REFERENCE = "def reference(x, w, *, factor):\n    return x * w * factor\n"


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a task folder."""

    def write(toml=TOML, reference=REFERENCE, name="scaled"):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "task.toml").write_text(toml)
        if reference is not None:
            (folder / "reference.py").write_text(reference)
        return folder

    return write


def test_task_reads_back(write):
    task = tasks.load(write())
    assert [spec.name for spec in task.inputs] == ["x", "w"]
    assert task.inputs[0].resolve(task.main) == (4, 8)
    assert task.scalars == {"factor": 2.0}
    assert task.held_out == ({"n": 5, "d": 7},)
    assert task.check.families == (Family.NORMAL, Family.ZEROS)
    assert task.check.c is None
    assert not task.has_baseline


def test_task_crosses_to_another_process(write):
    task = tasks.load(write())
    copy = pickle.loads(pickle.dumps(task))
    inputs = task.draw(task.tiny, seed=1)
    assert copy == task
    assert np.array_equal(copy.reference(inputs)[0], task.reference(inputs)[0])


def test_reference_gets_float64_and_scalars(write):
    folder = write(
        reference="import numpy as np\ndef reference(x, w, *, factor):\n"
        "    assert x.dtype == w.dtype == np.float64 and factor == 2.0\n    return x * w * factor\n"
    )
    task = tasks.load(folder)
    inputs = task.draw(task.main, seed=3)
    (expected,) = task.reference(inputs)
    assert expected.dtype == np.float64
    product = inputs["x"].astype(np.float64) * inputs["w"].astype(np.float64) * 2.0
    assert np.array_equal(expected, product)


def test_reading_a_task_leaves_no_files_behind(write):
    folder = write()
    task = tasks.load(folder)
    task.reference(task.draw(task.tiny, seed=1))
    assert sorted(path.name for path in folder.iterdir()) == ["reference.py", "task.toml"]


def test_several_outputs_and_integers(write):
    folder = write(
        TOML.replace(
            'dtype = "float32", scale = 0.5', 'dtype = "int32", low = 0, high = 9'
        ).replace(
            'y = { shape = ["n", "d"], dtype = "bfloat16" }',
            'y = { shape = ["d"], dtype = "int32" }\nz = { shape = ["n", 1], dtype = "float32" }',
        ),
        "def reference(x, w, *, factor):\n    return w // 2, x.sum(axis=-1, keepdims=True)\n",
    )
    task = tasks.load(folder)
    inputs = task.draw(task.main, seed=1)
    halves, sums = task.reference(inputs)
    assert inputs["w"].min() >= 0
    assert np.array_equal(halves, np.asarray(inputs["w"], np.int64) // 2)
    assert sums.shape == (4, 1)


def test_kernels_are_kept_as_text(write):
    folder = write()
    (folder / "baseline.py").write_text("this would not even parse")
    task = tasks.load(folder)
    assert task.has_baseline
    assert task.baseline_text == "this would not even parse"
    assert task.tuned_text is None


def test_hash_follows_the_problem_and_not_the_kernels(write):
    before = tasks.load(write()).content_hash
    folder = write(TOML + "\n# a comment\n")
    (folder / "baseline.py").write_text("x")
    assert tasks.load(folder).content_hash == before
    assert tasks.load(write(TOML.replace("d = 8", "d = 9"))).content_hash != before
    assert tasks.load(write(reference=REFERENCE + "\n")).content_hash != before


def test_error_scale_is_the_rms_of_the_row(write):
    task = tasks.load(write())
    (scale,) = task.error_scale({}, [np.array([[3.0, 4.0], [0.0, 0.0]])])
    assert np.allclose(scale, [[np.sqrt(12.5)], [0.0]])


def test_reference_may_bring_its_own_error_scale(write):
    folder = write(
        reference=REFERENCE + "def error_scale(x, w, *, factor):\n    return abs(x) * abs(w)\n"
    )
    task = tasks.load(folder)
    inputs = task.draw(task.tiny, seed=1)
    (scale,) = task.error_scale(inputs, task.reference(inputs))
    assert scale.shape == (2, 3)
    assert np.all(scale >= 0)


def test_error_scale_of_wrong_shape_is_refused(write):
    folder = write(reference=REFERENCE + "def error_scale(x, w, *, factor):\n    return x.T\n")
    task = tasks.load(folder)
    inputs = task.draw(task.tiny, seed=1)
    with pytest.raises(TaskError, match="error_scale has shape"):
        task.error_scale(inputs, task.reference(inputs))


@pytest.mark.parametrize(
    ("old", "new", "line", "says", "hint"),
    [
        ('name = "scaled"\n', "", 1, "missing field 'name'", "name ="),
        (', dtype = "bfloat16" }\nw', " }\nw", 7, "missing field 'inputs.x.dtype'", "inputs"),
        ('"bfloat16" }\nw', '"bf16" }\nw', 7, "unknown dtype 'bf16'", None),
        ("scale = 0.5", "scael = 0.5", 8, "unknown field 'inputs.w.scael'", "'scale'"),
        ("description", "descriptoin", 4, "unknown field 'descriptoin'", "'description'"),
        ("factor = 2.0", "factor = [2.0]", 11, "number, text, true or false", None),
        ("[inputs]", "[inputs]\nz = 3", 7, "inputs.z must be a table, got 3", "inputs"),
        ("[check]", "[chekc]", 21, "unknown field 'chekc'", "'check'"),
        ('"elementwise"', '"pointwise"', 2, "'elementwise', 'reduce'", "op_class"),
        ("level = 1", "level = 7", 3, "1, 2 or 3", "level"),
        ("level = 1", "level = ", 3, "not valid TOML", None),
        ('"normal", "zeros"', '"gaussian"', 22, "'normal'", None),
        ("n = 4, d = 8", "n = 4", 18, "no size for dimension 'd'", "d = …"),
        ("n = 4, d = 8", "n = 4, d = 8, e = 1", 18, "no input has a dimension 'e'", "d, n"),
        ("n = 4, d = 8", "n = 4, d = 0", 18, "greater than 0", "shapes"),
        (
            'y = { shape = ["n"',
            'y = { shape = ["m"',
            14,
            "dimension 'm' stands in no input",
            "d, n",
        ),
        ('w = { shape = ["d"]', 'w = { shape = ["d+1"]', 8, "'d+1'", None),
        ("[scalars]\nfactor", "[scalars]\nx", 11, "both an input and a scalar", None),
        ('name = "scaled"', 'name = "other"', 1, "name must be the folder's, 'scaled'", "rename"),
        ("scale = 0.5", "low = 2, high = 1", 8, "low must be below high", None),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else None,
)
def test_wrong_task_file_names_line_and_remedy(write, old, new, line, says, hint):
    assert old in TOML
    folder = write(TOML.replace(old, new, 1))
    with pytest.raises(TaskError) as caught:
        tasks.load(folder)
    message = str(caught.value)
    assert f"task.toml:{line}: " in message
    assert says in message
    assert "\n" not in message
    if hint is not None:
        assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        (
            "def reference(x, w, *, factor):\n    y = 1\n    return y / 0\n",
            ":3: reference raised Zero",
        ),
        ("def reference(x, w, *, factor)\n    return x\n", ":1: expected ':'"),
        ("import nothing_like_this\n", ":1: reference.py raised ModuleNotFoundError"),
        ("def ref(x):\n    return x\n", "defines no function 'reference'"),
        ("\ndef reference(x):\n    return x\n", ":2: reference does not take the task's inputs"),
        (
            "def reference(x, w, *, factor):\n    return x.T\n",
            r"shape [3, 2] for 'y', expected [2, 3]",
        ),
        ("def reference(x, w, *, factor):\n    x * w\n", "returned shape None for 'y'"),
        ("def reference(x, w, *, factor):\n    return x, w\n", "returned 2 arrays"),
        ("def reference(x, w, *, factor):\n    return 'y'\n", "must return numbers for 'y'"),
    ],
    ids=["raises", "syntax", "import", "absent", "signature", "shape", "none", "count", "text"],
)
def test_wrong_reference_names_line_and_remedy(write, reference, says):
    task = tasks.load(write(reference=reference))
    with pytest.raises(TaskError) as caught:
        task.reference(task.draw(task.tiny, seed=1))
    assert "reference.py" in str(caught.value)
    assert says in str(caught.value)


def test_folder_without_reference_is_refused(write):
    with pytest.raises(TaskError, match=r"holds no reference\.py"):
        tasks.load(write(reference=None))


def test_inputs_that_do_not_fit_are_refused(write):
    task = tasks.load(write())
    inputs = task.draw(task.tiny, seed=1)
    with pytest.raises(TaskError, match=r"'w' must have shape \[3\], got \[2\]"):
        task.reference({**inputs, "w": inputs["w"][:2]})
    with pytest.raises(TaskError, match="'x' must be bfloat16, got float32"):
        task.reference({**inputs, "x": inputs["x"].astype(np.float32)})
    with pytest.raises(TaskError, match="'w' is missing"):
        task.reference({"x": inputs["x"]})


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(TaskError, match="unknown task 'rmsnrom'") as caught:
        tasks.load("rmsnrom")
    assert "'rmsnorm'" in (caught.value.hint or "")


def test_name_is_looked_up_in_given_folders_first(write):
    folder = write()
    assert tasks.load("scaled", search=[folder.parent]).folder == folder
    assert tasks.load(folder / "task.toml").folder == folder


def test_path_without_task_says_so(tmp_path):
    with pytest.raises(TaskError, match="no task folder"):
        tasks.load(tmp_path / "nowhere")
    with pytest.raises(TaskError, match=r"holds no task\.toml"):
        tasks.load(tmp_path)
    with pytest.raises(TaskError, match="is a file"):
        tasks.load(Path(__file__))
    with pytest.raises(TaskError, match="no folder"):
        tasks.discover(tmp_path / "nowhere")


def test_discover_skips_what_is_no_task(write):
    folder = write()
    (folder.parent / "__pycache__").mkdir()
    assert tasks.discover(folder.parent) == (folder,)


# --- the tasks that come with the program ------------------------------------------------------


def test_twelve_tasks_come_with_the_program():
    assert len(NAMES) == 12


def tolerance_ratio(task, inputs, expected, output):
    """Return the largest error in units of eps · s: a kernel passes if this is at most `c`."""
    (scale,) = task.error_scale(inputs, (expected,))
    error = np.abs(output - expected)
    eps = DTYPES[task.outputs[0].dtype].eps
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.max(np.where(error == 0, 0.0, error / (eps * scale))))


def null_outputs(inputs, expected):
    """Yield what a kernel could return without computing anything."""
    yield "zeros", np.zeros_like(expected)
    yield "ones", np.ones_like(expected)
    yield "mean", np.full_like(expected, expected.mean())
    yield "row mean", np.broadcast_to(expected.mean(axis=-1, keepdims=True), expected.shape)
    for name, array in inputs.items():
        values = array.astype(np.float64)
        if values.size == expected.size:
            yield f"copy of {name}", values.reshape(expected.shape)
        elif values.shape == expected.shape[-values.ndim :]:
            yield f"copy of {name}", np.broadcast_to(values, expected.shape)


@pytest.mark.parametrize("name", NAMES)
def test_kernel_that_computes_nothing_fails(name):
    task = tasks.load(name)
    for family in task.check.families:
        inputs = task.draw(task.tiny, seed=11, family=family)
        (expected,) = task.reference(inputs)
        for kind, output in null_outputs(inputs, expected):
            ratio = tolerance_ratio(task, inputs, expected, output)
            assert ratio > 100, f"{kind} on {family}"


@pytest.mark.parametrize("name", NAMES)
def test_float32_arithmetic_passes_and_a_coarser_input_fails(name):
    task = tasks.load(name)
    inputs = task.draw(task.tiny, seed=12)
    (expected,) = task.reference(inputs)
    output = DTYPES[task.outputs[0].dtype].storage
    is_float32 = task.outputs[0].dtype == "float32"
    coarse = DTYPES["bfloat16" if is_float32 else "float8_e4m3"].storage

    def run(arrays):
        values = {key: array.astype(np.float32) for key, array in arrays.items()}
        result = np.asarray(task.reference_function()(**values, **task.scalars))
        return result.astype(output).astype(np.float64)

    good = tolerance_ratio(task, inputs, expected, run(inputs))
    rounded = {key: array.astype(coarse) for key, array in inputs.items()}
    bad = tolerance_ratio(task, inputs, expected, run(rounded))
    assert good < 16
    assert bad > max(16, 4 * good)


@pytest.mark.parametrize("name", NAMES)
def test_reference_is_finite_on_every_family(name):
    task = tasks.load(name)
    for family in task.check.families:
        inputs = task.draw(task.tiny, seed=13, family=family)
        for output in task.reference(inputs):
            assert np.isfinite(output).all(), family


@pytest.mark.parametrize("name", NAMES)
def test_held_out_shapes_include_a_ragged_one(name):
    task = tasks.load(name)
    assert any(size % 128 for dims in task.held_out for size in dims.values())
    assert task.source
