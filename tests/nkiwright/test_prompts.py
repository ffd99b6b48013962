"""Prompts are files; what they ask for and don't get is an error."""

from __future__ import annotations

import pytest

from nkiwright.errors import PromptError
from nkiwright.prompts import PromptLibrary


@pytest.fixture
def library(tmp_path) -> PromptLibrary:
    files = {
        "hello": "# Task {{ task.name }}\n{% if hint %}\nHint: <{{ hint }}>\n{% endif %}\nEnd.\n",
        "outer": "Before\n{% include 'hello.md.jinja' %}\n",
        "broken": "line one\n{% if %}\n",
        "lost": "{% include 'nothing.md.jinja' %}",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.md.jinja").write_text(text)
    (tmp_path / "README.md").write_text("no prompt")
    return PromptLibrary(tmp_path)


class Task:
    name = "rmsnorm & {{ braces }}"


def test_values_stand_in_the_text_as_they_are(library):
    text = library.render("hello", task=Task(), hint="a < b")
    assert text == "# Task rmsnorm & {{ braces }}\nHint: <a < b>\nEnd.\n"


def test_block_lines_leave_no_gap(library):
    assert library.render("hello", task=Task(), hint="") == f"# Task {Task.name}\nEnd.\n"


def test_prompts_may_include_each_other(library):
    assert library.render("outer", task=Task(), hint="").startswith("Before\n# Task")


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("hello", {"hint": ""}, r"hello\.md\.jinja:1: 'task' is undefined"),
        ("hello", {"task": Task()}, r"hello\.md\.jinja:2: 'hint' is undefined"),
        ("hello", {"task": "x", "hint": ""}, r"hello\.md\.jinja:1: .*no attribute 'name'"),
        ("broken", {}, r"broken\.md\.jinja:2: "),
        ("lost", {}, "no prompt 'nothing'"),
        ("helo", {}, "no prompt 'helo'"),
    ],
    ids=["value", "condition", "attribute", "syntax", "include", "name"],
)
def test_mistake_is_one_line_with_its_place(library, name, values, words):
    with pytest.raises(PromptError, match=words):
        library.render(name, **values)


def test_names_are_those_of_the_files(library):
    assert library.names == ("broken", "hello", "lost", "outer")


def test_programs_own_prompts_are_well_formed():
    library = PromptLibrary()
    assert library.names
    for name in library.names:
        try:
            library.render(name)
        except PromptError as error:
            assert "is undefined" in str(error)  # noqa: PT017 - only some prompts need values
