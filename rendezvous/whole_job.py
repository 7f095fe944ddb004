"""A job as all its records say: read from the store by those who show it, drain it, or must know who needs them.

Reads on the caller's thread, one request per kind of record, and keeps a plan for as long as it is the newest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from reknit.rendezvous.accusation import AgentRecord, decode_agent
from reknit.rendezvous.codec import decode_member, decode_spec
from reknit.rendezvous.errors import RecordError
from reknit.rendezvous.history import HistoryRecord, read_all
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.parts import Head, decode_head
from reknit.rendezvous.records import Member, Plan, Spec
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.shows import Show, decode_show
from reknit.rendezvous.store.protocol import Entry, Snapshot, Store
from reknit.rendezvous.whole_plan import read_whole

_T = TypeVar("_T")


@dataclass(frozen=True)
class Told:
    """What an agent tells, and the store's revision at which it was written."""

    show: Show
    revision: int


@dataclass(frozen=True)
class WholeJob:
    """What lies in the store of one job.  `plan` is the newest (None: none yet, or it cannot be read: `unreadable`).

    `history`: by generation.  Records that do not fit are left out.
    """

    job: str
    spec: Spec | None = None
    plan: Plan | None = None
    unreadable: str = ""
    members: tuple[Member, ...] = ()
    agents: tuple[AgentRecord, ...] = ()
    leader: str | None = None
    told: tuple[Told, ...] = ()
    history: tuple[HistoryRecord, ...] = ()


class JobRecords:
    """Reads one job's records.  The constructor opens nothing.

    `timeout`: seconds of each request, None for the store's own default.  Every method raises StoreError if the store
    does not answer.
    """

    def __init__(self, store: Store, keys: Keys, rejected: Rejected, *, timeout: float | None = None) -> None:
        self.keys = keys
        self._store, self._rejected, self._timeout = store, rejected, timeout
        self._newest: tuple[Head, Plan] | None = None

    def spec(self) -> Spec | None:
        """What the operator asks for; None if there is nothing of that."""
        entry = self._get(self.keys.spec)
        return None if entry is None else self._rejected.read(entry, decode_spec)

    def members(self) -> tuple[Member, ...]:
        """All members' records."""
        return tuple(self._read_all(self._list(self.keys.members).entries, decode_member))

    def plan(self) -> Plan | None:
        """The newest plan; None if there is none.  Raises RecordError if it cannot be read."""
        entry = self._get(self.keys.head)
        if entry is None:
            return None
        try:
            head = decode_head(entry.value, entry.key)
        except RecordError as error:
            self._rejected.add(entry, str(error))
            raise
        if self._newest is None or self._newest[0] != head:
            self._newest = head, read_whole(head, self.keys, self._list)
        return self._newest[1]

    def agents(self) -> tuple[AgentRecord, ...]:
        """All agents' own records."""
        return tuple(self._read_all(self._list(self.keys.agents).entries, decode_agent))

    def leader(self) -> str | None:
        """Who leads."""
        entry = self._get(self.keys.leader)
        return None if entry is None else entry.value.decode(errors="replace")

    def history(self) -> tuple[HistoryRecord, ...]:
        """How the newest generations came about, oldest first."""
        return tuple(read_all(self._list(self.keys.histories).entries, self._rejected))

    def told(self) -> tuple[Told, ...]:
        """What agents tell while somebody looks."""
        found = ((entry, self._rejected.read(entry, decode_show)) for entry in self._list(self.keys.shows).entries)
        return tuple(Told(show, entry.mod_revision) for entry, show in found if show is not None)

    def whole(self) -> WholeJob:
        """All of it.  Members before the plan: what they say of the newest one is then said of this one."""
        told, members = self.told(), self.members()
        unreadable = ""
        try:
            plan = self.plan()
        except RecordError as error:
            plan, unreadable = None, str(error)
        return WholeJob(
            self.keys.job, self.spec(), plan, unreadable, members, self.agents(), self.leader(), told, self.history()
        )

    def _get(self, key: str) -> Entry | None:
        return self._store.get(key, timeout=self._timeout)

    def _list(self, prefix: str) -> Snapshot:
        return self._store.list(prefix, timeout=self._timeout)

    def _read_all(self, entries: Iterable[Entry], decode: Callable[[bytes, str], _T]) -> list[_T]:
        found = (self._rejected.read(entry, decode) for entry in entries)
        return [record for record in found if record is not None]
