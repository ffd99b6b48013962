"""The throw-away process that tries each layer and tells what it found as JSON on stdout."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping

from nkisim.worker import landlock, launch
from nkisim.worker.limits import Confinement, LayerFailure, Limits

_LIMITS = Limits(cpu_seconds=10)


def main(config: Mapping[str, object]) -> None:
    """Try the layers one by one, each in a child of its own."""
    del config
    confinement = Confinement.prepare()
    found: dict[str, tuple[str, str]] = {
        "environment": _environment(),
        "descriptors": _descriptors(),
        "rlimits": _in_child(lambda: _resource_limits(confinement)),
        "no_new_privs": _in_child(lambda: _no_new_privs(confinement)),
        "landlock": _landlock(confinement),
        "seccomp": _in_child(lambda: _seccomp(confinement)),
    }
    if os.geteuid() == 0:
        found["user"] = _in_child(lambda: _user(confinement))
    else:
        found["user"] = ("unavailable", f"not needed: runs as user {os.geteuid()}, not as root")
    sys.stdout.write(json.dumps(found))


def show_numpy(config: Mapping[str, object]) -> None:
    """Show that numpy can be imported here."""
    del config
    import ml_dtypes  # noqa: F401  # must be importable as well
    import numpy as np

    sys.stdout.write(f"numpy {np.__version__}")


def _in_child(attempt: Callable[[], str]) -> tuple[str, str]:
    """Return the state of one layer, found out in a forked child."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            text = json.dumps(["active", attempt()])
        except LayerFailure as exc:
            text = json.dumps(["missing", str(exc.__cause__)])
        except BaseException as exc:
            text = json.dumps(["unavailable", f"{type(exc).__name__}: {exc}"])
        os.write(writer, text.encode()[:4000])
        os._exit(0)
    os.close(writer)
    data = b""
    while piece := os.read(reader, 4096):
        data += piece
    os.close(reader)
    status = os.waitpid(pid, 0)[1]
    if not data:
        return "unavailable", f"the probing child ended with status {status}"
    state, detail = json.loads(data)
    return state, detail


def _must_fail(action: Callable[[], object], number: int, what: str) -> None:
    """Demand that an action is denied with exactly this error."""
    try:
        action()
    except OSError as exc:
        if exc.errno != number:
            raise OSError(exc.errno, f"{what}: expected errno {number}, got {exc}") from exc
        return
    raise RuntimeError(f"{what} still works")


def _environment() -> tuple[str, str]:
    names = set(os.environ) - {"LC_CTYPE", "PWD"}
    extra = names - set(launch.scrubbed_environment())
    if extra:
        return "unavailable", f"unexpected variables {sorted(extra)}"
    return "active", f"{len(names)} variables"


def _descriptors() -> tuple[str, str]:
    extra: list[int] = []
    for descriptor in range(3, 256):
        try:
            os.fstat(descriptor)
        except OSError:
            continue
        extra.append(descriptor)
    if extra:
        return "unavailable", f"open descriptors {extra}"
    return "active", "only stdin, stdout and stderr are open"


def _resource_limits(confinement: Confinement) -> str:
    confinement.apply(("rlimits",), _LIMITS, parent_pid=os.getppid())
    _must_fail(lambda: [os.pipe() for _ in range(4)], errno.EMFILE, "opening descriptors")
    try:
        bytearray(_LIMITS.memory_bytes + (1 << 20))
    except MemoryError:
        return "memory, CPU time, files, processes and descriptors are limited"
    raise RuntimeError("memory is not limited")


def _no_new_privs(confinement: Confinement) -> str:
    confinement.apply(("no_new_privs",), _LIMITS, parent_pid=os.getppid())
    return "set"


def _user(confinement: Confinement) -> str:
    confinement.apply(("user",), _LIMITS, parent_pid=os.getppid())
    _must_fail(lambda: os.setuid(0), errno.EPERM, "becoming root again")
    return f"root becomes user {os.getuid()}"


def _landlock(confinement: Confinement) -> tuple[str, str]:
    if confinement.landlock_abi == 0:
        return "missing", "ABI 0"
    return _in_child(lambda: _landlock_holds(confinement))


def _landlock_holds(confinement: Confinement) -> str:
    layers = ("no_new_privs", "landlock")
    confinement.apply(layers, _LIMITS, parent_pid=os.getppid())
    _must_fail(lambda: os.open("/", os.O_RDONLY), errno.EACCES, "opening a folder")
    _must_fail(lambda: os.open(sys.executable, os.O_RDONLY), errno.EACCES, "opening a file")
    abi = confinement.landlock_abi
    text = f"ABI {abi}, files"
    if abi >= 4:
        with socket.socket() as endpoint:
            address = ("127.0.0.1", 9)
            _must_fail(lambda: endpoint.connect(address), errno.EACCES, "a TCP connection")
        text += ", TCP"
    if abi >= landlock.SCOPES_ABI:
        _must_fail(lambda: os.kill(os.getppid(), 0), errno.EPERM, "a signal to the parent")
        text += ", signals and abstract sockets"
    return text


def _seccomp(confinement: Confinement) -> str:
    layers = ("no_new_privs", "seccomp")
    confinement.apply(layers, _LIMITS, parent_pid=os.getppid())
    _must_fail(socket.socket, errno.EPERM, "a socket")
    _must_fail(os.fork, errno.EPERM, "a new process")
    _must_fail(lambda: os.open("/", os.O_RDONLY), errno.EPERM, "opening a folder")
    return "allow-list for x86-64"
