import numpy as np
import numpy.typing as npt
import pytest
from tests.nkisim.toy import I32, MACHINE, OPS, Toy, View

from nkisim.errors import KernelError
from nkisim.execute.interpreter import execute
from nkisim.execute.validate import validate
from nkisim.ir.program import Program


def _rows(count: int, columns: int = 4) -> npt.NDArray[np.float32]:
    return np.arange(count * columns, dtype=np.float32).reshape(count, columns)


# -- loops ----------------------------------------------------------------------------------------


def test_a_for_loop_moves_its_accesses_by_the_loop_register():
    toy = Toy()
    x, y = toy.input(8, 4), toy.output(8, 4)
    with toy.loop(8) as i:
        tile = toy.sbuf(1, 4)
        toy.emit("dma_copy", dst=tile, src=x[0:1].at(i, bound=8, step=4))
        toy.emit("add", dst=tile, data1=tile, data2=tile)
        toy.emit("dma_copy", dst=y[0:1].at(i, bound=8, step=4), src=tile)
    program = toy.build(y)
    validate(program, MACHINE, OPS)
    result = execute(program, [_rows(8)], ops=OPS)
    assert np.array_equal(result.outputs[0], 2 * _rows(8))
    assert result.instructions_executed == 24
    assert result.trips is not None
    assert result.trips.loop_trips == ((8,),)
    assert result.trips.executed.tolist() == [0, 1, 2] * 8
    assert result.trips.position.tolist() == [p for t in range(8) for p in (3 * t, 3 * t + 2)]
    assert result.trips.low.tolist() == [4 * t for t in range(8) for _ in "ab"]
    assert result.trips.high.tolist() == [4 * t + 3 for t in range(8) for _ in "ab"]


def test_a_result_written_by_too_few_trips_is_incomplete():
    toy = Toy()
    x, y = toy.input(8, 4), toy.output(8, 4)
    with toy.loop(7) as i:
        tile = toy.sbuf(1, 4)
        toy.emit("dma_copy", dst=tile, src=x[0:1].at(i, bound=8, step=4))
        toy.emit("dma_copy", dst=y[0:1].at(i, bound=8, step=4), src=tile)
    with pytest.raises(
        KernelError, match=r"4 of 32 elements unwritten, the first is t1\[7, 0\]"
    ) as error:
        execute(toy.build(y), [_rows(8)], ops=OPS)
    assert error.value.code == "NKS209"


@pytest.mark.parametrize("trips", [0, 1])
def test_a_result_written_whole_inside_a_loop_needs_a_trip(trips: int):
    toy = Toy()
    x, y = toy.input(8, 4), toy.output(8, 4)
    with toy.loop(trips):
        toy.emit("dma_copy", dst=y, src=x)
    program = toy.build(y)
    if trips:
        assert np.array_equal(execute(program, [_rows(8)], ops=OPS).outputs[0], _rows(8))
    else:
        with pytest.raises(KernelError, match="not written completely"):
            execute(program, [_rows(8)], ops=OPS)


def test_loop_bounds_may_come_from_registers():
    toy = Toy()
    bounds, total, y = toy.input(1, 2, dtype=I32), toy.sbuf(1, 1, fill=0.0), toy.output(1, 1)
    one = toy.sbuf(1, 1, fill=1.0)
    start, stop = toy.register(), toy.register()
    toy.emit("register_load", dst=start, src=bounds[:, :1])
    toy.emit("register_load", dst=stop, src=bounds[:, 1:])
    with toy.loop(stop, start=start, step=3):
        toy.emit("add", dst=total, data1=total, data2=one)
    toy.emit("dma_copy", dst=y, src=total)
    program = toy.build(y)
    for first, last in ((0, 10), (2, 2), (5, 1), (1, 8)):
        result = execute(program, [np.array([[first, last]], np.int32)], ops=OPS)
        trips = len(range(first, last, 3))
        assert result.outputs[0].item() == trips
        assert result.trips is not None
        assert result.trips.loop_trips == ((trips,),)


def test_a_while_loop_reads_its_condition_before_each_trip():
    toy = Toy()
    x, y = toy.input(1, 1, dtype=I32), toy.output(1, 1)
    count, one = toy.sbuf(1, 1, fill=0.0), toy.sbuf(1, 1, fill=1.0)
    left, minus = toy.sbuf(1, 1, dtype=I32), toy.sbuf(1, 1, dtype=I32, fill=-1.0)
    condition = toy.register()
    toy.emit("dma_copy", dst=left, src=x)
    toy.emit("register_load", dst=condition, src=left)
    with toy.loop(condition=condition):
        toy.emit("add", dst=count, data1=count, data2=one)
        toy.emit("add", dst=left, data1=left, data2=minus)
        toy.emit("register_load", dst=condition, src=left)
    toy.emit("dma_copy", dst=y, src=count)
    program = toy.build(y)
    validate(program, MACHINE, OPS)
    for trips in (0, 1, 5):
        result = execute(program, [np.array([[trips]], np.int32)], ops=OPS)
        assert result.outputs[0].item() == trips


def test_nested_loops_log_their_trips_for_each_entry():
    toy = Toy()
    total, one, y = toy.sbuf(1, 1, fill=0.0), toy.sbuf(1, 1, fill=1.0), toy.output(1, 1)
    with toy.loop(4) as i:
        with toy.loop(i):
            toy.emit("add", dst=total, data1=total, data2=one)
        with toy.loop(2):
            pass
    toy.emit("dma_copy", dst=y, src=total)
    result = execute(toy.build(y), [], ops=OPS)
    assert result.outputs[0].item() == 6
    assert result.trips is not None
    assert result.trips.loop_trips == ((4,), (0, 1, 2, 3), (2, 2, 2, 2))


def test_a_tile_allocated_in_the_body_is_unwritten_on_every_trip():
    toy = Toy()
    y = toy.output(1, 4)
    with toy.loop(2) as i:
        tile = toy.sbuf(1, 4)
        with toy.loop(1, start=i):
            toy.emit("memset", attrs={"value": 1}, dst=tile)
        toy.emit("dma_copy", dst=y, src=tile)
    with pytest.raises(KernelError, match="unwritten"):
        execute(toy.build(y), [], ops=OPS)


def test_a_tile_from_outside_keeps_what_an_earlier_trip_wrote():
    toy = Toy()
    y, tile = toy.output(1, 4), toy.sbuf(1, 4)
    with toy.loop(2) as i:
        with toy.loop(1, start=i):
            toy.emit("memset", attrs={"value": 3}, dst=tile)
        toy.emit("dma_copy", dst=y, src=tile)
    assert (execute(toy.build(y), [], ops=OPS).outputs[0] == 3).all()


# -- scalar indices -------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [-1, 8, 2**30])
def test_a_scalar_index_out_of_bounds_is_an_error_with_its_line(value: int):
    toy = Toy()
    x, at, y = toy.input(8, 4), toy.input(1, 1, dtype=I32), toy.output(1, 4)
    register = toy.register()
    toy.emit("register_load", dst=register, src=at)
    toy.emit("dma_copy", dst=y, src=x[0:1].at(register, bound=8, step=4))
    program = toy.build(y)
    with pytest.raises(KernelError, match=f"index of src is {value}") as caught:
        execute(program, [_rows(8), np.array([[value]], np.int32)], ops=OPS)
    assert caught.value.code == "NKS402"
    assert caught.value.diagnostic.place == program.sites[program.site[1]].place


def test_a_legal_index_value_may_still_reach_outside():
    toy = Toy()
    x, at, y = toy.input(8, 4), toy.input(1, 1, dtype=I32), toy.output(4, 4)
    toy.emit("dma_copy", dst=y, src=x[0:4].at(at, bound=8, step=4))
    program = toy.build(y)
    index = np.array([[4]], np.int32)
    assert np.array_equal(execute(program, [_rows(8), index], ops=OPS).outputs[0], _rows(8)[4:])
    with pytest.raises(KernelError, match="out of bounds"):
        execute(program, [_rows(8), index + 1], ops=OPS)


def test_a_skipped_scalar_index_leaves_everything_untouched():
    toy = Toy()
    x, at, y = toy.input(8, 4), toy.input(1, 1, dtype=I32), toy.output(1, 4)
    tile = toy.sbuf(1, 4, fill=5.0)
    toy.emit("dma_copy", dst=tile, src=x[0:1].at(at, bound=8, step=4, skip=True))
    toy.emit("dma_copy", dst=y, src=tile)
    result = execute(toy.build(y), [_rows(8), np.array([[9]], np.int32)], ops=OPS)
    assert (result.outputs[0] == 5).all()
    assert result.trips is not None
    assert result.trips.rows.tolist() == [0]


# -- vector indices -------------------------------------------------------------------------------


def _gather(*, skip: bool, fill: float | None) -> Program:
    toy = Toy()
    x, at = toy.input(8, 4), toy.input(3, 1, dtype=I32)
    index, tile, y = toy.sbuf(3, 1, dtype=I32), toy.sbuf(3, 4, fill=fill), toy.output(3, 4)
    toy.emit("dma_copy", dst=index, src=at)
    toy.emit(
        "dma_copy",
        engine=OPS["dma_copy"].engines[1],
        dst=tile,
        src=x.rows(index, bound=8, skip=skip),
    )
    toy.emit("dma_copy", dst=y, src=tile)
    return toy.build(y)


def test_a_gather_takes_the_chosen_rows():
    program = _gather(skip=False, fill=None)
    validate(program, MACHINE, OPS)
    index = np.array([[5], [0], [5]], np.int32)
    result = execute(program, [_rows(8), index], ops=OPS)
    assert np.array_equal(result.outputs[0], _rows(8)[index[:, 0]])
    assert result.trips is not None
    assert (result.trips.low.tolist(), result.trips.high.tolist()) == ([0], [23])
    assert result.trips.rows.tolist() == [3]


@pytest.mark.parametrize("bad", [8, -1])
def test_a_gather_out_of_bounds_is_an_error(bad: int):
    program = _gather(skip=False, fill=None)
    with pytest.raises(KernelError, match=f"index of src is {bad}"):
        execute(program, [_rows(8), np.array([[0], [bad], [1]], np.int32)], ops=OPS)


def test_skipped_rows_keep_what_was_there():
    program = _gather(skip=True, fill=9.0)
    result = execute(program, [_rows(8), np.array([[2], [77], [1]], np.int32)], ops=OPS)
    assert np.array_equal(result.outputs[0], [_rows(8)[2], [9] * 4, _rows(8)[1]])
    assert result.trips is not None
    assert result.trips.rows.tolist() == [2]


def test_skipped_rows_of_fresh_memory_stay_unwritten():
    program = _gather(skip=True, fill=None)
    validate(program, MACHINE, OPS)
    whole = np.array([[2], [7], [1]], np.int32)
    assert np.array_equal(
        execute(program, [_rows(8), whole], ops=OPS).outputs[0], _rows(8)[[2, 7, 1]]
    )
    with pytest.raises(KernelError, match="16 of 48 bytes unwritten, first partition 1, element 0"):
        execute(program, [_rows(8), np.array([[2], [77], [1]], np.int32)], ops=OPS)


def _scatter(op: str, *, skip: bool, clears: bool) -> tuple[Toy, View]:
    toy = Toy()
    x, at, y = toy.input(3, 4), toy.input(3, 1, dtype=I32), toy.output(4, 4)
    index, zeros = toy.sbuf(3, 1, dtype=I32), toy.sbuf(4, 4, fill=0.0)
    toy.emit("dma_copy", dst=index, src=at)
    if clears:
        toy.emit("dma_copy", dst=y, src=zeros)
    toy.emit(op, dst=y.rows(index, bound=4, skip=skip), src=x)
    return toy, y


def test_a_scatter_writes_the_chosen_rows():
    toy, y = _scatter("dma_copy", skip=False, clears=True)
    program = toy.build(y)
    result = execute(program, [_rows(3), np.array([[3], [0], [1]], np.int32)], ops=OPS)
    assert np.array_equal(result.outputs[0], [_rows(3)[1], _rows(3)[2], [0] * 4, _rows(3)[0]])
    assert result.warnings == ()


def test_a_scatter_marks_only_the_rows_it_wrote():
    toy, y = _scatter("dma_copy", skip=False, clears=False)
    with pytest.raises(KernelError, match=r"4 of 16 elements unwritten, the first is \w+\[2, 0\]"):
        execute(toy.build(y), [_rows(3), np.array([[3], [0], [1]], np.int32)], ops=OPS)


def test_a_skipping_scatter_drops_rows_out_of_bounds():
    toy, y = _scatter("dma_copy", skip=True, clears=True)
    program = toy.build(y)
    result = execute(program, [_rows(3), np.array([[3], [-5], [4]], np.int32)], ops=OPS)
    assert np.array_equal(result.outputs[0], [[0] * 4] * 3 + [_rows(3)[0]])


def test_a_scatter_onto_one_row_warns_that_order_is_open():
    toy, y = _scatter("dma_copy", skip=False, clears=True)
    program = toy.build(y)
    result = execute(program, [_rows(3), np.array([[1], [1], [1]], np.int32)], ops=OPS)
    assert np.array_equal(result.outputs[0][1], _rows(3)[2])
    assert [warning.code for warning in result.warnings] == ["NKS408"]


def test_a_scatter_add_adds_every_equal_row():
    toy, y = _scatter("dma_compute", skip=True, clears=True)
    program = toy.build(y)
    result = execute(program, [_rows(3), np.array([[2], [2], [0]], np.int32)], ops=OPS)
    expected = np.zeros((4, 4), np.float32)
    np.add.at(expected, [2, 2, 0], _rows(3))
    assert np.array_equal(result.outputs[0], expected)
    skipped = execute(program, [_rows(3), np.array([[2], [2], [9]], np.int32)], ops=OPS)
    expected[0] = 0
    assert np.array_equal(skipped.outputs[0], expected)


def test_a_scatter_add_onto_unwritten_rows_is_an_error():
    toy, y = _scatter("dma_compute", skip=False, clears=False)
    with pytest.raises(KernelError, match="dst reads elements that no instruction has written"):
        execute(toy.build(y), [_rows(3), np.array([[2], [1], [0]], np.int32)], ops=OPS)
