"""A process for test_static_world: one of two ranks of plain torch.distributed, initialised by arguments.

static_world_worker.py RANK STORE_FILE
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from reknit.runtime import mpu

torch.set_num_threads(1)
rank, store = int(sys.argv[1]), sys.argv[2]
found: dict[str, Any] = {}


def summed(group: dist.ProcessGroup) -> float:
    value = torch.tensor([float(rank + 1)])
    dist.all_reduce(value, group=group)
    return value.item()


args = SimpleNamespace(
    world_size=2, rank=rank, pipeline_group_size=1, data_group_size=2, dp_backend="gloo", dist_url=f"file://{store}"
)
mpu.init_communicators(args)
first, pipeline = mpu.get_data_parallel_comm(), mpu.get_pipeline_parallel_comm()
found["first"] = summed(first)
for _ in range(3):
    mpu.reinit_dp_communicator(args)
found["again"] = [summed(mpu.get_data_parallel_comm()), mpu.get_data_parallel_comm() is first]
found["pipeline"] = [summed(pipeline), mpu.get_pipeline_parallel_comm() is pipeline]
mpu.destroy_model_parallel()

mpu.initialize_model_parallel(1, mpu.PipeModelDataParallelTopology(num_pp=2, num_mp=1, num_dp=1))
found["topology"] = [
    summed(group())
    for group in (
        mpu.get_data_parallel_group,
        mpu.get_pipe_parallel_group,
        mpu.get_io_parallel_group,
        mpu.get_model_parallel_group,
    )
]
source = torch.tensor([float(rank)])
dist.broadcast(source, src=mpu.get_pipe_parallel_src_rank(), group=mpu.get_pipe_parallel_group())
found["source"] = source.item()
mpu.destroy_model_parallel()
dist.destroy_process_group()
print(json.dumps(found), flush=True)
