"""The accessors against what the reference modules were recorded to answer: all 275 vectors, each on every rank.

The module runs on torch's "fake" process groups, as the references did when they were recorded: all of it is real but
that nothing is sent.  Where a vector records a mistake of the reference, `DIFFERENT` says what is right and why.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from reknit.rendezvous.errors import LayoutError
from reknit.rendezvous.layout import megatron_core_layout
from reknit.rendezvous.records import Coordinate
from reknit.runtime import mpu
from reknit.runtime.errors import BackendRefused
from reknit.runtime.mpu import elastic

Vector = dict[str, Any]
Call = tuple[list[int], str | None]

VECTORS: list[Vector] = json.loads(
    (Path(__file__).parents[1] / "data" / "layout_vectors.json").read_text(encoding="utf-8")
)["vectors"]
FAMILIES = {
    "cocktail": 35,
    "cocktail_error": 8,
    "cocktail_reinit": 5,
    "cocktail_reinit_shrink": 6,
    "megatron": 39,
    "megatron_error": 6,
    "megatron_degenerate": 1,
    "neox": 36,
    "neox_error": 5,
    "neox_topology": 49,
    "neox_topology_custom_order": 6,
    "neox_topology_mismatch": 10,
    "lifecycle": 4,
    "deepspeed_topology": 12,
    "deepspeed_grid": 12,
    "deepspeed_grid_default": 9,
    "deepspeed_grid_error": 1,
    "mcore_rank_generator": 31,
}
DIFFERENT = {
    "cocktail, data size 1": "the reference has no data communicator then; here each rank has a group of its own",
    "cocktail, no such backend": "the reference looks at it only if there are two replicas; here it is refused",
    "cocktail_error": "the reference replaces torch's world before it checks; here nothing is touched",
    "cocktail_reinit_shrink": "the reference's rank and size stay stale; the vector's `correct_` columns hold",
    "megatron, size above the world": "the reference clamps; here that is asked for by clamp=True, else a LayoutError",
    "megatron_degenerate": "the reference builds nothing for a negative size; a LayoutError here",
    "src ranks": "the reference's follow formulas for one order of axes; the vector's `correct` columns hold",
    "fp32_allreduce": "the reference forgets it with a topology of one model rank; the `correct` column holds",
    "neox_topology_mismatch": "the reference accepts most topologies that disagree with the world; a LayoutError here",
    "no model axis": "the reference fails, or not, by the number of stages; here that is an axis of size 1",
    "io group": "the reference raises for who is not in it; here torch's own value for that",
    "overrides": "the reference takes any number, and its src ranks follow it; range-checked here, src ranks are real",
}
NON_MEMBER = dist.GroupMember.NON_GROUP_MEMBER


def of(*families: str) -> list[Any]:
    return [pytest.param(vector, id=vector["id"]) for vector in VECTORS if vector["family"] in families]


def test_every_vector_is_used_once() -> None:
    assert Counter(vector["family"] for vector in VECTORS) == FAMILIES
    assert sum(FAMILIES.values()) == 275


@pytest.fixture(autouse=True)
def no_world() -> Iterator[None]:
    yield
    leave()


def leave() -> None:
    mpu.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def world(rank: int, size: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Call]]:
    """Be this rank of a fake world; yields the calls of new_group, which go on to torch."""
    calls: list[Call] = []
    real = dist.new_group

    def new_group(ranks: list[int], backend: str | None = None, **options: Any) -> Any:
        calls.append((ranks, backend))
        return real(ranks, backend="fake" if backend is not None else None, **options)

    with monkeypatch.context() as patched:
        patched.setattr(dist, "new_group", new_group)
        dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
        try:
            yield calls
        finally:
            leave()


def members(group: Any) -> list[int]:
    return dist.get_process_group_ranks(group)


def ranks_of(calls: list[Call]) -> list[list[int]]:
    return [ranks for ranks, _ in calls]


def recorded_calls(vector: Vector) -> list[list[int]]:
    return [sorted(call["ranks"]) for call in vector["new_group_calls"]]


def expected(vector: Vector, column: str, rank: int) -> Any:
    """What is right on this rank."""
    return {**vector["per_rank"], **vector.get("correct", {})}[column][rank]


def is_error(value: Any) -> bool:
    return isinstance(value, dict) and "error" in value


# Reference 2, and 3 with and without a topology.

COLUMNS: dict[str, Callable[[], Any]] = {
    "model_parallel_rank": mpu.get_model_parallel_rank,
    "model_parallel_world_size": mpu.get_model_parallel_world_size,
    "model_parallel_src_rank": mpu.get_model_parallel_src_rank,
    "data_parallel_rank": mpu.get_data_parallel_rank,
    "data_parallel_world_size": mpu.get_data_parallel_world_size,
    "data_parallel_src_rank": mpu.get_data_parallel_src_rank,
    "tensor_model_parallel_rank": mpu.get_tensor_model_parallel_rank,
    "tensor_model_parallel_world_size": mpu.get_tensor_model_parallel_world_size,
    "tensor_model_parallel_src_rank": mpu.get_tensor_model_parallel_src_rank,
    "pipe_parallel_rank": mpu.get_pipe_parallel_rank,
    "pipe_parallel_world_size": mpu.get_pipe_parallel_world_size,
    "pipe_first_rank": mpu.get_pipe_parallel_src_rank,
    "fp32_allreduce": mpu.get_fp32_allreduce,
    "is_initialized": mpu.model_parallel_is_initialized,
    "is_unitialized": mpu.is_unitialized,
    "io_parallel_rank": lambda: dist.get_rank(mpu.get_io_parallel_group()),
    "io_parallel_group": lambda: members(mpu.get_io_parallel_group()),
}
GROUPS: dict[str, Callable[[], Any]] = {
    "data": mpu.get_data_parallel_group,
    "model": mpu.get_model_parallel_group,
    "pipe": mpu.get_pipe_parallel_group,
    "io": mpu.get_io_parallel_group,
}


def compare_columns(vector: Vector, rank: int) -> None:
    for column in {**vector["per_rank"], **vector.get("correct", {})}:
        right = expected(vector, column, rank)
        if column.startswith("io_") and is_error(right):
            assert mpu.get_io_parallel_group() is NON_MEMBER  # DIFFERENT: io group
        elif is_error(right):
            with pytest.raises(mpu.NotInitialized):
                COLUMNS[column]()
        else:
            assert COLUMNS[column]() == right, (column, rank)


def compare_groups(vector: Vector, rank: int) -> None:
    for kind, groups in vector["groups"].items():
        if is_error(groups) or groups is None:
            continue
        own = [sorted(group) for group in groups if rank in group]
        group = GROUPS[kind]()
        assert [members(group)] == own if own else group is NON_MEMBER, kind


def topology_in(inputs: Vector) -> mpu.ProcessTopology | None:
    given = inputs.get("topology")
    return mpu.ProcessTopology(given["axes"], given["dims"]) if given else None


@pytest.mark.parametrize("vector", of("megatron", "neox", "neox_topology", "neox_topology_custom_order"))
def test_initialised_by_a_model_size(vector: Vector, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = vector["inputs"]
    size, model = inputs["world_size"], inputs["model_parallel_size"]
    for rank in range(size):
        with world(rank, size, monkeypatch) as calls:
            if model > size:  # DIFFERENT: megatron, size above the world
                with pytest.raises(LayoutError, match="exceeds world size"):
                    mpu.initialize_model_parallel(model)
            fp32 = inputs.get("fp32_allreduce", False)
            mpu.initialize_model_parallel(model, topology_in(inputs), fp32, clamp=model > size)
            assert ranks_of(calls) == recorded_calls(vector)
            compare_columns(vector, rank)
            compare_groups(vector, rank)
            if vector["family"] == "megatron":
                assert mpu.get_model_parallel_world_size() == vector["effective_model_parallel_size"]


@pytest.mark.parametrize("vector", of("megatron_error", "megatron_degenerate", "neox_error"))
def test_a_size_that_cannot_be_is_refused(vector: Vector, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = vector["inputs"]
    with world(0, inputs["world_size"], monkeypatch) as calls:
        with pytest.raises(ValueError) as refused:  # noqa: PT011
            mpu.initialize_model_parallel(inputs["model_parallel_size"])
        assert isinstance(refused.value, LayoutError)
        assert (calls, mpu.model_parallel_is_initialized()) == ([], False)


ACCEPTED = {"no-model-axis-pp2", "no-model-axis-pp1", "no-pipe-axis"}


@pytest.mark.parametrize("vector", of("neox_topology_mismatch"))
def test_a_topology_that_disagrees(vector: Vector, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = vector["inputs"]
    size, topology = inputs["world_size"], topology_in(inputs)
    if vector["id"].partition("/")[2] not in ACCEPTED:  # DIFFERENT: neox_topology_mismatch
        with world(0, size, monkeypatch) as calls:
            with pytest.raises(LayoutError):
                mpu.initialize_model_parallel(inputs["model_parallel_size"], topology)
            assert (calls, mpu.is_unitialized()) == ([], True)
        return
    for rank in range(size):
        with world(rank, size, monkeypatch):
            mpu.initialize_model_parallel(inputs["model_parallel_size"], topology)
            if "error" in vector:  # DIFFERENT: no model axis
                assert members(mpu.get_model_parallel_group()) == [rank]
                assert members(mpu.get_data_parallel_group()) == [rank // 2 * 2, rank // 2 * 2 + 1]
                assert members(mpu.get_io_parallel_group()) == [0, 1, 2, 3]
                continue
            corrected = dict(vector, correct=vector.get("correct", {}))
            corrected["correct"] |= {"fp32_allreduce": [False] * size}  # DIFFERENT: fp32_allreduce
            corrected["correct"] |= {  # DIFFERENT: src ranks
                "tensor_model_parallel_src_rank": vector["per_rank"]["model_parallel_src_rank"]
            }
            compare_columns(corrected, rank)
            compare_groups(vector, rank)


# Reference 3's life: calls in one process.

OVERRIDDEN: dict[int, Any] = {  # DIFFERENT: overrides; by step
    4: mpu.NotInitialized,
    5: mpu.NotInitialized,
    25: 4,
    32: 4,
    33: 4,
    34: 1,
    40: LayoutError,
    41: 4,
}


def answer(vector: Vector, step: Vector) -> Any:
    name, *arguments = step["call"]
    options = dict(arguments.pop()) if arguments and isinstance(arguments[-1], dict) else {}
    if options.get("topology") == "TOPO":
        options["topology"] = topology_in(vector["inputs"])
    result = getattr(mpu, name)(*arguments, **options)
    if name.endswith("_group"):
        return members(result)
    if isinstance(result, mpu.ProcessTopology):
        return {"axes": result.axes, "dims": result.dims}
    return None if name.startswith("set_") else result


@pytest.mark.parametrize("vector", of("lifecycle"))
def test_a_process_life(vector: Vector, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = vector["inputs"]
    with world(inputs["rank"], inputs["world_size"], monkeypatch):
        for number, step in enumerate(vector["steps"]):
            right = step["result"]
            if vector["id"] == "lifecycle/neox-overrides":
                right = OVERRIDDEN.get(number, right)
            elif step["call"] == ["get_tensor_model_parallel_src_rank"] and not is_error(right):
                right = mpu.get_model_parallel_src_rank()  # DIFFERENT: src ranks
            if is_error(right):
                repeated = "already" in right["message"]
                right = mpu.AlreadyInitialized if repeated else mpu.NotInitialized
            if isinstance(right, type):
                with pytest.raises(right):
                    answer(vector, step)
            else:
                assert answer(vector, step) == right, (number, step)


# Reference 1.


def arguments(inputs: Vector, rank: int) -> Any:
    return SimpleNamespace(rank=rank, dist_url="tcp://127.0.0.1:1", **{k: v for k, v in inputs.items() if k != "then"})


def compare_cocktail(vector: Vector, rank: int) -> None:
    recorded = {column: values[rank] for column, values in vector["per_rank"].items()}
    pipeline = next(group for group in vector["groups"]["pipe"] if rank in group)
    assert mpu.get_pipeline_parallel_rank() == recorded["pipeline_parallel_rank"] == recorded["pipeline_comm_rank"]
    assert mpu.get_pipeline_parallel_world_size() == recorded["pipeline_parallel_world_size"]
    assert members(mpu.get_pipeline_parallel_comm()) == pipeline
    assert recorded["pipeline_comm_name"] == f"pipeline_group_{vector['groups']['pipe'].index(pipeline)}"
    group = mpu.get_data_parallel_comm()
    if vector["inputs"]["data_group_size"] == 1:  # DIFFERENT: cocktail, data size 1
        assert is_error(recorded["data_comm"])
        assert (members(group), mpu.get_data_parallel_rank(), mpu.get_data_parallel_world_size()) == ([rank], 0, 1)
        return
    assert mpu.get_data_parallel_rank() == recorded["data_parallel_rank"] == recorded["data_group_rank"]
    assert mpu.get_data_parallel_world_size() == recorded["data_parallel_world_size"] == recorded["data_comm_size"]
    assert (dist.get_rank(group), dist.get_world_size(group)) == (
        recorded["data_parallel_rank"],
        recorded["data_comm_size"],
    )
    if recorded["data_group"] is None:
        return  # nccl: there is only its name, with the number of the group
    mapped = [mpu.to_global_rank(place) for place in range(mpu.get_data_parallel_world_size())]
    assert members(group) == mapped == recorded["data_group"] == recorded["data_to_global"]


@pytest.mark.parametrize("vector", of("cocktail"))
def test_initialised_by_arguments(vector: Vector, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = vector["inputs"]
    if inputs["dp_backend"] == "mpi":  # DIFFERENT: cocktail, no such backend
        with pytest.raises(BackendRefused, match="'mpi'"):
            mpu.init_communicators(arguments(inputs, 0))
        return
    for rank in range(inputs["world_size"]):
        with world(rank, inputs["world_size"], monkeypatch) as calls:
            mpu.init_communicators(arguments(inputs, rank))
            asked = [call for call in calls if call[1] is not None]
            assert {backend for _, backend in asked} == {inputs["dp_backend"]}
            if vector["new_group_calls"]:
                assert ranks_of(asked) == recorded_calls(vector)
            compare_cocktail(vector, rank)


@pytest.mark.parametrize("vector", of("cocktail_reinit"))
def test_the_data_groups_are_made_anew_and_the_pipeline_kept(vector: Vector, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = vector["inputs"]
    for rank in range(inputs["world_size"]):
        with world(rank, inputs["world_size"], monkeypatch) as calls:
            mpu.init_communicators(arguments(inputs, rank))
            pipeline, data, default = mpu.get_pipeline_parallel_comm(), mpu.get_data_parallel_comm(), dist.group.WORLD
            calls.clear()
            mpu.reinit_dp_communicator(arguments(inputs, rank))
            assert ranks_of(calls) == recorded_calls(vector)
            assert (mpu.get_pipeline_parallel_comm(), dist.group.WORLD) == (pipeline, default)
            assert mpu.get_data_parallel_comm() is not data
            with pytest.raises(ValueError, match="Invalid process group"):
                dist.destroy_process_group(data)  # it was, before
            compare_cocktail(vector, rank)


@pytest.mark.parametrize("vector", of("cocktail_error"))
def test_refused_before_anything_is_touched(vector: Vector, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = vector["inputs"]
    if "then" not in inputs:
        mistake = LayoutError if inputs["dp_backend"] == "gloo" else BackendRefused
        with pytest.raises(mistake):
            mpu.init_communicators(arguments(inputs, 0))
        assert not dist.is_initialized()  # DIFFERENT: cocktail_error
        return
    with world(0, inputs["world_size"], monkeypatch) as calls:
        mpu.init_communicators(arguments({**inputs, "dp_backend": "gloo"}, 0))
        data, default = mpu.get_data_parallel_comm(), dist.group.WORLD
        calls.clear()
        with pytest.raises(BackendRefused, match="nccl cannot be rebuilt in place"):
            mpu.reinit_dp_communicator(arguments(inputs, 0))
        assert (mpu.get_data_parallel_comm(), dist.group.WORLD, calls) == (data, default, [])


class ShrinkingJob:
    """A job of which one worker is looked at; `reinit` drops the lost replicas."""

    model_size = 1

    def __init__(self, pipe: int, replicas: list[int], rank: int, lost: list[int]) -> None:
        self.pipeline_size = pipe
        self.coordinate = Coordinate(rank % pipe, 0)
        self._own, self._present, self._lost = rank // pipe, replicas, lost
        self.data_group = object()
        self.io_group = None
        self.pipe_group = object()

    @property
    def replica(self) -> int:
        return self._present.index(self._own)

    @property
    def replicas(self) -> int:
        return len(self._present)

    def replica_group(self, axis: str) -> Any:
        assert axis == "pipe"
        return self.pipe_group

    def reinit(self) -> None:
        self._present = [replica for replica in self._present if replica not in self._lost]


@pytest.mark.parametrize("vector", of("cocktail_reinit_shrink"))
def test_ranks_and_sizes_follow_a_loss(vector: Vector, monkeypatch: pytest.MonkeyPatch) -> None:
    before, columns = vector["inputs"]["before"], vector["per_survivor"]
    pipe, replicas = before["pipeline_group_size"], list(range(before["data_group_size"]))
    for survivor, rank in enumerate(columns["old_rank"]):
        job = ShrinkingJob(pipe, replicas, rank, vector["inputs"]["lost_data_ranks"])
        monkeypatch.setattr(elastic, "joined", lambda job=job: job)
        args = arguments({**before, "dp_backend": "gloo"}, rank)
        mpu.init_communicators(args)
        assert (args.rank, args.world_size) == (rank, before["world_size"])
        pipeline, data = mpu.get_pipeline_parallel_comm(), mpu.get_data_parallel_comm()
        mpu.reinit_dp_communicator(args)
        right = {column: values[survivor] for column, values in columns.items()}
        size = right["correct_data_parallel_world_size"]  # DIFFERENT: cocktail_reinit_shrink
        assert args.rank == right["new_rank"]
        assert (args.world_size, args.data_group_size) == (len(columns["old_rank"]), size)
        assert mpu.get_data_parallel_rank() == right["correct_data_parallel_rank"]
        assert mpu.get_data_parallel_world_size() == size
        assert mpu.get_pipeline_parallel_rank() == right["pipeline_parallel_rank"]
        assert mpu.get_pipeline_parallel_world_size() == right["pipeline_parallel_world_size"]
        mapped = [mpu.to_global_rank(place) for place in range(size)]
        if size > 1:
            assert mapped == right["data_group"] == right["data_to_global"]
            assert mapped in vector["groups"]["data"]
        else:  # DIFFERENT: the reference keeps the old communicator
            assert (mapped, vector["groups"]["data"]) == ([right["new_rank"]], [])
        assert (mpu.get_pipeline_parallel_comm(), mpu.get_data_parallel_comm()) == (pipeline, data)
        mpu.destroy_model_parallel()


# DeepSpeed's topologies and grids.


@pytest.mark.parametrize("vector", of("deepspeed_topology"))
def test_topology(vector: Vector) -> None:
    right = vector["expect"]
    topology = topology_in({"topology": vector["inputs"]})
    assert topology is not None
    ranks = range(right["world_size"])
    assert topology.world_size() == right["world_size"]
    assert topology.get_axis_names() == right["axis_names"]
    assert [list(topology.get_coord(rank)) for rank in ranks] == right["coords"]
    assert [topology.get_rank(**topology.get_coord(rank)._asdict()) for rank in ranks] == right["get_rank"]
    assert {axis: topology.get_dim(axis) for axis in right["get_dim"]} == right["get_dim"]
    assert {axis: topology.get_axis_comm_lists(axis) for axis in right["axis_comm_lists"]} == right["axis_comm_lists"]
    lists = {
        axis: [topology.get_axis_list(axis, place) for place in range(topology.get_dim(axis))]
        for axis in right["axis_lists"]
    }
    assert lists == right["axis_lists"]
    spelled = {
        "default": [topology.get_rank_repr(rank) for rank in ranks],
        "omit_none": [topology.get_rank_repr(rank, omit_axes=[]) for rank in ranks],
        "seps": [topology.get_rank_repr(rank, [], "=", "/") for rank in ranks],
    }
    assert spelled == right["rank_repr"]
    for match in right["filter_match"]:
        assert topology.filter_match(**match["kwargs"]) == match["ranks"]
    mistakes: dict[str, Callable[[], Any]] = {
        "get_rank_missing_axis": lambda: topology.get_rank(**dict.fromkeys(topology.axes[1:], 0)),
        "get_rank_coord_out_of_range": lambda: topology.get_rank(
            **dict.fromkeys(topology.axes, 0) | {topology.axes[0]: 99}
        ),
        "get_rank_unknown_axis_same_count": lambda: topology.get_rank(**dict.fromkeys(topology.axes[1:], 0), jeff=0),
        "get_coord_out_of_range": lambda: topology.get_coord(topology.world_size()),
        "get_coord_negative": lambda: topology.get_coord(-1),
        "filter_match_unknown_axis": lambda: topology.filter_match(jeff=0),
        "get_axis_list_unknown_axis": lambda: topology.get_axis_list("jeff", 0),
        "get_axis_list_index_out_of_range": lambda: topology.get_axis_list(topology.axes[0], 99),
    }
    assert mistakes.keys() == right["errors"].keys()
    for name, recorded in right["errors"].items():
        if is_error(recorded):
            with pytest.raises(LayoutError):
                mistakes[name]()
        else:
            assert mistakes[name]() == recorded


@pytest.mark.parametrize("vector", of("deepspeed_grid", "deepspeed_grid_default"))
def test_grid(vector: Vector) -> None:
    inputs, columns = vector["inputs"], vector["per_rank"]
    for rank in range(inputs["world_size"]):
        grid = mpu.PipelineParallelGrid(rank, inputs["world_size"], topology_in(inputs))
        assert grid.topology().axes == vector["effective_topology"]["axes"]
        assert grid.topology().dims == vector["effective_topology"]["dims"]
        kinds = {"data": "data", "pipe": "pipe", "p2p": "p2p", "model": "slice", "ds_model": "model"}
        assert {kind: grid.groups(ours) for kind, ours in kinds.items()} == vector["groups"]
        stages = range(grid.get_pipe_parallel_world_size())
        found = {
            "dp_group": grid.get_data_parallel_group_ranks(),
            "pp_group": grid.get_pipe_parallel_group_ranks(),
            "slice_group": grid.get_slice_parallel_group_ranks(),
            "model_parallel_group_ranks": grid.get_model_parallel_group_ranks(),
            "stage_to_global": [grid.stage_to_global(stage) for stage in stages],
            "has_model_groups_attr": grid.get_slice_parallel_world_size() > 1,
        }
        for name in columns.keys() - found.keys():
            value = getattr(grid, name)
            found[name] = value() if callable(value) else value
        assert found == {name: values[rank] for name, values in columns.items()}


@pytest.mark.parametrize("vector", of("deepspeed_grid_error"))
def test_a_grid_of_another_size_is_refused(vector: Vector) -> None:
    with pytest.raises(LayoutError):
        mpu.PipelineParallelGrid(0, vector["inputs"]["world_size"], topology_in(vector["inputs"]))


# Megatron-Core's orders: a topology of one's own gives them to the accessors.

MCORE = {"data": "dp", "pipe": "pp", "model": "tp"}


@pytest.mark.parametrize("vector", of("mcore_rank_generator"))
def test_an_order_of_megatron_core(vector: Vector, monkeypatch: pytest.MonkeyPatch) -> None:
    if "error" in vector:
        with pytest.raises(LayoutError):
            megatron_core_layout(**vector["inputs"])
        return
    layout = megatron_core_layout(**vector["inputs"])
    for token, groups in vector["groups"].items():
        assert [list(group) for group in layout.groups(*token.split("-"))] == groups
    names = {theirs: ours for ours, theirs in MCORE.items()}
    axes = [(names.get(name, name), size) for name, size in layout.axes]
    if layout.rank_offset:
        return  # a part of a larger world, which is no topology of its own
    topology = mpu.ProcessTopology([name for name, _ in axes], [size for _, size in axes])
    for rank in (0, layout.world_size - 1):
        with world(rank, layout.world_size, monkeypatch):
            mpu.initialize_model_parallel(layout.size("tp"), topology)
            for ours, theirs in MCORE.items():
                own = next(group for group in vector["groups"][theirs] if rank in group)
                assert members(GROUPS[ours]()) == own


def test_the_names_of_the_references_are_all_there() -> None:
    called = {step["call"][0] for vector in VECTORS if vector["family"] == "lifecycle" for step in vector["steps"]}
    assert called <= set(mpu.__all__)
