"""What a step trains: whose gradients are reduced, how, and the refusal of what would let replicas drift apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from reknit.runtime.attempt import AttemptError
from reknit.runtime.recovery.gradients import Reduction, Summer
from reknit.runtime.recovery.state import State
from reknit.runtime.sharding import is_across, is_sharded, settle


class SelfReduced:
    """Parameters whose module reduces their gradients over the job's data group by itself, as torch's DDP does."""

    error = None

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self._parameters = parameters

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """All of them."""
        return iter(self._parameters)

    def begin(self, summer: Summer) -> None:
        """A new attempt: nothing of an earlier one is left."""
        for parameter in self._parameters:
            parameter.grad = None

    def arm(self, last_backward: bool) -> None:
        """That is the script's business: `no_sync`."""

    def finish(self) -> None:
        """They are reduced."""


class Trained:
    """The parameters of one worker's registered modules, and of those that `job.data_parallel` was given."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._overlapped: list[torch.nn.Module] = []
        self._made: list[Reduction | SelfReduced] | None = None
        self._checked: set[tuple[int, int, int]] = set()  # what commit was given, and has been looked at

    def overlap(self, module: torch.nn.Module) -> None:
        """Reduce this module's gradients while its backward pass runs."""
        self._overlapped.append(module)
        self._made = None

    def changed(self) -> None:
        """Something was registered."""
        self._made = None

    def reductions(self) -> Iterator[Reduction | SelfReduced]:
        """Of all the parameters: first what is reduced during the backward pass, then the rest."""
        if self._made is None:
            # Nothing tells when the part of a sharded parameter has its gradient.
            overlapped = [p for module in self._overlapped for p in module.parameters() if not is_sharded(p)]
            own = {id(p): p for module in self._state.modules() for p in _reduced_by_itself(module)}
            known = {id(p) for p in overlapped} | own.keys()
            others = {id(p): p for m in self._all() for p in m.parameters() if id(p) not in known}
            parts = [(overlapped, True), (list(others.values()), False)]
            self._made = [Reduction(parameters, overlap) for parameters, overlap in parts if parameters]
            if own:
                self._made.append(SelfReduced(list(own.values())))
        return iter(self._made)

    def settle(self) -> None:
        """Complete the gradients within the replica: before anything is reduced over the replicas, as that may fail."""
        for reduction in self.reductions():
            settle(reduction.parameters())

    def _all(self) -> Iterator[torch.nn.Module]:
        yield from self._state.modules()
        yield from self._overlapped

    def check(self, optimizer: torch.optim.Optimizer, scheduler: Any, scaler: Any) -> None:
        """Refuse what would make replicas drift apart: a newcomer gets what is registered, and nothing else.

        Raises AttemptError.
        """
        given = id(optimizer), id(scheduler), id(scaler)
        if given in self._checked:
            return
        registered = {id(value) for value in self._state.registered.values()}
        for name, value in (("optimizer", optimizer), ("scheduler", scheduler), ("scaler", scaler)):
            if value is not None and id(value) not in registered:
                raise AttemptError(f"the {name} given to commit is not registered: add job.register({name}={name})")
        reduced = {id(p) for reduction in self.reductions() for p in reduction.parameters()}
        trained = (p for group in optimizer.param_groups for p in group["params"] if p.requires_grad)
        missing = sum(id(p) not in reduced for p in trained)
        if missing:
            raise AttemptError(
                f"{missing} of the optimizer's parameters belong to no registered module, so nobody would reduce their "
                "gradients: register their module, or pass it through job.data_parallel"
            )
        self._checked.add(given)


def _reduced_by_itself(module: torch.nn.Module) -> Iterator[torch.nn.Parameter]:
    for part in module.modules():
        if isinstance(part, DistributedDataParallel) and is_across(part.process_group):
            yield from part.parameters()
    for parameter in module.parameters():
        mesh = getattr(parameter, "device_mesh", None)  # FSDP2 makes them so
        if mesh is not None and any(is_across(group) for group in mesh.get_all_groups()):
            yield parameter
