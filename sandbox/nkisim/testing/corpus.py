"""Runs public kernel collections: binds a corpus runner's cases to `nkisim.run_file`.

A runner passes kernel file, entry, arguments and grid; names of NKI in the arguments come as
objects with `name` and `space` and become `nkisim.symbol`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nkisim.api import construct, run_file, symbol


def adapt(value: Any) -> Any:
    """Replace a runner's NKI names anywhere in an argument."""
    if hasattr(value, "space") and hasattr(value, "name"):
        return symbol(f"{value.space}.{value.name}")
    if isinstance(value, tuple):
        return tuple(adapt(item) for item in value)
    if isinstance(value, list):
        return [adapt(item) for item in value]
    if isinstance(value, dict):
        return {key: adapt(item) for key, item in value.items()}
    if hasattr(value, "path") and hasattr(value, "args") and hasattr(value, "kwargs"):
        return construct(value.path, *adapt(tuple(value.args)), **adapt(dict(value.kwargs)))
    return value


def run(
    path: str,
    entry: str,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    grid: Any,
    case: Any = None,
    root: str | None = None,
) -> Any:
    """Run one case; returns the outputs, or None for a kernel that wrote into its arguments."""
    search_path = []
    syspath = getattr(case, "syspath", "")
    if root and syspath:
        search_path.append(Path(root) / syspath)
    machine = getattr(case, "machine", None) or None
    result = run_file(
        path,
        entry,
        adapt(tuple(args)),
        adapt(dict(kwargs)),
        grid=grid,
        machine=machine,
        search_path=search_path,
    )
    if getattr(case, "inplace", ()):
        return None
    outputs = result.outputs
    return outputs[0] if len(outputs) == 1 else outputs
