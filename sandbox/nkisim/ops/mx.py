"""Microscaling (MX) instructions of NeuronCore-v4: quantise to packed fp8, multiply packed tiles.

A packed element holds four values, the first in the lowest bits.  One scale 2^(byte - 127) serves
8 partitions times the four values of an element.  Scales of partitions 32·q … 32·q + 31 lie in
rows 32·q … 32·q + 3 of the scale tile, whose other rows are neither read nor written.
Source: NKI ISA reference 0.6, nki.isa.quantize_mx and nki.isa.nc_matmul_mx; OCP MX specification.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import ml_dtypes
import numpy as np
import numpy.typing as npt

from nkisim.dtypes import DTYPES, Array, store, to_float32
from nkisim.errors import KernelError
from nkisim.ir.program import Form, Operand
from nkisim.machine.spec import Engine, Machine
from nkisim.ops import codes, costs, rules
from nkisim.ops.operands import NAME, flat, page, position
from nkisim.ops.registry import PSUM_ONLY, SBUF_ONLY, Cost, OpSpec, Param, ParamKind, Run, State

K = ParamKind
QUADRANT: Final = 32
GROUP_ROWS: Final = 8
"""Partitions that share a scale."""
PACK: Final = 4
"""Values of a packed element."""
SCALE_ROWS: Final = QUADRANT // GROUP_ROWS
SCALE_STARTS: Final = (0, 4, 8, 12)
SCALE_BIAS: Final = 127
SCALE_NAN: Final = 255
LARGEST_EXPONENT: Final = {"float8_e4m3fn_x4": 8, "float8_e5m2_x4": 15}
_ELEMENT: Final[dict[str, type[np.generic]]] = {
    "float8_e4m3fn_x4": ml_dtypes.float8_e4m3fn,
    "float8_e5m2_x4": ml_dtypes.float8_e5m2,
    "float4_e2m1fn_x4": ml_dtypes.float4_e2m1fn,
}
"""Dtype of one of the four values, by the name of the packed dtype."""


def _quadrants(form: Form) -> int:
    """Return how many quadrants of partitions the data spans."""
    data = form.get("src") or form["stationary"]
    return -(-data.partitions // QUADRANT)


def _scale_rows(form: Form, operand: Operand) -> tuple[tuple[int, int], ...]:
    return tuple((QUADRANT * q, SCALE_ROWS) for q in range(_quadrants(form)))


def _scale_param(name: str, access: Any = "r") -> Param:
    return Param(
        name=name,
        kind=K.TENSOR,
        access=access,
        memories=SBUF_ONLY,
        rows=_scale_rows,
        quadrant_starts=SCALE_STARTS,
    )


def _check_scale(form: Form, role: str, data: Operand, columns: int) -> None:
    """Check the scale tile of `data`."""
    scale = form[role]
    if scale.dtype.name not in ("float8_e8m0fnu", "uint8"):
        raise rules.refuse_dtype(
            form, scale, "float8_e8m0fnu or uint8", f"allocate {role} as nl.float8_e8m0fnu"
        )
    needed = QUADRANT * (_quadrants(form) - 1) + SCALE_ROWS
    if scale.partitions < needed or scale.free_size != columns:
        raise KernelError(
            codes.RESULT_SHAPE,
            f"{form.op}: {role} must be [≥{needed}, {columns}], it is "
            f"[{scale.partitions}, {scale.free_size}]",
            got=f"{scale}; {data}",
            allowed=f"rows 32·q … 32·q + 3 for each quadrant q of {data.role}, one column for "
            "each packed element",
            hint=f"allocate it as ({data.partitions if data.partitions > QUADRANT else 4}, "
            f"{columns})",
        )


def _check_rows(form: Form, operand: Operand) -> None:
    if operand.partitions % QUADRANT:
        raise KernelError(
            codes.PARTITIONS_DIFFER,
            f"{form.op}: {operand.role} has {operand.partitions} partitions, not a multiple of "
            f"{QUADRANT}",
            got=str(operand),
            allowed="32, 64, 96 or 128 partitions",
            hint="pad with rows of zeros",
        )


# -- packing --------------------------------------------------------------------------------------


@cache
def _values(name: str) -> npt.NDArray[np.float32]:
    """Return the float32 value of every bit pattern of one of the four values."""
    codes_ = np.arange(16 if name == "float4_e2m1fn_x4" else 256, dtype=np.uint8)
    return codes_.view(_ELEMENT[name]).astype(np.float32)


def unpack(view: Any, name: str) -> npt.NDArray[np.float32]:
    """Return packed elements [P, F] as float32 values [P, F, 4]."""
    bits = 4 if name == "float4_e2m1fn_x4" else 8
    shifts = np.arange(PACK, dtype=view.dtype) * view.dtype.type(bits)
    mask = view.dtype.type((1 << bits) - 1)
    raw = (view[:, :, None] >> shifts) & mask
    values: npt.NDArray[np.float32] = _values(name).take(raw)
    return values


def _scale_values(view: Array, groups: int) -> npt.NDArray[np.int32]:
    """Return the scale bytes of all groups of 8 partitions, [groups, F]."""
    rows = [QUADRANT * (g // SCALE_ROWS) + g % SCALE_ROWS for g in range(groups)]
    return flat(view)[rows].view(np.uint8).astype(np.int32)


def _scaled(data: Array, scale: Array, name: str) -> npt.NDArray[np.float32]:
    """Return values times their scales as [4·P, F]: the contraction runs over both."""
    values = unpack(flat(data), name)
    rows, columns, _ = values.shape
    scales = _scale_values(scale, rows // GROUP_ROWS)
    grouped = values.reshape(-1, GROUP_ROWS, columns, PACK)
    grouped = np.ldexp(grouped, (scales - SCALE_BIAS)[:, None, :, None])
    grouped[np.broadcast_to((scales == SCALE_NAN)[:, None, :, None], grouped.shape)] = np.nan
    result = grouped.reshape(rows, columns, PACK).transpose(0, 2, 1)
    return np.ascontiguousarray(result).reshape(rows * PACK, columns)


# -- quantize_mx ----------------------------------------------------------------------------------

QUANTIZE_PARAMS = (
    Param(name="dst", kind=K.TENSOR, access="w", memories=SBUF_ONLY),
    Param(name="src", kind=K.TENSOR, memories=SBUF_ONLY),
    _scale_param("dst_scale", "w"),
    NAME,
)


def _check_quantize(form: Form, machine: Machine) -> None:
    rules.check_operands(form, machine, QUANTIZE_PARAMS, packed=("dst",))
    rules.check_same_partitions(form, "dst", "src")
    dst, src = form["dst"], form["src"]
    if src.dtype.name not in ("bfloat16", "float16"):
        raise rules.refuse_dtype(form, src, "bfloat16 or float16", "copy it to nl.bfloat16 first")
    if dst.dtype.name not in LARGEST_EXPONENT:
        raise rules.refuse_dtype(
            form, dst, " or ".join(LARGEST_EXPONENT), "allocate dst as nl.float8_e4m3fn_x4"
        )
    _check_rows(form, src)
    if src.free_size % PACK or dst.free_size != src.free_size // PACK:
        raise KernelError(
            codes.FREE_SIZES_DIFFER,
            f"quantize_mx: src has {src.free_size} elements per partition, dst has "
            f"{dst.free_size} packed ones",
            got=f"{dst}; {src}",
            allowed="dst with a quarter of src's elements, a multiple of 4",
            hint=f"allocate dst as ({src.partitions}, {src.free_size // PACK})",
        )
    _check_scale(form, "dst_scale", src, dst.free_size)


def _quantize(form: Form) -> Run:
    dst, src, scale = (position(form, r) for r in ("dst", "src", "dst_scale"))
    name, shape = form["dst"].dtype.name, form["dst"].shape
    element, top = _ELEMENT[name], LARGEST_EXPONENT[name]
    groups = form["src"].partitions // GROUP_ROWS
    rows = [QUADRANT * (g // SCALE_ROWS) + g % SCALE_ROWS for g in range(groups)]
    packed = DTYPES[name].storage

    def run(_: State, views: Sequence[Array]) -> None:
        values = to_float32(flat(views[src])).reshape(groups, GROUP_ROWS, -1, PACK)
        largest = np.abs(values).max(axis=(1, 3))
        # largest = m · 2^e with 0.5 ≤ m < 1; one more than the OCP exponent leaves room to round.
        exponent = np.clip(np.frexp(largest)[1] - top, -SCALE_BIAS, SCALE_BIAS)
        exponent[largest == 0] = -SCALE_BIAS
        is_finite = np.isfinite(largest)
        scaled = np.ldexp(values, -exponent[:, None, :, None])
        scaled[np.broadcast_to(~is_finite[:, None, :, None], scaled.shape)] = np.nan
        quantised = scaled.astype(element).view(np.uint8).view(packed)
        views[dst][...] = quantised.reshape(shape)
        written = flat(views[scale]).view(np.uint8)
        written[rows] = np.where(is_finite, exponent + SCALE_BIAS, SCALE_NAN).astype(np.uint8)

    return run


QUANTIZE_MX = OpSpec(
    name="quantize_mx",
    params=QUANTIZE_PARAMS,
    engines=(Engine.VECTOR,),
    summary="Quantise to packed MX fp8 values and their scales, on NeuronCore-v4.",
    semantics="for each 8 partitions × 4 elements: E = floor(log2(max |src|)) - (Emax - 1), Emax = "
    "8 (e4m3fn) or 15 (e5m2); dst_scale = E + 127 (0 for all zeros); dst = cast(src / 2^E)",
    rules=(
        "NeuronCore-v4 only; all operands in SBUF",
        "src is bfloat16 or float16 with 32, 64, 96 or 128 partitions; dst has a quarter of its "
        "columns, float8_e4m3fn_x4 or float8_e5m2_x4",
        "dst_scale is float8_e8m0fnu or uint8; rows 32q … 32q + 3 of each quadrant q are written, "
        "from a tile that starts at row 0, 4, 8 or 12 of a quadrant",
        "a group with an infinity or NaN becomes all NaN",
    ),
    example="nisa.quantize_mx(dst=w_e4m3x4, src=w_bf16, dst_scale=w_scale_u8)",
    source=page("quantize_mx"),
    check=_check_quantize,
    compile=_quantize,
    cost=lambda form, machine: costs.vector_cost(form, machine, form["src"].free_size / PACK),
    min_generation=4,
)

# -- nc_matmul_mx ---------------------------------------------------------------------------------

MATMUL_PARAMS = (
    Param(name="dst", kind=K.TENSOR, access="w", memories=PSUM_ONLY),
    Param(name="stationary", kind=K.TENSOR, memories=SBUF_ONLY),
    Param(name="moving", kind=K.TENSOR, memories=SBUF_ONLY),
    _scale_param("stationary_scale"),
    _scale_param("moving_scale"),
    Param(name="tile_position", kind=K.INTEGERS, default=None),
    Param(name="tile_size", kind=K.INTEGERS, default=None),
    Param(name="accumulate", kind=K.BOOL, default=None, since="0.3"),
    NAME,
)


def _check_matmul(form: Form, machine: Machine) -> None:
    rules.check_operands(form, machine, MATMUL_PARAMS, packed=("stationary", "moving"))
    dst, stationary, moving = form["dst"], form["stationary"], form["moving"]
    for operand in (stationary, moving):
        if operand.dtype.name not in _ELEMENT:
            raise rules.refuse_dtype(
                form, operand, ", ".join(_ELEMENT), "quantise it with nisa.quantize_mx"
            )
    if stationary.partitions != moving.partitions:
        raise KernelError(
            codes.CONTRACTION,
            f"nc_matmul_mx: contraction sizes differ: stationary has {stationary.partitions} "
            f"partitions, moving has {moving.partitions}",
            got=f"{stationary}; {moving}",
            allowed="the same partitions in both",
        )
    _check_rows(form, stationary)
    if dst.dtype.name not in ("float32", "bfloat16"):
        raise rules.refuse_dtype(
            form, dst, "float32 or bfloat16", "allocate dst as nl.float32 in nl.psum"
        )
    limits = machine.limits
    widest = limits.moving_free_max * (2 if dst.dtype.name == "bfloat16" else 1)
    for operand, limit in ((stationary, limits.stationary_free_max), (moving, widest)):
        if operand.free_size > limit:
            raise KernelError(
                codes.FREE_SIZE_LIMIT,
                f"nc_matmul_mx: {operand.role} free size {operand.free_size} exceeds the limit of "
                f"{limit}",
                got=str(operand),
                allowed=f"≤ {limit}",
                hint=f"loop over the free axis in tiles of {limit}",
            )
    if stationary.free_size % 2:
        raise KernelError(
            codes.ELEMENT_RANGE,
            f"nc_matmul_mx: stationary free size {stationary.free_size} is odd",
            got=str(stationary),
            allowed="an even number of columns",
        )
    if dst.partitions != stationary.free_size or dst.free_size != moving.free_size:
        raise KernelError(
            codes.RESULT_SHAPE,
            f"nc_matmul_mx: dst must be [{stationary.free_size}, {moving.free_size}], it is "
            f"[{dst.partitions}, {dst.free_size}]",
            got=f"{dst}; {stationary}; {moving}",
            allowed="dst [M, N] for stationary [K, M] and moving [K, N]",
            hint="slice dst to the size of this tile",
        )
    _check_scale(form, "stationary_scale", stationary, stationary.free_size)
    _check_scale(form, "moving_scale", moving, moving.free_size)
    _check_row_tile(form, machine)


def _check_row_tile(form: Form, machine: Machine) -> None:
    """Check the rows of the PE array that tile_position and tile_size choose."""
    size, at = form.attr("tile_size"), form.attr("tile_position")
    if not size and not at:
        return
    rows = form["stationary"].partitions
    limit = machine.limits.partitions
    match size, at:
        case (int() as n, 128), (int() as start, 0) if (
            n in (32, 64, 128) and start >= 0 and start % n == 0 and start + n <= limit
        ):
            if rows <= n:
                return
    raise KernelError(
        codes.TILE_POSITION,
        f"nc_matmul_mx: tile_position={at}, tile_size={size} is not a row tile for {rows} rows",
        got=f"tile_position={at}, tile_size={size}; {form['stationary']}",
        allowed="tile_size=(32, 64 or 128 rows, 128), tile_position=(a multiple of the rows, 0)",
    )


def _matmul(form: Form) -> Run:
    dst, a, b = (position(form, r) for r in ("dst", "stationary", "moving"))
    a_scale, b_scale = position(form, "stationary_scale"), position(form, "moving_scale")
    a_name, b_name = form["stationary"].dtype.name, form["moving"].dtype.name
    explicit = form.attr("accumulate")
    dtype, shape = form["dst"].dtype, form["dst"].shape

    def run(state: State, views: Sequence[Array]) -> None:
        out: Any = views[dst]
        stationary = _scaled(views[a], views[a_scale], a_name)
        moving = _scaled(views[b], views[b_scale], b_name)
        product = np.matmul(stationary.T, moving).reshape(shape)
        adds: Any = state.psum_accumulates(dst) if explicit is None else explicit
        if adds is not False:
            np.add(product, to_float32(out), out=product, where=adds)
        store(out, product, dtype)

    return run


def _cost_matmul(form: Form, machine: Machine) -> Cost:
    pe = machine.pe
    rows, m, n = form["stationary"].partitions, form["dst"].partitions, form["dst"].free_size
    columns = max(min(pe.min_interval_cycles, m), n)
    load = m / pe.load_stationary_divisor
    interval = max(columns, load, pe.min_interval_cycles) + pe.overhead_cycles
    flops = 2.0 * PACK * rows * m * n
    return Cost(interval=interval, latency=interval + pe.fill_cycles, flops=flops)


NC_MATMUL_MX = OpSpec(
    name="nc_matmul_mx",
    params=MATMUL_PARAMS,
    engines=(Engine.TENSOR,),
    summary="Matrix product of packed MX tiles, scaled on the way, on NeuronCore-v4.",
    semantics="dst (+)= einsum('kmj,knj->mn', stationary · scales, moving · scales), in float32; "
    "the contraction runs over partitions and over the four values of an element",
    rules=(
        "NeuronCore-v4 only; stationary [K, M ≤ 128, even] and moving [K, N ≤ 4096] packed in "
        "SBUF, K 32, 64, 96 or 128; dst [M, N] float32 or bfloat16 (N ≤ 8192) in PSUM",
        "scales are float8_e8m0fnu or uint8, laid out as quantize_mx writes them",
        "accumulates as nc_matmul does",
    ),
    example="nisa.nc_matmul_mx(dst=acc, stationary=w_e4m3x4, moving=x_e4m3x4, "
    "stationary_scale=w_scale_u8, moving_scale=x_scale_u8)",
    source=page("nc_matmul_mx"),
    check=_check_matmul,
    compile=_matmul,
    cost=_cost_matmul,
    min_generation=4,
)

SPECS: tuple[OpSpec, ...] = (QUANTIZE_MX, NC_MATMUL_MX)
"""Rows of the MX instructions."""
