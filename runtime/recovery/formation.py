"""The default process group of one replica: made once per formation, left alone while the formation stands.

With gloo it is an interruptible communicator underneath, registered as torch's default group through torch's own
extension point for backends, so that pipelines and everything else in torch find it.  With NCCL it is torch's own, on a
fresh prefix, aborted when its formation ends.
"""

from __future__ import annotations

import datetime
import itertools
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from reknit.rendezvous.errors import ReknitError
from reknit.rendezvous.records import Name, Replica
from reknit.runtime.communicator.communicator import Communicator
from reknit.runtime.errors import Interrupted

log = logging.getLogger(__name__)

BACKEND = "reknit"
_serial = itertools.count(1)
_adopting: list[dist.ProcessGroupGloo] = []


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
    """A replica's own groups.  `communicator` is what is under `group` with gloo and two members or more."""

    identity: FormationId
    rank: int
    group: dist.ProcessGroup | None
    communicator: Communicator | None
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
        if self.communicator is not None:
            self.communicator.interrupt()
        elif self.group is not None and len(self.identity.names) > 1:
            _abort(self.group)

    def end(self) -> None:
        """Interrupt, and take the groups apart."""
        self.interrupt()
        if self.group is not None and dist.is_initialized():  # an abort has taken it apart already
            dist.destroy_process_group()
        if self.communicator is not None:
            self.communicator.close()
        self.group = self.communicator = None

    def peers_gone(self) -> list[int]:
        """Members whose connections are closed; with NCCL that is not known."""
        return self.communicator.peers_gone() if self.communicator is not None else []

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


def _world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def _register_backend() -> None:
    if BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, _adopted, devices=["cpu"])


def _adopted(store: dist.Store, rank: int, size: int, timeout: datetime.timedelta) -> dist.ProcessGroupGloo:
    if not _adopting:
        raise RuntimeError("a group on reknit's backend is made by reknit, at each formation; use backend='gloo'")
    return _adopting[-1]


def form(
    replica: Replica,
    generation: int,
    rank: int,
    backend: str,
    connect: Callable[[str], Communicator],
    nccl_store: Callable[[], dist.Store],
    device: torch.device,
) -> Formation:
    """Make the groups of a formation in `generation`.  `connect` builds a gloo group.  Raises Interrupted."""
    identity = FormationId.of(replica)
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
    communicator = connect(prefix)
    try:
        return Formation(identity, rank, adopt(communicator), communicator)
    except BaseException:
        communicator.close()
        raise
