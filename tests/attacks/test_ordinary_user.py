"""The sandbox of an ordinary user, when the tests themselves run as root.

An ordinary user's tests need none of this: they are the proof already.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

USER = 65534
PROGRAM = """
import json, os, sys
from nkisim.worker import Sandbox
folder = sys.argv[1]
found = {}
sources = {
    "honest": "answer = b'done'",
    "read": "answer = attempt(lambda: open(given['folder'] + '/attack_target.py').read())",
    "fork": "answer = attempt(lambda: os.fork() or os._exit(0))",
    "kill": "answer = attempt(lambda: os.kill(os.getppid(), 0))",
    "loop": "while True: pass",
    "memory": "answer = np.ones(200 << 30, np.uint8)",
}
layers = {"rlimits", "user", "no_new_privs", "landlock", "seccomp", "bubblewrap"}
for without in ((), layers):
    with Sandbox(import_path=[folder], unsafe_without=without) as sandbox:
        for name, source in sources.items():
            if without and name in ("loop", "memory"):
                continue
            request = {"source": source, "folder": folder}
            answer = sandbox.run(request, target="attack_target:run", wall_seconds=1)
            text = answer.payload.decode() or str(answer.status)
            found.setdefault("control" if without else "sandbox", {})[name] = text
found["layers"] = {layer["name"]: layer["state"] for layer in answer.layers.to_dict()}
found["user"] = os.getuid()
print(json.dumps(found))
"""


@pytest.fixture
def open_folder() -> Iterator[str]:
    """A folder that every user can read; the tests' own may be below a private one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copy(Path(__file__).parent / "attack_target.py", folder)
        (folder / "attack_target.py").chmod(0o644)
        yield name


def _as_user(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        user=USER,
        group=USER,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


def test_ordinary_user_is_protected_as_well(open_folder: str) -> None:
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("not root: the other tests show it")
    try:
        trial = _as_user("-c", "import nkisim, numpy")
    except PermissionError as exc:
        pytest.skip(f"an ordinary user cannot start this interpreter: {exc}")
    if trial.returncode != 0:
        pytest.skip(f"an ordinary user cannot import nkisim: {trial.stderr[-200:]}")
    done = _as_user("-c", PROGRAM, open_folder)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["user"] == USER
    assert found["sandbox"] == {
        "honest": "done",
        "read": "EPERM",
        "fork": "EPERM",
        "kill": "EPERM",
        "loop": "timeout",
        "memory": "memory",
    }
    assert set(found["control"].values()) == {"done"}
