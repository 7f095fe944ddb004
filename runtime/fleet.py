"""One agent's workers: what it knows of each, and the pure steps from what a worker says to its member record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from reknit.health.addresses import join_address
from reknit.rendezvous.codec import Reader, decode_name
from reknit.rendezvous.codec import address as checked_address
from reknit.rendezvous.codec import steps as read_steps
from reknit.rendezvous.parts import View
from reknit.rendezvous.records import Member, Name
from reknit.runtime.ipc.server import Peer
from reknit.runtime.known import Known
from reknit.runtime.stalls import Watch, moved_on
from reknit.runtime.supervisor.restart import WorkerExit
from reknit.runtime.supervisor.supervisor import Exited


@dataclass
class Drain:
    """A worker's leave on request: since when, and until when it has to be over (monotonic seconds); `by` whom.

    `allowed`: the agent has told it to end, as nobody needs it any more.  `overdue`: it was ended, as time was up.
    `free_since`: since when nobody has needed it, though its end might cost the others a generation.
    """

    by: str
    since: float
    deadline: float
    allowed: bool = False
    overdue: bool = False
    free_since: float | None = None
    explained: bool = False

    @property
    def open(self) -> bool:
        """Whether it is still to be decided how it ends."""
        return not self.allowed and not self.overdue


@dataclass
class Worker:
    """A worker's slot on this host.  `peer`, `member`, `view`, `watch` and `known` belong to the present process.

    `left_at`: when it last said that it left a generation.  `expected`: until when (monotonic) a process that was
    attached to an earlier life of this agent may come back.  `ends_by`: when one that takes no part any more is ended.
    """

    worker_id: str
    index: int
    pid: int | None = None
    peer: Peer | None = None
    member: Member | None = None
    view: View | None = None
    watch: Watch = field(default_factory=lambda: Watch(0.0))
    known: Known = field(default_factory=lambda: Known(0.0))
    left_at: float = 0.0
    expected: float | None = None
    ends_by: float | None = None
    exited: Exited | None = None
    attached_once: bool = False
    finished: bool = False
    gone: bool = False  # it said that it takes no part any more
    over: bool = False
    lost_at: float | None = None
    restart_at: float | None = None
    exits: list[WorkerExit] = field(default_factory=list)
    drain: Drain | None = None

    def forget_process(self) -> None:
        """A new process takes this slot."""
        self.pid = self.peer = self.member = self.view = self.exited = self.lost_at = self.restart_at = None
        self.drain = None
        self.finished = self.gone = False
        self.expected = self.ends_by = None

    @property
    def name(self) -> Name | None:
        """The present process, once it has attached."""
        return self.member.name if self.member is not None else None


class Told(NamedTuple):
    """An event that a worker told of; `moment` in CLOCK_MONOTONIC seconds."""

    event: str
    moment: float
    generation: int
    fields: dict[str, Any]


def read_event(message: Mapping[str, Any]) -> Told | None:
    """An event as the events file takes it; None if it is none."""
    event, moment, generation = message.get("event"), message.get("t"), message.get("generation")
    if not isinstance(event, str) or not isinstance(moment, (int, float)) or not isinstance(generation, int):
        return None
    if isinstance(moment, bool) or isinstance(generation, bool):
        return None
    if not 0 <= moment < 2**62 or not 0 <= generation < 2**62 or not math.isfinite(moment):
        return None
    known = ("type", "event", "t", "generation", "worker")
    return Told(event, moment, generation, {key: value for key, value in message.items() if key not in known})


def why_not(worker: Worker, peer: Peer, kept: bool) -> str:
    """Why a process may not take this slot; empty if it may.  `kept`: this agent starts its workers itself."""
    if kept and worker.pid is not None and worker.pid != peer.pid:
        return f"this agent runs {worker.worker_id} as process {worker.pid}, not {peer.pid}"
    if not kept and worker.peer is not None:
        return (
            f"process {worker.peer.pid} is attached as {worker.worker_id} already: "
            "give each worker a REKNIT_WORKER_ID of its own"
        )
    return ""


def new_member(peer: Peer, agent: str, host: str, own: str, team: int, before: Member | None = None) -> Member:
    """The record of a worker that has just attached.

    If it was attached `before`, or to an agent that is no more, its greeting says what it has reported since.  One that
    has said that it takes no part any more counts as dead.  `own` is the agent's address, `team` how many workers it
    starts (0: none, they come to it).  Raises RecordError if its greeting does not fit.
    """
    reader = Reader(peer.hello, f"the greeting of {peer.worker_id}")
    address = _reached_at(checked_address(reader.text("address"), reader.what), own)
    known = Member(peer.worker_id, peer.incarnation, agent, host, address, pid=max(0, peer.pid), team=team)
    if before is not None and before.name == known.name:
        known = replace(moved_on(before), address=address, pid=known.pid)
    return replace(
        known,
        coordinate=known.coordinate if known.coordinate is not None else reader.optional_number("coordinate"),
        built=reader.flag("built", known.built),
        draining=reader.flag("draining", known.draining),
        finished=reader.flag("finished", known.finished),
        pristine=reader.flag("pristine", known.pristine),
        ready=reader.generation("ready", known.ready),
        left=reader.generation("left", known.left),
        incomplete=reader.generation("incomplete", known.incomplete),
        torn=reader.generation("torn", known.torn),
        committed=reader.version("committed") if "committed" in peer.hello else known.committed,
        prepared=reader.version("prepared") if "prepared" in peer.hello else known.prepared,
        restorable=read_steps(reader, "restorable") if "restorable" in peer.hello else known.restorable,
        keeps=reader.flag("keeps", known.keeps),
        closed=reader.generation("closed", known.closed),
        gone=_names(reader, "gone") if "gone" in peer.hello else known.gone,
        absent=_names(reader, "absent") if "absent" in peer.hello else known.absent,
        dead=reader.flag("over", False),
    )


def _reached_at(told: str, own: str) -> str:
    """A worker that was not told its host's address ($REKNIT_ADDRESS) listens everywhere, and says loopback."""
    host, _, port = told.rpartition(":")
    return join_address(own, int(port)) if host == "127.0.0.1" and own != host else told


def after_report(member: Member, message: Mapping[str, Any]) -> Member:
    """A member's record after its worker has said `message`; the same object if nothing changes.

    Raises RecordError if the message does not fit.
    """
    reader = Reader(message, f"what {member.worker_id} says")
    match message.get("type"):
        case "built":
            return replace(member, built=True, restorable=read_steps(reader, "restorable"), keeps=reader.flag("keeps"))
        case "checkpoints":
            return replace(member, restorable=read_steps(reader, "steps"))
        case "ready":
            committed = reader.version("committed")
            pristine = committed is None or committed.step == 0
            return replace(
                member,
                ready=max(member.ready, reader.generation("generation")),
                committed=committed,
                prepared=None,
                pristine=member.pristine and pristine,
            )
        case "left":
            return replace(
                member,
                left=max(member.left, reader.generation("generation")),
                incomplete=max(member.incomplete, reader.generation("incomplete")),
                torn=max(member.torn, reader.generation("torn")),
                committed=reader.version("committed"),
                prepared=reader.version("prepared"),
                pristine=reader.flag("pristine"),
                gone=_names(reader, "gone"),
                absent=_names(reader, "absent"),
            )
        case "finished":
            return replace(member, finished=True)
        case "closed":
            return replace(member, closed=max(member.closed, reader.generation("generation")))
    return member


def _names(reader: Reader, key: str) -> tuple[Name, ...]:
    return reader.items(key, lambda item: decode_name(item, reader.what))
