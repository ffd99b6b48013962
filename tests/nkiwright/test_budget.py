"""Caps hold: together, across restarts, and against servers that count wrongly."""

from __future__ import annotations

import asyncio
import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nkiwright.fake_servers import FakeServer, Reply, Tokens

from nkiwright.budget import (
    MIN_USEFUL_OUTPUT_TOKENS,
    UNPRICED_MAX_TOKENS,
    Budget,
    BudgetExceeded,
    Reservation,
)
from nkiwright.errors import ModelError
from nkiwright.events import BudgetWarning
from nkiwright.llm.base import Completion, Message, ModelCall, Usage
from nkiwright.llm.counting import most_input_tokens
from nkiwright.llm.pricing import cost_usd
from nkiwright.llm.registry import make_model

PRICED = "openai:gpt-5"
UNPRICED = "openai:qwen-local-7b"
CALL = ModelCall(
    system="s" * 2500, messages=(Message("user", "u" * 2500),), max_output_tokens=16_000
)


class Clock:
    """Seconds that a test moves on."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def answer(sent: int, received: int, text: str = "x") -> Completion:
    return Completion(
        text=text,
        usage=Usage(input_tokens=sent, output_tokens=received),
        model="m",
        finish_reason="stop",
    )


def price(call: ModelCall) -> float:
    usage = Usage(input_tokens=most_input_tokens(call), output_tokens=call.max_output_tokens)
    cost = cost_usd(PRICED, usage)
    assert cost is not None
    return cost


calls = st.builds(
    lambda size, limit: ModelCall(
        system="", messages=(Message("user", "x" * size),), max_output_tokens=limit
    ),
    st.integers(0, 40_000),
    st.integers(1, 60_000),
)
# What happens next: a call begins, or the n-th of those under way ends in one of three ways, having
# used some share of what it may use.
steps = st.lists(
    st.one_of(
        st.tuples(st.just("call"), calls),
        st.tuples(
            st.sampled_from(["answer", "cancel", "refuse"]),
            st.integers(0, 7),
            st.floats(0, 1),
            st.floats(0, 1),
        ),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(
    steps=steps,
    max_usd=st.floats(0.0, 2.0),
    max_tokens=st.one_of(st.none(), st.integers(1, 300_000)),
    model=st.sampled_from([PRICED, "anthropic:claude-opus-4-5", UNPRICED]),
)
def test_caps_hold_if_the_provider_honours_its_limits(steps, max_usd, max_tokens, model):
    budget = Budget(max_usd=max_usd, max_tokens=max_tokens)
    under_way: list[Reservation] = []
    billed_usd, billed_tokens = 0.0, 0

    def worst() -> tuple[float, int]:
        """What the provider will have billed if every call under way uses all it may."""
        usd, tokens = billed_usd, billed_tokens
        for reservation in under_way:
            sent, received = most_input_tokens(reservation.call), reservation.call.max_output_tokens
            usd += cost_usd(model, Usage(input_tokens=sent, output_tokens=received)) or 0.0
            tokens += sent + received
        return usd, tokens

    for step in steps:
        if step[0] == "call":
            try:
                under_way.append(budget.reserve(model, step[1]))
            except BudgetExceeded:
                continue
        elif under_way:
            how, index, sent_share, received_share = step
            reservation = under_way.pop(index % len(under_way))
            sent = max(1, round(sent_share * most_input_tokens(reservation.call)))
            received = max(1, round(received_share * reservation.call.max_output_tokens))
            used = Usage(input_tokens=sent, output_tokens=received)
            if how == "refuse":
                reservation.settle(None, error=ModelError("no key"))
                continue
            billed_usd += cost_usd(model, used) or 0.0
            billed_tokens += used.tokens
            reservation.settle(answer(sent, received) if how == "answer" else None)
        usd, tokens = worst()
        assert usd <= max_usd + 1e-12  # the sum here is of floats
        assert tokens <= (UNPRICED_MAX_TOKENS if max_tokens is None else max_tokens) or (
            max_tokens is None and model != UNPRICED
        )
        assert budget.used_tokens >= billed_tokens
        assert budget.used_usd is None or budget.used_usd >= billed_usd - 1e-12


def test_calls_under_way_count_together():
    budget = Budget(max_usd=2.5 * price(CALL))
    first = budget.reserve(PRICED, CALL)
    budget.reserve(PRICED, CALL)
    third = budget.reserve(PRICED, CALL)
    assert first.call == CALL
    assert MIN_USEFUL_OUTPUT_TOKENS < third.call.max_output_tokens < CALL.max_output_tokens
    with pytest.raises(BudgetExceeded, match="3 calls under way"):
        budget.reserve(PRICED, CALL)


def test_room_comes_back_when_a_call_used_less():
    budget = Budget(max_usd=1.1 * price(CALL))
    budget.reserve(PRICED, CALL).settle(answer(100, 100))
    assert budget.reserve(PRICED, CALL).call == CALL


async def test_acquire_waits_for_calls_under_way_rather_than_shrink():
    budget = Budget(max_usd=1.5 * price(CALL))
    order: list[str] = []

    async def one(name: str) -> int:
        reservation = await budget.acquire(PRICED, CALL)
        order.append(f"{name} begins")
        await asyncio.sleep(0.01)
        order.append(f"{name} ends")
        reservation.settle(answer(100, 100))
        return reservation.call.max_output_tokens

    limits = await asyncio.gather(*(one(name) for name in "abc"))
    assert limits == [CALL.max_output_tokens] * 3
    assert order == [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]


async def test_acquire_refuses_when_nothing_is_left_to_wait_for():
    budget = Budget(max_usd=1.0 * price(CALL))
    first = await budget.acquire(PRICED, CALL)
    waiting = asyncio.create_task(budget.acquire(PRICED, CALL))
    await asyncio.sleep(0)
    first.settle(answer(1000, 15_900, text="x" * 50_000))
    with pytest.raises(BudgetExceeded, match=r"--|left"):
        await waiting


async def test_cancelled_waiter_holds_nothing():
    budget = Budget(max_usd=1.0 * price(CALL))
    first = await budget.acquire(PRICED, CALL)
    waiting = asyncio.create_task(budget.acquire(PRICED, CALL))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    first.settle(None, error=ModelError("no key"))
    assert budget.reserve(PRICED, CALL).call == CALL


def test_refusal_says_what_is_left_what_is_needed_and_the_flag():
    with pytest.raises(BudgetExceeded, match=r"\$0\.01 left.*gpt-5 may need \$0\.15") as caught:
        Budget(max_usd=0.01).reserve(PRICED, dataclasses.replace(CALL, system="s" * 10**5))
    assert "--max-usd" in (caught.value.hint or "")
    with pytest.raises(BudgetExceeded, match="2,000 tokens left") as caught:
        Budget(max_tokens=2000).reserve(PRICED, CALL)
    assert "--max-tokens" in (caught.value.hint or "")


def test_small_call_is_not_refused_for_being_small():
    call = dataclasses.replace(CALL, max_output_tokens=10)
    assert Budget(max_tokens=most_input_tokens(call) + 10).reserve(PRICED, call).call == call


def test_unknown_price_is_held_by_tokens_and_said():
    budget = Budget(max_usd=0.0001)
    budget.reserve(UNPRICED, CALL).settle(answer(100, 100))
    assert budget.used_usd is None
    assert budget.used_tokens == 200
    huge = dataclasses.replace(CALL, max_output_tokens=2 * UNPRICED_MAX_TOKENS)
    assert budget.reserve(UNPRICED, huge).tokens <= UNPRICED_MAX_TOKENS - 200


def test_no_money_means_no_call_of_unknown_price():
    with pytest.raises(BudgetExceeded, match=r"price .* not known, and the budget is \$0"):
        Budget(max_usd=0).reserve(UNPRICED, CALL)


def test_replay_and_autoschedule_need_no_money():
    budget = Budget(max_usd=0)
    budget.reserve("replay:run.jsonl", CALL).settle(answer(100, 100))
    assert budget.used_usd == 0.0
    assert budget.exhausted() is None


@pytest.mark.parametrize(
    ("reported", "is_believed"),
    [((100, 50), True), ((100, 10_000_000), False), ((10**9, 50), False), ((0, 0), False)],
    ids=["right", "much output", "much input", "zero"],
)
def test_overstated_usage_is_estimated_from_the_text(reported, is_believed):
    budget = Budget()
    sent, received = reported
    usage = budget.reserve(PRICED, CALL).settle(answer(sent, received, text="x" * 200))
    assert usage.is_estimated is not is_believed
    assert (budget.estimated_tokens == 0) is is_believed
    assert usage.output_tokens < 1000
    assert budget.used_tokens == usage.tokens


@pytest.mark.parametrize(
    ("error", "is_charged"),
    [
        (ModelError("no key"), False),
        (ModelError("broke off", may_be_billed=True), True),
        (asyncio.CancelledError(), True),
        (None, True),
    ],
    ids=["refused", "broke off", "cancelled", "unknown"],
)
def test_failed_call_is_charged_if_the_provider_may_charge_it(error, is_charged):
    budget = Budget()
    usage = budget.reserve(PRICED, CALL).settle(None, error=error)
    assert (usage.tokens > 0) is is_charged
    assert usage.is_estimated is is_charged
    assert (budget.used_usd or 0) == pytest.approx(price(CALL) if is_charged else 0)


def test_settling_twice_counts_once():
    budget = Budget()
    reservation = budget.reserve(PRICED, CALL)
    first = reservation.settle(answer(100, 50))
    assert reservation.settle(None) is first
    assert budget.used_tokens == 150
    assert budget.calls == 1


def test_warnings_come_at_half_at_80_percent_and_at_the_end_once_each():
    seen: list[BudgetWarning] = []
    budget = Budget(max_usd=100, max_tokens=10_000, on_warning=seen.append)
    call = dataclasses.replace(CALL, system="", max_output_tokens=3000)
    call = dataclasses.replace(call, messages=(Message("user", "u" * 500),))
    for received in (100, 2900, 2300, 2600, 100):
        try:
            budget.reserve(PRICED, call).settle(answer(100, received, text="x" * 9000))
        except BudgetExceeded:
            break
    with pytest.raises(BudgetExceeded):
        budget.reserve(PRICED, call)
    assert [(w.limit, w.used, w.is_exhausted) for w in seen] == [
        ("tokens", 5600, False),
        ("tokens", 8300, False),
        ("tokens", 8300, True),
    ]


def test_evaluations_are_capped():
    budget = Budget(max_evaluations=2)
    budget.count_evaluation()
    assert budget.exhausted() is None
    budget.count_evaluation()
    assert "2 evaluations is used up" in (budget.exhausted() or "")
    with pytest.raises(BudgetExceeded, match="2 evaluations"):
        budget.count_evaluation()
    assert budget.used_evaluations == 2


def test_time_is_capped():
    clock = Clock()
    budget = Budget(max_seconds=60, clock=clock)
    budget.count_evaluation()
    clock.now += 59
    assert budget.exhausted() is None
    clock.now += 1
    assert "60 s is used up" in (budget.exhausted() or "")
    with pytest.raises(BudgetExceeded, match="60 s"):
        budget.reserve(PRICED, CALL)
    with pytest.raises(BudgetExceeded, match="60 s"):
        budget.count_evaluation()


def test_counters_survive_a_restart_and_calls_under_way_count_in_full():
    clock = Clock()
    budget = Budget(max_usd=1, max_seconds=100, clock=clock)
    budget.reserve(PRICED, CALL).settle(answer(100, 50))
    lost = budget.reserve(PRICED, CALL)
    budget.count_evaluation()
    clock.now += 30
    saved = json.loads(json.dumps(budget.to_json()))

    clock.now += 1000  # a pause does not count
    later = Budget(max_usd=1, max_seconds=100, clock=clock)
    later.restore(saved)
    assert later.used_tokens == 150 + lost.tokens
    assert later.used_usd == pytest.approx(
        (cost_usd(PRICED, Usage(input_tokens=100, output_tokens=50)) or 0) + price(CALL)
    )
    assert later.used_evaluations == 1
    assert later.used_seconds == 30
    clock.now += 71
    assert later.exhausted() is not None


def test_counters_of_another_version_are_refused():
    with pytest.raises(ValueError, match="schema version 1"):
        Budget().restore({"schema_version": 2})


def test_estimate_comes_before_anything_is_used():
    budget = Budget(max_usd=0.5)
    estimate = budget.estimate(PRICED, CALL, drafts=8, repairs=24, repair_tokens=1000)
    sent, received = most_input_tokens(CALL), CALL.max_output_tokens
    repair = cost_usd(PRICED, Usage(input_tokens=sent + 1000, output_tokens=received)) or 0
    assert estimate.max_usd == pytest.approx(8 * price(CALL) + 24 * repair)
    assert estimate.max_input_tokens == 32 * sent + 24_000
    assert estimate.max_output_tokens == 32 * received
    assert "8 drafts and at most 24 repairs" in estimate.text
    assert f"${estimate.max_usd:.2f}; stops at $0.50" in estimate.text
    assert budget.used_tokens == 0


def test_estimate_of_unknown_price_says_so_and_names_the_cap_that_holds():
    estimate = Budget().estimate(UNPRICED, CALL, drafts=8, repairs=0, repair_tokens=0)
    assert estimate.max_usd is None
    assert "price unknown; stops at 2,000,000 tokens" in estimate.text


def test_estimate_of_a_recording_says_that_it_costs_nothing():
    estimate = Budget().estimate("replay:a.jsonl", CALL, drafts=2, repairs=2, repair_tokens=9)
    assert estimate.max_usd == 0
    assert estimate.text.endswith("from a recording: costs nothing")


@pytest.mark.parametrize(
    "text",
    ["0.5173e-3 " * 900, "\U00012000" * 900, "\x00\x01" * 900, "内核" * 900],
    ids=["numbers", "rare letters", "control characters", "chinese"],
)
def test_a_tokenizer_that_makes_one_token_of_each_byte_stays_below_the_cap(text):
    call = dataclasses.replace(CALL, messages=(Message("user", text),))
    sent = len((call.system + text).encode())
    budget = Budget(max_tokens=100_000)
    calls = 0
    while True:
        try:
            reservation = budget.reserve(PRICED, call)
        except BudgetExceeded:
            break
        calls += 1
        used = Usage(input_tokens=sent, output_tokens=reservation.call.max_output_tokens)
        answered = dataclasses.replace(answer(1, 1, "x" * 9), usage=used)
        assert not reservation.settle(answered).is_estimated
    assert calls > 2
    assert 80_000 < budget.used_tokens <= 100_000


async def test_many_calls_to_a_server_stay_below_the_cap():
    """The server writes as much as it may, and every reply is paid."""
    call = dataclasses.replace(CALL, max_output_tokens=4000)
    budget = Budget(max_usd=0.2)
    with FakeServer(lambda _: Reply("word " * 20_000)) as server:
        model = make_model(PRICED, base_url=server.openai_url, environ={})

        async def one() -> bool:
            try:
                reservation = await budget.acquire(model.name, call)
            except BudgetExceeded:
                return False
            reservation.settle(await model.complete(reservation.call))
            return True

        done = await asyncio.gather(*(one() for _ in range(12)))
    assert 4 <= sum(done) < 12
    assert len(server.requests) == sum(done)
    billed = sum(
        cost_usd(
            PRICED,
            Usage(
                input_tokens=len(request.system + request.prompt) // 4,
                output_tokens=request.max_output_tokens or 0,
            ),
        )
        or 0
        for request in server.requests
    )
    assert budget.used_usd is not None
    assert billed <= budget.used_usd + 1e-9
    assert 0.1 < budget.used_usd <= 0.2


async def test_server_that_overstates_its_usage_does_not_end_the_run():
    with FakeServer(lambda _: Reply("ok", tokens=Tokens(input=10**9, output=10**9))) as server:
        model = make_model(PRICED, base_url=server.openai_url, environ={})
        budget = Budget()
        reservation = budget.reserve(model.name, CALL)
        usage = reservation.settle(await model.complete(reservation.call))
    assert usage.is_estimated
    assert budget.exhausted() is None
