import time
from dataclasses import replace

import numpy as np
import pytest
from tests.nkisim.toy import HBM, OPS, Toy, tiled_add

from nkisim.errors import OutOfFuel
from nkisim.execute.fuel import Fuel
from nkisim.execute.interpreter import execute
from nkisim.ir.program import Program


def _loop(stop: int, *, body: int = 1, depth: int = 1) -> Program:
    toy = Toy()
    tile, y = toy.sbuf(1, 1, fill=0.0), toy.output(1, 1)

    def nest(left: int) -> None:
        with toy.loop(stop):
            if left > 1:
                nest(left - 1)
            else:
                for _ in range(body):
                    toy.emit("memset", attrs={"value": 1}, dst=tile)

    nest(depth)
    toy.emit("dma_copy", dst=y, src=tile)
    return toy.build(y)


def _endless() -> Program:
    toy = Toy()
    tile, y, one = toy.sbuf(1, 1, fill=0.0), toy.output(1, 1), toy.sbuf(1, 1, fill=1.0)
    condition = toy.register()
    toy.emit("register_load", dst=condition, src=one)
    with toy.loop(condition=condition):
        toy.emit("memset", attrs={"value": 1}, dst=tile)
    toy.emit("dma_copy", dst=y, src=tile)
    return toy.build(y)


def _huge() -> Program:
    toy = Toy()
    scratch, y = toy.buffer(HBM, (50_000_000_000,)), toy.output(1, 1)
    toy.emit("dma_copy", dst=scratch[:1], src=toy.sbuf(1, fill=1.0))
    toy.emit("dma_copy", dst=y, src=scratch[:1])
    return toy.build(y)


@pytest.mark.parametrize(
    ("program", "fuel", "resource"),
    [
        (_loop(10**9), Fuel(), "loop trips"),
        (_loop(10**9, body=0), Fuel(), "loop trips"),
        (_loop(1000, body=3000), Fuel(), "instructions"),
        (_loop(500, depth=3), Fuel(loop_trips=50_000), "loop trips"),
        (_endless(), Fuel(loop_trips=20_000), "loop trips"),
        (_endless(), Fuel(instructions=20_000), "instructions"),
        (_huge(), Fuel(), "bytes"),
        (tiled_add(), Fuel(instructions=5), "instructions"),
        (tiled_add(), Fuel(bytes=100_000), "bytes"),
        (tiled_add(), Fuel(traffic_bytes=1_000_000), "traffic bytes"),
        (_loop(1000, body=10), Fuel(traffic_bytes=1000), "traffic bytes"),
    ],
    ids=[
        "billion trips",
        "billion empty trips",
        "long body",
        "nested",
        "endless by trips",
        "endless by instructions",
        "200 GB",
        "straight instructions",
        "bytes",
        "traffic",
        "traffic in loop",
    ],
)
def test_a_runaway_is_stopped_soon(program: Program, fuel: Fuel, resource: str):
    start = time.monotonic()
    inputs = [np.zeros(a.shape, np.float32) for a in program.arguments]
    with pytest.raises(OutOfFuel) as caught:
        execute(program, inputs, fuel=fuel, ops=OPS)
    assert caught.value.resource == resource
    assert time.monotonic() - start < 10


def test_a_known_trip_count_is_refused_before_the_first_trip():
    with pytest.raises(OutOfFuel, match=r"1,000,000,000 needed") as caught:
        execute(_loop(10**9), [], ops=OPS)
    assert "kernel.py" in str(caught.value)


def test_exactly_enough_fuel_is_enough():
    program = _loop(10, body=3)
    fuel = Fuel(instructions=31, loop_trips=10)
    assert execute(program, [], fuel=fuel, ops=OPS).instructions_executed == 31
    for short in (replace(fuel, instructions=30), replace(fuel, loop_trips=9)):
        with pytest.raises(OutOfFuel):
            execute(program, [], fuel=short, ops=OPS)


def test_dead_tiles_do_not_count_as_bytes():
    program = tiled_add(128, 4096)  # 32 x 3 tiles of 64 KiB, three alive, and a result of 2 MiB
    inputs = [np.ones(a.shape, np.float32) for a in program.arguments]
    flags = 128 * 32  # one for each row of a stored tile
    needed = (2 << 20) + 3 * 65_536 + flags
    execute(program, inputs, fuel=Fuel(bytes=needed), ops=OPS)
    with pytest.raises(OutOfFuel):
        execute(program, inputs, fuel=Fuel(bytes=needed - 1), ops=OPS)
