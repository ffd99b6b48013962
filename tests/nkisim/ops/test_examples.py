"""Every example of the op table is legal NKI: it traces, validates and runs."""

import numpy as np
import pytest

import nkisim
from nkisim.api import run_standalone
from nkisim.dtypes import DTYPES
from nkisim.execute.interpreter import execute
from nkisim.execute.validate import validate
from nkisim.frontend.arguments import TensorSpec
from nkisim.frontend.trace import NKI_VERSIONS, trace_kernel
from nkisim.machine.load import load_machine
from nkisim.ops.table import OPS

nkisim.install()

import nki.isa as nisa  # type: ignore[import-not-found]  # noqa: E402 - served by nkisim.install()
import nki.language as nl  # type: ignore[import-not-found]  # noqa: E402

COLUMN, ROW = (128, 1), (128, 512)
TILES: dict[str, dict[str, tuple[int, ...]]] = {
    "dma_transpose": {"tile_fxp": (64, 128)},
    "nc_matmul": {"acc": ROW, "a_kxm": (128, 128), "b_kxn": ROW},
    "nc_transpose": {"psum_tile": (128, 128), "sbuf_tile": (128, 128)},
    "reciprocal": {"inverse": COLUMN, "total": COLUMN},
    "tensor_scalar": {"scale": COLUMN},
    "scalar_tensor_tensor": {"rstd": COLUMN},
    "tensor_scalar_reduce": {"total": COLUMN},
    "exponential": {"row_max": COLUMN, "total": COLUMN},
    "activation": {"negative_max": COLUMN},
    "activation_reduce": {"sum_of_squares": COLUMN},
    "tensor_reduce": {"row_max": COLUMN},
    "bn_stats": {"stats": (128, 6), "x": (128, 1024)},
    "bn_aggr": {"mean_var": (128, 2), "stats": (128, 12)},
    "max8": {"top": (128, 8)},
    "nc_find_index8": {"top": (128, 8), "where_u32": (128, 8)},
    "nc_match_replace8": {"top": (128, 8)},
    "range_select": {"low": COLUMN, "high": COLUMN},
    "local_gather": {"picked": (128, 512), "idx_u16": (128, 32)},
    "quantize_mx": {"w_bf16": (128, 512), "w_e4m3x4": (128, 128), "w_scale_u8": (128, 128)},
    "nc_matmul_mx": {
        "acc": ROW,
        "w_e4m3x4": (128, 128),
        "w_scale_u8": (128, 128),
        "x_e4m3x4": ROW,
        "x_scale_u8": ROW,
    },
    "activate2": {"row_max": COLUMN, "total": COLUMN},
    "set_rng_seed": {"seed_u32": (1, 1)},
    "rand_set_state": {"state_u32": (128, 6)},
    "rand_get_state": {"state_u32": (128, 6)},
    "sequence_bounds": {"bounds_i32": (1, 2, 512), "ids_i32": (1, 512)},
    "nonzero_with_count": {"places_i32": (128, 513)},
    "topk": {"top_bf16": (128, 8), "where_u32": (128, 8)},
    "tensor_copy_dynamic_src": {"part": (128, 64)},
    "tensor_copy_dynamic_dst": {"part": (128, 64)},
}
"""Shapes of the names in an example that are not 128 rows of 512."""
IN_HBM = {"dma_copy": ("x",), "dma_transpose": ("x",), "dma_compute": ("a", "y")}
FILLS = {"uint32": 0, "uint16": 0, "int32": 2, "float8_e4m3fn_x4": 0}


def dtype_of(name):
    suffix = name.rpartition("_")[2]
    known = {"u8": "uint8", "u16": "uint16", "u32": "uint32", "i32": "int32"}
    known |= {"bf16": "bfloat16", "e4m3x4": "float8_e4m3fn_x4"}
    return known.get(suffix, "int32" if name == "count" else "float32")


def tile(op, name):
    """Allocate what `name` stands for in the example of `op`, written once."""
    shape = TILES.get(op, {}).get(name, ROW)
    dtype = getattr(nl, dtype_of(name))
    if name in IN_HBM.get(op, ()):
        made = (
            nl.ndarray((512, 512), dtype=dtype, buffer=nl.shared_hbm)
            if name == "x"
            else (nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm))
        )
        source = nl.ndarray((128, 512), dtype=dtype, buffer=nl.sbuf)
        nisa.memset(dst=source, value=1.0)
        for row in range(0, made.shape[0], 128):
            nisa.dma_copy(dst=made[row : row + 128, :], src=source)
        return made
    is_psum = name in ("psum_tile", "acc")
    made = nl.ndarray(shape, dtype=dtype, buffer=nl.psum if is_psum else nl.sbuf)
    if name != "acc":
        nisa.memset(dst=made, value=FILLS.get(dtype_of(name), 1))
    return made


class Names(dict[str, object]):
    """Makes what an example names when it is named."""

    def __init__(self, op):
        super().__init__(nisa=nisa, nl=nl, i=1, row=128, column=64)
        self.op = op

    def __missing__(self, name):
        self[name] = nisa.register_alloc(5) if name == "r" else tile(self.op, name)
        return self[name]


def kernel_of(spec):
    def kernel(argument):
        out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
        eval(spec.example, {}, Names(spec.name))
        done = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=done, src=argument)
        nisa.dma_copy(dst=out, src=done)
        return out

    return kernel


@pytest.mark.parametrize("spec", OPS, ids=lambda spec: spec.name)
@pytest.mark.parametrize("version", [None, NKI_VERSIONS[-1]], ids=["every-dialect", "newest"])
def test_example_runs(spec, version):
    if version is not None and spec.until is not None:
        pytest.skip(f"{spec.name} is not part of NKI {version}")
    machine = load_machine("trn3" if spec.min_generation > 3 else "trn2")
    argument = np.ones((128, 512), dtype=np.float32)
    traced = trace_kernel(
        kernel_of(spec),
        (TensorSpec(argument.shape, DTYPES["float32"]),),
        machine=machine,
        version=version,
        run=run_standalone,
    )
    program = traced.program
    assert spec.name in {form.op for form in program.forms}
    validate(program, machine)
    assert np.array_equal(execute(program, [argument]).outputs[0], argument)
