"""From a model id to a model, or to one line that says what is wrong with it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nkiwright.errors import ConfigError, ExitCode, ModelError
from nkiwright.llm.registry import is_autoschedule, make_model


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("opnai:gpt-5", "did you mean 'openai:gpt-5'?"),
        ("Anthropic:claude-opus-4-5", "did you mean 'anthropic:claude-opus-4-5'?"),
        ("gpt-5-mini", "did you mean 'openai:gpt-5-mini'?"),
        ("o3", "did you mean 'openai:o3'?"),
        ("claude-sonnet-4-5", "did you mean 'anthropic:claude-sonnet-4-5'?"),
        ("run.jsonl", "did you mean 'replay:run.jsonl'?"),
        ("autoshedule", "did you mean 'autoschedule'?"),
        ("openai", "'openai:MODEL'"),
        ("openai:", "'openai:MODEL'"),
        ("replay:", "'replay:FILE'"),
        ("bedrock:nova", "--base-url"),
        ("", "--base-url"),
    ],
)
def test_unknown_model_names_the_known_and_the_nearest(spec, hint):
    with pytest.raises(ConfigError) as caught:
        make_model(spec, environ={})
    for known in ("openai:MODEL", "anthropic:MODEL", "replay:FILE", "autoschedule"):
        assert known in str(caught.value)
    assert hint in (caught.value.hint or "")
    assert caught.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize(
    ("spec", "variable"),
    [("openai:gpt-5", "OPENAI_API_KEY"), ("anthropic:claude-opus-4-5", "ANTHROPIC_API_KEY")],
    ids=["openai", "anthropic"],
)
@pytest.mark.parametrize("value", [None, "", "  "], ids=["unset", "empty", "blank"])
def test_missing_key_names_its_variable_and_what_needs_none(spec, variable, value):
    environ = {} if value is None else {variable: value}
    with pytest.raises(ModelError) as caught:
        make_model(spec, environ=environ)
    assert variable in str(caught.value)
    assert "--model autoschedule" in (caught.value.hint or "")
    assert caught.value.exit_code is ExitCode.MODEL


def test_key_that_cannot_be_one_is_refused_without_showing_it():
    with pytest.raises(ModelError) as caught:
        make_model("openai:gpt-5", environ={"OPENAI_API_KEY": "sk-secret-0123\nsk-other"})
    assert "OPENAI_API_KEY" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "base_url", ["http://127.0.0.1:8000/v1", "http://localhost:1/v1", "http://[::1]:8000/v1"]
)
def test_server_on_this_machine_needs_no_key(base_url):
    assert make_model("openai:qwen", base_url=base_url, environ={}).name == "openai:qwen"


def test_server_elsewhere_needs_a_key():
    with pytest.raises(ModelError, match="OPENAI_API_KEY"):
        make_model("openai:qwen", base_url="http://gpu.example/v1", environ={})


@pytest.mark.parametrize("base_url", ["127.0.0.1:8000", "ftp://x", "http://", "http:// x"])
def test_base_url_must_be_one(base_url):
    with pytest.raises(ConfigError, match="begins with http"):
        make_model("openai:qwen", base_url=base_url, environ={})


@pytest.mark.parametrize(
    ("spec", "expected"),
    [("autoschedule", True), (" Autoschedule ", True), ("openai:autoschedule", False)],
)
def test_autoschedule_is_no_model(spec, expected):
    assert is_autoschedule(spec) is expected


def test_making_nothing_loads_no_sdk():
    code = (
        "import sys, nkiwright.llm.registry, nkiwright.budget, nkiwright.llm.replay\n"
        "loaded = {'openai', 'anthropic', 'genai_prices', 'httpx2'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
