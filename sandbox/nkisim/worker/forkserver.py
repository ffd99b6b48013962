"""The process that imports everything once and forks a confined child for each request.

It runs our code only, holds no secret and no tensor, and has one thread.  It obeys a control socket
(whole messages, JSON plus descriptors), handles one request at a time and ends when the socket
closes.  The parent keeps the clock: a handle of each child is sent to it, and it does the killing.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from nkisim.worker.child import Channels, Target, handle_request
from nkisim.worker.limits import Confinement, Limits

MESSAGE_BYTES = 64 << 10
"""Largest control message."""
PRELOADED_MODULES = (
    "numpy",
    "numpy.fft",
    "numpy.linalg",
    "numpy.ma",
    "numpy.polynomial",
    "numpy.random",
    "numpy.testing",
    "numpy.typing",
    "abc argparse array ast base64 bisect builtins cmath collections collections.abc contextlib",
    "contextvars copy ctypes dataclasses datetime decimal difflib dis encodings.ascii",
    "encodings.idna encodings.latin_1 encodings.utf_16 encodings.utf_32 enum errno fractions",
    "functools gc hashlib heapq importlib.abc importlib.machinery importlib.util inspect io",
    "itertools json keyword linecache locale logging math numbers opcode operator os os.path",
    "pathlib pickle platform pprint queue random re resource secrets shutil signal statistics",
    "string stringprep struct sys tempfile textwrap threading time timeit token tokenize traceback",
    "types typing typing_extensions unicodedata uuid warnings weakref zlib",
)
"""Importable by generated code, since nothing can be opened once a child is confined."""


def main(config: Mapping[str, object]) -> None:
    """Serve requests until the control socket closes.

    Args:
        config: `control`, the descriptor of the socket, and `preload`, more modules to import.
    """
    descriptor, preload = config["control"], config["preload"]
    assert isinstance(descriptor, int)
    assert isinstance(preload, list)
    sys.argv = ["nkisim"]
    control = socket.socket(fileno=descriptor)
    _prefer_for_out_of_memory()
    _import_all(PRELOADED_MODULES)
    for module in preload:
        importlib.import_module(module)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # text of a lost child
    confinement = Confinement.prepare()
    targets: dict[str, Target] = {}
    gc.collect()
    gc.freeze()
    _send(control, {"event": "ready"}, [os.pidfd_open(os.getpid())], close=True)
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 4)
        if not data:
            return
        message = json.loads(data)
        if "load" in message:
            _load(control, message["load"], targets)
        else:
            _serve(control, message, descriptors, confinement, targets)


def _load(control: socket.socket, name: str, targets: dict[str, Target]) -> None:
    """Import a target, so that no child has to."""
    try:
        module = name.partition(":")[0]
        is_prepared = any(other.partition(":")[0] == module for other in targets)
        targets[name] = find_target(name, is_prepared=is_prepared)
    except Exception as exc:
        _send(control, {"event": "failed", "message": f"{type(exc).__name__}: {exc}"[:4000]})
        return
    gc.collect()
    gc.freeze()
    _send(control, {"event": "loaded"})


def _serve(
    control: socket.socket,
    job: Mapping[str, object],
    descriptors: Sequence[int],
    confinement: Confinement,
    targets: dict[str, Target],
) -> None:
    """Fork a child for one request and report its start and its end."""
    name, layers = job["target"], job["layers"]
    cpu_seconds, memory_bytes = job["cpu_seconds"], job["memory_bytes"]
    assert isinstance(name, str)
    assert isinstance(layers, list)
    assert isinstance(cpu_seconds, int)
    assert isinstance(memory_bytes, int)
    request, answer, stdout, stderr = descriptors
    channels = Channels(request=request, answer=answer, stdout=stdout, stderr=stderr)
    limits = Limits(cpu_seconds=cpu_seconds, memory_bytes=memory_bytes)
    own_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        handle_request(targets[name], channels, confinement, layers, limits, parent_pid=own_pid)
    for descriptor in descriptors:
        os.close(descriptor)
    handle = os.pidfd_open(pid)
    try:
        _send(control, {"event": "started"}, [handle])
        _wait_for_end(control, handle)
    finally:
        os.close(handle)
    _, status, usage = os.wait4(pid, 0)
    ended = {
        "event": "ended",
        "status": status,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "max_rss_bytes": usage.ru_maxrss * 1024,
    }
    _send(control, ended)


def _wait_for_end(control: socket.socket, handle: int) -> None:
    """Return when the child has ended; leave with it if the parent has gone."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.register(control, select.POLLRDHUP)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if handle in ready:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        _leave()


def _leave() -> NoReturn:
    os._exit(0)


def find_target(name: str, *, is_prepared: bool = False) -> Target:
    """Import the target "module:function".

    If its module has a function `prepare`, that is called once: it reads what the target needs
    from files and fills caches, since no child can.
    """
    path, _, attribute = name.partition(":")
    module = importlib.import_module(path)
    target = getattr(module, attribute)
    if not callable(target):
        raise TypeError(f"{name} is not callable")
    prepare = getattr(module, "prepare", None)
    if prepare is not None and not is_prepared:
        prepare()
    found: Target = target
    return found


def _import_all(names: Sequence[str]) -> None:
    for name in " ".join(names).split():
        # Not every build of Python has every module.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _prefer_for_out_of_memory() -> None:
    """Ask the kernel to end this process and its children first when memory runs out."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _send(
    control: socket.socket,
    message: Mapping[str, object],
    descriptors: Sequence[int] = (),
    *,
    close: bool = False,
) -> None:
    """Send one message; a closed socket means that the parent has gone."""
    try:
        socket.send_fds(control, [json.dumps(message).encode()], list(descriptors))
    except (BrokenPipeError, ConnectionResetError):
        _leave()
    if close:
        for descriptor in descriptors:
            os.close(descriptor)
