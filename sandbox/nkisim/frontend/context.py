"""Which kernel is being traced: NKI's functions are global, so the recorder is ambient."""

from __future__ import annotations

import os
from contextvars import ContextVar
from typing import TYPE_CHECKING

from nkisim.errors import KernelError
from nkisim.machine.load import load_machine
from nkisim.machine.spec import Machine

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


def target_machine() -> Machine:
    """Return the machine that the kernel is traced for.

    Outside kernels (constants of a module, host code) it is the one that
    NEURON_PLATFORM_TARGET_OVERRIDE names, else trn2.
    """
    recorder = _ACTIVE.get()
    if recorder is not None:
        return recorder.machine
    return load_machine(os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE") or "trn2")
