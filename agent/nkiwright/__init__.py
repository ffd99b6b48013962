"""nkiwright: an agent that writes fast NKI kernels for AWS Trainium and proves them.

    >>> import nkiwright
    >>> result = nkiwright.solve("rmsnorm")            # doctest: +SKIP
    >>> print(result.winner.speedup)                   # doctest: +SKIP

All times are emulated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nkiwright.api import Interrupt, asolve, solve
    from nkiwright.result import Result

__all__ = ["Interrupt", "Result", "asolve", "solve"]


def __getattr__(name: str) -> Any:
    if name == "Result":
        from nkiwright.result import Result

        return Result
    if name in __all__:
        from nkiwright import api

        return getattr(api, name)
    raise AttributeError(f"module 'nkiwright' has no attribute {name!r}")
