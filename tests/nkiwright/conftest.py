"""Small copies of tasks, so that a whole solve takes seconds."""

import shutil
from pathlib import Path

import pytest

from nkiwright import tasks


def small_copy(name: str, folder: Path, main: str) -> Path:
    """Copy a task with another main shape."""
    target = folder / name
    shutil.copytree(tasks.load(name).folder, target)
    file = target / "task.toml"
    lines = file.read_text().splitlines()
    lines = [f"main = {main}" if line.startswith("main =") else line for line in lines]
    file.write_text("\n".join(lines) + "\n")
    return target


@pytest.fixture
def small_rmsnorm(tmp_path: Path) -> Path:
    """rmsnorm at 256 x 512."""
    return small_copy("rmsnorm", tmp_path, "{ n = 256, d = 512 }")
