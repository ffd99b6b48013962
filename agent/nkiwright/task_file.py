"""The form of task.toml: the fields there are, their legal values, and what fits together.

Only the form; what a task means is in `tasks`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    PositiveInt,
    ValidationError,
)

from nkisim.dtypes import DTYPES
from nkiwright.errors import TaskError
from nkiwright.inputs import Family
from nkiwright.toml_file import Key, TomlFile, explain, read_toml, suggestion

TASK_FILE = "task.toml"

Scalar = bool | int | float | str
OpClass = Literal[
    "elementwise",
    "reduce",
    "norm",
    "softmax",
    "matmul",
    "attention",
    "conv",
    "scan",
    "gather",
    "layout",
    "other",
]


def _known_dtype(name: str) -> str:
    """Refuse what is no plain NKI dtype."""
    names = [dtype.name for dtype in DTYPES.values() if dtype.kind != "packed"]
    if name not in names:
        raise ValueError(f"unknown dtype {name!r}; {suggestion(name, names, 'dtypes')}")
    return name


def _identifier(name: str) -> str:
    """Refuse names that cannot be Python parameters."""
    if not name.isidentifier():
        raise ValueError(f"must be a Python identifier, got {name!r}")
    return name


def _dimension(size: object) -> int | str:
    """Accept a positive size or the name of a symbolic dimension."""
    if isinstance(size, str) and size.isidentifier():
        return size
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    raise ValueError(f"a size must be a positive number or a dimension's name, got {size!r}")


def _scalar(value: object) -> Scalar:
    """Accept one number, word or truth value."""
    if isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"must be a number, text, true or false, got {value!r}")


_Name = Annotated[str, AfterValidator(_identifier)]
_Sizes = dict[_Name, PositiveInt]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class OutputFields(_Model):
    """One entry of [outputs]."""

    shape: list[Annotated[int | str, PlainValidator(_dimension)]] = Field(min_length=1)
    dtype: Annotated[str, AfterValidator(_known_dtype)]


class InputFields(OutputFields):
    """One entry of [inputs]."""

    low: float | None = None
    high: float | None = None
    scale: float = Field(default=1.0, gt=0)


class ShapesFields(_Model):
    """The table [shapes]."""

    tiny: _Sizes
    main: _Sizes
    held_out: list[_Sizes] = []


class CheckFields(_Model):
    """The table [check]."""

    families: list[Annotated[Family, Field(strict=False)]] = Field(
        default=[Family.NORMAL], min_length=1
    )
    rtol: float = Field(default=0.0, ge=0)
    c: float | None = Field(default=None, ge=0)
    nan: Literal["forbid", "allow"] = "forbid"


class TaskFile(_Model):
    """A whole task.toml."""

    name: str
    op_class: OpClass
    level: Literal[1, 2, 3]
    description: str = Field(min_length=1)
    source: str = ""
    inputs: dict[_Name, InputFields] = Field(min_length=1)
    scalars: dict[_Name, Annotated[Scalar, PlainValidator(_scalar)]] = {}
    outputs: dict[_Name, OutputFields] = Field(min_length=1)
    shapes: ShapesFields
    check: CheckFields = CheckFields()


_TABLES: dict[str, type[_Model]] = {
    "inputs": InputFields,
    "outputs": OutputFields,
    "shapes": ShapesFields,
    "check": CheckFields,
}
"""Model of each table, to suggest field names from."""


def read_task_file(path: Path) -> tuple[TaskFile, str]:
    """Read and validate one task.toml.

    Returns:
        What the file says, and the same as canonical JSON for hashing.

    Raises:
        TaskError: With file, line, field and how to put it right.
    """
    toml = read_toml(path, error=TaskError)
    try:
        file = TaskFile.model_validate(toml.data)
    except ValidationError as exc:
        complaint = explain(exc, _fields_at)
        raise TaskError(
            f"{path}:{toml.line_of(complaint.key)}: {complaint.text}",
            hint=complaint.hint or _example(complaint.key),
        ) from exc
    _check_sense(file, toml)
    return file, json.dumps(toml.data, sort_keys=True, separators=(",", ":"), default=str)


def _check_sense(file: TaskFile, toml: TomlFile) -> None:
    """Refuse what each field alone cannot show."""

    def complain(text: str, *key: str | int, hint: str | None = None) -> None:
        raise TaskError(f"{toml.path}:{toml.line_of(key)}: {text}", hint=hint)

    if file.name != toml.path.parent.name:
        complain(
            f"name must be the folder's, {toml.path.parent.name!r}, got {file.name!r}",
            "name",
            hint="rename the folder or correct 'name'",
        )
    for clash in file.scalars.keys() & file.inputs.keys():
        complain(f"{clash!r} is both an input and a scalar", "scalars", clash)
    symbols = {s for spec in file.inputs.values() for s in spec.shape if isinstance(s, str)}
    for name, output in file.outputs.items():
        for size in output.shape:
            if isinstance(size, str) and size not in symbols:
                complain(
                    f"outputs.{name}: dimension {size!r} stands in no input",
                    *("outputs", name, "shape"),
                    hint=f"dimensions: {', '.join(sorted(symbols))}",
                )
    sets = [("tiny", file.shapes.tiny), ("main", file.shapes.main)]
    sets += [("held_out", dims) for dims in file.shapes.held_out]
    for key, dims in sets:
        if missing := symbols - dims.keys():
            complain(
                f"shapes.{key}: no size for dimension {', '.join(map(repr, sorted(missing)))}",
                *("shapes", key),
                hint=f"give every dimension: {', '.join(f'{s} = …' for s in sorted(symbols))}",
            )
        if unknown := dims.keys() - symbols:
            complain(
                f"shapes.{key}: no input has a dimension {', '.join(map(repr, sorted(unknown)))}",
                *("shapes", key),
                hint=f"dimensions: {', '.join(sorted(symbols))}",
            )
    for name, spec in file.inputs.items():
        if spec.low is not None and spec.high is not None and spec.low >= spec.high:
            complain(
                f"inputs.{name}: low must be below high, got {spec.low} and {spec.high}",
                *("inputs", name, "low"),
            )


def _fields_at(key: Key) -> list[str]:
    """Return the names of the fields beside `key`."""
    table = _TABLES.get(str(key[0]), TaskFile) if len(key) > 1 else TaskFile
    return list(table.model_fields)


def _example(key: Key) -> str | None:
    """Show how the field at `key` is written."""
    examples = {
        "name": 'name = "rmsnorm"',
        "op_class": 'op_class = "norm"',
        "level": "level = 1",
        "description": 'description = "What the operation computes."',
        "inputs": 'under [inputs]: x = { shape = ["n", "d"], dtype = "bfloat16" }',
        "outputs": 'under [outputs]: y = { shape = ["n", "d"], dtype = "bfloat16" }',
        "shapes": "under [shapes]: tiny = { n = 128, d = 256 }, and main the same way",
    }
    example = examples.get(str(key[0])) if key else None
    return None if example is None else f"write {example}"
