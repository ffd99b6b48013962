"""From a model's reply to the kernel file in it, or to words that tell the model what was missing.

Code that does not parse is passed on as it is: the static rules say what is wrong with its line
numbers, which is more use to the writer than "no kernel".
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from nkiwright.llm.base import FinishReason

ENTRY = "kernel"
EXPECTED = (
    "reply with one complete Python file in one ```python block that defines a function "
    f"`{ENTRY}` decorated with @nki.jit"
)
MAX_CHARACTERS = 200_000
"""Longer files are not kernels."""
_MAX_LINE = 5000
"""Longer lines are not parsed here: Python's parser takes quadratic time for some of them."""
_MAX_TRAILING_LINES = 20
_THINKING = re.compile(
    r"<(?P<slash>/?)(?P<name>think|thinking|thought|reasoning|scratchpad)>", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """The kernel file in a reply, or what was wrong with the reply."""

    text: str = ""
    """The file; it ends with a line end and defines the kernel, unless it does not parse."""
    problem: str | None = None
    """Why there is no file, in words that the writer can act on."""

    @property
    def is_found(self) -> bool:
        """Whether there is a file."""
        return self.problem is None


@dataclass(frozen=True, slots=True)
class _Block:
    """A fenced block."""

    text: str
    is_closed: bool


def extract_kernel(text: str, *, finish_reason: FinishReason | None = None) -> Extracted:
    """Find the kernel file in a reply.

    The last complete fenced block that defines the kernel counts, one that imports nki before one
    that does not.  A reply without fences counts if it is a Python file, with or without prose
    around it.  A kernel of another name is reported, not renamed: what was written is judged.

    Args:
        text: The reply.
        finish_reason: Why the reply ended, if known; a reply cut off at its limit may hold half a
            kernel that looks whole.
    """
    was_cut = finish_reason == "length"
    answer = _without_thinking(text.replace("\r\n", "\n").replace("\r", "\n"))
    if not answer.strip():
        return _problem(_empty_words(text, finish_reason))
    blocks = _blocks(answer)
    closed = [block.text for block in blocks if block.is_closed]
    found = _best(closed)
    if found is not None:
        return found
    last = blocks[-1] if blocks else None
    if last is not None and not last.is_closed:
        whole = _best([last.text]) if finish_reason == "stop" and _parses(last.text) else None
        return whole or _problem(
            "the reply was cut off inside its code block"
            + (", at the output limit" if was_cut else "")
            + f": {EXPECTED}; write less prose before it and fewer lines in it"
        )
    if closed:
        return _problem(_why_none(closed))
    bare = None if was_cut else _bare_file(answer)
    if bare is not None:
        return _as_kernel(bare) or _problem(_why_none([bare]))
    if was_cut:
        return _problem(f"the reply was cut off before its code block ended: {EXPECTED}")
    return _problem(f"the reply holds no code block: {EXPECTED}")


def _problem(words: str) -> Extracted:
    return Extracted(problem=words)


def _empty_words(text: str, finish_reason: FinishReason | None) -> str:
    if finish_reason == "length":
        return f"the reply was cut off before any answer: reason more briefly, then {EXPECTED}"
    if finish_reason == "refusal":
        return f"the reply was a refusal: {EXPECTED}"
    what = "holds nothing but thoughts" if text.strip() else "is empty"
    return f"the reply {what}: {EXPECTED}"


def _without_thinking(text: str) -> str:
    """Return the reply without what reasoning models think aloud."""
    text = text.lstrip("\ufeff")
    kept: list[str] = []
    end = 0  # of what has been kept or left out
    opened: re.Match[str] | None = None
    for tag in _THINKING.finditer(text):
        starts_line = not text[text.rfind("\n", 0, tag.start()) + 1 : tag.start()].strip()
        if not tag["slash"]:
            opened = opened or tag
        elif opened is not None and opened["name"].lower() == tag["name"].lower():
            kept.append(text[end : opened.start()])
            end, opened = tag.end(), None
        elif opened is None and starts_line:
            kept, end = [], tag.end()  # some chat templates swallow the opening tag
    if (
        opened is not None
        and not text[text.rfind("\n", 0, opened.start()) + 1 : opened.start()].strip()
    ):
        return "".join((*kept, text[end : opened.start()]))
    return "".join((*kept, text[end:]))


_FENCE = re.compile(r"[ \t]*(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)$")
_LATE_FENCES = ("```python", "```py", "```python3")


@dataclass(frozen=True, slots=True)
class _Fence:
    """A line that opens or closes a block."""

    marks: str
    info: str
    is_late: bool = False
    """Whether prose stands before it on its line."""

    @classmethod
    def of(cls, line: str) -> _Fence | None:
        """Return the fence that a line is, or None."""
        if match := _FENCE.match(line):
            return cls(match["fence"], match["info"].strip().lower())
        if line.rstrip().endswith(_LATE_FENCES):
            return cls("```", "python", is_late=True)
        return None


def _blocks(text: str) -> list[_Block]:
    """Return all fenced blocks, those inside a Markdown block too; the last may be open."""
    blocks: list[_Block] = []
    lines: list[str] = []
    opening: _Fence | None = None
    for line in text.split("\n"):
        fence = _Fence.of(line)
        if opening is None:
            opening, lines = fence, []
        elif fence is not None and fence.info and opening.is_late and not fence.is_late:
            opening, lines = fence, []  # what looked like a fence was prose about fences
        elif fence is not None and not fence.info and fence.marks.startswith(opening.marks):
            body = "\n".join(lines)
            is_nested = opening.info in ("md", "markdown")
            blocks += _blocks(body) if is_nested else [_Block(body, True)]
            opening = None
        else:
            lines.append(line)
    if opening is not None:
        blocks.append(_Block("\n".join(lines), False))
    return blocks


def _best(texts: Sequence[str]) -> Extracted | None:
    """Return the last text that is a kernel file, preferring those that import nki."""
    found: Extracted | None = None
    for text in reversed(texts):
        source = _as_kernel(text)
        if source is not None and _imports_nki(source.text):
            return source
        found = found or source
    return found


def _as_kernel(text: str) -> Extracted | None:
    """Return a text as a kernel file, or None if it defines no kernel."""
    if len(text) > MAX_CHARACTERS:
        return None
    text = textwrap.dedent(text).strip("\n").rstrip() + "\n"
    tree = _parse(text)
    if tree is None:
        names = re.findall(r"^(?:async )?def (\w+)", text, flags=re.MULTILINE)
        has_jit = re.search(r"^@.*\bjit\b", text, flags=re.MULTILINE) is not None
        return Extracted(text=text) if ENTRY in names or (names and has_jit) else None
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    is_kernel = any(function.name == ENTRY for function in functions)
    return Extracted(text=text) if is_kernel else None


def _why_none(texts: Sequence[str]) -> str:
    """Say why none of the closed blocks is a kernel file."""
    if all(len(text) > MAX_CHARACTERS for text in texts):
        return f"the code block is longer than {MAX_CHARACTERS:,} characters: {EXPECTED}"
    for text in reversed(texts):
        tree = _parse(text)
        functions = [n for n in tree.body if isinstance(n, ast.FunctionDef)] if tree else []
        compiled = [function.name for function in functions if _is_compiled(function)]
        if len(compiled) > 1:
            return (
                f"the file has {len(compiled)} functions with @nki.jit ({', '.join(compiled)}) and "
                f"none is called {ENTRY!r}: {EXPECTED}"
            )
        if compiled:
            return (
                f"the function with @nki.jit is called {compiled[0]!r}, not {ENTRY!r}: {EXPECTED}"
            )
        if functions:
            names = ", ".join(function.name for function in functions)
            return f"the code block defines {names}, but no {ENTRY!r}: {EXPECTED}"
    return f"no code block defines a function {ENTRY!r}: {EXPECTED}"


def _is_compiled(function: ast.FunctionDef) -> bool:
    """Return whether a function is decorated with `nki.jit` in any spelling."""
    for decorator in function.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
        if name == "jit":
            return True
    return False


def _bare_file(text: str) -> str | None:
    """Return a file that stands in the reply without a fence, with or without prose around it."""
    lines = text.split("\n")
    start = next(
        (i for i, line in enumerate(lines) if re.match(r"(?:import|from) [\w.]+|@[\w.]*jit", line)),
        None,
    )
    if start is None:
        return None
    for end in range(len(lines), max(start, len(lines) - _MAX_TRAILING_LINES), -1):
        body = "\n".join(lines[start:end])
        if _parses(body):
            return body
    return "\n".join(lines[start:])


def _imports_nki(text: str) -> bool:
    return (
        re.search(r"^[ \t]*(?:import|from)[ \t]+[\w.]*\bnki\b", text, flags=re.MULTILINE)
        is not None
    )


def _parses(text: str) -> bool:
    return _parse(text) is not None


def _parse(text: str) -> ast.Module | None:
    if len(text) > MAX_CHARACTERS or max(map(len, text.split("\n"))) > _MAX_LINE:
        return None
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
