"""How the job stands, as its leader sees it: for the metrics that only the leader's agent exports.

The leader's thread shows what it looks at, the scrape asks; between them lies one frozen value.  It counts for one term
only: an agent that leads no longer exports nothing of it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from reknit.health.families import STATES, Sample
from reknit.health.metrics import Metrics
from reknit.rendezvous.plan import runs
from reknit.rendezvous.records import FINISHED, LOST, RUNNING, WAITING, Member, Name, Plan, Spec

SUPERSEDED = "superseded"


@dataclass(frozen=True)
class Seen:
    """What the leader looked at last, in the term `revision`."""

    plan: Plan
    spec: Spec
    members: Sequence[Member]
    revision: int


class Standing:
    """Counts what this agent publishes as the leader, and tells how the job stands.

    `see` is for the leader's thread, `samples` for any other.  `published_at`: Unix time at which the newest generation
    was seen by this agent; its loop sets it.
    """

    def __init__(self, metrics: Metrics, wall: Callable[[], float] = time.time) -> None:
        self._metrics, self._wall = metrics, wall
        self._seen: Seen | None = None
        self._open = False  # what becomes of the newest plan is not known yet, and is this agent's to count
        self.published_at: float | None = None

    def see(self, plan: Plan, spec: Spec, members: Sequence[Member], revision: int) -> None:
        """As the leader's witness."""
        before = self._seen
        if before is not None and before.plan.generation != plan.generation:
            if self._open:
                self._metrics.count("reinits", before.plan.kind, SUPERSEDED)
            self._open = plan.writer == revision
            if self._open:
                for change, count in changes(before.plan, plan, [*before.members, *members]).items():
                    self._metrics.count("membership_changes", change, by=count)
        if self._open and (result := result_of(plan, members)) is not None:
            self._metrics.count("reinits", plan.kind, result)
            self._open = False
        self._seen = Seen(plan, spec, members, revision)

    def samples(self, revision: int) -> Iterator[Sample]:
        """The job's gauges for the term `revision`, in which this agent leads; 0: it does not."""
        seen = self._seen
        if seen is None or revision == 0 or seen.revision != revision:
            return
        plan, spec = seen.plan, seen.spec
        yield Sample("job_generation", (), plan.generation)
        for state in STATES:
            yield Sample("job_state", (state,), plan.state == state)
        yield Sample("job_replicas", (), len(plan.replicas))
        yield Sample("job_replicas_min", (), spec.min_replicas)
        yield Sample("job_replicas_max", (), spec.max_replicas)
        yield Sample("job_replicas_wanted", (), spec.wanted)
        yield Sample("job_spares", (), len(plan.spares))
        living = {member.name for member in seen.members if not member.dead}
        yield Sample("job_members", (), len(living))
        if self.published_at is not None:
            yield Sample("job_last_reinit_timestamp_seconds", (), self.published_at)
        yield from _groups(plan, spec, living)


def _groups(plan: Plan, spec: Spec, living: set[Name]) -> Iterator[Sample]:
    """Each data group and each replica: how many live, how many it needs, how many it would have."""
    size = spec.axes.size
    for index in range(size):
        labels = ("data", str(spec.axes.coordinate(index)))
        here = sum(r.places[index].name in living for r in plan.replicas if index < len(r.places))
        yield Sample("group_members", labels, here)
        yield Sample("group_minimum", labels, spec.min_replicas)
        yield Sample("group_desired", labels, spec.wanted)
    for replica in plan.replicas:
        labels = ("replica", str(replica.slot))
        yield Sample("group_members", labels, sum(name in living for name in replica.names))
        yield Sample("group_minimum", labels, size)
        yield Sample("group_desired", labels, size)


def result_of(plan: Plan, members: Sequence[Member]) -> str | None:
    """What became of a plan; None as long as that is not known."""
    if plan.state in (FINISHED, LOST, WAITING):
        return plan.state
    return RUNNING if runs(plan, members) else None


def changes(before: Plan, after: Plan, members: Sequence[Member]) -> Counter[str]:
    """Who got or lost a place from one plan to the next, by type; the end of a job is no change.

    `members`: their records, as they were and as they are.
    """
    if after.state in (FINISHED, LOST):
        return Counter()
    found = Counter({"joined": len(after.names - before.names)})
    known = {member.name: member for member in members}
    for name in before.names - after.names:
        member = known.get(name)
        if name in after.evicted and name not in before.evicted:
            found["evicted"] += 1
        elif member is None or member.dead:
            found["lost"] += 1
        else:
            found["drained" if member.draining else "left"] += 1
    return +found
