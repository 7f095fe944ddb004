"""The names of the reference module that makes pipeline and data communicators out of command-line arguments.

`args` carries, as there, `world_size`, `rank`, `pipeline_group_size`, `data_group_size`, `dp_backend` and, for a static
world that is not initialised yet, `dist_url`.
"""

from __future__ import annotations

import logging
from typing import Any

import torch.distributed as dist

from reknit.rendezvous.errors import LayoutError
from reknit.rendezvous.layout import pipeline_layout
from reknit.runtime.communicator.communicator import check_data_backend
from reknit.runtime.mpu import accessors, elastic
from reknit.runtime.mpu.world import StaticWorld

log = logging.getLogger(__name__)


def init_communicators(args: Any) -> None:
    """Make pipelines of `args.pipeline_group_size` neighbouring ranks, and the data groups across them.

    In a process that has joined an elastic job they are the job's, and `args.world_size`, `args.rank` and
    `args.data_group_size` are set to what they are at present.  Else torch's default group is made at `args.dist_url`
    if there is none.  BackendRefused, LayoutError, AlreadyInitialized: before anything is touched.
    """
    job = elastic.joined()
    if job is not None:
        check_data_backend(args.dp_backend)
        elastic.check_pipeline(job, args.pipeline_group_size)
        accessors.install(elastic.ElasticJob(job))
        elastic.tell(args, job)
        return
    check_data_backend(args.dp_backend, rebuilt=False)
    layout = pipeline_layout(args.world_size, args.pipeline_group_size, args.data_group_size)
    accessors.check_uninitialized()
    if not dist.is_initialized():
        dist.init_process_group("gloo", init_method=args.dist_url, world_size=args.world_size, rank=args.rank)
    accessors.install(StaticWorld(layout.expect(dist.get_world_size()), {"data": args.dp_backend}))


def reinit_dp_communicator(args: Any) -> None:
    """Have a data communicator that works; pipelines are left alone.

    In an elastic job: if this worker's generation is over or its data group broken, leave it, wait for the plan with
    those who are there now, meet them, and come to the job's version of what is registered; `args.world_size`,
    `args.rank` and `args.data_group_size` then say what is.  If the generation stands there is nothing to do but that.
    The getters, and the group objects that they have returned, are about the new generation from then on.

    In a static world, nobody can come or go: the data groups of the same members are closed and made anew.

    BackendRefused for nccl, LayoutError for other sizes than those that stand: before anything is touched.
    """
    check_data_backend(args.dp_backend)
    backing = accessors.backing("data parallel group")
    if isinstance(backing, elastic.ElasticJob):
        elastic.check_pipeline(backing.job, args.pipeline_group_size)
        backing.job.reinit()
        elastic.tell(args, backing.job)
        return
    assert isinstance(backing, StaticWorld)
    asked = pipeline_layout(args.world_size, args.pipeline_group_size, args.data_group_size)
    if asked != backing.layout:
        raise LayoutError(
            f"a static world cannot change: it has {dict(backing.layout.axes)} and {dict(asked.axes)} was asked for. "
            "Members come and go in an elastic job: start it by reknit run, and call reknit.join() first"
        )
    backing.rebuild("data", args.dp_backend)
    log.info("the data communicator has been made anew")


def get_pipeline_parallel_comm() -> Any:
    """The process group of this pipeline."""
    return accessors.get_pipe_parallel_group()


def get_pipeline_parallel_rank() -> int:
    """This process's stage."""
    return accessors.get_pipe_parallel_rank()


def get_pipeline_parallel_world_size() -> int:
    """How many stages there are."""
    return accessors.get_pipe_parallel_world_size()


def get_data_parallel_comm() -> Any:
    """The process group of all that hold the same stage."""
    return accessors.get_data_parallel_group()


def to_global_rank(dp_rank: int) -> int:
    """The rank, among all ranks at present, of the member of this data group with this rank in it."""
    backing = accessors.backing("data parallel group")
    members = backing.layout.group_of(backing.rank, "data")
    if not 0 <= dp_rank < len(members):
        raise LayoutError(f"the data group has ranks 0 to {len(members) - 1}, not {dp_rank}")
    return members[dp_rank]
