"""What an agent settles with the store before its session starts: the spec, and what an earlier life left standing.

All of it waits for the store.  An agent is found by its own record, `agents/<name>`, which hangs on its lease: one that
crashed and is back in time goes on with that lease, or ends it.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace

from reknit.rendezvous.accusation import AgentRecord, decode_agent
from reknit.rendezvous.codec import decode_member, decode_spec, encode_spec
from reknit.rendezvous.errors import LeaseLost, ReknitError, StoreUnavailable
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.records import Member, Spec
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.store.protocol import Compare, Entry, Lease, Put, Store

logger = logging.getLogger(__name__)


class SpecMismatchError(ReknitError, ValueError):
    """The job runs with other axes than were asked for."""


@dataclass(frozen=True)
class Legacy:
    """What an earlier life of this agent left: its lease, renewed at `asked` (monotonic), and its members' records."""

    lease: Lease
    asked: float
    members: tuple[Member, ...]
    values: dict[str, bytes]


class Opening:
    """The questions; each raises StoreUnavailable when its time is over."""

    def __init__(self, store: Store, keys: Keys, agent_id: str, rejected: Rejected, retry: float) -> None:
        self._store, self._keys, self._agent_id = store, keys, agent_id
        self._rejected, self._retry = rejected, retry

    def propose_spec(self, spec: Spec, timeout: float) -> Spec:
        """See `Session.propose_spec`."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                standing = self._propose_once(spec)
            except StoreUnavailable:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(self._retry)
                continue
            if standing is not None:
                break
        if standing.axes != spec.axes:
            raise SpecMismatchError(
                f"job {self._keys.job!r} runs with pipe {standing.axes.pipe} x model {standing.axes.model}, but this "
                f"agent asks for pipe {spec.axes.pipe} x model {spec.axes.model}: start it with the job's axes, or "
                "under another job id"
            )
        if standing != spec:
            logger.info("the job has a spec already, which is used: %s", standing)
        return standing

    def namesake(self, timeout: float) -> tuple[Entry, AgentRecord] | None:
        """The record that stands under this agent's name, on a lease."""
        entry = self._store.get(self._keys.agent(self._agent_id), timeout=timeout)
        record = None if entry is None else self._rejected.read(entry, decode_agent)
        return None if entry is None or record is None or not entry.lease else (entry, record)

    def earlier_lease(self, node: str, timeout: float) -> Lease | None:
        """The lease on which an earlier life of this agent, at the same node, left its record; None if there is none.

        Its time to live is not known, and it may have ended by now.
        """
        found = self.namesake(timeout)
        if found is None:
            return None
        entry, record = found
        if record.node != node:  # of the same name by mistake, or moved: its workers are not here
            logger.warning(
                "an agent %s is known on host %s (%s), too: its lease is left alone; give each agent a name of its own",
                self._agent_id,
                record.host,
                record.node,
            )
            return None
        return Lease(entry.lease, 0)

    def legacy(self, node: str, timeout: float) -> Legacy | None:
        """The earlier life's lease, if it can still be renewed, and what hangs on it."""
        lease = self.earlier_lease(node, timeout)
        if lease is None:
            return None
        asked = time.monotonic()
        try:
            lease = Lease(lease.id, self._store.keep_alive(lease, timeout=timeout))
        except LeaseLost:
            return None
        found = {
            entry.key: (entry, self._rejected.read(entry, decode_member))
            for entry in self._store.list(self._keys.members, timeout=timeout).entries
            if entry.lease == lease.id
        }
        own = {key: (entry, member) for key, (entry, member) in found.items() if member is not None}
        members = tuple(member for _, member in own.values())
        return Legacy(lease, asked, members, {key: entry.value for key, (entry, _) in own.items()})

    def _propose_once(self, spec: Spec) -> Spec | None:
        """The spec that stands, or None if it has to be looked at again."""
        key = self._keys.spec
        entry = self._store.get(key)
        standing = None if entry is None else self._rejected.read(entry, decode_spec)
        if standing is None:
            guard = Compare.absent(key) if entry is None else Compare.mod_revision(key, entry.mod_revision)
            self._store.transaction([guard], [Put(key, encode_spec(spec))])
        elif entry is not None and entry.lease and _asks_for_another(spec, standing) and self._nobody_is_here():
            # It is what a run that has ended left.  The new one expires as well, unless the job begins again.
            put = Put(key, encode_spec(spec), Lease(entry.lease, 0))
            try:
                self._store.transaction([Compare.mod_revision(key, entry.mod_revision)], [put])
            except LeaseLost:
                pass  # it has expired just now
            return None
        return standing

    def _nobody_is_here(self) -> bool:
        """Whether the job has no agent, so that this one may be the first of a new run."""
        return not self._store.list(self._keys.agents).entries


def _asks_for_another(spec: Spec, standing: Spec) -> bool:
    """Whether it is another job's shape; the size that an operator has set is none of an agent's business."""
    return replace(standing, desired=None) != replace(spec, desired=None)
