"""The pure part of recovery: what a comparison decides, and what a newer plan means for a worker in a generation.

PROTOCOL.md, rules 6-11.  Everybody gets the same table, so everybody decides alike; `tests/sim` checks these functions
in every interleaving within its bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from reknit.rendezvous.records import Version


class Row(NamedTuple):
    """One placed worker's line in the comparison.

    `current`: it was brought to a decided version within its present unbroken run of places.  Since then nobody can
    have committed what this worker had not prepared.
    """

    coordinate: int
    committed: Version | None
    prepared: Version | None
    current: bool

    @property
    def held(self) -> frozenset[Version]:
        """The versions that this worker can be brought to by itself."""
        return frozenset(v for v in (self.committed, self.prepared) if v is not None)


@dataclass(frozen=True)
class Decision:
    """The version that every placed worker will be at; None: incomplete, the leader has to decide.  And why."""

    version: Version | None
    reason: str


def decide(target: Version | None, table: Sequence[Row], size: int) -> Decision:
    """The outcome of the comparison: a pure function of the whole table (`size`: how many coordinates there are).

    Whatever anybody, living or dead, has committed is held by every current row; what one of them lacks, nobody has
    committed.  So the highest version that all current rows hold is safe, if it isn't behind a committed one.
    """
    if target is not None:
        return Decision(target, f"the leader decided on {target}")
    rows = [row for row in table if row.committed is not None and row.current]
    missing = set(range(size)) - {row.coordinate for row in rows}
    if missing:
        return Decision(None, f"nobody current holds coordinate {min(missing)}")
    top = max(row.committed for row in rows if row.committed is not None)
    best = max(frozenset.intersection(*(row.held for row in rows)), default=None)
    if best is None or best < top:
        return Decision(None, f"{top} is committed, and not all who are current hold it")
    if best > top:
        return Decision(best, f"all who are current hold {best} prepared: roll forward")
    return Decision(best, f"{best} is the newest that anybody has committed")


class Settling(Enum):
    """What a worker does to be at the decision."""

    KEEP = "it is there"
    ROLL_FORWARD = "it steps on the gradients that it holds"
    HEAL = "it takes the whole state from a peer at its coordinate"


def settling(decision: Version, row: Row) -> Settling:
    """How a worker comes to the decided version (rule 11)."""
    if row.committed == decision:
        return Settling.KEEP
    if row.prepared == decision:
        return Settling.ROLL_FORWARD
    return Settling.HEAL


def holders(decision: Version, column: Sequence[Row]) -> list[int]:
    """Who can heal the others within one data group, by data rank.  `column`: the rows of one coordinate."""
    return [rank for rank, row in enumerate(column) if decision in row.held]


class Reaction(Enum):
    """What a newer plan means for a worker that is in a generation (rules 6 and 7)."""

    NONE = "go on"
    GRACEFUL = "leave at the vote that says that all know a newer plan"
    SUPERSEDED = "leave at once: the comparison has not been entered"
    URGENT = "leave now: data groups are interrupted; the replica's rounds run on, its formation stands"
    URGENT_ALL = "leave now: the formation is over too, its groups are interrupted"


def reaction(generation: int, entered_comparison: bool, known: int, broken: int, formation_stands: bool) -> Reaction:
    """How to react to the newest plan known.

    `generation`: the one whose groups this worker holds.  `known`, `broken`: the newest head's.  `formation_stands`:
    whether the newest plan holds this worker's formation unchanged.
    """
    if known <= generation:
        return Reaction.NONE
    if broken >= generation:
        return Reaction.URGENT if formation_stands else Reaction.URGENT_ALL
    return Reaction.GRACEFUL if entered_comparison else Reaction.SUPERSEDED
