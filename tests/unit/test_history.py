"""The history that a leader writes, and what an ended job leaves: on a store in memory, with a clock of the test's."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.unit.leaders_desk import ALL, KEYS, Desk, member

from reknit.rendezvous.codec import decode_spec, encode_spec
from reknit.rendezvous.errors import RecordError, StoreUnavailable
from reknit.rendezvous.history import KEPT_SECONDS, HistoryRecord, decode_record, encode_record, read_all
from reknit.rendezvous.leader.publisher import KEPT, Publisher
from reknit.rendezvous.leader.term import Known
from reknit.rendezvous.records import WAITING, Axes, Plan, Spec
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.session.opening import SpecMismatchError
from reknit.rendezvous.session.session import Session
from reknit.rendezvous.store.memory import MemoryStore
from reknit.rendezvous.store.protocol import Compare, Lease, Operation, TransactionResult

RECORD = HistoryRecord(7, 1764540000.5, "lost w1", "running", "loss", 2, 4, 1, 0.09)


def histories(desk: Desk) -> list[HistoryRecord]:
    return list(read_all(desk.store.list(KEYS.histories).entries, desk.rejected))


def test_a_record_comes_back_as_it_was() -> None:
    key = KEYS.history(7)
    for record in (RECORD, replace(RECORD, gap=None)):
        assert decode_record(encode_record(record), key) == record
    long = decode_record(encode_record(replace(RECORD, reason="x" * 10_000)), key)
    assert long.reason.startswith("xxx")
    assert KEYS.history(9) < KEYS.history(10), "keys sort by generation"


@pytest.mark.parametrize(
    "change",
    [
        {"state": "odd"},
        {"at": -1},
        {"at": True},
        {"at": "now"},
        {"gap": -0.5},
        {"generation": 8},
        {"replicas": "two"},
        {"reason": None},
    ],
)
def test_a_record_that_does_not_fit_is_refused(change: dict[str, object]) -> None:
    value = {**json.loads(encode_record(RECORD)), **change}
    with pytest.raises(RecordError):
        decode_record(json.dumps(value).encode(), KEYS.history(7))


def test_a_later_versions_kind_is_read() -> None:
    raw = encode_record(replace(RECORD, kind="something new"))
    assert decode_record(raw, KEYS.history(7)).kind == "decision"


def test_each_generation_has_its_record_from_the_transaction_of_its_head() -> None:
    desk = Desk(Spec(Axes(), 1, 3))
    desk.look(1.0, *ALL)
    desk.look(2.0, *(member(number, ready=1) for number in range(2)))
    first, second = histories(desk)
    assert (first.generation, first.kind, first.replicas, first.members, first.spares) == (1, "begin", 3, 3, 0)
    assert (second.generation, second.kind, second.reason, second.state) == (2, "loss", "lost w2", "running")
    assert (first.gap, second.gap) == (None, None)
    head, record = desk.store.get(KEYS.head), desk.store.get(KEYS.history(2))
    assert head is not None
    assert record is not None
    assert (head.mod_revision, head.lease, record.lease) == (record.mod_revision, 0, 0)


def test_as_many_are_kept_as_plans_are() -> None:
    store, rejected = MemoryStore(), Rejected(logging.getLogger("test"))
    writer = Publisher(store, KEYS, store.put(KEYS.leader, b"me"), rejected, 1.0, wall=lambda: 5.0)
    writer.load([])
    for generation in range(1, KEPT + 9):
        writer.publish(Plan(generation, "why", WAITING))
        writer.collect()
    kept = list(read_all(store.list(KEYS.histories).entries, rejected))
    assert [record.generation for record in kept] == list(range(9, KEPT + 9))
    assert {record.at for record in kept} == {5.0}
    assert {
        int(entry.key.split("/")[-2]) for entry in store.list(KEYS.plans).entries if entry.key.endswith("/head")
    } == {record.generation for record in kept}


# ---------------------------------------------------------------- what an ended job leaves


def ended(desk: Desk, size: int = 3) -> None:
    """So many workers run, and make the last step; the rest of three wait."""
    desk.look(1.0, *ALL)
    ready = [member(number, ready=1, pristine=False) for number in range(size)]
    desk.look(2.0, *ready, *ALL[size:])
    desk.look(3.0, *(replace(m, finished=True) for m in ready), *ALL[size:])
    assert (desk.plan.generation, desk.plan.state) == (2, "finished")


def left(desk: Desk) -> dict[str, int]:
    """The keys of the job that do not hang on an agent's lease: the leases that they hang on."""
    agents = {lease.id for lease in desk.leases.values()}
    return {e.key.removeprefix(KEYS.prefix): e.lease for e in desk.store.list("").entries if e.lease not in agents}


def test_what_an_ended_job_leaves_is_its_spec_plans_and_history_and_hangs_on_one_lease_of_a_day() -> None:
    desk = Desk(Spec(Axes(), 1, 3))
    ended(desk)
    found = left(desk)
    assert {key.partition("/")[0] for key in found} == {"spec", "plan", "plans", "history"}
    assert {key.split("/")[1] for key in found if key.startswith("plans/")} == {"2"}, "of the plans only the newest"
    assert sum(key.startswith("history/") for key in found) == 2
    (lease,) = set(found.values())
    assert lease != 0
    ttl = desk.store.time_to_live(Lease(lease, 0))
    assert ttl is not None
    assert KEPT_SECONDS - 60 < ttl <= KEPT_SECONDS


def test_it_is_gone_when_that_lease_ends() -> None:
    now = [0.0]
    desk = Desk(Spec(Axes(), 1, 3), store=MemoryStore(clock=lambda: now[0]))
    ended(desk)
    assert len(histories(desk)) == 2
    now[0] = KEPT_SECONDS - 1
    desk.store.tick()
    assert histories(desk)
    now[0] = KEPT_SECONDS + 1
    desk.store.tick()
    assert not desk.store.list("").entries


def test_a_lost_job_leaves_no_more() -> None:
    desk = Desk(Spec(Axes(), 1, 3))
    desk.look(1.0, *(replace(m, pristine=False) for m in ALL))
    desk.look(2.0, *(replace(m, pristine=False, incomplete=1, left=1) for m in ALL))
    assert desk.plan.state == "lost"
    assert 0 not in left(desk).values()


def test_what_the_leader_could_not_hang_there_the_next_one_does() -> None:
    class Reluctant(MemoryStore):
        """Once it holds the end of the job, it refuses the next transactions."""

        refuses = False

        def transaction(
            self, compares: Sequence[Compare], operations: Sequence[Operation], *, timeout: float | None = None
        ) -> TransactionResult:
            if self.refuses:
                raise StoreUnavailable("no answer")
            result = super().transaction(compares, operations)
            heads = [getattr(operation, "value", b"") for operation in operations if operation.key == KEYS.head]
            self.refuses = any(b'"finished"' in head for head in heads)
            return result

    store = Reluctant()
    desk = Desk(Spec(Axes(), 1, 3), store=store)
    desk.look(1.0, *ALL)
    desk.look(2.0, *(member(number, ready=1, pristine=False) for number in range(3)))
    last = [member(number, ready=1, pristine=False, finished=True) for number in range(3)]
    desk.write(*last)
    desk.go(3.0)
    assert left(desk)["plan"] != 0, "the end itself is written on the lease"
    assert left(desk)["spec"] == 0
    store.refuses = False
    desk.begin()
    desk.go(4.0)
    assert set(left(desk).values()) == {left(desk)["plan"]}


def test_a_next_run_takes_the_spec_and_its_own_plans_off_the_lease_and_keeps_the_desired_size() -> None:
    desk = Desk(Spec(Axes(), 1, 3, desired=2))
    ended(desk, 2)
    old = left(desk)["plan"]
    new = [replace(m, incarnation="j") for m in ALL]
    assert desk.look(10.0, *new) == 3
    found = left(desk)
    assert (found["spec"], found["plan"], found[f"history/{3:020d}"]) == (0, 0, 0)
    assert found[f"history/{2:020d}"] == old, "the earlier run's history still expires"
    assert histories(desk)[-1].kind == "begin"
    assert len(desk.plan.replicas) == 2
    desk.store.revoke(Lease(old, 0))
    assert desk.look(11.0, *(replace(m, ready=3) for m in new[:2]), new[2]) == 3, "nobody misses what expired"
    assert [record.generation for record in histories(desk)] == [3]


def test_a_next_run_may_have_another_shape_as_its_first_agent_says() -> None:
    desk = Desk(Spec(Axes(), 1, 3, desired=2))
    ended(desk, 2)
    expires = left(desk)["plan"]
    session, other = Session(desk.store, "job", "a", lambda event: None), Spec(Axes(2), 1, 4)
    assert session.propose_spec(Spec(Axes(), 1, 3)).desired == 2, "of the same shape"
    desk.store.put(KEYS.agent("last"), b"an agent of the earlier run is still there")
    with pytest.raises(SpecMismatchError):
        session.propose_spec(other)
    desk.store.delete(KEYS.agent("last"))
    assert session.propose_spec(other) == other
    assert left(desk)["spec"] == expires, "if nothing comes of it, it goes as well"
    later = Session(desk.store, "job", "b", lambda event: None)
    assert later.propose_spec(other) == other


def test_a_wiped_store_gets_the_desired_size_back() -> None:
    desk = Desk(Spec(Axes(), 1, 3))
    desk.look(1.0, *ALL)
    desk.store.put(KEYS.spec, encode_spec(Spec(Axes(), 1, 3, desired=2)))
    assert desk.look(2.0, *(member(number, ready=1) for number in range(3))) == 2
    known, plan = Known(desk.term.spec), desk.plan
    desk.wipe()
    desk.begin(known, plan=plan)
    desk.look(3.0, *(member(number, ready=2) for number in range(2)), member(2, ready=1, left=2))
    entry = desk.store.get(KEYS.spec)
    assert entry is not None
    assert decode_spec(entry.value).desired == 2
    assert (desk.plan.generation, len(desk.plan.replicas)) == (2, 2)
