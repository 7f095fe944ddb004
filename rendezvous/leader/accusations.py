"""What the leader does about an agent that was asked whether it lives, and has not answered: it ends its lease.

Level-triggered: what counts are the accusations that stand, so that a new leader goes on where the last one stopped.
An accusation goes when the loss of everybody at that agent is in the plan, or when there was nobody.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from reknit.rendezvous.accusation import Accusation, decode_accusation
from reknit.rendezvous.leader.fence import Fence
from reknit.rendezvous.leader.news import News, follow
from reknit.rendezvous.leader.roster import Roster
from reknit.rendezvous.plan import history
from reknit.rendezvous.records import Member, Name, Plan
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.store.protocol import Compare, Delete, Entry

logger = logging.getLogger(__name__)

COMPARED = 100  # records at most; what a transaction can compare is limited


class Accusations:
    """The accusations that stand, and why those at the accused agents are lost.

    `again`: the last look left something undone of which no news will tell.
    """

    def __init__(self, fence: Fence, roster: Roster, rejected: Rejected) -> None:
        self._fence, self._roster, self._rejected = fence, roster, rejected
        self._standing: dict[str, Entry] = {}
        self._ended: dict[tuple[str, int], set[Name]] = {}  # (key, creation) of those acted upon -> who is lost by it
        self.again = False

    def take(self, news: News, now: float) -> None:
        """Take in what stands in the store."""
        follow(self._standing, news)

    def act(self, previous: Plan) -> dict[Name, str]:
        """End the leases of those who have not answered; return why their members are lost.

        Call it only while the own lease surely stands.
        """
        past = history(previous)
        causes: dict[Name, str] = {}
        self.again = False
        self._ended = {mark: names for mark, names in self._ended.items() if self._still(mark)}
        for entry, accusation in self._unanswered():
            records = self._roster.of_agent(accusation.agent)
            if any(record.mod_revision > entry.create_revision for record, _ in records):
                self._delete(entry)  # it has written since: it lives
            elif self._has_ended(entry, accusation, records):
                names = self._ended[entry.key, entry.create_revision]
                names.update(member.name for _, member in records)
                names.update(p.name for r in previous.replicas for p in r.places if p.agent == accusation.agent)
                causes.update(dict.fromkeys(names, f"agent {accusation.agent} does not answer ({accusation.reason})"))
                if not records and not names & past.keys():
                    self._delete(entry)
        return causes

    def _unanswered(self) -> list[tuple[Entry, Accusation]]:
        read = ((entry, self._rejected.read(entry, decode_accusation)) for entry in self._standing.values())
        return [(entry, accusation) for entry, accusation in read if accusation is not None and accusation.unanswered]

    def _still(self, mark: tuple[str, int]) -> bool:
        entry = self._standing.get(mark[0])
        return entry is not None and entry.create_revision == mark[1]

    def _has_ended(self, entry: Entry, accusation: Accusation, records: Sequence[tuple[Entry, Member]]) -> bool:
        """End the agent's leases, once, unless it turns out to live."""
        mark = (entry.key, entry.create_revision)
        if mark in self._ended:
            return True
        keys = self._fence.keys
        own, agent = self._fence.get(keys.leader), self._fence.get(keys.agent(accusation.agent))
        if own is None or own.value == accusation.agent.encode():
            self._delete(entry)  # this agent has not heard of it yet; that it reads it is answer enough
            return False
        if agent is not None and agent.mod_revision > entry.create_revision:
            self._delete(entry)
            return False
        seen = [Compare.mod_revision(record.key, record.mod_revision) for record, _ in records[:COMPARED]]
        seen.append(Compare.mod_revision(keys.agent(accusation.agent), agent.mod_revision if agent else 0))
        if not self._fence.try_write([], Compare.mod_revision(entry.key, entry.mod_revision), *seen):
            self.again = True
            return False
        leases = {record.lease for record, _ in records} | ({agent.lease} if agent else set())
        for lease in sorted(leases - {0, own.lease}):
            logger.warning("agent %s does not answer (%s): its lease ends", accusation.agent, accusation.reason)
            self._fence.revoke(lease)
        self._ended[mark] = set()
        return True

    def _delete(self, entry: Entry) -> None:
        self._fence.try_write([Delete(entry.key)], Compare.mod_revision(entry.key, entry.mod_revision))
        self._standing.pop(entry.key, None)
