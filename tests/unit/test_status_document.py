"""The status document: what a job looks like from outside follows from its records and what its agents tell."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.lookout import Lookout
from tests.unit.planning import Job, running

from reknit.rendezvous.looking import Sight
from reknit.rendezvous.records import BUSY, FINISHED, LONG, LOST, SILENT, WAITING, WAITS, Name, Stall, Version
from reknit.rendezvous.shows import GETS_ON, Show, Shown
from reknit.rendezvous.whole_job import WholeJob
from reknit.runtime.status_document import document

EXAMPLE = Path(__file__).parents[1] / "data" / "status.json"


@pytest.fixture
def lookout() -> Lookout:
    lookout = Lookout()
    lookout.publish()
    return lookout


def shown(worker: str, **fields: Any) -> Shown:
    usual: dict[str, Any] = {"pid": 100, "phase": "step", "phase_seconds": 0.1, "step": 9, "committed_age": 0.1}
    return Shown(Name(worker, "1"), **{**usual, **fields})


def all_tell(lookout: Lookout, **changed: dict[str, Any]) -> None:
    """Everybody gets on, but for what is `changed` of a worker."""
    for replica in "ab":
        workers = [shown(f"{replica}{stage}", **changed.get(f"{replica}{stage}", {})) for stage in range(2)]
        lookout.answers[f"host-{replica}"] = Show(f"host-{replica}", tuple(workers))


def look(lookout: Lookout, later: float = 0.0, patience: float = 1.0) -> dict[str, Any]:
    """The document, `later` seconds after a look; it is JSON without NaN or the like."""
    sight = lookout.see(patience)
    found = document(sight, sight.at + later)
    return dict(json.loads(json.dumps(found, allow_nan=False)))


def verdicts(found: dict[str, Any]) -> dict[str, str]:
    return {place["worker"]: place["verdict"] for replica in found["grid"] for place in replica["places"]}


def reason(found: dict[str, Any], worker: str) -> str:
    places = [place for replica in found["grid"] for place in replica["places"]]
    return next(str(place["reason"]) for place in places if place["worker"] == worker)


def shape(value: Any) -> Any:
    """The keys, all the way down."""
    if isinstance(value, dict):
        return {key: shape(found) for key, found in value.items()}
    return [shape(value[0])] if isinstance(value, list) and value else None


def test_the_example_has_the_documents_shape(lookout: Lookout) -> None:
    all_tell(lookout)
    lookout.put(replace(lookout.members()[0], worker_id="c0", pid=0))
    assert shape(look(lookout)) == shape(json.loads(EXAMPLE.read_text()))


def test_a_job_that_runs(lookout: Lookout) -> None:
    all_tell(lookout, a0={"step": 10, "slowdown": 1.1})
    lookout.answers["host-a"] = replace(lookout.answers["host-a"], productive=90.0, lost=10.0)
    lookout.answers["host-b"] = replace(lookout.answers["host-b"], productive=99.0, lost=1.0)
    found = look(lookout)
    assert (found["state"], found["generation"], found["at"], found["step"]) == ("running", 1, 1.7e9 + 1, 10)
    assert (found["leader"], found["goodput"]) == ("host-a", pytest.approx(189 / 200))
    assert found["axes"] == {"pipe": 2, "model": 1}
    assert found["replicas"] == {"now": 2, "wanted": 3, "min": 1, "max": 3, "desired": None}
    assert verdicts(found) == dict.fromkeys(("a0", "a1", "b0", "b1"), "alive")
    place = found["grid"][0]["places"][0]
    assert (place["coordinate"], place["agent"], place["host"], place["slowdown"]) == ("0.0", "host-a", "node", 1.1)
    agents = [(agent["agent"], agent["leads"], agent["workers"], agent["http"]) for agent in found["agents"]]
    assert agents == [("host-a", True, 2, "127.0.0.1:8000"), ("host-b", False, 2, "127.0.0.1:8001")]
    assert [(event["generation"], event["kind"]) for event in found["events"]] == [(1, "begin")]


def test_ages_go_on_from_when_they_were_told(lookout: Lookout) -> None:
    all_tell(lookout)
    place = look(lookout, later=0.5)["grid"][1]["places"][1]
    for key, seconds in (("told_age", 0.5), ("committed_age", 0.6), ("phase_seconds", 0.6)):
        assert place[key] == pytest.approx(seconds)


def test_events_come_newest_first(lookout: Lookout) -> None:
    lookout.job.go("b0")
    lookout.publish(lookout.job.next())
    assert [event["generation"] for event in look(lookout)["events"]] == [2, 1]


@pytest.mark.parametrize(
    ("changed", "verdict", "why"),
    [
        (
            {"kind": BUSY, "phase": "forward", "phase_seconds": 10.0, "limit": 30.0},
            "slow",
            "in forward for 10 s, while",
        ),
        ({"kind": BUSY, "phase": "forward", "phase_seconds": 40.0, "limit": 30.0}, "hung", "b1 hangs: in forward"),
        ({"kind": SILENT, "phase": "stopped", "phase_seconds": 1.0, "limit": 30.0}, "slow", "b1 says nothing: stopped"),
        ({"kind": LONG, "phase": "evaluation", "phase_seconds": 99.0, "limit": 30.0}, "long", "evaluation"),
        ({"slowdown": 1.5}, "slow", "b1 computes 1.5 times as long as its group's median"),
        ({"slowdown": 1.49}, "alive", ""),
        ({"kind": WAITS, "phase": "reduce", "phase_seconds": 50.0, "limit": 30.0}, "alive", ""),
    ],
)
def test_how_a_worker_is(lookout: Lookout, changed: dict[str, Any], verdict: str, why: str) -> None:
    seconds = changed.get("phase_seconds", 0.0)
    waits = {"kind": WAITS, "phase": "reduce", "phase_seconds": seconds, "limit": 30.0} if seconds > 1 else {}
    all_tell(lookout, a0=waits, a1=waits, b0=waits, b1=changed)
    found = look(lookout)
    assert verdicts(found) == {"a0": "alive", "a1": "alive", "b0": "alive", "b1": verdict}
    assert why in reason(found, "b1")


def test_what_the_agent_tells_is_newer_than_the_record(lookout: Lookout) -> None:
    members = {member.worker_id: member for member in lookout.members()}
    lookout.put(replace(members["b1"], stall=Stall(1, 7, "forward", BUSY, 40.0, 30.0)))
    for worker in ("a1", "b0"):
        lookout.put(replace(members[worker], stall=Stall(1, 7, "reduce", WAITS, 40.0, 30.0)))
    assert verdicts(look(lookout))["b1"] == "hung", "nobody has told: the record speaks"
    all_tell(lookout)
    lookout.pass_time(20.0)
    assert verdicts(look(lookout))["b1"] == "alive"


def test_who_gets_its_state_or_leaves_or_has_died(lookout: Lookout) -> None:
    all_tell(lookout)
    members = {member.worker_id: member for member in lookout.members()}
    lookout.put(replace(members["a0"], ready=0))
    lookout.put(replace(members["a1"], draining=True))
    lookout.put(replace(members["b0"], dead=True))
    lookout.store.delete(f"/reknit/gpt/members/{members['b1'].worker_id}")
    found = look(lookout)
    assert verdicts(found) == {"a0": "healing", "a1": "draining", "b0": "unknown", "b1": "unknown"}
    assert "has died" in reason(found, "b0")
    assert "has no record" in reason(found, "b1")
    assert [place["pid"] for place in found["grid"][1]["places"]] == [102, None]


def test_a_process_that_has_taken_the_name_of_a_lost_one_is_not_it(lookout: Lookout) -> None:
    all_tell(lookout)
    members = {member.worker_id: member for member in lookout.members()}
    lookout.put(replace(members["b0"], incarnation="2"))
    found = look(lookout)
    assert verdicts(found)["b0"] == "unknown"
    assert [spare["worker"] for spare in found["spares"]] == ["b0"]


def test_an_agent_that_tells_nothing_is_silent_once_it_has_been_looked_at_for_long(lookout: Lookout) -> None:
    all_tell(lookout)
    del lookout.answers["host-b"]
    soon = look(lookout, patience=0.5)
    assert verdicts(soon) == {"a0": "alive", "a1": "alive", "b0": "unknown", "b1": "unknown"}
    assert [agent["told_age"] is None for agent in soon["agents"]] == [False, True]
    lookout.pass_time(1.0)
    assert verdicts(look(lookout, later=0.5, patience=0.0)) == verdicts(soon)
    lookout.tell(lookout.answers["host-a"])
    late = look(lookout, patience=2.5)
    assert verdicts(late) == {"a0": "alive", "a1": "alive", "b0": "silent", "b1": "silent"}
    assert reason(late, "b1") == "agent host-b tells nothing"
    assert verdicts(look(lookout, later=5.0))["a0"] == "silent", "it has stopped telling"


def test_spares_are_those_who_live_without_a_place(lookout: Lookout) -> None:
    template = lookout.members()[0]
    for worker, fields in {
        "c0": {"coordinate": 1, "draining": True},
        "c1": {"coordinate": None},
        "c2": {"dead": True},
        "c3": {"finished": True},
    }.items():
        lookout.put(replace(template, worker_id=worker, **fields))  # type: ignore[arg-type]
    lookout.answer(shown("c0", phase="spare"), agent="host-a")
    found = look(lookout)
    assert [(s["worker"], s["coordinate"], s["draining"], s["phase"]) for s in found["spares"]] == [
        ("c0", "1.0", True, "spare"),
        ("c1", None, False, None),
    ]


def test_a_job_that_is_not_there_or_has_no_plan_yet() -> None:
    lookout = Lookout()
    found = look(lookout)
    assert (found["state"], found["generation"], found["grid"], found["step"]) == ("absent", 0, [], None)
    assert "no job gpt" in found["reason"]
    lookout.put(replace(lookout.members()[0], committed=None))
    found = look(lookout)
    assert (found["state"], [spare["worker"] for spare in found["spares"]]) == ("waiting", ["a0"])


def test_a_job_whose_agents_are_all_gone_is_absent_unless_it_has_ended(lookout: Lookout) -> None:
    lookout.store.delete_prefix("/reknit/gpt/agents/")
    lookout.store.delete_prefix("/reknit/gpt/members/")
    found = look(lookout)
    assert (found["state"], found["generation"]) == ("absent", 1)
    assert "no agent of it is there; generation 1 was running" in found["reason"]
    plan = lookout.job.plan
    assert plan is not None
    lookout.publish(replace(plan, generation=2, state=FINISHED, replicas=()))
    lookout.store.delete_prefix("/reknit/gpt/agents/")
    lookout.store.delete_prefix("/reknit/gpt/members/")
    assert look(lookout)["state"] == "finished"


def test_a_job_that_waits_or_is_over_or_whose_plan_is_unreadable(lookout: Lookout) -> None:
    plan = lookout.job.plan
    assert plan is not None
    for state in (WAITING, FINISHED, LOST):
        lookout.publish(replace(plan, generation=plan.generation + 1, state=state, reason="why", replicas=()))
        found = look(lookout)
        assert (found["state"], found["reason"], found["replicas"]["now"]) == (state, "why", 0)
        assert bool(found["spares"]) == (state != LOST)
        plan = replace(plan, generation=plan.generation + 1)
    lookout.store.put("/reknit/gpt/plan", b"{}")
    found = look(lookout)
    assert found["state"] == "waiting"
    assert "cannot be read" in found["reason"]


def test_nothing_at_all_is_known_of_it() -> None:
    found = document(Sight(WholeJob("gpt"), 0.0, 0.0), 0.0)
    assert (found["leader"], found["goodput"], found["at"], found["events"]) == (None, None, None, [])


def test_without_what_is_told_the_step_is_the_records(lookout: Lookout) -> None:
    assert look(lookout)["step"] == 7
    members = lookout.members()
    lookout.put(replace(members[0], committed=Version(1, 8)))
    assert look(lookout)["step"] == 8


def test_one_with_a_model_axis_names_both_coordinates() -> None:
    job = Job(pipe=1)
    job.spec = replace(job.spec, axes=replace(job.spec.axes, pipe=2, model=2))
    for coordinate in range(4):
        job.come(f"a{coordinate}", coordinate)
    job.next()
    lookout = Lookout(job)
    lookout.publish()
    (replica,) = look(lookout)["grid"]
    assert [place["coordinate"] for place in replica["places"]] == ["0.0", "0.1", "1.0", "1.1"]


def test_everybody_gets_on_with_nothing_to_say() -> None:
    lookout = Lookout(running(3, pipe=1))
    lookout.publish()
    for replica in "abc":
        lookout.answer(shown(f"{replica}0", kind=GETS_ON), agent=f"host-{replica}")
    assert set(verdicts(look(lookout)).values()) == {"alive"}
