"""The parent gets an answer in every case and keeps nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nkisim.worker import (
    AnswerStatus,
    ChildAnswer,
    LayerReport,
    Sandbox,
    SandboxUnavailable,
    WorkerError,
    probe_layers,
)

ATTACKS = str(Path(__file__).parents[2] / "attacks")
TARGET = "attack_target:run"


def _sandbox_reason() -> str | None:
    try:
        probe_layers().require()
    except SandboxUnavailable as exc:
        return str(exc)
    return None


def _unwrapped() -> LayerReport:
    """Without bubblewrap, which has a test of its own: it makes every start slower."""
    return probe_layers(bwrap="")


REASON = _sandbox_reason()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(import_path=[ATTACKS], probe=_unwrapped) as whole:
        yield whole


def _run(sandbox: Sandbox, source: str, **more: object) -> ChildAnswer:
    return sandbox.run({"source": source, **more}, target=TARGET, wall_seconds=10)


def test_answer_carries_bytes_output_usage_and_layers(sandbox: Sandbox) -> None:
    source = "print('to', 1)\nprint('error', file=sys.stderr)\nanswer = bytes(range(256))"
    answer = _run(sandbox, source)
    assert (answer.status, answer.payload) == (AnswerStatus.OK, bytes(range(256)))
    assert (answer.stdout, answer.stderr) == ("to 1\n", "error\n")
    assert (answer.exit_code, answer.signal, answer.detail) == (0, None, "")
    assert answer.usage.cpu_seconds is not None
    assert answer.usage.max_rss_bytes is not None
    assert answer.usage.max_rss_bytes > 1 << 20
    assert answer.layers.is_trusted
    assert {"seccomp", "rlimits", "no_new_privs"} <= set(answer.layers.active)


def test_large_request_and_large_answer_pass_whole(sandbox: Sandbox) -> None:
    source = "answer = given['text'].encode()[::-1]"
    answer = _run(sandbox, source, text="ab" * (4 << 20))
    assert answer.payload == b"ba" * (4 << 20)


def test_answer_cap_is_the_callers_choice() -> None:
    with Sandbox(import_path=[ATTACKS], probe=_unwrapped, answer_cap_bytes=100) as small:
        assert _run(small, "answer = b'x' * 100").status is AnswerStatus.OK
        assert _run(small, "answer = b'x' * 101").status is AnswerStatus.ANSWER_TOO_LARGE
        assert _run(small, "answer = b'x' * 100").status is AnswerStatus.OK


def test_cold_run_uses_a_server_of_its_own(sandbox: Sandbox) -> None:
    _run(sandbox, "answer = 1")
    before = sandbox.server_pid
    answer = sandbox.run({"source": "answer = os.getppid()"}, target=TARGET, cold=True)
    assert answer.status is AnswerStatus.OK
    assert int(answer.payload) != before
    assert sandbox.server_pid == before


def test_two_runs_share_nothing(sandbox: Sandbox) -> None:
    _run(sandbox, "sys.left = 1\nanswer = 1")
    assert _run(sandbox, "answer = hasattr(sys, 'left')").payload == b"False"


def test_hashes_of_text_are_the_same_in_every_server(sandbox: Sandbox) -> None:
    source = "answer = hash('kernel')"
    cold = sandbox.run({"source": source}, target=TARGET, cold=True)
    assert cold.payload == _run(sandbox, source).payload


def test_exception_of_the_target_is_told_with_its_traceback(sandbox: Sandbox) -> None:
    answer = sandbox.run({"b": 1}, target="attack_target:raise_error")
    assert answer.status is AnswerStatus.CRASHED
    assert "RuntimeError: a fault in the target, given ['b']" in answer.detail


def test_target_that_returns_no_bytes_is_a_crash(sandbox: Sandbox) -> None:
    answer = sandbox.run({}, target="attack_target:answer_text")
    assert answer.status is AnswerStatus.CRASHED
    assert "must return bytes, got str" in answer.detail


def test_target_is_prepared_once_outside_the_child(sandbox: Sandbox) -> None:
    source = "answer = len(first_lines), first_lines[0][:3]"
    for _ in range(2):
        assert _run(sandbox, source).payload.decode() == str((1, '"""'))


@pytest.mark.parametrize("target", ["no_such_module:run", "attack_target:missing", "os:name"])
def test_target_that_cannot_be_had_is_our_error(sandbox: Sandbox, target: str) -> None:
    with pytest.raises(WorkerError, match="cannot run"):
        sandbox.run({}, target=target)
    assert _run(sandbox, "answer = 1").payload == b"1"


def test_request_must_be_plain_data(sandbox: Sandbox) -> None:
    with pytest.raises(TypeError):
        sandbox.run({"source": object()}, target=TARGET)


def test_fork_server_is_replaced_after_its_share_of_runs() -> None:
    with Sandbox(import_path=[ATTACKS], probe=_unwrapped, runs_per_server=2) as brief:
        pids: list[int | None] = []
        for _ in range(4):
            brief.start()
            pids.append(brief.server_pid)
            assert _run(brief, "answer = 1").status is AnswerStatus.OK
    assert pids[2] == pids[3]
    assert pids[0] == pids[1] != pids[2]


def test_fork_server_stays_after_an_ordinary_failure_and_goes_after_a_crash() -> None:
    with Sandbox(import_path=[ATTACKS], probe=_unwrapped) as own:
        _run(own, "answer = 1")
        first = own.server_pid
        assert _run(own, "raise ValueError").status is AnswerStatus.CRASHED
        assert own.server_pid == first
        assert _run(own, "ctypes.memset(0, 1, 1)").signal == signal.SIGSEGV
        assert own.server_pid != first


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_lost_server_between_runs_is_replaced_or_given_up_in_time(number: int) -> None:
    with Sandbox(import_path=[ATTACKS], probe=_unwrapped) as own:
        _run(own, "answer = 1")
        assert own.server_pid is not None
        os.kill(own.server_pid, number)
        start = time.monotonic()
        wall = 6.0 if number == signal.SIGKILL else 0.5
        answer = own.run({"source": "answer = 2"}, target=TARGET, wall_seconds=wall)
        assert time.monotonic() - start < 8
        expected = AnswerStatus.OK if number == signal.SIGKILL else AnswerStatus.TIMEOUT
        assert answer.status is expected
        assert _run(own, "answer = 3").payload == b"3"


def test_server_killed_in_the_middle_of_a_run_takes_its_child_along() -> None:
    with Sandbox(import_path=[ATTACKS], probe=_unwrapped) as own:
        own.start()
        pid = own.server_pid
        assert pid is not None
        timer = threading.Timer(0.4, os.kill, (pid, signal.SIGKILL))
        timer.start()
        answer = own.run({"source": "time.sleep(60)"}, target=TARGET, wall_seconds=30)
        timer.join()
        assert answer.status is AnswerStatus.CRASHED
        assert "fork server" in answer.detail
        assert answer.usage.wall_seconds < 10
        assert _children_of(pid) == []
        assert _run(own, "answer = 1").payload == b"1"


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
def test_wrapped_server_runs_recovers_and_leaves_nothing() -> None:
    if probe_layers()["bubblewrap"].state != "active":
        pytest.skip(probe_layers()["bubblewrap"].detail)
    before = _count_descriptors()
    with Sandbox(import_path=[ATTACKS]) as own:
        answer = _run(own, "answer = os.getppid()")
        assert (answer.status, answer.payload) == (AnswerStatus.OK, b"1")
        assert "bubblewrap" in answer.layers.active
        assert own.server_pid is not None
        os.kill(own.server_pid, signal.SIGKILL)
        assert _run(own, "answer = 1").payload == b"1"
        pid = own.server_pid
    assert not Path(f"/proc/{pid}").exists()
    assert _count_descriptors() == before


def test_descriptors_stay_flat_over_many_runs(sandbox: Sandbox) -> None:
    _run(sandbox, "answer = 1")
    before = _count_descriptors()
    for number in range(100):
        source = "raise ValueError" if number % 3 == 0 else "answer = 1"
        _run(sandbox, source)
    assert _count_descriptors() == before


def test_nothing_is_left_after_the_sandbox_is_closed() -> None:
    before = _count_descriptors()
    with Sandbox(import_path=[ATTACKS], probe=_unwrapped) as own:
        own.run({"source": "while True:\n    pass"}, target=TARGET, wall_seconds=0.3)
        pid = own.server_pid
    assert pid is not None
    assert not Path(f"/proc/{pid}").exists()
    assert _children_of(pid) == []
    assert _count_descriptors() == before
    with pytest.raises(WorkerError, match="closed"):
        own.run({}, target=TARGET)


def test_server_ends_with_its_parent() -> None:
    program = (
        "import os, sys\nfrom nkisim.worker import Sandbox\n"
        f"s = Sandbox(import_path=[{ATTACKS!r}])\ns.start()\n"
        "print(s.server_pid, flush=True)\n"
        f"os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    path = Path(f"/proc/{int(done.stdout)}/cmdline")
    deadline = time.monotonic() + 5
    while path.exists() and path.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not (path.exists() and path.read_bytes())


def test_many_threads_may_ask_one_sandbox(sandbox: Sandbox) -> None:
    payloads: dict[int, bytes] = {}

    def ask(number: int) -> None:
        payloads[number] = _run(sandbox, f"answer = {number}").payload

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert payloads == {number: str(number).encode() for number in range(8)}


def test_without_sandbox_the_run_is_plain_and_says_so() -> None:
    with Sandbox(import_path=[ATTACKS], probe=_unwrapped, unsafe_no_sandbox=True) as plain:
        source = "print('hi')\nanswer = open('/proc/self/status').read()"
        answer = _run(plain, source)
        assert answer.status is AnswerStatus.OK
        assert "Seccomp:\t0" in answer.payload.decode()
        assert answer.stdout == "hi\n"
        assert not answer.layers.is_trusted
        assert answer.layers["seccomp"].state == "disabled"
        assert _run(plain, "answer = len(first_lines)").payload == b"1"
        with pytest.raises(WorkerError, match=r"cannot run.*no_such_module"):
            plain.run({}, target="no_such_module:run")
        late = plain.run({"source": "while True: pass"}, target=TARGET, wall_seconds=0.5)
        assert late.status is AnswerStatus.TIMEOUT
        loud = _run(plain, "while True: print('x' * 1000)")
        assert loud.status is AnswerStatus.OUTPUT_LIMIT


def test_without_sandbox_needs_no_layer() -> None:
    def broken_probe() -> object:
        raise AssertionError("must not be asked")

    Sandbox(probe=broken_probe, unsafe_no_sandbox=True).close()  # type: ignore[arg-type]


def _count_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _children_of(pid: int) -> list[int]:
    """Return the living processes in the session of a fork server."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            state, session = fields[0], int(fields[3])
            if session == pid and state not in "ZX":
                found.append(int(folder.name))
    return found
