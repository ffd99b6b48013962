"""What is reported about the layers, and what is refused when one is missing."""

from __future__ import annotations

import json
import struct
import sys
from dataclasses import replace

import pytest

from nkisim.errors import NkisimError
from nkisim.worker import Layer, LayerReport, Sandbox, SandboxUnavailable, probe_layers
from nkisim.worker.layers import LAYER_NAMES
from nkisim.worker.seccomp import (
    ALLOWED_CALLS,
    AUDIT_ARCH_X86_64,
    NO_EXEC_CALLS,
    filter_program,
)


def _report(**details: str) -> LayerReport:
    """All layers active but those named."""
    return LayerReport(
        layers=tuple(
            Layer(
                name=name,
                state="missing" if name in details else "active",
                mandatory=name != "bubblewrap",
                detail=details.get(name, ""),
            )
            for name in LAYER_NAMES
        )
    )


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_probe_names_every_layer_with_a_reason() -> None:
    report = probe_layers()
    assert [layer.name for layer in report.layers] == list(LAYER_NAMES)
    assert all(layer.detail for layer in report.layers)
    assert json.loads(json.dumps(report.to_dict()))[0]["name"] == LAYER_NAMES[0]


@pytest.mark.parametrize(
    ("system", "machine", "word"),
    [
        pytest.param("linux", "aarch64", "aarch64", id="arm"),
        pytest.param("darwin", "arm64", "darwin", id="macos"),
        pytest.param("win32", "AMD64", "win32", id="windows"),
    ],
)
def test_other_platform_is_refused_in_one_clear_line(system: str, machine: str, word: str) -> None:
    report = probe_layers(system=system, machine=machine)
    with pytest.raises(SandboxUnavailable) as caught:
        report.require()
    text = str(caught.value)
    assert text.startswith("refusing to run generated code: ")
    assert word in text
    assert "Fix: use Linux on x86-64" in text
    assert "--unsafe-no-sandbox" in text
    assert "\n" not in text
    assert len(text) < 300


@pytest.mark.parametrize("name", [name for name in LAYER_NAMES if name != "bubblewrap"])
def test_missing_mandatory_layer_refuses_before_anything_runs(name: str) -> None:
    with pytest.raises(SandboxUnavailable, match=f"{name}.*because of the test|Landlock"):
        Sandbox(probe=lambda: _report(**{name: "because of the test"}))


def test_message_about_the_file_system_names_both_ways_to_mend_it() -> None:
    report = _report(landlock="ABI 0", bubblewrap='bwrap: "No permissions"')
    with pytest.raises(SandboxUnavailable) as caught:
        report.require()
    text = str(caught.value)
    assert "no filesystem confinement (Landlock: ABI 0; bwrap:" in text
    assert "install bubblewrap" in text


def test_one_wall_around_the_file_system_is_enough() -> None:
    report = _report(landlock="ABI 0")
    optional = replace(report["landlock"], mandatory=False)
    layers = tuple(optional if layer.name == "landlock" else layer for layer in report.layers)
    replace(report, layers=layers).require()


def test_missing_bubblewrap_is_no_reason_to_refuse() -> None:
    _report(bubblewrap="bwrap: not installed").require()


def test_disabled_layer_passes_but_is_not_trusted() -> None:
    report = _report().without({"seccomp"})
    report.require()
    assert report["seccomp"].state == "disabled"
    assert not report.is_trusted
    assert _report().is_trusted


def test_unknown_layer_cannot_be_disabled() -> None:
    with pytest.raises(ValueError, match="seccmp"):
        _report().without({"seccmp"})


def test_refusal_belongs_to_the_family_of_errors() -> None:
    assert issubclass(SandboxUnavailable, NkisimError)


ALLOW, EPERM, KILL = 0x7FFF0000, 0x00050001, 0x80000000


def _run_filter(number: int, *, arch: int = AUDIT_ARCH_X86_64, third: int = 0) -> int:
    """Execute the filter as the kernel would and return its verdict."""
    data = struct.pack("=IIQ6Q", number, arch, 0, 0, 0, third, 0, 0, 0)
    code = list(struct.iter_unpack("=HBBI", filter_program()))
    place = register = 0
    while True:
        operation, if_true, if_false, value = code[place]
        place += 1
        match operation:
            case 0x20:
                (register,) = struct.unpack_from("=I", data, value)
            case 0x06:
                return int(value)
            case 0x15:
                place += if_true if register == value else if_false
            case 0x35:
                place += if_true if register >= value else if_false
            case 0x45:
                place += if_true if register & value else if_false
            case _:
                raise AssertionError(f"unknown operation {operation:#x}")


def test_filter_allows_the_list_and_denies_every_other_call() -> None:
    listed = {*ALLOWED_CALLS.values(), *NO_EXEC_CALLS.values()}
    allowed = {number for number in range(600) if _run_filter(number) == ALLOW}
    denied = {number for number in range(600) if _run_filter(number) == EPERM}
    assert allowed == listed
    assert allowed | denied == set(range(600))


@pytest.mark.parametrize("name", NO_EXEC_CALLS)
@pytest.mark.parametrize("protection", [4, 5, 7, 0x1000004])
def test_filter_denies_executable_memory(name: str, protection: int) -> None:
    assert _run_filter(NO_EXEC_CALLS[name], third=protection) == EPERM
    assert _run_filter(NO_EXEC_CALLS[name], third=3) == ALLOW


@pytest.mark.parametrize(
    ("number", "arch"),
    [
        pytest.param(1, 0x40000003, id="i386"),
        pytest.param(1, 0xC00000B7, id="aarch64"),
        pytest.param(0x40000001, AUDIT_ARCH_X86_64, id="x32"),
        pytest.param(0xFFFFFFFF, AUDIT_ARCH_X86_64, id="minus_one"),
    ],
)
def test_filter_kills_calls_of_another_table(number: int, arch: int) -> None:
    assert _run_filter(number, arch=arch) == KILL
