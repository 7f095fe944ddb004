"""The layout against recorded outputs of the frameworks before it, and against what must hold for any axes."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reknit.rendezvous.errors import LayoutError
from reknit.rendezvous.layout import (
    Layout,
    default_pipe_data_layout,
    dense_indices,
    job_layout,
    megatron_core_layout,
    model_layout,
    pipeline_layout,
    seen_from,
)

Vector = dict[str, Any]

VECTORS: list[Vector] = json.loads(
    (Path(__file__).parents[1] / "data" / "layout_vectors.json").read_text(encoding="utf-8")
)["vectors"]
REPRODUCED = {"cocktail": 35, "megatron": 39, "neox": 36, "neox_topology": 49, "mcore_rank_generator": 31}
REFUSED = {"cocktail_error": 6, "megatron_error": 6, "neox_error": 5, "megatron_degenerate": 1}


def is_about_backends(vector: Vector) -> bool:
    """Two are, which a layout knows nothing of: tests/unit/test_mpu_vectors.py has them."""
    return vector["id"] in ("cocktail/bad/backend-mpi", "cocktail/reinit/nccl")


def of_families(families: dict[str, int]) -> list[Vector]:
    return [vector for vector in VECTORS if vector["family"] in families and not is_about_backends(vector)]


def family_counts(families: dict[str, int]) -> dict[str, int]:
    found = of_families(families)
    return {family: sum(vector["family"] == family for vector in found) for family in families}


def test_every_recorded_vector_is_used() -> None:
    assert family_counts(REPRODUCED) == REPRODUCED
    assert family_counts(REFUSED) == REFUSED
    assert (sum(REPRODUCED.values()), sum(REFUSED.values())) == (190, 18)
    assert set(CHECKS) == set(REPRODUCED)


# What each reference's accessors are here.


def lists(groups: tuple[tuple[int, ...], ...]) -> list[list[int]]:
    return [list(group) for group in groups]


def per_rank(layout: Layout, accessor: Callable[[int], Any]) -> list[Any]:
    return [accessor(rank) for rank in layout.ranks()]


def new_group_calls(vector: Vector) -> list[list[int]]:
    return [call["ranks"] for call in vector["new_group_calls"]]


def axis_columns(layout: Layout, axis: str, prefix: str) -> dict[str, list[Any]]:
    return {
        f"{prefix}_rank": per_rank(layout, lambda rank: layout.position(rank, axis)),
        f"{prefix}_world_size": per_rank(layout, lambda _: layout.size(axis)),
        f"{prefix}_src_rank": per_rank(layout, lambda rank: layout.source_rank(rank, axis)),
    }


def assert_columns(found: dict[str, list[Any]], vector: Vector) -> int:
    """Compare each column found with what the vector calls correct, else with what it recorded; return how many."""
    recorded = {**vector["per_rank"], **vector.get("correct", {})}
    compared = [name for name in found if name in recorded]
    for name in compared:
        assert found[name] == recorded[name], name
    return len(compared)


def check_cocktail(vector: Vector) -> None:
    inputs, recorded = vector["inputs"], vector["per_rank"]
    layout = pipeline_layout(inputs["world_size"], inputs["pipeline_group_size"], inputs["data_group_size"])
    assert lists(layout.groups("pipe")) == vector["groups"]["pipe"]
    found = {
        **axis_columns(layout, "pipe", "pipeline_parallel"),
        "pipeline_comm_rank": per_rank(layout, lambda rank: layout.position(rank, "pipe")),
        "pipeline_comm_name": per_rank(layout, lambda rank: f"pipeline_group_{layout.group_index(rank, 'pipe')}"),
    }
    if inputs["data_group_size"] == 1:
        # The reference builds no data group of one; here it is a group like any other, whose collectives do nothing.
        assert assert_columns(found, vector) == 4
        assert vector["groups"]["data"] == []
        assert lists(layout.groups("data")) == [[rank] for rank in range(inputs["world_size"])]
        return
    found.update(axis_columns(layout, "data", "data_parallel"))
    assert assert_columns(found, vector) == 6
    if inputs["dp_backend"] == "nccl":
        # The reference records only the name of an nccl communicator, which carries the group's number.
        assert recorded["data_comm"] == per_rank(
            layout, lambda rank: f"nccl:data_group_{layout.group_index(rank, 'data')}"
        )
        return
    groups = per_rank(layout, lambda rank: list(layout.group_of(rank, "data")))
    assert lists(layout.groups("data")) == vector["groups"]["data"] == new_group_calls(vector)
    assert groups == recorded["data_group"] == recorded["data_to_global"]
    assert per_rank(layout, lambda rank: layout.position(rank, "data")) == recorded["data_group_rank"]
    assert per_rank(layout, lambda rank: layout.size("data")) == recorded["data_comm_size"]


def check_megatron(vector: Vector) -> None:
    world_size, asked = vector["inputs"]["world_size"], vector["inputs"]["model_parallel_size"]
    if asked > world_size:
        with pytest.raises(LayoutError, match="exceeds world size"):
            model_layout(world_size, asked)
    layout = model_layout(world_size, asked, clamp=asked > world_size)
    assert layout.size("model") == vector["effective_model_parallel_size"]
    found = {**axis_columns(layout, "model", "model_parallel"), **axis_columns(layout, "data", "data_parallel")}
    assert assert_columns(found, vector) == 5
    data, model = lists(layout.groups("data")), lists(layout.groups("model"))
    assert (data, model) == (vector["groups"]["data"], vector["groups"]["model"])
    assert data + model == new_group_calls(vector)


def neox_columns(layout: Layout) -> dict[str, list[Any]]:
    return {
        **axis_columns(layout, "model", "model_parallel"),
        **axis_columns(layout, "model", "tensor_model_parallel"),
        **axis_columns(layout, "data", "data_parallel"),
    }


def assert_io_groups(layout: Layout, vector: Vector) -> None:
    assert lists(layout.io_groups()) == vector["groups"]["io"]
    for rank, (recorded_group, recorded_position) in enumerate(
        zip(vector["per_rank"]["io_parallel_group"], vector["per_rank"]["io_parallel_rank"], strict=True)
    ):
        group = layout.io_group_of(rank)
        if group is None:
            assert "error" in recorded_group
            assert "error" in recorded_position
        else:
            assert (list(group), group.index(rank)) == (recorded_group, recorded_position)


def check_neox(vector: Vector) -> None:
    layout = model_layout(vector["inputs"]["world_size"], vector["inputs"]["model_parallel_size"])
    assert assert_columns(neox_columns(layout), vector) == 9
    assert_io_groups(layout, vector)
    data, model = lists(layout.groups("data")), lists(layout.groups("model"))
    assert (data, model) == (vector["groups"]["data"], vector["groups"]["model"])
    assert data + model == new_group_calls(vector)
    assert "error" in vector["groups"]["pipe"]
    with pytest.raises(LayoutError, match="no axis 'pipe'"):
        layout.groups("pipe")


def check_neox_topology(vector: Vector) -> None:
    inputs = vector["inputs"]
    topology = inputs["topology"]
    layout = Layout(tuple(zip(topology["axes"], topology["dims"], strict=True)))
    layout.expect(inputs["world_size"], model=inputs["model_parallel_size"])
    found = {
        **neox_columns(layout),
        **axis_columns(layout, "pipe", "pipe_parallel"),
        "pipe_first_rank": per_rank(layout, lambda rank: layout.first_rank(rank, "pipe")),
    }
    assert assert_columns(found, vector) == 12
    assert_io_groups(layout, vector)
    groups = {kind: lists(layout.groups(kind)) for kind in ("data", "pipe", "model")}
    assert {**groups, "io": vector["groups"]["io"]} == vector["groups"]
    own_io = lists(layout.io_groups()) if layout.size("pipe") > 1 else []
    assert groups["data"] + groups["pipe"] + own_io + groups["model"] == new_group_calls(vector)


def check_megatron_core(vector: Vector) -> None:
    if "error" in vector:
        with pytest.raises(LayoutError):
            megatron_core_layout(**vector["inputs"])
        return
    layout = megatron_core_layout(**vector["inputs"])
    assert layout.world_size == vector["world_size"]
    assert layout.order == vector["normalised_order"]
    assert {token: lists(layout.groups(*token.split("-"))) for token in vector["groups"]} == vector["groups"]
    assert lists(layout.end_groups("pp")) == vector["embedding_ranks"]
    assert lists(layout.first_groups("pp")) == vector["position_embedding_ranks"]


CHECKS: dict[str, Callable[[Vector], None]] = {
    "cocktail": check_cocktail,
    "megatron": check_megatron,
    "neox": check_neox,
    "neox_topology": check_neox_topology,
    "mcore_rank_generator": check_megatron_core,
}


@pytest.mark.parametrize("vector", of_families(REPRODUCED), ids=lambda vector: vector["id"])
def test_recorded_layout_is_reproduced(vector: Vector) -> None:
    CHECKS[vector["family"]](vector)


def build_refused(vector: Vector) -> None:
    inputs = vector["inputs"]
    if vector["family"] == "cocktail_error":
        pipeline_layout(inputs["world_size"], inputs["pipeline_group_size"], inputs["data_group_size"])
    else:
        model_layout(inputs["world_size"], inputs["model_parallel_size"], clamp=vector["family"] != "neox_error")


@pytest.mark.parametrize("vector", of_families(REFUSED), ids=lambda vector: vector["id"])
def test_recorded_failure_is_a_layout_error(vector: Vector) -> None:
    with pytest.raises(LayoutError):
        build_refused(vector)


# The shape and the numbering that no reference module of groups has.


@pytest.mark.parametrize(("ranks", "pipe", "data"), [(1, 1, 1), (7, 7, 1), (12, 6, 2), (30, 10, 3)])
def test_default_shape(ranks: int, pipe: int, data: int) -> None:
    assert default_pipe_data_layout(ranks) == Layout.of(pipe=pipe, data=data)


@pytest.mark.parametrize("ranks", [0, -4, True])
def test_a_world_without_ranks_has_no_default_shape(ranks: int) -> None:
    with pytest.raises(LayoutError, match="world_size"):
        default_pipe_data_layout(ranks)


def test_a_replica_sees_itself_first() -> None:
    layout = job_layout(3, pipe=2, model=2)
    for replica in range(3):
        numbers = [seen_from(layout, rank, replica) for rank in layout.ranks()]
        assert sorted(numbers) == list(layout.ranks())
        assert [numbers[rank] for rank in layout.ranks(data=replica)] == [0, 1, 2, 3]


# What must hold for any axes.

layouts = st.builds(
    Layout,
    st.lists(
        st.tuples(st.sampled_from(["data", "pipe", "model", "context", "expert"]), st.integers(1, 4)),
        min_size=1,
        max_size=4,
        unique_by=lambda axis: axis[0],
    ).map(tuple),
    st.integers(0, 9),
)


def axis_combinations(layout: Layout) -> list[tuple[str, ...]]:
    return [chosen for count in range(len(layout.names) + 1) for chosen in combinations(layout.names, count)]


@settings(deadline=None, max_examples=60)
@given(layouts)
def test_every_combination_of_axes_partitions_the_ranks(layout: Layout) -> None:
    for axes in axis_combinations(layout):
        groups = layout.groups(*axes)
        assert sorted(rank for group in groups for rank in group) == list(layout.ranks())
        assert {len(group) for group in groups} == {layout.size(*axes)}
        assert list(groups) == sorted(groups)
        others = [name for name in layout.names if name not in axes]
        for index, group in enumerate(groups):
            assert list(group) == sorted(group)
            assert len({tuple(layout.coordinate(rank)[name] for name in others) for rank in group}) == 1
            for position, rank in enumerate(group):
                assert layout.group_of(rank, *axes) == group
                assert layout.group_index(rank, *axes) == index
                assert layout.position(rank, *axes) == position
                assert layout.source_rank(rank, *axes) == group[0]


@settings(deadline=None, max_examples=60)
@given(layouts)
def test_coordinates_and_ranks_are_inverse(layout: Layout) -> None:
    coordinates = [layout.coordinate(rank) for rank in layout.ranks()]
    assert [layout.rank(**coordinate) for coordinate in coordinates] == list(layout.ranks())
    assert len({tuple(coordinate.values()) for coordinate in coordinates}) == layout.world_size
    assert all(tuple(coordinate) == layout.names for coordinate in coordinates)
    for name, size in layout.axes:
        for place in range(size):
            chosen = layout.ranks(**{name: place})
            assert list(chosen) == [rank for rank in layout.ranks() if layout.coordinate(rank)[name] == place]


@settings(deadline=None, max_examples=60)
@given(layouts)
def test_neighbours_walk_each_line_in_order(layout: Layout) -> None:
    for name in layout.names:
        for line in layout.groups(name):
            for position, rank in enumerate(line):
                assert layout.next_rank(rank, name) == line[(position + 1) % len(line)]
                assert layout.previous_rank(rank, name) == line[position - 1]
                assert (layout.first_rank(rank, name), layout.last_rank(rank, name)) == (line[0], line[-1])
                assert layout.is_first(rank, name) == (position == 0)
                assert layout.is_last(rank, name) == (position == len(line) - 1)


@settings(deadline=None, max_examples=40)
@given(layouts)
def test_another_order_only_renumbers(layout: Layout) -> None:
    for axes in permutations(layout.axes):
        other = Layout(axes, layout.rank_offset)
        renumbered = {rank: other.rank(**layout.coordinate(rank)) for rank in layout.ranks()}
        assert sorted(renumbered.values()) == list(other.ranks())
        for chosen in axis_combinations(layout):
            moved = sorted(tuple(sorted(renumbered[rank] for rank in group)) for group in layout.groups(*chosen))
            assert moved == list(other.groups(*chosen))


@settings(deadline=None, max_examples=60)
@given(layouts)
def test_order_string_round_trip(layout: Layout) -> None:
    again = Layout.from_order(layout.order, dict(layout.axes), layout.rank_offset)
    assert again == layout
    assert hash(again) == hash(layout)
    assert pickle.loads(pickle.dumps(layout)) == layout


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))
def test_a_replica_is_a_contiguous_run_of_ranks(replicas: int, pipe: int, model: int) -> None:
    layout = job_layout(replicas, pipe, model)
    size = pipe * model
    for index in range(replicas):
        assert layout.ranks(data=index) == tuple(range(index * size, (index + 1) * size))
    smaller = job_layout(max(1, replicas - 1), pipe, model)
    # Losing the last replica moves nobody else.
    assert all(layout.coordinate(rank) == smaller.coordinate(rank) for rank in smaller.ranks())


# Examples that a reader can check by hand.


def test_two_replicas_of_two_stages() -> None:
    layout = job_layout(replicas=2, pipe=2)
    assert layout.groups("pipe", "model") == ((0, 1), (2, 3))
    assert layout.groups("data") == ((0, 2), (1, 3))
    assert layout.coordinate(3) == {"data": 1, "pipe": 1, "model": 0}
    assert layout.rank(data=1, pipe=0, model=0) == 2
    assert layout.groups() == ((0,), (1,), (2,), (3,))
    assert layout.groups("data", "pipe") == layout.groups("pipe", "data") == ((0, 1, 2, 3),)


def test_dense_indices_close_the_holes_between_slots() -> None:
    assert dense_indices([5, 0, 3]) == {0: 0, 3: 1, 5: 2}
    assert dense_indices([]) == {}
    with pytest.raises(LayoutError, match="one slot twice"):
        dense_indices([1, 1])


def test_ranks_outside_the_end_stages_take_no_part_in_io() -> None:
    layout = Layout.of(pipe=3, data=2, model=2)
    assert layout.io_groups() == ((0, 2, 8, 10),)
    assert layout.io_group_of(4) is None
    assert layout.io_group_of(1) is None
    assert layout.io_group_of(10) == (0, 2, 8, 10)
    assert Layout.of(pipe=2, data=2).io_groups() == ((0, 1, 2, 3),)


def test_the_caller_may_change_a_coordinate() -> None:
    layout = Layout.of(data=2)
    layout.coordinate(1)["data"] = 0
    assert layout.coordinate(1) == {"data": 1}


def test_axes_from_json_lists_equal_axes_from_tuples() -> None:
    from_json: Any = json.loads('[["data", 2], ["pipe", 3]]')
    assert Layout(from_json) == Layout.of(data=2, pipe=3)
    assert hash(Layout(from_json)) == hash(Layout.of(data=2, pipe=3))


def build_anything(axes: Any, rank_offset: Any = 0) -> Layout:
    return Layout(axes, rank_offset)


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: build_anything(()), "at least one axis"),
        (lambda: build_anything(("data",)), "not a .name, size. pair"),
        (lambda: build_anything((("data", 2, 3),)), "not a .name, size. pair"),
        (lambda: build_anything(((1, 2),)), "not an identifier"),
        (lambda: build_anything((("da-ta", 2),)), "not an identifier"),
        (lambda: build_anything((("data", 2), ("data", 1))), "one axis twice"),
        (lambda: build_anything((("data", 0),)), "must be at least 1, not 0"),
        (lambda: build_anything((("data", 2.0),)), "must be an integer"),
        (lambda: build_anything((("data", True),)), "must be an integer"),
        (lambda: build_anything((("data", 2),), -1), "rank_offset must be at least 0"),
        (lambda: Layout.of(data=2).coordinate(2), "rank must be from 0 to 1, not 2"),
        (lambda: Layout((("data", 2),), 4).coordinate(3), "rank must be from 4 to 5, not 3"),
        (lambda: Layout.of(data=2).rank(), "missing: data"),
        (lambda: Layout.of(data=2).rank(data=2), "coordinate 'data' must be from 0 to 1, not 2"),
        (lambda: Layout.of(data=2).rank(data=0, pipe=0), "no axis 'pipe'"),
        (lambda: Layout.of(data=2).groups("data", "data"), "one axis twice"),
        (lambda: Layout.of(data=2).io_group_of(7), "rank must be from 0 to 1"),
        (lambda: Layout.of(data=2, pipe=2).expect(8), "is not the world size=8 asked for"),
        (lambda: Layout.of(data=2, pipe=2).expect(4, model=2), "is not the world size=4, model=2 asked for"),
        (lambda: Layout.from_order("tp-xx", {"tp": 2}), "names 'xx', which has no size"),
        (lambda: Layout.from_order("tp-tp", {"tp": 2}), "one axis twice"),
        (lambda: Layout.from_order("tp", {"tp": 2, "pp": 2}), "leaves it out"),
        (lambda: job_layout(0, 2), "'data' must be at least 1"),
    ],
)
def test_nonsense_is_refused_with_its_reason(attempt: Callable[[], object], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        attempt()


def test_expect_returns_the_layout_and_counts_a_missing_axis_as_one() -> None:
    layout = Layout.of(data=2, pipe=2)
    assert layout.expect(4, pipe=2, model=1) is layout
