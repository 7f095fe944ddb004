"""The last of the leader's rules: what changes in order, as nobody is lost: arrivals, drains, another size, the start.

Apart from `plan`, which says what is looked at before.  What a planned change is called is decided here as well: by
whom it gives a place, from whom it takes one, and by how many replicas were wanted when the last plan was made.
"""

from __future__ import annotations

from dataclasses import replace

from reknit.rendezvous.assignment import due
from reknit.rendezvous.closing import WHY, closed, stops
from reknit.rendezvous.kinds import BEGIN, DRAIN, JOIN, SCALE
from reknit.rendezvous.places import Places, as_restored, newest_restorable, places_for, price, why_cheaper
from reknit.rendezvous.records import Name, Version
from reknit.rendezvous.successor import publish
from reknit.rendezvous.view import Outcome, View, some


def planned(view: View) -> Outcome | None:
    """Arrivals, drains and a new number of replicas; arrivals and drains wait a little for more."""
    if any(m.finished for m in view.placed):  # the last step is made: nobody needs more workers, or a last checkpoint
        reason = "the last step is made, and the job ends"
        return publish(view, view.head, reason, DRAIN) if view.previous.closing else None
    places = view.choose()
    if len(places) < view.spec.min_replicas:
        places = ()
    stop = stops(view, places)
    if set(places) == set(view.head) and stop == view.previous.closing:
        return closed(view) if stop else None
    drained = [o.changed for name in _leaving(view, places, stop) if (o := view.observed[name]).member.draining]
    if drained:
        end = due(drained, view.patience.burst)
        if view.now < end:  # a host's workers all drain at once
            return Outcome(None, "members drain; more may follow", again=end)
    arrivals = [view.observed[name].changed for replica in places for name in replica if name not in view.past]
    if arrivals and len(places) < view.spec.wanted:
        end = due(arrivals, view.patience.join_window)
        if view.now < end:
            return Outcome(None, "members have arrived; more may follow", again=end)
    if view.previous.placed == 0:
        return _begin(view, places)
    if stop:
        return _stop(view, places)
    kind, reason = _change(view, places)
    return publish(view, places, reason, kind)


def _stop(view: View, places: Places) -> Outcome:
    reason = f"all members drain: {WHY}" if set(places) == set(view.head) else f"{_told(view, places)}; {WHY}"
    outcome = publish(view, places, reason, DRAIN)
    return replace(outcome, plan=outcome.plan and replace(outcome.plan, closing=True))


def _begin(view: View, places: Places) -> Outcome:
    """The job begins: from the newest checkpoint that each coordinate has a reader of, else as the scripts built it.

    Perhaps not all hosts see the folder: then those who do get the places.
    """
    placed = {name for replica in places for name in replica}
    size, reason = view.spec.axes.size, _told(view, places)
    step = newest_restorable(view.candidates, size)
    if not step:
        if found := {step for c in view.candidates for step in c.restorable}:
            reason += f"; starts at step 0: the checkpoint of step {max(found)} is not there for every coordinate"
        return publish(view, places, reason, BEGIN, restore=True)
    version = Version(view.previous.generation + 1, step)
    if newest_restorable([c for c in view.candidates if c.name in placed], size) != step:
        places = places_for(version, as_restored(view.candidates, version), len(places), size)
        reason = _told(view, places)
    return publish(view, places, f"{reason}; starts from the checkpoint of step {step}", BEGIN, 0, version, True)


def _leaving(view: View, places: Places, stop: bool) -> set[Name]:
    """Who loses its place, or will do so soon, as the job stops."""
    return set(view.seated) if stop else _left(view, places)


def _left(view: View, places: Places) -> set[Name]:
    return set(view.seated).difference(*places)


def _drained(view: View, places: Places) -> set[Name]:
    return {name for name in _left(view, places) if view.observed[name].member.draining}


def _change(view: View, places: Places) -> tuple[str, str]:
    """What a change among members who have run is: its kind, and the sentence.

    Only what the newest plan could not have been is called scaling: more replicas than were wanted then, or fewer than
    there are, by members who would have stayed.
    """
    before, now, was, wanted = len(view.head), len(places), view.previous.wanted, view.spec.wanted
    stayed = _left(view, places) - _drained(view, places)
    fewer = now < before and before > wanted and stayed
    more = 0 < was <= before < now and was < wanted
    if fewer or more:
        return SCALE, f"scaled from {before} to {now}: {_told(view, places, 'now spare')}"
    return (DRAIN if _drained(view, places) else JOIN), _told(view, places)


def _told(view: View, places: Places, stayed: str = "left") -> str:
    """Who has a place now who had none, and who the other way round; `stayed`: what those did who do not leave."""
    joined, left = {name for replica in places for name in replica} - view.seated, _left(view, places)
    drained = _drained(view, places)
    parts = [
        f"{some(joined)} joined" if joined else "",
        f"{some(drained)} drained" if drained else "",
        f"{some(left - drained)} {stayed}{_why_they(view, places, left - drained)}" if left - drained else "",
    ]
    return "; ".join(part for part in parts if part) or "places changed"


def _why_they(view: View, places: Places, left: set[Name]) -> str:
    """Why whole replicas were given up rather than others, where that can be said in a word."""
    by_name = {c.name: c for c in view.candidates}
    prices = {
        replica.names: price([by_name[name] for name in replica.names], replica.formed)
        for replica in view.previous.replicas
        if all(name in by_name for name in replica.names)
    }
    given_up = [cost for names, cost in prices.items() if left.issuperset(names)]
    kept = [cost for names, cost in prices.items() if names in places]
    word = why_cheaper(given_up, kept)
    return f" ({word})" if word else ""
