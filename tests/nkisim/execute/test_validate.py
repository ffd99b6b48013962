from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.nkisim.programs import with_everything
from tests.nkisim.toy import BF16, HBM, I32, MACHINE, OPS, PSUM, SBUF, T, Toy, V, View, tiled_add

from nkisim.dtypes import DTYPES
from nkisim.errors import KernelError, ProgramError
from nkisim.execute.validate import validate
from nkisim.ir.program import Program


def _error(toy: Toy, *outputs: View) -> KernelError:
    with pytest.raises(KernelError) as caught:
        validate(toy.build(*outputs), MACHINE, OPS)
    return caught.value


def _toy() -> tuple[Toy, View, View]:
    """A toy with a complete result, an SBUF tile and that result."""
    toy = Toy()
    tile, y = toy.sbuf(128, 8, fill=0.0), toy.output(128, 8)
    toy.emit("dma_copy", dst=y, src=tile)
    return toy, tile, y


def test_a_good_program_passes():
    validate(tiled_add(), MACHINE, OPS)


# -- rules that a kernel can break -----------------------------------------------------------------


def test_the_op_tables_own_rules_are_checked_once_with_the_line():
    toy, tile, y = _toy()
    toy.emit("add", dst=tile, data1=tile[:, :4], data2=tile)
    error = _error(toy, y)
    assert error.code == "NKS101"
    assert str(error.diagnostic.place) == "kernel.py:4"


def test_an_engine_that_cannot_execute_it():
    toy, tile, y = _toy()
    toy.emit("add", engine=T, dst=tile, data1=tile, data2=tile)
    assert "add: the tensor engine cannot execute it" in str(_error(toy, y))


def test_a_memory_that_the_instruction_cannot_reach():
    toy, tile, y = _toy()
    toy.emit("nc_matmul", dst=tile[:8], stationary=tile, moving=tile)
    error = _error(toy, y)
    assert error.code == "NKS206"
    assert "dst cannot be in sbuf" in str(error)
    assert error.diagnostic.allowed == "psum"


def test_reaching_outside_of_a_tensor():
    toy, tile, y = _toy()
    x = toy.input(100, 8)
    toy.emit("dma_copy", dst=tile, src=replace(x, counts=(128, 8)))
    error = _error(toy, y)
    assert error.code == "NKS106"
    assert "src reaches outside of 't2'" in str(error)
    toy.operand_offset[-1] = -8
    assert _error(toy, y).code == "NKS106"


def test_running_over_from_one_partition_into_the_next():
    toy, tile, y = _toy()
    toy.emit("memset", attrs={"value": 0}, dst=replace(tile[:64], offset=4))
    error = _error(toy, y)
    assert error.code == "NKS106"
    assert "partition 0, byte 16" in str(error)


def test_a_partition_step_that_is_not_the_pitch():
    toy, tile, y = _toy()
    toy.emit("memset", attrs={"value": 0}, dst=replace(tile, strides=(4, 1), counts=(128, 4)))
    error = _error(toy, y)
    assert error.code == "NKS107"
    assert "partition step 4" in str(error)


def test_a_dtype_view_has_its_own_pitch():
    toy, tile, y = _toy()
    toy.emit("memset", attrs={"value": 0}, dst=tile.as_dtype(BF16))
    validate(toy.build(y), MACHINE, OPS)


@pytest.mark.parametrize(
    ("start", "count", "is_legal"),
    [
        *((0, 128, True), (64, 64, True), (32, 64, False), (32, 32, True), (96, 32, True)),
        *((5, 1, False), (64, 1, True), (32, 96, False), (64, 33, True), (32, 33, False)),
    ],
)
def test_start_partitions_of_engine_accesses(start: int, count: int, is_legal: bool):
    toy, tile, y = _toy()
    part = tile[start : start + count]
    toy.emit("dma_copy", dst=part, src=y[start : start + count])
    validate(toy.build(y), MACHINE, OPS)
    toy.emit("memset", attrs={"value": 0}, dst=part)
    if is_legal:
        validate(toy.build(y), MACHINE, OPS)
    else:
        error = _error(toy, y)
        assert error.code == "NKS108"
        assert f"starts at partition {start}" in str(error)


def test_a_matmul_over_two_banks():
    toy = Toy()
    w, x, y = toy.sbuf(4, 4, fill=1.0), toy.sbuf(4, 512, fill=1.0), toy.output(4, 1)
    psum = toy.psum(4, 1024)
    toy.emit("nc_matmul", dst=psum[:, 512:], stationary=w, moving=x)
    toy.emit("nc_matmul", dst=psum[:, :512], stationary=w, moving=x)
    toy.emit("dma_copy", dst=y, src=w[:, :1])
    validate(toy.build(y), MACHINE, OPS)
    toy.emit("nc_matmul", dst=psum[:, 256:768], stationary=w, moving=x)
    error = _error(toy, y)
    assert error.code == "NKS211"
    assert "from byte 1024" in str(error)
    validate(toy.build(y), replace(MACHINE, generation=4), OPS)


def test_writing_to_an_input_or_a_constant():
    toy, tile, y = _toy()
    x = toy.input(128, 8)
    toy.emit("dma_copy", dst=x, src=tile)
    error = _error(toy, y)
    assert error.code == "NKS210"
    assert "writes to the input 't2'" in str(error)
    toy, tile, y = _toy()
    toy.emit("dma_copy", dst=toy.constant(np.zeros((128, 8), np.float32)), src=tile)
    assert "writes to the constant" in str(_error(toy, y))
    toy, tile, y = _toy()
    toy.emit("dma_copy", dst=toy.input(128, 8, is_written=True), src=tile)
    validate(toy.build(y), MACHINE, OPS)


def test_constants_beyond_the_cap():
    toy, _, y = _toy()
    toy.constant(np.zeros(MACHINE.limits.constant_bytes_max + 1, np.uint8))
    assert _error(toy, y).code == "NKS204"


def test_too_much_hbm():
    toy, _, y = _toy()
    toy.buffer(HBM, (50_000_000_000,))
    assert _error(toy, y).code == "NKS212"


@pytest.mark.parametrize(
    ("shape", "start", "address", "code"),
    [
        ((129, 1), 0, None, "NKS103"),
        ((64, 1), 96, 0, "NKS213"),
        ((64, 1), 64, 4093, "NKS202"),
        ((64, 2000), 0, None, "NKS202"),
    ],
    ids=["partitions", "start", "address", "size"],
)
def test_tiles_that_do_not_fit(shape: tuple[int, int], start: int, address: int | None, code: str):
    toy, _, y = _toy()
    toy.buffer(SBUF, shape, start_partition=start, address=address)
    assert _error(toy, y).code == code


def test_an_index_of_the_wrong_kind():
    toy, tile, y = _toy()
    x = toy.input(200, 8)
    toy.emit("dma_copy", dst=tile, src=x.rows(tile[:, :1], bound=200))
    assert _error(toy, y).code == "NKS405"
    toy, tile, y = _toy()
    index = toy.sbuf(128, 2, dtype=I32, fill=0.0)
    toy.emit("dma_copy", dst=tile, src=toy.input(200, 8)[:128].at(index, bound=10))
    assert "scalar index of src must be 1 integers" in str(_error(toy, y))


# -- Programs that no kernel leads to --------------------------------------------------------------


def _dynamic() -> Program:
    toy = Toy()
    x, y = toy.input(8, 4), toy.output(8, 4)
    with toy.loop(8) as i:
        toy.emit("dma_copy", dst=y[0:1].at(i, bound=8, step=4), src=x[0:1].at(i, bound=8, step=4))
    with toy.loop(3), toy.loop(2):
        toy.emit("dma_copy", dst=y, src=x)
    return toy.build(y)


def _change_buffer(**changes: Any) -> Callable[[Program], Program]:
    def change(program: Program) -> Program:
        first = replace(program.buffers[0], **changes)
        return replace(program, buffers=(first, *program.buffers[1:]))

    return change


def _change_loop(number: int, **changes: Any) -> Callable[[Program], Program]:
    def change(program: Program) -> Program:
        loops = list(program.loops)
        loops[number] = replace(loops[number], **changes)
        return replace(program, loops=tuple(loops))

    return change


def _change_form(**changes: Any) -> Callable[[Program], Program]:
    def change(program: Program) -> Program:
        forms = (replace(program.forms[0], **changes), *program.forms[1:])
        return replace(program, forms=forms)

    return change


def _change_roles(*roles: str) -> Callable[[Program], Program]:
    def change(program: Program) -> Program:
        form = program.forms[0]
        operands = tuple(
            replace(operand, role=role) for operand, role in zip(form.operands, roles, strict=True)
        )
        return replace(program, forms=(replace(form, operands=operands), *program.forms[1:]))

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: replace(p, machine="trn9"), "traced for 'trn9'"),
        (lambda p: replace(p, outputs=()), "no outputs"),
        (lambda p: replace(p, outputs=(replace(p.outputs[0], offset=1),)), "not inside"),
        (lambda p: replace(p, arguments=()), "do not match"),
        (lambda p: replace(p, buffers=()), "no buffers"),
        (_change_buffer(kind="constant"), "has a constant by mistake"),
        (_change_buffer(memory=SBUF), "on chip is an argument"),
        (_change_buffer(partitions=2), "in HBM has partitions"),
        (_change_buffer(fill=1.0), "has a fill"),
        (_change_buffer(dtype=DTYPES["int8"]), "does not match its buffer"),
        (_change_form(op="frobnicate"), "no 'frobnicate'"),
        (_change_form(operands=()), "operand dst is missing"),
        (_change_roles("dst", "dst.index", "dst", "dst.index"), "occurs twice"),
        (_change_roles("dst", "index", "src", "src.index"), "operand index follows"),
        (_change_roles("dst", "src.index", "src", "dst.index"), "is not the index of dst"),
        (_change_roles("dst", "dst.index", "what", "what.index"), "no operand what"),
        (_change_loop(0, first=1, last=2), "not well nested"),
        (_change_loop(2, parent=0), "not well nested"),
        (_change_loop(2, parent=None), "not well nested"),
        (_change_loop(2, last=5), "not well nested"),
        (_change_loop(0, step=0), "illegal bounds"),
        (_change_loop(0, register=7), "register that is not there"),
    ],
)
def test_impossible_programs_are_refused(change: Callable[[Program], Program], words: str):
    program = _dynamic()
    validate(program, replace(MACHINE, name="toy"), OPS)
    with pytest.raises(ProgramError, match=words):
        validate(change(program), MACHINE, OPS)


def test_memory_of_operand_and_buffer_must_agree():
    toy, tile, y = _toy()
    psum = toy.buffer(PSUM, (128, 8))
    toy.emit("memset", engine=V, attrs={"value": 0}, dst=replace(tile, buffer=psum.buffer))
    with pytest.raises(ProgramError, match="not in its buffer's memory"):
        validate(toy.build(y), MACHINE, OPS)


def test_a_check_that_trips_over_hostile_attributes_is_no_crash():
    toy, tile, y = _toy()
    toy.emit("add", data1=tile, data2=tile, dst2=tile)
    with pytest.raises(ProgramError):
        validate(toy.build(y), MACHINE, OPS)


def test_every_part_of_the_format_can_be_legal():
    program = with_everything()
    forms = tuple(
        replace(form, attrs=tuple(item for item in form.attrs if item[0] != "list"))
        for form in program.forms
    )
    validate(replace(program, forms=forms), MACHINE, OPS)


@pytest.mark.parametrize(
    "attrs",
    [
        (),
        (("value", "1"),),
        (("value", True),),
        (("value", (1, 2)),),
        (("value", 1), ("value", 2)),
        (("dst", 1), ("value", 1)),
        (("frobnicate", 1), ("value", 1)),
        (("engine", "vector"), ("value", 1)),
    ],
)
def test_malformed_attributes_are_refused_before_anything_uses_them(attrs):
    toy, tile, y = _toy()
    toy.emit("memset", engine=V, attrs={"value": 1}, dst=tile)
    toy.emit("dma_copy", dst=y, src=tile)
    program = toy.build(y)
    number = next(i for i, form in enumerate(program.forms) if form.op == "memset")
    forms = list(program.forms)
    forms[number] = replace(forms[number], attrs=attrs)
    with pytest.raises(ProgramError, match="memset: "):
        validate(replace(program, forms=tuple(forms)), MACHINE, OPS)
