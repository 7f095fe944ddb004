"""What the reports of a broken generation show: a loss that is about to be known, a member that has yet to come, a
connection that broke between living members, or members that cannot reach each other.

Whoever left the newest generation says whose connections it found closed (`gone`), and whom it could not connect to
(`absent`).  That is evidence, not proof: a peer may have left a moment earlier, or still be computing.  So the leader
first waits until each of those who are named has spoken for itself, was shown to live, or is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from reknit.rendezvous.cut import cut, sentences
from reknit.rendezvous.records import BUSY, LONG, SILENT, WAITS, Member, Name
from reknit.rendezvous.view import NAMED, Observed, Outcome, View, some

_AT = {
    WAITS: "it has waited in {phase} for {seconds:.0f} s",
    BUSY: "it has been busy in {phase} for {seconds:.0f} s",
    LONG: "it is in {phase}, which it has said takes long, for {seconds:.0f} s",
    SILENT: "it has said nothing for {seconds:.0f} s, last in {phase}",
}


@dataclass(frozen=True)
class Weighed:
    """What the reports come to: wait (`hold`), put out (`evict`, with the sentences), or meet anew, for `reason`."""

    reason: str = ""
    hold: Outcome | None = None
    evict: Mapping[Name, str] = field(default_factory=dict)


def weigh(view: View, told: Sequence[Member]) -> Weighed:
    """Weigh the reports of `told`, the members that have left the newest generation knowing nothing newer."""
    head = view.previous.generation
    first = min(view.observed[m.name].changed for m in told)
    grace = first + view.patience.report_grace
    who = told[0].worker_id
    if view.now < grace:
        return _wait(f"{who} reports that generation {head} is broken; a loss may follow", grace)
    placed = {m.name: view.observed[m.name] for m in view.placed}
    complaints = {m.name: tuple(name for name in m.absent if name in placed and name != m.name) for m in told}
    absent = {name: placed[name] for named in complaints.values() for name in named}
    if away := [o for o in absent.values() if _is_elsewhere(o.member, head)]:
        return _wait(_waiting_for(away, view.now), None)
    if late := [o.member.worker_id for o in absent.values() if o.member.left < head and o.changed > first]:
        return Weighed(f"{some(late)} came late to generation {head}: all meet in a new one")
    open_to_answer = {name for m in told for name in m.gone if name in placed and not _has_answered(placed[name], head)}
    if absent:
        open_to_answer |= {name for name, o in placed.items() if o.member.left < head}
    limit = max(grace + view.patience.answer, view.findings.settles)
    if open_to_answer and view.now < limit:
        return _wait(f"{who} reports that generation {head} is broken; {some(open_to_answer)} may be lost", limit)
    if absent:
        return _cut(view, complaints, limit)
    return Weighed(f"{who} reports that a connection of generation {head} broke")


def _wait(reason: str, again: float | None) -> Weighed:
    return Weighed(hold=Outcome(None, reason, again=again))


def _is_elsewhere(member: Member, head: int) -> bool:
    """Whether it has yet to come to the newest generation: inside an older one, or at work between two of them."""
    if member.left >= head:
        return False
    at_work = member.stall is not None and member.stall.kind != WAITS
    return at_work or (member.left < member.ready < head)


def _has_answered(observed: Observed, head: int) -> bool:
    return max(observed.member.left, observed.member.answered) >= head


def _waiting_for(away: Sequence[Observed], now: float) -> str:
    """Whom the others wait for, and what those are at."""
    named = sorted(away, key=lambda o: o.member.name)
    parts = []
    for o in named[:NAMED]:
        inside = f" from generation {o.member.ready}" if o.member.ready > o.member.left else ""
        parts.append(f"{o.member.worker_id}, which has not come{inside}: {_at(o, now)}")
    more = f"; and {len(named) - NAMED} more" if len(named) > NAMED else ""
    return f"waiting for {'; for '.join(parts)}{more}"


def _at(observed: Observed, now: float) -> str:
    stall = observed.member.stall
    if stall is None:
        return "it is still at work there"
    return _AT[stall.kind].format(phase=stall.phase, seconds=stall.seconds + max(0.0, now - observed.stalled))


def _cut(view: View, complaints: Mapping[Name, Sequence[Name]], limit: float) -> Weighed:
    """Some cannot reach others, though all live: put out the fewest without whom all the others can."""
    found = cut(complaints, view.seats(view.observed.values()))
    if found.out:
        return Weighed(evict=sentences(found.out, complaints))
    if not found.unresolved:
        return Weighed(f"not all came in time to generation {view.previous.generation}: all meet in a new one")
    by, of = found.unresolved[0]
    reason = f"{by} cannot reach {of}, but neither can be put out: {view.only_holder(of)}"
    if view.now < limit:
        return _wait(reason, limit)
    return Weighed(f"{reason}; all try again")
