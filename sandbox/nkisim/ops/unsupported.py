"""Names of `nki.isa` that nkisim does not emulate, with the reason that a user reads."""

from __future__ import annotations

UNSUPPORTED: dict[str, str] = {
    "core_barrier": "only one core is emulated",
    "sendrecv": "only one core is emulated",
    "builtin_custom_op": "custom GpSimd code cannot run here",
}
