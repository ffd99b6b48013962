"""What moved between two profiles of the same task, from their JSON form.

Profiles may come from other runs and other kernels, so source lines are matched by their text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nkisim.errors import NkisimError
from nkisim.profile.model import SCHEMA_VERSION

FIGURES = (
    "hbm_read_bytes",
    "hbm_written_bytes",
    "flops",
    "transpose_flops",
    "sbuf_peak_bytes",
    "psum_peak_bytes",
    "instructions",
)
MAX_ROWS = 8
US = 1000.0


class ProfileFormatError(NkisimError):
    """A file is not a profile that this version reads."""


@dataclass(frozen=True, slots=True)
class Change:
    """One figure before and after."""

    name: str
    before: float
    after: float

    @property
    def delta(self) -> float:
        """After less before."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class ProfileDiff:
    """What moved, largest change first in each group."""

    latency: Change
    """Nanoseconds, launch included."""
    binding: tuple[str, str]
    busy_ns: tuple[Change, ...]
    """Occupied time of each lane."""
    figures: tuple[Change, ...]
    """Bytes, copies, flops, peaks."""
    ops: tuple[Change, ...]
    """Instructions by op."""
    lines: tuple[Change, ...]
    """Time on the critical path in nanoseconds, by source text."""

    def __str__(self) -> str:
        before, after = self.latency.before, self.latency.after
        ratio = before / after if after else float("inf")
        lines = [
            f"emulated latency {before / US:,.2f} -> {after / US:,.2f} us ({ratio:.2f}x), "
            f"bound by {self.binding[0]} -> {self.binding[1]}"
        ]
        for title, changes, scale, unit in (
            ("busy time", self.busy_ns, US, " us"),
            ("work", self.figures, 1.0, ""),
            ("instructions", self.ops, 1.0, ""),
            ("critical path by line", self.lines, US, " us"),
        ):
            moved = [change for change in changes if change.delta]
            if not moved:
                continue
            lines += ["", title]
            for change in moved[:MAX_ROWS]:
                lines.append(
                    f"  {change.delta / scale:+12,.1f}{unit}  {change.before / scale:,.1f} -> "
                    f"{change.after / scale:,.1f}  {change.name}"
                )
        return "\n".join(lines)


def diff_profiles(before: Mapping[str, Any], after: Mapping[str, Any]) -> ProfileDiff:
    """Compare two profiles in the form that `Profile.to_json` returns.

    Raises:
        ProfileFormatError: One of them is something else, or of another schema version.
    """
    for data in (before, after):
        version = data.get("schema_version")
        if version != SCHEMA_VERSION or "latency_ns" not in data:
            raise ProfileFormatError(
                f"expected a profile with schema_version {SCHEMA_VERSION}, got {version!r}; "
                "write one with `nkisim profile … --json`"
            )
    counted = [Change(name, before[name], after[name]) for name in FIGURES]
    counted.append(Change("dma copies", before["dma"]["count"], after["dma"]["count"]))
    return ProfileDiff(
        Change("latency", before["latency_ns"], after["latency_ns"]),
        (before["binding"], after["binding"]),
        _changes(before["busy_ns"], after["busy_ns"]),
        tuple(counted),
        _changes(before["ops"], after["ops"]),
        _changes(_by_text(before), _by_text(after)),
    )


def _changes(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[Change, ...]:
    names = {**before, **after}
    found = [Change(name, before.get(name, 0), after.get(name, 0)) for name in names]
    return tuple(sorted(found, key=lambda change: (-abs(change.delta), change.name)))


def _by_text(profile: Mapping[str, Any]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for row in profile["critical_path"]:
        key = row["text"] or row["line"]
        totals[key] = totals.get(key, 0.0) + row["path_ns"]
    return totals
