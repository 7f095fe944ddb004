"""Reads TOML, with the library that the Python at hand has for it, loaded only then; a file without end is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

LARGEST = 1_000_000  # bytes


def read(path: Path) -> dict[str, Any]:
    """What the file holds.  Raises OSError, and ValueError for what is no TOML, no UTF-8, or too large."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    with path.open("rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError(f"it has more than {LARGEST} bytes")
    return dict(tomllib.loads(data.decode()))
