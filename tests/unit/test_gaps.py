"""How long a job stood still for a generation: what commits show, and how it gets into the history."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.unit.desk import Desk, head, peer

from reknit.rendezvous.history import HistoryRecord, decode_record, encode_record
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.parts import Peer, View
from reknit.rendezvous.records import Name, Place
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.session.events import HeadSeen
from reknit.rendezvous.session.gaps import GapWriter
from reknit.rendezvous.store.memory import MemoryStore
from reknit.rendezvous.store.protocol import Snapshot
from reknit.runtime.gaps import Gaps

KEYS = Keys("job")


def commit(gaps: Gaps, generation: int, moment: float, **more: Any) -> dict[int, float]:
    found = gaps.committed({"version": [generation, 7], **more}, moment)
    return {generation: round(seconds, 9) for generation, seconds in found}


def test_a_gap_lasts_from_the_last_commit_before_to_the_first_in_it() -> None:
    gaps = Gaps()
    gaps.see_plan(1)
    assert commit(gaps, 1, 10.0) == {}, "nothing was before"
    assert commit(gaps, 1, 10.5) == {}
    gaps.see_plan(2)
    assert commit(gaps, 1, 10.6) == {}, "it may make a step more in the old one"
    assert commit(gaps, 2, 11.0) == {2: 0.4}
    assert commit(gaps, 2, 11.001) == {}, "another worker's, of the same step"


def test_a_generation_that_never_came_to_a_step_waits_for_the_next() -> None:
    gaps = Gaps()
    gaps.see_plan(1)
    commit(gaps, 1, 10.0)
    gaps.see_plan(2)
    gaps.see_plan(3)
    assert commit(gaps, 3, 12.0) == {2: 2.0, 3: 2.0}


def test_what_is_rolled_forward_ends_no_gap_and_is_no_step_before_one() -> None:
    gaps = Gaps()
    commit(gaps, 1, 10.0)
    gaps.see_plan(2)
    assert commit(gaps, 1, 10.2, rolled_forward=True) == {}
    assert commit(gaps, 2, 10.5) == {2: 0.5}


def test_a_gap_is_not_known_where_others_made_steps_meanwhile() -> None:
    gaps = Gaps()

    def step(generation: int, number: int, moment: float) -> list[tuple[int, float]]:
        return gaps.committed({"version": [generation, number]}, moment)

    step(1, 7, 10.0)
    gaps.see_plan(2)  # without a place for anybody here
    gaps.see_plan(3)
    assert step(3, 900, 7000.0) == [], "generation 2 did not take two hours"
    gaps.see_plan(4)
    assert step(4, 901, 7000.5) == [(4, 0.5)]
    step(4, 900, 7000.75)  # of another worker here, told late
    gaps.see_plan(5)
    assert step(5, 902, 7001.0) == [(5, 0.25)]
    gaps.see_plan(6)
    assert step(6, 850, 7003.0) == [(6, 2.0)], "all went back to a checkpoint"
    gaps.see_plan(7)
    gaps.committed({"version": [6, 851], "rolled_forward": True}, 7003.1)
    assert step(7, 852, 7003.5) == [(7, 0.5)], "the step between was rolled forward"


def test_what_does_not_fit_and_what_ends_the_job_tell_nothing() -> None:
    gaps = Gaps()
    commit(gaps, 1, 10.0)
    gaps.see_plan(2, over=True)
    assert commit(gaps, 2, 11.0) == {}
    gaps.see_plan(3)
    for version in (None, "x", [3], [None, 1], [3, 1, 2], [True, 1]):
        assert gaps.committed({"version": version}, 12.0) == []
    assert commit(gaps, 3, 12.0) == {3: 1.0}


def test_they_do_not_pile_up() -> None:
    gaps = Gaps()
    commit(gaps, 1, 10.0)
    for generation in range(2, 300):
        gaps.see_plan(generation)
    assert len(commit(gaps, 300, 11.0)) == 64


def test_an_agent_hears_it_from_its_workers(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    noted: list[tuple[int, float, bool]] = []
    desk.agent.station.session.note_gap = lambda *gap: noted.append(gap)  # type: ignore[method-assign]
    who = desk.attach(peer())
    worker = desk.agent.station.workers["w0"]
    assert worker.member is not None
    worker.member = replace(worker.member, coordinate=0)
    places = [Place(name, "host", "a:1", 1) for name in (worker.member.name, Name("other", "a"))]
    for generation, moment in ((5, 100.0), (6, 100.25), (7, 100.75)):
        desk.agent.take(HeadSeen(head(generation)))
        worker.view = View(head(generation), None, tuple(Peer(slot, place) for slot, place in enumerate(places)))
        desk.say(who, type="event", event="committed", t=moment, generation=generation, step=9, version=[generation, 9])
        places.reverse()
    assert noted == [(6, 0.25, False), (7, 0.5, True)], "whether the first worker of the job is here"


# ---------------------------------------------------------------- the history


class Watched:
    """A store with a record of generation 4, and whoever waits for it to change."""

    def __init__(self, lease: float | None = None) -> None:
        self.store = MemoryStore()
        self.lease = None if lease is None else self.store.grant(lease)
        record = HistoryRecord(4, 1.0, "lost w1", "running", "loss", 1, 1, 0)
        self.store.put(KEYS.history(4), encode_record(record), lease=self.lease)
        self.store.watch(KEYS.history(4), self._reset, self._happened)
        self.changed = threading.Event()
        self.writer = GapWriter(self.store, KEYS, Rejected(logging.getLogger("test")), timeout=1.0, retry=0.01)
        self.writer.start()

    def _reset(self, snapshot: Snapshot) -> None:
        pass

    def _happened(self, events: object) -> None:
        self.changed.set()

    def written(self) -> float | None:
        assert self.changed.wait(5.0)
        self.changed.clear()
        return self.now()

    def now(self) -> float | None:
        entry = self.store.get(KEYS.history(4))
        assert entry is not None
        assert (entry.lease or None) == (self.lease.id if self.lease is not None else None)
        return decode_record(entry.value, entry.key).gap


def test_the_gap_is_added_to_the_record_once() -> None:
    watched = Watched()
    watched.writer.note(4, 0.09)
    assert watched.written() == 0.09
    watched.writer.note(4, 7.0)
    watched.writer.note(5, 1.0)  # of which there is no record
    watched.writer.close()
    assert watched.now() == 0.09


def test_a_job_that_waited_for_weeks_keeps_a_record_that_can_be_read() -> None:
    watched = Watched()
    watched.writer.note(4, 3e6)
    assert watched.written() == 1e6
    watched.writer.close()


def test_a_record_that_expires_goes_on_to_do_so() -> None:
    watched = Watched(lease=3600)
    watched.writer.note(4, 0.09)
    assert watched.written() == 0.09
    watched.writer.close()


def test_it_is_tried_until_the_store_answers() -> None:
    watched = Watched()
    watched.store.set_available(False)
    watched.writer.note(4, 0.09)
    watched.store.set_available(True)
    assert watched.written() == 0.09
    watched.writer.close()
