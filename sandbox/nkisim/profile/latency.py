"""How an emulated latency is shown: always with the band that calibration found."""

from __future__ import annotations

from nkisim.machine.spec import Machine

NS_PER_US = 1000.0


def band_text(machine: Machine) -> str:
    """Return the band, such as `± 18 %`, or that there is none."""
    band = machine.latency_band
    return f"± {100 * band:.0f} %" if band > 0 else "(uncalibrated)"


def latency_text(latency_ns: float, machine: Machine) -> str:
    """Return an emulated latency with its band, such as `102.4 us ± 18 %`."""
    return f"{_digits(latency_ns / NS_PER_US)} us {band_text(machine)}"


def _digits(us: float) -> str:
    """Return microseconds with no more digits than mean something."""
    return f"{us:,.0f}" if us >= 1000 else f"{us:,.1f}" if us >= 10 else f"{us:,.2f}"
