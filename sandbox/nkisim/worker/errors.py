"""What can go wrong with the isolation itself; what the child does is a status, never an error."""

from __future__ import annotations

from nkisim.errors import NkisimError


class SandboxUnavailable(NkisimError):
    """A mandatory layer of isolation is missing here; no generated code was run."""


class WorkerError(NkisimError):
    """The trusted side of the worker failed, for example a target that cannot be imported."""
