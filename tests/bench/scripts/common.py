"""What all training scripts of the bench share: arguments, data, and the turns that they take."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from tests.bench.turns import Player

WIDTH = 256
SAMPLES = 4096


def parse() -> argparse.Namespace:
    """The arguments; `store` is given under stock torch only.  Also: one thread for each process's own work."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=Path, required=True)
    parser.add_argument("--system", required=True)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return parser.parse_args()


def init_stock(arguments: argparse.Namespace) -> None:
    """The default process group of a stock job."""
    dist.init_process_group(
        "gloo", init_method=f"file://{arguments.store}", rank=arguments.rank, world_size=arguments.ranks
    )


def player(arguments: argparse.Namespace) -> Player:
    """Tell the conductor that this process is ready to train."""
    return Player(arguments.turns, arguments.system)


def batches(size: int, part: int, parts: int) -> Iterator[torch.Tensor]:
    """What torch's DistributedSampler does for a stock script: shuffle each epoch, and take every `parts`-th batch."""
    while True:
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(0))
        yield from torch.split(order, size)[part::parts]
