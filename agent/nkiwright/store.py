"""Run folders: everything that a run found, on disk, as it happens.

    runs/<time>-<task>/
        run.json                 configuration, seeds, versions, result
        state.db                 checkpoints of the loop (written by the loop itself)
        events.jsonl             one event a line
        candidates/NNN/          kernel.py, evaluation.json, profile.json
        winner/                  kernel.py, certificate.json, trace.json, profile.html

Each file is written whole or not at all (a temporary file is moved into place); only `events.jsonl`
grows, and a line that a kill cut short is skipped when reading.  The folder is the whole state.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Literal

from nkiwright.errors import StoreError, redact
from nkiwright.events import Event, JsonObject, from_json, to_json
from nkiwright.toml_file import suggestion

SCHEMA_VERSION = 1

RUN_FILE = "run.json"
STATE_FILE = "state.db"
EVENTS_FILE = "events.jsonl"

Status = Literal["finished", "unfinished", "damaged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What run.json holds."""

    task: str
    created: str
    """Start of the run, ISO 8601 in UTC."""
    config: JsonObject = field(default_factory=dict)
    """Every setting with its value; never a key or password."""
    seeds: JsonObject = field(default_factory=dict)
    versions: JsonObject = field(default_factory=dict)
    result: JsonObject | None = None
    """The result as `solve --json` prints it, or None while the run is not over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEvent:
    """An event with the time since the run began."""

    seconds: float
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One row of `runs list`."""

    run: str
    status: Status
    task: str | None = None
    created: str | None = None
    model: str | None = None
    is_solved: bool | None = None
    """None while there is no result."""
    latency_ns: float | None = None
    speedup: float | None = None


@dataclass(frozen=True, slots=True)
class RunFolder:
    """One run on disk."""

    path: Path

    @property
    def run(self) -> str:
        """Id of the run: the name of its folder."""
        return self.path.name

    @property
    def state_path(self) -> Path:
        """Where the loop keeps its checkpoints."""
        return self.path / STATE_FILE

    def record(self) -> RunRecord:
        """Read run.json.

        Raises:
            StoreError: It is missing, damaged, or of another schema version.
        """
        path = self.path / RUN_FILE
        data = _read_json(path)
        version = data.pop("schema_version", None)
        if version != SCHEMA_VERSION:
            raise StoreError(
                f"{path}: schema version {SCHEMA_VERSION} expected, got {version!r}",
                hint="the run was made by another version of nkiwright",
            )
        known = {item.name for item in fields(RunRecord)}
        if missing := {"task", "created"} - data.keys():
            raise StoreError(f"{path}: missing field {', '.join(map(repr, sorted(missing)))}")
        if unknown := data.keys() - known:
            raise StoreError(f"{path}: unknown field {', '.join(map(repr, sorted(unknown)))}")
        return RunRecord(**data)  # type: ignore[arg-type]  # written by `write_record`

    def write_record(self, record: RunRecord) -> None:
        """Write run.json."""
        data = {"schema_version": SCHEMA_VERSION, **asdict(record)}
        write_atomic(self.path / RUN_FILE, redact(_json_text(data)))

    def finish(self, result: JsonObject) -> None:
        """Write the result into run.json."""
        self.write_record(replace(self.record(), result=result))

    def append(self, event: Event, *, seconds: float) -> None:
        """Add an event to the log.

        Args:
            event: What happened.
            seconds: Time since the run began.
        """
        line = json.dumps(
            {"seconds": round(seconds, 3), **to_json(event)}, ensure_ascii=False, allow_nan=False
        )
        with (self.path / EVENTS_FILE).open("a+b") as file:
            _drop_torn_line(file)
            file.write(redact(line).encode() + b"\n")

    def events(self) -> Iterator[LoggedEvent]:
        """Yield the logged events in order.

        Raises:
            StoreError: A line other than a last, unfinished one is damaged.
        """
        path = self.path / EVENTS_FILE
        if not path.exists():
            return
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
        for number, line in enumerate(lines[:-1], start=1):
            try:
                data = json.loads(line)
                seconds = float(data.pop("seconds"))
                yield LoggedEvent(seconds=seconds, event=from_json(data))
            except (ValueError, KeyError, AttributeError, TypeError) as exc:
                raise StoreError(f"{path}:{number}: not an event: {exc}") from exc

    def candidate_dir(self, candidate: int) -> Path:
        """Return the folder of one candidate (made when something is saved in it)."""
        return self.path / "candidates" / f"{candidate:03d}"

    def save_candidate(
        self,
        candidate: int,
        *,
        kernel: str | None = None,
        evaluation: JsonObject | None = None,
        profile: JsonObject | None = None,
    ) -> Path:
        """Write what is known of a candidate; what is not given stays as it was.

        Returns:
            The candidate's folder.
        """
        folder = self.candidate_dir(candidate)
        folder.mkdir(parents=True, exist_ok=True)
        if kernel is not None:
            write_atomic(folder / "kernel.py", kernel)
        if evaluation is not None:
            _write_json(folder / "evaluation.json", evaluation)
        if profile is not None:
            _write_json(folder / "profile.json", profile)
        return folder

    def candidates(self) -> tuple[int, ...]:
        """Return the numbers of the saved candidates."""
        found = (self.path / "candidates").glob("*/")
        return tuple(sorted(int(path.name) for path in found if path.name.isdigit()))

    def kernel(self, candidate: int) -> str:
        """Return the source of a candidate.

        Raises:
            StoreError: There is no such candidate.
        """
        path = self.candidate_dir(candidate) / "kernel.py"
        if not path.is_file():
            numbers = self.candidates()
            raise StoreError(
                f"run {self.run} has no candidate {candidate}",
                hint=f"it has {numbers[0]} to {numbers[-1]}" if numbers else "it has none",
            )
        return path.read_text(encoding="utf-8")

    def evaluation(self, candidate: int) -> JsonObject | None:
        """Return the evaluation of a candidate, or None if it has none."""
        path = self.candidate_dir(candidate) / "evaluation.json"
        return _read_json(path) if path.is_file() else None

    def save_winner(self, files: Mapping[str, str | JsonObject]) -> Path:
        """Replace the winner's folder by these files.

        Args:
            files: Text or JSON by file name, such as `kernel.py` and `certificate.json`.

        Returns:
            The winner's folder.
        """
        winner = self.path / "winner"
        fresh = Path(tempfile.mkdtemp(prefix=".winner-", dir=self.path))
        try:
            fresh.chmod(0o755)
            for name, content in files.items():
                if isinstance(content, str):
                    write_atomic(fresh / name, content)
                else:
                    _write_json(fresh / name, content)
            if winner.exists():
                old = fresh.with_name(fresh.name.replace(".winner-", ".old-"))
                winner.rename(old)
                fresh.rename(winner)
                shutil.rmtree(old)
            else:
                fresh.rename(winner)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return winner

    def summary(self) -> RunSummary:
        """Return what `runs list` shows, without failing on a damaged folder."""
        try:
            record = self.record()
        except StoreError:
            return RunSummary(run=self.run, status="damaged")
        result = record.result or {}
        winner = result.get("winner")
        best = winner if isinstance(winner, dict) else {}
        model = record.config.get("model")
        solved = result.get("solved")
        return RunSummary(
            run=self.run,
            status="unfinished" if record.result is None else "finished",
            task=record.task,
            created=record.created,
            model=model if isinstance(model, str) else None,
            is_solved=solved if isinstance(solved, bool) else None,
            latency_ns=_number(best.get("latency_ns")),
            speedup=_number(best.get("speedup")),
        )


@dataclass(frozen=True, slots=True)
class RunStore:
    """A folder of runs; it is made when the first run begins."""

    root: Path

    def create(self, record: RunRecord, *, now: datetime) -> RunFolder:
        """Make the folder of a new run.

        Args:
            record: What is known at the start.
            now: Time of the start, with time zone; gives the folder its name.

        Raises:
            StoreError: The folder can't be made.
        """
        slug = re.sub(r"[^A-Za-z0-9_.-]+", "-", record.task).strip("-.") or "run"
        stem = f"{now.astimezone(UTC):%Y%m%d-%H%M%S}-{slug}"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            for attempt in range(1, 1000):
                path = self.root / (stem if attempt == 1 else f"{stem}-{attempt}")
                with contextlib.suppress(FileExistsError):
                    path.mkdir()
                    folder = RunFolder(path)
                    folder.write_record(record)
                    return folder
        except OSError as exc:
            raise StoreError(
                f"cannot make a run folder in {self.root}: {exc.strerror}",
                hint="choose another place with --runs-dir or NKIWRIGHT_RUNS_DIR",
            ) from exc
        raise StoreError(f"{self.root} holds too many runs that began at {stem}")

    def list(self) -> tuple[RunSummary, ...]:
        """Return all runs, oldest first."""
        return tuple(folder.summary() for folder in self._folders())

    def open(self, run: str) -> RunFolder:
        """Return one run.

        Args:
            run: Its id, the beginning of it if that is unambiguous, or `last`.

        Raises:
            StoreError: There is no such run, or more than one.
        """
        folders = {folder.run: folder for folder in self._folders()}
        if not folders:
            raise StoreError(
                f"no runs in {self.root}", hint="'nkiwright solve TASK' makes the first"
            )
        if run == "last":
            return list(folders.values())[-1]
        if run in folders:
            return folders[run]
        matches = [name for name in folders if run and name.startswith(run)]
        if len(matches) == 1:
            return folders[matches[0]]
        if matches:
            raise StoreError(
                f"{run!r} is the beginning of {len(matches)} runs", hint=", ".join(matches[:5])
            )
        raise StoreError(f"unknown run {run!r}", hint=suggestion(run, list(folders)[-10:], "runs"))

    def remove(self, run: str) -> None:
        """Delete one run with everything in it.

        Args:
            run: As for `open`.
        """
        folder = self.open(run)
        try:
            shutil.rmtree(folder.path)
        except OSError as exc:
            raise StoreError(f"cannot remove {folder.path}: {exc.strerror}") from exc

    def _folders(self) -> tuple[RunFolder, ...]:
        """Return the folders that are runs, sorted by name and thus by time; links don't count."""
        if not self.root.is_dir():
            return ()
        return tuple(
            RunFolder(path)
            for path in sorted(self.root.iterdir())
            if path.is_dir() and not path.is_symlink() and (path / RUN_FILE).is_file()
        )


def write_atomic(path: Path, text: str) -> None:
    """Write a file so that it has either its old content or all of the new, even after a crash."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _drop_torn_line(file: BinaryIO) -> None:
    """Cut off what a killed process left behind the last line end."""
    end = file.seek(0, os.SEEK_END)
    if end == 0:
        return
    file.seek(end - 1)
    if file.read(1) != b"\n":
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


def _write_json(path: Path, data: Mapping[str, object]) -> None:
    write_atomic(path, _json_text(data))


def _json_text(data: Mapping[str, object]) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _read_json(path: Path) -> JsonObject:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise StoreError(f"{path} is missing") from exc
    except json.JSONDecodeError as exc:
        raise StoreError(f"{path}:{exc.lineno}: not valid JSON: {exc.msg}") from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise StoreError(f"cannot read {path}: {exc}") from exc
    if not isinstance(data, dict):
        raise StoreError(f"{path}: an object expected, got {type(data).__name__}")
    return data


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
