"""The leader's rule for a job of which everybody leaves: its state goes into a checkpoint, and nobody has to stay.

Hosts are taken away together: a job is stopped, a deployment is scaled to nothing, a whole spot pool is reclaimed.  All
who could have a place then drain.  Two plans follow.  The first keeps as many as hold the state, and nobody works in
it: they write a checkpoint of the step that they have come to.  Once each has found that complete, the second gives
nobody a place and forgets who had one, so that all may end; whoever comes begins from the checkpoint.  Who arrives in
between takes over, and the job goes on.  Without checkpoints the state would be gone: then the last ones stay as long
as they may, in case somebody comes.  Pure.
"""

from __future__ import annotations

from dataclasses import replace

from reknit.rendezvous.kinds import DRAIN
from reknit.rendezvous.places import Places, newest_restorable
from reknit.rendezvous.successor import plan_of
from reknit.rendezvous.view import Outcome, View, some

WHY = "nobody who stays can take over, so the job stops for a last checkpoint"


def stops(view: View, places: Places) -> bool:
    """Whether with these places the job had better stop: all who have one drain, and its state can be kept."""
    members = [view.observed[name].member for replica in places for name in replica]
    return bool(members) and all(m.draining and m.keeps for m in members)


def closed(view: View) -> Outcome:
    """What follows the plan in which the last checkpoint is written; nothing until it is complete."""
    head, placed = view.previous, view.placed
    if behind := [m.worker_id for m in placed if m.closed < head.generation]:
        return Outcome(None, f"the job stops; waiting for the last checkpoint to be complete, as {some(behind)} see it")
    step = newest_restorable(view.candidates, view.spec.axes.size)
    kept = f"its state is in the checkpoint of step {step}" if step else "it has made no step yet"
    reason = f"all members drain, and the job waits for new ones: {kept}"
    return Outcome(replace(plan_of(view, (), reason, DRAIN), former=(), placed=0, origin=0), reason)
