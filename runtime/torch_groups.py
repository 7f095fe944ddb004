"""A job's process groups, as torch takes them: across replicas, at both ends of all pipelines, within the replica."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.distributed.device_mesh import DeviceMesh

from reknit.rendezvous.errors import LayoutError
from reknit.rendezvous.layout import Layout, job_layout, seen_from
from reknit.runtime.attempt import AttemptError
from reknit.runtime.communicator.collectives import Collectives
from reknit.runtime.communicator.communicator import Communicator
from reknit.runtime.communicator.paired import Paired
from reknit.runtime.elastic_group import ElasticGroup, register
from reknit.runtime.errors import CommunicatorError, Interrupted
from reknit.runtime.recovery.formation import stand_in
from reknit.runtime.recovery.groups import Groups
from reknit.runtime.replica_group import ReplicaGroup
from reknit.runtime.whereabouts import Whereabouts

if TYPE_CHECKING:
    from reknit.runtime.job import Job


WITHIN = ("pipe", "model")  # the axes within a replica


class _Present:
    """Where an elastic group's operations go: to this worker alone before its first generation, then to the present's.

    Alone, since nobody else is at the same point of a script that has just started: what a constructor compares or
    broadcasts then is made equal by healing.  A group within the replica has its `place` then already, and parts of the
    model cannot be made equal: there an operation is refused until then.
    """

    def __init__(
        self, job: Job, name: str, choose: Callable[[Groups], Collectives], place: tuple[int, int] = (0, 1)
    ) -> None:
        self._job, self._choose = job, choose
        self._alone = Communicator(None, name=name, rank=0, size=1)
        self._name = name
        self._last = place
        self._of: Groups | None = None
        self.failure: Interrupted | None = None  # what was passed over in this attempt
        self._chosen: Collectives = self._alone

    def communicator(self) -> Collectives:
        """The present one; Interrupted between generations."""
        groups = self._job.recovery.groups
        if groups is None:
            if not self._job.built and self._last[1] > 1:
                raise CommunicatorError(
                    f"group {self._name}: nothing can be sent in it before the first attempt, when the replica stands: "
                    "let every worker make the whole model alike and keep its part (src_data_rank=None)"
                )
            if not self._job.built:
                return self._alone
            raise Interrupted(
                f"group {self._name}: this worker is between two generations; the next attempt brings it to the next",
                group=self._name,
                rank=self._last[0],
            )
        if groups is not self._of:
            self._chosen = self._choose(groups)
            self._of, self._last = groups, (self._chosen.rank, self._chosen.size)
        return self._chosen

    def torch_group(self) -> Any:
        """torch's own group of the present formation, if it is no communicator: NCCL's."""
        groups = self._job.recovery.groups
        formation = groups.formation if groups is not None else None
        if formation is None or formation.communicator is not None or len(formation.identity.names) == 1:
            return None
        return formation.lines.get(self._name)

    def place(self) -> tuple[int, int]:
        """Rank and size at present, or when last there was a communicator."""
        return self._last

    def renew(self, rank: int, size: int) -> None:
        """A generation has been entered, in which this is the place."""
        self._last = rank, size

    def pass_over(self, error: Interrupted) -> bool:
        """Within an attempt a failure may wait for `check`."""
        if self._job._in_attempt and self.failure is None:
            self.failure = error.renewed()
        return self._job._in_attempt


class TorchGroups:
    """The groups of one job.  Each is made when it is first asked for, and the same object ever after.

    torch knows their members by numbers that begin at this replica: see `layout.seen_from`.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._made: dict[str, tuple[ElasticGroup, _Present]] = {}
        self._meshes: dict[str, DeviceMesh] = {}

    @property
    def data(self) -> ElasticGroup:
        """All that have this worker's coordinate."""
        return self._get("data", _data_of)

    @property
    def ends(self) -> ElasticGroup | None:
        """First and last stage at model 0 of all replicas; None for others.  With one stage, the data group."""
        job = self._job
        if job.pipeline_size == 1:
            return self.data
        if job.coordinate.model or job.coordinate.pipe not in (0, job.pipeline_size - 1):
            return None
        return self._get("ends", lambda groups: Paired(_data_of(groups), job.recovery.connect_ends(groups)))

    def mesh(self, axis: str) -> DeviceMesh:
        """Over the workers along `pipe` or `model` within the replica: the same object ever after.  LayoutError."""
        _check_within(axis)
        if axis not in self._meshes:
            group: Any = self._get(axis, lambda groups: _along(groups, axis))
            self._meshes[axis] = DeviceMesh.from_group(group, self._job.device.type, mesh_dim_names=(axis,))
        return self._meshes[axis]

    def renew(self, groups: Groups) -> None:
        """Tell torch who is in the groups now.  After each entry, since it forgets all when a formation ends."""
        layout = job_layout(len(groups.peers), self._job.pipeline_size, self._job.model_size)
        own = layout.rank(data=groups.data_rank, **self._job.coordinate._asdict())
        for kind, (group, present) in self._made.items():
            members = _members(layout, kind, own)
            present.renew(members.index(own), len(members))
            register(group, {seen_from(layout, rank, groups.data_rank): i for i, rank in enumerate(members)})

    def begin_attempt(self) -> None:
        """Nothing has failed yet."""
        for _, present in self._made.values():
            present.failure = None

    def check(self, *, within: bool = False) -> None:
        """Raise what was passed over in this attempt; `within`: in groups within the replica only.

        Before anything is prepared: whoever is prepared counts as having the right gradients (PROTOCOL.md, rule 9).
        """
        for group, present in self._made.values():
            if present.failure is not None and not (within and group.across_replicas):
                raise present.failure.renewed()

    def _get(self, kind: str, choose: Callable[[Groups], Collectives]) -> ElasticGroup:
        if kind not in self._made:
            job = self._job
            within = kind in WITHIN
            # Before the first generation this worker's replica is all that there is, or it is alone.
            layout, own = job_layout(1, job.pipeline_size, job.model_size), job._coordinate_index
            members = layout.group_of(own, kind) if within else (own,)
            present = _Present(job, kind, choose, (members.index(own), len(members)))
            group = ReplicaGroup(f"reknit_{kind}", present) if within else ElasticGroup(f"reknit_{kind}", present)
            self._made[kind] = group, present
            groups = job.recovery.groups
            if groups is not None:
                self.renew(groups)
            else:
                stand_in(own, layout.world_size)  # device meshes and DistributedDataParallel ask torch's default group
                register(self._made[kind][0], {rank: place for place, rank in enumerate(members)})
        return self._made[kind][0]


class Grouped(Whereabouts):
    """The part of a job that hands out its process groups."""

    torch_groups: TorchGroups
    _in_attempt: bool

    @property
    def data_group(self) -> ElasticGroup:
        """The process group of all that hold this worker's coordinate: one object, whoever comes or goes.

        Whatever takes a group in torch takes it.  Its operations act on the present generation; one that a change of
        members ends raises Interrupted, which an attempt swallows: so use it in an attempt.  Until this worker has
        entered its first generation it is alone in it.  torch's DistributedDataParallel over it needs
        `find_unused_parameters=True`, as it orders its gradients otherwise in a process that has just started, and
        `no_sync()` for all shards but the last (`shard.is_last`); it averages: multiply the loss by `job.replicas`.

        Used before the step's work within the replica is done, it can cost the replica its own groups as well when
        members change: they are made anew then.  Where that matters, use it last.
        """
        return self.torch_groups.data

    @property
    def io_group(self) -> ElasticGroup | None:
        """First and last stage (at model 0) of all replicas, likewise; None for a worker that is in neither.

        With several stages it has barrier, broadcast, reduce, all_reduce and all_gather.
        """
        return self.torch_groups.ends

    def replica_group(self, axis: str) -> Any:
        """The process group along `pipe` or `model` within the replica.  It lives as long as the formation.

        Waits, if need be, until this worker is in a generation.  Raises LayoutError for another axis.
        """
        _check_within(axis)
        self._present()
        formation = self.recovery.formation
        assert formation is not None
        return formation.line(axis)

    def replica_mesh(self, axis: str = "model") -> DeviceMesh:
        """The device mesh along `model` or `pipe` within the replica, for tensor parallelism and FSDP2.

        One object, whatever becomes of the replica: make it, and the model on it, before the first attempt.  Nothing
        can be sent then: every worker makes the whole model alike (by one seed) and keeps its part, for which torch's
        functions have `src_data_rank=None`.  In an attempt its operations act on the present formation; one that a
        change of members ends raises Interrupted, but in a backward pass, where the attempt's `commit` raises it.
        Raises LayoutError for another axis.
        """
        return self.torch_groups.mesh(axis)

    def reinit(self) -> None:
        """Leave this generation if it is over, broken or no longer the newest, and enter the present one.

        Nothing happens if it stands.  A training loop of attempts does this by itself; AttemptError within one.
        """
        if self._in_attempt:
            raise AttemptError("an attempt ends by itself when members change: call job.reinit between two, or never")
        groups = self.recovery.groups
        if groups is not None:
            assert groups.data is not None
            if groups.urgent or groups.data.broken or self.recovery.known > groups.generation:
                self.recovery.leave(Interrupted("the script reinits", group=groups.data.name, rank=groups.data_rank))
        self._present()


def _check_within(axis: str) -> None:
    """LayoutError for an axis that does not lie within the replica."""
    if axis not in WITHIN:
        raise LayoutError(
            f"{axis!r} is no axis within a replica, as {' and '.join(WITHIN)} are: for the group across the replicas "
            "take job.data_group or job.io_group"
        )


def _data_of(groups: Groups) -> Collectives:
    assert groups.data is not None
    return groups.data


def _along(groups: Groups, axis: str) -> Collectives:
    """The present formation's communicator along an axis; of this worker alone if it is alone."""
    formation = groups.formation
    assert formation is not None
    under = formation.under.get(axis)
    return under if under is not None else Communicator(None, name=axis, rank=0, size=1)


def _members(layout: Layout, kind: str, own: int) -> tuple[int, ...]:
    if kind in ("data", *WITHIN):
        return layout.group_of(own, kind)
    members = layout.io_group_of(own)
    assert members is not None
    return members
