"""The machine that plans are made for."""

from __future__ import annotations

import pytest

from nkisim.machine.load import load_machine


@pytest.fixture(scope="session")
def machine():
    return load_machine("trn2")
