"""Where evaluations run: a pool of local processes of our own code, limited and replaceable."""

from nkiwright.executor.local import EvaluatorPool

__all__ = ["EvaluatorPool"]
