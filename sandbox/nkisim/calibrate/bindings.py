r"""Binds measurements to calls: which file, entry and arguments a row was measured with.

A TOML file of `[[row]]` tables.  Each names the `id` (or several `ids`) of measurements and

    file    = "repo/path/kernel.py"    below the kernels folder; "./x.py" lies beside the TOML file;
                                       {variant} stands for the row's variant
    block   = 3                        the third code block of the file (-1: the last)
    prelude = "…"                      source put before the kernel's, such as its imports
    replace = [["N=1", "N=2"]]         regular expressions to replace in the source; all must occur
    entry   = "kernel"
    args    = ["float32[128,512]", 3]  as on nkisim's command line, or TOML values
    kwargs  = { eps = "1e-6" }
    grid    = [2]
    machine = "trn2"                   default: the row's generation
    family  = "matmul"                 default: the row's `kernel`
    sweep   = true                     one of many settings of one kernel; scored apart
    measure = "latency"                or "without launch", "result OP", "each OP"

or, instead of a file, `source = "…"`, the kernel itself; `constant = "dma.trigger_ns"`, a constant;
or `transfer_bytes = 32768`, the transfer of so many bytes by one DMA engine.  `[defaults]` may give
any of them but `id`; `[text]` holds texts that rows refer to as `prelude = "@name"` and
`source = "@name"`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nkisim.calibrate.errors import CalibrationError

LATENCY, WITHOUT_LAUNCH, RESULT, EACH = "latency", "without launch", "result", "each"
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "id": str,
    "ids": list,
    "file": str,
    "source": str,
    "block": int,
    "prelude": str,
    "replace": list,
    "entry": str,
    "args": list,
    "kwargs": dict,
    "grid": list,
    "machine": str,
    "family": str,
    "sweep": bool,
    "measure": str,
    "constant": str,
    "transfer_bytes": int,
    "search_path": list,
}


@dataclass(frozen=True, slots=True)
class Binding:
    """How one measured figure is reproduced."""

    id: str
    file: str | None
    source: str | None
    block: int | None
    prelude: str
    replace: tuple[tuple[str, str], ...]
    entry: str
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    grid: tuple[int, ...]
    machine: str | None
    family: str | None
    is_sweep: bool
    measure: str
    constant: str | None
    transfer_bytes: int | None
    search_path: tuple[str, ...]
    folder: Path
    """Of the TOML file."""

    @property
    def is_kernel(self) -> bool:
        """Whether a kernel is run."""
        return self.file is not None or self.source is not None

    def path(self, kernels: Path, variant: str) -> Path:
        """Return where the kernel's file is, given the folder of kernels."""
        assert self.file is not None
        file = self.file.replace("{variant}", variant)
        return self.folder / file if file.startswith("./") else kernels / file


def read_bindings(path: Path) -> dict[str, Binding]:
    """Return the bindings of a TOML file by row id.

    Raises:
        CalibrationError: The file cannot be read, or a table in it is wrong.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CalibrationError(f"cannot read {path.name}: {error}") from None
    unknown = sorted(set(data) - {"row", "defaults", "text"})
    if unknown:
        raise CalibrationError(f"{path.name}: unknown key {unknown[0]!r}")
    texts, tables = data.get("text", {}), data.get("row", [])
    defaults = data.get("defaults", {})
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise CalibrationError(f"{path.name}: rows must be given as [[row]]")
    for name, text in texts.items():
        if not isinstance(text, str):
            raise CalibrationError(f"{path.name}: text.{name} must be a string")
    result: dict[str, Binding] = {}
    for number, table in enumerate(tables, start=1):
        for binding in _read_table(path, number, {**defaults, **table}, texts):
            if binding.id in result:
                raise CalibrationError(f"{path.name}: {binding.id!r} is bound twice")
            result[binding.id] = binding
    return result


def _read_table(
    path: Path, number: int, table: dict[str, Any], texts: Mapping[str, str]
) -> list[Binding]:
    ids = table.get("ids", [table["id"]] if "id" in table else [])
    where = f"{path.name}, row {number}" + (f" ({ids[0]})" if ids else "")
    for key, value in table.items():
        wanted = _TYPES.get(key)
        if wanted is None:
            raise CalibrationError(f"{where}: unknown key {key!r}")
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            raise CalibrationError(f"{where}: {key} must be a {_name(wanted)}, got {value!r}")
    if not ids or not all(isinstance(i, str) and i for i in ids):
        raise CalibrationError(f"{where}: id is missing")
    sources = [key for key in ("file", "source", "constant", "transfer_bytes") if key in table]
    if len(sources) != 1:
        raise CalibrationError(
            f"{where}: give exactly one of file, source, constant and transfer_bytes, "
            f"got {', '.join(sources) or 'none'}"
        )
    if ("file" in table or "source" in table) and "entry" not in table:
        raise CalibrationError(f"{where}: entry is missing")
    measure = table.get("measure", LATENCY)
    word, _, op = measure.partition(" ")
    if not (measure in (LATENCY, WITHOUT_LAUNCH) or (word in (RESULT, EACH) and op)):
        raise CalibrationError(
            f"{where}: measure must be 'latency', 'without launch', 'result OP' or 'each OP', "
            f"got {measure!r}"
        )
    grid = table.get("grid", [])
    if not all(type(n) is int and n > 0 for n in grid):
        raise CalibrationError(f"{where}: grid must hold positive integers, got {grid!r}")
    replace = table.get("replace", [])
    if not all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(t, str) for t in pair)
        for pair in replace
    ):
        raise CalibrationError(f"{where}: replace must hold [pattern, text] pairs, got {replace!r}")
    given = {key: table[key] for key in ("prelude", "source") if key in table}
    for key, text in given.items():
        if text.startswith("@"):
            if text[1:] not in texts:
                raise CalibrationError(f"{where}: there is no text {text[1:]!r}")
            given[key] = texts[text[1:]]
    return [
        Binding(
            id=i,
            file=table.get("file"),
            source=given.get("source"),
            block=table.get("block"),
            prelude=given.get("prelude", ""),
            replace=tuple((str(a), str(b)) for a, b in replace),
            entry=table.get("entry", ""),
            args=tuple(table.get("args", [])),
            kwargs=MappingProxyType(table.get("kwargs", {})),
            grid=tuple(grid),
            machine=table.get("machine"),
            family=table.get("family"),
            is_sweep=table.get("sweep", False),
            measure=measure,
            constant=table.get("constant"),
            transfer_bytes=table.get("transfer_bytes"),
            search_path=tuple(table.get("search_path", [])),
            folder=path.parent,
        )
        for i in ids
    ]


def _name(wanted: type | tuple[type, ...]) -> str:
    names = {str: "string", int: "integer", list: "list", dict: "table", bool: "boolean"}
    return names[wanted] if isinstance(wanted, type) else "value"
