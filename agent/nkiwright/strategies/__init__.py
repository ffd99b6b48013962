"""Search strategies on one interface."""

from nkiwright.strategies.base import Strategy
from nkiwright.strategies.best_of_n import BestOfN

__all__ = ["BestOfN", "Strategy"]
