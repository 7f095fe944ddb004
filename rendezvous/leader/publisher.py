"""Reads and writes the published plan for one leader in one term, under its fence.

Every transaction holds only while the leader key stands since this leader's election and `plan` since this leader last
looked, so a deposed leader writes nothing, and of two writers of a generation one writes nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from reknit.rendezvous.errors import RecordError, StoreUnavailable
from reknit.rendezvous.history import KEPT_SECONDS, encode_record, record_of
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.leader.chunks import OPERATIONS, chunks
from reknit.rendezvous.leader.fence import Fence
from reknit.rendezvous.leader.remains import leave
from reknit.rendezvous.parts import Head, decode_head, encode, encode_head, head_of
from reknit.rendezvous.records import FINISHED, LOST, WAITING, Former, Member, Plan
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.store.protocol import Compare, Lease, Operation, Put, Store
from reknit.rendezvous.whole_plan import read_whole

logger = logging.getLogger(__name__)

KEPT = 64  # generations
CATCH_UP = 16  # older generations that a new leader also deletes, as its predecessor may not have come to it

NOTHING = Plan(0, "nothing yet", WAITING)


class Publisher:
    """`plan` is the newest published plan as this leader knows it, None before the first; `load` finds it out.

    All methods raise StoreUnavailable, after which `load` must come first, and `Deposed` if the fence has fallen.
    `wall` is the clock by which people read the history.
    """

    def __init__(
        self,
        store: Store,
        keys: Keys,
        revision: int,
        rejected: Rejected,
        timeout: float,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.fence = Fence(store, keys, revision, timeout)
        self._keys, self._rejected, self._wall = keys, rejected, wall
        self._mod_revision = 0
        self._bytes = encode_head(head_of(NOTHING, ""))
        self._uncertain = False
        self._collected = self._left = 0
        self._seen: Head | None = None
        self._remembered = False
        self.emptied = False  # the last load found a store that had lost the plan altogether
        self.plan: Plan | None = None

    def remember(self, seen: Head | None, plan: Plan | None) -> None:
        """Go by these if the store has lost them: the newest head that this agent saw, and its own newest plan."""
        self._seen = seen
        newer = (
            seen is not None and plan is not None and (seen.generation, seen.writer) > (plan.generation, plan.writer)
        )
        if plan is not None and plan.writer and not newer:
            self.plan, self._bytes, self._remembered = plan, encode(plan)[0], True

    # ---------------------------------------------------------------- reading

    def load(self, members: Sequence[Member], *, all_here: bool = True) -> bool:
        """Find out the newest plan; return whether it is known.

        What is missing or damaged is put right from what this leader knows, or from the plan's history.  Failing
        that, nobody's state counts as current, and the members' reports decide (rule 10 of recovery/PROTOCOL.md): but
        not before `all_here`, all who live have come back, as nobody then knows who else had a place.  No number of a
        generation that anybody may have seen is given out again.
        """
        entry = self.fence.get(self._keys.head)
        self._mod_revision = 0 if entry is None else entry.mod_revision
        head = None if entry is None else self._rejected.read(entry, decode_head)
        reported = max(newest_reported(members), self._seen.generation if self._seen is not None else 0)
        known = max(reported, self.plan.generation if self.plan is not None else 0)
        self.emptied = entry is None and known > 0
        if entry is None or head is None or head.generation < known:
            if not self._recover(members, reported, all_here or entry is not None):
                return False
        elif self.plan is None or (head.generation, head.writer) != (self.plan.generation, self.plan.writer):
            self._adopt(head, entry.value, members)
        elif self._remembered and self._whole(head) is None:
            self._put_back(self.plan, *encode(self.plan))
        self._remembered = False
        if self._uncertain:
            self._close_off()
        return True

    @property
    def mod_revision(self) -> int:
        """The revision of `plan` that this leader knows; another one in the store is somebody else's doing."""
        return self._mod_revision

    def _adopt(self, head: Head, raw: bytes, members: Sequence[Member]) -> None:
        self.plan, self._bytes = None, raw
        if head.generation > 0:
            self.plan = self._whole(head)
            if self.plan is None:
                self._give_up(unknown_places(head.generation, head, members))

    def _whole(self, head: Head) -> Plan | None:
        try:
            plan = read_whole(head, self._keys, self.fence.list)
            if len({len(replica.places) for replica in plan.replicas}) > 1:
                raise RecordError("its replicas differ in size")
        except (ValueError, TypeError) as error:
            logger.error("the parts of generation %d cannot be read: %s", head.generation, error)
            return None
        return plan

    def _recover(self, members: Sequence[Member], reported: int, all_here: bool) -> bool:
        """The head is missing, damaged or older than what has been seen."""
        if self.plan is not None and self.plan.generation >= reported:
            # Who lost the head may have lost its parts as well, and a newcomer will ask for them.
            self._put_back(self.plan, *encode(self.plan))
            return True
        history = self.fence.list(self._keys.plans)
        heads = {_generation(entry.key, self._keys.plans): entry for entry in history.entries}
        newest = max([reported, *heads])
        if newest == 0:
            return True
        kept = heads.get(newest)
        decoded = None if kept is None else self._rejected.read(kept, decode_head)
        if decoded is not None and decoded.generation != newest:
            decoded = None
        plan = None if decoded is None else self._whole(decoded)
        if kept is not None and plan is not None:
            self._put_back(plan, kept.value, {})
        elif all_here:
            ran = reported > 0 or any(m.coordinate is not None and not m.pristine for m in members)
            seen = self._seen if self._seen is not None and self._seen.generation == newest else None
            self._give_up(unknown_places(newest, decoded or seen, members if ran else ()))
        else:
            return False
        return True

    def _put_back(self, plan: Plan, head: bytes, parts: Mapping[str, bytes]) -> None:
        logger.error("the newest plan was missing, damaged or old: putting back generation %d", plan.generation)
        self._write(plan, head, parts)

    def _give_up(self, plan: Plan) -> None:
        logger.error("%s; everybody is placed anew", plan.reason)
        self.plan, self._bytes = plan, encode_head(head_of(plan, ""))

    def _close_off(self) -> None:
        """A publication may still be on its way: write the head that stands anew, so that it can never arrive."""
        self._mod_revision = self._transact([Put(self._keys.head, self._bytes)])
        self._uncertain = False

    # ---------------------------------------------------------------- writing

    def publish(self, plan: Plan) -> None:
        """Write a plan: its parts before, or with, its head; its history with it.  An ended job leaves all of it."""
        plan = replace(plan, writer=self.fence.revision)
        over = plan.state in (FINISHED, LOST)
        lease = self.fence.grant(KEPT_SECONDS) if over else None
        self._write(plan, *encode(plan), encode_record(record_of(plan, self._wall())), lease)
        if over:
            self.leave()

    def _write(
        self,
        plan: Plan,
        head: bytes,
        parts: Mapping[str, bytes],
        record: bytes | None = None,
        lease: Lease | None = None,
    ) -> None:
        keys = self._keys
        last = [Put(f"{keys.plans}{plan.generation}/head", head, lease), Put(keys.head, head, lease)]
        if record is not None:
            last.append(Put(keys.history(plan.generation), record, lease))
        puts = (Put(keys.prefix + key, value, lease) for key, value in sorted(parts.items()))
        pieces = list(chunks(puts)) or [[]]
        if len(pieces[-1]) > OPERATIONS - len(last):
            pieces.append([])
        try:
            for piece in pieces[:-1]:
                self._transact(piece)
            self._mod_revision = self._transact([*pieces[-1], *last])
        except StoreUnavailable:
            self._uncertain = True
            raise
        self.plan, self._bytes = plan, head

    def leave(self) -> bool:
        """See to it that what an ended job leaves is gone some day; returns whether that is done."""
        if self._left == self._mod_revision or self.plan is None:
            return True
        entry = self.fence.get(self._keys.head)
        if entry is None or entry.mod_revision != self._mod_revision:
            return False  # the next look finds out
        lease = Lease(entry.lease, 0) if entry.lease else self.fence.grant(KEPT_SECONDS)
        if not entry.lease:
            self._mod_revision = self._transact([Put(entry.key, entry.value, lease)])
        generation = self.plan.generation
        older = range(max(1, generation - KEPT - CATCH_UP), generation)
        if leave(self.fence, lease, generation, older, Compare.mod_revision(entry.key, self._mod_revision)):
            self._left = self._mod_revision
        return self._left == self._mod_revision

    def collect(self) -> None:
        """Delete a generation that is too old to be kept, if there is one."""
        generation = self.plan.generation if self.plan is not None else 0
        first = max(1, self._collected + 1, generation - KEPT - CATCH_UP)
        for old in range(first, generation - KEPT + 1):
            self.fence.delete_prefix(f"{self._keys.plans}{old}/")
            self.fence.delete_prefix(self._keys.history(old))
            self._collected = old

    def _transact(self, operations: Sequence[Operation]) -> int:
        return self.fence.write(operations, Compare.mod_revision(self._keys.head, self._mod_revision))


def newest_reported(members: Sequence[Member]) -> int:
    """The newest generation that any member has seen, 0 for none."""
    return max((max(m.ready, m.left, m.incomplete, m.torn) for m in members), default=0)


def unknown_places(generation: int, head: Head | None, members: Sequence[Member]) -> Plan:
    """What is known of a generation whose parts are lost: who lives, and that nobody's state is surely current.

    Members with a coordinate may have been placed in it.  `since` lies after it, so that the next generation begins a
    new run of places for everybody.
    """
    placed = generation if (head.placed if head is not None else any(m.coordinate is not None for m in members)) else 0
    former = tuple(
        Former(member.name, member.coordinate, placed, generation + 1)
        for member in sorted(members, key=lambda member: member.name)
        if member.coordinate is not None and placed
    )
    reason = f"who sat where in generation {generation} is lost"
    state = WAITING if head is None else head.state
    origin = 0 if head is None else head.origin
    return Plan(generation, reason, state, (), former, broken=placed, origin=origin, placed=placed)


def _generation(key: str, prefix: str) -> int:
    """The number in the key of a kept head; 0 for all other keys."""
    number, _, part = key.removeprefix(prefix).partition("/")
    return int(number) if part == "head" and number.isascii() and number.isdigit() and len(number) < 19 else 0
