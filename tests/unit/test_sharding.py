"""Sharded parameters as the second of two workers has them: its parts, what it counts, and how they travel."""

from __future__ import annotations

import io
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from reknit.rendezvous.records import Version
from reknit.runtime import sharding
from reknit.runtime.checkpoint.writer import detached
from reknit.runtime.errors import CommunicatorError
from reknit.runtime.recovery import formation
from reknit.runtime.recovery.gradients import Reduction
from reknit.runtime.recovery.packing import shared_tensors, unpack
from reknit.runtime.recovery.state import State, Update
from reknit.runtime.sharding import OfParts, ShardingError, counts, is_sharded, like, local, put_together, take_apart
from reknit.runtime.torch_groups import TorchGroups


@pytest.fixture
def groups() -> Iterator[TorchGroups]:
    job = SimpleNamespace(
        pipeline_size=1,
        model_size=2,
        _coordinate_index=1,
        device=torch.device("cpu"),
        built=False,
        _in_attempt=False,
        recovery=SimpleNamespace(groups=None),
    )
    yield TorchGroups(cast(Any, job))
    dist.destroy_process_group()


@pytest.fixture
def mesh(groups: TorchGroups) -> DeviceMesh:
    return groups.mesh("model")


def sharded(mesh: DeviceMesh, *placements: Any) -> Any:
    whole = torch.arange(8.0).view(4, 2)
    return distribute_tensor(whole, mesh, placements, src_data_rank=None)


def module(mesh: DeviceMesh, fill: float) -> nn.Module:
    made = nn.Linear(2, 4)
    nn.init.constant_(made.weight, fill)
    nn.init.constant_(made.bias, fill)
    made.weight = nn.Parameter(distribute_tensor(made.weight.detach(), mesh, [Shard(0)], src_data_rank=None))
    return made


def test_a_mesh_stands_before_the_first_attempt_and_sends_nothing(groups: TorchGroups) -> None:
    mesh = groups.mesh("model")
    assert mesh is groups.mesh("model")
    assert (mesh.mesh.tolist(), mesh.get_local_rank(), mesh.mesh_dim_names) == ([0, 1], 1, ("model",))
    assert dist.get_rank() == 1
    with pytest.raises(CommunicatorError, match="src_data_rank=None"):
        distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)])
    assert groups.mesh("pipe").size() == 1
    dist.all_reduce(torch.ones(1), group=groups.mesh("pipe").get_group())


def test_a_formation_takes_the_place_of_the_group_that_stood_in(groups: TorchGroups) -> None:
    groups.mesh("model")
    places = (SimpleNamespace(name="me"),)
    replica: Any = SimpleNamespace(places=places, slot=0, formed=1, names=("me",))
    nobody: Any = None
    made = formation.form(replica, 1, 0, "gloo", nobody, nobody, torch.device("cpu"))
    assert made.group is not None
    assert (dist.get_rank(), dist.get_world_size()) == (0, 1)


def test_a_part_shares_the_memory_and_is_placed_as_its_parameter(mesh: DeviceMesh) -> None:
    parameter = sharded(mesh, Shard(0))
    part = local(parameter)
    assert type(part) is torch.Tensor
    assert part.tolist() == [[4.0, 5.0], [6.0, 7.0]]
    part.add_(1)
    assert parameter.to_local()[0, 0] == 5.0
    again = like(parameter, part)
    assert isinstance(again, DTensor)
    assert (again.shape, again.placements) == (parameter.shape, parameter.placements)
    plain = torch.ones(2)
    assert like(plain, plain) is plain


def test_what_the_second_of_two_counts(mesh: DeviceMesh) -> None:
    assert counts(nn.Parameter(sharded(mesh, Shard(0))), 1)
    assert not counts(nn.Parameter(sharded(mesh, Replicate())), 1)
    assert not counts(nn.Parameter(torch.ones(1)), 1)
    assert counts(nn.Parameter(torch.ones(1)), 0)


def test_a_gradient_that_is_placed_as_its_parameter_is_left_alone(mesh: DeviceMesh) -> None:
    parameter = nn.Parameter(sharded(mesh, Shard(0)))
    parameter.grad = sharded(mesh, Shard(0))
    before = parameter.grad
    sharding.settle([parameter, nn.Parameter(torch.ones(1))])
    assert parameter.grad is before
    parameter.grad = cast(Any, DTensor.from_local(torch.ones(4, 2), mesh, [Partial()], run_check=False))
    with pytest.raises(CommunicatorError):  # a sum over the two, which cannot be sent yet
        sharding.settle([parameter])


@pytest.mark.parametrize("overflow", [False, True])
def test_a_scaler_deals_with_parts(mesh: DeviceMesh, overflow: bool) -> None:
    net: Any = module(mesh, 1.0)
    net.weight.grad = like(net.weight, torch.full((2, 2), 8.0))
    net.bias.grad = torch.full((4,), float("inf") if overflow else 8.0)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(1))
    scaled = OfParts.of(optimizer)
    scaler.unscale_(scaled)
    Update(optimizer, scaler=scaler, scaled=scaled).apply()
    left = 1.0 if overflow else 0.0
    assert net.weight.to_local().unique().tolist() == net.bias.unique().tolist() == [left]
    assert net.weight.grad is None
    assert scaler.get_scale() == (4.0 if overflow else 8.0)
    plain = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    assert OfParts.of(plain) is plain


def test_the_reduction_is_of_parts(mesh: DeviceMesh) -> None:
    class Twice:
        size = 2

        def all_reduce(self, tensor: torch.Tensor, op: str = "sum", *, asynchronous: bool = False) -> None:
            tensor.mul_(2)

    parameter = nn.Parameter(sharded(mesh, Shard(0)))
    reduction = Reduction([parameter], False)
    assert reduction.buckets[0].flat.numel() == 4 + 1
    reduction.begin(Twice())
    parameter.grad = sharded(mesh, Shard(0))
    reduction.finish()
    gradient: Any = parameter.grad
    assert is_sharded(gradient)
    assert gradient.to_local().tolist() == [[8.0, 10.0], [12.0, 14.0]]
    assert gradient.shape == parameter.shape


def test_taken_apart_it_is_plain_and_put_together_it_is_the_same(mesh: DeviceMesh) -> None:
    state: dict[str, Any] = {"a": [sharded(mesh, Shard(1)), 3], "b": {"c": sharded(mesh, Replicate())}}
    file = io.BytesIO()
    torch.save(take_apart(state, [mesh]), file)
    file.seek(0)
    back = put_together(torch.load(file, weights_only=True), [mesh])
    for mine, theirs in ((back["a"][0], state["a"][0]), (back["b"]["c"], state["b"]["c"])):
        assert torch.equal(mine.to_local(), theirs.to_local())
        assert (mine.placements, mine.shape, mine.device_mesh) == (theirs.placements, theirs.shape, mesh)
    assert back["a"][1] == 3


def test_what_cannot_be_moved_is_refused(mesh: DeviceMesh) -> None:
    partial = DTensor.from_local(torch.ones(1), mesh, [Partial()], run_check=False)
    with pytest.raises(ShardingError, match="can only take Shard and Replicate"):
        take_apart(partial, [mesh])
    with pytest.raises(ShardingError, match="register the module"):
        take_apart(sharded(mesh, Shard(0)), [])
    with pytest.raises(ShardingError, match="shard their models differently"):
        put_together(take_apart(sharded(mesh, Shard(0)), [mesh]), [])


def test_a_peer_is_healed_of_sharded_parameters_and_of_their_optimizer_and_a_checkpoint_has_them(
    mesh: DeviceMesh,
) -> None:
    states = []
    for fill in (1.0, 2.0, 3.0):
        state, net = State(), module(mesh, fill)
        optimizer = torch.optim.AdamW(net.parameters())
        state.register("model", net)
        state.register("optimizer", optimizer)
        states.append(state)
    healthy, fresh, restored = states
    trained: Any = healthy.registered["model"]
    trained.weight.grad = like(trained.weight, torch.ones(2, 2))
    trained.bias.grad = torch.ones(4)
    healthy.prepare(Version(1, 1), Update(cast(Any, healthy.registered["optimizer"])))
    healthy.commit()
    packed = healthy.packed()
    assert len(list(shared_tensors(healthy.registered, healthy.pack()["registered"]))) == 2 * (1 + 3)
    taken, own = unpack(packed.structure, packed.shared.tensors)
    for place, theirs in zip(own, packed.own, strict=True):
        place.copy_(theirs)
    fresh.unpack(taken, Version(1, 1), 1)
    assert fresh.digest() == healthy.digest()
    assert fresh.checksum() == healthy.checksum()
    file = io.BytesIO()
    torch.save(detached(healthy.pack()), file)
    file.seek(0)
    restored.unpack(torch.load(file, weights_only=True), Version(1, 1), 1)
    assert restored.digest() == healthy.digest()


class Boom(nn.Module):
    """Fails when it is told to."""

    fails = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fails:
            raise RuntimeError("boom")
        return x


def test_fsdp_is_brought_back_after_a_pass_that_broke_off(groups: TorchGroups) -> None:
    mesh = groups.mesh("pipe")  # of this worker alone: nothing is sent
    boom = Boom()
    model = nn.Sequential(nn.Linear(2, 3), boom, nn.Linear(3, 1))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh)
    state = State()
    state.register("model", model)

    def is_whole() -> bool:
        return not all(is_sharded(p) for p in model.parameters())

    sharding.reset(model)
    assert not is_whole()
    state.begin_attempt()
    with pytest.raises(RuntimeError, match="boom"):
        model(torch.ones(1, 2))
    assert is_whole(), "the first layer's parameters are still gathered"
    state.keep(Version(1, 0), 1)
    assert not is_whole()
    boom.fails = False
    model(torch.ones(1, 2)).sum().backward()
    assert all(is_sharded(p.grad) for p in model.parameters())
    state.keep(Version(1, 0), 2)
    assert all(p.grad is None for p in model.parameters())


def test_what_cannot_be_brought_back_is_refused_before_it_is_trained(mesh: DeviceMesh) -> None:
    class Old(nn.Module):
        def set_requires_gradient_sync(self) -> None:
            """As FSDP2 of older versions has it."""

    with pytest.raises(ShardingError, match="use torch"):
        State().register("model", nn.Sequential(Old()))
    partial: Any = nn.Module()
    partial.weight = nn.Parameter(DTensor.from_local(torch.ones(2), mesh, [Partial()], run_check=False))
    with pytest.raises(ShardingError, match="can only take"):
        State().register("model", partial)
