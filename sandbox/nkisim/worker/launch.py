"""How the interpreter of a worker process is started: fixed environment, fixed path, no secrets."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_BOOTSTRAP = (
    "import importlib,json,sys;c=json.loads(sys.argv[1]);sys.argv[1:]=[];"
    "sys.path[:0]=c['path'];m,f=c['main'].split(':');"
    "getattr(importlib.import_module(m),f)(c)"
)


def scrubbed_environment() -> dict[str, str]:
    """Return the whole environment of a worker process.

    One BLAS thread makes a fork safe; a fixed hash seed makes two traces of a kernel equal.
    """
    environment = {
        "PATH": "/usr/bin:/bin",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONUTF8": "1",
    }
    if "LD_LIBRARY_PATH" in os.environ:
        # Some installations cannot load numpy without it; it names folders only.
        environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
    return environment


def import_roots(extra: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the folders from which nkisim, its dependencies and `extra` are imported."""
    roots = [str(Path(folder).resolve()) for folder in extra]
    for package in ("nkisim", "numpy", "ml_dtypes"):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            roots.append(str(Path(spec.origin).resolve().parent.parent))
    return tuple(dict.fromkeys(roots))


def python_command(main: str, roots: Sequence[str], config: Mapping[str, object]) -> list[str]:
    """Return the command that calls `main` ("module:function") with a configuration.

    The working folder and the user's site-packages stay off the path; the environment needs no
    ignoring, since it is `scrubbed_environment`.
    """
    text = json.dumps({**config, "main": main, "path": list(roots)})
    return [sys.executable, "-s", "-P", "-c", _BOOTSTRAP, text]
