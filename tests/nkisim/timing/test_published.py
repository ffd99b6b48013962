"""Emulated times against published figures, each with its source.

The tolerance is what the uncalibrated first model reaches, not what hardware spreads.
"""

import pytest
from tests.nkisim.kernels import (
    add_rows,
    exp_tile,
    hoisted_matmul,
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
