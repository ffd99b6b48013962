"""Prices come from the installed list; a model that is not on it has no price."""

from __future__ import annotations

import pytest

from nkiwright.llm.base import Message, ModelCall, Usage
from nkiwright.llm.counting import believable, input_tokens
from nkiwright.llm.pricing import cost_usd

MILLION = 1_000_000
CALL = ModelCall(system="s" * 400, messages=(Message("user", "u" * 400),), max_output_tokens=500)


def usage(
    sent: int, received: int, cached: int | None = None, reasoning: int | None = None
) -> Usage:
    return Usage(
        input_tokens=sent,
        output_tokens=received,
        cached_input_tokens=cached,
        reasoning_tokens=reasoning,
    )


@pytest.mark.parametrize("model", ["openai:gpt-5", "anthropic:claude-opus-4-5"])
def test_priced_model_costs_more_the_more_it_writes(model):
    less, more = cost_usd(model, usage(1000, 1000)), cost_usd(model, usage(1000, 2000))
    assert less is not None
    assert more is not None
    assert 0 < less < more < 2 * less


def test_cached_input_is_cheaper():
    full = cost_usd("openai:gpt-5", usage(10_000, 0))
    cached = cost_usd("openai:gpt-5", usage(10_000, 0, cached=9000))
    assert full is not None
    assert cached is not None
    assert cached < full


def test_more_cached_than_sent_is_no_error():
    assert cost_usd("openai:gpt-5", usage(10, 0, cached=20)) is not None


@pytest.mark.parametrize("model", ["openai:qwen-local-7b", "scripted", "other:gpt-5", "openai:"])
def test_unknown_model_has_no_price(model):
    assert cost_usd(model, usage(MILLION, MILLION)) is None


@pytest.mark.parametrize("model", ["replay:run.jsonl", "autoschedule"])
def test_what_asks_nobody_is_free(model):
    assert cost_usd(model, usage(MILLION, MILLION)) == 0.0


@pytest.mark.parametrize(
    "reported",
    [
        usage(0, 10),
        usage(100, 0),
        usage(100, 50_000),
        usage(50_000_000, 10),
        usage(-1, 10),
        usage(100, 10, cached=101),
        usage(100, 10, reasoning=11),
    ],
    ids=["no input", "no output", "much output", "much input", "negative", "cached", "reasoning"],
)
def test_impossible_usage_is_replaced_by_an_estimate(reported):
    checked = believable(reported, CALL, "a reply")
    assert checked.is_estimated
    assert checked.input_tokens == input_tokens(CALL)
    assert 1 <= checked.output_tokens <= 10


@pytest.mark.parametrize(
    "reported",
    [usage(200, 3), usage(200, 500, reasoning=497), usage(900, 3)],
    ids=["plain", "hidden reasoning", "server's own prompt"],
)
def test_possible_usage_is_believed(reported):
    assert believable(reported, CALL, "a reply") is reported
