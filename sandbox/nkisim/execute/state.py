"""What outlives an instruction on the device and is not in a buffer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nkisim.execute.coverage import Coverage, Flags, elements
from nkisim.ir.access import Pattern
from nkisim.ops.random_lanes import GPSIMD_WORDS, VECTOR_WORDS, Lanes


class DeviceState:
    """Registers, accumulators, random numbers, and which PSUM elements hold matmul results.

    Args:
        registers: Number of registers.
        seed: Of the device's random generator.
        results: Flags of PSUM buffers that matmuls write.
        buffers: Buffer of each operand.
        offsets: Byte offset of each operand.
        patterns: Pattern of each operand of the current instruction's form, set by `begin`.
    """

    def __init__(
        self,
        registers: int,
        seed: int,
        results: Coverage,
        buffers: list[int],
        offsets: list[int],
    ) -> None:
        self.scalar_accumulator: npt.NDArray[np.float32] = np.zeros(128, dtype=np.float32)
        self.vector_accumulator: npt.NDArray[np.float32] = np.zeros(128, dtype=np.float32)
        self.registers: npt.NDArray[np.int64] = np.zeros(max(1, registers), dtype=np.int64)
        self.vector_random = Lanes(VECTOR_WORDS, seed)
        self.gpsimd_random = Lanes(GPSIMD_WORDS, seed + 1)
        self.results = results
        self.resolved: dict[int, int] = {}
        """Byte offsets of the current instruction's operands with a run-time index."""
        self._buffers = buffers
        self._offsets = offsets
        self._first = 0
        self._patterns: tuple[Pattern, ...] = ()

    def begin(self, first_operand: int, patterns: tuple[Pattern, ...]) -> None:
        """Tell which instruction comes next."""
        self._first = first_operand
        self._patterns = patterns

    def end(self) -> None:
        """Tell that the instruction is over."""
        self._patterns = ()
        if self.resolved:
            self.resolved = {}

    def result_flags(self, position: int) -> Flags | None:
        """Return the flags under operand `position` as a view, or None if it has none."""
        k = self._first + position
        offset = self.resolved.get(k)
        return self.results.view(
            self._buffers[k],
            self._patterns[position],
            self._offsets[k] if offset is None else offset,
        )

    def result_grain(self, position: int) -> int:
        """Return the bytes per flag under operand `position`."""
        return self.results.grain[self._buffers[self._first + position]]

    def psum_accumulates(self, position: int) -> bool | npt.NDArray[np.bool_]:
        """Say where operand `position` holds a matmul result already."""
        flags = self.result_flags(position)
        if flags is None:
            return False
        held = int(np.count_nonzero(flags))
        if held == 0:
            return False
        if held == flags.size:
            return True
        return elements(flags, self._patterns[position], self.result_grain(position))
