"""What a session tells its agent."""

from __future__ import annotations

from dataclasses import dataclass

from reknit.rendezvous.accusation import Accusation
from reknit.rendezvous.draining import DrainOrder
from reknit.rendezvous.parts import Head, View
from reknit.rendezvous.records import Member, Name, Plan


@dataclass(frozen=True)
class HeadSeen:
    """A newer plan was published; generations only ever grow."""

    head: Head


@dataclass(frozen=True)
class ViewFetched:
    """The answer to `Session.request_view`: what `name` needs of a plan."""

    name: Name
    view: View


@dataclass(frozen=True)
class Assigned:
    """The leader tells a fresh process to build its model for a coordinate (its index)."""

    worker_id: str
    incarnation: str
    coordinate: int


@dataclass(frozen=True)
class Accused:
    """Somebody doubts that this agent lives.  The store has been answered; its members' records should say so, too."""

    accusation: Accusation


@dataclass(frozen=True)
class DrainAsked:
    """Somebody asks one of this agent's workers to leave; the order may be for an earlier process of it."""

    order: DrainOrder


@dataclass(frozen=True)
class JobRead:
    """The answer to `Session.request_job`: the newest plan (None: there is none), and the members just before it."""

    plan: Plan | None
    members: tuple[Member, ...]


@dataclass(frozen=True)
class LookedAt:
    """Somebody looks at the job; answered by `Session.tell`."""


@dataclass(frozen=True)
class Elected:
    """This agent leads; `revision` is the fence of its term."""

    revision: int


@dataclass(frozen=True)
class Deposed:
    """This agent no longer leads, or cannot be sure that it does."""

    reason: str


@dataclass(frozen=True)
class LeaseGranted:
    """A lease of `ttl` seconds was granted; `again`: an earlier one was lost."""

    lease: int
    ttl: float
    again: bool


@dataclass(frozen=True)
class LeaseRenewed:
    """The lease surely stands until `deadline` (monotonic)."""

    deadline: float


@dataclass(frozen=True)
class LeaseEnded:
    """The lease is gone from the store, and all of this agent's records with it; a new one is asked for."""


@dataclass(frozen=True)
class StoreDown:
    """The store has not answered since `since` (monotonic)."""

    since: float


@dataclass(frozen=True)
class StoreUp:
    """The store answers again, after `outage` seconds."""

    outage: float


SessionEvent = (
    HeadSeen
    | ViewFetched
    | Assigned
    | Accused
    | DrainAsked
    | JobRead
    | LookedAt
    | Elected
    | Deposed
    | LeaseGranted
    | LeaseRenewed
    | LeaseEnded
    | StoreDown
    | StoreUp
)
