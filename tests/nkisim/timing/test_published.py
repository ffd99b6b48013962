"""Emulated times against published figures, each with its source.

The tolerance is what the uncalibrated first model reaches, not what hardware spreads.
"""

import pytest
from tests.nkisim.kernels import (
    add_rows,
    exp_tile,
    hoisted_matmul,
    nisa,
    nl,
    profile,
    tensor,
    tiled_matmul,
)

LAUNCH_US = 10.0


def test_vector_adds_run_at_the_issue_rate_of_one_queue():
    # CS149 asst4-trainium2 write-up: 200 iterations of three small copies, 378 us.
    found = profile(add_rows, tensor((25600, 1)), tensor((25600, 1)))
    assert found.latency_ns / 1000 == pytest.approx(378, rel=0.05)
    assert found.binding == "dma issue"


def test_one_tile_vector_add_is_mostly_fixed_cost():
    # CS149 asst4-trainium2 write-up: one iteration, 15 us.
    found = profile(add_rows, tensor((128, 1)), tensor((128, 1)))
    assert found.latency_ns / 1000 == pytest.approx(15, rel=0.2)


def test_load_exp_store_of_four_rows():
    # Introduction to DMA with NKI, profile picture: 9.9 us without the launch.
    found = profile(exp_tile, tensor((4, 4096), "bfloat16"))
    assert found.latency_ns / 1000 - LAUNCH_US == pytest.approx(9.9, rel=0.1)


def test_tiled_float32_matmul_is_bound_by_issuing_copies():
    # Kernel optimization guide: 66,048 copies in 39.89 ms, 0.604 us each.
    found = profile(tiled_matmul, tensor((2048, 1024)), tensor((2048, 2048)))
    per_copy = (found.latency_ns / 1000 - LAUNCH_US) / found.work.dma_count
    assert per_copy == pytest.approx(0.604, rel=0.1)
    assert found.binding == "dma issue"


def test_hoisted_float32_matmul_is_bound_by_the_tensor_engine():
    # Kernel optimization guide: 32,768 matmuls of 512 columns in 28.2 ms, 861 ns each.
    found = profile(hoisted_matmul, tensor((2048, 1024)), tensor((2048, 2048)))
    matmuls = 8 * 4 * 16
    busy_ns = found.busy["tensor"] * (found.latency_ns - LAUNCH_US * 1000)
    assert busy_ns / matmuls == pytest.approx(28.2e6 / 32768, rel=0.01)
    assert found.binding == "tensor"


def test_bfloat16_matmul_keeps_the_published_share_of_the_tensor_engine():
    # nki-autotune: 2048 cubed at 90.9 % MFU, 240 us of Tensor Engine time.
    operand = tensor((2048, 2048), "bfloat16")
    found = profile(hoisted_matmul, operand, operand)
    busy_us = found.busy["tensor"] * (found.latency_ns / 1000 - LAUNCH_US)
    assert busy_us == pytest.approx(240, rel=0.01)
    assert found.binding == "tensor"


def test_one_element_copies_run_at_the_issue_rate():
    # CS149 asst4-trainium2 write-up: 76,800 copies of 4 bytes, 0.486 us each.  The issue interval
    # is the one of larger copies, 0.604 us; nothing else may come on top.
    def kernel(a, b):
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        for i in range(a.shape[0]):
            row = slice(i, i + 1)
            x = nl.ndarray((1, 1), dtype=a.dtype, buffer=nl.sbuf)
            y = nl.ndarray((1, 1), dtype=a.dtype, buffer=nl.sbuf)
            z = nl.ndarray((1, 1), dtype=a.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=x, src=a[row, :])
            nisa.dma_copy(dst=y, src=b[row, :])
            nisa.tensor_tensor(dst=z, data1=x, data2=y, op=nl.add)
            nisa.dma_copy(dst=out[row, :], src=z)
        return out

    found = profile(kernel, tensor((256, 1)), tensor((256, 1)))
    per_copy = (found.latency_ns / 1000 - LAUNCH_US) / found.work.dma_count
    assert 0.486 <= per_copy <= 0.62


def _per_repeat_us(kernel_of, operand, machine="trn1"):
    """Time that one more repetition adds."""
    short, long = (profile(kernel_of(n), operand, machine=machine).latency_ns for n in (16, 48))
    return (long - short) / 32 / 1000


def _scan_steps(with_input_product):
    """Inner loop of the fused mamba tutorial: B and C from PSUM, everything else in SBUF."""

    def kernel_of(steps):
        def kernel(a):
            out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
            u = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
            total = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
            b = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.psum)
            c = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.psum)
            nisa.dma_copy(dst=u, src=a)
            for tile in (total, b, c):
                nisa.tensor_copy(dst=tile, src=u)
            for _ in range(steps):
                w = u
                if with_input_product:
                    w = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
                    nisa.tensor_tensor(dst=w, data1=u, data2=total, op=nl.multiply)
                x = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
                h = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
                y = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
                nisa.tensor_tensor(dst=x, data1=w, data2=b, op=nl.multiply)
                nisa.tensor_tensor_scan(
                    dst=h, data0=u, data1=x, initial=0.0, op0=nl.multiply, op1=nl.add
                )
                nisa.tensor_tensor(dst=y, data1=h, data2=c, op=nl.multiply)
                nisa.tensor_tensor(dst=total, data1=total, data2=y, op=nl.add)
            nisa.dma_copy(dst=out, src=total)
            return out

        return kernel

    return kernel_of


@pytest.mark.parametrize(
    ("with_input_product", "published_us"),
    # Fused Mamba tutorial, 4096 channels, 512 steps: v2 1.61 ms; v1 4.16 us of Vector Engine work.
    [(False, 3.1), (True, 4.16)],
    ids=["v2", "v1"],
)
def test_mamba_steps_on_trn1(with_input_product, published_us):
    step = _per_repeat_us(_scan_steps(with_input_product), tensor((128, 512)))
    assert step == pytest.approx(published_us, rel=0.03)


def test_dependent_activations_on_trn1():
    # NKI performance guide, figure: a chain of one-element instructions, 189 ns each.
    def kernel_of(links):
        def kernel(a):
            out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
            x = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=x, src=a)
            for _ in range(links):
                nisa.activation(dst=x, op=nl.exp, data=x)
            nisa.dma_copy(dst=out, src=x)
            return out

        return kernel

    assert _per_repeat_us(kernel_of, tensor((128, 1))) == pytest.approx(0.189, rel=0.01)


def test_bfloat16_matmul_on_trn1():
    # Autocomp and the NKI matmul tutorial: 32,768 matmuls of 512 columns in 6.96 ms.
    operands = tensor((2048, 1024), "bfloat16"), tensor((2048, 2048), "bfloat16")
    found = profile(hoisted_matmul, *operands, machine="trn1")
    busy_ns = found.busy["tensor"] * (found.latency_ns - found.launch_ns)
    assert busy_ns / (8 * 4 * 16) == pytest.approx(6.96e6 / 32768, rel=0.05)
