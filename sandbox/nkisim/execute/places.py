"""Gives errors the source line of an instruction."""

from __future__ import annotations

from typing import TypeVar

from nkisim.errors import DiagnosticError
from nkisim.ir.program import Program

E = TypeVar("E", bound=DiagnosticError)


def located(program: Program, error: E, instruction: int) -> E:
    """Fill in the place of `instruction` unless `error` has one, and return it."""
    site = program.sites[int(program.site[instruction])]
    return error.at(site.place, site.callers)
