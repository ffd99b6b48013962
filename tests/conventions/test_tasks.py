"""Every task folder that comes with the program is whole."""

from __future__ import annotations

import pytest

from nkiwright import tasks
from nkiwright.resources import data_dir

FOLDERS = sorted(path for path in data_dir("tasks").iterdir() if path.name != "__pycache__")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_task_loads_and_its_reference_runs(folder):
    task = tasks.load(folder)
    outputs = task.reference(task.draw(task.tiny, seed=1))
    assert [output.shape for output in outputs] == [
        spec.resolve(task.tiny) for spec in task.outputs
    ]
