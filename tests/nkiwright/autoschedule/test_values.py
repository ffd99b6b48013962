"""Kernels compute what their reference computes, at whole and at ragged sizes."""

from __future__ import annotations

import random
from zlib import crc32

import numpy as np
import pytest
from tests.nkiwright.autoschedule.functions import PROBLEMS

from nkisim.api import execute_program, resolve_machine, trace_bundle
from nkisim.dtypes import DTYPES
from nkisim.profile.model import profile_program
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


def traced(source, inputs):
    bundle = from_text(source)
    machine = resolve_machine("trn2")
    return trace_bundle(bundle, "kernel", inputs, machine=machine, nki="0.6").program


def run(source, inputs):
    return execute_program(traced(source, inputs), inputs).outputs


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


@pytest.mark.parametrize("name", ["gelu_bias", "rms_norm", "linear", "attention"])
def test_plans_of_one_function_differ_in_time(name, machine):
    problem = PROBLEMS[name]
    inputs = [
        np.zeros(a.resolve(problem.shapes[0]), DTYPES[a.dtype].storage) for a in problem.inputs
    ]
    space, rng = space_of(problem, machine), random.Random(0)
    programs = (traced(space.render(space.sample(rng)).source, inputs) for _ in range(12))
    latencies = [profile_program(program, machine).latency_ns for program in programs]
    assert max(latencies) > 1.15 * min(latencies)
