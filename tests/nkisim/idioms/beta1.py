"""The first generation's modules, and a shortcut to run small kernels of it."""

import numpy as np

import nkisim
from nkisim.api import run_kernel

nkisim.install()

import neuronxcc.nki as nki  # type: ignore[import-not-found]  # noqa: E402 - served by nkisim
import neuronxcc.nki.compiler as ncc  # type: ignore[import-not-found]  # noqa: E402
import neuronxcc.nki.isa as nisa  # type: ignore[import-not-found]  # noqa: E402
import neuronxcc.nki.language as nl  # type: ignore[import-not-found]  # noqa: E402

__all__ = ["grid", "ncc", "nisa", "nki", "nl", "normal", "run", "warned"]


def grid(rows, columns):
    """Index tensors of a tile: partitions and free axis."""
    return nl.arange(rows)[:, None], nl.arange(columns)[None, :]


def normal(*shape, seed=0, dtype=np.float32):
    """Normally distributed values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def run(kernel, *args, **kwargs):
    """Run a kernel of this process; returns the result of the run."""
    return run_kernel(nki.jit(kernel), args, kwargs)


def warned(result):
    """Messages of the run that are warnings."""
    return [d.message for d in result.diagnostics if d.kind == "warning"]
