"""Asking agents whether they live, and answering when this one is asked (`rendezvous/accusation.py`).

Two threads: one that answers, which nothing else blocks, as a late answer costs all of this agent's workers their
places; and one that asks and looks after a while whether the accusation still stands.

That it stands proves something only if the store has served everybody meanwhile.  So the accused's time runs only from
when all trouble with the store is over by so long that every agent is connected to it again (`Candidacy.calms`), the
accuser looks twice in that time (`chance`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from reknit.rendezvous.accusation import Accusation, decode_accusation, encode_accusation
from reknit.rendezvous.errors import StoreError, StoreUnavailable
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.session.background import Background
from reknit.rendezvous.session.chance import Chance, begin, weigh
from reknit.rendezvous.session.events import Accused
from reknit.rendezvous.store.protocol import Compare, Delete, Entry, Lease, Put, Store

logger = logging.getLogger(__name__)


class Responder(Background):
    """Deletes the accusation of the own agent, whoever makes it.  Opens nothing before `start`."""

    def __init__(
        self, store: Store, emit: Callable[[Accused], None], rejected: Rejected, *, timeout: float, retry: float
    ) -> None:
        super().__init__("accusations-answer", timeout)
        self._store, self._emit, self._rejected = store, emit, rejected
        self._retry = retry
        self._standing: Entry | None = None
        self._told = 0

    def see(self, entry: Entry | None) -> None:
        """Take in the newest state of the own accusation."""
        with self._condition:
            self._standing = entry
            self._condition.notify_all()
        if entry is None or entry.create_revision == self._told:  # it was only marked, or written anew
            return
        self._told = entry.create_revision
        accusation = self._rejected.read(entry, decode_accusation)
        if accusation is not None:
            logger.info("%s asks whether this agent lives: %s", accusation.by, accusation.reason)
            self._emit(Accused(accusation))

    def _run(self) -> None:
        while True:
            with self._condition:
                while self._standing is None and not self._closed:
                    self._condition.wait()
                if self._closed or self._standing is None:
                    return
                entry = self._standing
            done = False
            try:
                self._store.delete(entry.key, timeout=self._timeout)
                done = True
            except StoreError as error:
                logger.warning("the accusation of this agent is not answered yet, trying on: %s", error)
            except Exception:
                logger.exception("the accusation of this agent cannot be answered, trying on")
            with self._condition:
                if done and self._standing is entry:
                    self._standing = None
                elif not done and not self._closed:
                    self._condition.wait(self._retry)


@dataclass(frozen=True)
class _Question:
    """One accusation that this agent makes or follows up; `entry` None: it has not been made yet.

    `asked`: the generation as of which `entry` was made; since then another generation may have given reason to ask.
    """

    accusation: Accusation
    chance: Chance
    entry: Entry | None = None
    own: bool = False
    asked: int = 0


class Accuser(Background):
    """Makes accusations and follows them up.  Opens nothing before `start`; all methods but `close` return at once.

    Args:
        lease: the present lease, on which accusations hang; None: there is none, so nothing can be asked.
        calms: see `Candidacy.calms`; doubt: called when the store does not answer in time.
        answer: seconds that the accused has.
    """

    def __init__(
        self,
        store: Store,
        keys: Keys,
        agent_id: str,
        lease: Callable[[], Lease | None],
        calms: Callable[[float], float],
        doubt: Callable[[], None],
        *,
        answer: float,
        timeout: float,
        retry: float,
    ) -> None:
        super().__init__("accusations-ask", timeout)
        self._store, self._keys, self._agent_id = store, keys, agent_id
        self._lease, self._calms, self._doubt = lease, calms, doubt
        self._answer, self._retry = answer, retry
        self._questions: dict[str, _Question] = {}
        self._generation = 0

    def accuse(self, agent: str, generation: int, reason: str) -> None:
        """See `Session.accuse`."""
        now = time.monotonic()
        with self._condition:
            asked = self._questions.get(agent)
            if agent in ("", self._agent_id) or generation < self._generation:
                return
            accusation = Accusation(agent, self._agent_id, generation, reason)
            if asked is None:
                self._questions[agent] = _Question(accusation, Chance(now, now))
                self._condition.notify_all()
            elif asked.accusation.generation < generation:
                self._questions[agent] = replace(asked, accusation=accusation)

    def newest(self, generation: int) -> None:
        """Tell of the newest generation: who is asked already is asked on, as the newest plan may count on it, too."""
        with self._condition:
            self._generation = max(self._generation, generation)

    def _run(self) -> None:
        while (question := self._next()) is not None:
            following: _Question | None
            try:
                following = self._follow(question)
            except StoreError as error:
                logger.debug("cannot find out whether %s lives, trying on: %s", question.accusation.agent, error)
                if isinstance(error, StoreUnavailable):
                    self._doubt()
                following = self._later(question)
            except Exception:
                logger.exception("%s cannot be asked whether it lives", question.accusation.agent)
                following = None
            self._put_back(question, following)

    def _next(self) -> _Question | None:
        """Wait for the question that is due; None when closed."""
        with self._condition:
            while not self._closed:
                question = min(self._questions.values(), key=lambda question: question.chance.due, default=None)
                wait = None if question is None else question.chance.due - time.monotonic()
                if question is not None and wait is not None and wait <= 0:
                    return question
                self._condition.wait(wait)
            return None

    def _later(self, question: _Question) -> _Question:
        return replace(question, chance=replace(question.chance, due=time.monotonic() + self._retry))

    def _put_back(self, question: _Question, following: _Question | None) -> None:
        agent = question.accusation.agent
        with self._condition:
            if self._questions.get(agent) is not question:
                return  # a newer accusation took its place
            if following is None:
                del self._questions[agent]
            else:
                self._questions[agent] = following

    def _follow(self, question: _Question) -> _Question | None:
        """Take the next step; return how to go on, or None when there is nothing more to do."""
        if question.accusation.generation < self._generation and self._has_left(question.accusation.agent):
            self._withdraw(question)
            return None
        if question.entry is None:
            return self._ask(question)
        looked = time.monotonic()
        entry = self._store.get(question.entry.key, timeout=self._timeout)
        if entry is None or entry.create_revision != question.entry.create_revision:
            logger.info("%s lives: it has answered", question.accusation.agent)
            if question.accusation.generation == question.asked:
                return None
            return replace(question, entry=None, chance=Chance(looked, looked))
        returned = time.monotonic()
        chance = weigh(question.chance, looked, returned, self._calms(returned), self._answer)
        if not chance.unanswered:
            return replace(question, chance=chance)
        if self._mark(question.accusation, entry):
            self._unseat(question.accusation.agent, entry)
            return None
        return self._later(question)  # there is no lease, or somebody has written it meanwhile: look again

    def _ask(self, question: _Question) -> _Question | None:
        """Make the accusation, or find the one that stands: whoever made that may be gone."""
        lease, key = self._lease(), self._keys.accusation(question.accusation.agent)
        now = time.monotonic()
        if lease is None:
            return self._later(question)
        value = encode_accusation(question.accusation)
        made = self._store.transaction([Compare.absent(key)], [Put(key, value, lease)], timeout=self._timeout)
        entry: Entry | None
        if made.succeeded:
            entry = Entry(key, value, made.revision, made.revision, lease.id)
            logger.info("asking whether agent %s lives: %s", question.accusation.agent, question.accusation.reason)
        else:
            entry = self._store.get(key, timeout=self._timeout)
            if entry is None:  # it was answered this moment
                return replace(question, chance=Chance(now, now))
        returned = time.monotonic()
        if returned - now > self._answer:
            self._doubt()
        chance = begin(max(returned, self._calms(returned)), self._answer)
        return replace(question, entry=entry, chance=chance, own=made.succeeded, asked=question.accusation.generation)

    def _mark(self, accusation: Accusation, entry: Entry) -> bool:
        """Say that the accusation has not been answered; False if somebody wrote it since `entry`."""
        lease = self._lease()
        if lease is None:
            return False
        try:
            if decode_accusation(entry.value, entry.key).unanswered:  # it is marked, and nobody has acted on it yet
                return True
        except ValueError:
            pass  # whatever stands there is replaced
        value = encode_accusation(replace(accusation, unanswered=True))
        guard = Compare.mod_revision(entry.key, entry.mod_revision)
        marked = self._store.transaction([guard], [Put(entry.key, value, lease)], timeout=self._timeout)
        if marked.succeeded:
            logger.warning("agent %s does not answer: %s", accusation.agent, accusation.reason)
        return marked.succeeded

    def _unseat(self, agent: str, accusation: Entry) -> None:
        """If the accused leads, end its lease, as nobody else can: so the next leader is elected at once.

        Only if it took its office before it was accused: an agent of that name that did so later is alive.
        """
        leader = self._store.get(self._keys.leader, timeout=self._timeout)
        if leader is None or not leader.lease or leader.value.decode(errors="replace") != agent:
            return
        if leader.create_revision < accusation.create_revision:
            logger.warning("agent %s leads the job and does not answer: its lease is revoked", agent)
            self._store.revoke(Lease(leader.lease, 0), timeout=self._timeout)

    def _has_left(self, agent: str) -> bool:
        """Whether the agent has ended in order, or its lease has: then nobody waits for the answer any more."""
        return self._store.get(self._keys.agent(agent), timeout=self._timeout) is None

    def _withdraw(self, question: _Question) -> None:
        if question.entry is not None and question.own:
            guard = Compare.mod_revision(question.entry.key, question.entry.mod_revision)
            self._store.transaction([guard], [Delete(question.entry.key)], timeout=self._timeout)
