"""HBM: what a launch needs all together."""

from __future__ import annotations

import numpy as np

from nkisim.errors import KernelError
from nkisim.ir.access import Memory
from nkisim.ir.program import Program
from nkisim.machine.spec import Machine


def hbm_bytes(program: Program) -> int:
    """Return the bytes of all tensors in HBM: arguments, results, constants and scratch."""
    columns = program.buffer_columns
    sizes = columns.size_bytes[columns.is_in(Memory.HBM)]
    return int(np.minimum(sizes.astype(np.float64).sum(), 2.0**62))


def check_hbm(program: Program, machine: Machine) -> None:
    """Raise if the tensors in HBM exceed what one core has."""
    used, limit = hbm_bytes(program), machine.limits.hbm_bytes
    if used <= limit:
        return
    columns = program.buffer_columns
    sizes = np.where(columns.is_in(Memory.HBM), columns.size_bytes, 0)
    largest = program.buffers[int(sizes.argmax())]
    site = program.sites[largest.site]
    raise KernelError(
        "NKS212",
        f"tensors in HBM of {used:,} bytes exceed the {limit:,} of {machine.name}",
        got=f"the largest is {largest.name!r}: {largest.size:,} {largest.dtype} elements",
        hint="write results in place of scratch tensors, or allocate smaller ones",
        place=site.place,
        callers=site.callers,
    )
