"""Where the prompts and tasks that come with the program lie, and which version this is.

A wheel carries the data under `nkiwright/_data`; a checkout (and an editable install) keeps it at
the top of the tree.  Everything else asks here, so that both work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

DataKind = Literal["prompts", "tasks"]


def data_dir(kind: DataKind) -> Path:
    """Return the folder that holds the program's own data of one kind.

    Args:
        kind: Which data.

    Raises:
        FileNotFoundError: The installation is incomplete.
    """
    package = Path(__file__).resolve().parent
    places = (package / "_data" / kind, package.parents[1] / kind)
    for place in places:
        if place.is_dir():
            return place
    raise FileNotFoundError(
        f"the {kind} folder that comes with nkiwright is missing (looked in {places[0]} and "
        f"{places[1]}); reinstall with 'pip install --force-reinstall nkiwright'"
    )


def version() -> str:
    """Return the version that both packages share."""
    from nkisim._version import __version__

    return __version__
