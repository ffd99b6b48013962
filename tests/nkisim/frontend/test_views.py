"""Views are exact: every one is compared with numpy on the elements it stands for."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkisim.dtypes import DTYPES
from nkisim.errors import KernelError
from nkisim.frontend.index import IndexTensor
from nkisim.frontend.recorder import REGIONS, Recorder
from nkisim.frontend.tensor import NkiTensor
from nkisim.frontend.trace import environment
from nkisim.machine.load import load_machine


def recorder(version=None) -> Recorder:
    return Recorder(load_machine("trn2"), version=version, instructions=environment(None)[1])


def hbm(shape, dtype="float32") -> NkiTensor:
    return recorder().allocate(shape, DTYPES[dtype], REGIONS["shared_hbm"])


def sbuf(shape, dtype="float32") -> NkiTensor:
    return recorder().allocate(shape, DTYPES[dtype], REGIONS["sbuf"])


def elements(tensor: NkiTensor) -> np.ndarray:
    """Flat element number of everything that a view touches, in its shape."""
    index = np.full(tensor.shape, tensor.offset)
    for dim, (count, stride) in enumerate(zip(tensor.shape, tensor.strides, strict=True)):
        shape = [-1 if i == dim else 1 for i in range(tensor.ndim)]
        index = index + (np.arange(count) * stride).reshape(shape)
    return index


SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


@st.composite
def views(draw):
    """An HBM tensor after some slices and permutations, with the numpy array it stands for."""
    shape = draw(SHAPES)
    array = np.arange(prod(shape)).reshape(shape)
    tensor = hbm(shape)
    for _ in range(draw(st.integers(0, 2))):
        if draw(st.booleans()):
            order = draw(st.permutations(range(array.ndim)))
            array, tensor = array.transpose(order), tensor.permute(order)
        else:
            dim = draw(st.integers(0, array.ndim - 1))
            start = draw(st.integers(0, array.shape[dim] - 1))
            stop = draw(st.integers(start + 1, array.shape[dim]))
            step = draw(st.integers(1, 3))
            key = tuple(
                slice(start, stop, step) if i == dim else slice(None) for i in range(array.ndim)
            )
            array, tensor = array[key], tensor[key]
    return array, tensor


@given(views())
def test_slices_and_permutations_touch_the_elements_numpy_says(pair):
    array, tensor = pair
    assert np.array_equal(elements(tensor), array)


@given(views(), st.data())
def test_reshape_is_numpys_reshape_without_a_copy(pair, data):
    array, tensor = pair
    rest, wanted = array.size, []
    while rest > 1:
        part = data.draw(st.sampled_from([n for n in range(2, rest + 1) if rest % n == 0]))
        wanted.append(part)
        rest //= part
    wanted = wanted or [1]
    wanted.insert(data.draw(st.integers(0, len(wanted))), 1)
    try:
        expected = np.reshape(array, wanted, copy=False)
    except ValueError:
        with pytest.raises(KernelError, match="would need a copy"):
            tensor.reshape(wanted)
        return
    assert np.array_equal(elements(tensor.reshape(wanted)), expected)


def test_an_integer_keeps_the_partition_dimension_on_chip():
    tile = sbuf((64, 8, 4))
    assert tile[3].shape == (1, 8, 4)
    assert tile[:, 2].shape == (64, 4)
    assert tile[:, 2, 1].shape == (64, 1)
    assert hbm((64, 8, 4))[3].shape == (8, 4)


@pytest.mark.parametrize(
    ("key", "code"),
    [
        (slice(0, 200), "NKS106"),
        (slice(5, 5), "NKS106"),
        (130, "NKS106"),
        (1.5, "NKS105"),
        (slice(0, 64, -1), "NKS105"),
        ((0, 0, 0), "NKS105"),
    ],
    ids=["past the end", "empty", "integer past the end", "float", "backwards", "too many"],
)
def test_illegal_subscripts_name_the_dimension(key, code):
    with pytest.raises(KernelError) as caught:
        sbuf((128, 16))[key]
    assert caught.value.code == code
    assert "128" in str(caught.value)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 3), st.integers(1, 3))
def test_index_tensors_are_affine(rows, columns, start, step):
    tensor = hbm((40, 40))
    i = IndexTensor.arange(0, rows)[:, None]
    j = IndexTensor.arange(0, columns)[None, :]
    view = tensor[i + start, j * step + i]
    grid_i, grid_j = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    expected = (grid_i + start) * 40 + grid_j * step + grid_i
    assert np.array_equal(elements(view), expected)


def test_a_view_as_a_wider_dtype_covers_the_same_bytes():
    tile = sbuf((4, 8), "bfloat16")
    wide = tile.view("float32")
    assert wide.shape == (4, 4)
    assert wide.strides == (4, 1)
    with pytest.raises(KernelError, match="multiples of 4 bytes"):
        sbuf((4, 7), "bfloat16").view("float32")


@pytest.mark.parametrize(
    ("shape", "region", "code"),
    [
        ((256, 4), "sbuf", "NKS103"),
        ((128,), "sbuf", "NKS102"),
        ((128, 10**6), "sbuf", "NKS202"),
        ((128, 5000), "psum", "NKS202"),
        ((0, 4), "sbuf", "NKS101"),
        ((4, 2.5), "sbuf", "NKS101"),
    ],
    ids=["partitions", "rank", "sbuf size", "psum size", "empty", "float"],
)
def test_illegal_allocations_are_refused(shape, region, code):
    with pytest.raises(KernelError) as caught:
        recorder().allocate(shape, DTYPES["float32"], REGIONS[region])
    assert caught.value.code == code
    assert caught.value.diagnostic.hint or code in ("NKS101",)


def test_operators_on_tiles_belong_to_old_dialects():
    old = recorder("0.6").allocate((4, 4), DTYPES["float32"], REGIONS["sbuf"])
    with pytest.raises(KernelError, match=r"not part of NKI 0\.6"):
        old + 1


def test_the_value_of_a_tile_cannot_be_asked():
    tile = sbuf((4, 4))
    for ask in (bool, float, int, np.asarray):
        with pytest.raises(KernelError) as caught:
            ask(tile)
        assert caught.value.code == "NKS404"


def test_if_on_an_argument_asks_whether_it_was_given():
    optional = recorder().add_argument("bias", (4, 4), DTYPES["float32"])
    assert optional
    with pytest.raises(KernelError, match="not known at trace time"):
        bool(recorder("0.6").add_argument("bias", (4, 4), DTYPES["float32"]))
