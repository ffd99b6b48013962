"""Random numbers of the engines: one stream for each partition, a function of the state's words.

The device runs XORWOW; its words are kept in the documented layout, but the numbers come from a
hash of them and a counter, so that a whole tile is drawn at once.  A stream is so the same for the
same words on every run, equal words give equal streams, and storing and restoring the words
continues a stream where it was.  The bits themselves are not the device's.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

LANES: Final = 128
GPSIMD_WORDS: Final = 6
"""State of one XORWOW generator: five words and a counter."""
VECTOR_WORDS: Final = 24
"""Four generators for each partition."""
COUNTER: Final = 5
"""Word that counts the numbers drawn, as XORWOW's last word does."""

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


def _mix(values: Any) -> Any:
    """Scramble 64-bit integers (the finaliser of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class Lanes:
    """The generator of one engine.

    Args:
        width: Words of state for each partition.
        seed: What the streams start from.
    """

    def __init__(self, width: int, seed: int) -> None:
        self.words: npt.NDArray[np.uint32] = np.zeros((LANES, width), dtype=np.uint32)
        self.seed(seed)

    def seed(self, value: int) -> None:
        """Start all streams from one 32-bit seed; every partition gets words of its own."""
        places = np.arange(self.words.size, dtype=np.uint64).reshape(self.words.shape)
        start = np.uint64(value & 0xFFFFFFFF) << np.uint64(32)
        with np.errstate(over="ignore"):
            mixed = _mix((places + np.uint64(1)) * _GOLDEN ^ _mix(start + _GOLDEN))
        self.words[...] = (mixed >> np.uint64(32)).astype(np.uint32)
        self.words[:, COUNTER] = 0

    def draw(self, partitions: int, count: int) -> npt.NDArray[np.uint32]:
        """Return the next `count` numbers of the first `partitions` streams, [P, count]."""
        words = self.words[:partitions]
        key = np.zeros(partitions, dtype=np.uint64)
        with np.errstate(over="ignore"):
            for column in range(words.shape[1]):
                if column != COUNTER:
                    key = _mix((key ^ words[:, column]) + _GOLDEN)
            # The counter has 32 bits, as the device's: the stream repeats after 2^32 numbers.
            place = words[:, COUNTER, None] + np.arange(count, dtype=np.uint32)
            numbers: npt.NDArray[np.uint64] = _mix(
                key[:, None] + (place.astype(np.uint64) + np.uint64(1)) * _GOLDEN
            )
            words[:, COUNTER] += np.uint32(count & 0xFFFFFFFF)
        high: npt.NDArray[np.uint32] = (numbers >> np.uint64(32)).astype(np.uint32)
        return high


def unit(bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.float32]:
    """Return uniform float32 in [0, 1) from random bits, multiples of 2^-24."""
    return (bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
