"""A training script for torchrun and nothing else: each step sums a tensor over all and is noted in $TORCHRUN_NOTES."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    stop = Path(os.environ["TORCHRUN_STOP"])
    world = dist.get_world_size()
    with Path(os.environ["TORCHRUN_NOTES"]).open("a", buffering=1) as notes:
        done = False
        while not done:
            total = torch.tensor([1.0, float(stop.exists())])
            dist.all_reduce(total)
            assert total[0] == world
            done = bool(total[1] == world)  # all of them have seen it, so that nobody waits for the others' next step
            note = {"t": time.monotonic(), "pid": os.getpid(), "rank": dist.get_rank(), "world": world}
            notes.write(json.dumps({**note, "master_port": os.environ["MASTER_PORT"]}) + "\n")
            time.sleep(0.05)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
