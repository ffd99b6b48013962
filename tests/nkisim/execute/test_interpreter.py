import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nkisim.programs import Unwritten, slow_execute, straight_line
from tests.nkisim.toy import BF16, I32, MACHINE, OPS, Toy, View, tiled_add

from nkisim.errors import EmulatorBug, KernelError, ProgramError
from nkisim.execute.interpreter import Interpreter, execute
from nkisim.execute.validate import validate
from nkisim.ir.encode import decode, encode
from nkisim.ir.program import Program


def _values(*shape: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def test_a_tiled_kernel_gives_numpys_result():
    program = tiled_add(256, 512)
    a, b = _values(256, 512), _values(256, 512, seed=1)
    result = execute(program, [a, b], ops=OPS)
    assert np.array_equal(result.outputs[0], a + b)
    assert result.instructions_executed == len(program)
    assert result.trips is None


def test_runs_do_not_influence_each_other():
    interpreter = Interpreter(tiled_add(128, 256), ops=OPS)
    first = interpreter.run([_values(128, 256), _values(128, 256)])
    kept = first.outputs[0].copy()
    second = interpreter.run([_values(128, 256, seed=5), _values(128, 256, seed=6)])
    assert np.array_equal(first.outputs[0], kept)
    assert np.array_equal(second.outputs[0], _values(128, 256, seed=5) + _values(128, 256, seed=6))


@given(straight_line())
@settings(max_examples=300, deadline=None)
def test_random_programs_agree_with_the_slow_interpreter(program: Program):
    inputs = [_values(*program.arguments[0].shape)]
    try:
        expected = slow_execute(program, inputs)
    except Unwritten as unwritten:
        code = "NKS209" if unwritten.instruction is None else "NKS208"
        for run in (
            lambda: execute(program, inputs, ops=OPS),
            lambda: validate(program, MACHINE, OPS),
        ):
            with pytest.raises(KernelError) as caught:
                run()
            assert caught.value.code == code
            if unwritten.instruction is not None:
                place = program.sites[program.site[unwritten.instruction]].place
                assert caught.value.diagnostic.place == place
        return
    validate(program, MACHINE, OPS)
    interpreter = Interpreter(decode(encode(program)), ops=OPS)
    for _ in range(2):
        for got, wanted in zip(interpreter.run(inputs).outputs, expected, strict=True):
            assert np.array_equal(got, wanted)


# -- reading memory that nothing wrote ------------------------------------------------------------


def test_reading_an_unwritten_column_is_an_error_with_line_and_element():
    toy = Toy()
    tile, other = toy.sbuf(4, 8), toy.sbuf(4, 8)
    y = toy.output(4, 8)
    toy.emit("memset", attrs={"value": 1}, dst=tile[:, :7])
    toy.emit("tensor_copy", dst=other[:, :7], src=tile[:, :7])
    toy.emit("tensor_copy", dst=other, src=tile)
    toy.emit("dma_copy", dst=y, src=other)
    with pytest.raises(KernelError) as caught:
        execute(toy.build(y), [], ops=OPS)
    error = caught.value
    assert error.code == "NKS208"
    assert error.diagnostic.place is not None
    assert error.diagnostic.place.text == "tensor_copy(…)"
    assert error.diagnostic.place.line == 6
    assert "16 of 128 bytes unwritten, first partition 0, element 7 of 't0'" in str(error)


def test_reading_in_the_instruction_that_first_writes_is_an_error():
    toy = Toy()
    tile, y = toy.sbuf(4, 8), toy.output(4, 8)
    toy.emit("add", dst=tile, data1=tile, data2=tile)
    toy.emit("dma_copy", dst=y, src=tile)
    with pytest.raises(KernelError, match="data1 reads elements that no instruction"):
        execute(toy.build(y), [], ops=OPS)


def test_an_incomplete_result_is_an_error():
    toy = Toy()
    tile, y = toy.sbuf(4, 8), toy.output(8, 8)
    toy.emit("memset", attrs={"value": 1}, dst=tile)
    toy.emit("dma_copy", dst=y[:4], src=tile)
    program = toy.build(y)
    with pytest.raises(
        KernelError, match=r"32 of 64 elements unwritten, the first is t1\[4, 0\]"
    ) as error:
        execute(program, [], ops=OPS)
    assert error.value.code == "NKS209"
    assert execute(toy.build(y[:4]), [], ops=OPS).outputs[0].shape == (4, 8)


def test_a_result_never_touched_is_an_error():
    toy = Toy()
    with pytest.raises(KernelError, match="not written completely"):
        execute(toy.build(toy.output(2, 2)), [], ops=OPS)


def test_interleaved_strided_writes_cover_a_tile():
    toy = Toy()
    tile, y = toy.sbuf(4, 9), toy.output(4, 9)
    toy.emit("memset", attrs={"value": 1}, dst=tile[:, 0::2])
    toy.emit("memset", attrs={"value": 2}, dst=tile[:, 1::2])
    toy.emit("dma_copy", dst=y, src=tile)
    result = execute(toy.build(y), [], ops=OPS).outputs[0]
    assert result[0].tolist() == [1, 2, 1, 2, 1, 2, 1, 2, 1]


def test_half_of_a_float_written_through_another_dtype_is_not_written():
    toy = Toy()
    tile, y = toy.sbuf(4, 8), toy.output(4, 8)
    toy.emit("memset", attrs={"value": 1}, dst=tile.as_dtype(BF16)[:, 0::2])
    toy.emit("dma_copy", dst=y, src=tile)
    program = toy.build(y)
    with pytest.raises(KernelError, match="unwritten"):
        execute(program, [], ops=OPS)
    with pytest.raises(KernelError, match="unwritten"):
        validate(program, MACHINE, OPS)


@pytest.mark.parametrize("fill", [0.0, 2.5, float("-inf")])
def test_filled_tiles_may_be_read_at_once(fill: float):
    toy = Toy()
    tile, y = toy.sbuf(4, 8, fill=fill), toy.output(4, 8)
    toy.emit("dma_copy", dst=y, src=tile)
    assert (execute(toy.build(y), [], ops=OPS).outputs[0] == fill).all()


def test_integer_fills_saturate():
    toy = Toy()
    tile, y = toy.sbuf(1, 1, dtype=I32, fill=1e12), toy.output(1, 1, dtype=I32)
    toy.emit("dma_copy", dst=y, src=tile)
    assert execute(toy.build(y), [], ops=OPS).outputs[0].item() == 2**31 - 1


# -- storage --------------------------------------------------------------------------------------


def test_views_of_one_tile_alias():
    toy = Toy()
    x, tile, y = toy.input(4, 8), toy.sbuf(4, 8), toy.output(4, 8)
    toy.emit("dma_copy", dst=tile, src=x)
    toy.emit("add", dst=tile[:, 2:6], data1=tile[:, 0:4], data2=tile[:, 2:6])
    toy.emit("dma_copy", dst=y, src=tile)
    values = _values(4, 8)
    expected = values.copy()
    expected[:, 2:6] = values[:, 0:4] + values[:, 2:6]
    assert np.array_equal(execute(toy.build(y), [values], ops=OPS).outputs[0], expected)


def test_a_tile_reused_from_the_pool_is_fresh_memory():
    toy = Toy()
    y = toy.output(4, 8)
    first = toy.sbuf(4, 8)
    toy.emit("memset", attrs={"value": 7}, dst=first)
    second = toy.sbuf(4, 8)
    toy.emit("memset", attrs={"value": 1}, dst=second[:2])
    toy.emit("dma_copy", dst=y, src=second)
    with pytest.raises(KernelError, match="unwritten"):
        execute(toy.build(y), [], ops=OPS)


def test_inputs_are_read_only_and_not_copied():
    toy = Toy()
    x, y = toy.input(4, 8), toy.output(4, 8)
    toy.emit("dma_copy", dst=x[:2], src=x[2:])
    toy.emit("dma_copy", dst=y, src=x)
    values = _values(4, 8)
    before = values.copy()
    with pytest.raises(EmulatorBug, match="read-only"):
        execute(toy.build(y), [values], ops=OPS)
    assert np.array_equal(values, before)


def test_written_arguments_come_back_as_copies():
    toy = Toy()
    x = toy.input(4, 8, is_written=True)
    toy.emit("dma_compute", dst=x[:2], src=x[2:])
    values = _values(4, 8)
    before = values.copy()
    result = execute(toy.build(x), [values], ops=OPS)
    expected = before.copy()
    expected[:2] += before[2:]
    assert np.array_equal(values, before)
    assert np.array_equal(result.written_arguments[0], expected)
    assert np.array_equal(result.outputs[0], expected)


def test_constants_are_inputs_of_their_own():
    toy = Toy()
    y = toy.output(3, 4, dtype=I32)
    values = np.arange(12, dtype=np.int32).reshape(3, 4)
    toy.emit("dma_copy", dst=y, src=toy.constant(values))
    assert np.array_equal(execute(toy.build(y), [], ops=OPS).outputs[0], values)


def test_outputs_are_the_view_that_the_kernel_returned():
    toy = Toy()
    x, y = toy.input(4, 8), toy.output(4, 8)
    toy.emit("dma_copy", dst=y, src=x)
    values = _values(4, 8)
    outputs = execute(toy.build(y[1:3, ::2], x), [values], ops=OPS).outputs
    assert np.array_equal(outputs[0], values[1:3, ::2])
    assert np.array_equal(outputs[1], values)
    assert not np.shares_memory(outputs[1], values)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ([], "expected 1 arrays, got 0"),
        ([np.zeros((4, 9), np.float32)], r"expected \[4, 8\] float32, got \[4, 9\]"),
        ([np.zeros((4, 8), np.float64)], "got .* float64"),
    ],
    ids=["count", "shape", "dtype"],
)
def test_wrong_inputs_are_refused(arrays: list[npt.NDArray[np.generic]], words: str):
    toy = Toy()
    x = toy.input(4, 8)
    with pytest.raises(ValueError, match=words):
        execute(toy.build(x), arrays, ops=OPS)


def test_an_unknown_instruction_is_refused():
    toy = Toy()
    y = toy.output(1, 1)
    toy.emit("frobnicate", dst=y)
    with pytest.raises(ProgramError, match="frobnicate"):
        execute(toy.build(y), [], ops=OPS)


def test_an_access_outside_of_its_buffer_never_reads_foreign_memory():
    toy = Toy()
    x, y = toy.input(4, 8), toy.output(4, 8)
    toy.emit("dma_copy", dst=y, src=x)
    program = toy.build(y)
    program.operand_offset[1] = 1
    with pytest.raises(EmulatorBug):
        execute(program, [_values(4, 8)], ops=OPS)


# -- matmul results in PSUM -----------------------------------------------------------------------


def _matmul(toy: Toy, dst: View, w: View, x: View, accumulate: bool | None = None) -> None:
    toy.emit("nc_matmul", attrs={"accumulate": accumulate}, dst=dst, stationary=w, moving=x)


def _matmul_toy() -> tuple[Toy, View, View, View]:
    toy = Toy()
    w, x, y = toy.sbuf(4, 4, fill=1.0), toy.sbuf(4, 8, fill=1.0), toy.output(4, 8)
    return toy, w, x, y


def _run(toy: Toy, y: View, tile: View) -> npt.NDArray[np.generic]:
    toy.emit("dma_copy", dst=y, src=tile)
    return execute(toy.build(y), [], ops=OPS).outputs[0]


@pytest.mark.parametrize(
    ("case", "left", "right"),
    [
        ("same access twice", 8, 8),
        ("two halves", 4, 4),
        ("overlap", 4, 8),
        ("fresh tile", 4, 4),
        ("copied over", 4, 4),
        ("left half copied over", 4, 8),
        ("transposed over", 4, 8),
        ("never accumulate", 4, 4),
        ("onto zeros", 4, 4),
    ],
)
def test_matmul_adds_exactly_where_a_result_is(case: str, left: float, right: float):
    toy, w, x, y = _matmul_toy()
    psum, out = toy.psum(4, 8), toy.sbuf(4, 8)
    xs = x[:, :4]
    match case:
        case "same access twice":
            _matmul(toy, psum, w, x)
            _matmul(toy, psum, w, x)
        case "two halves":
            _matmul(toy, psum[:, :4], w, xs)
            _matmul(toy, psum[:, 4:], w, xs)
        case "overlap":
            _matmul(toy, psum[:, 4:], w, xs)
            _matmul(toy, psum, w, x)
        case "fresh tile":
            _matmul(toy, psum, w, x)
            psum = toy.psum(4, 8)
            _matmul(toy, psum, w, x)
        case "copied over":
            _matmul(toy, psum, w, x)
            toy.emit("tensor_copy", dst=psum, src=x)
            _matmul(toy, psum, w, x)
        case "left half copied over":
            _matmul(toy, psum, w, x)
            toy.emit("tensor_copy", dst=psum[:, :4], src=xs)
            _matmul(toy, psum, w, x)
        case "transposed over":
            _matmul(toy, psum, w, x)
            toy.emit("nc_transpose", dst=psum[:, :4], src=w)
            _matmul(toy, psum, w, x)
        case "never accumulate":
            _matmul(toy, psum, w, x)
            _matmul(toy, psum, w, x, accumulate=False)
        case "onto zeros":
            psum = toy.psum(4, 8, fill=0.0)
            _matmul(toy, psum, w, x, accumulate=True)
    toy.emit("tensor_copy", dst=out, src=psum)
    result = _run(toy, y, out)
    assert (result[:, :4] == left).all()
    assert (result[:, 4:] == right).all()


def test_accumulating_onto_fresh_psum_is_an_error():
    toy, w, x, y = _matmul_toy()
    psum, out = toy.psum(4, 8), toy.sbuf(4, 8)
    _matmul(toy, psum, w, x, accumulate=True)
    toy.emit("tensor_copy", dst=out, src=psum)
    with pytest.raises(KernelError, match="dst reads elements that no instruction has written"):
        _run(toy, y, out)


@given(st.integers(1, 5))
def test_a_tile_from_outside_accumulates_over_loop_trips_one_from_inside_does_not(trips: int):
    for is_inside in (True, False):
        toy, w, x, y = _matmul_toy()
        out = toy.sbuf(4, 8)
        psum = toy.psum(4, 8)
        with toy.loop(trips):
            if is_inside:
                psum = toy.psum(4, 8)
            _matmul(toy, psum, w, x)
            toy.emit("tensor_copy", dst=out, src=psum)
        assert (_run(toy, y, out) == (4 if is_inside else 4 * trips)).all()
