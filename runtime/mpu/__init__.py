"""Megatron-style accessors: `from reknit.runtime import mpu`, in the place of the module that the code came with.

They answer for either of two things, by the same names.  In a *static world* (the process has not called
`reknit.join()`) they make groups over torch's default group, once, as the reference modules do.  In an *elastic job*
they answer for the job's present generation; the data and IO groups that they return are objects that stay valid while
replicas come and go, and the pipe and model groups live as long as the replica's formation.

Migration.  1 is `comm_utils` of OpenChatKit and CocktailSGD, 2 the `mpu` of Megatron-LM (2019) and GLM, 3 that of
GPT-NeoX with DeepSpeed's topologies.

| reference | here | what differs |
| --- | --- | --- |
| 1 `init_communicators(args)` | the same | Refused before torch is touched. The size check raises LayoutError. A data size of 1 has a group, too. |
| 1 `reinit_dp_communicator(args)` | the same | Elastic: meets whoever is there now, and sets `args.world_size`, `.rank`, `.data_group_size` to what is; `dist_url` plays no part. Static: the same members only. nccl is refused before anything is touched, whatever the size. |
| 1 `get_data_parallel_comm()`, `get_pipeline_parallel_comm()` | the same | They are torch process groups: `dist.all_reduce(t, group=comm)` in place of `comm.all_reduce(t)`. |
| 1 `get_pipeline_parallel_rank()`, `…_world_size()` | the same | |
| 1 `comm.to_global_rank(r)` | `to_global_rank(r)` | |
| 2, 3 `initialize_model_parallel(size)` | the same | A size that is below 1, does not divide, or (2) exceeds the world raises LayoutError, a ValueError; `clamp=True` cuts it as 2 does. |
| 3 `initialize_model_parallel(size, topology, fp32_allreduce)` | the same | A topology that disagrees with the world or with `size` is refused. One without a `model` axis has one of size 1. Elastic: its `data` size and the order of its axes are not looked at. |
| 2, 3 `get_{model,data}_parallel_{group,rank,world_size}()` | the same | Before initialisation: NotInitialized, for an AssertionError. |
| 3 `get_pipe_parallel_{group,rank,world_size}()` | the same | Static: NotInitialized without a topology that has the axis. Elastic: always there. |
| 3 `get_tensor_model_parallel_…()` | the same | The same functions as `…model_parallel…`. |
| 2, 3 `get_model_parallel_src_rank()` | the same | The first rank of the real group, whatever the order of the axes and the overrides; for 3's `get_tensor_model_parallel_src_rank`, too, which returns the own place there. |
| 3 `get_data_parallel_src_rank()` | the same | Likewise. `get_pipe_parallel_src_rank()` is there, too. |
| 3 `get_io_parallel_group()` | the same | Who is not in it gets `dist.GroupMember.NON_GROUP_MEMBER`, not an error. |
| 3 `set_[tensor_]model_parallel_{rank,world_size}(n)` | the same | Range-checked; also `with set_model_parallel_rank(2): …`. |
| 2, 3 `model_parallel_is_initialized()`, 3 `is_unitialized()` | the same | `is_initialized()` and `is_uninitialized()` are there, too. |
| 3 `get_topology()` | the same | Elastic: data × pipe × model at present. |
| 3 `get_fp32_allreduce()` | the same | What was given, for a topology of one model rank, too. |
| 2, 3 `destroy_model_parallel()` | the same | Closes the groups (a job's own stay). Idempotent. |
| DeepSpeed `ProcessTopology`, `Pipe[Model]DataParallelTopology` | the same | Every error is a LayoutError. |
| DeepSpeed's shape for a world of which nothing is said | `default_topology(world_size)` | |
| DeepSpeed `PipelineParallelGrid(topology)` | `PipelineParallelGrid(rank, world_size, topology)` | Pure: it makes no groups. |

In an elastic job torch's default group is the replica, so `dist.get_rank()` is the rank within it and `job.rank` the
one among all.  A `…_src_rank()` is what torch's functions take as `src` with that group: torch's numbering begins at
the replica that asks, so it differs from process to process.  `…_rank()` and `…_world_size()` of the data axis wait,
if need be, until this worker is in a generation.
"""  # noqa: E501

from __future__ import annotations

from reknit.runtime.mpu.accessors import (
    destroy_model_parallel,
    get_data_parallel_group,
    get_data_parallel_rank,
    get_data_parallel_src_rank,
    get_data_parallel_world_size,
    get_fp32_allreduce,
    get_io_parallel_group,
    get_model_parallel_group,
    get_model_parallel_rank,
    get_model_parallel_src_rank,
    get_model_parallel_world_size,
    get_pipe_parallel_group,
    get_pipe_parallel_rank,
    get_pipe_parallel_src_rank,
    get_pipe_parallel_world_size,
    get_tensor_model_parallel_group,
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_src_rank,
    get_tensor_model_parallel_world_size,
    get_topology,
    initialize_model_parallel,
    is_initialized,
    is_uninitialized,
    is_unitialized,
    model_parallel_is_initialized,
    set_model_parallel_rank,
    set_model_parallel_world_size,
    set_tensor_model_parallel_rank,
    set_tensor_model_parallel_world_size,
)
from reknit.runtime.mpu.communicators import (
    get_data_parallel_comm,
    get_pipeline_parallel_comm,
    get_pipeline_parallel_rank,
    get_pipeline_parallel_world_size,
    init_communicators,
    reinit_dp_communicator,
    to_global_rank,
)
from reknit.runtime.mpu.errors import AlreadyInitialized, MpuError, NotInitialized
from reknit.runtime.mpu.grid import PipelineParallelGrid
from reknit.runtime.mpu.topology import (
    PipeDataParallelTopology,
    PipeModelDataParallelTopology,
    ProcessTopology,
    default_topology,
)

__all__ = [
    "AlreadyInitialized",
    "MpuError",
    "NotInitialized",
    "PipeDataParallelTopology",
    "PipeModelDataParallelTopology",
    "PipelineParallelGrid",
    "ProcessTopology",
    "default_topology",
    "destroy_model_parallel",
    "get_data_parallel_comm",
    "get_data_parallel_group",
    "get_data_parallel_rank",
    "get_data_parallel_src_rank",
    "get_data_parallel_world_size",
    "get_fp32_allreduce",
    "get_io_parallel_group",
    "get_model_parallel_group",
    "get_model_parallel_rank",
    "get_model_parallel_src_rank",
    "get_model_parallel_world_size",
    "get_pipe_parallel_group",
    "get_pipe_parallel_rank",
    "get_pipe_parallel_src_rank",
    "get_pipe_parallel_world_size",
    "get_pipeline_parallel_comm",
    "get_pipeline_parallel_rank",
    "get_pipeline_parallel_world_size",
    "get_tensor_model_parallel_group",
    "get_tensor_model_parallel_rank",
    "get_tensor_model_parallel_src_rank",
    "get_tensor_model_parallel_world_size",
    "get_topology",
    "init_communicators",
    "initialize_model_parallel",
    "is_initialized",
    "is_uninitialized",
    "is_unitialized",
    "model_parallel_is_initialized",
    "reinit_dp_communicator",
    "set_model_parallel_rank",
    "set_model_parallel_world_size",
    "set_tensor_model_parallel_rank",
    "set_tensor_model_parallel_world_size",
    "to_global_rank",
]
