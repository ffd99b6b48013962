"""A profile as text, within a size budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nkisim.profile.insights import MIN_GAIN, Insight, insights
from nkisim.profile.latency import latency_text
from nkisim.profile.model import Profile
from nkisim.profile.what_if import WhatIf

BAR = 20
CHARS_PER_TOKEN = 4
"""Rough, for English text and code."""
DEFAULT_TOKENS = 1500


@dataclass(frozen=True, slots=True)
class Depth:
    """How many rows each section may have."""

    insights: int
    gains: int
    lines: int


DEPTHS: tuple[tuple[int, Depth], ...] = (
    (600, Depth(2, 2, 4)),
    (2000, Depth(4, 5, 12)),
    (1 << 30, Depth(8, 9, 30)),
)
"""Up to this many tokens, so deep."""


def render_text(
    profile: Profile, *, budget_tokens: int = DEFAULT_TOKENS, gains: Sequence[WhatIf] = ()
) -> str:
    """Return a profile as text for a person or a language model.

    Args:
        profile: The profile.
        budget_tokens: Longest text to return, in tokens of four characters; smaller budgets show
            fewer rows of each section.
        gains: What `what_if` found for the same Program.
    """
    depth = next(depth for limit, depth in DEPTHS if budget_tokens <= limit)
    lines = _head(profile)
    found = insights(profile, limit=depth.insights, gains=gains)
    if found:
        lines += ["", "what to do"]
        for insight in found:
            lines.append(f"  {insight.condition}: {insight.cause}")
            where = f" ({insight.line})" if insight.line else ""
            lines.append(f"    -> {insight.action}{where}{_gain(insight)}")
    least = MIN_GAIN * profile.latency_ns
    worthy = [gain for gain in gains if gain.gain_ns >= least]
    if worthy:
        lines += ["", "what if (emulated time with one thing idealised, an upper bound)"]
        for gain in worthy[: depth.gains]:
            share = 100 * gain.gain_ns / profile.latency_ns
            lines.append(f"  {gain.latency_ns / 1000:8.1f} us  -{share:.0f} %  {gain.name}")
    lines += ["", "critical path by line (us, instructions, waiting for)"]
    for cost in profile.critical_lines[: depth.lines]:
        lines.append(
            f"  {cost.path_ns / 1000:8.1f}  {cost.instructions:6,}  {cost.wait:<9} "
            f"{cost.line:<14} {cost.text[:70]}"
        )
    return _fit(lines, budget_tokens * CHARS_PER_TOKEN)


def _head(profile: Profile) -> list[str]:
    machine = profile.machine
    lines = [
        f"emulated latency {latency_text(profile.latency_ns, machine)} on {machine.name} "
        f"({machine.calibration}), launch {profile.launch_ns / 1000:.0f} us included"
        + (", reordered by a list scheduler" if profile.schedule == "list" else ""),
        f"bound by {profile.binding}; MFU {100 * profile.mfu:.1f} %, "
        f"MBU {100 * profile.mbu:.1f} %; {len(profile.timeline):,} instructions, "
        f"{profile.work.dma_count:,} DMAs of {_mean_kib(profile):.1f} KiB on average, "
        f"{profile.work.hbm_read_bytes / 1e6:,.1f} MB read from HBM and "
        f"{profile.work.hbm_written_bytes / 1e6:,.1f} MB written; peak "
        f"{profile.sbuf_peak_bytes / 1024:.1f} KiB of SBUF and "
        f"{profile.psum_peak_bytes / 1024:.1f} KiB of PSUM per partition",
        "",
        "busy (share of the time without launch)",
    ]
    for name, share in sorted(profile.busy.items(), key=lambda item: -item[1]):
        waits = profile.waits.get(name, {})
        shown = ", ".join(
            f"{100 * part:.0f} % {what}"
            for what, part in sorted(waits.items(), key=lambda item: -item[1])[:3]
        )
        bar = "#" * round(BAR * share)
        idle = f"  idle: {shown}" if shown else ""
        lines.append(f"  {name:<13} {100 * share:5.1f} % {bar:<{BAR}}{idle}".rstrip())
    return lines


def _gain(insight: Insight) -> str:
    return "" if insight.gain_ns is None else f"; at most {insight.gain_ns / 1000:.1f} us"


def _mean_kib(profile: Profile) -> float:
    return profile.work.dma_bytes / max(1, profile.work.dma_count) / 1024


def _fit(lines: list[str], budget: int) -> str:
    kept: list[str] = []
    used = 0
    for line in lines:
        used += len(line) + 1
        if used > budget:
            kept.append("  …")
            break
        kept.append(line)
    return "\n".join(kept)
