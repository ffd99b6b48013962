"""Judging options as JSON, for evaluator processes and certificates."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from nkisim.execute.fuel import Fuel
from nkiwright.evaluate.judge import JudgeOptions


def options_to_json(options: JudgeOptions) -> dict[str, Any]:
    """Return plain JSON data."""
    return dataclasses.asdict(options)


def options_from_json(data: Mapping[str, Any]) -> JudgeOptions:
    """Read what `options_to_json` wrote."""
    values = dict(data)
    values["fuel"] = Fuel(**values["fuel"])
    return JudgeOptions(**values)
