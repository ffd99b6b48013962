"""Rotary position embedding, split-half form: element i is paired with element i + d/2."""

import numpy as np


def reference(x, cos, sin):
    half = x.shape[-1] // 2
    first = x[:, :half]
    second = x[:, half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
