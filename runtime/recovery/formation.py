"""The default process group of one replica: made once per formation, left alone while the formation stands.

With gloo it is an interruptible communicator underneath, registered as torch's default group through torch's own
extension point for backends, so that pipelines and everything else in torch find it; so is every other group that is
made over it.  With NCCL they are torch's own, on a fresh prefix, aborted when their formation ends.
"""

from __future__ import annotations

import datetime
import itertools
import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from reknit.rendezvous.errors import ReknitError
from reknit.rendezvous.layout import job_layout
from reknit.rendezvous.records import Name, Replica
from reknit.runtime.communicator.communicator import Communicator
from reknit.runtime.errors import Interrupted

log = logging.getLogger(__name__)

BACKEND = "reknit"
_serial = itertools.count(1)
_adopting: list[dist.ProcessGroupGloo] = []
_standing: list[Formation] = []  # the one whose default group is torch's, if it is a communicator
_stand_in: list[dist.ProcessGroup] = []  # torch's default group before there is a formation, if one was asked for

ConnectPart = Callable[[str, Sequence[int], "threading.Event | None"], Communicator]
"""Build a gloo group of these ranks of a replica under this prefix, until cancelled, by the end of the generation in
which the formation is made if nothing is given for it.  Raises Interrupted."""


class FormationError(ReknitError):
    """The replica's default group cannot be made, and trying again would not help."""


@dataclass(frozen=True)
class FormationId:
    """The set of workers of one replica and the generation that formed it (rule 2)."""

    slot: int
    formed: int
    names: tuple[Name, ...]

    @classmethod
    def of(cls, replica: Replica) -> FormationId:
        """The identity of a replica's formation.  The slot is a label; equality is on the members and `formed`."""
        return cls(replica.slot, replica.formed, replica.names)

    def same(self, other: FormationId | None) -> bool:
        """Whether both name the same formation."""
        return other is not None and (self.formed, self.names) == (other.formed, other.names)

    def __str__(self) -> str:
        return f"{self.slot}@{self.formed}"


@dataclass
class Formation:
    """A replica's own groups.  `communicator` is what is under `group` with gloo and two members or more.

    `parts` are under the groups that were made over it; `lines` are its process groups along `pipe` and `model`, and
    `under` what is under those with gloo and two members or more.
    """

    identity: FormationId
    rank: int
    group: dist.ProcessGroup | None
    communicator: Communicator | None
    connect: ConnectPart | None = None
    parts: list[Communicator] = field(default_factory=list)
    lines: dict[str, Any] = field(default_factory=dict)
    under: dict[str, Communicator] = field(default_factory=dict)
    cancelled: threading.Event | None = None
    serial: int = field(default_factory=lambda: next(_serial))
    ended: bool = False

    @property
    def group_identity(self) -> str:
        """Names the group object within this process: the same as long as the object is."""
        return f"{os.getpid()}.{self.serial}"

    def interrupt(self) -> None:
        """The formation is over: free everybody who waits in its groups.  Callable from any thread, idempotent."""
        if self.ended:
            return
        self.ended = True
        if self.cancelled is not None:
            self.cancelled.set()
        for part in list(self.parts):
            part.interrupt()
        if self.communicator is not None:
            self.communicator.interrupt()
        elif self.group is not None and len(self.identity.names) > 1:
            _abort(self.group)

    def end(self) -> None:
        """Interrupt, and take the groups apart."""
        self.interrupt()
        _standing.clear()
        self.lines.clear()
        self.under.clear()
        if self.group is not None and dist.is_initialized():  # an abort has taken it apart already
            dist.destroy_process_group()
        if self.communicator is not None:
            self.communicator.close()
        for part in self.parts:
            part.close()
        self.group = self.communicator = None

    def stand(self) -> None:
        """It is made: from now on it outlives the generation."""
        self.cancelled = threading.Event()

    def make_lines(self, pipe: int, model: int) -> None:
        """Make the process groups along both axes, on every member alike.  Raises Interrupted."""
        layout = job_layout(1, pipe, model)
        for axis in ("pipe", "model"):
            if layout.size(axis) == layout.world_size:
                self.lines[axis] = self.group
                if self.communicator is not None:
                    self.under[axis] = self.communicator
            elif layout.size(axis) > 1:
                before = len(self.parts)
                made = [dist.new_group(list(ranks)) for ranks in layout.groups(axis)]
                self.lines[axis] = made[layout.group_index(self.rank, axis)]
                if self.parts[before:]:  # of the groups just made, this worker is in one
                    self.under[axis] = self.parts[-1]

    def line(self, axis: str) -> Any:
        """The process group along an axis.  One of this worker alone is made when it is first asked for."""
        if axis not in self.lines:
            self.lines[axis] = dist.new_group([self.rank], use_local_synchronization=True)
        return self.lines[axis]

    def make_part(self, name: str, ranks: Sequence[int]) -> Communicator:
        """The communicator under a group of these ranks.  Raises Interrupted."""
        assert self.connect is not None
        members = "-".join(map(str, ranks))
        part = self.connect(f"part/{self.identity.formed}/{self.identity.slot}/{name}/{members}", ranks, self.cancelled)
        self.parts.append(part)
        if self.ended:  # it may have come too late to be seen by the interrupt
            part.interrupt()
        return part

    def peers_gone(self) -> list[int]:
        """Members whose connections are closed; with NCCL that is not known."""
        return self.communicator.peers_gone() if self.communicator is not None else []

    def traffic(self) -> int | None:
        """How many bytes have moved in all its groups so far; with NCCL that is not known."""
        if self.communicator is None:
            return 0 if len(self.identity.names) == 1 else None
        moved = [part.traffic() for part in (self.communicator, *list(self.parts))]
        counted = [number for number in moved if number is not None]
        return sum(counted) if len(counted) == len(moved) else None

    def lost_a_member(self) -> bool:
        """Whether a connection within the replica is closed, or the formation is over."""
        return self.ended or bool(self.peers_gone())


def _abort(group: dist.ProcessGroup) -> None:
    """NCCL's way out: its collectives end with an error.  Needs the setting that `prepare` makes."""
    try:
        dist.distributed_c10d._abort_process_group(group)
    except Exception as error:
        log.warning("could not abort the NCCL group of this formation (%s); its kernels end by themselves", error)


def prepare(backend: str) -> None:
    """Settings that must stand before the first NCCL group is made: an abort must not tear the survivor down."""
    if backend == "nccl":
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")


def choose_backend(asked: str, workers: int) -> str:
    """`auto` is nccl where each of this host's `workers` has a CUDA device (NCCL refuses to share one), else gloo."""
    if asked != "auto":
        return asked
    return "nccl" if torch.cuda.is_available() and torch.cuda.device_count() >= workers else "gloo"


def adopt(communicator: Communicator) -> dist.ProcessGroup:
    """Make a connected communicator torch's default group."""
    backend = communicator.backend
    assert backend is not None
    _register_backend()
    _adopting.append(backend)
    try:
        dist.init_process_group(BACKEND, store=dist.HashStore(), rank=communicator.rank, world_size=communicator.size)
    finally:
        _adopting.clear()
    return _world()


def stand_in(rank: int, size: int) -> None:
    """Until there is a formation, let torch have a default group of the replica's size, in which nothing can be sent.

    Device meshes and what is built on them ask it for this worker's rank.  Nothing happens if there is a default group.
    """
    if dist.is_initialized():
        return
    _register_backend()
    _adopting.append(_nobody())
    try:
        dist.init_process_group(BACKEND, store=dist.HashStore(), rank=rank, world_size=size)
    finally:
        _adopting.clear()
    _stand_in[:] = [_world()]


def _nobody() -> dist.ProcessGroupGloo:
    """A backend of this process alone."""
    return dist.ProcessGroupGloo(dist.HashStore(), 0, 1, datetime.timedelta(seconds=10))


def _world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def _register_backend() -> None:
    if BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, _adopted, extended_api=True, devices=["cpu"])


def _adopted(options: Any, _: Any) -> dist.ProcessGroupGloo:
    """What is under a process group: torch asks, with what it knows of the group."""
    if _adopting:
        return _adopting[-1]
    if not _standing:
        raise RuntimeError("a group on reknit's backend is made within a replica, while its formation stands")
    backend = None
    if options.group_size > 1:
        backend = _standing[-1].make_part(options.group_id, options.global_ranks_in_group).backend
    return backend if backend is not None else _nobody()


def form(
    replica: Replica,
    generation: int,
    rank: int,
    backend: str,
    connect: ConnectPart,
    nccl_store: Callable[[], dist.Store],
    device: torch.device,
) -> Formation:
    """Make the default group of a formation in `generation`.  Raises Interrupted."""
    identity = FormationId.of(replica)
    if _stand_in and dist.is_initialized() and dist.group.WORLD is _stand_in[0]:
        dist.destroy_process_group()
    _stand_in.clear()
    if dist.is_initialized():
        raise FormationError(
            "the script has made torch's default process group by itself, but under reknit it is the replica's: drop "
            "dist.init_process_group, and make other groups with dist.new_group"
        )
    prefix = f"formation/{generation}/{replica.slot}"
    if len(replica.places) == 1:  # nobody to talk to, but pipelines and scripts expect a default group
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        return Formation(identity, rank, _world(), None)
    if backend == "nccl":
        try:
            store = dist.PrefixStore(prefix, nccl_store())
            dist.init_process_group("nccl", store=store, rank=rank, world_size=len(replica.places), device_id=device)
        except RuntimeError as error:  # torch's own errors of stores and backends are RuntimeErrors
            raise Interrupted(f"NCCL's group {prefix} was not built: {error}", group=prefix, rank=rank) from None
        return Formation(identity, rank, _world(), None)
    communicator = connect(prefix, range(len(replica.places)), None)
    try:
        formation = Formation(identity, rank, adopt(communicator), communicator, connect)
    except BaseException:
        communicator.close()
        raise
    _standing[:] = [formation]
    return formation
