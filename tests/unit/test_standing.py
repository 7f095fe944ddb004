"""The job's series: what a leader's look at plan, spec and members becomes, and that nobody else has any."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.test_metrics import Series, series

from reknit.health.metrics import Metrics
from reknit.rendezvous.kinds import BEGIN, DRAIN, EVICTION, JOIN, LOSS
from reknit.rendezvous.records import FINISHED, RUNNING, WAITING, Axes, Member, Name, Place, Plan, Replica, Spec
from reknit.runtime.standing import Standing, changes, result_of

SPEC = Spec(Axes(2, 1), 1, 3)
TERM = 9


def member(worker: str, ready: int = 0, **fields: object) -> Member:
    return replace(Member(worker, "x", "agent", "host", "a:1", ready=ready), **fields)  # type: ignore[arg-type]


def plan(generation: int, *replicas: str, kind: str = JOIN, writer: int = TERM, **fields: object) -> Plan:
    made = tuple(
        Replica(slot, 1, tuple(Place(Name(worker, "x"), "host", "a:1", 1) for worker in workers.split()))
        for slot, workers in enumerate(replicas)
    )
    state = RUNNING if made else WAITING
    return replace(
        Plan(generation, "why", state, made, kind=kind, writer=writer),
        **fields,  # type: ignore[arg-type]
    )


class Led:
    def __init__(self) -> None:
        self.metrics = Metrics("gpt")
        self.standing = Standing(self.metrics)
        self.revision = TERM
        self.metrics.ask(lambda: self.standing.samples(self.revision))

    def look(self, plan: Plan, *members: Member, spec: Spec = SPEC, revision: int = TERM) -> None:
        self.standing.see(plan, spec, members, revision)

    def found(self) -> Series:
        return series(self.metrics)

    def get(self, name: str, /, **labels: str) -> float | None:
        return self.found().get((name, frozenset(labels.items())))

    def counted(self, name: str) -> dict[tuple[str, ...], float]:
        order = {"reknit_reinits_total": ("reason", "result"), "reknit_membership_changes_total": ("type",)}[name]
        return {
            tuple(dict(labels)[label] for label in order): value
            for (found, labels), value in self.found().items()
            if found == name
        }


@pytest.fixture
def led() -> Led:
    led = Led()
    led.look(plan(0))
    return led


def test_the_job_by_group(led: Led) -> None:
    led.standing.published_at = 1234.0
    members = [member(worker) for worker in "abcde"]
    led.look(
        plan(1, "a b", "c d", kind=BEGIN, spares=(Name("e", "x"),)), *members[:3], member("d", dead=True), members[4]
    )
    assert led.get("reknit_job_generation") == 1
    assert led.get("reknit_job_state", state="running") == 1
    assert led.get("reknit_job_state", state="waiting") == 0
    assert led.get("reknit_job_replicas") == 2
    assert (led.get("reknit_job_replicas_min"), led.get("reknit_job_replicas_max")) == (1, 3)
    assert led.get("reknit_job_replicas_wanted") == 3
    assert led.get("reknit_job_spares") == 1
    assert led.get("reknit_job_members") == 4
    assert led.get("reknit_job_last_reinit_timestamp_seconds") == 1234.0
    groups = {("data", "0.0"): (2, 1, 3), ("data", "1.0"): (1, 1, 3), ("replica", "0"): (2, 2, 2)}
    groups[("replica", "1")] = (1, 2, 2)
    for (kind, coordinate), expected in groups.items():
        names = ("members", "minimum", "desired")
        assert tuple(led.get(f"reknit_group_{name}", kind=kind, coordinate=coordinate) for name in names) == expected


def test_only_the_leader_of_this_very_term_tells_of_the_job(led: Led) -> None:
    led.look(plan(1, "a b"), member("a"), member("b"))
    assert led.get("reknit_job_generation") == 1
    led.revision = 0
    assert not [name for name, _ in led.found() if name.startswith(("reknit_job_", "reknit_group_"))]
    led.revision = TERM + 5  # elected anew, and has not looked yet
    assert led.get("reknit_job_generation") is None


def test_a_job_that_waits_for_its_first_members_is_one_that_waits(led: Led) -> None:
    """Else it would look as if nobody led it, and not as if it had too few members."""
    assert led.get("reknit_job_state", state="waiting") == 1
    names = ("generation", "replicas", "replicas_min", "members")
    assert [led.get(f"reknit_job_{name}") for name in names] == [0, 0, 1, 0]
    assert led.get("reknit_job_last_reinit_timestamp_seconds") is None


def test_a_generation_counts_once_when_all_its_members_work(led: Led) -> None:
    first = plan(1, "a b", kind=BEGIN)
    led.look(first, member("a"), member("b"))
    assert led.counted("reknit_reinits_total") == {}
    for _ in range(3):
        led.look(first, member("a", ready=1), member("b", ready=1))
    assert led.counted("reknit_reinits_total") == {("begin", "running"): 1}
    assert led.counted("reknit_membership_changes_total") == {("joined",): 2}


def test_a_generation_that_a_newer_one_overtakes_is_superseded(led: Led) -> None:
    led.look(plan(1, "a b", kind=BEGIN), member("a", ready=1), member("b", ready=1))
    led.look(plan(2, "a b", "c d", kind=JOIN), member("a", ready=1), member("b", ready=1), member("c"), member("d"))
    led.look(plan(3, "a b", kind=LOSS), member("a", ready=3), member("b", ready=3), member("c", dead=True), member("d"))
    counted = {("begin", "running"): 1, ("join", "superseded"): 1, ("loss", "running"): 1}
    assert led.counted("reknit_reinits_total") == counted
    assert led.counted("reknit_membership_changes_total") == {("joined",): 4, ("lost",): 1, ("left",): 1}


def test_what_another_leader_published_is_that_ones_to_count() -> None:
    led = Led()
    led.look(plan(5, "a b", writer=3), member("a", ready=5), member("b", ready=5))
    assert led.counted("reknit_reinits_total") == {}
    led.look(plan(6, "a b", "c d", kind=JOIN), *(member(worker, ready=6) for worker in "abcd"))
    assert led.counted("reknit_reinits_total") == {("join", "running"): 1}
    assert led.counted("reknit_membership_changes_total") == {("joined",): 2}


def test_results_that_need_no_members() -> None:
    assert result_of(plan(2), []) == "waiting"
    assert result_of(plan(2, state=FINISHED), []) == "finished"
    assert result_of(plan(2, "a b"), [member("a", ready=2)]) is None


@pytest.mark.parametrize(
    ("after", "members", "expected"),
    [
        (plan(2, "a b", kind=LOSS), [member("c", dead=True), member("d")], {"lost": 1, "left": 1}),
        (plan(2, "a b", kind=LOSS), [], {"lost": 2}),
        (plan(2, "a b", kind=DRAIN), [member("c", draining=True), member("d", draining=True)], {"drained": 2}),
        (
            plan(2, "a b", kind=EVICTION, evicted=(Name("c", "x"),)),
            [member("c"), member("d")],
            {"evicted": 1, "left": 1},
        ),
        (plan(2, "a b", "c e"), [member("d", dead=True)], {"joined": 1, "lost": 1}),
        (plan(2, state=FINISHED), [], {}),
        (plan(2, "a b", "c d"), [], {}),
    ],
)
def test_who_got_or_lost_a_place(after: Plan, members: list[Member], expected: dict[str, int]) -> None:
    assert changes(plan(1, "a b", "c d"), after, members) == expected
