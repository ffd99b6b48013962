"""Costs by order and ratio, never a magic number of cycles."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.nkisim.ops.instructions import cost, hbm, machine, psum

BF16 = ml_dtypes.bfloat16
N = 4096


def t(*shape, dtype=np.float32):
    return np.zeros(shape, dtype=dtype)


F, B = t(128, N), t(128, N, dtype=BF16)


def interval(name, **arguments):
    return cost(name, **arguments).interval


def work(name, on="trn2", **arguments):
    """Cycles without the fixed part."""
    return interval(name, on=on, **arguments) - machine(on).dve.overhead_cycles


def test_vector_copies_have_fast_modes_on_v3():
    wide = work("tensor_copy", dst=F, src=F)
    assert work("tensor_copy", dst=B, src=B) == wide / 4
    assert work("tensor_copy", dst=B, src=psum(B)) == wide / 2
    assert work("tensor_copy", dst=B, src=F) == wide
    v2 = work("tensor_copy", on="trn1", dst=F, src=F)
    assert work("tensor_copy", on="trn1", dst=B, src=B) == v2


def test_two_narrow_inputs_double_the_rate():
    wide = work("tensor_tensor", dst=F, data1=F, data2=F, op="add")
    assert work("tensor_tensor", dst=B, data1=B, data2=B, op="add") == wide / 2
    one_wide = work("tensor_tensor", dst=B, data1=B, data2=F, op="add")
    assert one_wide == wide


def test_v2_reads_two_sbuf_inputs_at_half_rate():
    both = work("tensor_tensor", on="trn1", dst=F, data1=F, data2=F, op="add")
    mixed = work("tensor_tensor", on="trn1", dst=F, data1=psum(F), data2=F, op="add")
    assert both == 2 * mixed
    assert work("tensor_tensor", on="trn1", dst=B, data1=B, data2=B, op="add") == mixed
    assert work("tensor_tensor", on="trn1", dst=B, data1=B, data2=B, op="maximum") == both


@pytest.mark.parametrize("step", [4, 8])
def test_wide_strides_halve_the_port_rate(step):
    strided = t(128, 1024 * step)[:, ::step]
    plain = t(128, 1024)
    assert work("tensor_copy", dst=plain, src=strided) == 2 * work(
        "tensor_copy", dst=plain, src=plain
    )


def test_partitions_are_free():
    assert interval("tensor_copy", dst=F, src=F) == interval("tensor_copy", dst=F[:1], src=F[:1])


def test_short_instructions_pay_the_minimum():
    tiny = interval("tensor_copy", dst=t(128, 1), src=t(128, 1))
    assert tiny == interval("tensor_copy", dst=t(128, 64), src=t(128, 64))
    assert tiny < interval("tensor_copy", dst=t(128, 65), src=t(128, 65))


def test_float32_matmuls_take_four_passes():
    def matmul(dtype, n=512):
        arguments: dict[str, Any] = {
            "stationary": t(128, 128, dtype=dtype),
            "moving": t(128, n, dtype=dtype),
        }
        return cost("nc_matmul", dst=psum(t(128, n)), **arguments)

    pe = machine("trn2").pe
    narrow = matmul(BF16).interval - pe.overhead_cycles
    assert matmul(np.float32).interval - pe.overhead_fp32_cycles == 4 * narrow
    assert matmul(BF16).flops == matmul(np.float32).flops == 2 * 128 * 128 * 512
    assert matmul(BF16, 256).interval - pe.overhead_cycles == narrow / 2
    assert matmul(BF16).latency > matmul(BF16).interval


def test_matmul_time_ignores_the_contraction():
    full: dict[str, Any] = {
        "stationary": t(128, 128, dtype=BF16),
        "moving": t(128, 512, dtype=BF16),
    }
    short = {name: tile[:8] for name, tile in full.items()}
    dst = psum(t(128, 512))
    assert (
        cost("nc_matmul", dst=dst, **full).interval == cost("nc_matmul", dst=dst, **short).interval
    )


def test_float32_transposes_are_slower():
    def transpose(dtype):
        return interval(
            "nc_transpose", dst=psum(t(128, 128, dtype=dtype)), data=t(128, 128, dtype=dtype)
        )

    assert transpose(np.float32) > transpose(BF16)


def test_activation_names_its_table():
    assert cost("activation", dst=F, op="exp", data=F).table == "exp"
    assert cost("activation", dst=F, op="copy", data=F).table is None


def test_scale_and_bias_are_free_and_reading_the_sum_is_not():
    plain = interval("activation", dst=F, op="exp", data=F)
    column = t(128, 1)
    assert interval("activation", dst=F, op="exp", data=F, scale=column, bias=column) == plain
    summed: dict[str, Any] = {"reduce_op": "add", "reduce_res": column}
    assert interval("activation_reduce", dst=F, op="exp", data=F, **summed) > plain


def test_narrow_activations_run_faster_on_v4_only():
    for on, factor in (("trn2", 1), ("trn3", 2)):
        fixed = machine(on).act.overhead_cycles
        wide = interval("activation", on=on, dst=F, op="exp", data=F) - fixed
        narrow = interval("activation", on=on, dst=B, op="exp", data=B) - fixed
        assert wide == factor * narrow


def test_vector_exponential_is_four_times_as_fast():
    arguments: dict[str, Any] = {"on": "trn3", "dst": F, "src": F}
    assert work("exponential", **arguments) == N / 4


def test_reductions_of_narrow_values_are_faster():
    column, narrow = t(128, 1), t(128, 1, dtype=BF16)
    wide = work("tensor_reduce", dst=column, op="add", data=F, axis=1)
    assert work("tensor_reduce", dst=narrow, op="add", data=B, axis=1) == wide / 2
    assert work("tensor_reduce", dst=narrow, op="minimum", data=B, axis=1) == wide


def test_order_of_slow_instructions():
    copy = work("tensor_copy", dst=F, src=F)
    scan: dict[str, Any] = {"data0": F, "data1": F, "initial": 0.0, "op0": "multiply", "op1": "add"}
    assert copy < work("tensor_tensor_scan", dst=F, **scan) < work("reciprocal", dst=F, data=F)
    gpsimd = cost("iota", dst=F, pattern=((1, N),))
    assert gpsimd.interval > machine("trn2").pool.start_cycles


def test_zeroing_narrow_tiles_is_twice_as_fast():
    assert work("memset", dst=B, value=0.0) == work("memset", dst=B, value=1.0) / 2
    assert work("memset", dst=F, value=0.0) == work("memset", dst=F, value=1.0)


def test_predicated_copies_prefer_two_memories():
    flags = t(128, N, dtype=np.uint8)
    mixed = work("tensor_copy_predicated", dst=F, src=psum(F), predicate=flags)
    assert work("tensor_copy_predicated", dst=F, src=F, predicate=flags) == 2 * mixed


def test_scalar_ops_have_the_fast_modes_of_copies():
    scale: dict[str, Any] = {"op0": "multiply", "operand0": 2.0}
    wide = work("tensor_scalar", dst=F, data=F, **scale)
    assert work("tensor_scalar", dst=B, data=B, **scale) == wide / 4
    assert work("tensor_scalar", dst=psum(B), data=B, **scale) == wide / 2
    assert work("tensor_scalar", dst=B, data=B, op1="add", operand1=1.0, **scale) == wide / 4


def test_a_step_of_two_costs_the_narrow_copy_half_of_its_speed():
    spread = t(128, 2 * N, dtype=BF16)[:, ::2]
    assert work("tensor_copy", dst=B, src=spread) == 2 * work("tensor_copy", dst=B, src=B)


@pytest.mark.parametrize("engine", ["vector", "scalar", "gpsimd"])
def test_every_engine_copies_at_a_cost_that_grows_with_the_row(engine):
    short = interval("tensor_copy", engine=engine, dst=F[:, :1024], src=F[:, :1024])
    assert interval("tensor_copy", engine=engine, dst=F, src=F) > 2 * short


def test_gpsimd_rsqrt_is_slower_than_the_scalar_engines():
    slow = interval("tensor_scalar", dst=F, data=F, op0="rsqrt") / machine("trn2").pool.clock_ghz
    fast = interval("activation", dst=F, data=F, op="rsqrt") / machine("trn2").act.clock_ghz
    assert slow > 3 * fast


@pytest.mark.parametrize(
    ("rows", "engines"), [(1, 1), (8, 1), (9, 2), (64, 8), (120, 15), (128, 16)]
)
def test_copies_spread_over_engines_by_partitions(rows, engines):
    x = t(rows, 512)
    for way in ({"dst": x, "src": hbm(x)}, {"dst": hbm(x), "src": x}):
        assert cost("dma_copy", **way).engines_used == engines


def test_copies_within_hbm_spread_by_size():
    small, large = hbm(t(1, 64)), hbm(t(1024, 4096))
    assert cost("dma_copy", dst=small, src=small).engines_used == 1
    assert cost("dma_copy", dst=large, src=large).engines_used == 16


def test_broadcast_loads_move_as_much_as_plain_ones():
    row = np.broadcast_to(t(1, 512), (128, 512))
    broadcast = cost("dma_copy", dst=t(128, 512), src=hbm(row))
    plain = cost("dma_copy", dst=t(128, 512), src=hbm(t(128, 512)))
    assert broadcast == plain


def test_short_runs_need_more_descriptors():
    tile = t(128, 512)
    whole = cost("dma_copy", dst=tile, src=hbm(tile))
    pieces = cost("dma_copy", dst=tile, src=hbm(t(128, 1024)[:, ::2]))
    assert pieces.descriptors == 512 * whole.descriptors
    assert pieces.bytes_read == whole.bytes_read


def test_reading_the_accumulator_costs_extra():
    plain = interval("tensor_scalar", dst=F, data=F, op0="add", operand0=1.0)
    summed = interval(
        "tensor_scalar_reduce",
        dst=F,
        data=F,
        op0="add",
        operand0=1.0,
        reduce_op="add",
        reduce_res=t(128, 1),
    )
    assert summed == plain + machine("trn2").dve.accumulator_read_cycles


def test_small_matmuls_pay_the_minimum_and_the_load_of_the_weights():
    def matmul(k, m, n):
        return interval(
            "nc_matmul",
            dst=psum(t(m, n)),
            stationary=t(k, m, dtype=BF16),
            moving=t(k, n, dtype=BF16),
        )

    assert matmul(128, 128, 1) == matmul(1, 1, 1) == matmul(128, 128, 64)
    assert matmul(128, 128, 128) > matmul(128, 128, 64)
