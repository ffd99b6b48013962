"""Illegal operands: the code, and a text that leads to a legal kernel."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.nkisim.ops.instructions import Tile, call, hbm, psum

from nkisim.dtypes import DTYPES
from nkisim.errors import KernelError
from nkisim.ops import codes

BF16 = ml_dtypes.bfloat16


def t(*shape, dtype=np.float32):
    return np.zeros(shape, dtype=dtype)


T, C = t(128, 64), t(128, 1)
U8 = t(128, 64, dtype=np.uint8)
RANK5 = t(2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2)[:, ::2, :, ::2, :, ::2, :, ::2, :, ::2]
MM: dict[str, Any] = {"stationary": t(64, 32), "moving": t(64, 100)}
PAT: dict[str, Any] = {"pattern": ((1, 64),), "channel_multiplier": 0}

CASES: dict[str, Any] = {
    # shared rules
    "too many partitions": (
        "tensor_copy", codes.PARTITION_LIMIT, {"dst": t(129, 1), "src": t(129, 1)},
    ),
    "hbm operand": ("tensor_copy", codes.MEMORY, {"dst": T, "src": hbm(T)}),
    "hbm result": ("activation", codes.MEMORY, {"dst": hbm(T), "op": "exp", "data": T}),
    "partitions differ": ("tensor_copy", codes.PARTITIONS_DIFFER, {"dst": T, "src": T[:64]}),
    "elements differ": (
        "tensor_tensor", codes.FREE_SIZES_DIFFER, {"dst": T, "data1": T, "data2": C, "op": "add"},
    ),
    "rank": (
        "tensor_copy", codes.PATTERN_RANK, {"dst": t(2, RANK5[0].size), "src": RANK5},
    ),
    "both in psum": (
        "tensor_tensor", codes.BOTH_IN_PSUM,
        {"dst": T, "data1": psum(T), "data2": psum(T), "op": "add"},
    ),
    "gpsimd on psum": (
        "tensor_tensor", codes.GPSIMD_PSUM,
        {"engine": "gpsimd", "dst": T, "data1": psum(T), "data2": T, "op": "add"},
    ),
    # ops
    "divide": ("tensor_tensor", codes.OP, {"dst": T, "data1": T, "data2": T, "op": "divide"}),
    "divide by a number": (
        "tensor_scalar", codes.OP, {"dst": T, "data": T, "op0": "divide", "operand0": 2.0},
    ),
    "mixed classes": (
        "tensor_scalar", codes.OP,
        {"dst": U8, "data": U8, "op0": "bitwise_and", "operand0": 1, "op1": "add", "operand1": 1},
    ),
    "abs_max before v4": (
        "tensor_tensor", codes.OP, {"dst": T, "data1": T, "data2": T, "op": "abs_max"},
    ),
    "bits of floats": (
        "tensor_tensor", codes.DTYPE, {"dst": T, "data1": T, "data2": T, "op": "bitwise_or"},
    ),
    "negated bits": (
        "tensor_reduce", codes.OP,
        {"dst": U8[:, :1], "op": "bitwise_or", "data": U8, "axis": 1, "negate": True},
    ),
    "reverse0 of a reduction": (
        "tensor_scalar_reduce", codes.OP,
        {"dst": T, "data": T, "op0": "subtract", "operand0": 1.0, "reduce_op": "add",
         "reverse0": True},
    ),
    "square before v4": ("tensor_scalar", codes.OP, {"dst": T, "data": T, "op0": "square"}),
    "square in a reduction before v4": (
        "tensor_scalar_reduce", codes.OP,
        {"dst": T, "data": T, "op0": "square", "operand0": 0.0, "reduce_op": "add"},
    ),
    "operand of a unary op": (
        "tensor_scalar", codes.VALUE, {"dst": T, "data": T, "op0": "rsqrt", "operand0": 1e-6},
    ),
    "column of a unary op": (
        "tensor_scalar", codes.VALUE,
        {"dst": T, "data": T, "op0": "add", "operand0": 1e-6, "op1": "rsqrt", "operand1": C},
    ),
    "bits of a float column": (
        "tensor_scalar", codes.DTYPE,
        {"dst": U8, "data": U8, "op0": "bitwise_or", "operand0": C},
    ),
    # engines
    "scalar copy on v2": (
        "tensor_copy", codes.ENGINE, {"on": "trn1", "engine": "scalar", "dst": T, "src": T},
    ),
    "power on vector": (
        "tensor_tensor", codes.ENGINE,
        {"engine": "vector", "dst": T, "data1": T, "data2": T, "op": "power"},
    ),
    "scalar engine takes multiply and add": (
        "tensor_scalar", codes.ENGINE,
        {"engine": "scalar", "dst": T, "data": T, "op0": "maximum", "operand0": 0.0},
    ),
    "scalar engine on v2": (
        "tensor_scalar", codes.ENGINE,
        {"on": "trn1", "engine": "scalar", "dst": T, "data": T, "op0": "add", "operand0": 0.0},
    ),
    "gpsimd takes rsqrt": (
        "tensor_scalar", codes.ENGINE,
        {"engine": "gpsimd", "dst": T, "data": T, "op0": "add", "operand0": 0.0},
    ),
    "bits on gpsimd": (
        "tensor_tensor", codes.ENGINE,
        {"engine": "gpsimd", "dst": U8, "data1": U8, "data2": U8, "op": "bitwise_or"},
    ),
    "bits with a number on scalar": (
        "tensor_scalar", codes.ENGINE,
        {"engine": "scalar", "dst": U8, "data": U8, "op0": "bitwise_or", "operand0": 1},
    ),
    # columns and numbers
    "operand is no column": (
        "tensor_scalar", codes.NOT_A_COLUMN,
        {"dst": T, "data": T, "op0": "add", "operand0": T},
    ),
    "column of other rows": (
        "tensor_scalar", codes.PARTITIONS_DIFFER,
        {"dst": T, "data": T, "op0": "add", "operand0": C[:64]},
    ),
    "bfloat16 column": (
        "tensor_scalar", codes.COLUMN_DTYPE,
        {"dst": T, "data": T, "op0": "add", "operand0": t(128, 1, dtype=BF16)},
    ),
    "bfloat16 scale": (
        "activation", codes.COLUMN_DTYPE,
        {"dst": T, "op": "exp", "data": T, "scale": t(128, 1, dtype=BF16)},
    ),
    "tfloat32 bias": (
        "activation", codes.DTYPE,
        {"dst": T, "op": "exp", "data": T, "bias": Tile(C, dtype=DTYPES["tfloat32"])},
    ),
    "number as bias on v2": (
        "activation", codes.VALUE, {"on": "trn1", "dst": T, "op": "exp", "data": T, "bias": 1.0},
    ),
    "reduce_res is no column": (
        "activation_reduce", codes.NOT_A_COLUMN,
        {"dst": T, "op": "exp", "data": T, "reduce_op": "add", "reduce_res": t(128, 2)},
    ),
    "load_reduce on the scalar engine": (
        "activation", codes.OP, {"dst": T, "op": "exp", "data": T, "reduce_cmd": "load_reduce"},
    ),
    "operand missing": (
        "tensor_scalar", codes.MISSING_ARGUMENT, {"dst": T, "data": T, "op0": "add"},
    ),
    "op1 missing": (
        "tensor_scalar", codes.MISSING_ARGUMENT,
        {"dst": T, "data": T, "op0": "add", "operand0": 1.0, "operand1": 1.0},
    ),
    "memset of a fraction": (
        "memset", codes.VALUE, {"dst": t(2, 2, dtype=np.int32), "value": 0.5},
    ),
    "reduce_init without load_reduce": (
        "tensor_scalar_reduce", codes.VALUE,
        {"dst": T, "data": T, "op0": "add", "operand0": 1.0, "reduce_op": "add",
         "reduce_init": 1.0},
    ),
    "exponential starts without load_reduce": (
        "exponential", codes.VALUE, {"on": "trn3", "dst": T, "src": T, "reduce_init": 1.0},
    ),
    "cumulative that is idle": (
        "tensor_scalar_cumulative", codes.VALUE,
        {"dst": T, "src": T, "op0": "add", "op1": "add", "imm0": 0.0, "reduce_cmd": "idle"},
    ),
    # matmul and transposes
    "contraction": (
        "nc_matmul", codes.CONTRACTION,
        {"dst": psum(t(32, 100)), "stationary": t(64, 32), "moving": t(32, 100)},
    ),
    "moving too wide": (
        "nc_matmul", codes.FREE_SIZE_LIMIT,
        {"dst": psum(t(32, 513)), "stationary": t(64, 32), "moving": t(64, 513)},
    ),
    "stationary too wide": (
        "nc_matmul", codes.FREE_SIZE_LIMIT,
        {"dst": psum(t(128, 9)), "stationary": t(64, 129), "moving": t(64, 9)},
    ),
    "matmul result shape": ("nc_matmul", codes.RESULT_SHAPE, {"dst": psum(t(32, 99)), **MM}),
    "matmul into sbuf": ("nc_matmul", codes.MEMORY, {"dst": t(32, 100), **MM}),
    "matmul from psum": (
        "nc_matmul", codes.MEMORY,
        {"dst": psum(t(32, 100)), "stationary": psum(t(64, 32)), "moving": t(64, 100)},
    ),
    "float32 by bfloat16": (
        "nc_matmul", codes.MIXED_WIDTHS,
        {"dst": psum(t(32, 9)), "stationary": t(64, 32), "moving": t(64, 9, dtype=BF16)},
    ),
    "integer matmul": (
        "nc_matmul", codes.DTYPE,
        {"dst": psum(t(32, 9)), "stationary": t(64, 32, dtype=np.int32),
         "moving": t(64, 9, dtype=np.int32)},
    ),
    "e4m3fn before v4": (
        "nc_matmul", codes.DTYPE,
        {"dst": psum(t(32, 9)), "stationary": t(64, 32, dtype=ml_dtypes.float8_e4m3fn),
         "moving": t(64, 9, dtype=ml_dtypes.float8_e4m3fn)},
    ),
    "bfloat16 result before v4": (
        "nc_matmul", codes.DTYPE, {"dst": psum(t(32, 100, dtype=BF16)), **MM},
    ),
    "float16 result": (
        "nc_matmul", codes.DTYPE, {"on": "trn3", "dst": psum(t(32, 100, dtype=np.float16)), **MM},
    ),
    "two kinds of e4m3": (
        "nc_matmul", codes.MIXED_WIDTHS,
        {"on": "trn3", "dst": psum(t(32, 9)),
         "stationary": t(64, 32, dtype=ml_dtypes.float8_e4m3),
         "moving": t(64, 9, dtype=ml_dtypes.float8_e4m3fn)},
    ),
    "32 rows before v3": (
        "nc_matmul", codes.TILE_POSITION,
        {"on": "trn1", "dst": psum(t(32, 9)), "stationary": t(32, 32), "moving": t(32, 9),
         "tile_size": (32, 32), "tile_position": (0, 0)},
    ),
    "tile_size alone": (
        "nc_matmul", codes.TILE_POSITION, {"dst": psum(t(32, 100)), "tile_size": (64, 64), **MM},
    ),
    "tile off its grid": (
        "nc_matmul", codes.TILE_POSITION,
        {"dst": psum(t(32, 100)), "tile_size": (64, 32), "tile_position": (32, 0), **MM},
    ),
    "operand larger than its tile": (
        "nc_matmul", codes.TILE_POSITION,
        {"dst": psum(t(32, 100)), "tile_size": (32, 32), "tile_position": (0, 0), **MM},
    ),
    "large transpose in sbuf": (
        "nc_transpose", codes.TRANSPOSE_MEMORY, {"dst": t(64, 64), "data": t(64, 64)},
    ),
    "large transpose on vector": (
        "nc_transpose", codes.TRANSPOSE_SIZE,
        {"engine": "vector", "dst": t(64, 64), "data": t(64, 64)},
    ),
    "transpose too wide": (
        "nc_transpose", codes.TRANSPOSE_SIZE, {"dst": psum(t(129, 64)), "data": t(64, 129)},
    ),
    "transpose result shape": (
        "nc_transpose", codes.RESULT_SHAPE, {"dst": psum(t(64, 32)), "data": t(64, 32)},
    ),
    "transpose narrows": (
        "nc_transpose", codes.DTYPES_DIFFER,
        {"dst": psum(t(32, 64, dtype=BF16)), "data": t(64, 32)},
    ),
    # reductions, scans, statistics
    "reduce partitions": (
        "tensor_reduce", codes.REDUCED_AXES, {"dst": T, "op": "add", "data": T, "axis": 0},
    ),
    "reduce a leading free axis": (
        "tensor_reduce", codes.REDUCED_AXES,
        {"dst": t(4, 3), "op": "add", "data": t(4, 2, 3), "axis": 1},
    ),
    "reduce into too much": (
        "tensor_reduce", codes.FREE_SIZES_DIFFER, {"dst": T, "op": "add", "data": T, "axis": 1},
    ),
    "bn_stats too wide": (
        "bn_stats", codes.ELEMENT_RANGE, {"dst": t(4, 6), "data": t(4, 513)},
    ),
    "bn_stats result": ("bn_stats", codes.FREE_SIZES_DIFFER, {"dst": t(4, 2), "data": t(4, 9)}),
    "bn_aggr without triples": (
        "bn_aggr", codes.ELEMENT_RANGE, {"dst": t(4, 2), "data": t(4, 7)},
    ),
    "cumulative on int32": (
        "tensor_scalar_cumulative", codes.DTYPE,
        {"dst": T, "src": t(128, 64, dtype=np.int32), "op0": "add", "op1": "add", "imm0": 0.0},
    ),
    "scan from psum twice": (
        "tensor_tensor_scan", codes.BOTH_IN_PSUM,
        {"dst": T, "data0": psum(T), "data1": psum(T), "initial": 0.0, "op0": "multiply",
         "op1": "add"},
    ),
    # selection
    "max8 of seven": ("max8", codes.ELEMENT_RANGE, {"dst": t(4, 8), "src": t(4, 7)}),
    "max8 result": ("max8", codes.FREE_SIZES_DIFFER, {"dst": t(4, 7), "src": t(4, 9)}),
    "index dtype": (
        "nc_find_index8", codes.DTYPE, {"dst": t(4, 8), "data": t(4, 9), "vals": t(4, 8)},
    ),
    "signed predicate": (
        "tensor_copy_predicated", codes.DTYPE,
        {"dst": T, "src": T, "predicate": t(128, 64, dtype=np.int8)},
    ),
    "predicated copy casts": (
        "tensor_copy_predicated", codes.DTYPES_DIFFER,
        {"dst": T, "src": t(128, 64, dtype=BF16), "predicate": U8},
    ),
    "float predicate": (
        "select_reduce", codes.DTYPE, {"dst": T, "predicate": T, "on_true": T, "on_false": 0.0},
    ),
    "other false value": (
        "range_select", codes.VALUE,
        {"dst": T, "on_true_tile": T, "comp_op0": "less", "comp_op1": "less", "bound0": C,
         "bound1": C, "on_false_value": 0.0},
    ),
    "short shuffle mask": (
        "nc_stream_shuffle", codes.BAD_LIST, {"dst": T, "src": T, "shuffle_mask": (0, 1)},
    ),
    "shuffle mask entry": (
        "nc_stream_shuffle", codes.BAD_LIST, {"dst": T, "src": T, "shuffle_mask": (32,) * 32},
    ),
    "shuffle past src": (
        "nc_stream_shuffle", codes.PARTITIONS_DIFFER,
        {"dst": t(32, 4), "src": t(16, 4), "shuffle_mask": (*range(32),)},
    ),
    "shuffle that casts": (
        "nc_stream_shuffle", codes.DTYPES_DIFFER,
        {"dst": T, "src": t(128, 64, dtype=BF16), "shuffle_mask": (0,) * 32},
    ),
    "range of integers": (
        "range_select", codes.DTYPE,
        {"dst": T, "on_true_tile": t(128, 64, dtype=np.int32), "comp_op0": "less",
         "comp_op1": "less", "bound0": C, "bound1": C},
    ),
    "range beyond float32": (
        "range_select", codes.VALUE,
        {"dst": T, "on_true_tile": T, "comp_op0": "less", "comp_op1": "less", "bound0": C,
         "bound1": C, "range_start": 1 << 24},
    ),
    "select of int32": (
        "select_reduce", codes.DTYPE,
        {"dst": T, "predicate": U8, "on_true": t(128, 64, dtype=np.int32), "on_false": 0.0},
    ),
    "max8 of a long row": ("max8", codes.ELEMENT_RANGE, {"dst": t(1, 8), "src": t(1, 16385)}),
    "replaced index dtype": (
        "nc_match_replace8", codes.DTYPE,
        {"dst": T, "data": T, "vals": t(128, 8), "imm": 0.0, "dst_idx": t(128, 8)},
    ),
    # GpSimd
    "iota in psum": ("iota", codes.MEMORY, {"dst": psum(T), "pattern": ((1, 64),)}),
    "iota too short": ("iota", codes.BAD_LIST, {"dst": T, "pattern": ((1, 63),)}),
    "iota flat pattern": ("iota", codes.BAD_LIST, {"dst": T, "pattern": (1, 64)}),
    "affine_select sizes": (
        "affine_select", codes.FREE_SIZES_DIFFER,
        {"dst": T, "on_true_tile": t(128, 63), "on_false_value": 0.0, **PAT},
    ),
    "partition reduce result": (
        "tensor_partition_reduce", codes.PARTITIONS_DIFFER, {"dst": T, "op": "add", "data": T},
    ),
    "gather by int32": (
        "nc_n_gather", codes.DTYPE, {"dst": T, "data": T, "indices": t(128, 64, dtype=np.int32)},
    ),
    "local gather on 8 rows": (
        "local_gather", codes.PARTITIONS_DIFFER,
        {"dst": t(8, 16), "src_buffer": t(8, 9), "index": t(8, 1, dtype=np.uint16)},
    ),
    "local gather width": (
        "local_gather", codes.ELEMENT_RANGE,
        {"dst": t(16, 48), "src_buffer": t(16, 9), "index": t(16, 1, dtype=np.uint16),
         "num_elem_per_idx": 3},
    ),
    "local gather by uint32": (
        "local_gather", codes.DTYPE,
        {"dst": t(16, 16), "src_buffer": t(16, 9), "index": t(16, 1, dtype=np.uint32)},
    ),
    "gather that casts": (
        "nc_n_gather", codes.DTYPES_DIFFER,
        {"dst": T, "data": t(128, 64, dtype=BF16), "indices": t(128, 64, dtype=np.uint32)},
    ),
    # DMA, registers
    "dma from psum": ("dma_copy", codes.MEMORY, {"dst": hbm(T), "src": psum(T)}),
    "dma sizes": ("dma_copy", codes.SIZES_DIFFER, {"dst": T, "src": hbm(t(128, 63))}),
    "hardware cast": (
        "dma_copy", codes.DMA_CAST,
        {"dst": T, "src": hbm(t(128, 64, dtype=BF16)), "dge_mode": "hwdge"},
    ),
    "dma transpose shape": (
        "dma_transpose", codes.RESULT_SHAPE, {"dst": T, "src": hbm(T)},
    ),
    "dma transpose cast": (
        "dma_transpose", codes.DTYPES_DIFFER, {"dst": t(64, 128, dtype=BF16), "src": hbm(T)},
    ),
    "dma transpose axes": (
        "dma_transpose", codes.TRANSPOSE_SIZE, {"dst": T, "src": hbm(T), "axes": (0, 0)},
    ),
    "hardware transpose": (
        "dma_transpose", codes.TRANSPOSE_SIZE,
        {"dst": t(64, 128), "src": hbm(T), "dge_mode": "hwdge"},
    ),
    "too many sources": (
        "dma_compute", codes.BAD_LIST,
        {"dst": hbm(T), "srcs": [hbm(T)] * 17, "reduce_op": "add"},
    ),
    "scaled sources": (
        "dma_compute", codes.VALUE,
        {"dst": hbm(T), "srcs": [hbm(T), T], "reduce_op": "add", "scales": (1, 2)},
    ),
    "dma into too many partitions": (
        "dma_copy", codes.PARTITION_LIMIT, {"dst": t(256, 8), "src": hbm(t(256, 8))},
    ),
    "dma casts packed values": (
        "dma_copy", codes.DTYPE,
        {"dst": Tile(t(4, 4, dtype=np.uint32), dtype=DTYPES["float8_e4m3fn_x4"]),
         "src": hbm(t(4, 4))},
    ),
    "memset of a packed tile": (
        "memset", codes.VALUE,
        {"dst": Tile(t(4, 4, dtype=np.uint32), dtype=DTYPES["float8_e4m3fn_x4"]), "value": 1.0},
    ),
    "register from a row": ("register_load", codes.ONE_ELEMENT, {"dst": C[:1], "src": T[:1]}),
    "register without value": ("register_move", codes.MISSING_ARGUMENT, {"dst": C[:1]}),
}  # fmt: skip


@pytest.mark.parametrize(("op", "code", "arguments"), CASES.values(), ids=CASES)
def test_rule_is_kept(op, code, arguments):
    with pytest.raises(KernelError) as error:
        call(op, **arguments)
    assert error.value.code == code
    diagnostic = error.value.diagnostic
    assert diagnostic.message.startswith(op)
    assert diagnostic.got or diagnostic.allowed or diagnostic.hint
    assert len(str(error.value).splitlines()) <= 8


@pytest.mark.parametrize("dtype", [np.float32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("op", ["abs_max", "abs_min"])
def test_newest_ops_run_on_v4(op, dtype):
    a = np.array([[-3.0, 1.0]], dtype=np.float32)
    out = np.zeros_like(a, dtype=dtype)
    b = np.array([[2.0, -4.0]], dtype=np.float32)
    call("tensor_tensor", on="trn3", dst=out, data1=a, data2=b, op=op)
    assert out.tolist() == ([[-3, -4]] if op == "abs_max" else [[2, 1]])


def test_packed_dtypes_are_copied_and_not_computed_with():
    bits = np.arange(16, dtype=np.uint32).reshape(4, 4) * 0x01010101
    source = Tile(bits, dtype=DTYPES["float8_e4m3fn_x4"])
    copied = Tile(np.zeros_like(bits), dtype=DTYPES["float8_e4m3fn_x4"])
    call("tensor_copy", dst=copied, src=source)
    assert np.array_equal(copied.view, bits)
    with pytest.raises(KernelError) as error:
        call("tensor_copy", dst=t(4, 4), src=source)
    assert error.value.code == codes.DTYPES_DIFFER
    with pytest.raises(KernelError) as error:
        call("reciprocal", dst=t(4, 4), data=source)
    assert error.value.code == codes.DTYPE


def test_codes_are_distinct():
    values = [v for k, v in vars(codes).items() if k.isupper()]
    assert len(values) == len(set(values)) > 25
