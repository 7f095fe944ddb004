"""Whom a worker saw go, or never saw come, in one generation: what it reports as it leaves (PROTOCOL.md, rule 3).

A rank means something only within its group, so evidence is kept as names from the moment that it is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from reknit.rendezvous.records import Name
from reknit.runtime.errors import Interrupted

MOST = 128  # names of each kind in a report: who leaves last sees all others gone, and each report goes to the store


class Watched(Protocol):
    """A group that knows which of its ranks have closed their connections."""

    def peers_gone(self) -> list[int]:
        """Their ranks.  Never blocks."""


@dataclass
class Evidence:
    """`gone`: connections to them were found closed.  `absent`: they were waited for in vain, or cannot be reached."""

    gone: set[Name] = field(default_factory=set)
    absent: set[Name] = field(default_factory=set)

    def add(self, error: BaseException | None, names: Sequence[Name]) -> None:
        """What the failure of a group says, whose members are `names` by rank."""
        if isinstance(error, Interrupted):
            self.gone.update(names[rank] for rank in error.peers)
            self.absent.update(names[rank] for rank in error.absent)

    def ask(self, group: Watched | None, names: Sequence[Name]) -> None:
        """What a group knows, whose members are `names` by rank."""
        if group is not None:
            self.gone.update(names[rank] for rank in group.peers_gone())

    def fields(self) -> dict[str, list[Name]]:
        """For the report: not more than `MOST` of each."""
        return {"gone": sorted(self.gone)[:MOST], "absent": sorted(self.absent)[:MOST]}
