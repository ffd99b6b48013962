from dataclasses import replace

import numpy as np
from tests.nkisim.programs import with_everything
from tests.nkisim.toy import SBUF, Toy, tiled_add

from nkisim.errors import Place
from nkisim.ir.encode import decode, encode
from nkisim.ir.fingerprint import fingerprint
from nkisim.ir.program import Program, Site


def _reversed_buffers(program: Program) -> Program:
    """The same Program with its buffers numbered the other way round."""
    last = len(program.buffers) - 1
    registers = program.operand_is_register
    return replace(
        program,
        buffers=program.buffers[::-1],
        arguments=tuple(replace(a, buffer=last - a.buffer) for a in program.arguments),
        outputs=tuple(replace(o, buffer=last - o.buffer) for o in program.outputs),
        operand_buffer=np.where(registers, program.operand_buffer, last - program.operand_buffer),
    )


def test_comments_and_names_do_not_count():
    program = with_everything()
    other = replace(
        program,
        kernel="other_name",
        sites=tuple(
            Site(Place(file="b.py", line=s.place.line + 7, text="# comment")) for s in program.sites
        ),
        buffers=tuple(replace(b, name="renamed") for b in program.buffers),
    )
    assert fingerprint(other) == fingerprint(program)


def test_numbering_of_buffers_does_not_count():
    program = with_everything()
    assert fingerprint(_reversed_buffers(program)) == fingerprint(program)


def test_the_wire_does_not_change_it():
    program = with_everything()
    assert fingerprint(decode(encode(program))) == fingerprint(program)


def test_what_the_device_does_counts():
    seen = {fingerprint(tiled_add()), fingerprint(tiled_add(tile=64)), fingerprint(tiled_add(128))}
    toy = Toy()
    for value in (1, 1.0, 2):
        toy = Toy()
        toy.emit("memset", attrs={"value": value}, dst=toy.sbuf(1, 1))
        seen.add(fingerprint(toy.build()))
    assert len(seen) == 6


def test_constants_count():
    digests = set()
    for value in (1.0, 2.0):
        toy = Toy()
        constant = toy.constant(np.full((2, 2), value, dtype=np.float32))
        toy.emit("dma_copy", dst=toy.sbuf(2, 2), src=constant)
        digests.add(fingerprint(toy.build()))
    assert len(digests) == 2


def test_sharing_an_allocation_line_counts():
    """Instances of one line rotate over its addresses, so it changes the time."""
    digests = set()
    for sites in ([0, 0], [0, 1]):
        toy = Toy()
        for site in range(2):
            toy._site(f"line {site}")
        for site in sites:
            toy.emit("memset", attrs={"value": 0}, dst=toy.buffer(SBUF, (1, 1), site=site))
        digests.add(fingerprint(toy.build()))
    assert len(digests) == 2
