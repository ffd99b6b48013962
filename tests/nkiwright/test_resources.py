"""The program finds its own data."""

from __future__ import annotations

import re
from importlib import metadata

import pytest

from nkiwright import resources


@pytest.mark.parametrize("kind", ["tasks", "prompts"])
def test_data_folder_exists_and_holds_something(kind):
    assert any(resources.data_dir(kind).iterdir())


def test_version_is_the_installed_one():
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", resources.version())
    assert resources.version() == metadata.version("nkiwright")
