"""What stands out in a profile: condition, cause, action, line, expected gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nkisim.profile.insight_rules import RULES, Insight
from nkisim.profile.model import Profile
from nkisim.profile.what_if import WhatIf

MIN_GAIN = 0.005
"""Share of the latency below which a finding is not worth a word."""


def insights(
    profile: Profile, *, limit: int = 4, gains: Sequence[WhatIf] = ()
) -> tuple[Insight, ...]:
    """Return what stands out, most important first.

    Args:
        profile: The profile.
        limit: Most findings to return.
        gains: What `what_if` found for the same Program, to put a number on each finding and to
            leave out those that could bring nothing.
    """
    found = [insight for rule in RULES if (insight := rule(profile)) is not None]
    if gains:
        gain_of = {gain.name: gain.gain_ns for gain in gains}
        found = [replace(i, gain_ns=gain_of.get(i.ideal, 0.0)) if i.ideal else i for i in found]
        least = MIN_GAIN * profile.latency_ns
        found = [i for i in found if i.gain_ns is None or i.gain_ns >= least]
        found.sort(key=lambda i: -(i.gain_ns or 0.0))
    return tuple(found[:limit])


__all__ = ["Insight", "insights"]
