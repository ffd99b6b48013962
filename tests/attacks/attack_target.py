"""What runs in the child during these tests: it executes the source and returns its `answer`.

Everything that an attack needs is imported here, before any layer holds; an import that fails
inside would look like a stopped attack.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import linecache
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

LIBC = ctypes.CDLL(None, use_errno=True)
MODULES = {
    module.__name__: module
    for module in (
        ctypes,
        gc,
        linecache,
        mmap,
        os,
        resource,
        signal,
        socket,
        subprocess,
        sys,
        threading,
        time,
    )
}


FIRST_LINES: list[str] = []


def prepare() -> None:
    """Read a file while that is possible."""
    FIRST_LINES.append(Path(__file__).read_text().splitlines()[0])


def attempt(action: Callable[[], object]) -> str:
    """Return "done", or the name of the error that stopped the action."""
    try:
        action()
    except OSError as exc:
        return errno.errorcode.get(exc.errno or 0, str(exc))
    except RuntimeError as exc:
        return f"RuntimeError: {exc}"
    return "done"


def call(result: int) -> int:
    """Raise what the C library reported."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def run(request: Mapping[str, object]) -> bytes:
    """Execute the source; its name `answer` is the answer."""
    source = request["source"]
    assert isinstance(source, str)
    names: dict[str, object] = {
        **MODULES,
        "np": np,
        "given": request,
        "libc": LIBC,
        "attempt": attempt,
        "call": call,
        "first_lines": FIRST_LINES,
    }
    exec(compile(source, "attack.py", "exec"), names)
    answer = names["answer"]
    return answer if isinstance(answer, bytes) else str(answer).encode()


def raise_error(request: Mapping[str, object]) -> bytes:
    """Fail as a target with a fault of its own would."""
    raise RuntimeError(f"a fault in the target, given {sorted(request)}")


def answer_text(request: Mapping[str, object]) -> str:
    """Break the contract: a target returns bytes."""
    return str(request)
