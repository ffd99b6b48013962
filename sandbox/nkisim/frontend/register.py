"""Scalar registers of the device: values that exist only at run time.

Source: NKI dynamic control flow guide; 64 registers of 32 bits per engine sequencer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NoReturn

from nkisim.errors import KernelError

if TYPE_CHECKING:
    from nkisim.frontend.recorder import Recorder


class Register:
    """A device register.  It takes part in addresses and loop bounds, not in Python arithmetic."""

    __slots__ = ("is_frozen", "number", "recorder")

    def __init__(self, recorder: Recorder, number: int, *, is_frozen: bool = False) -> None:
        self.recorder = recorder
        self.number = number
        self.is_frozen = is_frozen

    def __repr__(self) -> str:
        return f"register {self.number}"

    # A register stands in an instruction's operand list like a tensor.
    key: ClassVar[tuple[str, ...]] = ("register",)
    offset: ClassVar[int] = 0
    index: ClassVar[None] = None

    @property
    def storage(self) -> Register:
        """Itself: its number takes the place of a buffer's."""
        return self

    def _refuse(self, *_: object) -> NoReturn:
        raise KernelError(
            "NKS404",
            f"{self!r} has no value at trace time, so Python cannot compute with it",
            hint="keep the arithmetic on the device: compute in a tile and nisa.register_load it, "
            "or index with nl.ds(register, size) and .ap(scalar_offset=register)",
        )

    def __bool__(self) -> bool:
        return self.recorder.while_register(self)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __floordiv__ = __mod__ = __neg__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __int__ = __index__ = __float__ = _refuse
