"""An elastic job behind the accessors.

Data and IO groups are objects of the job: they stay valid, and act on the communicator of the present generation.  Pipe
and model groups belong to a formation.  Nothing is kept here: each answer is about the present.
"""

from __future__ import annotations

from typing import Any, Protocol

from reknit.rendezvous.errors import LayoutError
from reknit.rendezvous.layout import Layout, job_layout, seen_from
from reknit.rendezvous.records import Coordinate
from reknit.runtime import job as jobs
from reknit.runtime.mpu.topology import ProcessTopology
from reknit.runtime.mpu.world import NON_MEMBER


class JobLike(Protocol):
    """What is needed of a job; `Job` of `reknit.join()` is one."""

    @property
    def coordinate(self) -> Coordinate:
        """This worker's place within its replica."""

    @property
    def pipeline_size(self) -> int:
        """How many stages a replica has."""

    @property
    def model_size(self) -> int:
        """How many workers share a stage."""

    @property
    def replica(self) -> int:
        """The index of this worker's replica among those present."""

    @property
    def replicas(self) -> int:
        """How many replicas are present."""

    @property
    def data_group(self) -> Any:
        """The process group across the replicas."""

    @property
    def io_group(self) -> Any:
        """The process group of first and last stages; None for a worker that is not in it."""

    def replica_group(self, axis: str) -> Any:
        """The process group along `pipe` or `model` within the replica."""

    def reinit(self) -> None:
        """Have a generation that works."""


class ElasticJob:
    """The backing of a process that takes part in an elastic job."""

    elastic = True

    def __init__(self, job: JobLike) -> None:
        self.job = job

    @property
    def layout(self) -> Layout:
        """All ranks of the present generation."""
        return job_layout(self.job.replicas, self.job.pipeline_size, self.job.model_size)

    @property
    def rank(self) -> int:
        """This worker's rank in it."""
        return self.layout.rank(data=self.job.replica, **self.job.coordinate._asdict())

    def seen_along(self, axis: str) -> tuple[Layout, int]:
        """See `Backing`.  What lies within the replica is known before there is any other, so nothing waits for that.

        A script asks as it builds its model: an entry then would have it healed before anything is registered.
        """
        if axis == "data":
            return self.layout, self.rank
        job = self.job
        replica = job_layout(1, job.pipeline_size, job.model_size)
        return replica, replica.rank(data=0, **job.coordinate._asdict())

    def group(self, axis: str) -> Any:
        """See `Backing`."""
        if axis == "data":
            return self.job.data_group
        if axis == "io":
            group = self.job.io_group
            return NON_MEMBER if group is None else group
        return self.job.replica_group(axis)

    def source_rank(self, axis: str) -> int:
        """See `Backing`: within a job torch counts from this worker's replica on."""
        if axis != "data":
            layout, own = self.seen_along(axis)
            return layout.source_rank(own, axis)
        layout = self.layout
        return seen_from(layout, layout.source_rank(self.rank, axis), self.job.replica)

    def close(self) -> None:
        """Nothing here is made by this: the groups are the job's."""


def joined() -> JobLike | None:
    """The job of this process, None if it has not joined one."""
    return jobs.joined()


def check_sizes(job: JobLike, model: int, topology: ProcessTopology | None) -> None:
    """LayoutError unless a job has these sizes.  A topology's `data` size is not one that anybody can promise."""
    if model != job.model_size:
        raise LayoutError(f"model parallel size {model} is not the job's: start it with --model {model}")
    if topology is not None:
        check_pipeline(job, topology.get_dim("pipe") or 1)
        if (topology.get_dim("model") or 1) != model:
            raise LayoutError(f"{topology!r} has not the model parallel size {model} asked for; make them agree")


def check_pipeline(job: JobLike, pipe: int) -> None:
    """LayoutError unless a job has so many stages."""
    if pipe != job.pipeline_size:
        raise LayoutError(f"{pipe} pipeline stages are not the job's {job.pipeline_size}: start it with --pipe {pipe}")


def tell(args: Any, job: JobLike) -> None:
    """Set the arguments that a change of members changes to what is."""
    present = ElasticJob(job)
    args.data_group_size, args.world_size, args.rank = job.replicas, present.layout.world_size, present.rank
