"""What the leader knows of the members, kept up by the watch's news; time is passed in.

A record that does not fit leaves out its member; a record that is merely written anew, as after a lost lease, changes
nothing.
"""

from __future__ import annotations

from reknit.rendezvous.codec import decode_member
from reknit.rendezvous.errors import RecordError
from reknit.rendezvous.keys import check_name
from reknit.rendezvous.leader.news import News
from reknit.rendezvous.plan import Observed
from reknit.rendezvous.records import Member, Name
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.store.protocol import Entry, Snapshot


class Roster:
    """The members as they are known now, by key.

    Of each, `changed` is when it last said something that plans wait upon: that it is built, drains, has left;
    `stalled` is when it last said something else about what it is stuck in.  The dead are here as long as their records
    are.
    """

    def __init__(self, rejected: Rejected) -> None:
        self._rejected = rejected
        self._observed: dict[str, Observed] = {}
        self._entries: dict[str, Entry] = {}
        self.known = False

    def take(self, news: News, now: float) -> None:
        """Take in what stands in the store."""
        self.known = True
        if isinstance(news, Snapshot):
            present = {entry.key for entry in news.entries}
            for key in [key for key in self._observed if key not in present]:
                self._drop(key)
            for entry in news.entries:
                self._see(entry, now)
            return
        for event in news:
            if event.entry is None:
                self._drop(event.key)
            else:
                self._see(event.entry, now)

    def fitting(self, size: int) -> list[Observed]:
        """Everybody whose coordinate lies within `size`; the others are rejected."""
        found = []
        for key, observed in self._observed.items():
            coordinate = observed.member.coordinate
            if coordinate is not None and coordinate >= size:
                self._rejected.add(self._entries[key], f"coordinate {coordinate} is not below {size}")
            else:
                found.append(observed)
        return found

    def names(self) -> set[Name]:
        """All processes that are here, and live."""
        return {observed.member.name for observed in self._observed.values() if not observed.member.dead}

    def of_agent(self, agent: str) -> list[tuple[Entry, Member]]:
        """The records that one agent wrote."""
        return [(self._entries[key], o.member) for key, o in self._observed.items() if o.member.agent == agent]

    def _drop(self, key: str) -> None:
        self._observed.pop(key, None)
        self._entries.pop(key, None)

    def _see(self, entry: Entry, now: float) -> None:
        member = self._rejected.read(entry, _decode)
        if member is not None and not entry.lease:
            self._rejected.add(entry, "it hangs on no lease: no agent wrote it")
            member = None
        if member is None:
            self._drop(entry.key)
            return
        before = self._observed.get(entry.key)
        self._entries[entry.key] = entry
        if before is None or before.member.name != member.name:
            self._observed[entry.key] = Observed(member, now, now, now)
        else:
            news = _waited_upon(before.member) != _waited_upon(member)
            changed = now if news else before.changed
            stalled = now if before.member.stall != member.stall else before.stalled
            self._observed[entry.key] = Observed(member, before.arrived, changed, stalled)


def _decode(raw: bytes, key: str) -> Member:
    member = decode_member(raw, key)
    check_name("worker id", member.worker_id)
    if member.worker_id != key.rpartition("/")[2]:
        raise RecordError(f"{key} holds the record of another worker, {member.worker_id!r:.80}")
    return member


def _waited_upon(member: Member) -> tuple[bool, bool, int, int]:
    return (member.built, member.draining, member.left, member.incomplete)
