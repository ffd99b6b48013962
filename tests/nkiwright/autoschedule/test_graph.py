"""Numpy references become canonical graphs, or a refusal that names the function and its line."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.nkiwright.autoschedule.functions import problem

from nkiwright.autoschedule import NotCovered, Op, simplify, space_of, trace


def ops(function, inputs="x:n,d", outputs="y:n,d", **scalars):
    traced = problem(function, inputs, outputs, **scalars)
    graph = simplify(trace(traced, traced.shapes[0]))
    return [node.op for node in graph if node.op not in (Op.INPUT, Op.SCALAR)]


def _sigmoid_by_cases(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _mish(x):
    return x * np.tanh(np.log(1 + np.exp(x)))


UNARY = {
    "gelu_tanh": (
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))),
        [Op.GELU_TANH],
    ),
    "gelu_tanh_cubed": (
        lambda x: x / 2 * (np.tanh((x + x**3 * 0.044715) * (2 / np.pi) ** 0.5) + 1),
        [Op.GELU_TANH],
    ),
    "gelu_sigmoid": (lambda x: x / (1 + np.exp(-1.702 * x)), [Op.GELU_SIGMOID]),
    "silu": (lambda x: x / (1 + np.exp(-x)), [Op.SILU]),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), [Op.SIGMOID]),
    "stable_sigmoid": (_sigmoid_by_cases, [Op.SIGMOID]),
    "stable_softplus": (_softplus, [Op.SOFTPLUS]),
    "mish": (_mish, [Op.MISH]),
    "relu": (lambda x: np.clip(x, 0, None), [Op.RELU]),
    "square": (lambda x: x * x, [Op.SQUARE]),
    "rsqrt": (lambda x: x**-0.5, [Op.RSQRT]),
    "reciprocal_of_root": (lambda x: 1 / np.sqrt(x), [Op.RSQRT]),
    "tanh_by_exp": (lambda x: 1 - 2 / (np.exp(2 * x) + 1), [Op.TANH]),
    "near_gelu_is_not_gelu": (
        lambda x: x / (1 + np.exp(-1.703 * x)),
        [Op.MULTIPLY, Op.SIGMOID, Op.MULTIPLY],
    ),
    "constants_fold": (lambda x: 2 * (x * 3) / 6 + 1 - 1, []),
}


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_value_are_recognised_however_written(name):
    function, expected = UNARY[name]
    function.__name__ = name
    assert ops(function) == expected


def _variance(x):
    return ((x - x.mean(-1, keepdims=True)) ** 2).mean(-1, keepdims=True)


def test_mean_square_distance_from_the_mean_is_the_variance():
    assert ops(_variance, outputs="y:n,1") == [Op.VAR]


def _mean_by_sum(x):
    return np.sum(x, axis=-1, keepdims=True) / x.shape[-1]


def test_sum_divided_by_the_row_length_is_the_mean():
    assert ops(_mean_by_sum, outputs="y:n,1") == [Op.MEAN]


def _additive(x):
    return x + np.where(np.tri(*x.shape) > 0, 0.0, -np.inf)


def _selected(x):
    rows, columns = np.arange(x.shape[0])[:, None], np.arange(x.shape[1])[None, :]
    return np.where(columns > rows, -1e30, x)


def _windowed(x):
    return x * np.tril(np.ones(x.shape), k=3)


@pytest.mark.parametrize(
    ("function", "offset"),
    [(_additive, 0), (_selected, 0), (_windowed, 3)],
    ids=["additive", "select", "multiply"],
)
def test_triangular_masks_become_one_operation(function, offset):
    traced = problem(function, "x:n,d", "y:n,d")
    graph = simplify(trace(traced, traced.shapes[0]))
    node = graph[graph.outputs[0]]
    assert node.op is Op.SELECT_TRIANGLE
    assert node.attr("offset") == offset


def _in_place(x, y):
    z = x + 1
    z *= y
    return z


def test_augmented_assignment_is_traced():
    assert ops(_in_place, "x:n,d y:n,d") == [Op.ADD, Op.MULTIPLY]


def test_shapes_are_inferred_through_broadcasting():
    traced = problem(lambda x, s: (x * s[:, None]).sum(-1), "x:n,d s:n", "y:n")
    graph = trace(traced, {"n": 5, "d": 7})
    assert graph[graph.outputs[0]].shape == (5,)


def _branches(x):
    if (x > 0).sum(-1)[0] > 3:
        return x
    return -x


def _sorts(x):
    y = x + 1
    return np.sort(y, axis=-1)


def _converts(x):
    return x * float(x.sum(-1)[0])


def _writes_through_view(x):
    y = x + 1
    half = y[:, :3]
    y *= 2
    return y + half.sum(-1, keepdims=True)


def _sums_rows(x):
    return x.sum(0)


def _assigns(x):
    y = x * 2
    y[:, 0] = 0
    return y


def _modulus(x):
    return np.fmod(x, 2)


def _raises(x):
    return x @ x


REFUSALS = {
    "branch": (_branches, "branches on values", 1),
    "sort": (_sorts, "numpy.sort", 2),
    "float": (_converts, "conversion of an array to a Python number", 1),
    "view": (_writes_through_view, "of which there are views", 3),
    "axis": (_sums_rows, "sum over axis 0", 1),
    "setitem": (_assigns, "assignment to parts", 2),
    "ufunc": (_modulus, "numpy.fmod", 1),
    "shapes": (_raises, "matmul of", 1),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_traced_is_refused_with_name_and_line(name):
    function, text, below = REFUSALS[name]
    with pytest.raises(NotCovered, match=text) as caught:
        trace(problem(function, "x:n,d", "y:n,d"), {"n": 8, "d": 6})
    assert caught.value.line == function.__code__.co_firstlineno + below


def _gather(x, y):
    return x + np.outer(np.arange(8.0), np.arange(6.0)) * y


def _low_rank(x, a, b):
    return (x @ a) @ b


def _batched(x):
    return x.transpose(0, 2, 1) * 2


UNCOVERED = {
    "table": (problem(_gather, "x:8,6 y:8,6", "z:8,6", sizes=({},)), "table"),
    "chained product": (
        problem(_low_rank, "x:n,d a:d,16 b:16,d", "y:n,d"),
        "matmul of a computed operand",
    ),
    "batched transpose": (problem(_batched, "x:2,n,d", "y:2,d,n"), "permute"),
    "integers": (problem(lambda x: x + 1, "x:n,d:int32", "y:n,d:int32"), "int32"),
}


@pytest.mark.parametrize("name", UNCOVERED)
def test_what_no_family_covers_is_said_clearly(name, machine):
    function, text = UNCOVERED[name]
    with pytest.raises(NotCovered, match=text):
        space_of(function, machine)
