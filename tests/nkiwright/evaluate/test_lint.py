"""Checking tasks: what is wrong with them is found, and `c` is measured and stored."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nkisim.worker import Sandbox
from nkiwright import tasks
from nkiwright.cli.main import app
from nkiwright.errors import TaskError
from nkiwright.evaluate.lint import c_for, lint_task, narrowed, store_c

SMALL = {"held_out": "held_out = []", "main": "main = { n = 256, d = 256 }"}


def copy_of(folder: Path, *changes: tuple[str, str, str], name: str = "vector_add") -> Path:
    """Copy a task at a small shape, with texts replaced in its files."""
    target = folder / name
    shutil.copytree(tasks.load(name).folder, target)
    file = target / "task.toml"
    lines = file.read_text().splitlines()
    lines = [SMALL.get(line.split(" =")[0], line) for line in lines]
    file.write_text("\n".join(lines) + "\n")
    for place, old, new in changes:
        text = (target / place).read_text()
        assert old in text
        (target / place).write_text(text.replace(old, new))
    return target


def problems(folder: Path) -> str:
    return "\n".join(lint_task(tasks.load(folder), sandbox=None).problems)


def test_a_sound_task_has_no_problems(tmp_path: Path) -> None:
    with Sandbox() as sandbox:
        report = lint_task(tasks.load(copy_of(tmp_path)), sandbox=sandbox)
    assert report.is_sound
    assert report.notes == ()
    assert report.c == 2.0


BROKEN = {
    "wrong baseline": (
        ("baseline.py", "op=nl.add", "op=nl.subtract"),
        "baseline at n=256 d=256 on 'normal' inputs: z: ",
    ),
    "baseline wrong at another shape": (
        ("baseline.py", "op=nl.add", "op=nl.add if n == 256 else nl.multiply"),
        "baseline at n=128 d=256 on 'normal' inputs: z: ",
    ),
    "illegal baseline": (
        ("baseline.py", "min(P, n - start)", "n"),
        "baseline at n=256 d=256: NKS",
    ),
    "no kernel": (("baseline.py", "def kernel", "def other"), "NKS608"),
    "c missing": (("task.toml", "c = 2.0\n", ""), "no c under [check]; the baseline asks for 2"),
    "c too loose": (("task.toml", "c = 2.0", "c = 100.0"), "c = 100 is far from the 2"),
    "anything goes": (("task.toml", "c = 2.0", "c = 1e9"), "passes that returns zeros"),
    "bfloat16 goes": (
        ("task.toml", "rtol = 1e-6\nc = 2.0", "rtol = 1e-6\nc = 1e6"),
        "the baseline passes with bfloat16 tiles",
    ),
    "bfloat16 inputs go": (
        ("task.toml", "rtol = 1e-6\nc = 2.0", "rtol = 1e-6\nc = 1e6"),
        "inputs rounded to bfloat16 pass",
    ),
    "not finite": (
        ("reference.py", "return x + y", "return x + y + 1e308 * 10"),
        "on 'normal' inputs the reference is not finite",
    ),
    "a copy is right": (
        ("reference.py", "return x + y", "return x"),
        "a kernel passes that returns copy of x",
    ),
}


@pytest.mark.parametrize(("change", "words"), BROKEN.values(), ids=BROKEN.keys())
def test_what_is_wrong_is_said(tmp_path: Path, change: tuple[str, str, str], words: str) -> None:
    assert words in problems(copy_of(tmp_path, change))


def test_a_c_that_refuses_the_baseline_is_said(tmp_path: Path) -> None:
    folder = copy_of(tmp_path, ("task.toml", "c = 200.0", "c = 0.1"), name="cumsum")
    assert "c = 0.1 refuses the baseline, whose ratio is" in problems(folder)


def test_a_task_without_baseline_is_only_noted(tmp_path: Path) -> None:
    folder = copy_of(tmp_path)
    (folder / "baseline.py").unlink()
    report = lint_task(tasks.load(folder), sandbox=None)
    assert report.is_sound
    assert report.c is None
    assert "no baseline.py" in report.notes[0]


@pytest.mark.parametrize(
    ("ratio", "c"),
    [(0.0, 2.0), (0.5, 2.0), (0.51, 2.1), (2.5, 10.0), (2.51, 11.0), (30.1, 130.0), (25.0, 100.0)],
)
def test_c_is_four_times_the_ratio_rounded_up_to_two_digits(ratio: float, c: float) -> None:
    assert c_for(ratio) == c


def test_narrowing_keeps_results_in_hbm_and_columns() -> None:
    source = narrowed(
        "def kernel(x):\n"
        "    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)\n"
        "    a = nl.ndarray((4, 8), dtype=nl.float32, buffer=nl.sbuf)\n"
        "    b = nl.ndarray((4, 1), dtype=nl.float32, buffer=nl.sbuf)\n"
        "    c = nl.ndarray((4, 8), dtype=x.dtype, buffer=nl.psum)\n"
    )
    assert source is not None
    kinds = [line.split("dtype=")[1].split(",")[0] for line in source.splitlines()[1:]]
    assert kinds == ["x.dtype", "nl.bfloat16", "nl.float32", "nl.bfloat16"]
    assert narrowed("def kernel(x):\n    return x\n") is None


STORED = {
    "replaced": ("c = 2.0\n", "c = 7.5\n"),
    "comment kept": ("c = 2.0  # by hand\n", "c = 7.5  # by hand\n"),
    "spaces kept": ("  c=2.0\n", "  c=7.5\n"),
    "added": ("", "c = 7.5\n"),
    "no line end": ("c = 2.0", "c = 7.5"),
    "followed by a table": ("c = 2.0\n\n[scalars]\nc = 1.0\n", "c = 7.5\n\n[scalars]\nc = 1.0\n"),
}


@pytest.mark.parametrize(("before", "after"), STORED.values(), ids=STORED.keys())
def test_storing_c_changes_one_line(tmp_path: Path, before: str, after: str) -> None:
    folder = copy_of(tmp_path, ("task.toml", "c = 2.0\n", before))
    old = (folder / "task.toml").read_text()
    assert store_c(folder, 7.5)
    assert (folder / "task.toml").read_text() == old.removesuffix(before) + after
    assert tasks.load(folder).check.c == 7.5
    assert not store_c(folder, 7.5)
    assert [p.name for p in folder.iterdir() if p.name.startswith(".")] == []


def test_storing_c_adds_the_table(tmp_path: Path) -> None:
    folder = copy_of(tmp_path)
    file = folder / "task.toml"
    file.write_text(file.read_text().split("[check]")[0])
    store_c(folder, 7.5)
    assert file.read_text().endswith("\n\n[check]\nc = 7.5\n")
    assert tasks.load(folder).check.c == 7.5


def test_a_file_in_another_form_is_left_alone(tmp_path: Path) -> None:
    folder = copy_of(tmp_path)
    file = folder / "task.toml"
    text = 'check = { families = ["normal"], rtol = 0.0, c = 2.0 }\n'
    file.write_text(text + file.read_text().split("[check]")[0])
    before = file.read_text()
    with pytest.raises(TaskError) as raised:
        store_c(folder, 7.5)
    assert str(raised.value) == f"{file}:1: cannot change c where it is written"
    assert raised.value.hint == "write c = 7.5 by hand"
    assert file.read_text() == before


def command(*arguments: str):
    return CliRunner().invoke(app, ["tasks", "lint", *arguments], env={"COLUMNS": "200"})


def test_the_command_checks_tasks_and_folders(tmp_path: Path) -> None:
    copy_of(tmp_path)
    copy_of(tmp_path, ("task.toml", "c = 200.0", "c = 9000.0"), name="cumsum")
    result = command(str(tmp_path), "--quiet")
    assert result.exit_code == 2, result.stderr
    header, first, second = result.stdout.splitlines()
    assert header.split() == ["task", "ratio", "worst", "on", "c", "stored", "findings"]
    assert first.startswith("cumsum")
    assert "c = 9000 is far from" in first
    assert second.split()[0] == "vector_add"
    assert second.split()[-1] == "ok"
    assert command(str(tmp_path / "vector_add"), "--quiet").exit_code == 0


def test_the_command_stores_c(tmp_path: Path) -> None:
    folder = copy_of(tmp_path, ("task.toml", "c = 2.0", "c = 5.5  # guessed"))
    assert command(str(folder)).exit_code == 2
    result = command(str(folder), "--write", "--json")
    assert result.exit_code == 0, result.stderr
    assert "task.toml: c = 2.0" in result.stderr
    assert json.loads(result.stdout)["tasks"][0]["c"] == 2.0
    assert "c = 2.0  # guessed" in (folder / "task.toml").read_text()
    assert command(str(folder)).exit_code == 0


def test_the_command_stores_no_c_of_a_wrong_baseline(tmp_path: Path) -> None:
    folder = copy_of(tmp_path, ("baseline.py", "op=nl.add", "op=nl.subtract"))
    before = (folder / "task.toml").read_text()
    result = command(str(folder), "--write", "--quiet")
    assert result.exit_code == 2
    assert "has problems, so no c is stored" in result.stderr
    assert (folder / "task.toml").read_text() == before


def test_the_command_says_which_task_is_unknown() -> None:
    result = command("vector_ad")
    assert result.exit_code == 2
    assert "unknown task 'vector_ad'" in result.stderr
    assert "did you mean 'vector_add'?" in result.stderr
