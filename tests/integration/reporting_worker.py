"""Training processes for test_worker_reports: data parallel, and now and then at something that takes long.

    python reporting_worker.py FOLDER

Forks one for each worker id that it reads, so that torch is imported once.  What a worker shall do next in the middle
of a step, or between two, lies in FOLDER/<worker id>.<where>: `sleep`, `long`; it does so until that file is gone.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import torch
import torch._dynamo
from torch import nn

import reknit

folder = Path(sys.argv[1])


def train(worker_id: str) -> None:
    os.environ["REKNIT_WORKER_ID"] = worker_id
    job = reknit.join()

    def obey(where: str) -> None:
        with suppress(FileNotFoundError):
            order = folder / f"{worker_id}.{where}"
            announced = job.long_phase("evaluation") if order.read_text() == "long" else nullcontext()
            with announced:
                while order.exists():
                    time.sleep(0.01)

    torch.set_num_threads(1)
    model = job.data_parallel(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = job.sampler(600, 6, 1)
    job.register(model=model, optimizer=optimizer)
    while job.step < 1_000_000:
        obey("between")
        with job.attempt() as attempt:
            for shard in data.shards(job.step):
                obey("forward")
                (model(torch.ones(len(shard), 2)).sum() * shard.weight).backward()
            time.sleep(0.01)
            attempt.commit(optimizer)


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead are gone at once
    for line in sys.stdin:
        if os.fork() == 0:
            train(line.strip())
            os._exit(0)


if __name__ == "__main__":
    main()
