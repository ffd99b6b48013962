"""Functions to schedule, written for these tests, with the sizes they are called at."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nkiwright.autoschedule import Argument, Problem

SIZES = ({"n": 384, "d": 768}, {"n": 128, "d": 256})
MATRIX_SIZES = ({"m": 256, "k": 384, "n": 640}, {"m": 128, "k": 128, "n": 512})


def problem(
    function: Callable[..., object],
    inputs: str,
    outputs: str,
    *,
    sizes: tuple[dict[str, int], ...] = SIZES,
    **scalars: float,
) -> Problem:
    """Make a problem from specs such as `x:n,d:bfloat16 w:d`; the default dtype is float32."""
    ins, outs = (tuple(map(_argument, text.split())) for text in (inputs, outputs))
    used = {s for a in ins for s in a.shape if isinstance(s, str)}
    return Problem(
        name=function.__name__.removeprefix("_"),
        reference=function,
        inputs=ins,
        outputs=outs,
        scalars=scalars,
        shapes=tuple({k: v for k, v in dims.items() if k in used} for dims in sizes),
    )


def _argument(text: str) -> Argument:
    name, shape, *dtype = text.split(":")
    sizes = tuple(int(s) if s.isdigit() else s for s in shape.split(","))
    return Argument(name=name, shape=sizes, dtype=dtype[0] if dtype else "float32")


def add(x, y):
    return x + y


def gelu_bias(x, b):
    z = x + b
    return 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def log_softmax(x):
    z = x - np.max(x, axis=-1, keepdims=True)
    return z - np.log(np.sum(np.exp(z), axis=-1, keepdims=True))


def rms_norm(x, w, *, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * w


def shifted_rms_norm(x, w, *, eps):
    return x * (1 + w) / np.sqrt((x**2).mean(-1, keepdims=True) + eps)


def layer_norm(x, w, b, *, eps):
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    return centred / np.sqrt(variance + eps) * w + b


def residual_norm(x, r, w, *, eps):
    h = x + r
    return h / np.sqrt(np.mean(h * h, -1, keepdims=True) + eps) * w, h


def rope(x, cos, sin):
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def leaky(x):
    return np.where(x > 0, x, 0.1 * x)


def decay(x):
    return np.cumsum(-np.log1p(np.exp(-x)), axis=-1)


def row_scale(x, s):
    return x * s[:, None]


def log_sum_exp(x):
    m = x.max(-1, keepdims=True)
    return (m + np.log(np.exp(x - m).sum(-1, keepdims=True)))[:, 0]


def lower_triangle(x):
    return np.where(np.tril(np.ones((x.shape[0], x.shape[1]))) > 0, x, 0.0)


def axpy(x, y):
    return 2 * x + y


def matmul(x_t, w):
    return x_t.T @ w


def linear(x, w, r):
    return x @ w.T + r


def gated(x, w1, w2):
    g = x @ w1
    return g / (1 + np.exp(-g)) * (x @ w2)


def transpose(x):
    return x.T


def attention(q, k, v):
    scores = q @ k.T / np.sqrt(q.shape[-1])
    scores = scores + np.triu(np.full(scores.shape, -np.inf), k=1)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)) @ v


def plain_attention(q, k, v):
    scores = 0.125 * (q @ k.T)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return (e @ v) / e.sum(-1, keepdims=True)


_HALF = ({"n": 384, "d": 64, "h": 32}, {"n": 128, "d": 32, "h": 16})
_HEAD = ({"n": 384, "d": 64}, {"n": 128, "d": 32})
_CROSS = ({"n": 256, "s": 384}, {"n": 128, "s": 128})

SMALL = problem(decay, "x:n,d", "y:n,d", sizes=({"n": 128, "d": 256},))
"""A problem with few plans."""

PROBLEMS = {
    p.name: p
    for p in (
        problem(add, "x:n,d y:n,d", "z:n,d"),
        problem(axpy, "x:n:bfloat16 y:n:bfloat16", "z:n:bfloat16"),
        problem(gelu_bias, "x:n,d:bfloat16 b:d:bfloat16", "y:n,d:bfloat16"),
        problem(softmax, "x:n,d", "y:n,d"),
        problem(log_softmax, "x:n,d", "y:n,d"),
        problem(rms_norm, "x:n,d:bfloat16 w:d:bfloat16", "y:n,d:bfloat16", eps=1e-5),
        problem(shifted_rms_norm, "x:2,n,d w:d", "y:2,n,d", eps=1e-5),
        problem(layer_norm, "x:n,d w:d b:d", "y:n,d", eps=1e-5),
        problem(
            residual_norm,
            "x:n,d:bfloat16 r:n,d:bfloat16 w:d:bfloat16",
            "y:n,d:bfloat16 h:n,d:bfloat16",
            eps=1e-5,
        ),
        problem(rope, "x:n,d cos:n,h sin:n,h", "y:n,d", sizes=_HALF),
        problem(leaky, "x:n,d", "y:n,d"),
        problem(decay, "x:n,d", "y:n,d"),
        problem(row_scale, "x:n,d s:n:bfloat16", "y:n,d"),
        problem(log_sum_exp, "x:n,d", "y:n"),
        problem(lower_triangle, "x:n,d", "y:n,d"),
        problem(matmul, "x_t:k,m:bfloat16 w:k,n:bfloat16", "y:m,n:bfloat16", sizes=MATRIX_SIZES),
        problem(linear, "x:m,k w:n,k r:m,n", "y:m,n", sizes=MATRIX_SIZES),
        problem(
            gated,
            "x:m,k:bfloat16 w1:k,n:bfloat16 w2:k,n:bfloat16",
            "y:m,n:bfloat16",
            sizes=MATRIX_SIZES,
        ),
        problem(transpose, "x:n,d", "y:d,n"),
        problem(attention, "q:n,d:bfloat16 k:n,d:bfloat16 v:n,d:bfloat16", "y:n,d:bfloat16",
                sizes=_HEAD),
        problem(plain_attention, "q:n,64 k:s,64 v:s,64", "y:n,64", sizes=_CROSS),
    )
}  # fmt: skip
