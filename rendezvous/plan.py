"""The leader's decision: members, spec and the previous plan -> the next plan and its reason, or nothing to do yet.

One pure function, `next_plan`, looks at everything afresh each time (level-triggered), so that a leader which has just
been elected decides as its predecessor would have.  Rules 2-5 and 10 of runtime/recovery/PROTOCOL.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from reknit.rendezvous.eviction import forgiven
from reknit.rendezvous.evidence import weigh
from reknit.rendezvous.holders import wait_for_holders
from reknit.rendezvous.kinds import DECISION, ENDED_WELL, EVICTION, LOSS, REPORT, RESTORE, STATE_LOST
from reknit.rendezvous.places import Candidate, Places, as_restored, newest_complete, newest_restorable, places_for
from reknit.rendezvous.planned import planned
from reknit.rendezvous.records import FINISHED, LOST, WAITING, Member, Name, Plan, Spec, Version
from reknit.rendezvous.successor import plan_of, publish
from reknit.rendezvous.view import (
    NAMED,
    NOTHING_FOUND,
    Findings,
    Observed,
    Outcome,
    Patience,
    View,
    candidate,
    history,
    is_excluded,
    is_here,
    some,
)

__all__ = [
    "NOTHING_FOUND",
    "Findings",
    "Observed",
    "Outcome",
    "Patience",
    "candidate",
    "forgiven",
    "history",
    "is_excluded",
    "is_here",
    "next_plan",
    "runs",
]


def next_plan(
    observed: Sequence[Observed],
    spec: Spec,
    previous: Plan | None,
    now: float,
    patience: Patience,
    findings: Findings = NOTHING_FOUND,
) -> Outcome:
    """Decide on the next generation, by the first of `RULES` that applies.

    Level-triggered: once what it returns is published, the same observations lead to nothing more.
    """
    view = View(observed, spec, previous or Plan(0, "nothing yet", WAITING), now, patience, findings)
    outcome = next((o for rule in RULES if (o := rule(view)) is not None), Outcome(None, "nothing has changed"))
    if outcome.plan is None and view.spared:
        return replace(outcome, reason="; ".join([outcome.reason, *view.spared.values()]))
    return outcome


# ---------------------------------------------------------------- the rules


def refuse(view: View) -> Outcome | None:
    """What a leader must not build on."""
    head, size = view.previous, view.spec.axes.size
    if head.state in (FINISHED, LOST):
        return Outcome(None, head.reason)  # that run is over; what begins anew follows a blank plan (`earlier`)
    if any(len(replica.places) != size for replica in head.replicas):
        reason = f"the plan's replicas do not have {size} members: the pipe and model axes of a job cannot change"
        return Outcome(None, reason)
    known = max((o.member for o in view.everybody), key=_newest_known, default=None)
    if known is not None and _newest_known(known) > head.generation:
        return Outcome(
            None,
            f"{known.worker_id} knows generation {_newest_known(known)}, the newest plan here is of generation "
            f"{head.generation}: it was lost from the store and has to be written back first",
        )
    return None


def finish(view: View) -> Outcome | None:
    """All who ran the newest generation have made the last step (rule 15), and no coordinate's state is missing."""
    newest = view.previous.placed
    ran = {m.name: m for m in view.members if newest and view.placed_in(m.name) == newest}
    coordinates = {view.past[name].coordinate for name in ran}
    if not all(m.finished for m in ran.values()) or len(coordinates) < view.spec.axes.size:
        return None
    reason = f"all {len(ran)} members have finished"
    plan = replace(plan_of(view, (), reason, ENDED_WELL), state=FINISHED, former=(), placed=0, origin=0)
    return Outcome(plan, reason)


def losses(view: View) -> Outcome | None:
    """Also of members without a place now: they may still have run an older generation, beside others.

    The first one acts at once.  Further ones within `Patience.burst` wait for the end of that window, unless somebody
    is put out, which has taken long enough.
    """
    if not view.lost or (_settled(view) and not view.evicted):
        return None
    reason, due = _why_lost(view), view.findings.lost_at + view.patience.burst
    if view.now < due and not view.evicted:
        return Outcome(None, f"{reason}; more losses may follow", again=due)
    broken = max(past.placed for past in view.lost.values())
    kind = EVICTION if view.lost.keys() <= view.evicted.keys() else LOSS
    return replace(publish(view, view.choose(), reason, kind, broken), loss=True)


def _why_lost(view: View) -> str:
    """Who was lost: those of one cause together, those who are put out in the words of whoever found that out."""
    by_cause: defaultdict[str, list[Name]] = defaultdict(list)
    for name in view.lost.keys() - view.evicted.keys():
        by_cause[view.findings.causes.get(name, "")].append(name)
    parts = [f"lost {some(names)}" + f": {cause}" * bool(cause) for cause, names in sorted(by_cause.items())]
    told = [*parts, *dict.fromkeys(view.evicted.values())]
    more = len(told) - NAMED
    return "; ".join(told[:NAMED]) + f"; and {more} more cause{'s' * (more > 1)}" * (more > 0)


def _settled(view: View) -> bool:
    """Nobody can still run an older generation than the newest: there, nobody can wait for anybody."""
    inside = all(name in view.observed for name in view.seated)
    return bool(view.seated) and inside and all(_has_come(view, m) for m in view.members)


def _has_come(view: View, member: Member) -> bool:
    if member.name in view.seated:
        return member.ready >= view.previous.generation
    return member.left >= view.placed_in(member.name)


def undecided(view: View) -> Outcome | None:
    """A comparison that ended incomplete: once everybody has told its state, the leader decides (rule 10)."""
    head = view.previous.generation
    if not any(m.incomplete == head for m in view.placed):
        return None
    silent = [m.worker_id for m in view.members if m.left < view.placed_in(m.name)]
    if silent:
        return Outcome(None, f"the comparison of generation {head} is incomplete; waiting for {some(silent)}")
    return _repair(view)


def _repair(view: View) -> Outcome:
    """Every state is known: the newest version of which a complete set lives; else the newest checkpoint; else lost."""
    head, size = view.previous.generation, view.spec.axes.size
    best = newest_complete(view.candidates, size)
    if best is not None:
        places = _around(view, best, view.candidates)
        return publish(view, places, f"the leader decides on {best}", DECISION, head, best)
    witness = [m for m in view.members if _unbroken_since_origin(view, m) and m.prepared is None]
    untrained = witness if all(m.pristine for m in view.members) else []
    nobody = f"nobody has trained yet, as {untrained[0].worker_id} shows" if untrained else ""
    if step := newest_restorable(view.candidates, size):
        return _from_checkpoint(view, step, nobody or f"the state {_what_is_lost(view)} is lost")
    if untrained:
        reason = f"{nobody}: all start from what their scripts built"
        return publish(view, view.choose(), reason, RESTORE, head, restore=True)
    return _state_lost(view)


def _from_checkpoint(view: View, step: int, why: str) -> Outcome:
    """Go back to a checkpoint, with places around those who can read it."""
    version = Version(view.previous.generation + 1, step)
    candidates = as_restored(view.candidates, version)
    places = _around(view, version, candidates)
    reason = f"{why}: the job goes on from the checkpoint of step {step}"
    return publish(view, places, reason, RESTORE, view.previous.generation, version, restore=True)


def _around(view: View, version: Version, candidates: Sequence[Candidate]) -> Places:
    """Places around who holds `version`; where all at a coordinate drain, with one more replica to take it over."""
    spec, draining = view.spec, {c.name for c in candidates if c.draining}
    places = places_for(version, candidates, spec.wanted, spec.axes.size)
    if any(draining.issuperset(column) for column in zip(*places, strict=True)):
        return places_for(version, candidates, min(spec.max_replicas, spec.wanted + 1), spec.axes.size)
    return places


def _unbroken_since_origin(view: View, member: Member) -> bool:
    past = view.past.get(member.name)
    return past is not None and past.placed == view.previous.generation and past.since <= view.previous.origin


def _what_is_lost(view: View) -> str:
    axes = view.spec.axes
    held = {c.coordinate for c in view.candidates if c.versions}
    missing = [str(axes.coordinate(i)) for i in range(axes.size) if i not in held]
    return f"of coordinate (pipe.model) {', '.join(missing)}" if missing else "of one common version"


def _state_lost(view: View) -> Outcome:
    what = _what_is_lost(view)
    found = {step for c in view.candidates for step in c.restorable}
    none = f"that of step {max(found)} is not there for every coordinate" if found else "there is none"
    reason = f"the state {what} is lost: everybody who held it is gone, and no checkpoint can be gone back to: {none}"
    return Outcome(replace(plan_of(view, (), reason, STATE_LOST), state=LOST), reason)


def reports(view: View) -> Outcome | None:
    """Somebody left the newest generation, knowing nothing newer: see `evidence`."""
    head = view.previous.generation
    told = [m for m in view.placed if m.left == head]
    if not told:
        return None
    weighed = weigh(view, told)
    if weighed.evict:
        return losses(view.with_evicted(weighed.evict))
    return weighed.hold or publish(view, view.choose(), weighed.reason, REPORT, head)


RULES = (refuse, finish, wait_for_holders, losses, undecided, reports, planned)


def runs(plan: Plan, members: Sequence[Member]) -> bool:
    """Whether the plan's generation runs: all its members are past the comparison, and none of them has left it.

    From then on a drained member that has no place may end, and an idle one be restarted (rule 15): before that, it may
    hold the only copy of a coordinate's state.
    """
    ready = {m.name for m in members if m.ready == plan.generation and m.left < plan.generation and not m.dead}
    return bool(plan.replicas) and plan.names <= ready


def _newest_known(member: Member) -> int:
    return max(member.ready, member.left, member.incomplete, member.torn)
