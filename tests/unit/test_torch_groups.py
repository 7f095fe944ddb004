"""A job's process groups between its generations: alone at first, then of the present one, and never silently wrong."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from reknit.rendezvous.errors import LayoutError
from reknit.rendezvous.records import Coordinate
from reknit.runtime.communicator.communicator import Communicator
from reknit.runtime.elastic_group import ElasticGroup, Operation
from reknit.runtime.errors import Interrupted
from reknit.runtime.recovery.groups import Groups
from reknit.runtime.recovery.state import State
from reknit.runtime.torch_groups import Grouped, TorchGroups
from reknit.runtime.trained import SelfReduced, Trained


class Job:
    """As much of a job as its groups look at."""

    def __init__(self, pipe: int = 1) -> None:
        self.pipeline_size, self.model_size = pipe, 1
        self.coordinate, self._coordinate_index = Coordinate(0, 0), 0
        self.built = self._in_attempt = False
        self.recovery = SimpleNamespace(groups=None)

    def groups(self) -> TorchGroups:
        return TorchGroups(cast(Any, self))

    def enter(self, groups: TorchGroups) -> Communicator:
        """Enter a generation with one replica."""
        alone = Communicator(None, name="data/1/0", rank=0, size=1)
        present = SimpleNamespace(data=alone, data_rank=0, peers=("me",))
        self.built, self.recovery.groups = True, present
        groups.renew(cast(Groups, present))
        return alone


@pytest.fixture(autouse=True)
def replica_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def reduced(group: ElasticGroup) -> float:
    value = torch.ones(1)
    dist.all_reduce(value, group=group)
    return value.item()


def test_alone_before_the_first_generation_and_refused_between_two() -> None:
    job = Job()
    groups = job.groups()
    group = groups.data
    assert (reduced(group), group.size()) == (1.0, 1)
    job.enter(groups)
    assert reduced(group) == 1.0
    job.recovery.groups = None
    with pytest.raises(Interrupted, match="between two generations"):
        reduced(group)
    job.enter(groups)
    assert (groups.data is group, reduced(group)) == (True, 1.0)


@pytest.mark.parametrize("axis", ["data", "ends", "tensor"])
def test_an_axis_that_is_none_within_a_replica_is_refused_before_it_takes_the_data_groups_place(axis: str) -> None:
    job = Job()
    groups = job.groups()
    with pytest.raises(LayoutError, match=r"job\.data_group"):
        groups.mesh(axis)
    with pytest.raises(LayoutError, match=r"job\.data_group"):
        Grouped.replica_group(cast(Any, job), axis)
    assert type(groups.data) is ElasticGroup


def test_before_the_first_generation_torch_has_a_default_group_that_device_meshes_can_ask() -> None:
    dist.destroy_process_group()  # the tests' own
    job = Job(pipe=2)
    job.coordinate, job._coordinate_index = Coordinate(1, 0), 1
    mesh = DeviceMesh.from_group(job.groups().data, "cpu")
    assert (mesh.size(), dist.get_world_size(), dist.get_rank()) == (1, 2, 1)


def test_the_ends_of_one_stage_are_the_data_group_and_inner_stages_have_none() -> None:
    job = Job()
    groups = job.groups()
    assert groups.ends is groups.data
    job.pipeline_size, job.coordinate = 3, Coordinate(1, 0)
    assert groups.ends is None
    job.coordinate = Coordinate(2, 1)
    assert groups.ends is None
    job.coordinate = Coordinate(2, 0)
    assert groups.ends is not None
    assert groups.ends is not groups.data


class Failing(torch.autograd.Function):
    """Reduces over a group in its backward pass, as DistributedDataParallel does."""

    group: ElasticGroup

    @staticmethod
    def forward(_: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(gradient, group=Failing.group)
        return gradient


def backward(group: ElasticGroup) -> None:
    Failing.group = group
    failing: Any = Failing.apply
    failing(torch.ones(1, requires_grad=True)).sum().backward()


def test_what_fails_in_a_backward_pass_of_an_attempt_is_raised_before_anything_is_prepared() -> None:
    """Else the others, who are prepared, too, would roll forward to gradients that were never reduced."""
    job = Job()
    groups = job.groups()
    group, communicator = groups.data, job.enter(groups)
    job._in_attempt = True
    backward(group)
    groups.check()
    communicator.interrupt("somebody died")
    backward(group)
    with pytest.raises(Interrupted, match="somebody died"):
        groups.check()
    groups.begin_attempt()
    groups.check()


def test_a_future_that_was_completed_in_vain_is_told_likewise() -> None:
    job = Job()
    groups = job.groups()
    group, communicator = groups.data, job.enter(groups)
    job._in_attempt = True
    communicator.interrupt("somebody died")
    tensors = [torch.ones(1)]
    assert group.allreduce(tensors).get_future().wait() == tensors
    with pytest.raises(Interrupted, match="somebody died"):
        groups.check()


def test_outside_of_an_attempt_it_is_raised_at_once() -> None:
    job = Job()
    groups = job.groups()
    group, communicator = groups.data, job.enter(groups)
    communicator.interrupt("somebody died")
    with pytest.raises(Interrupted, match="somebody died"):
        backward(group)


def test_what_torch_reduces_over_the_data_group_is_not_reduced_again() -> None:
    group = Job().groups().data
    inner, plain = nn.Linear(2, 2), nn.Linear(2, 2)
    parallel = DistributedDataParallel(inner, process_group=group, find_unused_parameters=True)
    local = DistributedDataParallel(nn.Linear(2, 2))
    state = State()
    for name, module in (("parallel", parallel), ("plain", plain), ("local", local)):
        state.register(name, module)
    *reductions, own = Trained(state).reductions()
    assert isinstance(own, SelfReduced)
    assert {id(p) for p in own.parameters()} == {id(p) for p in inner.parameters()}
    others = {id(p) for reduction in reductions for p in reduction.parameters()}
    assert others == {id(p) for module in (plain, local) for p in module.parameters()}
    parallel(torch.ones(1, 2)).sum().backward()
    own.begin(Communicator(None, name="data", rank=0, size=1))
    assert all(p.grad is None for p in inner.parameters())


def test_a_group_within_a_replica_goes_to_torchs_own_group_where_there_is_one() -> None:
    """As with NCCL; here it is gloo's, of this process alone, which tells by its sequence of operations."""
    job = Job()
    groups = job.groups()
    group: Any = groups._get("model", lambda groups: Communicator(None, name="model", rank=0, size=1))
    job.enter(groups)
    present: Any = job.recovery.groups
    for backend in (None, dist.new_group([0])):
        communicator = Communicator(None, name="replica", rank=0, size=1) if backend is None else None
        lines = {} if backend is None else {"model": backend}
        identity = SimpleNamespace(names=("me", "you"))
        present.formation = SimpleNamespace(communicator=communicator, lines=lines, identity=identity)
        gathered = torch.zeros(2)
        work = dist.all_gather_into_tensor(gathered, torch.ones(2), group=group, async_op=True)
        assert work is not None
        assert isinstance(work, Operation) == (backend is None)
        work.wait()
        assert gathered.tolist() == [1.0, 1.0]
        assert reduced(group) == 1.0
        assert (functional.all_reduce(torch.ones(1), "sum", group) + 0).tolist() == [1.0]
