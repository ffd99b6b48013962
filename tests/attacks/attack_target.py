"""What runs in the child during these tests: it executes the source and returns its `answer`.

Everything that an attack needs is imported here, before any layer holds; an import that fails
inside would look like a stopped attack.
"""

from __future__ import annotations

import ctypes
import mmap
import socket
import subprocess
import threading
from collections.abc import Mapping

LIBC = ctypes.CDLL(None, use_errno=True)
IMPORTED = (mmap, socket, subprocess, threading)


def run(request: Mapping[str, object]) -> bytes:
    """Execute the source; its name `answer` is the answer."""
    source = request["source"]
    assert isinstance(source, str)
    names: dict[str, object] = {"given": request, "libc": LIBC}
    exec(compile(source, "attack.py", "exec"), names)
    answer = names["answer"]
    return answer if isinstance(answer, bytes) else str(answer).encode()


def raise_error(request: Mapping[str, object]) -> bytes:
    """Fail as a target with a fault of its own would."""
    raise RuntimeError(f"a fault in the target, given {sorted(request)}")


def answer_text(request: Mapping[str, object]) -> str:
    """Break the contract: a target returns bytes."""
    return str(request)
