"""Looking at a job from outside: the sign that somebody looks, what is then told and how old it is, and all records."""

from __future__ import annotations

import pytest
from tests.unit.lookout import KEYS, Lookout

from reknit.rendezvous.errors import StoreRefused, StoreUnavailable
from reknit.rendezvous.jobs import jobs_in
from reknit.rendezvous.looking import GLANCE
from reknit.rendezvous.shows import AGAIN, LEASE, TELLS, Show
from reknit.rendezvous.store.memory import MemoryStore


@pytest.fixture
def lookout() -> Lookout:
    lookout = Lookout()
    lookout.publish()
    return lookout


def test_a_job_is_read_whole(lookout: Lookout) -> None:
    job = lookout.see().job
    assert job.plan is not None
    assert [[name.worker_id for name in replica.names] for replica in job.plan.replicas] == [["a0", "a1"], ["b0", "b1"]]
    assert (job.job, job.spec, job.leader, job.unreadable) == ("gpt", lookout.job.spec, "host-a", "")
    assert [member.worker_id for member in job.members] == ["a0", "a1", "b0", "b1"]
    assert [agent.agent for agent in job.agents] == ["host-a", "host-b"]
    assert [record.generation for record in job.history] == [1]


def test_what_does_not_fit_is_left_out_and_a_plan_that_cannot_be_read_is_said(lookout: Lookout) -> None:
    lookout.store.put(KEYS.member("c0"), b"{}")
    lookout.store.put(KEYS.agent("host-c"), b"5")
    lookout.store.put(KEYS.show("host-c"), b"\xff")
    lookout.store.put(f"{KEYS.histories}x", b"{}")
    lookout.store.put(KEYS.spec, b"[]")
    job = lookout.see().job
    assert (len(job.members), len(job.agents), len(job.history), job.spec, job.told) == (4, 2, 1, None, ())
    assert job.plan is not None
    lookout.store.put(KEYS.head, b"{}")
    job = lookout.see().job
    assert job.plan is None
    assert KEYS.head in job.unreadable


def test_a_plan_is_read_anew_only_if_it_is_a_newer_one(lookout: Lookout) -> None:
    before = lookout.see().job.plan
    lookout.store.delete_prefix(KEYS.plans)
    assert lookout.see().job.plan is before
    lookout.job.go("b0")
    lookout.publish(lookout.job.next())
    after = lookout.see().job.plan
    assert after is not None
    assert after.generation == 2


def test_it_says_again_and_again_that_it_looks_and_no_more_when_it_has_gone(lookout: Lookout) -> None:
    for _ in range(13):
        lookout.see()
        lookout.pass_time(1.0)
    assert lookout.looks == [1000.0 + AGAIN * n for n in range(5)]
    assert lookout.store.get(KEYS.look) is not None
    lookout.looker.close()
    assert lookout.store.get(KEYS.look) is None
    lookout.looker.close()


def test_one_who_was_away_for_longer_than_its_lease_looks_anew(lookout: Lookout) -> None:
    lookout.answer()
    first = lookout.see()
    lookout.pass_time(LEASE + TELLS)
    assert lookout.store.get(KEYS.look) is None
    again = lookout.see()
    assert (first.since, again.since) == (1000.0, lookout.now)
    assert lookout.store.get(KEYS.look) is not None


def test_one_who_leaves_takes_nobody_elses_look_along(lookout: Lookout) -> None:
    lookout.see()
    lookout.store.put(KEYS.look, b"{}", lease=lookout.store.grant(LEASE))
    lookout.looker.close()
    assert lookout.store.get(KEYS.look) is not None


def test_nothing_is_written_for_a_job_that_has_nobody_to_tell() -> None:
    lookout = Lookout()
    before = lookout.store.list("").revision
    sight = lookout.see(5.0)
    assert (sight.job.plan, sight.job.agents, lookout.waited) == (None, (), 0.0)
    assert lookout.store.list("").revision == before


def test_what_is_told_is_as_old_as_the_moment_at_which_it_was_first_seen(lookout: Lookout) -> None:
    lookout.tell(Show("host-a"))
    assert lookout.see().told_at == {}, "of another look, who knows how long ago"
    lookout.tell(Show("host-a"))
    lookout.pass_time(0.5)
    assert lookout.see().told_at == {"host-a": 1000.5}
    lookout.pass_time(1.0)
    assert lookout.see().told_at == {"host-a": 1000.5}, "nothing new"
    lookout.tell(Show("host-a"))
    assert lookout.see().told_at == {"host-a": 1001.5}, "told anew, though it says the same"
    lookout.store.delete(KEYS.show("host-a"))
    assert lookout.see().told_at == {}


def test_it_waits_until_all_have_told_but_not_for_ever(lookout: Lookout) -> None:
    lookout.answer(agent="host-a")
    lookout.answer(agent="host-b")
    assert lookout.see(3.5).told_at == {"host-a": 1000.0 + GLANCE, "host-b": 1000.0 + GLANCE}
    lookout.pass_time(1.0)
    assert lookout.see(3.5).at == lookout.now == 1001.0 + GLANCE, "they have told: nothing to wait for"
    silent = Lookout()
    silent.publish()
    silent.answer(agent="host-a")
    sight = silent.see(3.5)
    assert sight.told_at.keys() == {"host-a"}
    assert 3.5 <= sight.at - sight.since < 3.6
    assert len(silent.looks) == 2, "it looks again meanwhile"


def test_while_the_store_is_away_it_says_so_and_it_goes_on_afterwards(lookout: Lookout) -> None:
    lookout.see()
    lookout.store.set_available(False)
    lookout.pass_time(AGAIN)
    with pytest.raises(StoreUnavailable):
        lookout.see()
    lookout.looker.close()
    lookout.store.set_available(True)
    assert lookout.see().job.plan is not None


def test_who_must_not_write_sees_the_records_and_whatever_others_are_told(
    lookout: Lookout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise StoreRefused("etcd is full")

    monkeypatch.setattr(lookout.store, "grant", refuse)
    sight = lookout.see(5.0)
    assert (sight.told_at, sight.at - sight.since, lookout.waited) == ({}, 0.0, 0.0)
    assert sight.job.plan is not None
    lookout.tell(Show("host-a"))
    lookout.pass_time(5.0)
    assert lookout.see(5.0).told_at == {"host-a": 1005.0}
    lookout.looker.close()


def test_the_jobs_of_a_store_are_told_apart_from_what_else_lies_there() -> None:
    store = MemoryStore()
    assert jobs_in(store) == []
    for key in ("gpt/spec", "gpt/members/w0", "gpt-2/plan", "GPT/history/1", "gpt", "/x", "a b/spec", "zoo/look"):
        store.put(f"/reknit/{key}", b"")
    store.put("/other/job/spec", b"")
    assert jobs_in(store) == ["GPT", "gpt", "gpt-2", "zoo"]
