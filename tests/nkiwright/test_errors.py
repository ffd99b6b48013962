"""Secrets stay hidden in whatever is printed or logged."""

from __future__ import annotations

import io
import logging

import pytest

from nkiwright import errors
from nkiwright.errors import ExitCode, NkiwrightError, RedactingFilter, redact

ENVIRON = {"OPENAI_API_KEY": "plain-key-of-a-server", "PATH": "/usr/bin", "X_API_KEY": "none"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("key sk-proj-abc_DEF-0123456789 refused", "key [redacted] refused"),
        ("sk-ant-api03-abcdef0123456789", "[redacted]"),
        ("provided: sk-abcd********wxyz.", "provided: [redacted]."),
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer [redacted]"),
        ("x-api-key: 0123456789", "x-api-key: [redacted]"),
        ("at http://me:secret@host:80/v1", "at http://[redacted]@host:80/v1"),
        ("sent plain-key-of-a-server", "sent [redacted]"),
    ],
)
def test_secrets_are_hidden(text, expected):
    assert redact(text, ENVIRON) == expected


@pytest.mark.parametrize(
    "text",
    [
        "none of 3 kernels is correct",
        "task-level risk-averse disk-bound",
        "/usr/bin/python http://127.0.0.1:8000/v1",
        "set OPENAI_API_KEY",
    ],
)
def test_ordinary_text_is_left_alone(text):
    assert redact(text, ENVIRON) == text


def test_longer_of_two_keys_is_hidden_whole():
    environ = {"A_API_KEY": "secret", "B_API_KEY": "secret-and-more"}
    assert redact("secret-and-more", environ) == "[redacted]"


def test_logged_secrets_are_hidden_in_text_arguments_and_tracebacks():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(RedactingFilter())
    logger = logging.getLogger("test_errors")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        raise ValueError("with sk-0123456789abcdef")
    except ValueError:
        logger.exception("calling with %s", "sk-ant-0123456789abcdef")
    assert "sk-" not in stream.getvalue()
    assert "calling with [redacted]" in stream.getvalue()
    assert "ValueError: with [redacted]" in stream.getvalue()


def test_every_error_has_a_documented_exit_code_and_a_hint():
    kinds = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, NkiwrightError)
    ]
    assert len(kinds) > 6
    for kind in kinds:
        error = kind("what came", hint="what to do")
        assert isinstance(error.exit_code, ExitCode)
        assert (str(error), error.hint) == ("what came", "what to do")


def test_exit_codes_are_the_documented_numbers():
    assert {code.name: int(code) for code in ExitCode} == {
        "SOLVED": 0,
        "UNSOLVED": 1,
        "USAGE": 2,
        "MODEL": 3,
        "SANDBOX": 4,
        "INTERRUPTED": 130,
    }
