"""Writes fitted values into a machine file, leaving everything else in it as it is."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nkisim.calibrate.errors import CalibrationError


def with_values(text: str, values: Mapping[str, float], sources: Mapping[str, str]) -> str:
    """Return the text of a machine file with constants replaced and marked as fitted.

    Args:
        text: The TOML file.
        values: New values by dotted name.
        sources: What each was fitted on, by dotted name.

    Raises:
        CalibrationError: A constant does not stand in the file.
    """
    lines = text.splitlines(keepends=True)
    group = ""
    left = dict(values)
    for at, line in enumerate(lines):
        header = re.match(r"^\[(\w+)\]", line)
        if header:
            group = header[1] + "."
            continue
        name = line.partition("=")[0].strip()
        path = group + name
        if path in left:
            value = left.pop(path)
            lines[at] = (
                f'{name} = {{ value = {_number(value)}, source = "{sources[path]}", '
                'confidence = "fit" }\n'
            )
    if left:
        raise CalibrationError(f"the machine file has no constant {next(iter(left))!r}")
    return "".join(lines)


def _number(value: float) -> str:
    text = f"{value:.4g}"
    text = f"{float(text):.10g}"
    return text if "." in text or "e" in text else f"{text}.0"
