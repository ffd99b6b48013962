"""Each rule speaks about the kernel that has the fault and is silent about its repaired twin."""

import pytest
from tests.nkisim.kernels import (
    add_rows,
    add_rows_one_buffer,
    hoisted_matmul,
    nisa,
    nl,
    profile,
    tensor,
    tiled_matmul,
)

from nkisim.profile.insight_rules import RULES
from nkisim.profile.insights import insights
from nkisim.profile.what_if import what_if

P = 128


def _tile(shape, dtype=nl.float32, buffer=nl.sbuf):
    return nl.ndarray(shape, dtype=dtype, buffer=buffer)


def _rows(kernel_step):
    """A kernel that takes row tiles [128, d] through a step that returns what is stored."""

    def kernel(a):
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        for start in range(0, a.shape[0], P):
            x = _tile((P, a.shape[1]), a.dtype)
            nisa.dma_copy(dst=x, src=a[start : start + P, :])
            nisa.dma_copy(dst=out[start : start + P, :], src=kernel_step(x))
        return out

    return kernel


def _transpose_every_time(x):
    """Each block is transposed on the Tensor Engine and copied out."""
    y = _tile(x.shape, x.dtype)
    for _ in range(64):
        turned = _tile((P, P), x.dtype, nl.psum)
        nisa.nc_transpose(dst=turned, data=x[:, 0:P], engine=nisa.engine.tensor)
    nisa.tensor_copy(dst=y[:, 0:P], src=turned)
    nisa.tensor_copy(dst=y[:, P:], src=x[:, P:])
    return y


def _matmuls(is_outside):
    """Products that are evicted from one accumulator, or from one each."""

    def kernel(a):
        out = nl.ndarray((P, a.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
        x = _tile((P, a.shape[1]), a.dtype)
        nisa.dma_copy(dst=x, src=a)
        one = _tile((P, 512), nl.float32, nl.psum)
        for _ in range(16):
            acc = one if is_outside else _tile((P, 512), nl.float32, nl.psum)
            nisa.nc_matmul(dst=acc, stationary=x[:, 0:P], moving=x[:, 0:512], accumulate=False)
            y = _tile((P, 512))
            nisa.tensor_copy(dst=y, src=acc)
        nisa.dma_copy(dst=out[:, 0:512], src=y)
        nisa.dma_copy(dst=out[:, 512:], src=x[:, 512:])
        return out

    return kernel


def _two_functions(second):
    def step(x):
        for _ in range(4):
            y, z = _tile(x.shape), _tile(x.shape)
            nisa.activation(dst=y, op=nl.exp, data=x)
            nisa.activation(dst=z, op=second, data=y)
            x = z
        return x

    return _rows(step)


def _partitions(count):
    def kernel(a):
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        x = _tile((count, a.shape[1]))
        nisa.dma_copy(dst=x, src=a)
        for _ in range(32):
            nisa.tensor_scalar(dst=x, data=x, op0=nl.add, operand0=1.0)
        nisa.dma_copy(dst=out, src=x)
        return out

    return profile(kernel, tensor((count, 2048)))


def _pieces(width):
    def step(x):
        y = _tile(x.shape)
        for start in range(0, x.shape[1], width):
            piece = slice(start, start + width)
            nisa.tensor_scalar(dst=y[:, piece], data=x[:, piece], op0=nl.add, operand0=1.0)
        return y

    return profile(_rows(step), tensor((512, 1024)))


def _through_hbm(is_scratch):
    def kernel(a):
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        scratch = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.private_hbm)
        x, y = _tile(a.shape), _tile(a.shape)
        nisa.dma_copy(dst=x, src=a)
        nisa.activation(dst=y, op=nl.exp, data=x)
        if is_scratch:
            nisa.dma_copy(dst=scratch, src=y)
            nisa.dma_copy(dst=y, src=scratch)
        nisa.dma_copy(dst=out, src=y)
        return out

    return profile(kernel, tensor((P, 4096)))


def _row_sums(is_riding):
    def step(x):
        e, y = _tile(x.shape), _tile(x.shape)
        total = _tile((P, 1))
        if is_riding:
            nisa.activation_reduce(
                dst=e, op=nl.exp, data=x, reduce_op=nl.add, reduce_res=total, bias=None
            )
        else:
            nisa.activation(dst=e, op=nl.exp, data=x)
            nisa.tensor_reduce(dst=total, op=nl.add, data=e, axis=1)
        nisa.tensor_scalar(dst=y, data=e, op0=nl.multiply, operand0=total)
        return y

    return profile(_rows(step), tensor((1024, 4096)))


def _said(found, words):
    return any(words in i.condition for i in insights(found, limit=len(RULES)))


def _matmul_of(kernel, dtype):
    return profile(kernel, tensor((1024, 1024), dtype), tensor((1024, 1024), dtype))


CASES = {
    "transposes": (
        "goes into transposes",
        lambda: profile(_rows(_transpose_every_time), tensor((P, 256), "bfloat16")),
        lambda: _matmul_of(hoisted_matmul, "bfloat16"),
    ),
    "eviction": (
        "PSUM to be evicted",
        lambda: profile(_matmuls(True), tensor((P, 1024), "bfloat16")),
        lambda: _matmul_of(hoisted_matmul, "bfloat16"),
    ),
    "tables": (
        "activation tables are loaded",
        lambda: profile(_two_functions(nl.tanh), tensor((512, 128))),
        lambda: profile(_two_functions(nl.exp), tensor((512, 128))),
    ),
    "partitions": ("of 128 partitions", lambda: _partitions(16), lambda: _partitions(P)),
    "short": ("fewer than", lambda: _pieces(16), lambda: _pieces(1024)),
    "repeated loads": (
        "are read from HBM",
        lambda: _matmul_of(tiled_matmul, "float32"),
        lambda: _matmul_of(hoisted_matmul, "float32"),
    ),
    "round trip": ("read back from HBM", lambda: _through_hbm(True), lambda: _through_hbm(False)),
    "row sums": ("a pass of their own", lambda: _row_sums(False), lambda: _row_sums(True)),
    "float32": (
        "float32 matmuls",
        lambda: _matmul_of(hoisted_matmul, "float32"),
        lambda: _matmul_of(hoisted_matmul, "bfloat16"),
    ),
    "launch": (
        "fixed launch cost",
        lambda: profile(add_rows, tensor((P, 64)), tensor((P, 64))),
        lambda: profile(add_rows, tensor((4096, 2048)), tensor((4096, 2048))),
    ),
    "reuse": (
        "free again",
        lambda: profile(add_rows_one_buffer, tensor((1024, 2048)), tensor((1024, 2048))),
        lambda: profile(add_rows, tensor((1024, 2048)), tensor((1024, 2048))),
    ),
    "issue": (
        "DMA issue is busy",
        lambda: _matmul_of(tiled_matmul, "bfloat16"),
        lambda: _matmul_of(hoisted_matmul, "bfloat16"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_fault_is_pointed_out_and_its_repair_is_not(name):
    words, faulty, repaired = CASES[name]
    assert _said(faulty(), words)
    assert not _said(repaired(), words)


def test_a_finding_that_could_bring_nothing_is_left_out():
    found = _matmul_of(tiled_matmul, "float32")
    gains = what_if(found)
    with_gains = insights(found, limit=len(RULES), gains=gains)
    assert all(i.gain_ns is None or i.gain_ns > 0 for i in with_gains)
    numbers = [i.gain_ns or 0.0 for i in with_gains]
    assert numbers == sorted(numbers, reverse=True)
    assert len(with_gains) <= len(insights(found, limit=len(RULES)))
