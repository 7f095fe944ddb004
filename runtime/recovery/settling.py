"""Compare and settle: everybody hears what everybody holds, decides alike, and comes to the decided version.

Rules 8, 9 and 11 of PROTOCOL.md.  What is decided is `decision`; here the rows travel and the states move.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from reknit.rendezvous.records import Version
from reknit.runtime import injection
from reknit.runtime.communicator.communicator import Communicator
from reknit.runtime.errors import Interrupted
from reknit.runtime.recovery.decision import Row, Settling, decide, holders, settling
from reknit.runtime.recovery.groups import Groups
from reknit.runtime.recovery.healing import Exchange, Received
from reknit.runtime.recovery.state import State

log = logging.getLogger(__name__)

_NONE = -1  # a version's number on the wire where there is none

Event = Callable[..., None]  # event(name, **fields): a line for --events
TellCommitted = Callable[..., None]  # tell_committed(version, update, **more): the event of a committed step


class Checkpoints(Protocol):
    """What this needs of the job's checkpoints."""

    def read(self, step: int) -> Any:
        """This coordinate's part of the checkpoint of a step, with `mark` and `bytes`; None if it cannot be had."""

    def take(self, found: Any, version: Version, generation: int) -> None:
        """Come to what was read."""


class IncompleteError(Exception):
    """The comparison decides nothing: the leader has to (rule 10)."""


def compare(groups: Groups, state: State) -> tuple[Version, list[Row]]:
    """Everybody's (committed, prepared, current), in the data group, then in the replica.

    Returns the decided version and the rows of this coordinate by data rank.  Raises Interrupted, IncompleteError.
    """
    assert groups.data is not None
    assert groups.rounds is not None
    mine = [*_words(state.row(groups.coordinate, groups.since)), state.verify_every, state.differed]
    column = torch.empty(groups.data.size * len(mine), dtype=torch.int64)
    groups.data.all_gather_into_tensor(column, torch.tensor(mine, dtype=torch.int64))
    table = groups.rounds.gather(column.view(groups.data.size, len(mine))).tolist()
    columns = [[_row(coordinate, words) for words in rows] for coordinate, rows in enumerate(table)]
    wanted = [words[5] for rows in table for words in rows if words[5] > 0]
    groups.verify_every = min(wanted, default=0)  # hosts may have been told differently: all must do the same
    groups.excused = max(words[6] for rows in table for words in rows)
    decision = decide(groups.view.head.target, [row for column in columns for row in column], len(columns))
    log.debug("generation %d: %s", groups.generation, decision.reason)
    if decision.version is None:
        raise IncompleteError(decision.reason)
    return decision.version, columns[groups.coordinate]


def settle(
    groups: Groups,
    state: State,
    version: Version,
    rows: Sequence[Row],
    event: Event,
    tell_committed: TellCommitted,
    checkpoints: Checkpoints | None = None,
) -> None:
    """Come to `version`, and heal those at this coordinate who can't by themselves.

    `checkpoints`: None if this worker knows of none.  Raises Interrupted, IncompleteError.
    """
    column = list(rows)
    if groups.view.head.restore and version.step > 0:
        column = _restore(groups, version, checkpoints, event)
    elif groups.view.head.restore:  # what the first replica's scripts built is everybody's state
        column[0] = column[0]._replace(committed=version)
    sources = holders(version, column)
    receivers = [rank for rank in range(len(column)) if rank not in sources]
    if receivers and not sources:
        raise IncompleteError(f"nobody at this coordinate holds {version}")
    match settling(version, column[groups.data_rank]):
        case Settling.KEEP:
            state.keep(version, groups.generation)
        case Settling.ROLL_FORWARD:
            update = state.commit()
            state.ready = groups.generation
            tell_committed(version, update, rolled_forward=True)
        case Settling.HEAL:
            _be_healed(groups, state, version, Exchange(_data(groups), sources, receivers, _at(version)), event)
            return
    if receivers:
        packed = state.packed()
        Exchange(_data(groups), sources, receivers, _at(version)).serve(packed)


def _restore(groups: Groups, version: Version, checkpoints: Checkpoints | None, event: Event) -> list[Row]:
    """Each reads its coordinate's part of the checkpoint; the column then says who could.

    Nobody's state changes before the whole job knows that some worker at each coordinate could, and all from the same
    checkpoint: else the leader has to decide again, about states that are still what they were.
    """
    assert groups.data is not None
    assert groups.rounds is not None
    injection.reach("restore", version.step)
    begun = time.monotonic()
    found = checkpoints.read(version.step) if checkpoints is not None else None
    column = torch.empty(groups.data.size, dtype=torch.int64)
    groups.data.all_gather_into_tensor(column, torch.tensor([found.mark if found is not None else 0]))
    marks: list[list[int]] = groups.rounds.gather(column).tolist()
    injection.reach("restore together", version.step)
    if missing := [coordinate for coordinate, some in enumerate(marks) if not any(some)]:
        raise IncompleteError(f"nobody at coordinate {missing[0]} could read the checkpoint of step {version.step}")
    if len({mark for some in marks for mark in some if mark}) > 1:
        raise IncompleteError(f"the checkpoint of step {version.step} was replaced as it was read")
    if checkpoints is not None and found is not None:
        checkpoints.take(found, version, groups.generation)
        event("restored", step=version.step, bytes=found.bytes, seconds=time.monotonic() - begun)
    could = marks[groups.coordinate]
    return [Row(groups.coordinate, version if mark else None, None, False) for mark in could]


def _be_healed(groups: Groups, state: State, version: Version, exchange: Exchange, event: Event) -> None:
    state.forget()
    try:
        received = exchange.be_served(version, state.partial, state.keep_partial)
    except Interrupted as error:
        event("heal_failed", step=version.step, reason=str(error))
        raise
    state.unpack(received.state, version, groups.generation)
    names = [peer.place.name.worker_id for peer in groups.view.peers]
    _tell_of_damage(received, names)
    event(
        "healed",
        sources=[names[rank] for rank in sorted(received.sources)],
        bytes=received.bytes,
        kept=received.kept,
        damaged=[names[rank] for rank in sorted(received.damaged)],
        seconds=received.seconds,
        step=version.step,
    )


def _tell_of_damage(received: Received, names: Sequence[str]) -> None:
    for rank in sorted(set(received.damaged)):
        count = received.damaged.count(rank)
        log.error("%d chunks of the state from %s came damaged; they were sent again", count, names[rank])


def _data(groups: Groups) -> Communicator:
    assert groups.data is not None
    return groups.data


def _at(version: Version) -> Callable[[str], None]:
    return lambda phase: injection.reach(phase, version.step)


def _words(row: Row) -> list[int]:
    """A row of the comparison as five integers."""
    none = Version(_NONE, _NONE)
    return [*(row.committed or none), *(row.prepared or none), int(row.current)]


def _row(coordinate: int, words: list[int]) -> Row:
    """The inverse of `_words`."""
    committed, prepared = Version(*words[0:2]), Version(*words[2:4])
    return Row(
        coordinate,
        committed if committed.generation != _NONE else None,
        prepared if prepared.generation != _NONE else None,
        bool(words[4]),
    )
