"""Running generated code apart from everything that matters.

The code's Python is traced in a confined child without tensor data; what comes back is bytes to be
decoded strictly.  See `layers` for what confines it and `runner` for how it is run.
"""

from __future__ import annotations

from nkisim.worker.errors import SandboxUnavailable, WorkerError
from nkisim.worker.layers import Layer, LayerReport, probe_layers
from nkisim.worker.runner import Sandbox
from nkisim.worker.verdict import AnswerStatus, ChildAnswer, Usage

__all__ = [
    "AnswerStatus",
    "ChildAnswer",
    "Layer",
    "LayerReport",
    "Sandbox",
    "SandboxUnavailable",
    "Usage",
    "WorkerError",
    "probe_layers",
]
