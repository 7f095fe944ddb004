"""What the accessors do beyond what the references were recorded to do: refusals, an elastic job, overrides, life."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from reknit.rendezvous.errors import LayoutError
from reknit.rendezvous.records import Coordinate
from reknit.runtime import mpu
from reknit.runtime.errors import BackendRefused
from reknit.runtime.mpu import elastic
from reknit.runtime.mpu.accessors import backing
from reknit.runtime.mpu.world import StaticWorld


@pytest.fixture
def world() -> Iterator[None]:
    """Rank 5 of eight on torch's fake process groups."""
    dist.init_process_group("fake", rank=5, world_size=8, store=FakeStore())
    yield
    leave()


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    leave()


def leave() -> None:
    mpu.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()


class Job:
    """Replica 1 of three, pipe 2 x model 2; this worker is at (1, 0).  `members` may change.

    `entered` False: as the script builds its model; who asks for the data axis then would have to wait.
    """

    pipeline_size, model_size = 2, 2
    coordinate = Coordinate(1, 0)

    def __init__(self) -> None:
        self.entered = True
        self.members = (1, 3)
        self.data_group: Any = object()
        self.io_group: Any = object()
        self.reinits = 0

    @property
    def replica(self) -> int:
        assert self.entered, "this would wait for a generation"
        return self.members[0]

    @property
    def replicas(self) -> int:
        assert self.entered, "this would wait for a generation"
        return self.members[1]

    def replica_group(self, axis: str) -> Any:
        assert self.entered, "this would wait for a generation"
        return f"the {axis} group"

    def reinit(self) -> None:
        self.reinits += 1
        self.members = (0, 2)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    made = Job()
    monkeypatch.setattr(elastic, "joined", lambda: made)
    return made


# A static world.


def test_without_torchs_default_group_there_is_one_sentence_that_says_what_to_do() -> None:
    with pytest.raises(mpu.NotInitialized, match="init_process_group"):
        mpu.initialize_model_parallel(1)


@pytest.mark.usefixtures("world")
def test_groups_that_cannot_all_be_made_are_all_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    real = dist.new_group

    def new_group(*arguments: Any, **options: Any) -> Any:
        if len(made) == 5:
            raise RuntimeError("no more")
        made.append(real(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(dist, "new_group", new_group)
    with pytest.raises(RuntimeError, match="no more"):
        mpu.initialize_model_parallel(2)
    assert mpu.is_unitialized()
    for group in made:
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            with pytest.raises(ValueError, match="Invalid process group"):
                dist.destroy_process_group(group)
    monkeypatch.undo()
    mpu.initialize_model_parallel(2)
    assert mpu.get_model_parallel_world_size() == 2


@pytest.mark.usefixtures("world")
def test_a_rebuild_that_fails_leaves_no_closed_group_behind_and_can_be_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mpu.initialize_model_parallel(1)
    world = backing("the world")
    assert isinstance(world, StaticWorld)
    with monkeypatch.context() as patch:
        patch.setattr(dist, "new_group", _refuse)
        with pytest.raises(RuntimeError, match="no more"):
            world.rebuild("data", "gloo")
    for axis in ("data", "io"):
        with pytest.raises(mpu.NotInitialized):
            world.group(axis)
    world.rebuild("data", "fake")
    assert world.group("io") is world.group("data")


def _refuse(*_: Any, **__: Any) -> Any:
    raise RuntimeError("no more")


@pytest.mark.usefixtures("world")
def test_destroying_closes_the_groups_and_survives_the_end_of_the_world() -> None:
    mpu.initialize_model_parallel(2)
    group = mpu.get_data_parallel_group()
    mpu.destroy_model_parallel()
    mpu.destroy_model_parallel()
    with pytest.raises(ValueError, match="Invalid process group"):
        dist.destroy_process_group(group)
    mpu.initialize_model_parallel(2)
    dist.destroy_process_group()
    mpu.destroy_model_parallel()
    assert not mpu.is_initialized()


@pytest.mark.usefixtures("world")
def test_a_topology_of_somebody_elses_class_will_do() -> None:
    sizes = {"pipe": 2, "data": 2, "model": 2}
    theirs: Any = SimpleNamespace(get_axis_names=lambda: list(sizes), get_dim=sizes.__getitem__)
    mpu.initialize_model_parallel(2, theirs)
    assert mpu.get_topology() == mpu.PipeModelDataParallelTopology(num_pp=2, num_mp=2, num_dp=2)
    assert dist.get_process_group_ranks(mpu.get_pipe_parallel_group()) == [1, 5]


@pytest.mark.usefixtures("world")
def test_a_static_world_cannot_change_its_members(monkeypatch: pytest.MonkeyPatch) -> None:
    real = dist.new_group
    monkeypatch.setattr(dist, "new_group", lambda ranks, **_: real(ranks))
    shape = {"rank": 5, "pipeline_group_size": 2, "dp_backend": "gloo", "dist_url": ""}
    mpu.init_communicators(SimpleNamespace(world_size=8, data_group_size=4, **shape))
    with pytest.raises(LayoutError, match=r"reknit\.join"):
        mpu.reinit_dp_communicator(SimpleNamespace(world_size=6, data_group_size=3, **shape))
    with pytest.raises(mpu.AlreadyInitialized):
        mpu.init_communicators(SimpleNamespace(world_size=8, data_group_size=4, **shape))


def test_a_reinit_before_the_first_initialisation_says_so() -> None:
    with pytest.raises(mpu.NotInitialized):
        mpu.reinit_dp_communicator(SimpleNamespace(dp_backend="gloo"))


@pytest.mark.usefixtures("world")
def test_ranks_of_the_data_group_are_bounded() -> None:
    mpu.initialize_model_parallel(2)
    assert [mpu.to_global_rank(place) for place in range(4)] == [1, 3, 5, 7]
    for place in (-1, 4):
        with pytest.raises(LayoutError, match="ranks 0 to 3"):
            mpu.to_global_rank(place)


# An elastic job.


def test_an_elastic_job_answers_for_the_present(job: Job) -> None:
    mpu.initialize_model_parallel(2, fp32_allreduce=True)
    assert (mpu.get_data_parallel_rank(), mpu.get_data_parallel_world_size()) == (1, 3)
    assert (mpu.get_pipe_parallel_rank(), mpu.get_pipe_parallel_world_size()) == (1, 2)
    assert (mpu.get_model_parallel_rank(), mpu.get_tensor_model_parallel_world_size()) == (0, 2)
    assert mpu.get_data_parallel_group() is job.data_group
    assert mpu.get_io_parallel_group() is job.io_group
    assert (mpu.get_pipe_parallel_group(), mpu.get_model_parallel_group()) == ("the pipe group", "the model group")
    assert (mpu.get_topology(), mpu.get_fp32_allreduce()) == (None, True)
    job.members = (0, 5)
    assert (mpu.get_data_parallel_rank(), mpu.get_data_parallel_world_size()) == (0, 5)


def test_what_lies_within_the_replica_is_known_as_the_script_builds_its_model_and_nothing_waits(job: Job) -> None:
    job.entered = False
    mpu.initialize_model_parallel(2)
    assert (mpu.get_pipe_parallel_rank(), mpu.get_pipe_parallel_world_size()) == (1, 2)
    assert (mpu.get_model_parallel_rank(), mpu.get_model_parallel_world_size()) == (0, 2)
    assert (mpu.get_pipeline_parallel_rank(), mpu.get_pipeline_parallel_world_size()) == (1, 2)
    assert (mpu.get_model_parallel_src_rank(), mpu.get_pipe_parallel_src_rank()) == (2, 0)
    with pytest.raises(AssertionError, match="wait for a generation"):
        mpu.get_data_parallel_world_size()


def test_source_ranks_in_a_job_are_torchs_numbers(job: Job) -> None:
    """torch's default group is the replica: its ranks are 0 to 3, and the next replica's follow."""
    mpu.initialize_model_parallel(2)
    assert mpu.get_model_parallel_src_rank() == 2
    assert mpu.get_pipe_parallel_src_rank() == 0
    assert mpu.get_data_parallel_src_rank() == 2 * 4 + 2  # replica 0 is the second after replica 1, around
    job.members = (0, 3)
    assert mpu.get_data_parallel_src_rank() == 2


def test_a_worker_that_takes_no_part_in_input_and_output_gets_torchs_value_for_that(job: Job) -> None:
    job.io_group = None
    mpu.initialize_model_parallel(2)
    assert mpu.get_io_parallel_group() is dist.GroupMember.NON_GROUP_MEMBER


def test_a_topology_given_to_a_job_says_pipe_and_model_and_is_told_as_it_is(job: Job) -> None:
    mpu.initialize_model_parallel(2, mpu.PipeModelDataParallelTopology(num_pp=2, num_mp=2, num_dp=1))
    assert mpu.get_topology() == mpu.ProcessTopology(["data", "pipe", "model"], [3, 2, 2])
    job.members = (1, 2)
    assert mpu.get_topology() == mpu.ProcessTopology(["data", "pipe", "model"], [2, 2, 2])


@pytest.mark.parametrize(
    ("model", "topology", "why"),
    [
        (1, None, "start it with --model 1"),
        (2, mpu.PipeModelDataParallelTopology(4, 2, 1), "start it with --pipe 4"),
        (2, mpu.PipeModelDataParallelTopology(2, 1, 1), "make them agree"),
        (2, mpu.ProcessTopology(["data", "model"], [3, 2]), "start it with --pipe 1"),
    ],
)
def test_sizes_that_are_not_the_jobs_are_refused(job: Job, model: int, topology: Any, why: str) -> None:
    with pytest.raises(LayoutError, match=why):
        mpu.initialize_model_parallel(model, topology)
    assert not mpu.is_initialized()
    assert job.reinits == 0


def test_a_reinit_in_a_job_sets_the_arguments_and_keeps_the_objects(job: Job) -> None:
    args = SimpleNamespace(world_size=0, rank=0, pipeline_group_size=2, data_group_size=0, dp_backend="gloo")
    mpu.init_communicators(args)
    assert (args.world_size, args.rank, args.data_group_size) == (12, 6, 3)
    mpu.reinit_dp_communicator(args)
    assert (args.world_size, args.rank, args.data_group_size, job.reinits) == (8, 2, 2, 1)
    assert mpu.get_data_parallel_comm() is job.data_group
    args.dp_backend = "nccl"
    with pytest.raises(BackendRefused):
        mpu.reinit_dp_communicator(args)
    assert (args.world_size, job.reinits) == (8, 1)


def test_destroying_leaves_a_jobs_groups_alone(job: Job) -> None:
    mpu.initialize_model_parallel(2)
    mpu.destroy_model_parallel()
    mpu.initialize_model_parallel(2)
    assert mpu.get_data_parallel_group() is job.data_group


# Overrides.


@pytest.mark.usefixtures("world")
def test_an_override_for_a_block_ends_with_it() -> None:
    mpu.initialize_model_parallel(2)
    with mpu.set_model_parallel_world_size(4), mpu.set_model_parallel_rank(3):
        assert (mpu.get_model_parallel_rank(), mpu.get_model_parallel_world_size()) == (3, 4)
        with mpu.set_tensor_model_parallel_rank(0):
            assert mpu.get_tensor_model_parallel_rank() == 0
        assert mpu.get_model_parallel_rank() == 3
    assert (mpu.get_model_parallel_rank(), mpu.get_model_parallel_world_size()) == (1, 2)


@pytest.mark.usefixtures("world")
def test_overrides_are_kept_within_what_can_be() -> None:
    mpu.set_model_parallel_rank(100)  # nobody knows the size yet
    with pytest.raises(mpu.NotInitialized):
        mpu.get_model_parallel_rank()
    mpu.initialize_model_parallel(2)
    with pytest.raises(LayoutError, match="from 0 to 1, not by 100"):
        mpu.get_model_parallel_rank()
    wrong: Any
    for wrong in (-1, 2, True):
        with pytest.raises(LayoutError, match="rank"):
            mpu.set_model_parallel_rank(wrong)
    for wrong in (0, -2, 1.5):
        with pytest.raises(LayoutError, match="world size"):
            mpu.set_model_parallel_world_size(wrong)
    mpu.set_model_parallel_rank(None)
    assert mpu.get_model_parallel_rank() == 1
    mpu.set_model_parallel_rank(0)
    mpu.destroy_model_parallel()
    mpu.initialize_model_parallel(2)
    assert mpu.get_model_parallel_rank() == 1


# The module.


def test_the_migration_table_names_what_there_is() -> None:
    assert mpu.__doc__ is not None
    told = [re.escape(words.partition("(")[0]) for words in re.findall(r"`([^`]+)`", mpu.__doc__)]
    for mark, meaning in ((r"\\{", "("), (r"\\}", ")"), (",", "|"), (r"\\\[", "("), (r"\\\]", ")?"), ("…", r"\\w*")):
        told = [re.sub(mark, meaning, words) for words in told]
    for name in mpu.__all__:
        value = getattr(mpu, name)
        assert value.__doc__, name
        if inspect.isfunction(value):
            assert any(re.fullmatch(words, name) for words in told), f"{name} is not in the table"
