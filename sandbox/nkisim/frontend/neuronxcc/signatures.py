"""The instructions of `neuronxcc.nki.isa` as data: old signature, row of the op table, result.

An old instruction returns its result; everything else about it is its row of the op table.
Source: NKI ISA reference, Neuron 2.26.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from nkisim.dtypes import DTYPES, DType
from nkisim.errors import KernelError
from nkisim.frontend.neuronxcc.promotion import promote
from nkisim.frontend.tensor import NkiTensor
from nkisim.ops.axes import reduced_axes

Shape = tuple[int, ...]
Arguments = Mapping[str, Any]
Result = Callable[[Arguments], tuple[Shape, DType, str]]
"""Shape, dtype and memory of the tile that a call returns."""


@dataclass(frozen=True, slots=True)
class OldSignature:
    """How one instruction is called in the old generation."""

    name: str
    positional: str
    """Parameters that may be given by position, in order."""
    keywords: str = ""
    """Parameters that are given by name only, besides `mask`, `dtype` and `name`."""
    result: Result | None = None
    """None if the call names its destination."""
    row: str = ""
    """Row of the op table, where its name differs."""
    fixed: tuple[tuple[str, object], ...] = ()
    """Arguments whose default differs from the newest one."""
    casts: tuple[str, ...] = ()
    """Per-partition operands that are cast to float32, as the engines need them."""

    @property
    def spec_name(self) -> str:
        """Name in the op table."""
        return self.row or self.name


def like(role: str) -> Result:
    """The shape and dtype of an operand."""

    def result(arguments: Arguments) -> tuple[Shape, DType, str]:
        tile = tile_argument(arguments, role)
        return tile.shape, tile.dtype, "sbuf"

    return result


def promoted(*roles: str) -> Result:
    """The shape of the first operand, the promoted dtype of all."""

    def result(arguments: Arguments) -> tuple[Shape, DType, str]:
        tiles = [tile_argument(arguments, role) for role in roles]
        dtype = tiles[0].dtype
        for tile in tiles[1:]:
            dtype = promote(dtype, tile.dtype)
        return tiles[0].shape, dtype, "sbuf"

    return result


def columns(role: str, count: int, dtype: str | None = None) -> Result:
    """A tile of `count` elements per partition of an operand."""

    def result(arguments: Arguments) -> tuple[Shape, DType, str]:
        tile = tile_argument(arguments, role)
        return (tile.shape[0], count), DTYPES[dtype] if dtype else tile.dtype, "sbuf"

    return result


def reduced(arguments: Arguments) -> tuple[Shape, DType, str]:
    """Data without the axes that are reduced, at least (P, 1)."""
    tile = tile_argument(arguments, "data")
    gone = reduced_axes(arguments["axis"], tile.ndim)
    keeps = bool(arguments.get("keepdims"))
    shape = tuple(1 if d in gone else n for d, n in enumerate(tile.shape) if keeps or d not in gone)
    return shape if len(shape) > 1 else (*shape, 1), tile.dtype, "sbuf"


def one_partition(arguments: Arguments) -> tuple[Shape, DType, str]:
    """Data with one partition."""
    tile = tile_argument(arguments, "data")
    return (1, *tile.shape[1:]), tile.dtype, "sbuf"


def product(arguments: Arguments) -> tuple[Shape, DType, str]:
    """[M, N] float32 in PSUM."""
    left = tile_argument(arguments, "stationary")
    right = tile_argument(arguments, "moving")
    return (left.size // left.shape[0], *right.shape[1:]), DTYPES["float32"], "psum"


def permuted(arguments: Arguments) -> tuple[Shape, DType, str]:
    """Src with its axes reordered."""
    tile = tile_argument(arguments, "src")
    default = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}.get(tile.ndim, ())
    order = tuple(int(a) for a in arguments.get("axes") or default)
    return tuple(tile.shape[a] for a in order), tile.dtype, "sbuf"


def gathered(arguments: Arguments) -> tuple[Shape, DType, str]:
    """The partitions of src_buffer, one group of elements per index."""
    source = tile_argument(arguments, "src_buffer")
    index = tile_argument(arguments, "index")
    each = int(arguments.get("num_elem_per_idx") or 1)
    valid = arguments.get("num_valid_indices")
    count = index.size // index.shape[0] * 16 if valid is None else int(valid)
    shape = (source.shape[0], count, each) if each > 1 else (source.shape[0], count)
    return shape, source.dtype, "sbuf"


def tile_argument(arguments: Arguments, role: str) -> NkiTensor:
    """Return an argument that must be a tile."""
    value = arguments.get(role)
    if not isinstance(value, NkiTensor):
        raise KernelError(
            "NKS602", f"argument {role!r} takes a tile, got {type(value).__name__} {value!r:.60}"
        )
    return value


IDLE: Final = (("reduce_cmd", "idle"),)

SIGNATURES: Final = (
    OldSignature(
        "activation",
        "op data",
        "bias scale reduce_op reduce_res reduce_cmd",
        like("data"),
        casts=("scale",),
    ),
    OldSignature(
        "activation_reduce",
        "op data",
        "reduce_op reduce_res bias scale",
        like("data"),
        casts=("scale",),
    ),
    OldSignature("bn_aggr", "data", result=columns("data", 2)),
    OldSignature("bn_stats", "data", result=columns("data", 6)),
    OldSignature("dma_copy", "", "dst src dst_rmw_op oob_mode dge_mode"),
    OldSignature("dma_transpose", "src", "axes dge_mode oob_mode", permuted),
    OldSignature(
        "local_gather", "src_buffer index num_elem_per_idx num_valid_indices", "", gathered
    ),
    OldSignature("max8", "", "src", columns("src", 8)),
    OldSignature("nc_find_index8", "", "data vals", columns("data", 8, "uint32")),
    OldSignature("nc_match_replace8", "", "data vals imm dst_idx", like("data")),
    OldSignature(
        "nc_matmul",
        "stationary moving",
        "is_stationary_onezero is_moving_onezero is_transpose tile_position tile_size perf_mode",
        product,
    ),
    OldSignature("nc_stream_shuffle", "src dst shuffle_mask"),
    OldSignature(
        "range_select",
        "",
        "on_true_tile comp_op0 comp_op1 bound0 bound1 reduce_cmd reduce_res reduce_op range_start "
        "on_false_value",
        like("on_true_tile"),
        fixed=IDLE,
        casts=("bound0", "bound1"),
    ),
    OldSignature("reciprocal", "data", "", like("data")),
    OldSignature(
        "scalar_tensor_tensor",
        "",
        "data op0 operand0 op1 operand1 reverse0 reverse1",
        promoted("data", "operand1"),
        casts=("operand0",),
    ),
    OldSignature(
        "select_reduce",
        "",
        "dst predicate on_true on_false reduce_res reduce_cmd reduce_op reverse_pred",
    ),
    OldSignature("tensor_copy", "src", "engine", like("src")),
    OldSignature("tensor_copy_dynamic_dst", "", "dst src engine", row="tensor_copy"),
    OldSignature("tensor_copy_dynamic_src", "src", "engine", like("src"), row="tensor_copy"),
    OldSignature("tensor_copy_predicated", "", "src dst predicate reverse_pred"),
    OldSignature("tensor_partition_reduce", "op data", "", one_partition),
    OldSignature("tensor_reduce", "op data axis", "negate keepdims", reduced),
    OldSignature(
        "tensor_scalar",
        "data op0 operand0 reverse0 op1 operand1 reverse1",
        "engine",
        like("data"),
        casts=("operand0", "operand1"),
    ),
    OldSignature(
        "tensor_scalar_cumulative",
        "",
        "src dst op0 op1 imm0 imm1 reduce_cmd",
        casts=("imm0", "imm1"),
    ),
    OldSignature(
        "tensor_scalar_reduce",
        "",
        "data op0 operand0 reduce_op reduce_res reverse0",
        like("data"),
        casts=("operand0",),
    ),
    OldSignature("tensor_tensor", "data1 data2 op", "engine", promoted("data1", "data2")),
    OldSignature(
        "tensor_tensor_scan",
        "data0 data1 initial op0 op1 reverse0 reverse1",
        "",
        promoted("data0", "data1"),
        casts=("initial",),
    ),
)
"""Instructions that a table can describe; the others are functions in `isa`."""
