"""How much one execution may use before it is stopped."""

from __future__ import annotations

from dataclasses import dataclass

from nkisim.errors import OutOfFuel


@dataclass(frozen=True, slots=True, kw_only=True)
class Fuel:
    """Upper bounds of one execution.

    Each is checked before the work is begun as soon as the amount is known, otherwise while it
    goes on.
    """

    instructions: int = 2_000_000
    """Executed instructions, loop trips counted."""
    bytes: int = 8 << 30
    """Storage alive at one time, inputs not counted."""
    traffic_bytes: int = 1 << 40
    """Bytes that operands read and write, all together."""
    loop_trips: int = 1_000_000
    """Trips of all device loops together."""

    def check(self, resource: str, used: int, place: str = "") -> None:
        """Raise `OutOfFuel` if `used` exceeds the bound on `resource`."""
        limit: int = getattr(self, resource)
        if used > limit:
            raise OutOfFuel(resource.replace("_", " "), limit, used, place)
