"""PSUM: banks.

Source: NKI architecture guide, PSUM: 16 KiB per partition in 8 banks of 2 KiB; a matmul writes one
bank.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nkisim.ir.program import IntColumn


def crosses_bank(
    address: IntColumn, low: IntColumn, high: IntColumn, bank_bytes: int
) -> npt.NDArray[np.bool_]:
    """Return which accesses touch more than one bank.

    Args:
        address: Byte address of the tile in its partition; 0 if it is placed freely, since a
            tile is placed so that it crosses no more banks than it must.
        low: First byte of the access in its partition, from the start of the tile.
        high: Last byte of the access.
        bank_bytes: Bytes of a bank in one partition.
    """
    first: IntColumn = (address + low) // bank_bytes
    last: IntColumn = (address + high) // bank_bytes
    return np.not_equal(first, last)
