"""Landlock by raw system calls: the child gives up every file, TCP port and outside process.

The ruleset allows nothing at all, since everything the child needs is imported before.  Source of
the constants: Linux include/uapi/linux/landlock.h.  System call numbers 444 to 446 are the same on
every architecture that Linux gave them to.
"""

from __future__ import annotations

import ctypes
import os
import struct

_CREATE_RULESET, _RESTRICT_SELF = 444, 446
_VERSION_FLAG = 1
SCOPES_ABI = 6
"""First ABI that keeps signals and abstract sockets inside the domain."""


def abi_version(libc: ctypes.CDLL) -> int:
    """Return the kernel's Landlock ABI, 0 if it has none."""
    version: int = libc.syscall(
        ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG)
    )
    return max(version, 0)


def restrict(libc: ctypes.CDLL, abi: int) -> None:
    """Deny all that this ABI can deny; needs no_new_privs and one free descriptor.

    Raises:
        OSError: The kernel refused.
    """
    files = 0x1FFF | (abi >= 2) << 13 | (abi >= 3) << 14 | (abi >= 5) << 15
    network = scopes = 3
    size = 8 if abi < 4 else 16 if abi < SCOPES_ABI else 24
    attributes = struct.pack("=QQQ", files, network, scopes)[:size]
    ruleset: int = libc.syscall(
        ctypes.c_long(_CREATE_RULESET), attributes, ctypes.c_size_t(size), ctypes.c_uint32(0)
    )
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        if libc.syscall(ctypes.c_long(_RESTRICT_SELF), ctypes.c_int(ruleset), ctypes.c_uint32(0)):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(ruleset)
