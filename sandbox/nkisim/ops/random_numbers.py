"""Random numbers: bits, uniform values, dropout, and the state of the generators.

Every value is a function of the seeds alone; the bits are not the device's (see `random_lanes`).
Source: NKI ISA reference 0.6 (one page for each instruction named below).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from nkisim.dtypes import Array, store
from nkisim.errors import KernelError
from nkisim.ir.program import Form
from nkisim.machine.spec import Engine, Machine
from nkisim.ops import codes, costs, rules
from nkisim.ops.operands import DST, ENGINE, NAME, OLD_DTYPE, flat, page, position, read_column
from nkisim.ops.random_lanes import GPSIMD_WORDS, VECTOR_WORDS, Lanes, unit
from nkisim.ops.registry import SBUF_ONLY, Cost, OpSpec, Param, ParamKind, Run, State

K = ParamKind
RAND2_DTYPES: Final = (
    "float32",
    "tfloat32",
    "bfloat16",
    "float16",
    "float8_e4m3",
    "float8_e5m2",
    "int32",
    "uint32",
    "int16",
    "uint16",
    "int8",
    "uint8",
)


def _lanes(state: State, engine: Engine) -> Lanes:
    return state.gpsimd_random if engine is Engine.GPSIMD else state.vector_random


def _cost(form: Form, machine: Machine) -> Cost:
    return costs.on_engine(form, machine, float(costs.free_elements(form)))


# -- rng ------------------------------------------------------------------------------------------

RNG_PARAMS = (DST, ENGINE, NAME)


def _check_rng(form: Form, machine: Machine) -> None:
    rules.check_operands(form, machine, RNG_PARAMS)
    dst = form["dst"]
    if dst.dtype.kind not in ("int", "uint"):
        raise rules.refuse_dtype(
            form, dst, "int8, int16, int32, uint8, uint16, uint32", "allocate dst as nl.uint32"
        )
    if form.engine is Engine.GPSIMD and machine.generation < 3:
        raise rules.refuse_engine(
            form, f"{machine.core} has no generator there", "vector", "leave engine out"
        )


def _rng(form: Form) -> Run:
    dst, shape, engine = position(form, "dst"), form["dst"].shape, form.engine
    partitions, count = form["dst"].partitions, form["dst"].free_size
    storage = form["dst"].dtype.storage
    unsigned = np.dtype(f"u{storage.itemsize}")

    def run(state: State, views: Sequence[Array]) -> None:
        bits = _lanes(state, engine).draw(partitions, count)
        views[dst][...] = bits.astype(unsigned).view(storage).reshape(shape)

    return run


RNG = OpSpec(
    name="rng",
    params=RNG_PARAMS,
    engines=(Engine.VECTOR, Engine.GPSIMD),
    summary="Random bits, each partition from its own stream.",
    semantics="dst = the low bits of uniform 32-bit random integers",
    rules=("dst is an integer tile; GpSimd from NeuronCore-v3 on, SBUF only",),
    example="nisa.rng(dst=bits_u32)",
    source=page("rng"),
    check=_check_rng,
    compile=_rng,
    cost=_cost,
)

# -- rand2 ----------------------------------------------------------------------------------------

RAND2_PARAMS = (
    DST,
    Param(name="min", kind=K.TENSOR_OR_SCALAR),
    Param(name="max", kind=K.TENSOR_OR_SCALAR),
    NAME,
)


def _check_rand2(form: Form, machine: Machine) -> None:
    rules.check_operands(form, machine, RAND2_PARAMS)
    rules.check_column(form, "min", "max")
    if form["dst"].dtype.name not in RAND2_DTYPES:
        raise rules.refuse_dtype(
            form, form["dst"], ", ".join(RAND2_DTYPES), "allocate dst as nl.float32"
        )
    low, high = form.attr("min"), form.attr("max")
    if isinstance(low, (int, float)) and isinstance(high, (int, float)) and not low < high:
        raise KernelError(
            codes.VALUE,
            f"rand2: min={low!r} is not below max={high!r}",
            allowed="min < max",
        )


def _rand2(form: Form) -> Run:
    dst, shape, dtype = position(form, "dst"), form["dst"].shape, form["dst"].dtype
    partitions, count = form["dst"].partitions, form["dst"].free_size
    low, high = read_column(form, "min", 2), read_column(form, "max", 2)

    def run(state: State, views: Sequence[Array]) -> None:
        values: Any = unit(state.vector_random.draw(partitions, count))
        a = low(views)
        values = values * (high(views) - a) + a
        store(views[dst], values.reshape(shape), dtype)

    return run


RAND2 = OpSpec(
    name="rand2",
    params=RAND2_PARAMS,
    engines=(Engine.VECTOR,),
    summary="Uniform random numbers, on NeuronCore-v4.",
    semantics="dst = cast(min + u * (max - min)), u uniform in [0, 1) in steps of 2^-24",
    rules=("NeuronCore-v4 only", "min < max, numbers or float32 tiles (P, 1)"),
    example="nisa.rand2(dst=noise, min=-1.0, max=1.0)",
    source=page("rand2"),
    check=_check_rand2,
    compile=_rand2,
    cost=_cost,
    min_generation=4,
)

# -- dropout --------------------------------------------------------------------------------------

DROPOUT_PARAMS = (
    DST,
    Param(name="data", kind=K.TENSOR),
    Param(name="prob", kind=K.TENSOR_OR_SCALAR),
    NAME,
    OLD_DTYPE,
)


def _check_dropout(form: Form, machine: Machine) -> None:
    rules.check_elementwise(form, machine, DROPOUT_PARAMS, "dst", "data")
    rules.check_same_dtype(form, "dst", "data")
    is_integer = form["data"].dtype.is_integer
    rules.check_column(form, "prob", dtype="float32" if is_integer else None)
    prob = form.get("prob")
    if prob is not None and not prob.dtype.is_float:
        raise rules.refuse_dtype(form, prob, "a float dtype", "allocate prob as nl.float32")
    value = form.attr("prob")
    if isinstance(value, (int, float)) and not 0 <= value <= 1:
        raise KernelError(
            codes.VALUE, f"dropout: prob={value!r} is not a probability", allowed="0 ≤ prob ≤ 1"
        )


def _dropout(form: Form) -> Run:
    dst, data, shape = position(form, "dst"), position(form, "data"), form["dst"].shape
    partitions, count = form["dst"].partitions, form["dst"].free_size
    prob = read_column(form, "prob", 2)
    zero = np.zeros((), dtype=form["dst"].dtype.storage)

    def run(state: State, views: Sequence[Array]) -> None:
        drops = unit(state.vector_random.draw(partitions, count)) < prob(views)
        views[dst][...] = np.where(drops.reshape(shape), zero, views[data].reshape(shape))

    return run


DROPOUT = OpSpec(
    name="dropout",
    params=DROPOUT_PARAMS,
    engines=(Engine.VECTOR,),
    summary="Replace elements by zero with a probability; the others are not rescaled.",
    semantics="dst = where(u < prob, 0, data), u uniform in [0, 1) for each element",
    rules=(
        "dst has data's dtype; prob is a number or a tile (P, 1), float32 for integer data",
        "kept values are not divided by 1 - prob",
    ),
    example="nisa.dropout(dst=y, data=x, prob=0.1)",
    source=page("dropout"),
    check=_check_dropout,
    compile=_dropout,
    cost=_cost,
)

# -- state ----------------------------------------------------------------------------------------

SEED_PARAMS = (Param(name="src_seeds", kind=K.TENSOR), NAME)
SET_PARAMS = (Param(name="src_seeds", kind=K.TENSOR, memories=SBUF_ONLY), ENGINE, NAME)
GET_PARAMS = (DST, ENGINE, NAME)


def _check_seed(form: Form, machine: Machine) -> None:
    rules.check_operands(form, machine, SEED_PARAMS)
    seeds = form["src_seeds"]
    if seeds.pattern.size != 1:
        raise KernelError(
            codes.ONE_ELEMENT,
            "set_rng_seed: src_seeds must have exactly one element",
            got=str(seeds),
            allowed="[1, 1]",
        )
    if seeds.dtype.itemsize != 4:
        raise rules.refuse_dtype(form, seeds, "a dtype of 32 bits", "allocate it as nl.uint32")


def _seed(form: Form) -> Run:
    at = position(form, "src_seeds")

    def run(state: State, views: Sequence[Array]) -> None:
        state.vector_random.seed(int(views[at].reshape(-1).view(np.uint32)[0]))

    return run


SET_RNG_SEED = OpSpec(
    name="set_rng_seed",
    params=SEED_PARAMS,
    engines=(Engine.VECTOR,),
    summary="Seed the Vector Engine's random numbers.",
    semantics="the streams of rng, rand2 and dropout on the Vector Engine start from src_seeds",
    rules=("src_seeds is [1, 1] of a 32-bit dtype",),
    example="nisa.set_rng_seed(src_seeds=seed_u32)",
    source=page("set_rng_seed"),
    check=_check_seed,
    compile=_seed,
    cost=_cost,
)


def _check_state(form: Form, machine: Machine, role: str) -> None:
    operand = form[role]
    if operand.dtype.name != "uint32":
        raise rules.refuse_dtype(form, operand, "uint32", f"allocate {role} as nl.uint32")
    if form.engine is Engine.VECTOR and machine.generation < 4:
        raise rules.refuse_engine(
            form, f"{machine.core} keeps no such state there", "gpsimd", "leave engine out"
        )
    words = GPSIMD_WORDS if form.engine is Engine.GPSIMD else VECTOR_WORDS
    rules.check_free_size(form, role, words)


def _check_set_state(form: Form, machine: Machine) -> None:
    rules.check_operands(form, machine, SET_PARAMS)
    _check_state(form, machine, "src_seeds")


def _set_state(form: Form) -> Run:
    at, engine, rows = position(form, "src_seeds"), form.engine, form["src_seeds"].partitions

    def run(state: State, views: Sequence[Array]) -> None:
        _lanes(state, engine).words[:rows] = flat(views[at])

    return run


RAND_SET_STATE = OpSpec(
    name="rand_set_state",
    params=SET_PARAMS,
    engines=(Engine.GPSIMD, Engine.VECTOR),
    summary="Set the state of an engine's random generators, one for each partition.",
    semantics="state[p] = src_seeds[p]; a state from rand_get_state continues its stream",
    rules=(
        "src_seeds is uint32 in SBUF, (P, 6) for GpSimd or (P, 24) for the Vector Engine",
        "from NeuronCore-v3 on; the Vector Engine from v4 on",
    ),
    example="nisa.rand_set_state(src_seeds=state_u32)",
    source=page("rand_set_state"),
    check=_check_set_state,
    compile=_set_state,
    cost=_cost,
    min_generation=3,
)


def _check_get_state(form: Form, machine: Machine) -> None:
    rules.check_operands(form, machine, GET_PARAMS)
    _check_state(form, machine, "dst")


def _get_state(form: Form) -> Run:
    dst, engine, shape = position(form, "dst"), form.engine, form["dst"].shape

    def run(state: State, views: Sequence[Array]) -> None:
        views[dst][...] = _lanes(state, engine).words[: shape[0]].reshape(shape)

    return run


RAND_GET_STATE = OpSpec(
    name="rand_get_state",
    params=GET_PARAMS,
    engines=(Engine.GPSIMD, Engine.VECTOR),
    summary="Store the state of an engine's random generators.",
    semantics="dst[p] = state[p]",
    rules=(
        "dst is uint32, (P, 6) for GpSimd or (P, 24) for the Vector Engine",
        "from NeuronCore-v3 on; the Vector Engine, which reaches PSUM too, from v4 on",
    ),
    example="nisa.rand_get_state(dst=state_u32)",
    source=page("rand_get_state"),
    check=_check_get_state,
    compile=_get_state,
    cost=_cost,
    min_generation=3,
)

SPECS: tuple[OpSpec, ...] = (RNG, RAND2, DROPOUT, SET_RNG_SEED, RAND_SET_STATE, RAND_GET_STATE)
"""Rows of the random numbers."""
