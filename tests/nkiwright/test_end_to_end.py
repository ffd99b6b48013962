"""From a task folder to the fastest verified kernel: over HTTP, offline, without a model."""

import json
from pathlib import Path

import pytest
from tests.nkiwright.fake_servers import Failure, FakeServer, Reply

import nkiwright
from nkiwright import tasks
from nkiwright.errors import ModelError
from nkiwright.events import BestChanged, CandidateRejected, CandidateVerified, Event

ENVIRON = {"OPENAI_API_KEY": "key-for-a-local-server", "ANTHROPIC_API_KEY": "also-local"}
REDUCTION = """        square = nl.ndarray((rows, d), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=square, data1=x_tile, data2=x_tile, op=nl.multiply)
        total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total, op=nl.add, data=square, axis=1)
"""
FUSED = """        square = nl.ndarray((rows, d), dtype=nl.float32, buffer=nl.sbuf)
        total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(
            dst=square, op=nl.square, data=x_tile, reduce_op=nl.add, reduce_res=total
        )
"""


def change(source: str, old: str, new: str) -> str:
    """Replace text that must be there."""
    assert old in source
    return source.replace(old, new)


def fenced(source: str) -> str:
    return f"Here is the kernel.\n\n```python\n{source}\n```\n"


class Kernels:
    """Kernels that a model might write for rmsnorm, right and wrong."""

    right = tasks.load("rmsnorm").baseline_text or ""
    fast = change(right, REDUCTION, FUSED)
    wrong_axis = change(right, "data=square, axis=1", "data=square, axis=0")
    wrong_mean = change(right, "operand0=1.0 / d", "operand0=2.0 / d")
    ragged = change(right, "rows = min(P, n - start)", "rows = P")


def answer(request):
    """Draft by prompt arm, each with a mistake of its own; repairs are the fused kernel."""
    turns = [text for role, text in request.messages if role == "assistant"]
    if turns:
        assert "refused" in request.prompt
        return Reply(fenced(Kernels.fast))
    if "numpy on tiles" in request.prompt:
        return Reply(fenced(Kernels.wrong_mean))
    if "plan of at most" in request.prompt:
        return Reply(fenced(Kernels.wrong_axis))
    return Reply(fenced(Kernels.right))


@pytest.mark.parametrize(
    ("model", "base_url"),
    [("openai:local-model", "openai_url"), ("anthropic:local-model", "url")],
    ids=["openai", "anthropic"],
)
def test_mistakes_are_repaired_and_the_fastest_correct_kernel_wins(
    small_rmsnorm: Path, tmp_path: Path, model: str, base_url: str
) -> None:
    events: list[Event] = []
    recording = tmp_path / "talk.jsonl"
    with FakeServer(answer) as server:
        result = nkiwright.solve(
            small_rmsnorm,
            model=model,
            base_url=getattr(server, base_url),
            environ=ENVIRON,
            workers=1,
            samples=3,
            max_tokens=400_000,
            runs_dir=tmp_path / "runs",
            record=recording,
            on_event=events.append,
        )
        asked = len(server.requests)
    assert result.solved
    assert result.winner is not None
    assert result.winner.speedup is not None
    assert result.winner.speedup > 1.02
    assert "activation_reduce" in Path(result.winner.source_path).read_text()
    rejected = [e for e in events if isinstance(e, CandidateRejected)]
    assert {e.stage for e in rejected} == {"trace", "tiny"}
    assert any("NKS114" in e.error for e in rejected)
    assert asked == 5
    assert result.tried == 5
    assert result.correct == 3
    assert isinstance(next(e for e in events[::-1] if isinstance(e, BestChanged)), BestChanged)
    assert sum(isinstance(e, CandidateVerified) for e in events) == 3

    replayed = nkiwright.solve(
        small_rmsnorm,
        model=f"replay:{recording}",
        environ={},
        workers=1,
        samples=3,
        runs_dir=tmp_path / "runs",
    )
    assert replayed.winner is not None
    assert replayed.winner.fingerprint == result.winner.fingerprint
    assert replayed.winner.latency_ns == result.winner.latency_ns
    assert (replayed.tried, replayed.correct) == (result.tried, result.correct)
    assert replayed.usage.tokens == result.usage.tokens
    assert replayed.usage.usd == 0


def test_a_ragged_shape_is_refused_before_it_can_win(small_rmsnorm: Path, tmp_path: Path) -> None:
    toml = small_rmsnorm / "task.toml"
    toml.write_text(change(toml.read_text(), "n = 256, d = 512", "n = 200, d = 512"))
    with FakeServer(lambda request: Reply(fenced(Kernels.ragged))) as server:
        result = nkiwright.solve(
            small_rmsnorm,
            model="openai:local-model",
            base_url=server.openai_url,
            environ=ENVIRON,
            workers=1,
            samples=1,
            repairs=0,
            max_tokens=100_000,
            runs_dir=tmp_path / "runs",
        )
    assert not result.solved
    assert "out of bounds" in result.reason


def test_a_refused_key_stops_at_once(small_rmsnorm: Path, tmp_path: Path) -> None:
    with (
        FakeServer(lambda request: Failure.BAD_KEY) as server,
        pytest.raises(ModelError, match="401"),
    ):
        nkiwright.solve(
            small_rmsnorm,
            model="openai:local-model",
            base_url=server.openai_url,
            environ=ENVIRON,
            workers=1,
            samples=3,
            max_tokens=100_000,
            runs_dir=tmp_path / "runs",
        )


def test_the_token_cap_is_never_exceeded(small_rmsnorm: Path, tmp_path: Path) -> None:
    with FakeServer(lambda request: Reply(fenced(Kernels.right))) as server:
        result = nkiwright.solve(
            small_rmsnorm,
            model="openai:local-model",
            base_url=server.openai_url,
            environ=ENVIRON,
            workers=1,
            samples=8,
            max_tokens=12_000,
            runs_dir=tmp_path / "runs",
        )
    assert 0 < result.usage.tokens <= 12_000
    assert result.tried < 8


def test_autoschedule_needs_no_key_and_is_deterministic(
    small_rmsnorm: Path, tmp_path: Path
) -> None:
    def run():
        return nkiwright.solve(
            small_rmsnorm, environ={}, workers=1, samples=6, seed=3, runs_dir=tmp_path / "runs"
        )

    first, second = run(), run()
    assert first.solved
    assert first.model == "autoschedule"
    assert first.usage.tokens == 0
    assert first.winner is not None
    assert second.winner is not None
    assert first.winner.fingerprint == second.winner.fingerprint
    assert first.winner.latency_ns == second.winner.latency_ns
    folder = Path(first.run)
    certificate = json.loads((folder / "winner" / "certificate.json").read_text())
    assert certificate["latency_ns"] == first.winner.latency_ns
    assert (folder / "winner" / "trace.json").is_file()
    assert len(list((folder / "candidates").iterdir())) == 6
    assert json.loads((folder / "run.json").read_text())["result"]["solved"] is True
