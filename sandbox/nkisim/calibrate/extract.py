"""Takes kernel source out of files that hold more than source: logs of searches, documentation."""

from __future__ import annotations

import re
import textwrap

from nkisim.calibrate.errors import CalibrationError

_QUOTED = re.compile(r"^code=('''|\"\"\")(.*?)\1,?$", re.MULTILINE | re.DOTALL)
_DIRECTIVE = re.compile(r"^(\s*)\.\. code-block:: python\s*$")


def code_blocks(text: str) -> list[str]:
    """Return the code blocks of a text, in order.

    A block is a triple-quoted value of `code=` at the start of a line, or the body of an
    reStructuredText `code-block:: python`.
    """
    quoted = [match[2] for match in _QUOTED.finditer(text)]
    return quoted or _directives(text)


def code_block(text: str, number: int, name: str) -> str:
    """Return one code block, counted from 1, or from the end if negative.

    Raises:
        CalibrationError: There is no such block.
    """
    blocks = code_blocks(text)
    at = number - 1 if number > 0 else number
    if number == 0 or not -len(blocks) <= at < len(blocks):
        raise CalibrationError(f"{name} has {len(blocks)} code blocks, there is no block {number}")
    return blocks[at]


def _directives(text: str) -> list[str]:
    blocks: list[str] = []
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        start = _DIRECTIVE.match(lines[at])
        at += 1
        if start is None:
            continue
        body: list[str] = []
        while at < len(lines) and (not lines[at].strip() or _indent(lines[at]) > len(start[1])):
            body.append(lines[at])
            at += 1
        while body and (not body[0].strip() or re.match(r"\s*:\w", body[0])):
            body.pop(0)
        blocks.append(textwrap.dedent("\n".join(body)) + "\n")
    return blocks


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
