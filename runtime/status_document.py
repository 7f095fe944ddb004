"""The status document: a job as people and programs see it from outside, as one JSON object.

It is what `reknit status --json` prints and GET /status serves; the page and the table are made of it.  Format 1: its
keys stay, more may come.  null: not known.  Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reknit.rendezvous.history import as_json
from reknit.rendezvous.looking import Sight
from reknit.rendezvous.records import FINISHED, LOST, RUNNING, WAITING, Axes, Name, Place, Replica, Spec
from reknit.rendezvous.whole_job import WholeJob
from reknit.runtime.showing import SPARE, WAITS_FOR_A_PLAN
from reknit.runtime.status_verdicts import Known, judge_all, known_of, verdict_on

FORMAT = 1
ABSENT = "absent"  # a state, beside those of a plan: nobody is there, whatever the newest plan says
EVENTS = 64


def document(sight: Sight, now: float) -> dict[str, Any]:
    """The job as it was seen, as of `now` (monotonic, as the times in `sight`)."""
    job = sight.job
    spec = job.spec or Spec(Axes())
    known = known_of(sight, now)
    ages = {agent: max(0.0, now - at) for agent, at in sight.told_at.items()}
    state, reason = _state(job)
    steps = [one.step for one in known.values() if one.step is not None]
    return {
        "format": FORMAT,
        "job": job.job,
        "state": state,
        "generation": job.plan.generation if job.plan is not None else 0,
        "reason": reason,
        "at": _published(job),
        "axes": {"pipe": spec.axes.pipe, "model": spec.axes.model},
        "replicas": _replicas(job),
        "step": max(steps, default=None),
        "leader": job.leader,
        "goodput": _goodput(job),
        "grid": _grid(sight, spec.axes, known, ages, now),
        "spares": _spares(job, spec.axes, known),
        "agents": _agents(job, ages),
        "events": [as_json(record) for record in reversed(job.history[-EVENTS:])],
    }


def _state(job: WholeJob) -> tuple[str, str]:
    """The job's state, and why."""
    if job.unreadable:
        return WAITING, f"the newest plan cannot be read: {job.unreadable}"
    plan, anybody = job.plan, bool(job.members or job.agents)
    if plan is not None and not anybody and plan.state not in (FINISHED, LOST):
        return ABSENT, f"no agent of it is there; generation {plan.generation} was {plan.state}: {plan.reason}"
    if plan is not None:
        return plan.state, plan.reason
    if anybody:
        return WAITING, "there is no plan yet"
    return ABSENT, f"there is no job {job.job}"


def _published(job: WholeJob) -> float | None:
    """When the newest plan was published, on its leader's wall clock."""
    generation = job.plan.generation if job.plan is not None else 0
    return next((record.at for record in job.history if record.generation == generation), None)


def _replicas(job: WholeJob) -> dict[str, int | None]:
    now = len(job.plan.replicas) if job.plan is not None else 0
    if job.spec is None:
        return {"now": now, "wanted": now, "min": now, "max": now, "desired": None}
    spec = job.spec
    return {
        "now": now,
        "wanted": spec.wanted,
        "min": spec.min_replicas,
        "max": spec.max_replicas,
        "desired": spec.desired,
    }


def _goodput(job: WholeJob) -> float | None:
    """Of all workers that ever were at the present agents."""
    shows = [told.show for told in job.told if told.show.productive is not None and told.show.lost is not None]
    productive = sum(show.productive or 0.0 for show in shows)
    everything = productive + sum(show.lost or 0.0 for show in shows)
    return productive / everything if everything > 0 else None


# ---------------------------------------------------------------- the grid


def _grid(
    sight: Sight, axes: Axes, known: Mapping[Name, Known], ages: Mapping[str, float], now: float
) -> list[dict[str, Any]]:
    plan = sight.job.plan
    if plan is None:
        return []
    verdicts = judge_all(plan, known, now)
    looked = now - sight.since

    def place(index: int, replica: Replica) -> dict[str, Any]:
        found = replica.places[index]
        one = known.get(found.name, Known(None))
        age = ages.get(found.agent)
        word, reason = verdict_on(found, one, verdicts.get(found.name), age, looked)
        return _place(axes, index, found, one, age) | {"verdict": word, "reason": reason}

    return [
        {
            "slot": replica.slot,
            "formed": replica.formed,
            "places": [place(index, replica) for index in range(len(replica.places))],
        }
        for replica in sorted(plan.replicas, key=lambda replica: replica.slot)
    ]


def _place(axes: Axes, index: int, place: Place, one: Known, age: float | None) -> dict[str, Any]:
    shown, member = one.shown, one.member
    return {
        "coordinate": _coordinate(axes, index),
        "worker": place.name.worker_id,
        "agent": place.agent,
        "host": place.host,
        "pid": member.pid if member is not None and member.pid else None,
        "step": one.step,
        "phase": shown.phase if shown is not None else None,
        "phase_seconds": shown.phase_seconds + one.age if shown is not None else None,
        "draining": member is not None and member.draining,
        "slowdown": shown.slowdown if shown is not None else None,
        "committed_age": one.committed_age,
        "told_age": age,
    }


def _coordinate(axes: Axes, index: int) -> str:
    return str(axes.coordinate(index)) if index < axes.size else str(index)


# ---------------------------------------------------------------- who else is there


def _spares(job: WholeJob, axes: Axes, known: Mapping[Name, Known]) -> list[dict[str, Any]]:
    """Who lives and has no place."""
    placed = job.plan.names if job.plan is not None else frozenset()
    over = job.plan is not None and job.plan.state == LOST
    waiting = [m for m in job.members if m.name not in placed and not (m.dead or m.finished or over)]
    return [
        {
            "worker": member.worker_id,
            "agent": member.agent,
            "host": member.host,
            "pid": member.pid or None,
            "coordinate": None if member.coordinate is None else _coordinate(axes, member.coordinate),
            "phase": _phase_of_spare(job, known[member.name]),
            "draining": member.draining,
        }
        for member in sorted(waiting, key=lambda member: member.name)
    ]


def _phase_of_spare(job: WholeJob, known: Known) -> str | None:
    """What a worker without a place is at: while the job runs, one that waits for a plan is a spare as others are."""
    if known.shown is None:
        return None
    runs = job.plan is not None and job.plan.state == RUNNING
    return SPARE if runs and known.shown.phase == WAITS_FOR_A_PLAN else known.shown.phase


def _agents(job: WholeJob, ages: Mapping[str, float]) -> list[dict[str, Any]]:
    return [
        {
            "agent": agent.agent,
            "host": agent.host,
            "pid": agent.pid,
            "http": agent.http,
            "leads": agent.agent == job.leader,
            "workers": sum(member.agent == agent.agent and not member.dead for member in job.members),
            "told_age": ages.get(agent.agent),
        }
        for agent in sorted(job.agents, key=lambda agent: agent.agent)
    ]
