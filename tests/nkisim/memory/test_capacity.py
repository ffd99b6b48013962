import pytest
from tests.nkisim.toy import F32, MACHINE, PSUM, SBUF, Toy, View

from nkisim.errors import KernelError
from nkisim.ir.access import Memory
from nkisim.memory.capacity import check_capacity, peak_use
from nkisim.memory.sbuf import is_legal_start, legal_starts

COLUMNS = MACHINE.limits.sbuf_usable_bytes // F32.itemsize


def _touch(toy: Toy, *tiles: View) -> None:
    for tile in tiles:
        toy.emit("memset", attrs={"value": 0}, dst=tile)


def test_tiles_one_after_another_share_memory():
    toy = Toy()
    for _ in range(10):
        _touch(toy, toy.sbuf(128, COLUMNS))
    program = toy.build()
    check_capacity(program, MACHINE)
    assert peak_use(program, Memory.SBUF).bytes == MACHINE.limits.sbuf_usable_bytes


def test_an_overflow_tells_who_lives_when():
    toy = Toy()
    lines = [toy._site(f"line {i}") for i in range(6)]
    tiles = [toy.buffer(SBUF, (128, 40 * (i + 1)), site=lines[i]) for i in range(6)]
    tiles += [toy.buffer(SBUF, (128, 60), site=lines[0]) for _ in range(4)]
    _touch(toy, *tiles)
    _touch(toy, *tiles)
    with pytest.raises(KernelError) as caught:
        check_capacity(toy.build(), MACHINE)
    text = str(caught.value)
    assert caught.value.code == "NKS207"
    assert "SBUF overflow: 4,320 bytes per partition live at once, toy has 4,096" in text
    assert "1,120 B in 5 live  kernel.py:1  line 0" in text
    assert "960 B in 1 live  kernel.py:6  line 5" in text
    assert "more lines" in text
    assert len(text.splitlines()) <= 8


@pytest.mark.parametrize("is_inside", [True, False], ids=["inside", "outside"])
def test_a_loop_adds_up_tiles_from_outside_only(is_inside: bool):
    toy = Toy()
    half = COLUMNS // 2 + 1
    tile = toy.sbuf(128, half)
    with toy.loop(3):
        if is_inside:
            tile = toy.sbuf(128, half)
        _touch(toy, tile, toy.sbuf(128, half))
    program = toy.build()
    if is_inside:
        check_capacity(program, MACHINE)
    else:
        with pytest.raises(KernelError, match="overflow"):
            check_capacity(program, MACHINE)


def test_psum_is_counted_apart():
    toy = Toy()
    tiles = [toy.buffer(PSUM, (128, 512)) for _ in range(9)]
    _touch(toy, *tiles, *tiles)
    with pytest.raises(KernelError, match="PSUM overflow: 18,432 bytes"):
        check_capacity(toy.build(), MACHINE)


def test_old_idioms_may_spill():
    toy = Toy(is_hybrid=True)
    tiles = [toy.sbuf(128, COLUMNS) for _ in range(3)]
    _touch(toy, *tiles, *tiles)
    check_capacity(toy.build(), MACHINE)


def test_chosen_addresses_may_overlap():
    toy = Toy()
    tiles = [toy.buffer(SBUF, (128, COLUMNS), address=0) for _ in range(3)]
    _touch(toy, *tiles, *tiles)
    check_capacity(toy.build(), MACHINE)


def test_start_partitions():
    import numpy as np

    assert legal_starts(128) == (0,)
    assert legal_starts(64) == (0, 64)
    assert legal_starts(1) == (0, 32, 64, 96)
    starts, partitions = np.array([0, 32, 64, 64, 96, 5]), np.array([128, 33, 65, 64, 32, 1])
    assert is_legal_start(starts, partitions).tolist() == [True, False, False, True, True, False]
