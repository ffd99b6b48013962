"""`nkiwright doctor`: what this machine can do, each layer tried and not guessed."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from nkiwright.cli.output import print_result


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was tried."""

    name: str
    is_ok: bool
    is_needed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """All findings."""

    findings: tuple[Finding, ...]

    @property
    def is_usable(self) -> bool:
        """Whether generated code can be run safely here."""
        return all(finding.is_ok for finding in self.findings if finding.is_needed)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "schema_version": 1,
            "is_usable": self.is_usable,
            "findings": [asdict(finding) for finding in self.findings],
        }


def examine(environ: Mapping[str, str]) -> DoctorReport:
    """Try everything that a solve needs."""
    from nkisim.worker import probe_layers

    findings = [
        Finding("python", True, True, f"{platform.python_version()} on {platform.platform()}"),
    ]
    report = probe_layers()
    findings += [
        Finding(f"layer {layer.name}", layer.state == "active", layer.mandatory, layer.detail)
        for layer in report.layers
    ]
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        is_set = bool(environ.get(variable))
        detail = "set" if is_set else "not set; only needed for that provider's models"
        findings.append(Finding(variable, is_set, False, detail))
    return DoctorReport(tuple(findings))


def show(report: DoctorReport) -> None:
    """Print the findings as a table."""
    table = Table(box=None, pad_edge=False)
    for name in ("check", "state", "needed", "detail"):
        table.add_column(name)
    for finding in report.findings:
        state = Text("ok", style="green") if finding.is_ok else Text("missing", style="yellow")
        if finding.is_needed and not finding.is_ok:
            state = Text("MISSING", style="bold red")
        table.add_row(finding.name, state, "yes" if finding.is_needed else "no", finding.detail)
    print_result(table)
    verdict = (
        "generated kernels can be run safely on this machine"
        if report.is_usable
        else "generated kernels are refused on this machine: a needed layer is missing"
    )
    print_result(verdict)
