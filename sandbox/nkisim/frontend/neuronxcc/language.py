"""`neuronxcc.nki.language`: the names of the module and what is behind them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes

from nkisim.dtypes import DTYPES, lookup
from nkisim.errors import KernelError
from nkisim.frontend.bind import NlFunction
from nkisim.frontend.blocks import par_dim
from nkisim.frontend.neuronxcc import (
    arithmetic,
    creation,
    loops,
    matrices,
    movement,
    reductions,
)
from nkisim.frontend.nki import language as newer

SIMULATOR_ONLY = (
    *("cos", "tan", "ceil", "floor", "trunc", "fmod", "mod"),
    *("dropout", "rand", "random_seed"),
)


def finfo(dtype: object) -> object:
    """Limits of a float dtype, like numpy's."""
    found = lookup(dtype)
    if found is None or not found.is_float:
        raise KernelError("NKS301", f"finfo takes a float dtype, got {dtype!r:.60}")
    return ml_dtypes.finfo(found.storage)  # type: ignore[no-untyped-call]


def device_print(prefix: object = None, x: object = None, **_: object) -> None:
    """Print a tile on the device; values do not exist while tracing, so nothing is printed."""


def functions() -> dict[str, NlFunction]:
    """Return the functions that are op tokens too."""
    table: dict[str, NlFunction] = {}
    for name in newer.BINARY_NAMES:
        table[name] = NlFunction(name, arithmetic.binary_function(name))
    for name in newer.UNARY_NAMES:
        table[name] = NlFunction(name, arithmetic.unary_function(name))
    for name, op in (("sum", "add"), ("max", "maximum"), ("min", "minimum"), ("prod", "multiply")):
        token = name if name in ("sum", "prod") else op
        table[name] = NlFunction(token, reductions.reduction_function(name, op))
    table["sum"].name = "add"
    table["prod"].name = "multiply"
    table["mean"] = NlFunction("mean", reductions.mean)
    table["copy"] = NlFunction("copy", movement.copy)
    for name in newer.TOKEN_NAMES:
        table[name] = NlFunction(name)
    return table


def operators(table: dict[str, NlFunction]) -> dict[str, Callable[..., object]]:
    """Return what operators on tiles call."""

    def refuse(*_: Any, **__: Any) -> object:
        from nkisim.errors import UnsupportedError

        raise UnsupportedError("NKS501", "the remainder of tiles is not emulated")

    return {**table, "mod": refuse}


EXPORTS: dict[str, object] = {
    **{k: v for k, v in newer.EXPORTS.items() if k in ("hbm", "sbuf", "psum", "shared_hbm")},
    "private_hbm": newer.EXPORTS["private_hbm"],
    **DTYPES,
    "bool_": DTYPES["bool"],
    "fp32": DTYPES["float32"],
    "bfp16": DTYPES["bfloat16"],
    "tile_size": newer.EXPORTS["tile_size"],
    "ds": newer.ds,
    "program_id": newer.program_id,
    "num_programs": newer.num_programs,
    "program_ndim": newer.program_ndim,
    "ndarray": creation.ndarray,
    "full": creation.full,
    "zeros": creation.zeros,
    "ones": creation.ones,
    "zeros_like": creation.zeros_like,
    "empty_like": creation.empty_like,
    "shared_constant": creation.shared_constant,
    "shared_identity_matrix": creation.shared_identity_matrix,
    "load": movement.load,
    "store": movement.store,
    "load_transpose2d": movement.load_transpose2d,
    "broadcast_to": movement.broadcast_to,
    "expand_dims": movement.expand_dims,
    "static_cast": movement.static_cast,
    "gather_flattened": movement.gather_flattened,
    "atomic_rmw": movement.atomic_rmw,
    "all": reductions.all_,
    "var": reductions.var,
    "softmax": reductions.softmax,
    "rms_norm": reductions.rms_norm,
    "matmul": matrices.matmul,
    "transpose": matrices.transpose,
    "where": arithmetic.where,
    "affine_range": loops.loop,
    "sequential_range": loops.loop,
    "static_range": loops.loop,
    "arange": loops.arange,
    "mgrid": loops.MGRID,
    "par_dim": par_dim,
    "gemm_grid": loops.gemm_grid,
    "gemm_stationary_grid": loops.gemm_stationary_grid,
    "nc": loops.nc,
    "spmd_dim": loops.spmd_dim,
    "loop_reduce": loops.loop_reduce,
    "all_reduce": loops.all_reduce,
    "finfo": finfo,
    "device_print": device_print,
    "par_dim_t": int,
}
"""Names of the module besides the op tokens."""


def size_in_bytes(dtype: object) -> int:
    """Return the bytes of one element."""
    found = lookup(dtype)
    if found is None:
        raise KernelError("NKS301", f"{dtype!r:.60} is not an NKI dtype")
    return found.itemsize
