"""Finds silent corruption: every so many steps the replicas of a coordinate compare a checksum of what they must hold
alike, before anybody can commit an update made with it.

What is compared is what `packing` calls shared: parameters and optimizer state.  The outcome is known to the whole job,
by the round in the replica, so that all leave the generation together if somebody must be healed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from reknit.runtime.errors import Interrupted
from reknit.runtime.recovery.groups import Groups
from reknit.runtime.recovery.state import State

log = logging.getLogger(__name__)

HEAL, EVICT = "heal", "evict"
POLICIES = (HEAL, EVICT)
_ALIKE, _UNDECIDED, _FOUND = range(3)  # what a coordinate tells its replica


class Verdict(NamedTuple):
    """`differ`: the data ranks whose checksum is not the majority's; all of them if there is none."""

    differ: tuple[int, ...]
    majority: bool


def judge(sums: Sequence[int]) -> Verdict:
    """Who differs from more than half of the replicas.  Pure.  `sums`: checksums by data rank, at least one."""
    common, count = Counter(sums).most_common(1)[0]
    majority = 2 * count > len(sums)
    return Verdict(tuple(rank for rank, one in enumerate(sums) if one != common or not majority), majority)


class Corrupted(Interrupted):
    """Some replica's state differs: all leave this generation.  `mine`: this worker's does."""

    def __init__(self, message: str, *, group: str, rank: int, mine: bool) -> None:
        super().__init__(message, group=group, rank=rank)
        self.mine = mine


def is_due(every: int, step: int, excused: int = 0) -> bool:
    """Whether an attempt on top of `step` committed steps compares.

    `excused`: the step at which somebody was healed for what was found: comparing there anew could go on for ever, with
    an object that does not take over all that it is given.
    """
    return every > 0 and step > 0 and step % every == 0 and step != excused


def verify(groups: Groups, state: State, policy: str, event: Callable[..., None]) -> None:
    """Compare with the other replicas.  Raises Corrupted in every worker of the job if a minority differs somewhere.

    Where there is no majority nothing can be done: that is said, and the job goes on.  Raises Interrupted.
    """
    assert groups.data is not None
    assert groups.rounds is not None
    sums = torch.empty(groups.data.size, dtype=torch.int64)
    groups.data.all_gather_into_tensor(sums, torch.tensor([state.checksum()], dtype=torch.int64))
    verdict = judge(sums.tolist())
    found = _FOUND if verdict.majority else _UNDECIDED
    code = found if verdict.differ else _ALIKE
    names = [groups.peers[rank].worker_id for rank in verdict.differ]
    mine = groups.data_rank in verdict.differ
    if mine:
        _tell(verdict, names, groups, state.step, policy, event)
    if all(words[0] != _FOUND for words in groups.rounds.say((code,))):
        return
    if code == _FOUND and policy == EVICT and not mine:  # they are about to exit: one plan for that is enough
        groups.evidence.gone.update(groups.peers[rank] for rank in verdict.differ)
    who = f"the state of {', '.join(names)} differs" if code == _FOUND else "a state differs at another coordinate"
    message = f"{who} from the other replicas' at step {state.step}"
    raise Corrupted(message, group=groups.data.name, rank=groups.data_rank, mine=mine and verdict.majority)


def _tell(
    verdict: Verdict, names: Sequence[str], groups: Groups, step: int, policy: str, event: Callable[..., None]
) -> None:
    event("differs", step=step, coordinate=groups.coordinate, action=policy if verdict.majority else "none")
    if not verdict.majority:
        if groups.data_rank == 0:
            log.error(
                "ERROR: the states of %s at coordinate %d differ at step %d, and no majority says which is right: "
                "nobody is healed",
                ", ".join(names),
                groups.coordinate,
                step,
            )
        return
    what = "takes the others' state over" if policy == HEAL else "starts afresh"
    log.error(
        "ERROR: the state of %s differs from that of the other replicas at step %d (silent corruption): it %s",
        groups.name.worker_id,
        step,
        what,
    )
