"""What agents tell while somebody looks: the records, and when it is told and taken back."""

from __future__ import annotations

import json
import queue
from collections.abc import Sequence
from typing import Any

import pytest

from reknit.rendezvous.errors import RecordError
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.records import WAITS, Name
from reknit.rendezvous.session.events import LookedAt
from reknit.rendezvous.session.telling import ASK, TAKE_BACK, Schedule, Teller
from reknit.rendezvous.shows import AGAIN, EVERY, LONGEST_AGE, MOST, TELLS, Show, Shown, decode_show, encode_show
from reknit.rendezvous.store.memory import MemoryStore
from reknit.rendezvous.store.protocol import Entry, Event, Lease

KEYS = Keys("job")
KEY = KEYS.show("host0")
ONE = Shown(Name("w0", "i0"), 42, "reduce", 1.5, WAITS, 30.0, 17, 1.6, 1.02, True, 3)


def changed(**fields: Any) -> bytes:
    """A telling of one worker, with other fields."""
    value = json.loads(encode_show(Show("host0", (ONE,), 10.0, 0.5)))
    value["workers"][0].update(fields)
    return json.dumps(value).encode()


def test_what_is_told_is_read_back() -> None:
    fresh = Shown(Name("w1", "i1"), 0, "spare", 0.0)
    for show in (Show("host0"), Show("host0", (ONE, fresh), 1e9, 0.0)):
        assert decode_show(encode_show(show), KEY) == show
    assert decode_show(changed(a_later_version="says more"), KEY).workers == (ONE,)


def test_whatever_is_told_can_be_read() -> None:
    odd = Shown(Name("w0", "i"), 1, "x" * 100_000, 1e12, "", -1.0, committed_age=1e9)
    many = Show("host0", tuple(Shown(Name(f"w{i}", "i"), i, "step", 0.0) for i in range(MOST + 5)))
    (read,) = decode_show(encode_show(Show("host0", (odd,))), KEY).workers
    assert (read.phase_seconds, read.limit, read.committed_age) == (LONGEST_AGE, 0.0, LONGEST_AGE)
    assert len(decode_show(encode_show(many), KEY).workers) == MOST


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b'{"workers": 5}',
        b'{"workers": [5]}',
        b'{"workers": [], "productive": "much"}',
        b'{"workers": [], "lost": -1}',
        json.dumps({"workers": [json.loads(changed())["workers"][0]] * (MOST + 1)}).encode(),
        changed(worker="a/b"),
        changed(incarnation=None),
        changed(pid=-1),
        changed(kind="asleep"),
        changed(phase_seconds=float("nan")),
        changed(slowdown=float("inf")),
        changed(step=1.5),
        changed(draining="yes"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(raw: bytes) -> None:
    with pytest.raises(RecordError, match="host0"):
        decode_show(raw, KEY)


def asked(schedule: Schedule, begin: float, end: float) -> list[float]:
    """When it asks from `begin` to `end`, looked at whenever it says that something will be due."""
    moments, now = [], begin
    while now < end:
        if schedule.next(now) == ASK:
            moments.append(now)
        wait = schedule.wait(now)
        if wait is None:
            break
        now += max(wait, 1e-9)
    return moments


def test_it_is_told_at_once_then_each_second_for_ten_and_then_taken_back() -> None:
    schedule = Schedule()
    assert schedule.next(100.0) == TAKE_BACK, "of an earlier life of this agent"
    assert (schedule.next(100.0), schedule.wait(100.0)) == (None, None)
    schedule.see(True, 100.0)
    assert asked(schedule, 100.0, 200.0) == pytest.approx([100.0 + second for second in range(round(TELLS))])
    assert schedule.next(110.1) is None, "nothing was told in the end, so nothing is taken back"
    schedule.see(True, 200.0)
    assert schedule.next(200.0) == ASK
    schedule.stands = True
    assert schedule.next(200.0 + TELLS) == TAKE_BACK
    assert schedule.next(200.0 + TELLS) is None


def test_who_goes_on_looking_is_told_on_and_many_who_look_are_told_together() -> None:
    schedule = Schedule()
    moments: list[float] = []
    for third in range(10):
        schedule.see(True, third * AGAIN)
        moments += asked(schedule, third * AGAIN, (third + 1) * AGAIN)
    assert len(moments) == pytest.approx(10 * AGAIN, abs=1)
    schedule, moments = Schedule(), []
    for look in range(1000):
        schedule.see(True, look / 1000)
        moments += asked(schedule, look / 1000, (look + 1) / 1000)
    assert len(moments) == 1, "within the first second"


def test_when_one_who_looked_has_gone_another_has_time_to_look_again() -> None:
    schedule = Schedule()
    schedule.see(True, 0.0)
    schedule.see(False, 1.0)
    assert asked(schedule, 1.0, 100.0)[-1] <= 1.0 + AGAIN + EVERY
    schedule.see(True, 50.0)
    schedule.see(False, 59.0)
    assert asked(schedule, 59.0, 100.0)[-1] < 50.0 + TELLS, "one that goes does not prolong it"


def test_the_loop_is_asked_and_its_answer_hangs_on_the_lease_without_which_nothing_is_told() -> None:
    store, events = MemoryStore(), queue.SimpleQueue[LookedAt]()
    lease: Lease | None = store.grant(5)
    wanted, told = queue.SimpleQueue[Lease | None](), queue.SimpleQueue[Entry | None]()

    def present() -> Lease | None:
        wanted.put(lease)
        return lease

    def note(news: Sequence[Event]) -> None:
        for event in news:
            told.put(event.entry)

    teller = Teller(store, KEY, present, events.put, timeout=1.0)
    store.put(KEY, b"of an earlier life")
    watch = store.watch(KEY, lambda snapshot: None, note)
    teller.start()
    assert told.get(timeout=5.0) is None
    assert events.empty(), "while nobody looks nobody is asked"
    store.watch(KEYS.look, lambda snapshot: None, lambda news: teller.see(news[-1].entry))
    store.put(KEYS.look, b"{}")
    assert events.get(timeout=5.0) == LookedAt()
    teller.tell(Show("host0", (ONE,)))
    entry = told.get(timeout=5.0)
    assert entry is not None
    assert (decode_show(entry.value, KEY).workers, entry.lease) == ((ONE,), wanted.get().id)  # type: ignore[union-attr]
    lease = None
    teller.tell(Show("host0"))
    assert wanted.get(timeout=5.0) is None
    store.set_available(False)
    lease = Lease(99, 5)
    teller.tell(Show("host0"))
    assert wanted.get(timeout=5.0) == lease
    teller.close()
    assert told.empty()
    watch.close()
