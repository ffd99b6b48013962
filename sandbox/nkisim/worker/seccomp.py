"""The system-call allow-list, as classic BPF installed through raw system calls.

Only x86-64: numbers differ elsewhere, and a wrong table would be worse than a refusal.  A call that
is not listed returns EPERM, so that a denied call becomes a readable Python error.  Source of the
numbers: Linux arch/x86/entry/syscalls/syscall_64.tbl; of the layout: include/uapi/linux/seccomp.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

AUDIT_ARCH_X86_64 = 0xC000003E
ALLOWED_CALLS: dict[str, int] = {
    "read": 0,
    "write": 1,
    "close": 3,
    "fstat": 5,
    "poll": 7,
    "lseek": 8,
    "munmap": 11,
    "brk": 12,
    "rt_sigaction": 13,
    "rt_sigprocmask": 14,
    "rt_sigreturn": 15,
    "pread64": 17,
    "pwrite64": 18,
    "readv": 19,
    "writev": 20,
    "sched_yield": 24,
    "mremap": 25,
    "madvise": 28,
    "nanosleep": 35,
    "getpid": 39,
    "exit": 60,
    "getcwd": 79,
    "gettimeofday": 96,
    "getrusage": 98,
    "times": 100,
    "getppid": 110,
    "sigaltstack": 131,
    "gettid": 186,
    "futex": 202,
    "sched_getaffinity": 204,
    "restart_syscall": 219,
    "clock_gettime": 228,
    "clock_getres": 229,
    "clock_nanosleep": 230,
    "exit_group": 231,
    "set_robust_list": 273,
    "getrandom": 318,
    "rseq": 334,
}
"""No open, socket, clone, exec, kill, ptrace, ioctl, fcntl, prctl, memfd or io_uring."""
NO_EXEC_CALLS: dict[str, int] = {"mmap": 9, "mprotect": 10}
"""Allowed unless their third argument asks for executable memory."""

_PROT_EXEC = 4
_SYS_SECCOMP = 317
_SET_MODE_FILTER = 1
_TSYNC = 1
_KILL_PROCESS = 0x80000000
_ALLOW = 0x7FFF0000
_EPERM = 0x00050000 | errno.EPERM
_X32_BIT = 0x40000000
_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARGUMENT_2 = 0, 4, 32


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def is_supported(machine: str | None = None) -> bool:
    """Return whether there is a table of system calls for this machine."""
    return (machine or platform.machine()) in ("x86_64", "AMD64")


def filter_program() -> bytes:
    """Return the filter as packed `sock_filter` records of 8 bytes."""
    code: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _OFFSET_ARCH),
        (_JUMP_EQUAL, 1, 0, AUDIT_ARCH_X86_64),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _OFFSET_NUMBER),
        (_JUMP_GREATER_EQUAL, 0, 1, _X32_BIT),
        (_RETURN, 0, 0, _KILL_PROCESS),
    ]
    for number in ALLOWED_CALLS.values():
        code += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    for number in NO_EXEC_CALLS.values():
        code += [
            (_JUMP_EQUAL, 0, 4, number),
            (_LOAD, 0, 0, _OFFSET_ARGUMENT_2),
            (_JUMP_SET, 0, 1, _PROT_EXEC),
            (_RETURN, 0, 0, _EPERM),
            (_RETURN, 0, 0, _ALLOW),
        ]
    code.append((_RETURN, 0, 0, _EPERM))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def install(libc: ctypes.CDLL, program: bytes) -> None:
    """Install the filter for this process and all its threads; needs no_new_privs.

    Raises:
        OSError: The kernel refused.
    """
    if not is_supported():
        raise OSError(errno.ENOSYS, f"no table of system calls for {platform.machine()!r}")
    buffer = ctypes.create_string_buffer(program, len(program))
    record = _Program(len(program) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    result = libc.syscall(
        ctypes.c_long(_SYS_SECCOMP),
        ctypes.c_long(_SET_MODE_FILTER),
        ctypes.c_long(_TSYNC),
        ctypes.byref(record),
    )
    if result != 0:
        number = ctypes.get_errno() if result < 0 else errno.EBUSY
        raise OSError(number, os.strerror(number))
