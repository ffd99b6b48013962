"""Every row of the op table explains itself, and its example is a call of itself."""

import ast

import pytest

from nkisim.ops.registry import REQUIRED, ParamKind
from nkisim.ops.table import OPS
from nkisim.ops.unsupported import UNSUPPORTED

ROWS = pytest.mark.parametrize("spec", OPS, ids=lambda spec: spec.name)


@ROWS
def test_row_is_documented(spec):
    assert spec.summary.endswith(".")
    assert spec.semantics
    assert spec.rules
    assert spec.source.startswith("NKI")
    assert spec.engines


@ROWS
def test_example_is_a_call_with_known_arguments(spec):
    call = ast.parse(spec.example, mode="eval").body
    assert isinstance(call, ast.Call)
    assert ast.unparse(call.func) == f"nisa.{spec.name}"
    named = {keyword.arg for keyword in call.keywords}
    current = [p for p in spec.params if p.until is None]
    assert named <= {p.name for p in current}
    required = {p.name for p in current if p.default is REQUIRED}
    assert required <= named | {p.name for p in current[: len(call.args)]}


@ROWS
def test_parameters_are_consistent(spec):
    names = [p.name for p in spec.params]
    assert len(names) == len(set(names))
    assert any(p.access != "r" for p in spec.params)
    for param in spec.params:
        if param.choices and param.kind is ParamKind.ENUM:
            assert param.default in param.choices


@pytest.mark.parametrize(
    "name",
    [
        "dma_copy dma_transpose dma_compute tensor_copy memset tensor_copy_predicated nc_matmul "
        "nc_transpose tensor_tensor tensor_scalar scalar_tensor_tensor tensor_reduce "
        "tensor_partition_reduce tensor_scalar_reduce tensor_scalar_cumulative "
        "tensor_tensor_scan activation activation_reduce reciprocal iota affine_select bn_stats "
        "bn_aggr nc_stream_shuffle max8 nc_find_index8 nc_match_replace8 range_select "
        "select_reduce nc_n_gather local_gather exponential register_move register_load "
        "register_store"
    ][0].split(),
)
def test_instruction_is_emulated(name):
    assert name in OPS


def test_nothing_is_both_emulated_and_unsupported():
    assert not {spec.name for spec in OPS} & set(UNSUPPORTED)
    assert {"nc_matmul_mx", "quantize_mx", "dropout", "sendrecv", "topk"} <= set(UNSUPPORTED)
