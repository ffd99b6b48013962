"""Modules import only what stands below them; the layers themselves stand in pyproject.toml."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(
    not (ROOT / "pyproject.toml").is_file(), reason="needs the source tree, with its pyproject.toml"
)
def test_layers_hold():
    script = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run(
        [script, "--no-cache"],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "3 kept, 0 broken" in result.stdout
