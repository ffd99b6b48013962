"""MX instructions against float64 references that follow the specification's wording."""

import ml_dtypes
import numpy as np
import pytest
from tests.nkisim.conformance.harness import In, Out, psum, run

from nkisim.errors import KernelError

ELEMENTS = {
    "float8_e4m3fn_x4": (ml_dtypes.float8_e4m3fn, 8),
    "float8_e5m2_x4": (ml_dtypes.float8_e5m2, 15),
    "float4_e2m1fn_x4": (ml_dtypes.float4_e2m1fn, 2),
}
SCALES = [np.uint8, ml_dtypes.float8_e8m0fnu]


def pack(values, dtype):
    """[P, F, 4] values -> packed [P, F], the first value in the lowest bits."""
    element, _ = ELEMENTS[dtype]
    codes = values.astype(element).view(np.uint8).astype(np.uint32)
    if dtype == "float4_e2m1fn_x4":
        return sum((codes[..., j] & 15) << (4 * j) for j in range(4)).astype(np.uint16)
    return sum(codes[..., j] << (8 * j) for j in range(4)).astype(np.uint32)


def decode(packed, dtype):
    """Packed [P, F] -> float64 [P, F, 4]."""
    element, _ = ELEMENTS[dtype]
    width = 4 if dtype == "float4_e2m1fn_x4" else 8
    codes = np.stack([(packed >> (width * j)) & ((1 << width) - 1) for j in range(4)], axis=-1)
    return codes.astype(np.uint8).view(element).astype(np.float64)


def scale_row(group):
    """Row of the scale tile that holds the scales of partitions 8·group …"""
    return 32 * (group // 4) + group % 4


def random_scales(rng, rows, columns, offset=0, dtype=np.uint8):
    """A scale tile with poison in all rows that no instruction may read."""
    extent = rows if rows > 32 else 4
    tile = np.full((offset + extent, columns), 255, dtype=np.uint8)
    used = rng.integers(120, 133, (rows // 8, columns)).astype(np.uint8)
    for group in range(rows // 8):
        tile[offset + scale_row(group)] = used[group]
    return tile.view(dtype), 2.0 ** (used.astype(np.float64) - 127)


@pytest.mark.parametrize("scale_dtype", SCALES, ids=["uint8", "e8m0"])
@pytest.mark.parametrize("a", ELEMENTS)
@pytest.mark.parametrize("b", ELEMENTS)
@pytest.mark.parametrize(
    ("rows", "m", "n", "dst"), [(32, 2, 1, "float32"), (96, 128, 40, "bfloat16")]
)
def test_matmul(a, b, rows, m, n, dst, scale_dtype):
    rng = np.random.default_rng(rows + m)
    tiles, wide = [], []
    for dtype, columns in ((a, m), (b, n)):
        values = rng.uniform(-4, 4, (rows, columns, 4)).astype(np.float32)
        packed = pack(values, dtype)
        scales, factor = random_scales(rng, rows, columns, dtype=scale_dtype)
        tiles += [In(packed, dtype=dtype), scales]
        wide.append(decode(packed, dtype) * np.repeat(factor, 8, axis=0)[:, :, None])
    expected = np.einsum("kmj,knj->mn", *wide)
    got = run(
        "nc_matmul_mx",
        on="trn3",
        dst=Out((m, n), dst, "psum"),
        stationary=tiles[0],
        moving=tiles[2],
        stationary_scale=tiles[1],
        moving_scale=tiles[3],
    )
    magnitude = np.einsum("kmj,knj->mn", *map(np.abs, wide))
    eps = 2.0**-8 if dst == "bfloat16" else 0.0
    assert np.all(
        np.abs(got.astype(np.float64) - expected) <= eps * np.abs(expected) + 1e-5 * magnitude
    )


def quantised(x, dtype):
    """Return values [P, F / 4, 4] and scale exponents [P / 8, F / 4] as the formula gives them."""
    element, top = ELEMENTS[dtype]
    wide = x.astype(np.float64).reshape(len(x) // 8, 8, -1, 4)
    largest = np.abs(wide).max(axis=(1, 3))
    with np.errstate(divide="ignore"):
        exponent = np.floor(np.log2(largest)) - (top - 1)
    exponent = np.where(largest == 0, -127, np.clip(exponent, -127, 127))
    values = (wide / 2.0 ** exponent[:, None, :, None]).astype(np.float32).astype(element)
    return values.reshape(len(x), -1, 4), exponent


@pytest.mark.parametrize("dtype", ["float8_e4m3fn_x4", "float8_e5m2_x4"])
@pytest.mark.parametrize("source", [ml_dtypes.bfloat16, np.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("rows", [32, 64, 128])
def test_quantize(dtype, source, rows):
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, 24)) * 2.0 ** rng.integers(-12, 12, (rows, 24))
    x[8:16, 4:8] = 0
    x[0, 0] = 2.0**-14
    x = x.astype(source)
    extent = rows if rows > 32 else 4
    packed, scales = run(
        "quantize_mx",
        on="trn3",
        dst=Out((rows, 6), dtype),
        src=x,
        dst_scale=Out((extent, 6), "uint8", initial=np.full((extent, 6), 77, np.uint8)),
    )
    values, exponent = quantised(x, dtype)
    assert np.array_equal(decode(packed, dtype), values.astype(np.float64))
    used = [scale_row(g) for g in range(rows // 8)]
    assert np.array_equal(scales[used].astype(np.int64), exponent + 127)
    assert (np.delete(scales, used, axis=0) == 77).all()


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_quantize_marks_groups_without_a_scale(bad):
    x = np.ones((32, 8), dtype=ml_dtypes.bfloat16)
    x[9, 5] = bad
    packed, scales = run(
        "quantize_mx",
        on="trn3",
        dst=Out((32, 2), "float8_e4m3fn_x4"),
        src=x,
        dst_scale=Out((4, 2), "uint8"),
    )
    values = decode(packed, "float8_e4m3fn_x4")
    assert np.isnan(values[8:16, 1]).all()
    assert np.isnan(values).sum() == 32
    assert scales[1, 1] == 255


def mx_arguments(rows=32, m=2, n=4):
    x = In(np.zeros((rows, m), np.uint32), dtype="float8_e4m3fn_x4")
    y = In(np.zeros((rows, n), np.uint32), dtype="float8_e4m3fn_x4")
    extent = rows if rows > 32 else 4
    return {
        "dst": Out((m, n), memory="psum"),
        "stationary": x,
        "moving": y,
        "stationary_scale": np.zeros((extent, m), np.uint8),
        "moving_scale": np.zeros((extent, n), np.uint8),
    }


ILLEGAL_MATMUL = {
    "odd stationary": (mx_arguments(m=3), "NKS115"),
    "rows": (mx_arguments(rows=48), "NKS110"),
    "scale columns": (mx_arguments() | {"moving_scale": np.zeros((4, 3), np.uint8)}, "NKS118"),
    "scale rows": (mx_arguments(64) | {"moving_scale": np.zeros((32, 4), np.uint8)}, "NKS118"),
    "scale dtype": (mx_arguments() | {"moving_scale": np.zeros((4, 4), np.int8)}, "NKS303"),
    "plain data": (mx_arguments() | {"moving": np.zeros((32, 4), np.uint32)}, "NKS303"),
    "dst dtype": (mx_arguments() | {"dst": Out((2, 4), "float16", "psum")}, "NKS303"),
    "dst memory": (mx_arguments() | {"dst": Out((2, 4))}, "NKS201"),
    "dst shape": (mx_arguments() | {"dst": Out((2, 3), memory="psum")}, "NKS118"),
    "contraction": (
        mx_arguments() | {"moving": In(np.zeros((64, 4), np.uint32), dtype="float8_e5m2_x4")},
        "NKS117",
    ),
    "column tile": (mx_arguments() | {"tile_position": (0, 32), "tile_size": (32, 32)}, "NKS121"),
    "half a tile": (mx_arguments() | {"tile_size": (32, 128)}, "NKS121"),
    "wide": (mx_arguments(m=130) | {"dst": Out((128, 4), memory="psum")}, "NKS104"),
}


@pytest.mark.parametrize("name", ILLEGAL_MATMUL)
def test_illegal_matmul(name):
    arguments, code = ILLEGAL_MATMUL[name]
    with pytest.raises(KernelError) as error:
        run("nc_matmul_mx", on="trn3", **arguments)
    assert error.value.code == code


@pytest.mark.parametrize("on", ["trn1", "trn2"])
def test_older_machines_have_no_mx(on):
    with pytest.raises(KernelError) as error:
        run("nc_matmul_mx", on=on, **mx_arguments())
    assert error.value.code == "NKS104"


def test_row_tile_and_accumulation():
    rng = np.random.default_rng(4)
    packed = pack(rng.uniform(-2, 2, (32, 2, 4)).astype(np.float32), "float8_e4m3fn_x4")
    x = In(packed, dtype="float8_e4m3fn_x4")
    ones = np.full((4, 2), 127, np.uint8)
    start = np.full((2, 2), 3.0, np.float32)
    got = run(
        "nc_matmul_mx",
        on="trn3",
        dst=Out((2, 2), memory="psum", initial=start),
        stationary=x,
        moving=x,
        stationary_scale=ones,
        moving_scale=ones,
        tile_position=(32, 0),
        tile_size=(32, 128),
        accumulate=True,
    )
    wide = decode(packed, "float8_e4m3fn_x4")
    assert np.allclose(got, 3 + np.einsum("kmj,knj->mn", wide, wide), rtol=1e-5)


def test_scales_may_not_lie_in_psum():
    with pytest.raises(KernelError) as error:
        run(
            "nc_matmul_mx",
            on="trn3",
            **mx_arguments() | {"moving_scale": psum(np.zeros((4, 4), np.uint8))},
        )
    assert error.value.code == "NKS201"
