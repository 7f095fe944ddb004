"""One rank's view of a topology, with the names of DeepSpeed's grid.  Pure: it makes no process groups."""

from __future__ import annotations

from reknit.rendezvous.layout import Layout
from reknit.runtime.mpu.topology import AnyTopology, ProcessTopology, adopt, default_topology


class PipelineParallelGrid:
    """Where `rank` is in a topology of `world_size` ranks.

    "Model parallel" is DeepSpeed's word here: all of one replica, stages × tensor parallel; tensor parallel alone is
    "slice".  Raises `LayoutError` if the topology has not `world_size` ranks.
    """

    def __init__(self, rank: int, world_size: int, topology: AnyTopology | None = None) -> None:
        self._topology = adopt(topology) if topology is not None else default_topology(world_size)
        self.layout: Layout = self._topology.layout.expect(world_size)
        self.global_rank = rank
        self.layout.coordinate(rank)
        self._replica = tuple(axis for axis in ("pipe", "model") if axis in self.layout.names)

    def topology(self) -> ProcessTopology:
        """The topology."""
        return self._topology

    def groups(self, kind: str) -> list[list[int]]:
        """All groups of a kind, in creation order: `data`, `pipe`, `slice`, `model` or `p2p`.

        `p2p` are the pairs of a rank and the next in its pipeline.
        """
        if kind == "p2p":
            return [[rank, self.layout.next_rank(rank, "pipe")] for rank in self.layout.ranks()]
        if kind == "slice" and "model" not in self.layout.names:
            return [[rank] for rank in self.layout.ranks()]
        axes = {"data": ("data",), "pipe": ("pipe",), "slice": ("model",), "model": self._replica}[kind]
        return [list(group) for group in self.layout.groups(*axes)]

    def get_global_rank(self) -> int:
        """This rank."""
        return self.global_rank

    def get_stage_id(self) -> int:
        """This rank's stage."""
        return self.layout.position(self.global_rank, "pipe")

    def get_data_parallel_id(self) -> int:
        """This rank's replica."""
        return self.layout.position(self.global_rank, "data")

    def get_pipe_parallel_rank(self) -> int:
        """This rank's stage."""
        return self.get_stage_id()

    def get_pipe_parallel_world_size(self) -> int:
        """The number of stages."""
        return self.layout.size("pipe")

    def get_data_parallel_rank(self) -> int:
        """This rank's replica."""
        return self.get_data_parallel_id()

    def get_data_parallel_world_size(self) -> int:
        """The number of replicas."""
        return self.layout.size("data")

    def get_data_parallel_group_ranks(self) -> list[int]:
        """The ranks that hold the same part of the model."""
        return list(self.layout.group_of(self.global_rank, "data"))

    def get_pipe_parallel_group_ranks(self) -> list[int]:
        """The ranks of this rank's pipeline."""
        return list(self.layout.group_of(self.global_rank, "pipe"))

    def get_model_parallel_rank(self) -> int:
        """This rank's place within its replica."""
        return self.layout.position(self.global_rank, *self._replica)

    def get_model_parallel_world_size(self) -> int:
        """How many ranks hold one replica."""
        return self.layout.size(*self._replica)

    def get_model_parallel_group_ranks(self) -> list[int]:
        """The ranks of this rank's replica."""
        return list(self.layout.group_of(self.global_rank, *self._replica))

    def get_slice_parallel_rank(self) -> int:
        """This rank's place among those that share its stage."""
        return self.layout.position(self.global_rank, "model") if "model" in self.layout.names else 0

    def get_slice_parallel_world_size(self) -> int:
        """How many ranks share a stage."""
        return self.layout.size("model") if "model" in self.layout.names else 1

    def get_slice_parallel_group_ranks(self) -> list[int]:
        """The ranks that share this rank's stage."""
        if "model" not in self.layout.names:
            return [self.global_rank]
        return list(self.layout.group_of(self.global_rank, "model"))

    @property
    def is_first_stage(self) -> bool:
        """Whether this rank is in the first stage."""
        return self.layout.is_first(self.global_rank, "pipe")

    @property
    def is_last_stage(self) -> bool:
        """Whether this rank is in the last stage."""
        return self.layout.is_last(self.global_rank, "pipe")

    def stage_to_global(self, stage_id: int, **places: int) -> int:
        """The rank of a stage that is, but for `places`, where this rank is."""
        return self.layout.rank(**{**self.layout.coordinate(self.global_rank), **places, "pipe": stage_id})
