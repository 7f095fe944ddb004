"""The leader's rule for a job of which everybody leaves: its state goes into a checkpoint, and nobody has to stay.

Hosts are taken away together: a job is stopped, a deployment is scaled to nothing, a whole spot pool is reclaimed.  All
who could have a place then drain.  Two plans follow.  The first keeps as many as hold the state, and nobody works in
it: they write a checkpoint of the step that they have come to.  Once each has found that complete, the second gives
nobody a place and forgets who had one, so that all may end; whoever comes begins from the checkpoint.  Who arrives in
between takes over, and the job goes on.  That holds for a job that waits, too: a last checkpoint needs fewer members
than training does; and if those who are here do not hold the whole state, nobody can keep it, and the second plan comes
at once.  Without checkpoints the state would be gone: then the last ones stay as long as they may, in case somebody
comes.  Pure.
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


def given_up(view: View, places: Places) -> Outcome | None:
    """What follows if the job waits, all drain and nobody can be given a place: nothing is kept by anybody's staying.

    Unless those who are here could read no checkpoint: then what they hold stays as long as it may.
    """
    had_places = [m for m in view.members if m.name in view.past]
    if places or view.seated or view.previous.placed == 0 or not had_places:
        return None
    if not all(m.draining for m in view.members) or not all(m.keeps for m in had_places):
        return None
    readable = frozenset.intersection(*(frozenset(m.restorable) for m in had_places))
    return _stopped(view, max(readable)) if readable else None


def closed(view: View) -> Outcome:
    """What follows the plan in which the last checkpoint is written; nothing until it is complete."""
    if behind := [m.worker_id for m in view.placed if m.closed < view.previous.generation]:
        return Outcome(None, f"the job stops; waiting for the last checkpoint to be complete, as {some(behind)} see it")
    return _stopped(view, newest_restorable(view.candidates, view.spec.axes.size))


def _stopped(view: View, step: int) -> Outcome:
    """Nobody has a place, and nobody had one: whoever comes begins from the newest checkpoint."""
    kept = f"its state is in the checkpoint of step {step}" if step else "it has made no step yet"
    reason = f"all members drain, and the job waits for new ones: {kept}"
    return Outcome(replace(plan_of(view, (), reason, DRAIN), former=(), placed=0, origin=0), reason)
