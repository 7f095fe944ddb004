"""Compare and settle: everybody hears what everybody holds, decides alike, and comes to the decided version.

Rules 8, 9 and 11 of PROTOCOL.md.  What is decided is `decision`; here the rows travel and the states move.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import torch

from reknit.rendezvous.records import Version
from reknit.runtime import injection
from reknit.runtime.recovery import healing
from reknit.runtime.recovery.decision import Row, Settling, decide, healing_pairs, settling
from reknit.runtime.recovery.groups import Groups
from reknit.runtime.recovery.state import State

log = logging.getLogger(__name__)

_NONE = -1  # a version's number on the wire where there is none

Event = Callable[..., None]  # event(name, **fields): a line for --events
TellCommitted = Callable[..., None]  # tell_committed(version, update, **more): the event of a committed step


class IncompleteError(Exception):
    """The comparison decides nothing: the leader has to (rule 10)."""


def compare(groups: Groups, state: State) -> tuple[Version, list[Row]]:
    """Everybody's (committed, prepared, current), in the data group, then in the replica.

    Returns the decided version and the rows of this coordinate by data rank.  Raises Interrupted, IncompleteError.
    """
    assert groups.data is not None
    assert groups.rounds is not None
    mine = _words(state.row(groups.coordinate, groups.since))
    column = torch.empty(groups.data.size * len(mine), dtype=torch.int64)
    groups.data.all_gather_into_tensor(column, torch.tensor(mine, dtype=torch.int64))
    table = groups.rounds.gather(column.view(groups.data.size, len(mine))).tolist()
    columns = [[_row(coordinate, words) for words in rows] for coordinate, rows in enumerate(table)]
    decision = decide(groups.view.head.target, [row for column in columns for row in column], len(columns))
    log.debug("generation %d: %s", groups.generation, decision.reason)
    if decision.version is None:
        raise IncompleteError(decision.reason)
    return decision.version, columns[groups.coordinate]


def settle(
    groups: Groups, state: State, version: Version, rows: Sequence[Row], event: Event, tell_committed: TellCommitted
) -> None:
    """Come to `version`, and heal those at this coordinate who can't by themselves.  Raises Interrupted."""
    column = list(rows)
    if groups.view.head.restore:  # what the first replica's scripts built is everybody's state
        column[0] = column[0]._replace(committed=version)
    pairs = healing_pairs(version, column)
    match settling(version, column[groups.data_rank]):
        case Settling.KEEP:
            state.keep(version, groups.generation)
        case Settling.ROLL_FORWARD:
            update = state.commit()
            state.ready = groups.generation
            tell_committed(version, update, rolled_forward=True)
        case Settling.HEAL:
            _be_healed(groups, state, version, pairs, event)
    for receiver, source in sorted(pairs.items()):
        if source == groups.data_rank:
            _heal(groups, state, receiver)


def _heal(groups: Groups, state: State, receiver: int) -> None:
    assert groups.data is not None
    injection.reach("heal", state.step)
    healing.send_state(groups.data, receiver, state.pack())


def _be_healed(groups: Groups, state: State, version: Version, pairs: dict[int, int], event: Event) -> None:
    assert groups.data is not None
    if groups.data_rank not in pairs:
        raise IncompleteError(f"nobody at this coordinate holds {version}")
    source, begun = pairs[groups.data_rank], time.monotonic()
    state.forget()
    injection.reach("be healed", version.step)
    packed, count = healing.receive_state(groups.data, source)
    state.unpack(packed, version, groups.generation)
    event(
        "healed",
        source=groups.view.peers[source].place.name.worker_id,
        bytes=count,
        seconds=time.monotonic() - begun,
        step=version.step,
    )


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
