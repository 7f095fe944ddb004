"""The leader: watches the members, asks `plan.next_plan` what to do, and publishes the answer under its fence.

A shell around pure decisions.  It runs beside a `Session`, in the one agent that was elected; everything that it knows
it takes from the store, so that a new leader goes on where the last one stopped.  A store that does not answer, values
that do not fit and a fallen fence end no thread: they are logged, and it looks again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from reknit.rendezvous.errors import StoreUnavailable
from reknit.rendezvous.keys import Assignment, Keys, decode_assignment
from reknit.rendezvous.leader.publisher import Publisher
from reknit.rendezvous.leader.term import LOOK, News, Tenure, Term
from reknit.rendezvous.plan import Patience
from reknit.rendezvous.records import Spec
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.store.protocol import Store, WatchHandle

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LeaderState:
    """What the status shows; `waiting_for`: why the last look ended without a plan."""

    revision: int
    members: int
    generation: int
    published: int
    waiting_for: str
    rejected: int


class Leader:
    """Leads while it is told to.  The constructor opens nothing; `start` starts its thread; only `close` waits.

    Args:
        spec: what to go by while the store shows no spec that fits; later, the last one that did.
        detect: seconds after which a member that no replica needs at its coordinate is asked to start afresh.
    """

    def __init__(
        self,
        store: Store,
        job: str,
        tenure: Tenure,
        *,
        spec: Spec | None = None,
        patience: Patience | None = None,
        detect: float = 5.0,
        operation: float = 1.5,
    ) -> None:
        self._store, self._keys, self._tenure = store, Keys(job), tenure
        self._patience, self._detect, self._operation = patience or Patience(), detect, operation
        self.spec = spec
        self.earlier = 0  # the newest generation of an earlier run: what `Session.look_back` found
        self._rejected = Rejected(logger)
        self._condition = threading.Condition()
        self._revision = 0
        self._closed = False
        self._term: Term | None = None
        self._published = 0
        self._thread = threading.Thread(target=self._run, name="leader", daemon=True)

    def start(self) -> None:
        """Start the thread, which waits for `lead`."""
        self._thread.start()

    def lead(self, revision: int) -> None:
        """Lead under the fence `revision`: this agent was elected."""
        self._set(revision)

    def follow(self) -> None:
        """Lead no longer: this agent was deposed, or cannot be sure."""
        self._set(0)

    def close(self) -> None:
        """Stop; waits for the operation under way."""
        with self._condition:
            self._closed = True
        self._set(0)
        if self._thread.is_alive():
            self._thread.join(2 * self._operation + 1)

    @property
    def state(self) -> LeaderState | None:
        """What the status shows; None while this agent does not lead."""
        term = self._term
        if term is None:
            return None
        generation = term.publisher.plan.generation if term.publisher.plan is not None else 0
        return LeaderState(
            term.revision, len(term.roster.names()), generation, self._published, term.waiting_for, self._rejected.count
        )

    def _set(self, revision: int) -> None:
        with self._condition:
            self._revision = revision
            if self._term is not None:
                self._term.end()
            self._condition.notify_all()

    def _run(self) -> None:
        while True:
            with self._condition:
                while self._revision == 0 and not self._closed:
                    self._condition.wait()
                if self._closed:
                    return
                publisher = Publisher(self._store, self._keys, self._revision, self._rejected, self._operation)
                term = Term(
                    self._revision,
                    publisher,
                    self._rejected,
                    self._tenure,
                    self._patience,
                    self._detect,
                    self.spec,
                    self.earlier,
                )
                self._term = term
            try:
                self._serve(term)
            except Exception:
                logger.exception("leading failed, will begin again")
            with self._condition:
                self._term, self.spec = None, term.spec
                if self._revision == term.revision and not self._closed:
                    self._condition.wait(LOOK)
                self._published += term.published

    def _serve(self, term: Term) -> None:
        watches: list[WatchHandle] = []
        try:
            watches.append(self._watch(term, self._keys.members, term.on_members, prefix=True))
            watches.append(self._watch(term, self._keys.spec, term.on_spec))
            watches.append(self._watch(term, self._keys.head, term.on_head))
            term.given = self._given(term)
            while term.wait():
                term.look(time.monotonic())
        finally:
            for watch in watches:
                watch.close()

    def _watch(self, term: Term, key: str, take: Callable[[News, float], None], *, prefix: bool = False) -> WatchHandle:
        def put(news: News) -> None:
            term.hear(take, news, time.monotonic())

        return self._store.watch(key, put, put, prefix=prefix)

    def _given(self, term: Term) -> dict[str, Assignment]:
        """The assignments that stand.  Only leaders write them, so that nobody need watch them."""
        while not term.ended:
            try:
                found = self._store.list(self._keys.assignments, timeout=self._operation).entries
            except StoreUnavailable as error:
                logger.warning("cannot read the assignments, will try again: %s", error)
                term.pause()
                continue
            read = (self._rejected.read(entry, decode_assignment) for entry in found)
            return {assignment.name.worker_id: assignment for assignment in read if assignment is not None}
        return {}
