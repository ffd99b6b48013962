"""Whoever writes kernels: a language model, or the autoscheduler.  Both serve the same loop."""

from nkiwright.writers.base import Writer, WriterStopped

__all__ = ["Writer", "WriterStopped"]
