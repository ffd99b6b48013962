"""Every row of the op table explains itself, and its example is a call of itself."""

import ast

import pytest

from nkisim.ops.registry import REQUIRED, OpTable, ParamKind
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
    assert spec.name in CHANGES_STATE or any(p.access != "r" for p in spec.params)
    for param in spec.params:
        if param.choices and param.kind is ParamKind.ENUM:
            assert param.default in param.choices


CHANGES_STATE = {"set_rng_seed", "rand_set_state"}
"""Instructions that write no tensor but the engine's random state."""
INDEX = [
    "get_nc_sub_version",
    "get_nc_version",
    "dma_copy",
    "tensor_copy",
    "memset",
    "tensor_copy_predicated",
    "nc_matmul",
    "nc_matmul_mx",
    "nc_transpose",
    "dma_transpose",
    "tensor_tensor",
    "tensor_scalar",
    "tensor_reduce",
    "tensor_partition_reduce",
    "tensor_scalar_cumulative",
    "activation",
    "activation_reduce",
    "activate2",
    "iota",
    "affine_select",
    "local_gather",
    "nc_n_gather",
    "bn_stats",
    "bn_aggr",
    "tensor_tensor_scan",
    "nc_stream_shuffle",
    "rng",
    "dropout",
    "set_rng_seed",
    "rand_set_state",
    "rand_get_state",
    "rand2",
    "exponential",
    "reciprocal",
    "max8",
    "sequence_bounds",
    "scalar_tensor_tensor",
    "tensor_scalar_reduce",
    "core_barrier",
    "dma_compute",
    "quantize_mx",
    "range_select",
    "select_reduce",
    "sendrecv",
    "register_alloc",
    "register_move",
    "register_load",
    "register_store",
    "nc_find_index8",
    "nc_match_replace8",
    "nonzero_with_count",
    "topk",
]
"""Every function of `nki.isa` 0.6."""
ASKED_OF_THE_HOST = {"get_nc_version", "get_nc_sub_version", "register_alloc"}
"""Functions that emit no instruction of their own."""


@pytest.mark.parametrize("name", INDEX)
def test_function_is_emulated_or_said_not_to_be(name):
    assert (name in OPS) + (name in UNSUPPORTED) + (name in ASKED_OF_THE_HOST) == 1


def test_every_row_and_every_refusal_is_a_function_of_nki():
    gone = {"tensor_copy_dynamic_src", "tensor_copy_dynamic_dst"}
    assert {spec.name for spec in OPS} - set(INDEX) == gone
    assert set(UNSUPPORTED) - set(INDEX) == {"builtin_custom_op"}
    assert all(UNSUPPORTED.values())


@ROWS
def test_signature_lists_the_current_parameters_in_order(spec):
    call = ast.parse(spec.signature, mode="eval").body
    assert isinstance(call, ast.Call)
    names = [ast.unparse(arg) for arg in call.args] + [str(k.arg) for k in call.keywords]
    assert names == [p.name for p in spec.params if p.until is None]


def test_two_rows_cannot_share_a_name():
    row = OPS["tensor_copy"]
    assert "tensor_copy" in OpTable([row])
    with pytest.raises(ValueError, match="share a name"):
        OpTable([row, row])
