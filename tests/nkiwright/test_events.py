"""Events survive the way to JSON and back, and nothing else passes for one."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from nkiwright import events
from nkiwright.events import Usage

EXAMPLES: list[events.Event] = [
    events.RunStarted(run="r", task="softmax", model="m", machine="trn2", nki="0.6", seed=1),
    events.CallStarted(call=0, purpose="draft", model="openai:x"),
    events.TokenDelta(call=0, text='a "quoted" ü\n'),
    events.CallFinished(call=0, usage=Usage(input_tokens=3, output_tokens=4), seconds=0.5),
    events.CandidateDrafted(candidate=1, parent=None, origin="draft"),
    events.CandidateRejected(candidate=1, stage="trace", error="NKS104 nc_matmul: too wide"),
    events.CandidateVerified(candidate=2, latency_ns=1.5e4, speedup=2.0, bound_fraction=None),
    events.BestChanged(candidate=2, latency_ns=1.5e4, speedup=2.0),
    events.BudgetWarning(limit="usd", used=0.9, allowed=1.0, is_exhausted=False),
    events.StrategyNote(text="diversity round"),
    events.RunFinished(result={"solved": True, "winner": {"latency_ns": 1.0}, "seeds": [1, 2]}),
]


def test_examples_cover_the_vocabulary():
    assert {type(event) for event in EXAMPLES} == set(get_args(events.Event))


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)
def test_event_round_trips_through_one_line(event):
    line = events.to_line(event)
    assert "\n" not in line
    assert json.loads(line)["schema_version"] == events.SCHEMA_VERSION
    assert events.from_json(json.loads(line)) == event


def test_unknown_price_makes_the_sum_unknown():
    known = Usage(input_tokens=10, cached_tokens=4, output_tokens=5, usd=0.25)
    assert known + known == Usage(input_tokens=20, cached_tokens=8, output_tokens=10, usd=0.5)
    assert (known + Usage(input_tokens=1, usd=None)).usd is None
    assert known.tokens == 15


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema_version": 2}, "schema version 1 expected, got 2"),
        ({"event": "Nonsense"}, "unknown event 'Nonsense'"),
        ({"colour": 1}, "no field 'colour'"),
        ({"candidate": "many"}, "BestChanged.candidate"),
    ],
    ids=["version", "name", "field", "type"],
)
def test_malformed_event_is_refused(change, says):
    data = events.to_json(events.BestChanged(candidate=1, latency_ns=1.0, speedup=None))
    with pytest.raises(ValueError, match=says):
        events.from_json({**data, **change})


def test_incomplete_event_is_refused():
    data = events.to_json(events.BestChanged(candidate=1, latency_ns=1.0, speedup=None))
    del data["latency_ns"]
    with pytest.raises(ValueError, match=r"BestChanged\.latency_ns"):
        events.from_json(data)
