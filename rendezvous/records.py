"""The words of membership as data: what a member, a spec and a plan are.

Everything that decides works on these frozen values; `codec` turns them into what lies in etcd.  A worker is named by
`worker_id` and `incarnation` together (a `Name`): a respawned worker is a new name.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from reknit.rendezvous.errors import LayoutError
from reknit.rendezvous.kinds import DECISION
from reknit.rendezvous.layout import Layout

FORMAT = 1  # the newest format of records that this version writes and reads

RUNNING, WAITING, FINISHED, LOST = "running", "waiting", "finished", "lost"
WAITS, BUSY, LONG, SILENT = "waits", "busy", "long", "silent"  # what a stall may be


class Version(NamedTuple):
    """Which attempt made a worker's state: ordered by generation first, then step (recovery/PROTOCOL.md, rule 1)."""

    generation: int
    step: int

    def __str__(self) -> str:
        return f"step {self.step} of generation {self.generation}"


class Coordinate(NamedTuple):
    """A worker's place within a replica."""

    pipe: int
    model: int

    def __str__(self) -> str:
        return f"{self.pipe}.{self.model}"


class Name(NamedTuple):
    """One process: a worker and the incarnation of it."""

    worker_id: str
    incarnation: str

    def __str__(self) -> str:
        return self.worker_id


@functools.cache
def _replica_layout(pipe: int, model: int) -> Layout:
    return Layout.of(pipe=pipe, model=model)


@dataclass(frozen=True)
class Axes:
    """The fixed part of the job's parallel shape."""

    pipe: int = 1
    model: int = 1

    def __post_init__(self) -> None:
        for name, size in (("pipe", self.pipe), ("model", self.model)):
            if size < 1:
                raise LayoutError(f"the {name} axis must have at least 1 place, not {size}")

    @property
    def size(self) -> int:
        """Workers in a replica."""
        return self.pipe * self.model

    def coordinate(self, index: int) -> Coordinate:
        """The coordinate of a rank within a replica: model is the fastest axis."""
        return Coordinate(**_replica_layout(self.pipe, self.model).coordinate(index))

    def index(self, coordinate: Coordinate) -> int:
        """The rank within a replica at a coordinate."""
        return _replica_layout(self.pipe, self.model).rank(**coordinate._asdict())


@dataclass(frozen=True)
class Spec:
    """What the operator asks of the job.  `desired` None: as many replicas as the members allow, up to the maximum."""

    axes: Axes
    min_replicas: int = 1
    max_replicas: int = 1
    desired: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.min_replicas <= self.max_replicas:
            raise LayoutError(
                f"the number of replicas must lie in 1 <= min <= max, not {self.min_replicas}:{self.max_replicas}"
            )
        if self.desired is not None and not self.min_replicas <= self.desired <= self.max_replicas:
            raise LayoutError(
                f"{self.desired} desired replicas lie outside of {self.min_replicas}:{self.max_replicas} (min:max)"
            )

    @property
    def wanted(self) -> int:
        """How many replicas to form if there are members enough."""
        return self.max_replicas if self.desired is None else self.desired


@dataclass(frozen=True)
class Stall:
    """What a placed worker has been at for long; its agent writes it only then, and takes it back when that ends.

    `kind`: WAITS for others, BUSY in the script's own code, in a LONG phase that the script announced, or SILENT (the
    process says nothing any more, not even that it waits).  `seconds`: for how long, as of when it was written.
    `limit`: after how many seconds of waiting for somebody that one counts as hung, by this worker's median step.
    """

    generation: int
    step: int
    phase: str
    kind: str
    seconds: float
    limit: float


@dataclass(frozen=True)
class Member:
    """A worker as the others see it: its record, bound to its agent's lease.

    What it reports about generations is only ever raised: `built` (its script has built its model and waits for a
    place), `ready` (newest generation whose comparison brought it to the decided version), `left` (newest generation
    that it left, or that had no place for it, knowing nothing newer), `incomplete` (newest generation whose comparison
    it saw end incomplete).  `committed` and `prepared` are its versions as of `left`; `pristine` says that its state is
    still what its script built.  `torn` is the newest generation in which a connection within its replica broke.

    Evidence, as of `left`: `gone` are the peers whose connections it found closed, `absent` those that it could not
    connect to.  `answered`: the newest generation of which its agent, asked whether it lives, has said that it does.
    `dead`: the process has ended; the record stays so that this is known even after an outage of the store.
    `restorable`: the steps of which it has found a complete checkpoint, newest first; `keeps`: its script has
    checkpoints written.  `closed`: the newest closing generation of whose step it has found one.  `team`: how many
    workers its agent starts, itself included; 0 for one that somebody else starts.
    """

    worker_id: str
    incarnation: str
    agent: str
    host: str
    address: str
    coordinate: int | None = None
    built: bool = False
    draining: bool = False
    finished: bool = False
    pristine: bool = True
    ready: int = 0
    left: int = 0
    incomplete: int = 0
    torn: int = 0
    committed: Version | None = None
    prepared: Version | None = None
    gone: tuple[Name, ...] = ()
    absent: tuple[Name, ...] = ()
    answered: int = 0
    stall: Stall | None = None
    pid: int = 0
    dead: bool = False
    restorable: tuple[int, ...] = ()
    keeps: bool = False
    closed: int = 0
    team: int = 0
    format: int = FORMAT
    unknown: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> Name:
        """The process that this record speaks of."""
        return Name(self.worker_id, self.incarnation)


@dataclass(frozen=True)
class Place:
    """One member's place in a plan.  `since`: first generation of its unbroken run of places."""

    name: Name
    host: str
    address: str
    since: int
    agent: str = ""


@dataclass(frozen=True)
class Replica:
    """One whole copy of the model: a place for each coordinate.  (members, `formed`) is its formation's identity."""

    slot: int
    formed: int
    places: tuple[Place, ...]

    @property
    def names(self) -> tuple[Name, ...]:
        """The members in order of their coordinates."""
        return tuple(place.name for place in self.places)


@dataclass(frozen=True)
class Former:
    """A living member that had a place once and has none now: it may still run the generation `placed`."""

    name: Name
    coordinate: int
    placed: int
    since: int


@dataclass(frozen=True)
class Plan:
    """Who sits where: the complete assignment for one generation.

    `broken`: all generations up to this one have lost a member or a connection.  `target`: a version decided by the
    leader; None leaves it to the comparison.  `restore`: the target is what the scripts built, or above step 0 what a
    checkpoint holds, `origin` the newest generation that did so.  `placed`: newest generation with places, itself
    included.

    `evicted`: processes that were put out although they may live: they get no place again.  `offences`: how often each
    worker was put out so, which its next incarnation pays for by waiting.  `kind`: what brought it about, a word of
    `kinds`.  `wanted`: how many replicas were wanted, 0 if that is not known.  `closing`: nobody works in it; its
    members write a checkpoint of the step that they have come to, so that all of them may leave.
    """

    generation: int
    reason: str
    state: str = RUNNING
    replicas: tuple[Replica, ...] = ()
    former: tuple[Former, ...] = ()
    spares: tuple[Name, ...] = ()
    restart: tuple[Name, ...] = ()
    broken: int = 0
    target: Version | None = None
    restore: bool = False
    origin: int = 0
    placed: int = 0
    writer: int = 0
    evicted: tuple[Name, ...] = ()
    offences: tuple[tuple[str, int], ...] = ()
    kind: str = DECISION
    wanted: int = 0
    closing: bool = False

    @functools.cached_property
    def names(self) -> frozenset[Name]:
        """Everybody who has a place."""
        return frozenset(name for replica in self.replicas for name in replica.names)
