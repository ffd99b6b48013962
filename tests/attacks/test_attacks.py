"""Attacks of a hostile kernel on the machine around it.

Each attack runs in the whole sandbox, where it must fail for the right reason, and where a layer
stops it also with all layers off, where it must succeed: otherwise the test would prove nothing.
After every attack an honest run is accepted.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nkisim.worker import AnswerStatus, Sandbox, SandboxUnavailable, probe_layers

TARGET = "attack_target:run"
HERE = str(Path(__file__).parent)
OS_LAYERS = frozenset({"rlimits", "user", "no_new_privs", "landlock", "seccomp", "bubblewrap"})
IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


def _sandbox_reason() -> str | None:
    try:
        probe_layers().require()
    except SandboxUnavailable as exc:
        return str(exc)
    return None


REASON = _sandbox_reason()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")


@dataclass(frozen=True)
class Denied:
    """An action that a layer stops."""

    name: str
    source: str
    error: str = "EPERM"
    landlock: bool | None = False
    """Whether Landlock alone stops it; None if that differs between kernels or users."""
    user: bool | None = False
    """Whether a change of user alone stops it."""
    needs_root: bool = False
    """Whether an ordinary user cannot do it even without layers."""
    may_be_absent: bool = False
    """Whether a kernel may be built or set up without it."""


def action(body: str) -> str:
    """Return a source that attempts one action."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return f"def act():\n{lines}\nanswer = attempt(act)\n"


DENIED = (
    Denied("read_passwd", action("open('/etc/passwd').read()"), landlock=True),
    Denied("read_secret", action("open(given['secret']).read()"), landlock=True),
    Denied(
        "write_outside", action("open(given['folder'] + '/new', 'w').write('x')"), landlock=True
    ),
    Denied(
        "tcp_connect",
        action("socket.create_connection(('127.0.0.1', given['port']), 2).close()"),
        landlock=True,
    ),
    Denied(
        "udp_send",
        action("socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))"),
    ),
    Denied(
        "abstract_socket",
        action("socket.socket(socket.AF_UNIX).connect('\\0' + given['abstract'])"),
        landlock=True,
    ),
    Denied("fork", action("if os.fork() == 0:\n    os._exit(0)")),
    Denied("signal_parent", action("os.kill(os.getppid(), 0)"), landlock=True, user=True),
    Denied("signal_everyone", action("os.kill(-1, 0)"), landlock=None, user=None),
    Denied(
        "ptrace_parent",
        action("call(libc.ptrace(0x4206, os.getppid(), None, None))"),
        landlock=True,
        user=True,
    ),
    Denied(
        "parent_memory_file",
        action("open(f'/proc/{os.getppid()}/mem', 'rb').close()"),
        landlock=True,
        user=True,
    ),
    Denied(
        "parent_memory_call",
        action(
            "buffer = ctypes.create_string_buffer(8)\n"
            "pair = ctypes.c_void_p * 2\n"
            "here = pair(ctypes.addressof(buffer), 8)\n"
            "there = pair(id(None), 8)\n"
            "call(libc.process_vm_readv(os.getppid(), here, 1, there, 1, 0))"
        ),
        landlock=True,
        user=True,
    ),
    Denied(
        "daemon",
        action(
            "if os.fork() == 0:\n"
            "    os.setsid()\n"
            "    if os.fork() == 0:\n"
            "        time.sleep(0.2)\n"
            "        os.write(3, b'late')\n"
            "    os._exit(0)"
        ),
    ),
    Denied("symlink", action("os.symlink('/etc', given['folder'] + '/etc-link')"), landlock=True),
    Denied(
        "hard_link",
        action("os.link(given['private'], given['folder'] + '/linked')"),
        landlock=True,
        user=None,
    ),
    Denied("fill_disk", action("open(given['folder'] + '/big', 'wb').write(b'0')"), landlock=True),
    Denied(
        "shellcode",
        action(
            "page = mmap.mmap(-1, 4096, prot=7)\n"
            "page.write(bytes([0xb8, 42, 0, 0, 0, 0xc3]))\n"
            "address = ctypes.addressof(ctypes.c_char.from_buffer(page))\n"
            "assert ctypes.CFUNCTYPE(ctypes.c_int)(address)() == 42"
        ),
    ),
    Denied(
        "make_page_executable",
        action(
            "page = mmap.mmap(-1, 4096)\n"
            "address = ctypes.addressof(ctypes.c_char.from_buffer(page))\n"
            "call(libc.mprotect(ctypes.c_void_p(address), 4096, 7))"
        ),
    ),
    Denied("list_siblings", action("os.listdir(given['folder'])"), landlock=True),
    Denied(
        "thread", action("threading.Thread(target=print).start()"), "RuntimeError: can't start new"
    ),
    Denied(
        "io_uring",
        action("call(libc.syscall(425, 4, ctypes.create_string_buffer(120)))"),
        may_be_absent=True,
    ),
    Denied(
        "user_namespace",
        action("call(libc.unshare(0x10000000))"),
        may_be_absent=True,
    ),
    Denied(
        "start_shell",
        action("subprocess.run(['/bin/sh', '-c', 'exit 0'], check=True)"),
        landlock=True,
    ),
    Denied(
        "spawn",
        action("os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)"),
        landlock=True,
    ),
    Denied("shared_memory", action("os.remove(_new('/dev/shm'))"), landlock=True),
    Denied("chmod", action("os.chmod(given['private'], 0o600)"), user=True),
    Denied("stat_secret", action("os.stat(given['secret'])")),
    Denied("memory_file", action("os.memfd_create('x')")),
    Denied("socket_pair", action("socket.socketpair()")),
    Denied("duplicate", action("os.dup(1)")),
    Denied("pipe", action("os.pipe()")),
    Denied("outlive_server", action("call(libc.prctl(1, 0, 0, 0, 0))")),
    Denied("raise_limits", action("resource.getrlimit(resource.RLIMIT_AS)")),
    Denied("change_user", action("os.setuid(os.getuid())")),
    Denied("change_root", action("os.chroot('/')"), user=True, needs_root=True),
    Denied("change_folder", action("os.chdir('/')")),
    Denied("personality", action("call(libc.personality(0))")),
    Denied("keyring", action("call(libc.syscall(250, 0, -3, 0))"), landlock=None, user=None),
)
"""What the system-call filter denies; Landlock and the user are walls behind it."""

_NEW = """
def _new(folder):
    path = f"{folder}/nkisim-test-{os.getpid()}"
    open(path, "w").close()
    return path
"""


@dataclass(frozen=True)
class Failing:
    """Something that the parent's clock, cap or verdict deals with."""

    name: str
    source: str
    statuses: frozenset[AnswerStatus]
    detail: str = ""
    is_slow: bool = False
    """Left to the slow set, since the fork server is replaced afterwards."""


def _failing(
    name: str, source: str, *statuses: AnswerStatus, detail: str = "", is_slow: bool = False
) -> Failing:
    return Failing(name, source, frozenset(statuses), detail, is_slow)


FORGED = (
    "import struct\n"
    "def frame(kind, body, magic=b'NKSW', version=1):\n"
    "    return struct.pack('<4sHHQ', magic, version, kind, len(body)) + body\n"
)
FAILING = (
    _failing("endless_loop", "while True:\n    pass", AnswerStatus.TIMEOUT),
    _failing("endless_sleep", "time.sleep(1e6)", AnswerStatus.TIMEOUT),
    _failing(
        "ignore_signals",
        "for number in (signal.SIGTERM, signal.SIGXCPU, signal.SIGINT, signal.SIGHUP):\n"
        "    signal.signal(number, signal.SIG_IGN)\n"
        "while True:\n    pass",
        AnswerStatus.TIMEOUT,
    ),
    _failing("one_endless_c_call", "9 ** 9 ** 9", AnswerStatus.TIMEOUT),
    _failing("endless_stdout", "while True:\n    print('x' * 1000)", AnswerStatus.OUTPUT_LIMIT),
    _failing(
        "endless_stderr",
        "while True:\n    sys.stderr.write('x' * 1000)",
        AnswerStatus.OUTPUT_LIMIT,
        is_slow=True,
    ),
    _failing("allocate_200_gb", "answer = np.ones(200 << 30, np.uint8)", AnswerStatus.MEMORY),
    _failing("format_8_gb", "answer = f'{0:>{8 << 30}}'", AnswerStatus.MEMORY),
    _failing(
        "endless_recursion",
        "sys.setrecursionlimit(10**9)\ndef f():\n    return f()\nf()",
        AnswerStatus.MEMORY,
        AnswerStatus.CRASHED,
        AnswerStatus.TIMEOUT,
    ),
    _failing(
        "deep_repr",
        "deep = []\nfor _ in range(1_000_000):\n    deep = [deep]\nrepr(deep)",
        AnswerStatus.CRASHED,
        detail="RecursionError",
    ),
    _failing("write_to_null", "ctypes.memset(0, 1, 1)", AnswerStatus.CRASHED, detail="SIGSEGV"),
    _failing("other_calling_table", "libc.syscall(0x40000001)", AnswerStatus.CRASHED, is_slow=True),
    _failing("leave_without_answer", "os._exit(0)", AnswerStatus.PROTOCOL_ERROR),
    _failing(
        "leave_with_code", "os._exit(9)", AnswerStatus.CRASHED, detail="exit code 9", is_slow=True
    ),
    _failing(
        "answer_twice",
        FORGED + "os.write(3, frame(2, b'forged'))\nanswer = b'real'",
        AnswerStatus.PROTOCOL_ERROR,
        detail="after the closing frame",
    ),
    _failing(
        "say_hello_again",
        FORGED + "os.write(3, frame(1, b'[]'))\nanswer = b'real'",
        AnswerStatus.PROTOCOL_ERROR,
        is_slow=True,
    ),
    _failing(
        "claim_refusal",
        FORGED + "os.write(3, frame(5, b'no seccomp'))\nos._exit(0)",
        AnswerStatus.PROTOCOL_ERROR,
        is_slow=True,
    ),
    _failing(
        "other_magic",
        FORGED + "os.write(3, frame(2, b'x', magic=b'\\x80\\x04cb'))\nos._exit(0)",
        AnswerStatus.PROTOCOL_ERROR,
        is_slow=True,
    ),
    _failing(
        "half_an_answer",
        FORGED + "os.write(3, frame(2, b'abcdef')[:-3])\nos._exit(0)",
        AnswerStatus.PROTOCOL_ERROR,
        detail="in the middle",
        is_slow=True,
    ),
    _failing(
        "announce_too_much",
        "import struct\nos.write(3, struct.pack('<4sHHQ', b'NKSW', 1, 2, 1 << 62))\nos._exit(0)",
        AnswerStatus.ANSWER_TOO_LARGE,
    ),
    _failing("close_the_answer", "os.close(3)\nanswer = b'x'", AnswerStatus.CRASHED, is_slow=True),
    _failing(
        "late_answer",
        FORGED + "time.sleep(30)\nos.write(3, frame(2, b'late'))\nos._exit(0)",
        AnswerStatus.TIMEOUT,
    ),
)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(import_path=[HERE]) as whole:
        yield whole


@pytest.fixture(scope="module")
def open_sandbox() -> Iterator[Sandbox]:
    """The same way to run, with every layer of the system off."""
    with Sandbox(import_path=[HERE], unsafe_without=OS_LAYERS) as control:
        yield control


@pytest.fixture
def given(tmp_path: Path) -> Iterator[dict[str, object]]:
    """Things worth attacking, open to every user so that file modes stop nothing."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o755)
    tmp_path.chmod(0o777)
    for name, mode in (("secret", 0o644), ("private", 0o600)):
        (tmp_path / name).write_text("key")
        (tmp_path / name).chmod(mode)
    abstract = f"nkisim-test-{os.getpid()}-{tmp_path.name}"
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as unix:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen(8)
        unix.bind("\0" + abstract)
        unix.listen(8)
        yield {
            "folder": str(tmp_path),
            "secret": str(tmp_path / "secret"),
            "private": str(tmp_path / "private"),
            "port": tcp.getsockname()[1],
            "abstract": abstract,
        }


def _assert_honest_run(sandbox: Sandbox) -> None:
    source = "answer = np.arange(4).sum().item()"
    honest = sandbox.run({"source": source}, target=TARGET)
    assert (honest.status, honest.payload) == (AnswerStatus.OK, b"6"), honest.detail


COLD = pytest.param(True, id="cold", marks=pytest.mark.slow)
START = pytest.mark.parametrize("cold", [pytest.param(False, id="forked"), COLD])
FAILING_RUNS = [
    pytest.param(attack, id=attack.name, marks=[pytest.mark.slow] if attack.is_slow else [])
    for attack in FAILING
]


@START
@pytest.mark.parametrize("attack", DENIED, ids=lambda attack: attack.name)
def test_denied_action_fails_in_the_sandbox(
    sandbox: Sandbox, attack: Denied, given: dict[str, object], cold: bool
) -> None:
    request = {**given, "source": _NEW + attack.source}
    answer = sandbox.run(request, target=TARGET, cold=cold)
    assert answer.status is AnswerStatus.OK, answer.detail
    assert answer.payload.decode().startswith(attack.error)
    _assert_honest_run(sandbox)


@pytest.mark.parametrize("attack", DENIED, ids=lambda attack: attack.name)
def test_denied_action_succeeds_without_layers(
    open_sandbox: Sandbox, attack: Denied, given: dict[str, object]
) -> None:
    if attack.needs_root and not IS_ROOT:
        pytest.skip("an ordinary user cannot do it anyway")
    answer = open_sandbox.run({**given, "source": _NEW + attack.source}, target=TARGET)
    if attack.may_be_absent and answer.payload in (b"EPERM", b"ENOSYS", b"ENOSPC"):
        pytest.skip(f"this system does not offer it: {answer.payload.decode()}")
    assert (answer.status, answer.payload) == (AnswerStatus.OK, b"done"), answer.detail
    assert not answer.layers.is_trusted


@pytest.mark.parametrize(
    "layer",
    [
        "landlock",
        pytest.param("user", marks=pytest.mark.skipif(not IS_ROOT, reason="needs root")),
    ],
)
def test_layer_alone_stops_what_it_should(
    layer: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> None:
    if probe_layers()[layer].state != "active":
        pytest.skip(f"no {layer} here")
    given = request.getfixturevalue("given")
    without = OS_LAYERS - {layer, "no_new_privs"}
    wrong: dict[str, str] = {}
    with Sandbox(import_path=[HERE], unsafe_without=without) as single:
        for attack in DENIED:
            expected = getattr(attack, layer)
            folder = tmp_path_factory.mktemp(attack.name)
            folder.chmod(0o777)
            item = {**given, "folder": str(folder), "source": _NEW + attack.source}
            answer = single.run(item, target=TARGET)
            is_stopped = answer.payload != b"done"
            if attack.may_be_absent or (attack.needs_root and not IS_ROOT):
                continue
            if expected is not None and is_stopped != expected:
                wrong[attack.name] = f"expected stopped={expected}, got {answer.payload!r}"
    assert wrong == {}


@START
@pytest.mark.parametrize("attack", FAILING_RUNS)
def test_failing_run_gets_its_status(sandbox: Sandbox, attack: Failing, cold: bool) -> None:
    # Generous where the clock must not decide: the machine may be busy.
    wall = 0.4 if AnswerStatus.TIMEOUT in attack.statuses else 10.0
    answer = sandbox.run({"source": attack.source}, target=TARGET, wall_seconds=wall, cold=cold)
    assert answer.status in attack.statuses, answer.detail
    assert attack.detail in answer.detail
    assert answer.payload == b""
    assert len(answer.stdout) < 70_000
    _assert_honest_run(sandbox)


def test_allocation_beyond_the_limit_fails_and_below_it_works(sandbox: Sandbox) -> None:
    source = "answer = np.empty(1 << 30, np.uint8).nbytes"
    less = sandbox.run({"source": source}, target=TARGET, memory_bytes=1 << 30)
    more = sandbox.run({"source": source}, target=TARGET, memory_bytes=3 << 30)
    assert less.status is AnswerStatus.MEMORY
    assert (more.status, more.payload) == (AnswerStatus.OK, str(1 << 30).encode())


def test_cpu_time_is_limited_apart_from_the_wall_clock(sandbox: Sandbox) -> None:
    source = "while True:\n    pass"
    answer = sandbox.run({"source": source}, target=TARGET, wall_seconds=20, cpu_seconds=1)
    assert answer.status is AnswerStatus.TIMEOUT
    assert answer.usage.wall_seconds < 15
    assert "CPU" in answer.detail


def test_patched_comparisons_do_not_outlive_the_run(sandbox: Sandbox) -> None:
    patch = "import builtins\nnp.allclose = builtins.all = lambda *a, **k: True\nanswer = 1"
    check = "answer = np.allclose(1, 2) or all([False])"
    assert sandbox.run({"source": patch}, target=TARGET).payload == b"1"
    assert sandbox.run({"source": check}, target=TARGET).payload == b"False"


def test_printed_verdict_stays_text(sandbox: Sandbox) -> None:
    source = FORGED + (
        "os.write(1, frame(2, b'forged'))\nprint('status: ok, speedup 100x')\nanswer = b'real'"
    )
    answer = sandbox.run({"source": source}, target=TARGET)
    assert (answer.status, answer.payload) == (AnswerStatus.OK, b"real")
    assert "speedup 100x" in answer.stdout


KEY_SEARCH = """
found = [key for key in os.environ if key == 'NKISIM_TEST_KEY']
try:
    found += [1] * (b'NKISIM_TEST_KEY' in open('/proc/self/environ', 'rb').read())
except OSError:
    pass
libc.getenv.restype = ctypes.c_char_p
answer = bool(found or libc.getenv(b'NKISIM_TEST_KEY'))
"""


def test_key_in_the_environment_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NKISIM_TEST_KEY", "secret")
    with Sandbox(import_path=[HERE]) as whole:
        assert whole.run({"source": KEY_SEARCH}, target=TARGET).payload == b"False"
    with Sandbox(import_path=[HERE], unsafe_without={"environment"}) as control:
        assert control.run({"source": KEY_SEARCH}, target=TARGET).payload == b"True"


MARK_SEARCH = """
def search():
    gc.unfreeze()
    mark = given['half'] + '-expected-output'
    texts = (
        value
        for item in gc.get_objects()
        if type(item) in (dict, list, tuple)
        for value in (item.values() if type(item) is dict else item)
        if type(value) is str
    )
    return any(text == mark for text in texts)
answer = search()
"""


def test_parents_secrets_are_not_in_the_childs_memory(sandbox: Sandbox) -> None:
    secret = {"reference": ["parents-expected-output"]}
    request = {"source": MARK_SEARCH, "half": "parents"}
    assert sandbox.run(request, target=TARGET).payload == b"False"
    # The search does find what is there.
    assert sandbox.run({**request, **secret}, target=TARGET).payload == b"True"


def test_child_holds_no_descriptor_but_its_own(open_sandbox: Sandbox, sandbox: Sandbox) -> None:
    source = (
        "def is_open(number):\n    return attempt(lambda: os.lseek(number, 0, 1)) != 'EBADF'\n"
        "answer = [number for number in range(64) if is_open(number)]"
    )
    with Sandbox(import_path=[HERE], unsafe_without={"descriptors"}) as control:
        assert control.run({"source": source}, target=TARGET).payload != b"[0, 1, 2, 3]"
    assert sandbox.run({"source": source}, target=TARGET).payload == b"[0, 1, 2, 3]"


def test_nothing_is_opened_for_source_lines(sandbox: Sandbox) -> None:
    source = "answer = repr(linecache.getline(linecache.__file__, 1))"
    assert sandbox.run({"source": source}, target=TARGET).payload == b"''"


def test_stored_source_lines_and_relative_paths_still_work(sandbox: Sandbox) -> None:
    source = (
        "text = 'def f():\\n    return 1\\n'\n"
        "linecache.cache['kernel.py'] = (len(text), None, text.splitlines(True), 'kernel.py')\n"
        "names = {}\nexec(compile(text, 'kernel.py', 'exec'), names)\n"
        "import inspect\nanswer = inspect.getsource(names['f'])"
    )
    answer = sandbox.run({"source": source}, target=TARGET)
    assert answer.payload == b"def f():\n    return 1\n", answer.detail


def test_missing_module_reads_as_missing(sandbox: Sandbox) -> None:
    answer = sandbox.run({"source": "import wsgiref.validate"}, target=TARGET)
    assert answer.status is AnswerStatus.CRASHED
    assert "ModuleNotFoundError" in answer.detail


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, id="kill"),
        pytest.param(signal.SIGSTOP, id="stop", marks=pytest.mark.slow),
    ],
)
def test_parent_recovers_from_an_attack_on_the_fork_server(
    sandbox: Sandbox, open_sandbox: Sandbox, number: int
) -> None:
    source = action(f"os.kill(os.getppid(), {int(number)})") + "time.sleep(0.3)\n"
    stopped = sandbox.run({"source": source}, target=TARGET)
    assert (stopped.status, stopped.payload) == (AnswerStatus.OK, b"EPERM")
    reached = open_sandbox.run({"source": source}, target=TARGET, wall_seconds=5)
    assert reached.status is AnswerStatus.CRASHED
    assert "fork server" in reached.detail
    _assert_honest_run(open_sandbox)


def test_unwrapped_daemon_cannot_change_an_accepted_answer(open_sandbox: Sandbox) -> None:
    source = (
        "if os.fork() == 0:\n    os.setsid()\n    time.sleep(0.2)\n"
        "    os.write(3, b'late')\n    os._exit(0)\nanswer = b'first'"
    )
    answer = open_sandbox.run({"source": source}, target=TARGET)
    assert (answer.status, answer.payload) == (AnswerStatus.OK, b"first")
    assert answer.usage.wall_seconds < 0.2


def test_python_builds_match() -> None:
    """The child runs the same interpreter, or the attacks would prove little."""
    with Sandbox(import_path=[HERE]) as whole:
        answer = whole.run({"source": "answer = sys.version"}, target=TARGET)
    assert answer.payload.decode() == sys.version
