import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nkisim.programs import straight_line, with_everything
from tests.nkisim.toy import Toy, tiled_add

from nkisim.errors import ProgramError
from nkisim.ir.parser import parse
from nkisim.ir.printer import listing, render
from nkisim.ir.program import Program, is_equal


@given(straight_line())
@settings(max_examples=50, deadline=None)
def test_any_program_parses_back(program: Program):
    assert is_equal(parse(render(program)), program)


def test_every_part_of_the_format_parses_back():
    program = with_everything()
    assert is_equal(parse(render(program)), program)


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_source_text_parses_back(name: str, value: str):
    toy = Toy()
    tile = toy.sbuf(1, 1)
    toy._site(name.encode("utf-8", "replace").decode())
    toy.emit("memset", attrs={"label": value.encode("utf-8", "replace").decode()}, dst=tile)
    program = toy.build(tile)
    assert is_equal(parse(render(program)), program)


def test_a_line_shows_engine_op_operands_attributes_and_source():
    program = tiled_add(128, 256)
    line = " ".join(listing(program).splitlines()[2].split())
    assert line == (
        '2 vector.add{op="add"} dst=sbuf.5[0; 128,128: 128,1] float32 '
        "data1=sbuf.3[0; 128,128: 128,1] float32 data2=sbuf.4[0; 128,128: 128,1] float32 "
        ";8 kernel.py:9 line 5"
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("0  sync.dma_copy", "7  sync.dma_copy", "not numbered"),
        ("sync.dma_copy", "warp.dma_copy", "warp"),
        ("dst=sbuf", "dst-sbuf", "cannot read column"),
        ("buffer 0 hbm", "buffer 0 flash", "flash"),
        ("float32 data1", "float99 data1", "float99"),
        ("instructions", "instruction", "unknown kind of line"),
        ("sbuf.3[0;", "sbuf.999[0;", "not there"),
    ],
)
def test_broken_text_is_refused_with_its_line(old: str, new: str, words: str):
    text = " ".join(render(tiled_add(128, 256)).split(" "))
    text = text.replace("float32  data1", "float32 data1")
    assert old in text
    with pytest.raises(ProgramError, match=words):
        parse(text.replace(old, new, 1))


@given(st.text(max_size=200))
def test_random_text_is_refused(text: str):
    with pytest.raises(ProgramError):
        parse(text)
