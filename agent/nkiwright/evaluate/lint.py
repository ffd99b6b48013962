"""Whether a task's check is worth anything: right kernels pass it and wrong ones do not.

The naive baseline has to be right on every shape and family, its error sets `c`, and under that `c`
null kernels and (for float32 tasks) the baseline at bfloat16 precision have to be refused.
"""

from __future__ import annotations

import ast
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from nkisim.api import trace_bundle
from nkisim.dtypes import DTYPES
from nkisim.errors import NkisimError, ProgramError
from nkisim.execute.interpreter import Interpreter
from nkisim.frontend.arguments import TensorSpec as TensorArgument
from nkisim.machine.load import load_machine
from nkisim.machine.spec import Machine
from nkisim.sources import from_text
from nkisim.worker import Sandbox
from nkisim.worker.errors import SandboxUnavailable, WorkerError
from nkiwright.errors import SandboxError, TaskError
from nkiwright.evaluate.judge import JUDGE_FUEL
from nkiwright.evaluate.nulls import null_outputs
from nkiwright.evaluate.tolerance import DEFAULT_C, Comparison, compare
from nkiwright.inputs import Family
from nkiwright.task_file import TASK_FILE
from nkiwright.tasks import Array, Dims, Float64Array, Task
from nkiwright.toml_file import read_toml

SMALLEST_C = 2.0
BASELINE_FACTOR = 4.0
"""A kernel may err four times as much as the naive baseline does."""
WRONG_ERROR = 0.125
"""An error of this share of its row's rms is no rounding error."""
TOO_FAR = 2.0
"""A stored `c` this many times off the measured one is a mistake."""
LENIENT_C = 1e300
"""Lets everything pass that has a ratio at all."""
BLOCK_ROWS = 128

_HEADER = re.compile(r"^\s*\[+\s*([^\[\]]+?)\s*\]+\s*(?:#.*)?$")
_C_LINE = re.compile(r"^(\s*c\s*=\s*)[^\s#]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class LintReport:
    """What is wrong with one task, and the `c` that it should have."""

    task: str
    stored_c: float | None
    """`c` in task.toml, or None if there is none."""
    ratio: float | None
    """The baseline's worst |error| / (eps · s) at the main shape, less what `rtol` allows."""
    family: str | None
    """Where that was."""
    problems: tuple[str, ...]
    """What has to be mended, one line each."""
    notes: tuple[str, ...] = ()
    """What could not be checked."""

    @property
    def c(self) -> float | None:
        """The `c` that the baseline's error asks for, or None if it could not be measured."""
        return None if self.ratio is None else c_for(self.ratio)

    @property
    def is_sound(self) -> bool:
        """Whether there is nothing to mend."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "task": self.task,
            "stored_c": self.stored_c,
            "c": self.c,
            "ratio": self.ratio,
            "family": self.family,
            "problems": list(self.problems),
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class _Data:
    """Inputs with what is expected of them."""

    inputs: Mapping[str, Array]
    expected: tuple[Float64Array, ...]
    scales: tuple[Float64Array, ...]


def lint_task(
    task: Task,
    *,
    sandbox: Sandbox | None,
    machine: str = "trn2",
    nki: str = "0.6",
    seed: int = 0,
    is_stored: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> LintReport:
    """Check a task's check.

    Args:
        task: The task.
        sandbox: Where the baseline's Python runs; None runs it in this process (trusted code only).
        machine: Machine whose rules the baseline has to keep.
        nki: NKI version to enforce.
        seed: Seed of all inputs.
        is_stored: Whether the `c` in task.toml has to fit; False if it is about to be replaced.
        say: Called with a line before each longer step.

    Raises:
        TaskError: The reference raises or returns other shapes than the task says.
    """
    return _Linter(task, sandbox, load_machine(machine), nki, seed, is_stored, say).run()


def c_for(ratio: float) -> float:
    """Return `c` for a baseline's own ratio: four times as much, rounded up to two digits."""
    wanted = max(SMALLEST_C, BASELINE_FACTOR * ratio)
    unit = 10.0 ** (math.floor(math.log10(wanted)) - 1)
    return float(f"{math.ceil(round(wanted / unit, 9)) * unit:.6g}")


def store_c(folder: Path, c: float) -> bool:
    """Write `c` into a task's file; one line changes, comments stay.

    Args:
        folder: The task's folder.
        c: The value.

    Returns:
        Whether the file changed.

    Raises:
        TaskError: The file has no place for it that can be found.
    """
    path = folder / TASK_FILE
    toml = read_toml(path, error=TaskError)
    if _stored(toml.data) == c:
        return False
    text = _with_c(toml.text, c)
    try:
        is_right = _stored(tomllib.loads(text)) == c
    except tomllib.TOMLDecodeError:
        is_right = False
    if not is_right:
        raise TaskError(
            f"{path}:{toml.line_of(('check', 'c'))}: cannot change c where it is written",
            hint=f"write c = {c} by hand",
        )
    new = path.with_name(f".{TASK_FILE}.{os.getpid()}")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    except OSError as exc:
        raise TaskError(f"cannot write {path}: {exc.strerror}") from exc
    finally:
        new.unlink(missing_ok=True)
    return True


def narrowed(source: str) -> str | None:
    """Return a kernel with its on-chip tiles in bfloat16, or None if it allocates none.

    Tiles of one column stay: engines want per-row factors in float32, and they are not data.
    """
    tree = ast.parse(source)
    count = 0
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        words = {keyword.arg: keyword for keyword in call.keywords}
        buffer = words["buffer"].value if "buffer" in words else None
        if not (isinstance(buffer, ast.Attribute) and buffer.attr in ("sbuf", "psum")):
            continue
        if "dtype" in words and not _is_column(call):
            words["dtype"].value = ast.parse("nl.bfloat16", mode="eval").body
            count += 1
    return ast.unparse(tree) + "\n" if count else None


class _Linter:
    """One task's checks, and what they found."""

    def __init__(
        self,
        task: Task,
        sandbox: Sandbox | None,
        machine: Machine,
        nki: str,
        seed: int,
        is_stored: bool,
        say: Callable[[str], None],
    ) -> None:
        self.task = task
        self.sandbox = sandbox
        self.machine = machine
        self.nki = nki
        self.seed = seed
        self.is_stored = is_stored
        self.say = say
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.ratio: float | None = None
        self.family: str | None = None

    def run(self) -> LintReport:
        source = self.task.baseline_text
        if source is None:
            self.notes.append("no baseline.py, so c cannot be measured")
        else:
            self._measure(source)
        self._check_c()
        c = self.task.check.c or DEFAULT_C
        measured = None if self.ratio is None else c_for(self.ratio)
        if measured is not None:
            c = max(c, measured) if self.is_stored else measured
        self._check_families(source, replace(self.task, check=replace(self.task.check, c=c)))
        return LintReport(
            task=self.task.name,
            stored_c=self.task.check.c,
            ratio=self.ratio,
            family=self.family,
            problems=tuple(self.problems),
            notes=tuple(self.notes),
        )

    def _measure(self, source: str) -> None:
        """Run the baseline on every shape and family; its ratio counts at the main shape."""
        lenient = replace(self.task, check=replace(self.task.check, c=LENIENT_C))
        families = self.task.check.families
        worst = -1.0
        everywhere = [self.task.main, self.task.tiny, *self.task.held_out]
        for position, dims in enumerate(everywhere):
            self.say(f"{self.task.name}: baseline at {_shape_text(dims)}")
            try:
                interpreter = self._trace(source, dims)
            except (NkisimError, ProgramError) as error:
                self.problems.append(f"baseline at {_shape_text(dims)}: {_first_line(error)}")
                return
            for family in families:
                where = f"baseline at {_shape_text(dims)} on {family.value!r} inputs"
                data = self._data(dims, family)
                try:
                    found = self._compare(interpreter, data, lenient)
                except (NkisimError, ProgramError) as error:
                    self.problems.append(f"{where}: {_first_line(error)}")
                    return
                limit = self._plausible_ratio() if position == 0 else c_for(worst)
                if not found.is_within or not found.ratio <= limit:
                    strict = replace(self.task.check, c=limit)
                    told = self._compare(interpreter, data, replace(self.task, check=strict))
                    self.problems.append(f"{where}: {told.message or found.message}")
                    return
                if position == 0 and found.ratio > worst:
                    worst, self.family = found.ratio, family.value
        self.ratio = worst

    def _plausible_ratio(self) -> float:
        """Return the ratio above which the baseline is wrong rather than inexact."""
        eps = max(DTYPES[spec.dtype].eps for spec in self.task.outputs)
        return max(SMALLEST_C, WRONG_ERROR / eps)

    def _check_c(self) -> None:
        """Compare the stored `c` with the measured one."""
        if self.ratio is None or not self.is_stored:
            return
        stored, wanted = self.task.check.c, c_for(self.ratio)
        if stored is None:
            self.problems.append(
                f"task.toml has no c under [check]; the baseline asks for {wanted:g} "
                "(--write stores it)"
            )
        elif stored < self.ratio:
            self.problems.append(
                f"c = {stored:g} refuses the baseline, whose ratio is {self.ratio:.2f}; "
                f"it asks for {wanted:g} (--write stores it)"
            )
        elif not wanted / TOO_FAR <= stored <= wanted * TOO_FAR:
            self.problems.append(
                f"c = {stored:g} is far from the {wanted:g} that the baseline asks for "
                "(--write stores it)"
            )

    def _check_families(self, source: str | None, task: Task) -> None:
        """Refuse null kernels on each family, and low precision on the first."""
        for position, family in enumerate(task.check.families):
            self.say(f"{task.name}: null kernels on {family.value!r} inputs")
            data = self._data(task.main, family)
            where = f"on {family.value!r} inputs"
            if not self._is_sane(data):
                self.problems.append(
                    f"{where} the reference is not finite, or beyond the output's dtype; "
                    "limit the inputs with low, high or scale, leave this family out, "
                    'or set nan = "allow"'
                )
                continue
            for null in null_outputs(task, data.inputs, data.expected):
                if not is_refused(null.outputs, data.expected, data.scales, task):
                    self.problems.append(f"{where} a kernel passes that returns {null.name}")
            if position == 0 and any(spec.dtype == "float32" for spec in task.outputs):
                self._check_precision(source, task, data)

    def _check_precision(self, source: str | None, task: Task, data: _Data) -> None:
        """Refuse the reference on bfloat16 inputs and the baseline on bfloat16 tiles."""
        self.say(f"{task.name}: bfloat16 versions")
        rounded = {
            name: array.astype(ml_dtypes.bfloat16).astype(array.dtype)
            if array.dtype == np.float32
            else array
            for name, array in data.inputs.items()
        }
        outputs = [
            array.astype(DTYPES[spec.dtype].storage)
            for array, spec in zip(task.reference(rounded), task.outputs, strict=True)
        ]
        if not is_refused(outputs, data.expected, data.scales, task):
            self.problems.append("inputs rounded to bfloat16 pass, so the check is too loose")
        narrow = None if source is None else narrowed(source)
        if narrow is None:
            self.notes.append("no version of the baseline with bfloat16 tiles could be made")
            return
        try:
            outcome = self._compare(self._trace(narrow, task.main), data, task)
        except (NkisimError, ProgramError) as error:
            self.notes.append(f"the baseline with bfloat16 tiles does not run: {error}")
            return
        if outcome.is_within:
            self.problems.append("the baseline passes with bfloat16 tiles: the check is too loose")

    def _is_sane(self, data: _Data) -> bool:
        if self.task.check.nan == "allow":
            return True
        return all(
            bool(np.isfinite(array).all())
            and float(np.abs(array).max(initial=0.0)) <= DTYPES[spec.dtype].max
            for array, spec in zip(data.expected, self.task.outputs, strict=True)
        )

    def _trace(self, source: str, dims: Dims) -> Interpreter:
        arguments = [
            TensorArgument(spec.resolve(dims), DTYPES[spec.dtype]) for spec in self.task.inputs
        ]
        try:
            traced = trace_bundle(
                from_text(source),
                "kernel",
                arguments,
                dict(self.task.scalars),
                machine=self.machine,
                nki=self.nki,
                sandbox=self.sandbox,
                stand_ins=False,
            )
        except (SandboxUnavailable, WorkerError) as exc:
            raise SandboxError(str(exc)) from exc
        return Interpreter(traced.program, fuel=JUDGE_FUEL)

    def _data(self, dims: Dims, family: Family) -> _Data:
        inputs = self.task.draw(dims, seed=self.seed, family=family)
        expected = self.task.reference(inputs)
        return _Data(inputs, expected, self.task.error_scale(inputs, expected))

    def _compare(self, interpreter: Interpreter, data: _Data, task: Task) -> Comparison:
        run = interpreter.run([data.inputs[spec.name] for spec in task.inputs])
        return compare(run.outputs, data.expected, data.scales, task.outputs, task.check)


def is_refused(
    outputs: Sequence[Array],
    expected: Sequence[Float64Array],
    scales: Sequence[Float64Array],
    task: Task,
) -> bool:
    """Return whether the task's check refuses these outputs.

    Looks at blocks of rows from the end and stops at the first wrong one; the rule is one of single
    elements, so any wrong block refuses the whole.
    """
    for output, want, scale, spec in zip(outputs, expected, scales, task.outputs, strict=True):
        full = np.broadcast_to(scale, (*want.shape[:-1], scale.shape[-1] if scale.ndim else 1))
        for rows in _blocks(len(want)):
            found = compare([output[rows]], [want[rows]], [full[rows]], [spec], task.check)
            if not found.is_within:
                return True
    return False


def _blocks(count: int) -> Iterator[slice]:
    for stop in range(count, 0, -BLOCK_ROWS):
        yield slice(max(0, stop - BLOCK_ROWS), stop)


def _is_column(call: ast.Call) -> bool:
    """Whether an allocation's first argument is a shape that ends in 1."""
    shape = call.args[0] if call.args else None
    if not isinstance(shape, ast.Tuple | ast.List) or not shape.elts:
        return False
    last = shape.elts[-1]
    return isinstance(last, ast.Constant) and last.value == 1


def _stored(data: Mapping[str, object]) -> object:
    check = data.get("check")
    return check.get("c") if isinstance(check, dict) else None


def _with_c(text: str, c: float) -> str:
    """Return a task file's text with another `c`."""
    lines = text.splitlines(keepends=True)
    table, end = "", None
    for number, line in enumerate(lines):
        if header := _HEADER.match(line):
            table = header[1]
        if table != "check":
            continue
        if _C_LINE.match(line):
            lines[number] = _C_LINE.sub(lambda found: f"{found[1]}{c}", line)
            return "".join(lines)
        if line.strip():
            end = number + 1
    if end is None:
        return text.rstrip("\n") + f"\n\n[check]\nc = {c}\n"
    if not lines[end - 1].endswith("\n"):
        lines[end - 1] += "\n"
    lines.insert(end, f"c = {c}\n")
    return "".join(lines)


def _shape_text(dims: Dims) -> str:
    return " ".join(f"{name}={size}" for name, size in dims.items())


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
