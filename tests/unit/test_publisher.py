"""What a leader's publisher does when the store does not say what has become of a transaction."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from reknit.rendezvous.errors import Deposed, StoreUnavailable
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.leader.publisher import Publisher
from reknit.rendezvous.parts import decode_head
from reknit.rendezvous.records import RUNNING, WAITING, Name, Place, Plan, Replica
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.store.memory import MemoryStore
from reknit.rendezvous.store.protocol import Compare, Operation, TransactionResult

KEYS = Keys("job")


class Uncertain(MemoryStore):
    """A store whose next transaction is `applied`, or `withheld` to arrive late, without its caller hearing of it."""

    def __init__(self) -> None:
        super().__init__()
        self.next: str | None = None
        self.withheld: list[tuple[Sequence[Compare], Sequence[Operation]]] = []

    def transaction(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, timeout: float | None = None
    ) -> TransactionResult:
        fate, self.next = self.next, None
        if fate == "withheld":
            self.withheld.append((compares, operations))
        else:
            result = super().transaction(compares, operations)
            if fate is None:
                return result
        raise StoreUnavailable("no answer")

    def arrive(self) -> TransactionResult:
        return super().transaction(*self.withheld.pop())


@pytest.fixture
def store() -> Uncertain:
    return Uncertain()


@pytest.fixture
def publisher(store: Uncertain) -> Publisher:
    publisher = Publisher(store, KEYS, store.put(KEYS.leader, b"me"), Rejected(logging.getLogger("test")), 1.0)
    publisher.load([])
    return publisher


def plan(generation: int, reason: str = "a plan", replicas: int = 1) -> Plan:
    def places(slot: int) -> tuple[Place, ...]:
        return (Place(Name(f"w{slot}", "i"), "host", "127.0.0.1:1", generation),)

    rows = tuple(Replica(slot, generation, places(slot)) for slot in range(replicas))
    return Plan(generation, reason, RUNNING, rows, placed=generation)


def published(store: Uncertain) -> tuple[int, str]:
    entry = store.get(KEYS.head)
    assert entry is not None
    head = decode_head(entry.value)
    return head.generation, head.reason


def test_a_publication_that_was_applied_unheard_is_found(store: Uncertain, publisher: Publisher) -> None:
    store.next = "applied"
    with pytest.raises(StoreUnavailable):
        publisher.publish(plan(1))
    publisher.load([])
    assert publisher.plan is not None
    assert publisher.plan.generation == 1
    publisher.publish(plan(2))
    assert published(store) == (2, "a plan")


@pytest.mark.parametrize("replicas", [1, 250])
@pytest.mark.parametrize("first", [True, False])
def test_a_publication_that_is_on_its_way_for_long_never_arrives(
    store: Uncertain, publisher: Publisher, first: bool, replicas: int
) -> None:
    generation = 1
    if not first:
        publisher.publish(plan(1))
        generation = 2
    store.next = "withheld"
    with pytest.raises(StoreUnavailable):
        publisher.publish(plan(generation, "late", replicas))
    publisher.load([])
    assert publisher.plan == (None if first else publisher.plan)
    assert not store.arrive().succeeded
    publisher.publish(plan(generation, "in time"))
    assert published(store) == (generation, "in time")


def test_without_an_answer_to_a_part_no_head_is_written(store: Uncertain, publisher: Publisher) -> None:
    store.next = "applied"
    with pytest.raises(StoreUnavailable):
        publisher.publish(plan(1, replicas=250))
    assert store.get(KEYS.head) is None


def test_a_head_that_somebody_set_back_is_put_right(store: Uncertain, publisher: Publisher) -> None:
    publisher.publish(plan(1, "first"))
    old = store.get(KEYS.head)
    assert old is not None
    publisher.publish(plan(2, "second"))
    store.put(KEYS.head, old.value)
    with pytest.raises(Deposed):
        publisher.publish(plan(3, "third"))
    publisher.load([])
    assert published(store) == (2, "second")
    publisher.publish(plan(3, "third"))
    assert published(store) == (3, "third")


def test_a_finished_or_waiting_plan_without_places_is_read_back(store: Uncertain, publisher: Publisher) -> None:
    publisher.publish(Plan(1, "waiting", WAITING, spares=(Name("a", "b"),)))
    successor = Publisher(
        store, KEYS, publisher.plan.writer if publisher.plan else 0, Rejected(logging.getLogger()), 1.0
    )
    successor.load([])
    assert successor.plan == publisher.plan
