"""The `nkiwright` command."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from nkiwright.cli.output import (
    json_lines,
    print_error,
    print_json,
    print_result,
    progress_lines,
    say,
)
from nkiwright.errors import ExitCode, NkiwrightError

app = typer.Typer(
    name="nkiwright",
    help="Write fast NKI kernels for AWS Trainium, proved correct in an emulator.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
runs_app = typer.Typer(help="List, show and remove run folders.", no_args_is_help=True)
tasks_app = typer.Typer(help="List and check tasks.", no_args_is_help=True)
config_app = typer.Typer(help="Show the settings and where they come from.", no_args_is_help=True)
app.add_typer(tasks_app, name="tasks")
app.add_typer(runs_app, name="runs")
app.add_typer(config_app, name="config")

Model = Annotated[
    str | None,
    typer.Option(help="openai:NAME, anthropic:NAME, replay:FILE or autoschedule (default)."),
]
BaseUrl = Annotated[str | None, typer.Option(help="Server that speaks the provider's protocol.")]
Samples = Annotated[
    int | None, typer.Option(help="Kernels to draft; default 8, with autoschedule 32.")
]
Repairs = Annotated[
    int | None, typer.Option(help="Times that one draft may be sent back; default 3.")
]
Timeout = Annotated[
    float | None, typer.Option(help="Seconds of silence after which a call has failed.")
]
Seed = Annotated[int | None, typer.Option(help="Seed of the search.")]
Machine = Annotated[str | None, typer.Option(help="trn1, trn2 (default) or trn3.")]
Nki = Annotated[str | None, typer.Option(help="NKI version to write for; default 0.6.")]
MaxUsd = Annotated[float | None, typer.Option(help="Most dollars for the model; default 1.00.")]
MaxTokens = Annotated[int | None, typer.Option(help="Most tokens for the model.")]
MaxSeconds = Annotated[float | None, typer.Option(help="Most seconds.")]
RunsDir = Annotated[Path | None, typer.Option(help="Folder for run folders; default runs.")]
Workers = Annotated[int | None, typer.Option(help="Evaluator processes.")]
Record = Annotated[
    Path | None, typer.Option(help="Append every model call to this file, for replay:FILE.")
]
Unsafe = Annotated[
    bool,
    typer.Option(
        "--unsafe-no-sandbox",
        help="Run generated code without isolation; only inside a throw-away machine.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
AsJsonl = Annotated[bool, typer.Option("--jsonl", help="Print every event as a line of JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


@app.command()
def solve(
    task: Annotated[str, typer.Argument(help="Name or folder of a task.")],
    model: Model = None,
    base_url: BaseUrl = None,
    samples: Samples = None,
    repairs: Repairs = None,
    seed: Seed = None,
    machine: Machine = None,
    nki: Nki = None,
    max_usd: MaxUsd = None,
    max_tokens: MaxTokens = None,
    max_seconds: MaxSeconds = None,
    timeout_seconds: Timeout = None,
    workers: Workers = None,
    runs_dir: RunsDir = None,
    record: Record = None,
    unsafe_no_sandbox: Unsafe = False,
    as_json: AsJson = False,
    as_jsonl: AsJsonl = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Find the fastest correct kernel for a task."""
    from nkiwright.api import Interrupt, asolve

    flags = {
        "model": model,
        "base_url": base_url,
        "samples": samples,
        "repairs": repairs,
        "timeout_seconds": timeout_seconds,
        "seed": seed,
        "machine": machine,
        "nki": nki,
        "max_usd": max_usd,
        "max_tokens": max_tokens,
        "max_seconds": max_seconds,
        "workers": workers,
        "runs_dir": runs_dir,
    }
    interrupt = Interrupt()

    async def run() -> int:
        _stop_on_interrupt(interrupt)
        result = await asolve(
            task,
            config=_config(flags),
            on_event=json_lines() if as_jsonl else (None if quiet else progress_lines()),
            interrupt=interrupt,
            record=record,
            unsafe_no_sandbox=unsafe_no_sandbox,
        )
        if as_json:
            print_json(result.to_json())
        elif not as_jsonl:
            print_result(result)
        if interrupt.is_set():
            return ExitCode.INTERRUPTED
        return ExitCode.SOLVED if result.solved else ExitCode.UNSOLVED

    _run(run, debug)


@app.command()
def batch(
    folder: Annotated[Path, typer.Argument(help="Folder that holds task folders.")],
    model: Model = None,
    base_url: BaseUrl = None,
    samples: Samples = None,
    repairs: Repairs = None,
    seed: Seed = None,
    machine: Machine = None,
    nki: Nki = None,
    max_usd: MaxUsd = None,
    max_tokens: MaxTokens = None,
    max_seconds: MaxSeconds = None,
    timeout_seconds: Timeout = None,
    workers: Workers = None,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Solve every task of a folder, one after the other."""
    from nkiwright.api import Interrupt
    from nkiwright.batch import solve_all
    from nkiwright.report.table import summary_table

    flags = {
        "model": model,
        "base_url": base_url,
        "samples": samples,
        "repairs": repairs,
        "timeout_seconds": timeout_seconds,
        "seed": seed,
        "machine": machine,
        "nki": nki,
        "max_usd": max_usd,
        "max_tokens": max_tokens,
        "max_seconds": max_seconds,
        "workers": workers,
        "runs_dir": runs_dir,
    }
    interrupt = Interrupt()

    async def run() -> int:
        _stop_on_interrupt(interrupt)
        outcome = await solve_all(
            folder,
            config=_config(flags),
            interrupt=interrupt,
            on_event=None if quiet else progress_lines(),
            on_error=lambda name, error: say(f"{name}: {error}"),
        )
        if as_json:
            print_json(outcome.to_json())
        else:
            print_result(summary_table(outcome.results))
        if interrupt.is_set():
            return ExitCode.INTERRUPTED
        return outcome.exit_code

    _run(run, debug)


@tasks_app.command("list")
def tasks_list(
    folder: Annotated[Path | None, typer.Argument(help="Folder of tasks.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the tasks of a folder, or those that come with nkiwright."""
    from nkiwright import tasks
    from nkiwright.resources import data_dir

    def run() -> int:
        found = [tasks.load(path) for path in tasks.discover(folder or data_dir("tasks"))]
        if as_json:
            rows = [
                {
                    "name": t.name,
                    "op_class": t.op_class,
                    "level": t.level,
                    "description": t.description,
                    "source": t.source,
                    "main": dict(t.main),
                    "folder": str(t.folder),
                }
                for t in found
            ]
            print_json({"schema_version": 1, "tasks": rows})
            return 0
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for name in ("task", "class", "level", "main shape", "what"):
            table.add_column(name)
        for t in found:
            sizes = " ".join(f"{k}={v}" for k, v in t.main.items())
            table.add_row(t.name, t.op_class, str(t.level), sizes, t.description)
        print_result(table)
        return 0

    _call(run, debug)


@tasks_app.command("lint")
def tasks_lint(
    places: Annotated[
        list[str] | None, typer.Argument(help="Tasks, or folders of tasks; default all that come.")
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Store the measured c in task.toml.")
    ] = False,
    machine: Machine = None,
    nki: Nki = None,
    unsafe_no_sandbox: Unsafe = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Check that a task's baseline passes its check, and that kernels that compute nothing fail."""

    def run() -> int:
        from nkiwright.evaluate.lint import lint_task, store_c

        settings = _config({"machine": machine, "nki": nki}).settings
        found = _tasks_at(places or [])
        reports = []
        with _sandbox(unsafe_no_sandbox) as sandbox:
            for task in found:
                report = lint_task(
                    task,
                    sandbox=sandbox,
                    machine=settings.machine,
                    nki=settings.nki,
                    is_stored=not write,
                    say=(lambda _: None) if quiet else say,
                )
                reports.append(report)
                if write and not report.is_sound:
                    say(f"{task.name}: has problems, so no c is stored")
                elif write and report.c is not None and store_c(task.folder, report.c):
                    say(f"{task.folder}/task.toml: c = {report.c}")
        if as_json:
            print_json({"schema_version": 1, "tasks": [report.to_json() for report in reports]})
        else:
            print_result(_lint_table(reports))
        return ExitCode.SOLVED if all(r.is_sound for r in reports) else ExitCode.USAGE

    _call(run, debug)


@runs_app.command("list")
def runs_list(runs_dir: RunsDir = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """List runs, oldest first."""

    def run() -> int:
        summaries = _store(runs_dir).list()
        if as_json:
            import dataclasses

            rows = [dataclasses.asdict(s) for s in summaries]
            print_json({"schema_version": 1, "runs": rows})
            return 0
        from rich.table import Table

        from nkiwright.report.table import microseconds, times

        table = Table(box=None, pad_edge=False)
        for name in ("run", "status", "model", "solved", "emulated", "speed-up"):
            table.add_column(name)
        for s in summaries:
            solved = "–" if s.is_solved is None else ("yes" if s.is_solved else "no")
            latency, speedup = microseconds(s.latency_ns), times(s.speedup)
            table.add_row(s.run, s.status, s.model or "–", solved, latency, speedup)
        print_result(table)
        return 0

    _call(run, debug)


@runs_app.command("show")
def runs_show(
    run: Annotated[str, typer.Argument(help="Run id, its beginning, or 'last'.")],
    runs_dir: RunsDir = None,
    kernel: Annotated[bool, typer.Option("--kernel", help="Print the winner's source.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show a run's result, or its winning kernel."""

    def act() -> int:
        folder = _store(runs_dir).open(run)
        record = folder.record()
        if kernel:
            winner = folder.path / "winner" / "kernel.py"
            if not winner.is_file():
                raise NkiwrightError(f"run {folder.run} has no winner")
            sys.stdout.write(winner.read_text(encoding="utf-8"))
            return 0
        if as_json or record.result is None or "candidates" not in record.result:
            print_json({"run": folder.run, "task": record.task, "result": record.result})
            return 0
        from nkiwright.result import Result

        print_result(Result.from_json(record.result))
        return 0

    _call(act, debug)


@runs_app.command("rm")
def runs_rm(
    run: Annotated[str, typer.Argument(help="Run id, its beginning, or 'last'.")],
    runs_dir: RunsDir = None,
    debug: Debug = False,
) -> None:
    """Delete a run folder."""

    def act() -> int:
        store = _store(runs_dir)
        name = store.open(run).run
        store.remove(name)
        say(f"removed {name}")
        return 0

    _call(act, debug)


@config_app.command("show")
def config_show(as_json: AsJson = False, debug: Debug = False) -> None:
    """Show every setting, its value and where that comes from."""

    def act() -> int:
        rows = _config({}).rows()
        if as_json:
            print_json({"settings": {n: {"value": v, "source": s} for n, v, s in rows}})
            return 0
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for name in ("setting", "value", "from"):
            table.add_column(name)
        for row in rows:
            table.add_row(*row)
        print_result(table)
        return 0

    _call(act, debug)


@config_app.command("path")
def config_path(debug: Debug = False) -> None:
    """Print where the configuration files are looked for."""

    def act() -> int:
        from nkiwright.config import PROJECT_FILE, user_file

        sys.stdout.write(f"{user_file(os.environ)}\n{Path.cwd() / PROJECT_FILE}\n")
        return 0

    _call(act, debug)


@app.command()
def doctor(as_json: AsJson = False, debug: Debug = False) -> None:
    """Check this machine: isolation layers, keys, folders."""

    def act() -> int:
        from nkiwright.cli.doctor import examine, show

        report = examine(os.environ)
        if as_json:
            print_json(report.to_json())
        else:
            show(report)
        return ExitCode.SOLVED if report.is_usable else ExitCode.SANDBOX

    _call(act, debug)


def _version(value: bool) -> None:
    if value:
        from nkiwright.resources import version

        sys.stdout.write(f"nkiwright {version()} (Python {sys.version.split()[0]})\n")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Write fast NKI kernels for AWS Trainium, proved correct in an emulator."""


def _config(flags: dict[str, Any]) -> Any:
    from nkiwright.config import load

    return load(flags, environ=os.environ, project_dir=Path.cwd())


def _store(runs_dir: Path | None) -> Any:
    from nkiwright.store import RunStore

    return RunStore(_config({"runs_dir": runs_dir}).settings.runs_dir)


def _sandbox(unsafe_no_sandbox: bool) -> Any:
    """Return a sandbox for kernels' Python."""
    from nkisim.worker import Sandbox, SandboxUnavailable
    from nkiwright.errors import SandboxError

    try:
        return Sandbox(unsafe_no_sandbox=unsafe_no_sandbox)
    except SandboxUnavailable as exc:
        raise SandboxError(str(exc)) from exc


def _tasks_at(places: list[str]) -> list[Any]:
    """Load the tasks that names and folders mean; those that come with nkiwright for none."""
    from nkiwright import tasks
    from nkiwright.resources import data_dir

    folders: list[str | Path] = []
    for place in places or [str(data_dir("tasks"))]:
        folders += (tasks.discover(Path(place)) if Path(place).is_dir() else ()) or [place]
    return [tasks.load(folder) for folder in folders]


def _lint_table(reports: Any) -> Any:
    """Return what was found about tasks: one line each, and one more for each problem."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("task", "ratio", "worst on", "c", "stored"):
        table.add_column(name, justify="left" if name in ("task", "worst on") else "right")
    table.add_column("findings", overflow="fold")
    for report in reports:
        numbers = [
            "–" if value is None else f"{value:.4g}"
            for value in (report.ratio, report.c, report.stored_c)
        ]
        findings = [*report.problems, *(f"note: {note}" for note in report.notes)]
        table.add_row(
            report.task,
            numbers[0],
            report.family or "–",
            *numbers[1:],
            "\n".join(findings) or "ok",
        )
    return table


def _stop_on_interrupt(interrupt: Any) -> None:
    """First Ctrl-C finishes early with what was found, the second leaves."""

    def stop() -> None:
        if interrupt.is_set():
            os._exit(ExitCode.INTERRUPTED)
        interrupt.set()
        say("stopping after what is in flight; press Ctrl-C again to leave at once")

    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop)


def _run(act: Any, debug: bool) -> None:
    _call(lambda: asyncio.run(act()), debug)


def _call(act: Any, debug: bool) -> None:
    """Run a command, turn errors into one line, and exit with the documented code."""
    try:
        code = act()
    except NkiwrightError as error:
        if debug:
            raise
        print_error(error)
        code = error.exit_code
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        code = ExitCode.SOLVED
    except Exception as error:
        if debug:
            raise
        print_error(
            NkiwrightError(
                f"internal error: {type(error).__name__}: {error}",
                hint="run again with --debug and report what it prints",
            )
        )
        code = ExitCode.SANDBOX
    raise typer.Exit(int(code))


def main() -> None:
    """Entry point of the console script."""
    os.environ.setdefault("LANGSMITH_TRACING", "false")
    app()


if __name__ == "__main__":
    main()
