"""The product's own pure functions, called on the model's state: the only place where the two meet.

The model's tuples become the product's records, and the outcome becomes tuples again.  Calls are remembered: few
different questions are asked in millions of states.  `Product` can be given other functions, to show that a rule within
them is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from tests.sim.state import INCOMPLETE, Plan, State, Worker, step_of

from reknit.rendezvous.places import places_for
from reknit.rendezvous.plan import Observed, Outcome, Patience, candidate, next_plan, runs
from reknit.rendezvous.records import (
    FINISHED,
    LOST,
    RUNNING,
    WAITING,
    Axes,
    Former,
    Member,
    Name,
    Place,
    Replica,
    Spec,
    Version,
)
from reknit.rendezvous.records import Plan as ProductPlan
from reknit.runtime.recovery.decision import Decision, Reaction, Row, Settling, decide, reaction, settling

NOW = Patience(join_window=0.0, report_grace=0.0, burst=0.0)
MOST = 8  # replicas at most

NextPlan = Callable[[Sequence[Observed], Spec, ProductPlan | None, float, Patience], Outcome]
Decide = Callable[[Version | None, Sequence[Row], int], Decision]
React = Callable[[int, bool, int, int, bool], Reaction]


class Head(NamedTuple):
    """The newest plan, and what it says of everybody: (worker, incarnation, coordinate, placed, since)."""

    generation: int
    plan: Plan
    placed: int
    history: tuple[tuple[int, int, int, int, int], ...]


class Seen(NamedTuple):
    """A member's record as the leader sees it."""

    worker: int
    incarnation: int
    coordinate: int
    draining: bool
    pristine: bool
    finished: bool
    ready: int
    left: int
    incomplete: int
    torn: int
    ver: int
    prep: int


class Published(NamedTuple):
    """The plan that the product's leader publishes, in the model's words; `run`: per replica, each member's since."""

    places: tuple[tuple[int, ...], ...]
    formed: tuple[int, ...]
    run: tuple[tuple[int, ...], ...]
    broken: int
    target: int
    restore: bool
    origin: int
    lost: bool
    finished: bool
    reason: str


def version(number: int) -> Version | None:
    return Version(*divmod(number, 16)) if number else None


def number(v: Version | None) -> int:
    return v.generation * 16 + v.step if v is not None else 0


def name(worker: int, incarnation: int = 0) -> Name:
    return Name(str(worker), str(incarnation))


def head_of(s: State) -> Head:
    """The newest plan as the leader holds it."""
    head = len(s.plans)
    placed = next((g for g in range(head, 0, -1) if s.plans[g - 1].places), 0)
    history = tuple((i, 0, w.coord, w.placed, w.since) for i, w in enumerate(s.workers) if w.placed and w.member)
    return Head(head, s.plans[-1], placed, history)


def seen(s: State, renewed: int = -1) -> tuple[Seen, ...]:
    """The records of all members; `renewed`: that worker's record is already its new incarnation's."""
    last = len(s.committed) - 1
    return tuple(_seen(i, w, int(i == renewed), last) for i, w in enumerate(s.workers) if w.member)


def _seen(i: int, w: Worker, incarnation: int, last: int) -> Seen:
    return Seen(
        i,
        incarnation,
        w.coord,
        w.drain,
        w.pristine,
        bool(w.ver) and step_of(w.ver) == last,
        w.ready,
        w.left,
        w.incomplete,
        w.left if w.torn else 0,
        w.ver,
        w.prep,
    )


def _observed(record: Seen) -> Observed:
    worker, incarnation = name(record.worker, record.incarnation)
    member = Member(
        worker,
        incarnation,
        agent=worker,
        host="",
        address="",
        coordinate=record.coordinate if record.coordinate >= 0 else None,
        built=True,
        draining=record.draining,
        pristine=record.pristine,
        finished=record.finished,
        ready=record.ready,
        left=record.left,
        incomplete=record.incomplete,
        torn=record.torn,
        committed=version(record.ver),
        prepared=version(record.prep),
    )
    return Observed(member, 0.0, 0.0)


def _previous(head: Head) -> ProductPlan:
    plan, since = head.plan, {worker: since for worker, _, _, _, since in head.history}
    replicas = tuple(
        Replica(slot, formed, tuple(Place(name(w), "", "", since.get(w, head.generation)) for w in places))
        for slot, (places, formed) in enumerate(zip(plan.places, plan.formed, strict=True))
    )
    seated = {w for places in plan.places for w in places}
    return ProductPlan(
        head.generation,
        "",
        state=RUNNING if replicas else WAITING,
        replicas=replicas,
        former=tuple(
            Former(name(w, incarnation), coordinate, placed, since)
            for w, incarnation, coordinate, placed, since in head.history
            if w not in seated
        ),
        broken=plan.broken,
        target=version(plan.target),
        restore=plan.restore,
        origin=plan.origin,
        placed=head.placed,
    )


def _published(outcome: Outcome) -> Published | None:
    plan = outcome.plan
    if plan is None:
        return None
    return Published(
        places=tuple(tuple(int(n.worker_id) for n in replica.names) for replica in plan.replicas),
        formed=tuple(replica.formed for replica in plan.replicas),
        run=tuple(tuple(place.since for place in replica.places) for replica in plan.replicas),
        broken=plan.broken,
        target=number(plan.target),
        restore=plan.restore,
        origin=plan.origin,
        lost=plan.state == LOST,
        finished=plan.state == FINISHED,
        reason=outcome.reason,
    )


class Product:
    """The functions under test, for replicas of so many stages."""

    def __init__(
        self, stages: int, next_plan: NextPlan = next_plan, decide: Decide = decide, reaction: React = reaction
    ) -> None:
        self.stages = stages
        self.react = lru_cache(maxsize=None)(reaction)
        self.settling = lru_cache(maxsize=None)(self._settle)
        self._next_plan, self._decide = next_plan, decide
        self.next_plan = lru_cache(maxsize=None)(self._ask)
        self.runs = lru_cache(maxsize=None)(self._runs)
        self.decide = lru_cache(maxsize=None)(self._compare)

    def _ask(self, head: Head, members: tuple[Seen, ...], desired: int) -> Published | None:
        spec = Spec(Axes(pipe=self.stages), 1, MOST, desired)
        return _published(self._next_plan([_observed(m) for m in members], spec, _previous(head), 0.0, NOW))

    def _runs(self, head: Head, members: tuple[Seen, ...]) -> bool:
        return runs(_previous(head), [_observed(m).member for m in members])

    def _settle(self, decision: int, ver: int, prep: int) -> Settling:
        return settling(Version(*divmod(decision, 16)), Row(0, version(ver), version(prep), True))

    def around(self, members: tuple[Seen, ...], wanted: int) -> tuple[tuple[int, ...], ...]:
        """Places for everybody, when a checkpoint is what they start from."""
        candidates = [candidate(_observed(m).member, None) for m in members]
        return tuple(
            tuple(int(n.worker_id) for n in replica) for replica in places_for(None, candidates, wanted, self.stages)
        )

    def _compare(self, target: int, rows: tuple[tuple[int, int, int, bool], ...], size: int) -> int:
        table = [Row(coordinate, version(ver), version(prep), current) for coordinate, ver, prep, current in rows]
        decision = self._decide(version(target), table, size).version
        return INCOMPLETE if decision is None else number(decision)


__all__ = ["Head", "Product", "Published", "Reaction", "Seen", "Settling", "head_of", "seen"]
