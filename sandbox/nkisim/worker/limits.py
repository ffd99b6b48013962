"""How a child gives up its rights, in the one order that works.

Everything is imported before, because nothing can be opened after.  The user is changed before
Landlock and seccomp, which would forbid that; descriptors are closed for good after Landlock, which
needs one; seccomp comes last.  Every return value is checked: a layer that fails raises
`LayerFailure`, and the caller must leave the process without looking at any source.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Collection
from dataclasses import dataclass

from nkisim.worker import landlock, seccomp

UNPRIVILEGED_ID = 65534
"""User and group of the child when the parent is root: `nobody`, which owns no files."""
MEMORY_BYTES = 4 << 30
"""Address space of a child: room for the interpreter and a large trace, far below a machine."""

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS, _PR_GET_NO_NEW_PRIVS = 1, 4, 38, 39


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one child may use."""

    cpu_seconds: int
    memory_bytes: int = MEMORY_BYTES


class LayerFailure(Exception):
    """A layer that was asked for could not be applied."""

    def __init__(self, layer: str, cause: OSError | ValueError) -> None:
        super().__init__(f"{layer}: {cause}")
        self.layer = layer


def load_libc() -> ctypes.CDLL:
    """Return the C library with errno kept."""
    return ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """All that has to be known before the fork, so that the child only makes system calls."""

    libc: ctypes.CDLL
    landlock_abi: int
    filter_program: bytes

    @classmethod
    def prepare(cls) -> Confinement:
        """Look up what the layers need."""
        libc = load_libc()
        return cls(
            libc=libc,
            landlock_abi=landlock.abi_version(libc),
            filter_program=seccomp.filter_program(),
        )

    def apply(self, layers: Collection[str], limits: Limits, *, parent_pid: int) -> tuple[str, ...]:
        """Confine this process for good and return the names of the layers that now hold.

        Args:
            layers: Names of the layers to apply; see `layers.LAYER_NAMES`.
            limits: Numbers for the `rlimits` layer.
            parent_pid: Whose death shall kill this process.

        Raises:
            LayerFailure: A layer could not be applied; some others may hold already.
        """
        steps: tuple[tuple[str, Callable[[], None]], ...] = (
            ("rlimits", lambda: set_resource_limits(limits)),
            ("user", drop_user),
            ("no_new_privs", lambda: self._give_up_privileges(parent_pid)),
            ("landlock", lambda: landlock.restrict(self.libc, self.landlock_abi)),
            ("rlimits", forbid_descriptors),
            ("seccomp", lambda: seccomp.install(self.libc, self.filter_program)),
        )
        applied: list[str] = []
        for name, step in steps:
            if name not in layers:
                continue
            try:
                step()
            except (OSError, ValueError) as exc:
                raise LayerFailure(name, exc) from exc
            if name not in applied:
                applied.append(name)
        return tuple(applied)

    def _give_up_privileges(self, parent_pid: int) -> None:
        self._prctl(_PR_SET_NO_NEW_PRIVS, 1)
        if self.libc.prctl(_PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1:
            raise OSError(0, "no_new_privs did not stay set")
        self._prctl(_PR_SET_DUMPABLE, 0)
        # After the change of user, which clears it.
        self._prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:
            raise OSError(0, "the parent is gone")

    def _prctl(self, option: int, value: int) -> None:
        arguments = [ctypes.c_ulong(number) for number in (value, 0, 0, 0)]
        if self.libc.prctl(ctypes.c_int(option), *arguments) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"prctl {option}: {os.strerror(number)}")


def set_resource_limits(limits: Limits) -> None:
    """Set soft and hard limits alike, so that nothing can be raised again."""
    import resource

    for kind, value in (
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_CPU, limits.cpu_seconds),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(kind, (value, value))


def forbid_descriptors() -> None:
    """Allow no descriptor beyond stdin, stdout, stderr and the answer."""
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))


def drop_user(user_id: int = UNPRIVILEGED_ID) -> None:
    """Become an unprivileged user; only root can."""
    os.setgroups([])
    os.setresgid(user_id, user_id, user_id)
    os.setresuid(user_id, user_id, user_id)
    if os.getresuid() != (user_id,) * 3 or os.getresgid() != (user_id,) * 3 or os.getgroups():
        raise OSError(0, "the user did not change")
