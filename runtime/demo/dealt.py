"""Prints which samples belong to each step: `python -m reknit.runtime.demo.dealt LENGTH GLOBAL MICRO SEED STEPS`.

A program of its own, because the sampler needs torch, and the demo, like the agent, does without.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from reknit.runtime.data import Sampler


class _Nobody:
    """A view for a sampler that deals nothing out, and is only asked what belongs to a step."""

    replicas, replica = 1, 0

    def begin_shard(self, indices: Sequence[int], is_last: bool) -> None:
        return None

    def consumed(self, indices: Sequence[int]) -> None:
        return None


def main(words: Sequence[str]) -> None:
    """Print a list of lists: for each step, counted from 0, its samples."""
    length, global_batch, micro_batch, seed, steps = map(int, words)
    sampler = Sampler(length, global_batch, micro_batch, seed, _Nobody())
    print(json.dumps([sampler.samples(step) for step in range(steps)]))


if __name__ == "__main__":
    main(sys.argv[1:])
