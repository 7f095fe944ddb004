"""Follows a job in its store: the newest plan, the members' and the agents' records.  Writes nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from reknit.rendezvous.accusation import AgentRecord, decode_agent
from reknit.rendezvous.codec import decode_member
from reknit.rendezvous.errors import RecordError, StoreError
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.parts import Head, decode_head
from reknit.rendezvous.records import Member, Plan
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.store.protocol import Entry, Event, Snapshot, Store, WatchHandle
from reknit.rendezvous.whole_plan import read_whole
from reknit.runtime.chaos.situation import Job

log = logging.getLogger("reknit.chaos")

READ_SECONDS = 2.0  # for a plan's parts; then another try


class JobWatch:
    """A job as its records say, kept up by three watches.  The constructor opens nothing; `start` does."""

    def __init__(self, store: Store, job: str) -> None:
        self._store, self._keys = store, Keys(job)
        self._rejected = Rejected(log)
        self._condition = threading.Condition()
        self._changes = 0
        self._head: Head | None = None
        self._members: dict[str, Member] = {}
        self._agents: dict[str, AgentRecord] = {}
        self._plan: Plan | None = None
        self._handles: list[WatchHandle] = []

    def exists(self, timeout: float) -> bool:
        """Whether the store knows such a job at all.  Raises StoreError."""
        return bool(self._store.list(self._keys.members, timeout=timeout).entries) or (
            self._store.get(self._keys.head, timeout=timeout) is not None
        )

    def start(self) -> None:
        """Begin to follow; does not wait for the store."""
        members = partial(self._put, self._members, decode_member, _id_of_member)
        agents = partial(self._put, self._agents, decode_agent, _id_of_agent)
        for key, clear, see, prefix in (
            (self._keys.members, self._members.clear, members, True),
            (self._keys.agents, self._agents.clear, agents, True),
            (self._keys.head, _nothing, self._see_head, False),
        ):
            on_reset = partial(self._reset, clear, see)
            self._handles.append(self._store.watch(key, on_reset, partial(self._apply, see), prefix=prefix))

    def close(self) -> None:
        """Stop following."""
        for handle in self._handles:
            handle.close()
        self._handles = []

    def wait(self, seen: int, timeout: float) -> int:
        """Wait until something has changed since `seen`, what an earlier call returned, or `timeout` is over."""
        with self._condition:
            self._condition.wait_for(lambda: self._changes != seen, timeout)
            return self._changes

    def read(self) -> Job:
        """The job as of now; reads a new plan's parts from the store.  While it cannot, there is no plan."""
        with self._condition:
            head = self._head
        if head is not None and (self._plan is None or _identity(self._plan) != (head.generation, head.writer)):
            self._plan = self._read_plan(head)
        with self._condition:
            return Job(self._plan if head is not None else None, dict(self._members), dict(self._agents))

    def _read_plan(self, head: Head) -> Plan | None:
        try:
            return read_whole(head, self._keys, lambda prefix: self._store.list(prefix, timeout=READ_SECONDS))
        except (StoreError, RecordError) as error:  # parts of a plan that is no longer the newest are soon gone
            log.debug("generation %d cannot be read: %s", head.generation, error)
            return None

    # ---------------------------------------------------------------- called by the watches' threads

    def _reset(self, clear: Callable[[], None], see: Callable[[str, Entry | None], None], snapshot: Snapshot) -> None:
        with self._condition:
            clear()
            for entry in snapshot.entries:
                see(entry.key, entry)
            self._changed()

    def _apply(self, see: Callable[[str, Entry | None], None], events: Sequence[Event]) -> None:
        with self._condition:
            for event in events:
                see(event.key, event.entry)
            self._changed()

    def _changed(self) -> None:
        self._changes += 1
        self._condition.notify_all()

    def _put(
        self,
        into: dict[str, Any],
        decode: Callable[[bytes, str], Any],
        name: Callable[[Any], str],
        key: str,
        entry: Entry | None,
    ) -> None:
        """Keep the record at `key` under its name; one that does not fit is as good as absent."""
        value = None if entry is None else self._rejected.read(entry, decode)
        if value is None or name(value) != key.rpartition("/")[2]:
            into.pop(key.rpartition("/")[2], None)
        else:
            into[name(value)] = value

    def _see_head(self, key: str, entry: Entry | None) -> None:
        self._head = None if entry is None else self._rejected.read(entry, decode_head)


def _identity(plan: Plan) -> tuple[int, int]:
    return plan.generation, plan.writer


def _id_of_member(member: Member) -> str:
    return member.worker_id


def _id_of_agent(record: AgentRecord) -> str:
    return record.agent


def _nothing() -> None:
    return None
