"""`reknit scale` on a store in memory: what it sets, what it says, and what becomes of two operators at once."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.leaders_desk import ALL, KEYS, Desk, member

from reknit.rendezvous.codec import decode_spec, encode_spec
from reknit.rendezvous.errors import StoreUnavailable
from reknit.rendezvous.history import read_all
from reknit.rendezvous.leader.term import Known
from reknit.rendezvous.records import Axes, Spec
from reknit.rendezvous.session.session import Session
from reknit.rendezvous.store.memory import MemoryStore
from reknit.rendezvous.store.protocol import Compare, Operation, Store, TransactionResult
from reknit.runtime.cli import main
from reknit.runtime.config import ConfigError
from reknit.runtime.operating.scale import ScaleError, parse_size, reachable, scale, wait

SPEC = Spec(Axes(), 1, 4)


class Busy(MemoryStore):
    """A store in which `meanwhile` happens just before the next transaction on the spec."""

    meanwhile: Callable[[], object] | None = None

    def transaction(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, timeout: float | None = None
    ) -> TransactionResult:
        happens, self.meanwhile = self.meanwhile, None
        if happens is not None:
            happens()
        return super().transaction(compares, operations)


def running(store: MemoryStore | None = None, spec: Spec = SPEC) -> Desk:
    """A job of three workers, a replica each, that trains."""
    desk = Desk(spec, store=store)
    for now in (1.0, 1.6):  # until the window for arrivals is over
        desk.look(now, *ALL)
    desk.look(2.0, *(member(number, ready=1) for number in range(3)))
    return desk


def asked(store: Store) -> int | None:
    entry = store.get(KEYS.spec)
    assert entry is not None
    return decode_spec(entry.value).desired


def test_a_size_is_set_followed_and_set_back() -> None:
    desk = running()
    assert scale(desk.store, KEYS, 2) == "job: 2 replicas are wanted (was auto); 3 are running"
    assert desk.look(3.0, *(member(number, ready=1) for number in range(3))) == 2
    assert desk.plan.reason == "scaled from 3 to 2: w2 now spare"
    said = scale(desk.store, KEYS, 4)
    assert said == "job: 4 replicas are wanted (was 2); 2 are running, 1 spare waits; 1 more worker is needed"
    assert scale(desk.store, KEYS, None).startswith(
        "job: as many replicas as the members allow are wanted, up to 4 (was 4); 2 are running"
    )
    assert asked(desk.store) is None
    assert desk.look(4.0, *(member(number, ready=2) for number in range(2)), member(2, ready=1, left=2)) == 3
    assert [(r.kind, r.replicas) for r in read_all(desk.store.list(KEYS.histories).entries, desk.rejected)] == [
        ("begin", 3),
        ("scale", 2),
        ("scale", 3),
    ]


def test_a_new_leader_keeps_the_size_whatever_its_own_flags_say() -> None:
    desk = running()
    scale(desk.store, KEYS, 2)
    desk.begin(Known(SPEC))
    assert desk.look(3.0, *(member(number, ready=1) for number in range(3))) == 2
    assert (len(desk.plan.replicas), asked(desk.store)) == (2, 2)


def test_an_agent_that_starts_later_does_not_overwrite_the_size() -> None:
    desk = running()
    scale(desk.store, KEYS, 2)
    session = Session(desk.store, "job", "late", lambda event: None)
    assert session.propose_spec(SPEC).desired == 2
    assert asked(desk.store) == 2


def test_what_is_wanted_already_is_not_written_again() -> None:
    desk = running(spec=replace(SPEC, desired=3))
    before = desk.store.get(KEYS.spec)
    assert scale(desk.store, KEYS, 3) == "job: 3 replicas are wanted already; 3 are running"
    assert desk.store.get(KEYS.spec) == before


@pytest.mark.parametrize("size", [5, 1])
def test_a_size_beyond_the_limits_is_refused_with_them(size: int) -> None:
    desk = running(spec=Spec(Axes(), 2, 4))
    with pytest.raises(ScaleError, match=f"from 2 to 4 replicas .*, not {size}"):
        scale(desk.store, KEYS, size)
    assert asked(desk.store) is None


def test_a_job_that_has_not_begun_can_be_scaled_and_one_that_is_over_cannot() -> None:
    store = MemoryStore()
    with pytest.raises(ScaleError, match="there is no job job"):
        scale(store, KEYS, 1)
    store.put(KEYS.spec, encode_spec(SPEC))
    assert scale(store, KEYS, 1) == "job: 1 replica is wanted (was auto); the job has not begun"
    desk = running()
    desk.look(3.0, *(member(number, ready=1, finished=True) for number in range(3)))
    with pytest.raises(ScaleError, match="job job is over: all 3 members have finished"):
        scale(desk.store, KEYS, 1)


def test_fields_of_a_later_version_stay() -> None:
    store = MemoryStore()
    store.put(KEYS.spec, json.dumps({**json.loads(encode_spec(SPEC)), "policy": "x"}).encode())
    scale(store, KEYS, 2)
    entry = store.get(KEYS.spec)
    assert entry is not None
    assert json.loads(entry.value) == {**json.loads(encode_spec(replace(SPEC, desired=2))), "policy": "x"}


def test_the_later_of_two_operators_is_told_what_stands_now() -> None:
    store = Busy()
    running(store)
    store.meanwhile = lambda: scale(store, KEYS, 3)
    with pytest.raises(ScaleError, match=r"3 replicas are wanted now \(it was auto\); nothing was set.* want 2"):
        scale(store, KEYS, 2)
    assert asked(store) == 3


def test_of_many_operators_at_once_each_is_heard_or_told() -> None:
    store = MemoryStore()
    running(store)
    sizes, told, gate = [1, 2, 3, 4] * 4, dict[int, str](), threading.Barrier(16)

    def operate(number: int) -> None:
        gate.wait(5.0)
        try:
            told[number] = scale(store, KEYS, sizes[number])
        except ScaleError as error:
            told[number] = str(error)

    threads = [threading.Thread(target=operate, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5.0)
    assert len(told) == 16
    # What each one replaced is what another one had set: a chain from the first size to the one that stands.
    heard = [(sizes[number], words) for number, words in told.items() if "(was " in words]
    replaced = [words.split("(was ")[1].split(")")[0] for _, words in heard]
    now = asked(store)
    assert sorted([*replaced, str(now)]) == sorted(["auto", *(str(size) for size, _ in heard)])
    assert all("(was " in words or "already" in words or "somebody else" in words for words in told.values())


def test_an_answer_that_does_not_come_is_said_and_not_guessed() -> None:
    store = Busy()
    running(store)

    def fail() -> None:
        raise StoreUnavailable("no answer")

    store.meanwhile = fail
    with pytest.raises(ScaleError, match="nobody knows whether"):
        scale(store, KEYS, 2)


def test_waiting_for_the_size(capsys: Any) -> None:
    desk = running(spec=replace(SPEC, desired=3))
    assert wait(desk.store, KEYS, 0.0, 1e9) == 0
    assert "job: 3 in generation 1" in capsys.readouterr().out
    scale(desk.store, KEYS, 2)
    assert wait(desk.store, KEYS, 0.0, 0.0) == 1
    assert "job: still 3" in capsys.readouterr().out
    assert desk.look(3.0, *(member(number, ready=1) for number in range(3))) == 2
    assert wait(desk.store, KEYS, 0.0, 1e9) == 0


def test_auto_is_as_many_as_fit() -> None:
    two_stages = Spec(Axes(2), 1, 4)
    assert [reachable(two_stages, 1, spares) for spares in (0, 1, 2, 5, 9)] == [1, 1, 2, 3, 4]
    assert reachable(replace(two_stages, desired=3), 1, 0) == 3


def test_spares_that_came_after_the_newest_plan_count_and_those_who_are_going_do_not() -> None:
    desk = running(spec=replace(SPEC, desired=3))
    ready = [member(number, ready=1) for number in range(3)]
    desk.look(3.0, *ready, member(3), member(4, draining=True), member(5, dead=True))
    assert scale(desk.store, KEYS, 4) == "job: 4 replicas are wanted (was 3); 3 are running, 1 spare waits"


@pytest.mark.parametrize("text", ["0", "-1", "two", "", "1.5", "٣", "9" * 20])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="the size must be auto"):
        parse_size(text)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["scale", "none", "--etcd", "127.0.0.1:1"], "the size"),
        (["scale", "2", "--etcd", "127.0.0.1:1", "--wait", "soon"], "--wait"),
        (["scale", "2", "--etcd", "127.0.0.1:1", "--job", "no/name"], "--job"),
        (["scale", "2", "--etcd", "127.0.0.1:x"], "--etcd"),
        (["events", "--etcd", "127.0.0.1:x"], "--etcd"),
        (["jobs", "--etcd", "127.0.0.1:x"], "--etcd"),
        (["jobs", "--job", "j", "--etcd", "127.0.0.1:1"], "--job"),
    ],
)
def test_bad_usage_ends_with_2(arguments: list[str], words: str, capsys: Any) -> None:
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = int(str(ended.code))
    assert code == 2
    assert words in capsys.readouterr().err
