"""The spec by which a leader goes: what the store shows, or the last one that fitted."""

from __future__ import annotations

import logging

from reknit.rendezvous.codec import decode_spec, encode_spec
from reknit.rendezvous.leader.fence import Fence
from reknit.rendezvous.leader.news import News, newest
from reknit.rendezvous.records import Spec
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.store.protocol import Compare, Entry, Put

logger = logging.getLogger(__name__)


class StandingSpec:
    """`spec` is None while none is known; `looked_up`: whether the store has been heard."""

    def __init__(self, fence: Fence, rejected: Rejected, spec: Spec | None) -> None:
        self._fence, self._rejected = fence, rejected
        self.spec = spec
        self.looked_up = False
        self._fits, self._revision = False, 0
        self._expires: Entry | None = None  # what a job that has ended left, as long as it stands so

    def take(self, news: News, now: float) -> None:
        """Take in what the store shows; what does not fit leaves the last one that did."""
        self.looked_up = True
        entry = newest(news)
        spec = None if entry is None else self._rejected.read(entry, decode_spec)
        self._fits, self._revision = spec is not None, entry.mod_revision if entry is not None else 0
        self._expires = entry if entry is not None and entry.lease else None
        if entry is None or spec is None:
            logger.warning("the store shows no spec that fits; going by the last one known: %s", self.spec)
        elif self.spec is not None and spec.axes != self.spec.axes:
            self._rejected.add(entry, f"the axes of a running job never change ({self.spec.axes} -> {spec.axes})")
        elif spec != self.spec:
            logger.debug("the spec is now %s", spec)
            self.spec = spec

    def put_back(self, spec: Spec) -> None:
        """Write it where the store shows none that can be read: other agents, and the next leader, go by that."""
        if not self._fits:
            key = self._fence.keys.spec
            self._fence.write([Put(key, encode_spec(spec))], Compare.mod_revision(key, self._revision))
            self._fits = True

    def keep(self) -> None:
        """The job goes on, so that its spec must not expire as an earlier run's does."""
        entry = self._expires
        if entry is not None:
            revision = self._fence.write([Put(entry.key, entry.value)], Compare.mod_revision(entry.key, self._revision))
            self._expires, self._revision = None, revision
