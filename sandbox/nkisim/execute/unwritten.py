"""Errors for memory that nothing has written."""

from __future__ import annotations

from nkisim.errors import KernelError
from nkisim.ir.access import Pattern
from nkisim.ir.program import Operand, Program


def _where(program: Program, buffer: int, byte: int) -> str:
    """Say which element of a buffer a byte belongs to."""
    row = program.buffers[buffer]
    pitch = row.partition_bytes
    site = program.sites[row.site].place
    element = byte % pitch // row.dtype.itemsize
    inside = f"element {element}"
    if row.memory.is_on_chip:
        inside = f"partition {byte // pitch}, {inside}"
    return f"{inside} of {row.name!r} ({row.dtype} in {row.memory}, allocated at {site})"


def unwritten_read(
    program: Program, op: str, operand: Operand, buffer: int, missing: tuple[int, int]
) -> KernelError:
    """Return the error for reading memory that nothing has written."""
    size, first = missing
    return KernelError(
        "NKS208",
        f"{op}: {operand.role} reads elements that no instruction has written",
        got=f"{size:,} of {operand.size_bytes:,} bytes unwritten, "
        f"first {_where(program, buffer, first)}",
        hint="write the whole region first: nisa.memset, or a copy that covers ragged edges",
    )


def unwritten_output(program: Program, position: int, missing: tuple[int, int]) -> KernelError:
    """Return the error for a result that is not wholly written."""
    size, first = missing
    output = program.outputs[position]
    row = program.buffers[output.buffer]
    site = program.sites[row.site]
    pattern = output.pattern
    total = pattern.size * pattern.dtype.itemsize
    at = index_in(pattern, first // pattern.dtype.itemsize - output.offset)
    shape = ", ".join(map(str, pattern.counts))
    return KernelError(
        "NKS209",
        f"result {row.name!r} [{shape}] is not written completely",
        got=f"{size // pattern.dtype.itemsize:,} of {total // pattern.dtype.itemsize:,} elements "
        f"unwritten, the first is {row.name}[{', '.join(map(str, at))}]",
        allowed="every element of a returned tensor written",
        hint="store every tile, the ragged last one included",
        place=site.place,
        callers=site.callers,
    )


def index_in(pattern: Pattern, element: int) -> tuple[int, ...]:
    """Return the index, along each dimension of an access, of an element after its first one."""
    order = sorted(range(len(pattern.counts)), key=lambda d: -abs(pattern.strides[d]))
    index = [0] * len(pattern.counts)
    for d in order:
        if pattern.strides[d] and pattern.counts[d] > 1:
            index[d], element = divmod(element, pattern.strides[d])
    return tuple(index)
