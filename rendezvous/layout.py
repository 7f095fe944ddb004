"""Axes and their order → rank groups and coordinates; every rank formula of reknit is here and nowhere else.

A `Layout` is a mixed-radix numbering: its axes are written slowest first, so in `Layout.of(data=3, pipe=2, model=1)`
neighbouring ranks differ in `model`, and a whole replica (all pipe × model) is one contiguous run of ranks.

Whatever axes are asked for, a group is the set of ranks that agree in all the other axes.  Ranks in a group ascend, and
groups ascend by their first rank.  Every rank computes the same tuples, so all can create them in that order.

Pure: no torch, no input or output.  Whatever cannot be a layout raises `LayoutError` before anything is touched.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from reknit.rendezvous.errors import LayoutError

Group = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """A numbering of `world_size` ranks, from `rank_offset` on, by named axes.

    `axes` are (name, size) pairs, slowest first; any iterable of pairs is accepted.  A name is an identifier and occurs
    once; a size is at least 1.  Ranks and coordinates count from 0 (ranks from `rank_offset`).

    Raises `LayoutError` for axes that cannot be, and in every query for a name, rank or coordinate it does not have.
    """

    axes: tuple[tuple[str, int], ...]
    rank_offset: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", _checked_axes(self.axes))
        _check_integer("rank_offset", self.rank_offset, least=0)

    @classmethod
    def of(cls, **sizes: int) -> Layout:
        """Build from sizes, slowest axis first: `Layout.of(pipe=2, data=4, model=2)`."""
        return cls(tuple(sizes.items()))

    @classmethod
    def from_order(cls, order: str, sizes: Mapping[str, int], rank_offset: int = 0) -> Layout:
        """Build from an order string with the fastest axis leftmost, such as "tp-cp-ep-dp-pp".

        Every axis of `order` needs a size.  An axis of size 1 may be left out of `order`; it is put at the slow end.
        """
        names = order.split("-")
        unsized = [name for name in names if name not in sizes]
        if unsized:
            raise LayoutError(
                f"order {order!r} names {', '.join(map(repr, unsized))}, which has no size (sizes: {dict(sizes)}); "
                "correct the name or give it a size"
            )
        for name, size in sizes.items():
            if name not in names:
                if size != 1:
                    raise LayoutError(f"axis {name!r} has size {size} but order {order!r} leaves it out; add it there")
                names.append(name)
        return cls(tuple((name, sizes[name]) for name in reversed(names)), rank_offset)

    # The shape.

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The axes' names, slowest first."""
        return tuple(name for name, _ in self.axes)

    @property
    def order(self) -> str:
        """The axes' names as an order string, fastest first: what `from_order` reads."""
        return "-".join(reversed(self.names))

    @cached_property
    def world_size(self) -> int:
        """The number of ranks: the product of all sizes."""
        return math.prod(size for _, size in self.axes)

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return dict(self.axes)

    @cached_property
    def _strides(self) -> dict[str, int]:
        strides: dict[str, int] = {}
        stride = 1
        for name, size in reversed(self.axes):
            strides[name] = stride
            stride *= size
        return strides

    def size(self, *axes: str) -> int:
        """Return how many ranks a group along `axes` has: the product of their sizes."""
        return math.prod(self._sizes[name] for name in self._selected(axes))

    def expect(self, world_size: int, **sizes: int) -> Layout:
        """Return self if it has this world size and these sizes (an axis that it lacks counts as size 1).

        Raises `LayoutError` that names both sides otherwise: for a caller that states the same shape twice.
        """
        if world_size != self.world_size or any(self._sizes.get(name, 1) != size for name, size in sizes.items()):
            wanted = _spell([("world size", world_size), *sizes.items()])
            raise LayoutError(
                f"layout {_spell(self.axes)} of {self.world_size} ranks is not the {wanted} asked for; make them agree"
            )
        return self

    # One rank.

    def coordinate(self, rank: int) -> dict[str, int]:
        """Return the place of `rank` on every axis, slowest first; a new dict that the caller may change."""
        offset = self._offset(rank)
        return {name: offset // self._strides[name] % size for name, size in self.axes}

    def rank(self, /, **coordinate: int) -> int:
        """Return the rank at a complete coordinate: the inverse of `coordinate`."""
        missing = [name for name in self.names if name not in coordinate]
        if missing:
            raise LayoutError(f"rank() needs every axis; missing: {', '.join(missing)} (ranks() takes a part of them)")
        return self.ranks(**coordinate)[0]

    def ranks(self, /, **coordinate: int) -> Group:
        """Return, ascending, all ranks whose coordinate has these values; without any, all ranks."""
        free = self._others(coordinate)
        base = self.rank_offset
        for name, place in coordinate.items():
            _check_integer(f"coordinate {name!r}", place, least=0, below=self._sizes[name])
            base += place * self._strides[name]
        return tuple(base + offset for offset in self._offsets(free))

    # Groups along one axis or several; the order in which axes are named does not matter.

    def groups(self, *axes: str) -> tuple[Group, ...]:
        """Return all groups along `axes` in creation order: ascending by first rank, ranks ascending within."""
        offsets = self._offsets(self._selected(axes))
        bases = self._offsets(self._others(axes))
        return tuple(tuple(self.rank_offset + base + offset for offset in offsets) for base in bases)

    def group_of(self, rank: int, *axes: str) -> Group:
        """Return the group along `axes` that holds `rank`, ascending."""
        source = self.source_rank(rank, *axes)
        return tuple(source + offset for offset in self._offsets(self._selected(axes)))

    def group_index(self, rank: int, *axes: str) -> int:
        """Return where `group_of(rank, *axes)` stands in `groups(*axes)`."""
        return self._position(rank, self._others(axes))

    def position(self, rank: int, *axes: str) -> int:
        """Return where `rank` stands in its group along `axes`: its rank within that group."""
        return self._position(rank, self._selected(axes))

    def source_rank(self, rank: int, *axes: str) -> int:
        """Return the first rank of the group along `axes` that holds `rank`: who broadcasts in it."""
        coordinate = self.coordinate(rank)
        return rank - sum(coordinate[name] * self._strides[name] for name in self._selected(axes))

    # Neighbours along one axis.

    def is_first(self, rank: int, axis: str) -> bool:
        """Say whether `rank` is the first along `axis`."""
        return self.position(rank, axis) == 0

    def is_last(self, rank: int, axis: str) -> bool:
        """Say whether `rank` is the last along `axis`."""
        return self.position(rank, axis) == self.size(axis) - 1

    def first_rank(self, rank: int, axis: str) -> int:
        """Return the first rank of the line along `axis` through `rank`."""
        return self._moved(rank, axis, 0)

    def last_rank(self, rank: int, axis: str) -> int:
        """Return the last rank of the line along `axis` through `rank`."""
        return self._moved(rank, axis, -1)

    def next_rank(self, rank: int, axis: str) -> int:
        """Return the next rank along `axis`; after the last comes the first (see `is_last`)."""
        return self._moved(rank, axis, self.position(rank, axis) + 1)

    def previous_rank(self, rank: int, axis: str) -> int:
        """Return the previous rank along `axis`; before the first comes the last (see `is_first`)."""
        return self._moved(rank, axis, self.position(rank, axis) - 1)

    # Groups at the ends of the pipeline.

    def end_groups(self, pipe: str = "pipe") -> tuple[Group, ...]:
        """Return the first and last rank of each line along `pipe` (one if it is one stage): they tie embeddings."""
        return tuple(tuple(sorted({line[0], line[-1]})) for line in self.groups(pipe))

    def first_groups(self, pipe: str = "pipe") -> tuple[Group, ...]:
        """Return the first rank of each line along `pipe`, each in a group of its own: position embeddings."""
        return tuple((line[0],) for line in self.groups(pipe))

    def io_groups(self, pipe: str = "pipe", data: str = "data", model: str = "model") -> tuple[Group, ...]:
        """Return the groups that take part in input and output.

        With several stages it is one group: all ranks of the first and the last stage at model 0; no other rank is in
        any.  With one stage, or without a `pipe` axis, it is the data groups, and every rank is in one.
        """
        stages = self._sizes.get(pipe, 1)
        if stages == 1:
            return self.groups(data)
        inner = {model: 0} if model in self._sizes else {}
        ends = (self.ranks(**{pipe: stage}, **inner) for stage in (0, stages - 1))
        return (tuple(sorted(rank for end in ends for rank in end)),)

    def io_group_of(self, rank: int, pipe: str = "pipe", data: str = "data", model: str = "model") -> Group | None:
        """Return the one of `io_groups` that holds `rank`, or None if it takes no part in input and output."""
        self._offset(rank)
        return next((group for group in self.io_groups(pipe, data, model) if rank in group), None)

    # Arithmetic.

    def _offset(self, rank: int) -> int:
        _check_integer("rank", rank, least=self.rank_offset, below=self.rank_offset + self.world_size)
        return rank - self.rank_offset

    def _moved(self, rank: int, axis: str, place: int) -> int:
        return self.source_rank(rank, axis) + place % self.size(axis) * self._strides[axis]

    def _position(self, rank: int, axes: tuple[str, ...]) -> int:
        coordinate = self.coordinate(rank)
        position = 0
        for name in axes:
            position = position * self._sizes[name] + coordinate[name]
        return position

    def _selected(self, axes: Iterable[str]) -> tuple[str, ...]:
        wanted = tuple(axes)
        unknown = [name for name in wanted if name not in self._sizes]
        if unknown:
            raise LayoutError(f"no axis {', '.join(map(repr, unknown))} in layout {_spell(self.axes)}; use its names")
        if len(set(wanted)) != len(wanted):
            raise LayoutError(f"axes {'-'.join(wanted)} name one axis twice; name each once")
        return tuple(name for name in self.names if name in wanted)

    def _others(self, axes: Iterable[str]) -> tuple[str, ...]:
        selected = self._selected(axes)
        return tuple(name for name in self.names if name not in selected)

    def _offsets(self, axes: tuple[str, ...]) -> list[int]:
        # Slowest axis first, and a slower axis strides over all that is faster: the sums ascend.
        steps = [range(0, self._sizes[name] * self._strides[name], self._strides[name]) for name in axes]
        return [sum(offsets) for offsets in product(*steps)]


# The layouts that reknit and the frameworks before it use.


def job_layout(replicas: int, pipe: int, model: int = 1) -> Layout:
    """Return the layout of an elastic job: axes (data, pipe, model), `data` being the replicas now present.

    The dense rank of a worker is `layout.rank(data=index, pipe=p, model=m)`, where `index` comes from `dense_indices`.
    A replica's ranks are contiguous, so a change in the number of replicas moves whole replicas only.
    """
    return Layout.of(data=replicas, pipe=pipe, model=model)


def dense_indices(slots: Iterable[int]) -> dict[int, int]:
    """Return slot → index along `data` for the replicas now present: ascending slots, no holes."""
    present = list(slots)
    if len(set(present)) != len(present):
        raise LayoutError(f"slots {sorted(present)} name one slot twice; a slot holds one replica")
    return {slot: index for index, slot in enumerate(sorted(present))}


def pipeline_layout(world_size: int, pipe: int, data: int) -> Layout:
    """Return pipelines of contiguous ranks `[k·pipe, (k+1)·pipe)`, data groups `range(i, world_size, pipe)`.

    Raises `LayoutError` unless world_size = pipe × data.
    """
    return Layout.of(data=data, pipe=pipe).expect(world_size)


def model_layout(world_size: int, model: int, *, clamp: bool = False) -> Layout:
    """Return model groups of contiguous ranks `[k·model, (k+1)·model)`, data groups `range(i, world_size, model)`.

    Raises `LayoutError` if `model` does not divide `world_size`; with `clamp`, a larger `model` is cut to `world_size`.
    """
    _check_integer("world_size", world_size, least=1)
    _check_integer("model size", model, least=1)
    if model > world_size and not clamp:
        raise LayoutError(f"model size {model} exceeds world size {world_size}; use fewer, or ask for clamp")
    model = min(model, world_size)
    if world_size % model:
        raise LayoutError(f"world size {world_size} is not divisible by model size {model}; choose a divisor")
    return Layout.of(data=world_size // model, model=model)


def megatron_core_layout(
    order: str,
    *,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    ep: int = 1,
    cp: int = 1,
    gtp_remat: int = 1,
    rank_offset: int = 0,
) -> Layout:
    """Return the layout that Megatron-Core's rank generator has for this order string and these sizes.

    A combined group such as "tp-dp" is `layout.groups("tp", "dp")`.  Raises `LayoutError` if `order` leaves out an axis
    larger than 1, or if both `ep` and `cp` are larger: experts and contexts never divide the same ranks there.
    """
    if ep > 1 and cp > 1:
        raise LayoutError(f"ep={ep} and cp={cp} cannot both exceed 1 in one layout; build one for the experts alone")
    sizes = {"tp": tp, "pp": pp, "dp": dp, "ep": ep, "cp": cp, "gtp_remat": gtp_remat}
    return Layout.from_order(order.lower(), sizes, rank_offset)


def seen_from(layout: Layout, rank: int, replica: int) -> int:
    """Return the number that torch has for `rank` of an elastic job in a process of `replica` (its index on `data`).

    There torch's default group is the replica alone, which counts its own ranks from 0; the ranks of the next replica
    follow, and so around to the one before it.
    """
    place = layout.coordinate(rank)
    return layout.rank(**{**place, "data": (place["data"] - replica) % layout.size("data")})


def default_pipe_data_layout(world_size: int) -> Layout:
    """Return pipe × data for a world whose shape nobody has said: its prime factors, ascending, dealt to both in turn.

    The first goes to `pipe`: 12 = 2·2·3 ranks are pipe=6, data=2; a prime number of ranks is one pipeline.
    """
    _check_integer("world_size", world_size, least=1)
    sizes, turn, factor = [1, 1], 0, 2
    while world_size > 1:
        if world_size % factor:
            factor += 1
            continue
        world_size //= factor
        sizes[turn] *= factor
        turn = 1 - turn
    return Layout.of(pipe=sizes[0], data=sizes[1])


def _checked_axes(axes: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    pairs: list[tuple[str, int]] = []
    for pair in axes:
        try:
            name, size = pair
        except (TypeError, ValueError):
            raise LayoutError(f"axis {pair!r} is not a (name, size) pair; write one such as ('data', 2)") from None
        if not isinstance(name, str) or not name.isidentifier():
            raise LayoutError(f"axis name {name!r} is not an identifier; use a word such as 'data'")
        _check_integer(f"axis {name!r}", size, least=1)
        pairs.append((name, size))
    if not pairs:
        raise LayoutError("a layout needs at least one axis; give one of size 1 for a single rank")
    if len(dict(pairs)) != len(pairs):
        raise LayoutError(f"axes {_spell(pairs)} name one axis twice; name each once")
    return tuple(pairs)


def _check_integer(what: str, value: object, *, least: int, below: int | None = None) -> None:
    # bool is an int to Python, but True is no size that anybody means.
    if isinstance(value, bool) or not isinstance(value, int):
        raise LayoutError(f"{what} must be an integer, not {value!r}")
    if value < least or (below is not None and value >= below):
        bounds = f"at least {least}" if below is None else f"from {least} to {below - 1}"
        raise LayoutError(f"{what} must be {bounds}, not {value}")


def _spell(pairs: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name}={size}" for name, size in pairs)
