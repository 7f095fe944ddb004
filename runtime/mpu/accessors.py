"""The names of the reference modules that initialise by a model size, with or without a topology.

One process, one state: what `initialize_model_parallel` has made, and the overrides of the `set_` functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from reknit.rendezvous.errors import LayoutError
from reknit.rendezvous.layout import Layout, model_layout
from reknit.runtime.mpu import elastic
from reknit.runtime.mpu.errors import AlreadyInitialized, NotInitialized
from reknit.runtime.mpu.overrides import Override, Overrides
from reknit.runtime.mpu.topology import AnyTopology, ProcessTopology, adopt, topology_of
from reknit.runtime.mpu.world import Backing, StaticWorld


@dataclass(frozen=True)
class _Initialized:
    backing: Backing
    topology: ProcessTopology | None
    fp32_allreduce: bool


_initialized: _Initialized | None = None
_overrides = Overrides()


def initialize_model_parallel(
    model_parallel_size: int,
    topology: AnyTopology | None = None,
    fp32_allreduce: bool = False,
    *,
    clamp: bool = False,
    timeout: timedelta | None = None,
    job: elastic.JobLike | None = None,
) -> None:
    """Make the data, model and, with a topology, pipe and IO groups, on every rank alike.

    In a process that has called `reknit.join()` (or with `job`) they are the elastic job's: the sizes must be its
    `--model` and `--pipe`, how many replicas there are is the plan's business, and a topology's `data` size and the
    order of its axes do not matter.  Else torch's default group must stand, and a topology must have its world size.
    `clamp` cuts a `model_parallel_size` above the world size down to it.  `timeout`: of the groups' operations in a
    static world.

    LayoutError (a ValueError) for sizes that cannot be, AlreadyInitialized, NotInitialized without torch's default
    group: before anything is touched.
    """
    check_uninitialized()
    joined = job if job is not None else elastic.joined()
    adopted = adopt(topology) if topology is not None else None
    if joined is not None:
        elastic.check_sizes(joined, model_parallel_size, adopted)
        _install(elastic.ElasticJob(joined), adopted, fp32_allreduce)
        return
    if not dist.is_initialized():
        raise NotInitialized(
            "torch has no default process group: call torch.distributed.init_process_group first, or reknit.join() to "
            "take part in an elastic job"
        )
    layout = _static_layout(dist.get_world_size(), model_parallel_size, adopted, clamp)
    _install(StaticWorld(layout, {}, timeout), adopted, fp32_allreduce)


def _static_layout(world_size: int, model: int, topology: ProcessTopology | None, clamp: bool) -> Layout:
    plain = model_layout(world_size, model, clamp=clamp)
    if topology is None:
        return plain
    layout = topology.layout.expect(world_size, model=plain.size("model"))
    if "data" not in layout.names:
        raise LayoutError(f"{topology!r} has no axis 'data'; add it, of size 1 if need be")
    return layout if "model" in layout.names else Layout((*layout.axes, ("model", 1)))


def _install(backing: Backing, topology: ProcessTopology | None, fp32_allreduce: bool) -> None:
    global _initialized
    _initialized = _Initialized(backing, topology, fp32_allreduce)


def install(backing: Backing, topology: ProcessTopology | None = None) -> None:
    """Put behind the accessors what another initialisation has made.  AlreadyInitialized if something is there."""
    check_uninitialized()
    _install(backing, topology, False)


def check_uninitialized() -> None:
    """AlreadyInitialized if something is behind the accessors."""
    if _initialized is not None:
        raise AlreadyInitialized("the groups stand already: call destroy_model_parallel before they are made anew")


def backing(what: str) -> Backing:
    """What is behind the accessors.  NotInitialized, saying that `what` is not there yet."""
    if _initialized is None:
        raise NotInitialized(f"there is no {what} yet: call initialize_model_parallel first")
    return _initialized.backing


def destroy_model_parallel() -> None:
    """Close all groups that were made here and forget the overrides.  Idempotent.

    The groups of an elastic job are the job's, and stay.
    """
    global _initialized
    was, _initialized = _initialized, None
    _overrides.clear()
    if was is not None:
        was.backing.close()


def model_parallel_is_initialized() -> bool:
    """Whether `initialize_model_parallel` has been called, and `destroy_model_parallel` not since."""
    return _initialized is not None


def is_initialized() -> bool:
    """`model_parallel_is_initialized`, shorter."""
    return model_parallel_is_initialized()


def is_unitialized() -> bool:
    """The contrary of `model_parallel_is_initialized`, spelled as in the reference."""
    return not model_parallel_is_initialized()


def is_uninitialized() -> bool:
    """The contrary of `model_parallel_is_initialized`."""
    return not model_parallel_is_initialized()


def get_topology() -> ProcessTopology | None:
    """The topology given, or None.  In an elastic job: data × pipe × model of the present generation, if one was."""
    if _initialized is None or _initialized.topology is None:
        return None
    if _initialized.backing.elastic:
        return topology_of(_initialized.backing.layout)
    return _initialized.topology


def get_fp32_allreduce() -> bool:
    """Whether the caller wanted gradients to be reduced in 32 bits: what was given, whatever the sizes."""
    backing("choice of fp32_allreduce")
    assert _initialized is not None
    return _initialized.fp32_allreduce


# One axis each: the group, this process's rank in it, its size, and its first rank as torch's functions take it.


def get_data_parallel_group() -> Any:
    """The process group of all that hold the same part of the model.  Elastic: it stays valid throughout."""
    return backing("data parallel group").group("data")


def get_data_parallel_rank() -> int:
    """This process's rank in its data group."""
    return _position("data")


def get_data_parallel_world_size() -> int:
    """How many replicas there are."""
    return _size("data")


def get_data_parallel_src_rank() -> int:
    """The first rank of the data group: what `broadcast(…, src=…, group=…)` takes."""
    return backing("data parallel group").source_rank("data")


def get_pipe_parallel_group() -> Any:
    """The process group of this pipeline.  Elastic: it lives as long as its formation, so ask anew in each attempt."""
    return backing("pipe parallel group").group("pipe")


def get_pipe_parallel_rank() -> int:
    """This process's stage."""
    return _position("pipe")


def get_pipe_parallel_world_size() -> int:
    """How many stages there are."""
    return _size("pipe")


def get_pipe_parallel_src_rank() -> int:
    """The first rank of the pipe group."""
    found = backing("pipe parallel group")
    if not found.elastic:
        found.group("pipe")  # NotInitialized if there is none
    return found.source_rank("pipe")


def get_io_parallel_group() -> Any:
    """First and last stage at model 0, in all replicas; the data group if there is one stage.

    A process that is not in it gets torch's value for that, with which torch's functions do nothing.
    """
    return backing("IO parallel group").group("io")


def get_model_parallel_group() -> Any:
    """The process group of all that share a stage.  Elastic: it lives as long as its formation."""
    return backing("model parallel group").group("model")


def get_model_parallel_rank() -> int:
    """This process's rank in its model group, or the override.  LayoutError if the overrides contradict each other."""
    if _overrides.rank is None:
        return _position("model")
    return _overrides.checked_rank(get_model_parallel_world_size)


def get_model_parallel_world_size() -> int:
    """How many share a stage, or the override."""
    return _overrides.world_size if _overrides.world_size is not None else _size("model")


def get_model_parallel_src_rank() -> int:
    """The first rank of the model group.  Of the real one, whatever the overrides say."""
    return backing("model parallel group").source_rank("model")


def set_model_parallel_rank(rank: int | None) -> Override:
    """Override `get_model_parallel_rank`, until None is set or the groups are destroyed, or for a `with` block.

    LayoutError for a rank below 0, or not below the size if that is known.
    """
    return _overrides.set_rank(rank, get_model_parallel_world_size if _known_size() else None)


def set_model_parallel_world_size(world_size: int | None) -> Override:
    """Override `get_model_parallel_world_size`, likewise.  LayoutError for a size below 1."""
    return _overrides.set_world_size(world_size)


def _known_size() -> bool:
    return _initialized is not None or _overrides.world_size is not None


# The same, under the names of newer code.

get_tensor_model_parallel_group = get_model_parallel_group
get_tensor_model_parallel_rank = get_model_parallel_rank
get_tensor_model_parallel_world_size = get_model_parallel_world_size
get_tensor_model_parallel_src_rank = get_model_parallel_src_rank
set_tensor_model_parallel_rank = set_model_parallel_rank
set_tensor_model_parallel_world_size = set_model_parallel_world_size


def _position(axis: str) -> int:
    layout, own = backing(f"{axis} parallel rank").seen_along(axis)
    _check_axis(layout, axis)
    return layout.position(own, axis)


def _size(axis: str) -> int:
    layout, _ = backing(f"{axis} parallel world size").seen_along(axis)
    _check_axis(layout, axis)
    return layout.size(axis)


def _check_axis(layout: Layout, axis: str) -> None:
    if axis not in layout.names:
        raise NotInitialized(f"this world has no axis {axis!r}: give initialize_model_parallel a topology with it")
