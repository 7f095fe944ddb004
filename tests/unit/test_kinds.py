"""What each generation is called, and which replicas a smaller job gives up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.planning import Job, running

from reknit.rendezvous.codec import dumps, loads
from reknit.rendezvous.kinds import KINDS
from reknit.rendezvous.parts import decode_head, decode_whole, encode
from reknit.rendezvous.places import Candidate, choose_places
from reknit.rendezvous.plan import Findings
from reknit.rendezvous.records import FINISHED, LOST, RUNNING, Name, Plan, Version


def called(job: Job) -> tuple[str, str]:
    plan = job.next()
    assert plan.kind in KINDS
    return plan.kind, plan.reason


def scaled(job: Job, desired: int | None) -> tuple[str, str]:
    job.spec = replace(job.spec, desired=desired)
    return called(job)


def test_a_job_begins_and_somebody_joins() -> None:
    job = Job()
    job.come("a0")
    assert called(job) == ("begin", "a0 joined")
    job.run(Version(1, 7))
    job.come("b0")
    assert called(job) == ("join", "b0 joined")


def test_another_size_is_told_from_arrivals() -> None:
    job = running(3)
    assert scaled(job, 2) == ("scale", "scaled from 3 to 2: c0 now spare")
    job.run(Version(2, 8))
    assert scaled(job, None) == ("scale", "scaled from 2 to 3: c0 joined")
    job.run(Version(3, 9))
    job.go("c0")
    assert called(job) == ("loss", "lost c0")
    job.run(Version(4, 9))
    job.come("d0")
    assert called(job) == ("join", "d0 joined")


def test_members_that_come_where_fewer_were_than_wanted_join_although_more_are_wanted_now() -> None:
    job = running(1, most=2)
    job.spec = replace(job.spec, max_replicas=4)
    job.come("b0")
    job.come("c0")
    assert called(job) == ("join", "b0, c0 joined")


def test_who_drains_is_no_smaller_size_but_who_leaves_beside_it_is() -> None:
    job = running(3)
    job.tell("c0", draining=True)
    assert called(job) == ("drain", "c0 drained")
    job = running(3)
    job.tell("c0", draining=True)
    assert scaled(job, 1) == ("scale", "scaled from 3 to 1: c0 drained; b0 now spare")


def test_losses_are_told_from_evictions() -> None:
    job = running(3)
    job.findings = Findings(evict={Name("c0", "1"): "c0 hangs"})
    assert called(job) == ("eviction", "c0 hangs")
    job = running(3)
    job.findings = Findings(evict={Name("c0", "1"): "c0 hangs"})
    job.go("b0")
    assert called(job) == ("loss", "lost b0; c0 hangs")


def test_a_report_is_one() -> None:
    job = running(2, most=2)
    job.leave("a0", "b0")
    assert called(job)[0] == "report"


def test_the_leader_decides_restores_or_gives_up() -> None:
    def ended_incomplete(**fields: object) -> Job:
        job = running(2, most=2)
        job.leave("a0", "b0", incomplete=1, pristine=False, **fields)
        return job

    assert called(ended_incomplete(committed=Version(1, 7)))[0] == "decision"
    assert called(ended_incomplete(committed=None, restorable=(5,)))[0] == "restore"
    assert called(ended_incomplete(committed=None))[0] == "lost"


def test_the_end_is_one() -> None:
    job = running(2, most=2)
    for worker in ("a0", "b0"):
        job.tell(worker, finished=True)
    assert called(job)[0] == "finished"


# ---------------------------------------------------------------- which replicas are given up


def staged(hosts: str, formed: dict[str, int] | None = None) -> list[str]:
    """Three replicas of two stages on these hosts ("xx" for both on one) come down to two: who stays."""
    replicas = {letter: tuple(Name(f"{letter}{i}", "1") for i in range(2)) for letter in "abc"}
    candidates = [
        Candidate(name, i, placed=5, since=3, ready=5, host=host)
        for names, where in zip(replicas.values(), hosts.split(), strict=True)
        for i, (name, host) in enumerate(zip(names, where, strict=True))
    ]
    numbers = [(formed or {}).get(letter, 1) for letter in "abc"]
    places = choose_places(tuple(replicas.values()), candidates, 2, 2, formed=numbers)
    return [names[0].worker_id[0] for names in places]


def test_of_equals_the_last_is_given_up() -> None:
    assert staged("xx yy zz") == ["a", "b"]


def test_the_replica_on_most_hosts_is_given_up_even_if_another_is_newer() -> None:
    assert staged("xx yz zz", {"c": 4}) == ["a", "c"]


def test_the_newest_formed_is_given_up_and_the_others_keep_their_order() -> None:
    assert staged("xx yy zz", {"a": 4, "b": 2}) == ["b", "c"]


def test_one_that_has_not_come_is_given_up_before_all_others() -> None:
    names = [(Name(letter, "1"),) for letter in "abc"]
    people = [Candidate(name, 0, placed=5, since=3, ready=5, host=name.worker_id) for (name,) in names]
    people[0] = replace(people[0], since=5, ready=4)
    assert choose_places(tuple(names), people, 2, 1, formed=[1, 4, 5]) == (names[1], names[2])


def test_the_reason_says_why_these() -> None:
    job = running(2, pipe=2, most=3)
    job.come("c0", 0, host="far")
    job.come("c1", 1, host="farther")
    job.next()
    job.run(Version(2, 8))
    assert scaled(job, 2)[1] == "scaled from 3 to 2: c0, c1 now spare (on the most hosts)"
    job = running(2, most=3)
    job.come("c0")
    job.next()
    job.run(Version(2, 8))
    assert scaled(job, 1)[1] == "scaled from 3 to 1: b0, c0 now spare"
    assert scaled(job, 3)[0] == "scale"


def test_a_replica_that_drains_goes_first_when_it_counts_at_all() -> None:
    """Where fewer than the least number would stay without it."""
    names = [(Name(letter, "1"),) for letter in "abc"]
    people = [Candidate(name, 0, placed=5, since=3, ready=5, draining=name.worker_id != "c") for (name,) in names]
    assert choose_places(tuple(names), people, 2, 1, least=2, most=3) == (names[0], names[2])


# ---------------------------------------------------------------- as records


def test_the_kind_is_written_and_what_was_written_before_kinds_were_is_read() -> None:
    plan = running(2).plan
    assert plan is not None
    raw, _ = encode(replace(plan, writer=7, kind="scale"))
    assert decode_head(raw).kind == "scale"
    old = {key: value for key, value in loads(raw, "head").items() if key != "kind"}
    assert decode_head(dumps(old)).kind == "begin"
    assert decode_head(dumps({**old, "generation": 4, "broken": 3})).kind == "restore"
    assert decode_head(dumps({**old, "restore": False})).kind == "decision"
    assert decode_head(dumps({**old, "target": None, "restore": False})).kind == "join"
    assert decode_head(dumps({**old, "target": None, "generation": 4, "broken": 3})).kind == "loss"
    assert decode_head(dumps({**old, "kind": "of a later version"})).kind in KINDS


@pytest.mark.parametrize("state", [FINISHED, LOST])
def test_an_old_end_is_one(state: str) -> None:
    old = {k: v for k, v in loads(encode(Plan(9, "over", state))[0], "head").items() if k != "kind"}
    assert decode_head(dumps(old)).kind == state


def test_how_many_were_wanted_is_kept_for_the_next_leader() -> None:
    plan = Plan(3, "why", RUNNING, writer=1, wanted=4, kind="join")
    raw, found = encode(plan)
    assert decode_whole(decode_head(raw), found) == plan
    (key,) = found
    old = {k: v for k, v in loads(found[key], key).items() if k != "wanted"}
    assert decode_whole(decode_head(raw), {key: dumps(old)}).wanted == 0
