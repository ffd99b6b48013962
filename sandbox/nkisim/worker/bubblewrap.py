"""Wrapping a worker process in bubblewrap: own namespaces, a read-only tree, no network.

An extra wall where the system offers it.  Inside stand the interpreter, the folders it imports from
and nothing of the user's; there is no /proc, /etc or home.  The worker is process 1 of its
namespace, so that its death ends all that it started.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

_ROOT_CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_KILL")
"""Root keeps these, to become an unprivileged user in the child and to end it."""


def wrap(bwrap: str, command: Sequence[str], roots: Sequence[str]) -> list[str]:
    """Return `command` wrapped so that only the interpreter and `roots` can be read.

    No `--die-with-parent`: that follows the thread that started it, which may end first.  The
    worker ends by itself once its control socket is closed.
    """
    arguments = [bwrap, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    arguments += ["--as-pid-1", "--new-session", "--cap-drop", "ALL"]
    if os.geteuid() == 0:
        # In a user namespace uid 0 inside would still be uid 0 on the files outside.
        for capability in _ROOT_CAPABILITIES:
            arguments += ["--cap-add", capability]
    else:
        arguments.append("--unshare-user")
    arguments += ["--ro-bind", "/usr", "/usr"]
    for name in ("/lib", "/lib64", "/lib32"):
        path = Path(name)
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), name]
        elif path.exists():
            arguments += ["--ro-bind", name, name]
    for folder in _outermost([sys.prefix, sys.base_prefix, *roots]):
        arguments += ["--ro-bind", folder, folder]
    return [*arguments, "--dev", "/dev", "--chdir", "/", "--", *command]


def _outermost(folders: Sequence[str]) -> list[str]:
    """Return the existing folders that lie in no other one and not below /usr."""
    kept: list[Path] = []
    for folder in sorted({Path(name) for name in folders if Path(name).is_dir()}):
        if not any(folder.is_relative_to(outer) for outer in (Path("/usr"), *kept)):
            kept.append(folder)
    return [str(folder) for folder in kept]
