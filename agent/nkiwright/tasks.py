"""Tasks: what a kernel has to compute, at which shapes, and how exactly.

A task is a folder with `task.toml` and `reference.py` (a numpy function in float64), and optionally
`baseline.py` and `tuned.py`, two kernels to compare with.  The reference is the user's own, trusted
code and runs here; kernels are kept as text, because they run only in the sandbox.
"""

from __future__ import annotations

import hashlib
import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from nkisim.dtypes import DTYPES
from nkiwright.errors import TaskError
from nkiwright.inputs import Family, draw
from nkiwright.resources import data_dir
from nkiwright.task_file import TASK_FILE, OpClass, Scalar, read_task_file
from nkiwright.toml_file import suggestion

Array = npt.NDArray[np.generic]
Float64Array = npt.NDArray[np.float64]
Dims = Mapping[str, int]
"""Size of each symbolic dimension, such as `{"n": 4096, "d": 4096}`."""
Reference = Callable[..., object]

REFERENCE_FILE = "reference.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One input or output of a task."""

    name: str
    shape: tuple[str | int, ...]
    """Sizes; a name stands for a symbolic dimension."""
    dtype: str
    """NKI name."""
    low: float | None = None
    """Smallest value that makes sense, or None for no limit."""
    high: float | None = None
    """Largest value that makes sense, or None for no limit."""
    scale: float = 1.0
    """Typical magnitude: the standard deviation of the `normal` family."""

    def resolve(self, dims: Dims) -> tuple[int, ...]:
        """Return the shape at given sizes of the symbolic dimensions."""
        return tuple(size if isinstance(size, int) else dims[size] for size in self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """How exact a kernel has to be.

    An element passes if `|error| <= rtol * |reference| + c * eps(dtype) * s`, where `s` is
    `Task.error_scale`.
    """

    families: tuple[Family, ...]
    """Input distributions that the champion must pass; the first is used everywhere."""
    rtol: float
    c: float | None
    """Four times the naive baseline's own ratio, or None if not measured yet."""
    nan: Literal["forbid", "allow"]
    """Whether NaN and infinity may stand where the reference has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task, validated; plain data that can cross to another process."""

    name: str
    op_class: OpClass
    level: int
    """1 a single operation, 2 a fusion, 3 a block of a model."""
    description: str
    source: str
    """Where the sizes come from, or an empty string."""
    inputs: tuple[TensorSpec, ...]
    scalars: Mapping[str, Scalar]
    """Constants, passed to reference and kernel as keyword arguments."""
    outputs: tuple[TensorSpec, ...]
    tiny: Dims
    """The smallest shape, to fail fast on."""
    main: Dims
    """The shape that is timed."""
    held_out: tuple[Dims, ...]
    """Shapes that a kernel must get right too; never shown to a model."""
    check: Check
    folder: Path
    reference_text: str
    baseline_text: str | None
    """Source of the naive kernel, if the folder has one."""
    tuned_text: str | None
    """Source of a hand-tuned kernel, if the folder has one."""
    content_hash: str
    """SHA-256 over the definition and the reference: equal hashes are the same problem."""

    @property
    def has_baseline(self) -> bool:
        """Whether the folder brings a naive kernel to compare with."""
        return self.baseline_text is not None

    def draw(self, dims: Dims, *, seed: int, family: Family = Family.NORMAL) -> dict[str, Array]:
        """Draw all inputs at one shape; the same on any machine.

        Args:
            dims: Size of each symbolic dimension.
            seed: Equal seeds give equal bits.
            family: Distribution of the values.
        """
        return {
            spec.name: draw(
                spec.dtype,
                spec.resolve(dims),
                key=(seed, spec.name),
                family=family,
                low=spec.low,
                high=spec.high,
                scale=spec.scale,
            )
            for spec in self.inputs
        }

    def reference(self, inputs: Mapping[str, Array]) -> tuple[Float64Array, ...]:
        """Compute the expected outputs in float64.

        Args:
            inputs: Arrays by input name, in the task's dtypes; floats are upcast before the call.

        Raises:
            TaskError: The reference raises or returns other shapes than the task says.
        """
        dims = self.bind(inputs)
        result = self._call("reference", self._load_functions()["reference"], inputs)
        results = result if isinstance(result, tuple | list) else (result,)
        if len(results) != len(self.outputs):
            raise TaskError(
                f"{self._reference_path}: reference returned {len(results)} arrays, but "
                f"{TASK_FILE} lists {len(self.outputs)} outputs "
                f"({', '.join(spec.name for spec in self.outputs)})",
                hint="return one array per output, as a tuple in the order of [outputs]",
            )
        return tuple(
            self._checked_output(spec, value, dims)
            for spec, value in zip(self.outputs, results, strict=True)
        )

    def reference_function(self) -> Reference:
        """Return the reference itself, to be called with the inputs and scalars by name."""
        return self._load_functions()["reference"]

    def error_scale(
        self, inputs: Mapping[str, Array], expected: Sequence[Float64Array]
    ) -> tuple[Float64Array, ...]:
        """Return `s` of the tolerance rule for each output, broadcastable to it.

        It is the rms of the expected output over its row (last axis), unless `reference.py` defines
        `error_scale` with the reference's parameters, which is for outputs that nearly cancel.

        Args:
            inputs: Arrays by input name.
            expected: What `reference` returned for them.
        """
        own = self._load_functions().get("error_scale")
        if own is None:
            return tuple(_row_rms(array) for array in expected)
        result = self._call("error_scale", own, inputs)
        results = result if isinstance(result, tuple | list) else (result,)
        scales = tuple(np.asarray(value, dtype=np.float64) for value in results)
        for scale, array in zip(scales, expected, strict=True):
            if not _broadcasts_to(scale.shape, array.shape):
                raise TaskError(
                    f"{self._reference_path}: error_scale has shape {list(scale.shape)}, which "
                    f"does not broadcast to the output's {list(array.shape)}"
                )
        return scales

    def bind(self, inputs: Mapping[str, Array]) -> dict[str, int]:
        """Return the sizes of the symbolic dimensions that given inputs imply.

        Raises:
            TaskError: An input is missing, or its rank, a size or the dtype disagrees.
        """
        dims: dict[str, int] = {}
        for spec in self.inputs:
            if spec.name not in inputs:
                raise TaskError(f"task {self.name}: input {spec.name!r} is missing")
            array = inputs[spec.name]
            if array.dtype != DTYPES[spec.dtype].storage:
                raise TaskError(
                    f"task {self.name}: input {spec.name!r} must be {spec.dtype}, got {array.dtype}"
                )
            wanted = [s if isinstance(s, int) else dims.get(s, s) for s in spec.shape]
            if len(wanted) != array.ndim or any(
                isinstance(want, int) and want != size
                for want, size in zip(wanted, array.shape, strict=True)
            ):
                raise TaskError(
                    f"task {self.name}: input {spec.name!r} must have shape "
                    f"[{', '.join(map(str, wanted))}], got {list(array.shape)}"
                )
            pairs = zip(wanted, array.shape, strict=True)
            dims |= {want: size for want, size in pairs if isinstance(want, str)}
        return dims

    @property
    def _reference_path(self) -> Path:
        return self.folder / REFERENCE_FILE

    def _load_functions(self) -> dict[str, Reference]:
        """Run reference.py and return the functions of it that mean something to us.

        The text is compiled here rather than imported, so that no bytecode is written into the
        folder and what runs is what was hashed.
        """
        path = self._reference_path
        namespace: dict[str, object] = {"__name__": f"reference_{self.name}", "__file__": str(path)}
        try:
            exec(compile(self.reference_text, str(path), "exec"), namespace)
        except SyntaxError as exc:
            raise TaskError(f"{path}:{exc.lineno or 1}: {exc.msg} in the reference") from exc
        except Exception as exc:
            raise self._raised("reference.py", exc) from exc
        functions: dict[str, Reference] = {
            name: function
            for name in ("reference", "error_scale")
            if callable(function := namespace.get(name))
        }
        if "reference" not in functions:
            raise TaskError(
                f"{path}:1: defines no function 'reference'", hint=f"write '{self._signature()}'"
            )
        return functions

    def _call(self, name: str, function: Reference, inputs: Mapping[str, Array]) -> object:
        """Call a function of reference.py on upcast inputs."""
        arguments = {spec.name: _upcast(inputs[spec.name]) for spec in self.inputs}
        try:
            inspect.signature(function).bind(**arguments, **self.scalars)
        except TypeError as exc:
            line = getattr(getattr(function, "__code__", None), "co_firstlineno", 1)
            raise TaskError(
                f"{self._reference_path}:{line}: {name} does not take the task's inputs and "
                f"scalars: {exc}",
                hint=f"write '{self._signature(name)}'",
            ) from exc
        try:
            with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
                return function(**arguments, **self.scalars)
        except Exception as exc:
            raise self._raised(name, exc) from exc

    def _raised(self, name: str, exc: Exception) -> TaskError:
        """Describe an exception by the last line of reference.py that it went through."""
        path = str(self._reference_path)
        frames = traceback.extract_tb(exc.__traceback__)
        line = next((f.lineno for f in reversed(frames) if f.filename == path), 1)
        return TaskError(
            f"{path}:{line}: {name} raised {type(exc).__name__}: {exc}",
            hint="the reference is ordinary numpy; fix it so that it runs on the task's inputs",
        )

    def _checked_output(self, spec: TensorSpec, value: object, dims: Dims) -> Float64Array:
        try:
            array = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError) as exc:
            raise TaskError(
                f"{self._reference_path}: reference must return numbers for {spec.name!r}, "
                f"got {type(value).__name__}",
                hint="end the reference with 'return', followed by an array",
            ) from exc
        wanted = spec.resolve(dims)
        if array.shape != wanted or value is None:
            came = "None" if value is None else str(list(array.shape))
            raise TaskError(
                f"{self._reference_path}: reference returned shape {came} for {spec.name!r}, "
                f"expected {list(wanted)} ([{', '.join(map(str, spec.shape))}])",
                hint=f"correct the reference, or [outputs.{spec.name}] in {TASK_FILE}",
            )
        return array

    def _signature(self, name: str = "reference") -> str:
        parts = [spec.name for spec in self.inputs]
        if self.scalars:
            parts += ["*", *self.scalars]
        return f"def {name}({', '.join(parts)}):"


def load(path_or_name: str | Path, *, search: Sequence[Path] = ()) -> Task:
    """Load one task.

    Args:
        path_or_name: A task folder, its task.toml, or the name of a task.
        search: Folders of tasks to look a name up in, before those that come with the program.

    Raises:
        TaskError: There is no such task, or its folder is not right.
    """
    return _read(_find(path_or_name, search))


def discover(folder: Path) -> tuple[Path, ...]:
    """Return the task folders directly inside `folder`, sorted by name.

    Raises:
        TaskError: There is no such folder.
    """
    if not folder.is_dir():
        raise TaskError(f"no folder {folder}", hint="name a folder that holds task folders")
    return tuple(sorted(file.parent for file in folder.glob(f"*/{TASK_FILE}")))


def _find(path_or_name: str | Path, search: Sequence[Path]) -> Path:
    """Return the task folder that a path or a name means."""
    path = Path(path_or_name)
    if path.name == TASK_FILE and path.is_file():
        return path.parent
    if (path / TASK_FILE).is_file():
        return path
    places = (*search, data_dir("tasks"))
    is_name = len(path.parts) == 1 and not str(path_or_name).endswith("/")
    if is_name:
        for place in places:
            if (place / path / TASK_FILE).is_file():
                return place / path
    if path.is_dir() and (not is_name or path.name in (".", "..")):
        raise TaskError(
            f"{path} holds no {TASK_FILE}",
            hint="name a task folder; for a folder of tasks use 'nkiwright batch'",
        )
    if path.is_file():
        raise TaskError(f"{path} is a file", hint=f"name a task folder, such as {path.parent}")
    if not is_name:
        raise TaskError(f"no task folder {path}", hint="'nkiwright tasks list' shows the tasks")
    names = [found.name for place in places if place.is_dir() for found in discover(place)]
    raise TaskError(f"unknown task {path.name!r}", hint=suggestion(path.name, names, "tasks"))


def _read(folder: Path) -> Task:
    """Read and validate the task in a folder."""
    folder = folder.resolve()
    file, canonical = read_task_file(folder / TASK_FILE)
    reference = _text(folder / REFERENCE_FILE)
    if reference is None:
        raise TaskError(
            f"{folder} holds no {REFERENCE_FILE}",
            hint="write the operation there as a numpy function 'reference'",
        )
    return Task(
        name=file.name,
        op_class=file.op_class,
        level=file.level,
        description=file.description,
        source=file.source,
        inputs=tuple(
            TensorSpec(
                name=name,
                shape=tuple(spec.shape),
                dtype=spec.dtype,
                low=spec.low,
                high=spec.high,
                scale=spec.scale,
            )
            for name, spec in file.inputs.items()
        ),
        scalars=file.scalars,
        outputs=tuple(
            TensorSpec(name=name, shape=tuple(spec.shape), dtype=spec.dtype)
            for name, spec in file.outputs.items()
        ),
        tiny=file.shapes.tiny,
        main=file.shapes.main,
        held_out=tuple(file.shapes.held_out),
        check=Check(
            families=tuple(file.check.families),
            rtol=file.check.rtol,
            c=file.check.c,
            nan=file.check.nan,
        ),
        folder=folder,
        reference_text=reference,
        baseline_text=_text(folder / "baseline.py"),
        tuned_text=_text(folder / "tuned.py"),
        content_hash=hashlib.sha256(f"{canonical}\n{reference}".encode()).hexdigest(),
    )


def _text(path: Path) -> str | None:
    """Return the text of a file with plain line ends, or None if there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as exc:
        raise TaskError(f"cannot read {path}: {exc}") from exc


def _upcast(array: Array) -> Array:
    """Return floats as float64 and integers as int64; rounding of the inputs does not count."""
    if array.dtype == np.bool_:
        return array
    if array.dtype.kind in "iu":
        return array.astype(np.int64)
    return array.astype(np.float64)


def _row_rms(array: Float64Array) -> Float64Array:
    """Return the root mean square of what is finite in the last axis, kept as an axis of size 1."""
    finite = np.isfinite(array)
    if finite.all():
        squares: Float64Array = np.mean(np.square(array), axis=-1, keepdims=True)
        return np.sqrt(squares)
    total = np.sum(np.square(np.where(finite, array, 0.0)), axis=-1, keepdims=True)
    mean: Float64Array = total / np.maximum(np.sum(finite, axis=-1, keepdims=True), 1)
    return np.sqrt(mean)


def _broadcasts_to(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, wanted) == wanted
    except ValueError:
        return False
