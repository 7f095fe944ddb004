"""The kinds of values that options have, and how each is read: from a flag or a variable as text, from TOML as a value.

A `Kind` says what it expects ("a whole number"), so that every layer can refuse a value in one sentence that names
where it came from.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True)
class Kind:
    """`read` takes text and raises ValueError; `accepts` names the TOML types that are written as such text."""

    expects: str
    metavar: str
    read: Callable[[str], Any]
    accepts: tuple[type, ...] = (str,)

    def read_text(self, text: str, source: str) -> Any:
        """The value of `text`.  Raises ValueError with a sentence that begins with `source`."""
        try:
            return self.read(text)
        except ValueError:
            raise ValueError(f"{source} must be {self.expects}, not {text!r:.80}") from None

    def read_toml(self, value: Any, source: str) -> Any:
        """The value of what a TOML file holds.  Raises ValueError with a sentence that begins with `source`."""
        if self is LIST and isinstance(value, list) and all(isinstance(item, str) for item in value):
            return value
        if type(value) not in self.accepts:
            raise ValueError(f"{source} must be {self.expects}, not {value!r:.80}")
        return self.read_text(value if isinstance(value, str) else str(value).lower(), source)


def _read_switch(text: str) -> bool:
    if text.lower() not in (*_YES, *_NO):
        raise ValueError
    return text.lower() in _YES


def _read_path(text: str) -> Path:
    if "\0" in text:
        raise ValueError
    return Path(text)


def _read_list(text: str) -> list[str]:
    return [part for part in re.split(r"[,\s]+", text) if part]


TEXT = Kind("text", "TEXT", str)
WHOLE = Kind("a whole number", "N", int, (int,))
SECONDS = Kind("a number of seconds", "S", float, (int, float))
PATH = Kind("a path", "FILE", _read_path)
SWITCH = Kind("true or false", "", _read_switch, (bool,))
LIST = Kind("names, separated by commas or in a list", "NAME", _read_list)
RANGE = Kind("N or MIN:MAX", "N|MIN:MAX", str, (str, int))


def choice(*words: str) -> Kind:
    """One of these words."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError
        return text

    return Kind(f"one of {', '.join(words)}", "|".join(words), read)
