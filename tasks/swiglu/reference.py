"""SwiGLU without its projections: silu(gate) * up."""

import numpy as np


def reference(gate, up):
    return gate / (1.0 + np.exp(-gate)) * up
