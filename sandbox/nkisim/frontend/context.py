"""Which kernel is being traced: NKI's functions are global, so the recorder is ambient."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from nkisim.errors import KernelError

if TYPE_CHECKING:
    from nkisim.frontend.recorder import Recorder

_ACTIVE: ContextVar[Recorder | None] = ContextVar("nkisim_recorder", default=None)

activate = _ACTIVE.set
deactivate = _ACTIVE.reset


def active() -> Recorder | None:
    """Return the recorder of the kernel being traced, or None outside kernels."""
    return _ACTIVE.get()


def current() -> Recorder:
    """Return the recorder of the kernel being traced."""
    recorder = _ACTIVE.get()
    if recorder is None:
        raise KernelError(
            "NKS606",
            "an NKI function was called outside a kernel",
            hint="call it inside a function that runs under @nki.jit or nkisim.simulate",
        )
    return recorder
