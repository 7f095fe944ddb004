"""Which run of a job a plan belongs to: a job's name may be used again after a run has ended, or was stopped.

Whoever starts a job again by the same name wants it to run, from its newest checkpoint or else from step 0, and to be
told so.  But a job all of whose state was lost while its agents lived must not go back to step 0 by itself.  What tells
the two apart is what an agent finds before its session starts: a plan of which no process lives is an earlier run's.

Who lives is told by the records, and they by leases.  Where that is not enough (`session.looking_back`):

* A job that was killed whole leaves its records standing for up to a lease.  An agent that starts meanwhile waits them
  out, unless one of them turns out to be kept up.
* A job that is cut off from the store has no records, and trains on.  To an agent that starts then, the store looks as
  after a crash, however long it waits; and an operator who starts a crashed job again must not wait for minutes.  So it
  calls the workers that the plan names.  Who answers is waited for as a last holder is (`holders`); if nobody does, as
  on hosts that are down, the job starts again.  A run that neither the store nor the new agent can reach is therefore
  given up: when it comes back, its workers start afresh in the new one.
"""

from __future__ import annotations

from collections.abc import Iterable

from reknit.rendezvous.parts import Head
from reknit.rendezvous.plan import history
from reknit.rendezvous.records import FINISHED, LOST, WAITING, Member, Plan

AGAIN = "the job starts again"
_HOW = {
    FINISHED: "the earlier run of this job has finished",
    LOST: "the earlier run of this job lost its state",
}
_STOPPED = "nobody of the earlier run of this job lives"


def has_run(member: Member) -> bool:
    """Whether this process lives and has ever had a place, so that it may hold a state that was trained."""
    return not member.dead and (
        bool(member.ready or member.left or member.incomplete or member.torn) or not member.pristine
    )


def earlier_generation(head: Head | None, members: Iterable[Member]) -> int:
    """The newest generation of an earlier run as an agent finds it when its session starts; 0 for none."""
    if head is None:
        return 0
    ended = head.state in (FINISHED, LOST)
    return 0 if not ended and any(has_run(member) for member in members) else head.generation


def continued(plan: Plan, members: Iterable[Member], earlier: int) -> Plan:
    """The plan that the next one follows: `plan`, or a blank one in its place if `plan` is of an earlier run.

    `earlier`: what `earlier_generation` gave when this leader's session started.  The blank one's reason says why.
    """
    here = [member for member in members if not member.dead]
    if plan.state in (FINISHED, LOST):
        of_that_run = history(plan).keys() | set(plan.spares)  # one that came late must not begin the job anew
        over = not any(m.name in of_that_run for m in here)
    else:
        over = 0 < plan.generation <= earlier and plan.placed > 0 and not any(has_run(m) for m in here)
    if not over:
        return plan
    where = "" if any(m.restorable for m in here) else " from step 0"
    return Plan(plan.generation, f"{_HOW.get(plan.state, _STOPPED)}: {AGAIN}{where}", WAITING, writer=plan.writer)
