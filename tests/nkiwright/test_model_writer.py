"""What a language model as a writer tells before and while it spends."""

from __future__ import annotations

import pytest
from tests.nkiwright.fake_servers import FakeServer, Reply, Tokens

from nkiwright import tasks
from nkiwright.budget import Budget
from nkiwright.events import Event, StrategyNote
from nkiwright.llm.registry import make_model
from nkiwright.prompts import PromptLibrary
from nkiwright.writers.model import ModelWriter


def make_writer(server: FakeServer, budget: Budget, told: list[Event]) -> ModelWriter:
    return ModelWriter(
        tasks.load("rmsnorm"),
        make_model("openai:gpt-5", base_url=server.openai_url, environ={}),
        budget=budget,
        prompts=PromptLibrary(),
        emit=told.append,
        machine="trn2",
        nki="0.6",
        bound_ns=1000.0,
        baseline_ns=None,
    )


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ("none", ["openai:gpt-5 reports no token counts: tokens are estimated from the text"]),
        (
            Tokens(input=10**9, output=7),
            [
                "openai:gpt-5 reports 1,000,000,000 tokens in and 7 out, which cannot be: tokens "
                "are estimated from the text"
            ],
        ),
        ("count", []),
    ],
    ids=["no usage", "impossible usage", "usage"],
)
async def test_estimated_tokens_are_said_once(tokens, words):
    told: list[Event] = []
    budget = Budget()
    with FakeServer(lambda _: Reply("no kernel today", tokens=tokens)) as server:
        writer = make_writer(server, budget, told)
        await writer.draft(0)
        await writer.draft(1)
    assert [event.text for event in told if isinstance(event, StrategyNote)] == words
    assert (budget.estimated_tokens > 0) == bool(words)


def test_estimate_counts_what_repairs_send_back():
    with FakeServer(lambda _: Reply("")) as server:
        writer = make_writer(server, Budget(), [])
        drafts = writer.estimate(samples=4, repairs=0)
        repaired = writer.estimate(samples=4, repairs=1)
        more = writer.estimate(samples=4, repairs=3)
        assert server.requests == []
    assert drafts.max_usd is not None
    assert repaired.max_usd is not None
    assert more.max_usd is not None
    assert (drafts.repairs, repaired.repairs, more.repairs) == (0, 4, 12)
    assert repaired.max_usd > 2 * drafts.max_usd
    assert more.max_usd > 4 * drafts.max_usd
