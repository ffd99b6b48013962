from dataclasses import replace

import numpy as np
from tests.nkisim.toy import Toy, View

from nkisim.memory.liveness import home_loops, live_ranges


def _touch(toy: Toy, tile: View) -> None:
    toy.emit("memset", attrs={"value": 0}, dst=tile)


def test_a_tile_lives_from_its_first_to_its_last_use():
    toy = Toy()
    a, b, unused = toy.sbuf(1, 1), toy.sbuf(1, 1), toy.sbuf(1, 1)
    for tile in (a, b, a, b, b):
        _touch(toy, tile)
    first, last = live_ranges(toy.build())
    assert (first[a.buffer], last[a.buffer]) == (0, 2)
    assert (first[b.buffer], last[b.buffer]) == (1, 4)
    assert last[unused.buffer] == first[unused.buffer] - 1


def test_registers_are_no_buffers():
    toy = Toy()
    tile = toy.sbuf(1, 1)
    for _ in range(3):
        toy.register()
    _touch(toy, tile)
    toy.emit("register_store", dst=tile, src=toy.register())
    first, last = live_ranges(toy.build())
    assert (first.tolist(), last.tolist()) == ([0], [1])


def test_a_loop_keeps_tiles_from_outside_alive_from_end_to_end():
    toy = Toy()
    outside = toy.sbuf(1, 1)
    _touch(toy, outside)  # 0
    with toy.loop(4):
        inside = toy.sbuf(1, 1)
        _touch(toy, inside)  # 1
        with toy.loop(4):
            _touch(toy, toy.sbuf(1, 1))  # 2
            _touch(toy, outside)  # 3
            _touch(toy, inside)  # 4
        _touch(toy, toy.sbuf(1, 1))  # 5
    _touch(toy, toy.sbuf(1, 1))  # 6
    program = toy.build()
    first, last = live_ranges(program)
    assert (first[outside.buffer], last[outside.buffer]) == (0, 5)
    assert (first[inside.buffer], last[inside.buffer]) == (1, 4)
    assert home_loops(program).tolist() == [-1, 0, 1, 0, -1]


def test_a_tile_used_in_two_loops_lives_through_both():
    toy = Toy()
    tile = toy.sbuf(1, 1)
    for _ in range(2):
        with toy.loop(4):
            _touch(toy, toy.sbuf(1, 1))
            _touch(toy, tile)
            _touch(toy, toy.sbuf(1, 1))
    first, last = live_ranges(toy.build())
    assert (first[tile.buffer], last[tile.buffer]) == (0, 5)


def test_a_tile_used_after_its_loop_is_at_home_outside():
    toy = Toy()
    with toy.loop(4):
        tile = toy.sbuf(1, 1)
        _touch(toy, tile)
    _touch(toy, tile)
    program = toy.build()
    assert home_loops(program).tolist() == [-1]
    assert np.array_equal(live_ranges(program).last, [1])


def test_birth_at_the_first_instruction_of_a_loop_is_told_from_birth_before_it():
    toy = Toy()
    before = toy.sbuf(1, 1)
    with toy.loop(4):
        within = toy.sbuf(1, 1)
        for tile in (within, before, toy.sbuf(1, 1)):
            _touch(toy, tile)
    program = toy.build()
    assert program.buffers[before.buffer].birth == program.buffers[within.buffer].birth == 0
    first, last = live_ranges(program)
    assert (first[before.buffer], last[before.buffer]) == (0, 2)
    assert (first[within.buffer], last[within.buffer]) == (0, 0)
    moved = replace(program.buffers[within.buffer], loop=None)
    changed = replace(program, buffers=(program.buffers[0], moved, program.buffers[2]))
    assert live_ranges(changed).last[within.buffer] == 2
