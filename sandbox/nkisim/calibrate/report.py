"""The report of a calibration: Markdown, with every row, and two pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from nkisim.calibrate.command import Calibration, MachineReport
from nkisim.calibrate.pictures import order_picture, scatter_picture
from nkisim.calibrate.scores import Kendall, signed_error


def text(calibration: Calibration) -> str:
    """Return what the command prints."""
    lines: list[str] = []
    for found in calibration.reports:
        lines += [f"## {found.machine.name}", "", *_summary(found), ""]
        if found.constants:
            lines += [*_constants(found), ""]
        lines += [*_ladders(found), ""]
    lines += _left_aside(calibration)
    return "\n".join(lines).rstrip() + "\n"


INTRO = """\
# How far to trust an emulated time

{opening}

The table of each machine gives the errors of predictions whose **kernel family was left out of the
fit**, the same with everything fitted (in sample), and a static roofline: the busiest engine's work
without overheads, or bytes over bandwidth, plus the launch.  Errors are predicted over measured
time, minus one.  Kendall's coefficient counts the pairs of a ladder, versions of one kernel, whose
measured times are more than 10 % apart.  The band that nkisim prints beside a latency is the one
within which two thirds of the left-out errors lie.

Reproduce it with the figures in a CSV file and the public repositories in a folder:

    nkisim calibrate --measured measured.csv --kernels DIR --report docs/accuracy.md

`sandbox/nkisim/calibrate/rows.toml` says which kernel and arguments each figure belongs to; other
figures are scored with `--score --measured other.csv --bindings other.toml`.
"""


def write(calibration: Calibration, path: Path) -> None:
    """Write the report, and its pictures into a folder beside it."""
    folder = path.with_name(f"{path.stem}-pictures")
    folder.mkdir(parents=True, exist_ok=True)
    for found in calibration.reports:
        for name, drawing in pictures(found).items():
            (folder / name).write_text(drawing, encoding="utf-8")
    path.write_text(markdown(calibration, folder.name), encoding="utf-8")


def markdown(calibration: Calibration, folder: str) -> str:
    """Return the full report; its pictures lie in `folder`."""
    opening = (
        "Constants were fitted on the rows marked `fitted`; everything else was carried over from "
        "published pages."
        if any(found.constants for found in calibration.reports)
        else "Scored with the constants as they stand; nothing was fitted."
    )
    lines = [INTRO.format(opening=opening)]
    for found in calibration.reports:
        name = found.machine.name
        lines += [f"## {name}", "", *_summary(found), ""]
        if found.constants:
            lines += [f"### Constants of {name}", "", *_constants(found), ""]
        lines += [f"### Order within ladders on {name}", "", *_ladders(found), ""]
        lines += [f"![How often the order is right on {name}]({folder}/order-{name}.svg)", ""]
        if found.scores.rows:
            lines += [f"![Predicted over measured on {name}]({folder}/errors-{name}.svg)", ""]
        lines += [f"### Every row of {name}", "", *_rows(found), ""]
    lines += _left_aside(calibration)
    return "\n".join(lines).rstrip() + "\n"


def pictures(found: MachineReport) -> dict[str, str]:
    """Return the pictures of one machine by file name."""
    name = found.machine.name
    points = [
        (case.row.latency_us, found.left_out[i] / case.row.latency_us, case.family)
        for i, case in enumerate(found.cases)
        if case.is_scored and case.row.is_absolute
    ]
    drawn = {f"order-{name}.svg": order_picture(found.scores.order, found.roofline_scores.order)}
    if points:
        drawn[f"errors-{name}.svg"] = scatter_picture(points)
    return drawn


def _summary(found: MachineReport) -> list[str]:
    out, own, roof = found.scores, found.in_sample_scores, found.roofline_scores
    head = "family left out" if found.used else "as it stands"
    columns = [("median error", "median_error", "+.1%")]
    columns += [("median absolute error", "median_absolute_error", ".1%")]
    columns += [("Spearman over kernels", "spearman", ".3f")]
    columns += [("mean Kendall in ladders", "kendall", ".2f")]
    columns += [("two thirds of the errors within", "band", ".1%")]
    lines = [f"| score | {head} | in sample | static roofline |", "|---|---|---|---|"]
    for label, attribute, form in columns:
        values = [_number(getattr(s, attribute), form) for s in (out, own, roof)]
        lines.append(f"| {label} | {' | '.join(values)} |")
    lines += ["", f"{out.rows} measured kernels count with their absolute time."]
    return lines


def _constants(found: MachineReport) -> list[str]:
    lines = [
        "| constant | before | fitted | standard error | documented range |",
        "|---|---|---|---|---|",
    ]
    for c in found.constants:
        low, high = c.constant.low, c.constant.high
        edge = " (at the edge)" if c.value <= low * 1.0005 or c.value >= high * 0.9995 else ""
        lines.append(
            f"| `{c.constant.path}` | {c.prior:.4g} | {c.value:.4g}{edge} | "
            f"± {math.expm1(c.deviation):.0%} | {low:g} to {high:g} |"
        )
    return lines


def _ladders(found: MachineReport) -> list[str]:
    lines = [
        "| ladder | pairs | Kendall | in sample | static roofline |",
        "|---|---|---|---|---|",
    ]
    own, roof = found.in_sample_scores, found.roofline_scores
    for kind, out, inside, bound in (
        ("", found.scores.ladders, own.ladders, roof.ladders),
        (" (sweep)", found.scores.sweeps, own.sweeps, roof.sweeps),
    ):
        for name, value in out.items():
            others = [_tau(inside.get(name)), _tau(bound.get(name))]
            lines.append(f"| {name}{kind} | {value.pairs} | {_tau(value)} | {' | '.join(others)} |")
    return lines


def _rows(found: MachineReport) -> list[str]:
    lines = [
        "| row | family | measured us | predicted us | error | in sample | roofline | counts |",
        "|---|---|---|---|---|---|---|---|",
    ]
    used = set(found.used)
    for i, case in enumerate(found.cases):
        us = case.row.latency_us
        inside = signed_error(found.in_sample[i], us)
        bound = found.roofline.get(i)
        role = "fitted" if i in used else "ranks only" if case.is_scored else "shown"
        if case.is_scored and case.row.is_absolute and i not in used:
            role = "scored"
        if case.binding.is_sweep:
            role += ", sweep"
        shown = "" if bound is None else f"{signed_error(bound, us):+.0%}"
        lines.append(
            f"| {case.row.id} | {case.family} | {us:,.4g} | {found.left_out[i]:,.4g} | "
            f"{signed_error(found.left_out[i], us):+.1%} | {inside:+.1%} | {shown} | {role} |"
        )
    return lines


def _left_aside(calibration: Calibration) -> list[str]:
    lines: list[str] = []
    for title, rows in (
        ("Rows that enter no score", calibration.excluded),
        ("Rows whose kernel nkisim refuses", calibration.failed),
    ):
        if rows:
            lines += [f"## {title}", ""]
            by_reason: dict[str, list[str]] = {}
            for row, reason in rows.items():
                by_reason.setdefault(reason, []).append(row)
            lines += [f"- {reason}: {_listed(names)}" for reason, names in by_reason.items()]
            lines.append("")
    return lines


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _number(value: float, form: str) -> str:
    return "–" if math.isnan(value) else format(value, form)


def _tau(found: Kendall | None) -> str:
    return "–" if found is None or math.isnan(found.tau) else f"{found.tau:+.2f}"
