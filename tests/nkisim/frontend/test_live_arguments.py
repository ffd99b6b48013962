"""Arguments of kernels of this process: arrays in records and containers, and anything else."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

import nkisim
from nkisim.frontend.trace import is_beta1

nkisim.install()

import nki  # type: ignore[import-not-found]  # noqa: E402 - served by nkisim.install()
import nki.isa as nisa  # type: ignore[import-not-found]  # noqa: E402
import nki.language as nl  # type: ignore[import-not-found]  # noqa: E402
from neuronxcc.nki import typing as old_typing  # type: ignore[import-not-found]  # noqa: E402


@dataclass
class Record:
    name: str
    array: np.ndarray


class Pair(NamedTuple):
    first: np.ndarray
    second: object


@nki.jit
def difference(data, combine, read):
    """The `combine` of two arrays that `read` finds in `data`."""
    a, b = read(data)
    left = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    right = nl.ndarray(b.shape, dtype=b.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=a)
    nisa.dma_copy(dst=right, src=b)
    nisa.tensor_tensor(dst=left, data1=left, data2=right, op=combine)
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=left)
    return out


READS = {
    "list": (lambda a, b: [a, b], lambda d: d),
    "dict": (lambda a, b: {"b": b, "a": a}, lambda d: (d["a"], d["b"])),
    "named tuple": (lambda a, b: Pair(a, (b,)), lambda d: (d.first, d.second[0])),
    "dataclass": (
        lambda a, b: [Record("a", a), Record("b", b)],
        lambda d: (d[0].array, d[1].array),
    ),
    "record in a record": (
        lambda a, b: SimpleNamespace(x=Record("a", a), y={"b": b}),
        lambda d: (d.x.array, d.y["b"]),
    ),
}


@pytest.mark.parametrize("name", READS)
def test_arrays_are_found_in_containers_and_records(name):
    make, read = READS[name]
    a, b = np.random.default_rng().standard_normal((2, 4, 8)).astype(np.float32)
    data = make(a, b)
    assert np.array_equal(difference(data, nl.subtract, read), a - b)
    assert read(data)[0] is a


def test_annotations_of_the_first_generation_do_not_make_a_kernel_old():
    assert old_typing.__name__ == "neuronxcc.nki.typing"
    assert not is_beta1(difference)
