"""The placement policy: rotation, addresses, taking over."""

import numpy as np
import pytest
from tests.nkisim import toy
from tests.nkisim.toy import HBM, PSUM, SBUF, Toy

from nkisim.memory.allocator import AddressSpace
from nkisim.memory.placement import place_tiles


def _rotating(instances, *, columns=64, live=1):
    """One site that allocates again and again; the `live` latest tiles are in use at once."""
    build = Toy()
    site = build._site("tile = ndarray(...)")
    tiles = []
    for _ in range(instances):
        tiles.append(build.buffer(SBUF, (4, columns), site=site))
        for tile in reversed(tiles[-live:]):
            build.emit("memset", attrs={"value": 1.0}, dst=tile)
    return build.build()


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_a_site_rotates_over_its_places(copies):
    placement = place_tiles(_rotating(6), toy.MACHINE, copies=copies)
    expected = [256 * (i % copies) for i in range(6)]
    assert placement.address.tolist() == expected


def test_a_site_that_allocates_once_has_one_place():
    placement = place_tiles(_rotating(1), toy.MACHINE)
    assert placement.sites[0].places == 1


def test_tiles_alive_at_once_have_separate_places():
    placement = place_tiles(_rotating(8, live=4), toy.MACHINE, copies=2)
    assert placement.sites[0].places == 4


def _in_turn(sizes, order):
    """Tiles of `sizes` columns, each used once, in `order`."""
    build = Toy()
    tiles = [build.sbuf(4, size) for size in sizes]
    for number in order:
        build.emit("memset", attrs={"value": 1.0}, dst=tiles[number])
    return place_tiles(build.build(), toy.MACHINE)


def test_space_of_the_longest_dead_is_taken_over_when_memory_is_full():
    placement = _in_turn([256] * 5, [1, 0, 2, 3, 4])
    assert placement.address.tolist() == [1024, 0, 2048, 3072, 0]
    assert placement.place[1] == placement.place[4]
    assert not placement.overlaps


def test_a_smaller_tile_that_takes_over_overlaps_the_old_place():
    placement = _in_turn([512, 512, 256], [0, 1, 2])
    assert placement.address.tolist() == [0, 2048, 0]
    first, taker = int(placement.place[0]), int(placement.place[2])
    assert placement.overlaps == {first: (taker,), taker: (first,)}


def test_a_fixed_address_is_kept_and_its_neighbours_are_known():
    build = Toy()
    fixed = [build.buffer(SBUF, (4, 64), address=address) for address in (0, 128, 512)]
    for tile in fixed:
        build.emit("memset", attrs={"value": 1.0}, dst=tile)
    placement = place_tiles(build.build(), toy.MACHINE)
    assert placement.address.tolist() == [0, 128, 512]
    assert set(placement.overlaps) == {int(placement.place[0]), int(placement.place[1])}


def test_psum_tiles_take_whole_banks_and_hbm_stays_apart():
    build = Toy()
    tiles = [build.buffer(PSUM, (4, 8)), build.buffer(HBM, (4, 8)), build.buffer(PSUM, (4, 8))]
    for tile in tiles:
        build.emit("memset", attrs={"value": 0.0}, dst=tile)
    placement = place_tiles(build.build(), toy.MACHINE)
    assert placement.address.tolist() == [0, 0, 2048]
    assert placement.bytes.tolist() == [32, 128, 32]
    assert placement.bank.tolist() == [0, -1, 1]
    assert not placement.overlaps


def test_placement_is_deterministic_and_printable():
    program = _rotating(40, columns=256, live=2)
    first, second = (place_tiles(program, toy.MACHINE) for _ in range(2))
    assert np.array_equal(first.address, second.address)
    text = str(first)
    assert "kernel.py:1  sbuf [4, 256] float32: 40 tiles in" in text


def test_taking_over_never_cuts_into_what_lives():
    space = AddressSpace(100)
    for size, until in [(40, 5), (20, 50), (40, 3)]:
        stretch = space.fresh(size, 0)
        assert stretch is not None
        stretch.busy_until = until
    assert space.take_over(50, now=10) is None
    taken = space.take_over(30, now=10)
    assert taken is not None
    assert (taken.address, taken.end) == (60, 90)
    assert [s.address for s in space.stretches] == [0, 40, 60]
