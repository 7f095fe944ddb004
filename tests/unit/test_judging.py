"""The leader's judge: records and a plan in, evictions out."""

from __future__ import annotations

from dataclasses import replace

from reknit.health.verdict import HUNG, SLOW
from reknit.rendezvous.plan import Observed
from reknit.rendezvous.records import BUSY, SILENT, WAITS, Member, Name, Place, Plan, Replica, Stall
from reknit.runtime.judging import Judge, Judged, observe


def member(worker: str, stall: Stall | None = None, ready: int = 5) -> Member:
    return Member(worker, "1", "agent", "h", "h:1", coordinate=0, ready=ready, stall=stall)


def stall(kind: str, seconds: float, phase: str = "forward") -> Stall:
    return Stall(5, 40, phase, kind, seconds, 30.0)


def seen(one: Member, at: float = 100.0) -> Observed:
    return Observed(one, 0.0, at, stalled=at)


def plan(*names: str, size: int = 1) -> Plan:
    places = [Place(Name(name, "1"), "h", "h:1", 5, "agent") for name in names]
    cut = [tuple(places[i : i + size]) for i in range(0, len(places), size)]
    return Plan(5, "why", replicas=tuple(Replica(slot, 5, each) for slot, each in enumerate(cut)), placed=5)


def test_a_stall_goes_on_while_its_record_lies_there() -> None:
    told: list[Judged] = []
    judge = Judge(told.append)
    job = [seen(member("a", stall(WAITS, 6.0, "reduce"))), seen(member("b", stall(BUSY, 5.0)), 101.0)]
    assert judge(job, plan("a", "b"), 100.0) == {}
    assert judge(job, plan("a", "b"), 110.0) == {}
    evicted = judge(job, plan("a", "b"), 126.0)
    assert evicted == {Name("b", "1"): "b hangs: in forward for 30 s, while a waits (since 32 s)"}
    assert judge(job, plan("a", "b"), 127.0).keys() == evicted.keys()
    assert [(each.worker, each.verdict.state, each.generation) for each in told] == [("b", SLOW, 5), ("b", HUNG, 5)]


def test_who_is_slow_is_told_of_once_a_step() -> None:
    told: list[Judged] = []
    judge = Judge(told.append)
    waits = seen(member("a", stall(WAITS, 6.0)))
    for step in (40, 40, None, 40, 41):
        slow = None if step is None else replace(stall(SILENT, 6.0), step=step)
        judge([waits, seen(member("b", slow))], plan("a", "b"), 100.0)
    assert [each.verdict.state for each in told] == [SLOW, SLOW]


def test_only_who_has_a_place_is_looked_at() -> None:
    waits, spare = member("a", stall(WAITS, 99.0)), member("c", stall(SILENT, 99.0))
    elsewhere = replace(member("b", stall(SILENT, 99.0)), incarnation="2")
    names, observations = observe([seen(spare), seen(elsewhere), seen(waits)], plan("a", "b"), 100.0)
    assert names == [Name("a", "1")]
    assert [each.worker for each in observations] == ["a"]


def test_coordinates_and_who_holds_their_state_come_from_the_plan_and_the_record() -> None:
    job = [seen(member("a")), seen(member("b")), seen(member("c", ready=4)), seen(replace(member("d"), dead=True))]
    _, observations = observe(job, plan("a", "b", "c", "d", size=2), 100.0)
    assert [each.worker for each in observations] == ["a", "b", "c"]  # the dead neither wait nor hold anything
    assert [each.coordinate for each in observations] == [0, 1, 0]
    assert [each.replica for each in observations] == [0, 0, 1]
    assert [each.holds for each in observations] == [True, True, False]
