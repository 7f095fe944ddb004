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
from typing import Protocol

from reknit.rendezvous.codec import decode_spec
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.leader.judging import Judge
from reknit.rendezvous.leader.news import News, newest
from reknit.rendezvous.leader.publisher import Publisher
from reknit.rendezvous.leader.resigning import Resigning
from reknit.rendezvous.leader.term import LOOK, Known, Tenure, Term
from reknit.rendezvous.leader.witness import Witness
from reknit.rendezvous.parts import Head
from reknit.rendezvous.plan import Patience
from reknit.rendezvous.records import Name, Plan, Spec
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.store.protocol import Store, WatchHandle

logger = logging.getLogger(__name__)


class Office(Tenure, Protocol):
    """What a leader asks of its session."""

    def resign(self, rest: float) -> None:
        """Leave the office, and do not ask for it again before `rest` seconds."""


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
        detect: the lease's time to live (seconds): by it go the waits that `Term` names.
        judge: who of those who have a place hangs, so that it has to be put out, and why.
        witness: is shown what the leader looks at, to count it.
    """

    def __init__(
        self,
        store: Store,
        job: str,
        tenure: Office,
        *,
        spec: Spec | None = None,
        patience: Patience | None = None,
        detect: float = 5.0,
        operation: float = 1.5,
        judge: Judge | None = None,
        witness: Witness | None = None,
    ) -> None:
        self._store, self._keys, self._tenure = store, Keys(job), tenure
        self._patience, self._detect, self._operation = patience or Patience(), detect, operation
        self._judge, self._witness = judge, witness
        self.spec = spec
        self.earlier = 0  # the newest generation of an earlier run: what `Session.look_back` found
        self._seen: Head | None = None
        self._plan: Plan | None = None  # the newest one that this agent knew when it led
        self._given: dict[Name, int] = {}
        self._spec_watch: WatchHandle | None = None
        self._rejected = Rejected(logger)
        self._condition = threading.Condition()
        self._revision = 0
        self._closed = False
        self._term: Term | None = None
        self._published = 0
        self._resigning = Resigning()
        self._thread = threading.Thread(target=self._run, name="leader", daemon=True)

    def start(self) -> None:
        """Start the thread, which waits for `lead`, and the watch of the spec, as a store may lose it."""
        self._spec_watch = self._store.watch(self._keys.spec, self._remember, self._remember)
        self._thread.start()

    def see(self, head: Head) -> None:
        """Note the newest head that this agent has seen: no leader must give out its number again."""
        self._seen = head

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
        if self._spec_watch is not None:
            self._spec_watch.close()
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

    @property
    def rejected(self) -> int:
        """Values that did not fit, in all its terms."""
        return self._rejected.count

    def _set(self, revision: int) -> None:
        with self._condition:
            self._revision = revision
            if self._term is not None:
                self._term.inbox.end()
            self._condition.notify_all()

    def _remember(self, news: News) -> None:
        entry = newest(news)
        try:
            spec = None if entry is None else decode_spec(entry.value)
        except ValueError:
            return  # whoever leads says so
        if spec is not None and (self.spec is None or self.spec.axes == spec.axes):
            self.spec = spec

    def _run(self) -> None:
        while True:
            with self._condition:
                while self._revision == 0 and not self._closed:
                    self._condition.wait()
                if self._closed:
                    return
                self._term = term = self._begin(self._revision)
            failed = False
            try:
                self._serve(term)
            except Exception:
                logger.exception("leading failed, will begin again")
                failed = True
            self._resign(failed, term.steps)
            with self._condition:
                self._term = None
                self._plan, self._given = term.publisher.plan or self._plan, term.assignments.given
                if self._revision == term.revision and not self._closed:
                    self._condition.wait(LOOK)
                self._published += term.published

    def _resign(self, failed: bool, steps: int) -> None:
        """Leave the office to others, if this agent fails at it again and again."""
        self._resigning = self._resigning.after(failed, steps)
        rest = self._resigning.rest
        if rest is not None:
            self._resigning = self._resigning.resign()
            logger.error("this agent fails at leading, see above: another one shall lead, for %g s at least", rest)
            self._tenure.resign(rest)

    def _begin(self, revision: int) -> Term:
        publisher = Publisher(self._store, self._keys, revision, self._rejected, self._operation)
        publisher.remember(self._seen, self._plan)
        known = Known(self.spec, self.earlier, self._given)
        return Term(
            publisher, self._rejected, self._tenure, self._patience, self._detect, known, self._judge, self._witness
        )

    def _serve(self, term: Term) -> None:
        watches: list[WatchHandle] = []
        try:
            watches.append(self._watch(term, self._keys.members, term.roster.take, prefix=True))
            watches.append(self._watch(term, self._keys.accusations, term.accusations.take, prefix=True))
            watches.append(self._watch(term, self._keys.assignments, term.assignments.take, prefix=True))
            watches.append(self._watch(term, self._keys.spec, term.standing_spec.take))
            watches.append(self._watch(term, self._keys.head, term.on_head))
            while term.wait():
                term.look(time.monotonic())
        finally:
            for watch in watches:
                watch.close()

    def _watch(self, term: Term, key: str, take: Callable[[News, float], None], *, prefix: bool = False) -> WatchHandle:
        def put(news: News) -> None:
            term.inbox.put(take, news, time.monotonic())

        return self._store.watch(key, put, put, prefix=prefix)
