"""Recorded conversations: a recorder around any model, and a model that answers from a recording.

A recording is a file of JSON lines, one answered call each.  A row's key is the hash of what was
asked and how many times it had been asked before, so that equal requests replay different answers
in order, whatever the order of different ones.  Limits that depend on money left
(`max_output_tokens`) and the model's name are kept but are not part of the key: a replay costs
nothing, so it would set other limits.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nkiwright.errors import ConfigError, ModelError
from nkiwright.llm.base import Completion, Model, ModelCall, OnDelta

SCHEMA_VERSION = 1
_NOT_IN_KEY = ("max_output_tokens",)
_SHOWN = 60
"""Characters shown on each side of a difference."""


@dataclass(frozen=True, slots=True)
class Row:
    """One answered call of a recording."""

    digest: str
    """Hash of the request."""
    occurrence: int
    """How many times the request had been answered before."""
    call: ModelCall
    completion: Completion

    def to_line(self) -> str:
        """Return the row as one line of JSON, with its line end."""
        data = {
            "schema_version": SCHEMA_VERSION,
            "key": f"{self.digest}-{self.occurrence}",
            "request": self.call.to_json(),
            "completion": self.completion.to_json(),
        }
        return json.dumps(data, separators=(",", ":")) + "\n"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Row:
        """Read the JSON of a row.

        Raises:
            ValueError, KeyError, TypeError: It is no row of this schema version.
        """
        if data["schema_version"] != SCHEMA_VERSION:
            raise ValueError(
                f"schema version {SCHEMA_VERSION} expected, got {data['schema_version']!r}"
            )
        call = ModelCall.from_json(data["request"])
        digest, _, occurrence = str(data["key"]).rpartition("-")
        if digest != request_digest(call):
            raise ValueError("the key does not belong to the request")
        return cls(digest, int(occurrence), call, Completion.from_json(data["completion"]))


def request_digest(call: ModelCall) -> str:
    """Return the hash of everything in a call that its answer depends on."""
    data = {name: value for name, value in call.to_json().items() if name not in _NOT_IN_KEY}
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_recording(path: Path) -> list[Row]:
    """Return the rows of a recording; a last line cut off by a crash is left out.

    Raises:
        ConfigError: The file cannot be read or holds something else.
    """
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path} is no recording: it is not UTF-8 text") from exc
    except OSError as exc:
        raise ConfigError(
            f"cannot read the recording {path}: {exc.strerror}",
            hint="'replay:FILE' names a file that was written with --record",
        ) from exc
    rows: list[Row] = []
    lines = text.split("\n")
    if not _is_json(lines[-1]):
        lines.pop()
    for number, line in enumerate(lines, start=1):
        if not line.strip() or (number == 1 and _seed_of(line) is not None):
            continue
        try:
            rows.append(Row.from_json(json.loads(line)))
        except (ValueError, KeyError, TypeError) as exc:
            what = f"missing field {exc}" if isinstance(exc, KeyError) else str(exc)
            raise ConfigError(
                f"{path}:{number}: not a row of a recording: {what}",
                hint="'replay:FILE' names a file that was written with --record",
            ) from exc
    return rows


def read_judge_seed(path: Path) -> int | None:
    """Return the judge's secret of the recorded run, or None if the recording has none.

    Requests quote what the judge saw, so a run replays only under the same inputs.
    """
    try:
        with path.open(encoding="utf-8") as file:
            return _seed_of(file.readline())
    except (OSError, UnicodeDecodeError):
        return None


def _seed_of(line: str) -> int | None:
    """Return the seed of a recording's first line, or None if it is another line."""
    try:
        data = json.loads(line)
    except ValueError:
        return None
    seed = data.get("judge_seed") if isinstance(data, dict) else None
    return seed if isinstance(seed, int) else None


class Recorder:
    """A model that writes down every answer of another one.

    Args:
        model: The model that answers.
        path: File that rows are appended to; made when the first answer comes.
        judge_seed: Secret of the run's judge, written first into a new recording.

    Raises:
        ConfigError: The file holds something else, or could not be written.
    """

    def __init__(self, model: Model, path: Path, *, judge_seed: int | None = None) -> None:
        self._model = model
        self._path = path
        self._judge_seed = None if path.exists() else judge_seed
        rows = read_recording(path) if path.exists() else []
        self._asked: Counter[str] = Counter(row.digest for row in rows)
        self._lock = threading.Lock()
        _check_writable(path)
        if path.exists():
            _mend_last_line(path)

    @property
    def name(self) -> str:
        """Model id of the model that answers."""
        return self._model.name

    async def complete(self, call: ModelCall, on_delta: OnDelta | None = None) -> Completion:
        """Answer one call and write it down; see `Model.complete`.

        Raises:
            ModelError: There was no answer, or it could not be written down.
        """
        digest = request_digest(call)
        occurrence = self._asked[digest]
        self._asked[digest] += 1
        completion = await self._model.complete(call, on_delta)
        try:
            self._append(Row(digest, occurrence, call, completion).to_line())
        except OSError as exc:
            raise ModelError(
                f"cannot write the recording {self._path}: {exc.strerror}",
                hint="make room, or record elsewhere",
                may_be_billed=True,
            ) from exc
        return completion

    def _append(self, line: str) -> None:
        """Append one line with one write, so that a crash leaves whole lines or a torn last one."""
        with self._lock:
            if self._judge_seed is not None:
                head = {"schema_version": SCHEMA_VERSION, "judge_seed": self._judge_seed}
                line = json.dumps(head, separators=(",", ":")) + "\n" + line
                self._judge_seed = None
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                data = line.encode()
                while data:
                    data = data[os.write(descriptor, data) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


class ReplayModel:
    """A model that answers from a recording, without a server.

    Args:
        path: The recording.

    Raises:
        ConfigError: The recording cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.judge_seed = read_judge_seed(path)
        self._rows = sorted(read_recording(path), key=lambda row: row.occurrence)
        self._answers: dict[str, list[Completion]] = {}
        for row in self._rows:
            self._answers.setdefault(row.digest, []).append(row.completion)
        self._asked: Counter[str] = Counter()

    @property
    def name(self) -> str:
        """Model id, `replay:FILE`."""
        return f"replay:{self._path}"

    async def complete(self, call: ModelCall, on_delta: OnDelta | None = None) -> Completion:
        """Answer one call as it was answered; see `Model.complete`.

        Raises:
            ModelError: The recording holds no such request, or not that many.
        """
        digest = request_digest(call)
        answers = self._answers.get(digest, [])
        if not answers:
            raise ModelError(
                f"the recording {self._path} does not hold this request: {self._difference(call)}",
                hint="record again: the task, a prompt or a setting has changed since",
            )
        occurrence = self._asked[digest]
        if occurrence >= len(answers):
            raise ModelError(
                f"the recording {self._path} holds {len(answers)} answers to this request, and it "
                f"is asked once more",
                hint="ask for as few --samples as were recorded",
            )
        self._asked[digest] += 1
        completion = answers[occurrence]
        for line in completion.text.splitlines(keepends=True):
            if on_delta is not None:
                on_delta(line)
            await asyncio.sleep(0)
        return completion

    def _difference(self, call: ModelCall) -> str:
        """Say where the closest recorded request differs first."""
        if not self._rows:
            return "it is empty"
        wanted = _parts(call)
        recorded = [_parts(row.call) for row in self._rows]
        closest = max(recorded, key=lambda parts: _agreement(wanted, parts))
        for index, (name, text) in enumerate(wanted):
            if index >= len(closest):
                return f"it ends before {name}"
            other = closest[index]
            if (name, text) != other:
                return f"{name} differs first: {_first_difference(text, other[1])}"
        return f"the recorded request goes on with {closest[len(wanted)][0]}"


def _parts(call: ModelCall) -> list[tuple[str, str]]:
    """Return what is asked as named texts, in the order in which differences are looked for."""
    parts = [("the system prompt", call.system)]
    parts += [
        (f"message {number} ({message.role})", message.text)
        for number, message in enumerate(call.messages, start=1)
    ]
    parts += [
        (name, json.dumps(getattr(call, name))) for name in ("temperature", "effort", "sample")
    ]
    return parts


def _agreement(wanted: list[tuple[str, str]], other: list[tuple[str, str]]) -> tuple[int, int]:
    """Return how many parts agree, then how many characters of the first that does not."""
    count = 0
    for one, two in zip(wanted, other, strict=False):
        if one != two:
            return count, _common_length(one[1], two[1])
        count += 1
    return count, 0


def _first_difference(asked: str, recorded: str) -> str:
    start = _common_length(asked, recorded)
    cut = slice(max(0, start - 10), start + _SHOWN)
    return f"at character {start}, recorded {recorded[cut]!r}, asked {asked[cut]!r}"


def _common_length(one: str, two: str) -> int:
    """Return how many characters two texts begin with in common."""
    pairs = zip(one, two, strict=False)
    different = (index for index, (a, b) in enumerate(pairs) if a != b)
    return next(different, min(len(one), len(two)))


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _check_writable(path: Path) -> None:
    """Make the recording's folder, and find out before anything is paid whether it takes files."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as exc:
        raise ConfigError(
            f"cannot write the recording {path}: {exc.strerror}",
            hint="name a file in a folder that can be written to",
        ) from exc


def _mend_last_line(path: Path) -> None:
    """Make the next row begin a line of its own: end the last one, or drop it if it was cut off."""
    with path.open("r+b") as file:
        data = file.read()
        start = data.rfind(b"\n") + 1
        last = data[start:]
        if last and _is_json(last.decode(errors="replace")):
            file.write(b"\n")
        elif last:
            file.truncate(start)
