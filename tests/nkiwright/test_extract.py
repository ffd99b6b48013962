"""Replies as models write them: the kernel file is found, or the problem can be acted on."""

from __future__ import annotations

import ast
import textwrap
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkiwright.extract import MAX_CHARACTERS, extract_kernel

KERNEL = textwrap.dedent(
    '''\
    import nki
    import nki.isa as nisa
    import nki.language as nl


    @nki.jit
    def kernel(x):
        """Copy x."""
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=x)
        return out
    '''
)
HELPER = "import numpy as np\n\n\ndef check(x):\n    return np.abs(x)\n"
OLDER = KERNEL.replace("Copy x.", "First attempt.")
SNIPPET = '@nki.jit\ndef kernel(x):\n    """Only this function changes."""\n    return x\n'


def fenced(code: str, info: str = "python", fence: str = "```") -> str:
    return f"{fence}{info}\n{code}{fence}\n"


def indented(text: str) -> str:
    return textwrap.indent(text, "   ")


@pytest.mark.parametrize(
    "reply",
    [
        fenced(KERNEL),
        f"Here is the kernel.\n\n{fenced(KERNEL)}\nIt tiles by 128.",
        fenced(KERNEL, info=""),
        fenced(KERNEL, info="py"),
        fenced(KERNEL, info='python title="kernel.py"'),
        fenced(KERNEL, fence="~~~"),
        fenced(KERNEL, fence="````"),
        fenced(KERNEL).replace("\n", "\r\n"),
        "\ufeff" + fenced(KERNEL),
        f"1. The kernel:\n\n{indented(fenced(KERNEL))}",
        f"Sure: ```python\n{KERNEL}```\n",
        f"I reply in one ```python\nblock.\n{fenced(KERNEL)}",
        fenced(fenced(KERNEL), info="markdown", fence="````"),
        KERNEL,
        f"Here is the kernel:\n\n{KERNEL}",
        f"Here is the kernel:\n\n{KERNEL}\nIt tiles by 128, doesn't it?",
        f"{fenced(OLDER)}\nThat is slow. Better:\n{fenced(KERNEL)}",
        f"{fenced(KERNEL)}\nTo test it:\n{fenced(HELPER)}",
        f"{fenced(KERNEL)}\nThe important part again:\n{fenced(SNIPPET)}",
        f"{fenced(KERNEL)}\nOutput:\n{fenced('128 tiles', info='text')}",
        f"{fenced(KERNEL)}\nAnd a faster one:\n```python\nimport nki\ndef kernel(x",
        f"<think>\nMaybe {fenced(OLDER)} no.\n</think>\n{fenced(KERNEL)}",
        f"Maybe {fenced(OLDER)}\n</think>\n\n{fenced(KERNEL)}",
        f"<thinking>a</thinking>{fenced(KERNEL)}<reasoning>{fenced(OLDER)}</reasoning>",
    ],
    ids=[
        "plain",
        "prose",
        "no language",
        "py",
        "title",
        "tildes",
        "four ticks",
        "crlf",
        "byte order mark",
        "in a list",
        "fence after prose",
        "prose about fences",
        "inside markdown",
        "no fence",
        "no fence, prose before",
        "no fence, prose around",
        "two versions",
        "test code after it",
        "excerpt after it",
        "output after it",
        "cut second version",
        "thinking",
        "thinking without its opening tag",
        "thinking on both sides",
    ],
)
def test_kernel_file_is_found(reply):
    found = extract_kernel(reply)
    assert found.problem is None
    assert found.is_found
    assert found.text == KERNEL


@pytest.mark.parametrize(
    ("reply", "finish_reason", "words"),
    [
        ("", "stop", "is empty"),
        ("  \n", None, "is empty"),
        ("", "length", "cut off before any answer"),
        ("", "refusal", "refusal"),
        ("<think>hm", "length", "cut off before any answer"),
        ("<think>hm</think>", "stop", "nothing but thoughts"),
        ("I cannot write kernels.", "stop", "no code block"),
        (f"```python\n{KERNEL[:150]}", "length", "cut off inside its code block, at the output"),
        (f"```python\n{KERNEL}", "length", "cut off inside its code block, at the output limit"),
        (f"```python\n{KERNEL}", None, "cut off inside its code block"),
        (f"```python\n{KERNEL[:-20]}", "stop", "cut off inside its code block"),
        (KERNEL[:150], "length", "cut off before its code block ended"),
        (fenced("x = 1\n"), "stop", "no code block defines"),
        (fenced(HELPER), "stop", "defines check, but no 'kernel'"),
        (
            fenced(KERNEL.replace("kernel", "a") + KERNEL.replace("kernel", "b")),
            "stop",
            "2 functions with @nki.jit (a, b)",
        ),
        (fenced(KERNEL + "#" * MAX_CHARACTERS + "\n"), "stop", "longer than 200,000 characters"),
    ],
    ids=[
        "empty",
        "blank",
        "cut while thinking",
        "refusal",
        "cut in thought",
        "only thought",
        "only prose",
        "cut",
        "cut where it looks whole",
        "open fence",
        "open fence, half",
        "cut without fence",
        "no function",
        "another function",
        "two kernels",
        "long",
    ],
)
def test_problem_says_what_was_wrong_and_what_is_expected(reply, finish_reason, words):
    found = extract_kernel(reply, finish_reason=finish_reason)
    assert not found.is_found
    assert found.problem is not None
    assert words in found.problem
    assert "@nki.jit" in found.problem
    assert "```python" in found.problem
    assert "\n" not in found.problem


def test_forgotten_closing_fence_is_forgiven_if_the_reply_ended_by_itself():
    assert extract_kernel(f"```python\n{KERNEL}", finish_reason="stop").text == KERNEL


@pytest.mark.parametrize("wrap", [fenced, str], ids=["fenced", "bare"])
def test_kernel_of_another_name_is_reported_not_renamed(wrap):
    found = extract_kernel(wrap(KERNEL.replace("def kernel", "def rmsnorm")))
    assert not found.is_found
    assert found.problem is not None
    assert found.text == ""
    assert "the function with @nki.jit is called 'rmsnorm', not 'kernel'" in found.problem
    assert "```python" in found.problem


def test_kernel_in_an_earlier_block_wins_over_a_compiled_helper_in_a_later_one():
    later = KERNEL.replace("def kernel", "def helper")
    assert extract_kernel(fenced(KERNEL) + "\n" + fenced(later)).text == KERNEL


@pytest.mark.parametrize(
    "decorator", ["@nki.jit", "@nki.jit()", "@jit", "@nki.jit(mode='trace')", "@neuronxcc.nki.jit"]
)
def test_every_spelling_of_the_decorator_counts(decorator):
    code = KERNEL.replace("@nki.jit", decorator).replace("def kernel", "def main")
    problem = extract_kernel(fenced(code)).problem
    assert problem is not None
    assert "the function with @nki.jit is called 'main'" in problem


def test_kernel_by_name_wins_over_a_compiled_helper():
    code = KERNEL.replace("@nki.jit\n", "") + "\n\n@nki.jit\ndef helper(x):\n    return x\n"
    assert extract_kernel(fenced(code)).text == code


def test_code_that_does_not_parse_is_passed_on_for_its_error():
    code = KERNEL.replace("dtype=x.dtype,", "dtype=x.dtype")
    found = extract_kernel(fenced(code))
    assert found.text == code
    with pytest.raises(SyntaxError):
        ast.parse(found.text)


HOSTILE = (
    *("parentheses", "minus", "null", "fences", "opening tags", "closing tags", "word"),
    *("ticks", "line ends", "import", "decorator", "lines", "errors"),
)


@pytest.mark.parametrize(
    "reply",
    [
        fenced("(" * 5000 + "\ndef kernel(): pass\n"),
        fenced("x = " + "-" * 50_000 + "1\ndef kernel(): pass\n"),
        fenced("x\0\ndef kernel(): pass\n"),
        "```\n" * 5000,
        "<think>" * 20_000,
        "</think>" * 20_000,
        "x" * 150_000,
        "`" * 150_000,
        "\n" * 150_000,
        "from " + "a." * 70_000,
        "@" + "jit" * 50_000,
        "```python\n" + "import nki\n" * 5000,
        "import nki\n" + "def f(:\n" * 3000,
    ],
    ids=HOSTILE,
)
def test_hostile_reply_is_an_ordinary_one(reply):
    start = time.monotonic()
    found = extract_kernel(reply)
    assert time.monotonic() - start < 5
    assert found.is_found == bool(found.text)


PIECES = [
    *("```", "```python\n", "~~~", "````markdown\n", "as ```python", "<think>", "</think>", "é"),
    *("\n", "\r", "\x0c", "\u2028", "  ", "'", KERNEL, "def kernel(x):\n", "@nki.jit\n"),
    "import nki\n",
]


@given(
    st.lists(
        st.sampled_from(PIECES),
        max_size=12,
    ).map("".join)
)
def test_any_reply_gives_a_file_or_a_problem(reply):
    found = extract_kernel(reply)
    assert found.is_found is (found.problem is None)
    assert found.is_found == bool(found.text)
    assert "\r" not in found.text
