"""Whom to wait for although nothing is heard of them: those with whom the job's state would be lost.

A worker that has died is known to be dead, as its agent says so.  Of a host that is gone nothing is heard, nor of one
that is only cut off from the store: it may train on all the same, and be back in a minute with all that the job is
worth.  As long as others hold the state this makes no difference, and the job goes on without it; else the others have
nothing to go on with, so they wait.  Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from reknit.rendezvous.eviction import Seat
from reknit.rendezvous.records import Name
from reknit.rendezvous.view import Outcome, Past, View, some


def wait_for_holders(view: View) -> Outcome | None:
    """Hold everything while the only ones who may hold a coordinate's state may live, up to `Patience.holders`."""
    missed = view.findings.missed
    past = {name: past for name, past in view.lost.items() if name in missed}
    names = last_holders(past, view.seats(view.observed.values()), view.spec.axes.size) if past else ()
    if not names:
        return None
    until = max(missed[name] for name in names) + view.patience.holders
    if view.now >= until:
        return None
    where = ", ".join(sorted({view.coordinate(name) for name in names}))
    reason = (
        f"nothing is heard of {some(names)}, and nobody else holds the state of coordinate (pipe.model) {where}: "
        f"waiting for them to come back, at most {view.patience.holders:.0f} s"
    )
    return Outcome(None, reason, again=until, grave=True)


def last_holders(missed: Mapping[Name, Past], here: Mapping[Name, Seat], size: int) -> Collection[Name]:
    """Those of the missed at whose coordinate nobody is `here` who is current, or was given a place as early.

    Nobody, if the state of any of the `size` coordinates is gone for good: nobody's return would help then.
    """
    columns = [[seat for seat in here.values() if seat.coordinate == coordinate] for coordinate in range(size)]
    may_be_had = {past.coordinate for past in missed.values()}
    if not all(any(s.standing for s in column) or c in may_be_had for c, column in enumerate(columns)):
        return ()
    return [
        name
        for name, past in missed.items()
        if not any(seat.standing == 2 or seat.since <= past.since for seat in columns[past.coordinate])
    ]
