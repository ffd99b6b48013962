"""Kernels compute what their reference computes, at whole and at ragged sizes."""

from __future__ import annotations

import random
from zlib import crc32

import numpy as np
import pytest
from tests.nkiwright.autoschedule.functions import PROBLEMS

from nkisim.dtypes import DTYPES
from nkisim.execute.interpreter import execute
from nkisim.frontend.answer import decode_answer
from nkisim.frontend.arguments import describe
from nkisim.frontend.trace import trace_request
from nkisim.ir.encode import decode
from nkisim.sources import from_text
from nkiwright.autoschedule import space_of

PLANS = 4
RAGGED = {"n": 300, "d": 200, "m": 180, "k": 200, "s": 260, "h": 20}
EPSILON = {"float32": 2.0**-24, "bfloat16": 2.0**-9}
"""Half the spacing of numbers below 2."""


def dims_of(problem, kind):
    if kind == "whole":
        return problem.shapes[1]
    dims = {name: RAGGED[name] for name in problem.shapes[0]}
    if "h" in dims:
        dims["d"] = 2 * dims["h"]
    elif problem.name == "attention":
        dims["d"] = 48
    return dims


def run(source, inputs):
    bundle = from_text(source)
    request = {
        "sources": bundle.sources,
        "main": bundle.main,
        "entry": "kernel",
        "args": [describe(array, []) for array in inputs],
        "kwargs": {},
        "machine": "trn2",
        "nki": "0.6",
        "grid": [],
        "stand_ins": False,
    }
    answer = decode_answer(trace_request(request))
    assert answer.program is not None, answer.diagnostic
    return execute(decode(answer.program), inputs).outputs


@pytest.mark.parametrize("kind", ["whole", "ragged"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_kernels_agree_with_the_reference(name, kind, machine):
    problem = PROBLEMS[name]
    dims = dims_of(problem, kind)
    values = np.random.default_rng(crc32(name.encode()))
    inputs = [
        values.standard_normal(a.resolve(dims)).astype(DTYPES[a.dtype].storage)
        for a in problem.inputs
    ]
    named = {a.name: x.astype(np.float64) for a, x in zip(problem.inputs, inputs, strict=True)}
    expected = problem.reference(**named, **problem.scalars)
    expected = expected if isinstance(expected, tuple) else (expected,)
    space, rng = space_of(problem, machine), random.Random(crc32(name.encode()))
    for _ in range(PLANS):
        plan = space.sample(rng)
        outputs = run(space.render(plan).source, inputs)
        for spec, got, want in zip(problem.outputs, outputs, expected, strict=True):
            assert got.dtype == DTYPES[spec.dtype].storage
            scale = np.abs(want) + np.sqrt(np.mean(want**2, axis=-1, keepdims=True))
            error = np.abs(got.astype(np.float64) - want) / (EPSILON[spec.dtype] * scale)
            assert error.max() < 30, f"{error.max()} with {plan}"


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "linear", "rope"])
def test_kernels_on_float32_use_no_other_float(name, machine):
    space, rng = space_of(PROBLEMS[name], machine), random.Random(0)
    for _ in range(10):
        source = space.render(space.sample(rng)).source
        assert "bfloat16" not in source
        assert "float16" not in source
