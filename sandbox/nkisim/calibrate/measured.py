"""Reads measurements: one CSV row per figure, with what it may be used for.

Columns: `id`, `generation` (machine), `kernel`, `measured_latency_us`, `kind`, `ladder`, `stat`,
`scale`, `variant`, `notes`.  Other columns are ignored.
"""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass
from pathlib import Path

from nkisim.calibrate.errors import CalibrationError

COLUMNS = ("id", "generation", "kernel", "measured_latency_us", "kind", "ladder", "scale", "notes")
MEASURED, MICRO = "measured", "micro"
ABSOLUTE = "ok"
"""Value of `scale` of rows whose absolute value counts; others count for ranks only."""
_SPILLED = re.compile(
    r"spill_(?:rd|wr)_B=[1-9]|compiler spilling|compiler-inserted spill|\(spills\)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Row:
    """One published figure."""

    id: str
    machine: str
    kernel: str
    """What is computed: the default kernel family."""
    latency_us: float
    kind: str
    ladder: str
    """Name of a sequence of versions of one kernel, or empty."""
    is_absolute: bool
    is_spilled: bool
    """Whether the vendor's compiler moved tiles to HBM, a decision that nkisim does not repeat."""
    variant: str
    note: str

    @property
    def is_micro(self) -> bool:
        """Whether the figure is a part of a launch, not its latency."""
        return self.kind == MICRO

    @property
    def counts(self) -> bool:
        """Whether the row may enter scores: a measurement of the kernel as it is written."""
        return self.kind == MEASURED and not self.is_spilled

    @property
    def may_fit(self) -> bool:
        """Whether constants may be fitted on it."""
        return self.kind in (MEASURED, MICRO) and self.is_absolute and not self.is_spilled


def read_measured(path: Path) -> dict[str, Row]:
    """Return the rows of a CSV file by id.

    Raises:
        CalibrationError: The file cannot be read, lacks a column or has a bad row.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [c for c in COLUMNS if c not in (reader.fieldnames or ())]
            if missing:
                raise CalibrationError(f"{path.name}: column {missing[0]!r} is missing")
            rows = [_row(path, line, record) for line, record in enumerate(reader, start=2)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CalibrationError(f"cannot read {path.name}: {error}") from None
    result: dict[str, Row] = {}
    for row in rows:
        if row.id in result:
            raise CalibrationError(f"{path.name}: two rows have the id {row.id!r}")
        result[row.id] = row
    return result


def _row(path: Path, line: int, record: dict[str, str]) -> Row:
    text = record["measured_latency_us"]
    try:
        latency = float(text)
    except (TypeError, ValueError):
        latency = math.nan
    if not 0 < latency < math.inf:
        raise CalibrationError(
            f"{path.name}, record {line - 1}: measured_latency_us must be positive, got {text!r}"
        )
    about = f"{record.get('variant') or ''} {record['notes'] or ''}"
    return Row(
        id=record["id"],
        machine=record["generation"],
        kernel=record["kernel"],
        latency_us=latency,
        kind=record["kind"],
        ladder=record["ladder"],
        is_absolute=record["scale"] == ABSOLUTE,
        is_spilled=bool(_SPILLED.search(about)),
        variant=record.get("variant") or "",
        note=record["notes"] or "",
    )
