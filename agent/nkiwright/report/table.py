"""Results as terminal tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from nkiwright.result import Result


def microseconds(latency_ns: float | None) -> str:
    """Return a latency as text."""
    return "–" if latency_ns is None else f"{latency_ns / 1000:,.1f} us"


def times(speedup: float | None) -> str:
    """Return a speed-up as text."""
    return "–" if speedup is None else f"{speedup:.2f}×"


def percent(fraction: float | None) -> str:
    """Return a fraction as text."""
    return "–" if fraction is None else f"{100 * fraction:.0f} %"


def result_table(result: Result) -> RenderableType:
    """Return one solve's outcome: baseline, winner, bound, cost, and where things are."""
    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column("")
    table.add_column("emulated", justify="right")
    table.add_column("speed-up", justify="right")
    table.add_column("of the bound", justify="right")
    if result.baseline is not None:
        table.add_row(
            result.baseline.name,
            microseconds(result.baseline.latency_ns),
            times(1.0),
            percent(result.baseline.bound_fraction),
        )
    if result.winner is not None:
        table.add_row(
            Text("winner", style="bold green"),
            Text(microseconds(result.winner.latency_ns), style="bold green"),
            Text(times(result.winner.speedup), style="bold green"),
            percent(result.winner.bound_fraction),
        )
    table.add_row("lower bound", microseconds(result.bound_ns), "", percent(1.0))
    lines: list[RenderableType] = [table, Text("")]
    cost = "no model, 0 tokens, $0.00" if not result.usage.tokens else _cost(result)
    lines.append(
        Text(
            f"{result.tried} kernels tried, {result.correct} correct in "
            f"{result.usage.seconds:.0f} s; {cost}"
        )
    )
    if result.winner is not None:
        lines.append(Text("the winner is correct on every secret seed"))
        lines.append(Text(f"kernel  {result.winner.source_path}"))
        if result.winner.certificate:
            lines.append(Text(f"proof   {result.winner.certificate}"))
    else:
        lines.append(Text(f"no correct kernel: {result.reason}", style="bold red"))
    lines.append(Text(f"emulated time: {result.machine_note}", style="dim"))
    state = "solved" if result.solved else "not solved"
    title = f"{result.task} · {state} · {result.model} · {result.machine} · NKI {result.nki}"
    return Panel(Group(*lines), title=title, title_align="left", expand=False)


def _cost(result: Result) -> str:
    price = "price unknown" if result.usage.usd is None else f"${result.usage.usd:.4f}"
    return f"{result.usage.tokens:,} tokens, {price}"


def summary_table(results: Sequence[Result]) -> RenderableType:
    """Return one row a task."""
    table = Table(box=None, pad_edge=False)
    table.add_column("task")
    table.add_column("result")
    for name in ("baseline", "winner", "speed-up", "of the bound", "correct", "tokens"):
        table.add_column(name, justify="right")
    for result in results:
        winner, baseline = result.winner, result.baseline
        table.add_row(
            result.task,
            Text("solved", style="green") if result.solved else Text("not solved", style="red"),
            microseconds(baseline.latency_ns if baseline else None),
            microseconds(winner.latency_ns if winner else None),
            times(winner.speedup if winner else None),
            percent(winner.bound_fraction if winner else None),
            f"{result.correct}/{result.tried}",
            f"{result.usage.tokens:,}",
        )
    return table
