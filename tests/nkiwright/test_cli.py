"""The command line as a new user meets it: one clear line for bad input, documented exit codes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.nkiwright.fake_servers import Failure, FakeServer

from nkiwright import tasks


def start(*arguments: str, environ: dict[str, str] | None = None, cwd: Path | None = None):
    base = {k: v for k, v in os.environ.items() if not k.endswith("_API_KEY")}
    return subprocess.Popen(
        [sys.executable, "-m", "nkiwright.cli.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**base, "NO_COLOR": "1", **(environ or {})},
    )


def run(*arguments: str, environ: dict[str, str] | None = None, cwd: Path | None = None):
    process = start(*arguments, environ=environ, cwd=cwd)
    stdout, stderr = process.communicate(timeout=90)
    return process.returncode, stdout, stderr


def edited(folder: Path, old: str, new: str, file: str = "task.toml") -> Path:
    """Copy the rope task with one text replaced."""
    target = folder / "rope"
    shutil.copytree(tasks.load("rope").folder, target)
    text = (target / file).read_text()
    assert old in text
    (target / file).write_text(text.replace(old, new))
    return target


def test_an_unknown_task_suggests_the_nearest():
    code, stdout, stderr = run("solve", "rmsnrm")
    assert (code, stdout) == (2, "")
    assert "unknown task 'rmsnrm'" in stderr
    assert "did you mean 'rmsnorm'?" in stderr


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("level = 2", "level = ", "task.toml:"),
        ('name = "rope"', "", "name"),
        ("level = 2", 'level = "one"', "level"),
        ("[check]", "colour = 3\n\n[check]", "colour"),
    ],
    ids=["broken TOML", "missing field", "wrong type", "unknown field"],
)
def test_a_broken_task_file_names_file_and_field(tmp_path, old, new, words):
    code, _, stderr = run("solve", str(edited(tmp_path, old, new)), cwd=tmp_path)
    assert code == 2
    assert words in stderr
    assert "Traceback" not in stderr


@pytest.mark.parametrize(
    ("new", "words"),
    [("raise ValueError('no')", "ValueError"), ("return x[:, :1]", "shape")],
    ids=["raises", "wrong shape"],
)
def test_a_broken_reference_names_its_line(tmp_path, new, words):
    folder = edited(tmp_path, "half = x.shape[-1] // 2", new, "reference.py")
    code, _, stderr = run("solve", str(folder), cwd=tmp_path)
    assert code == 2, stderr
    assert "reference.py" in stderr
    assert words in stderr
    assert "Traceback" not in stderr


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--machine", "trn9"], 2, "'trn1', 'trn2' or 'trn3'"),
        (["--nki", "9.9"], 2, "nki"),
        (["--model", "foo:bar"], 2, "autoschedule"),
        (["--model", "openai:some-model"], 3, "OPENAI_API_KEY"),
        (["--model", "anthropic:some-model"], 3, "ANTHROPIC_API_KEY"),
        (["--model", "replay:nowhere.jsonl"], 2, "nowhere.jsonl"),
        (["--samples", "0"], 2, "samples"),
    ],
    ids=["machine", "nki", "provider", "openai key", "anthropic key", "recording", "samples"],
)
def test_bad_flags_say_what_is_allowed(tmp_path, flags, code, words):
    found, stdout, stderr = run("solve", "rope", *flags, cwd=tmp_path)
    assert found == code, stderr
    assert stdout == ""
    assert words in stderr
    assert "Traceback" not in stderr


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (Failure.BAD_KEY, "401"),
        (Failure.BROKEN, "500"),
        (Failure.RATE_LIMIT, "429"),
        (Failure.NOT_JSON, ""),
        (Failure.EMPTY_BODY, ""),
    ],
    ids=["401", "500", "429", "garbage", "nothing"],
)
def test_a_failing_server_is_one_line_and_exit_code_3(tmp_path, small_rmsnorm, failure, words):
    with FakeServer(lambda request: failure) as server:
        code, stdout, stderr = run(
            "solve",
            str(small_rmsnorm),
            "--model",
            "openai:local-model",
            "--base-url",
            server.openai_url,
            "--samples",
            "1",
            "--max-tokens",
            "100000",
            "--workers",
            "1",
            "--quiet",
            cwd=tmp_path,
        )
    assert code == 3, stderr
    assert stdout == ""
    assert words in stderr
    assert len([line for line in stderr.splitlines() if "error:" in line]) == 1
    assert "Traceback" not in stderr


def test_json_is_one_object_on_stdout(tmp_path, small_rmsnorm):
    flags = ["--samples", "2", "--workers", "1", "--json"]
    code, stdout, stderr = run("solve", str(small_rmsnorm), *flags, cwd=tmp_path)
    assert code == 0, stderr
    result = json.loads(stdout)
    assert result["solved"] is True
    assert result["schema_version"] == 1
    assert result["model"] == "autoschedule"
    shown, listing, _ = run("runs", "list", cwd=tmp_path)
    assert shown == 0
    assert Path(result["run"]).name in listing
    assert "nki.jit" in run("runs", "show", "last", "--kernel", cwd=tmp_path)[1]
    assert run("runs", "rm", "last", cwd=tmp_path)[0] == 0


def test_ctrl_c_keeps_what_was_found(tmp_path, small_rmsnorm):
    process = start(
        "solve", str(small_rmsnorm), "--samples", "400", "--workers", "1", "--jsonl", cwd=tmp_path
    )
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["event"] == "CandidateVerified":
            break
    process.send_signal(signal.SIGINT)
    rest, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    finished = json.loads(rest.splitlines()[-1])
    assert finished["event"] == "RunFinished"
    assert finished["result"]["solved"] is True
    assert finished["result"]["reason"] == "interrupted"
    assert (Path(tmp_path) / finished["result"]["winner"]["source_path"]).is_file()


def test_batch_solves_the_rest_when_one_task_is_broken(tmp_path, small_rmsnorm):
    edited(small_rmsnorm.parent, "level = 2", "level = ")
    flags = ["--samples", "1", "--workers", "1", "--json", "--quiet"]
    code, stdout, _ = run("batch", str(small_rmsnorm.parent), *flags, cwd=tmp_path)
    outcome = json.loads(stdout)
    assert code == 2
    assert [r["task"] for r in outcome["results"]] == ["rmsnorm"]
    assert list(outcome["failures"]) == ["rope"]


def test_starting_is_quick_enough_to_ask_for_help():
    begin = time.monotonic()
    code, stdout, _ = run("--help")
    assert code == 0
    assert "solve" in stdout
    assert time.monotonic() - begin < 30  # a hang, not a benchmark
