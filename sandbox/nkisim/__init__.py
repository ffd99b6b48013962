"""nkisim: an emulator of the Trainium NeuronCore for NKI kernels.

A kernel's Python is traced once, without data, into a Program; the Program is validated, executed
on numpy arrays and timed under a machine model.  All times are emulated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nkisim._version import __version__

if TYPE_CHECKING:
    from nkisim.api import (
        RunResult,
        check,
        construct,
        install,
        run_file,
        run_kernel,
        simulate,
        symbol,
    )

__all__ = [
    "RunResult",
    "__version__",
    "check",
    "construct",
    "install",
    "run_file",
    "run_kernel",
    "simulate",
    "symbol",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from nkisim import api

        return getattr(api, name)
    raise AttributeError(f"module 'nkisim' has no attribute {name!r}")
