"""A job as its leader sees it, driven step by step: for the tests of the leader's decisions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from reknit.rendezvous.earlier import continued
from reknit.rendezvous.plan import NOTHING_FOUND, Findings, Observed, Outcome, Patience, next_plan
from reknit.rendezvous.records import Axes, Member, Name, Plan, Spec, Version

PATIENCE = Patience(join_window=0.5, report_grace=0.1)
LATE = 1000.0


class Job:
    """A job as its leader sees it: records come and go, plans are published."""

    def __init__(self, pipe: int = 1, least: int = 1, most: int = 3, desired: int | None = None) -> None:
        self.spec = Spec(Axes(pipe=pipe), least, most, desired)
        self.seen: dict[str, Observed] = {}
        self.plan: Plan | None = None
        self.findings: Findings = NOTHING_FOUND

    def come(self, worker: str, coordinate: int = 0, at: float = 0.0, **fields: Any) -> None:
        usual: dict[str, Any] = {"incarnation": "1", "agent": "agent", "host": "host", "address": "", "built": True}
        self.seen[worker] = Observed(Member(worker, coordinate=coordinate, **usual | fields), at, at)

    def tell(self, worker: str, at: float = 0.0, **fields: Any) -> None:
        old = self.seen[worker]
        self.seen[worker] = replace(old, member=replace(old.member, **fields), changed=at)

    def go(self, *workers: str) -> None:
        for worker in workers:
            del self.seen[worker]

    def ask(self, now: float = LATE) -> Outcome:
        plan = self.plan and continued(self.plan, [o.member for o in self.seen.values()], 0)
        return next_plan(list(self.seen.values()), self.spec, plan, now, PATIENCE, self.findings)

    def next(self, now: float = LATE) -> Plan:
        outcome = self.ask(now)
        assert outcome.plan is not None, outcome.reason
        self.plan = outcome.plan
        return outcome.plan

    def run(self, version: Version | None = None) -> None:
        """All members of the newest plan pass its comparison."""
        assert self.plan is not None
        for name in self.plan.names:
            committed = version or Version(self.plan.generation, 0)
            self.tell(name.worker_id, ready=self.plan.generation, committed=committed, pristine=version is None)

    def leave(self, *workers: str, **fields: Any) -> None:
        assert self.plan is not None
        for worker in workers:
            self.tell(worker, left=self.plan.generation, **fields)

    def here(self) -> set[Name]:
        """Who lives and was not put out."""
        out = self.plan.evicted if self.plan else ()
        return {o.member.name for o in self.seen.values() if not o.member.dead and o.member.name not in out}

    def seats(self) -> list[str]:
        assert self.plan is not None
        return [" ".join(name.worker_id for name in replica.names) for replica in self.plan.replicas]


def running(replicas: int = 3, pipe: int = 1, **spec: Any) -> Job:
    """A job of workers a0, a1, … (replica a, by coordinate), b0, …, which has trained to step 7."""
    job = Job(pipe, **spec)
    for replica in "abcdefgh"[:replicas]:
        for coordinate in range(pipe):
            job.come(f"{replica}{coordinate}", coordinate)
    job.next()
    job.run(Version(1, 7))
    return job


def formations(plan: Plan) -> dict[tuple[Name, ...], int]:
    return {replica.names: replica.formed for replica in plan.replicas}
