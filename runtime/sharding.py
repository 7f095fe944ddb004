"""Parameters of which each worker of a replica holds a part: what is its own of them, and how that travels.

They are torch's DTensors, as tensor parallelism and FSDP2 make them.  A gradient's reduction over the replicas, healing
and checkpoints are about parts, which are plain tensors: workers at one coordinate hold the same parts.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from reknit.rendezvous.errors import ReknitError
from reknit.runtime.elastic_group import ElasticGroup, unwanted

PART = "part of a sharded tensor"  # the key by which a packed part is known
_RESET = "reset_iter_state"  # FSDP2's own way back


class ShardingError(ReknitError):
    """A tensor is sharded in a way that cannot be moved to a peer."""


def is_sharded(value: Any) -> bool:
    """Whether this is a DTensor.  torch's module for them is not imported in vain."""
    if not isinstance(value, torch.Tensor) or type(value) in (torch.Tensor, torch.nn.Parameter):
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(value, DTensor)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This worker's part of a sharded tensor, in the same memory; a plain tensor as it is.  Out of autograd's sight."""
    with torch.no_grad():
        value: Any = tensor
        part = value.to_local() if is_sharded(tensor) else value.detach()
        made: torch.Tensor = part.wait() if hasattr(part, "wait") else part  # of a collective that is still under way
    return made


def like(parameter: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """A part as a tensor that is placed as the parameter is."""
    if not is_sharded(parameter):
        return part
    from torch.distributed.tensor import DTensor

    whole: Any = parameter
    with torch.no_grad():
        made: torch.Tensor = DTensor.from_local(
            part, whole.device_mesh, whole.placements, run_check=False, shape=whole.shape, stride=whole.stride()
        )
    return made


def settle(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Place gradients as their parameters are, by collectives within the replica.

    Autograd may leave a sum in parts, and an optimizer would reduce it in its step, when nothing may fail any more.
    """
    for parameter in parameters:
        gradient: Any = parameter.grad
        whole: Any = parameter
        if is_sharded(gradient) and gradient.placements != whole.placements:
            with torch.no_grad():
                parameter.grad = gradient.redistribute(placements=whole.placements)


class OfParts:
    """An optimizer as a GradScaler deals with it: its gradients are the worker's parts of sharded ones.

    torch's scaler refuses plain and sharded gradients in one optimizer, and would reduce what it finds in them.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.step = optimizer.step
        self.param_groups = [{"params": [_with_part(p) for p in g["params"]]} for g in optimizer.param_groups]

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer) -> Any:
        """The optimizer itself if nothing in it is sharded."""
        return cls(optimizer) if any(is_sharded(p) for g in optimizer.param_groups for p in g["params"]) else optimizer


def _with_part(parameter: torch.Tensor) -> torch.Tensor:
    part = local(parameter).detach()
    part.grad = None if parameter.grad is None else local(parameter.grad)
    return part


def counts(parameter: torch.nn.Parameter, model_rank: int) -> bool:
    """Whether this worker, at `model_rank` of its stage, is the one who counts what it holds of a parameter.

    So that a sum over all coordinates has every number once.  A DTensor says by its placements which part it is.  A
    plain parameter is the same for all who share the stage, but if it says that it is a part as Megatron-LM's do
    (`tensor_model_parallel`) or GPT-NeoX's and GLM's (`model_parallel`); with `shared`, another stage counts it.
    """
    if getattr(parameter, "shared", False):
        return False
    if is_sharded(parameter):
        whole: Any = parameter
        mesh = whole.device_mesh
        return all(
            not placement.is_replicate() or is_across(mesh.get_group(dim)) or mesh.get_local_rank(dim) == 0
            for dim, placement in enumerate(whole.placements)
        )
    is_part = getattr(parameter, "tensor_model_parallel", False) or getattr(parameter, "model_parallel", False)
    return model_rank == 0 or bool(is_part)


def reset(module: torch.nn.Module) -> None:
    """Bring what FSDP2 has wrapped back to between two passes, after a pass that an exception ended in its midst.

    Of a module that FSDP2 has wrapped in parts, register the whole: its root is where torch knows what is under way.
    """
    fsdp: Any = module
    if hasattr(module, _RESET):
        if fsdp._get_fsdp_state()._is_root is not None:  # a first pass has begun
            with unwanted():
                getattr(fsdp, _RESET)()
        return  # its own parts went along
    for child in module.children():
        reset(child)


def check(name: str, module: torch.nn.Module) -> None:
    """Refuse, before anything is trained, a module that could not go on after a change of members.

    Raises ShardingError.
    """
    for parameter in module.parameters():
        if is_sharded(parameter):
            whole: Any = parameter
            for placement in whole.placements:
                _word(placement)
    for part in module.modules():
        if hasattr(part, "set_requires_gradient_sync") and not hasattr(part, _RESET):
            raise ShardingError(
                f"{name} is wrapped by FSDP2, which in torch {torch.__version__} cannot go on after a pass that broke "
                f"off (FSDPModule.{_RESET}): use torch 2.13 or newer"
            )


def is_across(group: object) -> bool:
    """Whether a group is the job's data group: what it spans is no coordinate's."""
    return isinstance(group, ElasticGroup) and group.across_replicas


# ---------------------------------------------------------------- moving them


def meshes_of(registered: Mapping[str, Any]) -> list[Any]:
    """The meshes over which parameters of registered modules are sharded, in the same order on every worker."""
    found: list[Any] = []
    for name in sorted(registered):
        if isinstance(registered[name], torch.nn.Module):
            for _, parameter in sorted(registered[name].named_parameters()):
                if is_sharded(parameter) and parameter.device_mesh not in found:
                    found.append(parameter.device_mesh)
    return found


def take_apart(value: Any, meshes: list[Any]) -> Any:
    """The same state with plain dictionaries in the place of sharded tensors.  Copies no tensor."""
    if is_sharded(value):
        if value.device_mesh not in meshes:
            raise ShardingError(
                f"a tensor of the registered state is sharded over {value.device_mesh}, and no registered module has a "
                "parameter that is: register the module, too"
            )
        placements = [_word(placement) for placement in value.placements]
        about = [meshes.index(value.device_mesh), placements, list(value.shape), list(value.stride())]
        return {PART: about, "local": local(value)}
    if isinstance(value, dict) and meshes:
        made = copy.copy(value)  # what else a module's own kind of dictionary holds goes along
        for key, item in value.items():
            made[key] = take_apart(item, meshes)
        return made
    if type(value) in (list, tuple) and meshes:
        return type(value)(take_apart(item, meshes) for item in value)
    return value


def put_together(value: Any, meshes: list[Any]) -> Any:
    """The inverse of `take_apart`, over this worker's own meshes."""
    if is_part(value):
        from torch.distributed.tensor import DTensor

        number, words, shape, stride = value[PART]
        if number >= len(meshes):
            raise ShardingError(
                f"a peer's state is sharded over {number + 1} meshes or more, this worker's over {len(meshes)}: the "
                "scripts shard their models differently"
            )
        with torch.no_grad():
            return DTensor.from_local(
                value["local"],
                meshes[number],
                [_placement(word) for word in words],
                run_check=False,
                shape=torch.Size(shape),
                stride=tuple(stride),
            )
    if isinstance(value, dict):
        made = copy.copy(value)
        for key, item in value.items():
            made[key] = put_together(item, meshes)
        return made
    if type(value) in (list, tuple):
        return type(value)(put_together(item, meshes) for item in value)
    return value


def is_part(value: Any) -> bool:
    """Whether this is what `take_apart` made of a sharded tensor."""
    return isinstance(value, dict) and PART in value


def part_of(value: Any) -> Any:
    """The plain tensor of a sharded one, in either form; anything else as it is."""
    if is_part(value):
        return value["local"]
    return local(value) if isinstance(value, torch.Tensor) else value


def _word(placement: Any) -> list[Any]:
    if placement.is_replicate():
        return ["replicate"]
    if type(placement).__name__ == "Shard":
        return ["shard", placement.dim]
    raise ShardingError(f"a registered tensor is placed as {placement}: a peer can only take Shard and Replicate")


def _placement(word: list[Any]) -> Any:
    from torch.distributed.tensor import Replicate, Shard

    return Shard(word[1]) if word[0] == "shard" else Replicate()
