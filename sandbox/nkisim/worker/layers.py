"""Which layers of isolation hold on this system, found out by doing.

Versions and files say too little (a container may forbid what its kernel offers), so each layer is
applied in a throw-away child which then tries what the layer must stop.  Generated code runs only
if every mandatory layer is active.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from nkisim.worker import bubblewrap, launch, seccomp
from nkisim.worker.errors import SandboxUnavailable

LayerState = Literal["active", "missing", "unavailable", "disabled"]
"""`missing`: the system does not offer it.  `unavailable`: it is there but failed, or has no use
here.  `disabled`: the caller took it away on purpose."""

LAYER_NAMES = (
    "environment",
    "descriptors",
    "rlimits",
    "user",
    "no_new_privs",
    "landlock",
    "seccomp",
    "bubblewrap",
)
"""All layers, in the order in which reports list them."""

_PROBE_SECONDS = 60.0
_FIXES = {
    "seccomp": "use Linux on x86-64 with seccomp",
    "landlock": "install bubblewrap and allow user namespaces, use a kernel >= 5.13 with Landlock",
    "user": "run as an ordinary user, or give root the right to change its user",
    "no_new_privs": "use Linux >= 3.5",
    "rlimits": "allow the process to set its resource limits",
    "environment": "report this as a bug",
    "descriptors": "report this as a bug",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of isolation."""

    name: str
    state: LayerState
    mandatory: bool
    detail: str = ""
    """How it was found out, or why it is not active."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerReport:
    """All layers, as they are on this system or as they held for one run."""

    layers: tuple[Layer, ...]
    bwrap: str = ""
    """Path of the bubblewrap program, if that layer is active."""

    def __getitem__(self, name: str) -> Layer:
        """Return the layer of this name."""
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise KeyError(name)

    @property
    def active(self) -> tuple[str, ...]:
        """Names of the active layers."""
        return tuple(layer.name for layer in self.layers if layer.state == "active")

    @property
    def is_trusted(self) -> bool:
        """Whether every mandatory layer is active."""
        return all(layer.state == "active" for layer in self.layers if layer.mandatory)

    def require(self) -> None:
        """Refuse unless every mandatory layer is active or was disabled on purpose.

        Raises:
            SandboxUnavailable: With what is missing and how to mend it.
        """
        faults = [
            layer
            for layer in self.layers
            if layer.mandatory and layer.state not in ("active", "disabled")
        ]
        if not faults:
            return
        reasons = {layer.detail for layer in faults}
        parts: list[str] = []
        for layer in faults:
            if layer.name == "landlock":
                wrapper = self["bubblewrap"].detail
                parts.append(f"no filesystem confinement (Landlock: {layer.detail}; {wrapper})")
            else:
                parts.append(f"no {layer.name} ({layer.detail})")
        if len(faults) > 1 and len(reasons) == 1:
            parts = [f"the sandbox {reasons.pop()}"]
            faults = [self["seccomp"]]
        fixes = "; ".join(dict.fromkeys(_FIXES[layer.name] for layer in faults))
        raise SandboxUnavailable(
            f"refusing to run generated code: {', '.join(parts)}. Fix: {fixes}; or run in a "
            "virtual machine and pass --unsafe-no-sandbox."
        )

    def without(self, names: Collection[str]) -> LayerReport:
        """Return the report with these layers marked as disabled."""
        unknown = set(names) - set(LAYER_NAMES)
        if unknown:
            raise ValueError(f"unknown layers {sorted(unknown)!r}, known are {LAYER_NAMES!r}")
        return replace(
            self,
            layers=tuple(
                replace(layer, state="disabled", detail="disabled by the caller")
                if layer.name in names
                else layer
                for layer in self.layers
            ),
            bwrap="" if "bubblewrap" in names else self.bwrap,
        )

    def held(self, names: Collection[str]) -> LayerReport:
        """Return the report for one run in which only these layers were applied."""
        return replace(
            self,
            layers=tuple(
                replace(layer, state="unavailable", detail="was not applied in this run")
                if layer.state == "active" and layer.name not in names
                else layer
                for layer in self.layers
            ),
        )

    def to_dict(self) -> list[dict[str, object]]:
        """Return plain data for results and reports."""
        return [
            {
                "name": layer.name,
                "state": layer.state,
                "mandatory": layer.mandatory,
                "detail": layer.detail,
            }
            for layer in self.layers
        ]


def probe_layers(
    *,
    system: str = sys.platform,
    machine: str | None = None,
    bwrap: str | None = None,
) -> LayerReport:
    """Try each layer in a throw-away child; the answer is kept for this process.

    Args:
        system: As `sys.platform`.
        machine: As `platform.machine()`, which is the default.
        bwrap: Path of bubblewrap, empty for none; by default it is looked up on PATH.
    """
    if bwrap is None:
        bwrap = shutil.which("bwrap") or ""
    return _probe(system, machine or platform.machine(), bwrap)


def no_layers() -> LayerReport:
    """Return the report of a run without a sandbox, as the caller asked for."""
    held = {"environment": "scrubbed", "descriptors": "closed"}
    return LayerReport(
        layers=tuple(
            Layer(
                name=name,
                state="active" if name in held else "disabled",
                mandatory=name not in ("bubblewrap", "user"),
                detail=held.get(name, "disabled: no sandbox, as the caller asked"),
            )
            for name in LAYER_NAMES
        )
    )


@functools.cache
def _probe(system: str, machine: str, bwrap: str) -> LayerReport:
    if system != "linux":
        return _nothing(f"needs Linux, this is {system}")
    if not seccomp.is_supported(machine):
        return _nothing(f"has no table of system calls for {machine}")
    roots = launch.import_roots()
    found = _run_probe(launch.python_command("nkisim.worker.probe:main", roots, {}))
    wrapper = _probe_bubblewrap(bwrap)
    layers: list[Layer] = []
    for name in LAYER_NAMES[:-1]:
        state, detail = found.get(name, ("unavailable", found[""][1] if "" in found else "no word"))
        mandatory = True
        if name == "landlock":
            mandatory = wrapper.state != "active"
        elif name == "user":
            mandatory = os.geteuid() == 0
        layers.append(Layer(name=name, state=state, mandatory=mandatory, detail=detail))
    return LayerReport(layers=(*layers, wrapper), bwrap=bwrap if wrapper.state == "active" else "")


def _nothing(reason: str) -> LayerReport:
    layers = (
        Layer(
            name=name, state="missing", mandatory=name not in ("user", "bubblewrap"), detail=reason
        )
        for name in LAYER_NAMES
    )
    return LayerReport(layers=tuple(layers))


def _run_probe(command: list[str]) -> Mapping[str, tuple[LayerState, str]]:
    """Run the probing process; the empty name explains why it said nothing."""
    try:
        done = subprocess.run(
            command,
            env=launch.scrubbed_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_SECONDS,
            cwd="/",
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return {"": ("unavailable", f"the probe did not run: {exc}")}
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        return {"": ("unavailable", f"the probe failed: {last[0]}")}
    return {name: (state, detail) for name, (state, detail) in json.loads(done.stdout).items()}


def _probe_bubblewrap(bwrap: str) -> Layer:
    """Start an interpreter with numpy inside; only that shows that it can be used."""

    def layer(state: LayerState, detail: str) -> Layer:
        return Layer(name="bubblewrap", state=state, mandatory=False, detail=f"bwrap: {detail}")

    if not bwrap:
        return layer("missing", "not installed")
    roots = launch.import_roots()
    inner = launch.python_command("nkisim.worker.probe:show_numpy", roots, {})
    try:
        done = subprocess.run(
            bubblewrap.wrap(bwrap, inner, roots),
            env=launch.scrubbed_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_SECONDS,
            cwd="/",
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return layer("unavailable", str(exc))
    if done.returncode != 0 or not done.stdout.startswith(b"numpy "):
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return layer("unavailable", lines[-1] if lines else f"exit code {done.returncode}")
    return layer("active", "started an interpreter in its own namespaces")
