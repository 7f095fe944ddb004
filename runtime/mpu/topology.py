"""Topologies as DeepSpeed and GPT-NeoX spell them: a `Layout` with their queries and their names for ranks.

No rank is computed here; every answer is one of `reknit.rendezvous.layout`.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from typing import Any, Protocol

from reknit.rendezvous.errors import LayoutError
from reknit.rendezvous.layout import Layout, default_pipe_data_layout


class AnyTopology(Protocol):
    """What is needed of a topology: DeepSpeed's own classes have it, too."""

    def get_axis_names(self) -> Sequence[str]:
        """The axes, slowest first."""

    def get_dim(self, axis: str) -> int:
        """How many places there are on an axis."""


class ProcessTopology:
    """Ranks numbered by named axes, slowest first: `ProcessTopology(["pipe", "data"], [2, 4])`.

    Every question about an axis, a rank or a coordinate that it does not have raises `LayoutError` (a ValueError),
    where the reference raises five different types, except where the reference has an answer: a dimension of 0, no
    lists, no match.
    """

    def __init__(self, axes: Sequence[str], dims: Sequence[int]) -> None:
        if len(axes) != len(dims):
            raise LayoutError(f"{len(axes)} axes have {len(dims)} sizes; give each axis one")
        self.layout = Layout(tuple(zip(axes, dims, strict=True)))
        self.axes = list(axes)
        self.dims = list(dims)
        self.ProcessCoord = namedtuple("ProcessCoord", self.axes)  # type: ignore[misc]  # the axes are not known before

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProcessTopology) and self.layout == other.layout

    def __hash__(self) -> int:
        return hash(self.layout)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={size}' for name, size in self.layout.axes)})"

    def world_size(self) -> int:
        """How many ranks there are."""
        return self.layout.world_size

    def get_axis_names(self) -> list[str]:
        """The axes, slowest first."""
        return list(self.axes)

    def get_dim(self, axis: str) -> int:
        """How many places there are on an axis; 0 for an axis that there is not."""
        return dict(self.layout.axes).get(axis, 0)

    def get_rank(self, **coordinate: int) -> int:
        """The rank at a whole coordinate."""
        return self.layout.rank(**coordinate)

    def get_coord(self, rank: int) -> Any:
        """The coordinate of a rank, a named tuple with the axes' names."""
        return self.ProcessCoord(**self.layout.coordinate(rank))

    def get_rank_repr(
        self, rank: int, omit_axes: Sequence[str] = ("data", "pipe"), inner_sep: str = "_", outer_sep: str = "-"
    ) -> str:
        """A rank by its coordinate, without `omit_axes`: part of a checkpoint's file name, such as "model_00"."""
        places = self.layout.coordinate(rank).items()
        return outer_sep.join(f"{name}{inner_sep}{place:02d}" for name, place in places if name not in omit_axes)

    def get_axis_comm_lists(self, axis: str) -> list[list[int]]:
        """The groups along an axis, in creation order; none for an axis that there is not."""
        return [list(group) for group in self.layout.groups(axis)] if axis in self.axes else []

    def filter_match(self, **places: int) -> list[int]:
        """The ranks that are at these places, ascending."""
        if any(axis in self.axes and not 0 <= place < self.get_dim(axis) for axis, place in places.items()):
            return []
        return list(self.layout.ranks(**places))

    def get_axis_list(self, axis: str, idx: int) -> list[int]:
        """The ranks that are at place `idx` of an axis, ascending."""
        return self.filter_match(**{axis: idx})


class PipeDataParallelTopology(ProcessTopology):
    """Stages × replicas; the replicas of a stage are neighbours."""

    def __init__(self, num_pp: int, num_dp: int) -> None:
        super().__init__(["pipe", "data"], [num_pp, num_dp])


class PipeModelDataParallelTopology(ProcessTopology):
    """Stages × replicas × tensor parallel; the ranks that share a layer are neighbours."""

    def __init__(self, num_pp: int, num_mp: int, num_dp: int) -> None:
        super().__init__(["pipe", "data", "model"], [num_pp, num_dp, num_mp])


def topology_of(layout: Layout) -> ProcessTopology:
    """The topology with a layout's axes."""
    return ProcessTopology([name for name, _ in layout.axes], [size for _, size in layout.axes])


def default_topology(world_size: int) -> ProcessTopology:
    """The shape that the reference chooses when it is told none: prime factors dealt to pipe and data in turn."""
    return topology_of(default_pipe_data_layout(world_size))


def adopt(topology: AnyTopology) -> ProcessTopology:
    """A topology as one of ours."""
    if isinstance(topology, ProcessTopology):
        return topology
    names = list(topology.get_axis_names())
    return ProcessTopology(names, [topology.get_dim(name) for name in names])
