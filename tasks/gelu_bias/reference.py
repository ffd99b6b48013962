"""GELU of x + b in the tanh form (GPT-2's, not the erf form)."""

import numpy as np


def reference(x, b):
    z = x + b
    return 0.5 * z * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (z + 0.044715 * z * z * z)))
