"""Plans travel as JSON and refuse what is no plan."""

from __future__ import annotations

import json
import random

import pytest
from tests.nkiwright.autoschedule.functions import PROBLEMS

from nkiwright.autoschedule import plan_from_json, plan_to_json, space_of


@pytest.mark.parametrize("name", ["rms_norm", "gated", "transpose", "attention"])
def test_json_round_trip(name, machine):
    plan = space_of(PROBLEMS[name], machine).sample(random.Random(1))
    assert plan_from_json(plan_to_json(plan)) == plan


BROKEN: dict[str, tuple[dict[str, object], str]] = {
    "family": ({"family": "conv"}, "family must be one of"),
    "unknown field": ({"speed": 9}, "no field 'speed'"),
    "missing field": ({"group": None}, "needs the field 'group'"),
    "type": ({"group": "two"}, "group must be int"),
    "bool is no int": ({"group": True}, "group must be int"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_json_that_is_no_plan_is_refused(name, machine):
    changes, text = BROKEN[name]
    data = json.loads(
        plan_to_json(space_of(PROBLEMS["transpose"], machine).sample(random.Random(1)))
    )
    for key, value in changes.items():
        if value is None:
            del data[key]
        else:
            data[key] = value
    with pytest.raises(ValueError, match=text):
        plan_from_json(json.dumps(data))
