"""What a worker holds: its registered objects, their version, and an update that waits for the job's word.

A version says which attempt made the state (rule 1 of PROTOCOL.md).  Between the reduction and the vote's outcome a
worker holds a *prepared* update on top of its committed state: the gradients are complete, and the step that they
belong to is made either by the vote or by a later comparison ("roll forward"), in both cases by the same `apply`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from reknit.rendezvous.errors import ReknitError
from reknit.rendezvous.records import Version
from reknit.runtime.recovery.checksum import combined
from reknit.runtime.recovery.decision import Row
from reknit.runtime.recovery.digest import digest
from reknit.runtime.recovery.healing import Partial
from reknit.runtime.recovery.packing import Packed, pack, shared_tensors
from reknit.runtime.recovery.randomness import Snapshot, put_random_state, take_random_state
from reknit.runtime.sharding import check, meshes_of, put_together, reset, take_apart


class Stateful(Protocol):
    """What can be registered."""

    def state_dict(self) -> Any:
        """Everything that a peer needs to continue."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Continue from a peer's."""


class RegistrationError(ReknitError, TypeError):
    """An object cannot be registered, or peers have registered different things."""


@dataclass
class Update:
    """One step that is ready to be made: the gradients lie in the parameters."""

    optimizer: torch.optim.Optimizer
    scheduler: Any = None
    scaler: Any = None
    samples: tuple[int, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)
    scaled: Any = None  # the optimizer as the scaler has unscaled it

    def apply(self) -> None:
        """Make the optimizer's and the scheduler's step, and forget the gradients."""
        if self.scaler is not None:
            self.scaler.step(self.scaled or self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.optimizer.zero_grad(set_to_none=True)


class State:
    """Everything of this worker that has a version.  Only the training thread touches it."""

    def __init__(self) -> None:
        self.registered: dict[str, Stateful] = {}
        self.committed: Version | None = None
        self.prepared: Version | None = None
        self.update: Update | None = None
        self.ready = 0  # newest generation that brought this worker to a decided version
        self.partial: Partial | None = None  # of a version that this worker is being brought to
        self.verify_every = 0  # steps between two comparisons with the other replicas, as this worker was told
        self.differed = 0  # the newest step at which this worker's state was given up, as it differed from the others'
        self._trained = False  # whether what is registered has ever been at a step above 0
        self._before: Snapshot | None = None
        self._scaler: Any = None  # one that has unscaled gradients which no step was made with yet

    # ---------------------------------------------------------------- what is registered

    def register(self, name: str, value: Any) -> None:
        """Take an object into the state.  Raises RegistrationError or ShardingError if it cannot be moved to a peer."""
        if not callable(getattr(value, "state_dict", None)) or not callable(getattr(value, "load_state_dict", None)):
            raise RegistrationError(
                f"{name} is a {type(value).__name__}, which has no state_dict and load_state_dict: "
                "give it both, or leave it out if a newcomer does not need it"
            )
        if self.registered.get(name, value) is not value:
            raise RegistrationError(f"{name} is registered already with another object: choose another name")
        if isinstance(value, torch.nn.Module):
            check(name, value)
        self.registered[name] = value

    def modules(self) -> Iterator[torch.nn.Module]:
        """The registered modules."""
        return (value for value in self.registered.values() if isinstance(value, torch.nn.Module))

    @property
    def step(self) -> int:
        """Committed steps."""
        return self.committed.step if self.committed else 0

    @property
    def pristine(self) -> bool:
        """Whether what is registered is still what a script built, even if it counts as no state at present."""
        return not self._trained

    def row(self, coordinate: int, since: int) -> Row:
        """This worker's line in the comparison."""
        return Row(coordinate, self.committed, self.prepared, self.ready >= since > 0)

    # ---------------------------------------------------------------- an attempt

    def begin_attempt(self) -> None:
        """Remember what an attempt changes before it is committed."""
        self._before = Snapshot(self.modules())

    def unscaled_by(self, scaler: Any) -> None:
        """This attempt's gradients are about to be unscaled: a scaler does that once, until its update."""
        self._scaler = scaler

    def prepare(self, version: Version, update: Update) -> None:
        """The gradients are complete: this worker can be brought to `version`."""
        self.prepared, self.update = version, update

    def commit(self) -> Update:
        """Make the prepared step."""
        assert self.prepared is not None
        assert self.update is not None
        update = self.update
        update.apply()
        self.partial = None
        self.committed, self.prepared, self.update, self._before = self.prepared, None, None, None
        self._trained, self._scaler = True, None
        return update

    def keep(self, version: Version, generation: int) -> None:
        """The committed state is the decided one (a restore names it anew): undo the attempt made on top of it."""
        if self._before is not None:
            self._before.restore()
        self._drop()
        self.partial = None
        self.committed, self.ready = version, generation

    def give_up(self) -> None:
        """This state differs from what the other replicas hold: it counts as none."""
        self.differed = self.step
        self.forget()

    def forget(self) -> None:
        """From the first byte of healing to the last there is no state."""
        self._drop()
        self.committed = None

    def _drop(self) -> None:
        self.prepared, self.update, self._before = None, None, None
        if self._scaler is not None:
            self._scaler.update(self._scaler.get_scale())  # the same scale; forgets that it has unscaled
            self._scaler = None
        for module in self.modules():
            reset(module)
            for parameter in module.parameters():
                parameter.grad = None

    def checksum(self) -> int:
        """A quick checksum of what all peers at this coordinate must hold alike, and of how it is laid out."""
        optimizers = {n: v for n, v in self.registered.items() if isinstance(v, torch.optim.Optimizer)}
        states = {name: value.state_dict() for name, value in optimizers.items()}
        packed = pack(None, list(shared_tensors(self.registered, states)))
        return combined([packed.signature, packed.shared.checksum()])

    def digest(self) -> str:
        """A hash of everything registered."""
        return digest({name: value.state_dict() for name, value in self.registered.items()})

    # ---------------------------------------------------------------- moving it

    def packed(self) -> Packed:
        """`pack`, taken apart for the way."""
        state = self.pack()
        return pack(state, list(shared_tensors(self.registered, state["registered"])))

    def keep_partial(self, partial: Partial) -> None:
        """What has come of a healing, which is taken up again if it breaks off."""
        self.partial = partial

    def pack(self) -> dict[str, Any]:
        """The whole registered state and the random state, for a peer."""
        meshes = meshes_of(self.registered)
        return {
            "registered": {name: take_apart(value.state_dict(), meshes) for name, value in self.registered.items()},
            "random": take_random_state(),
        }

    def unpack(self, packed: Mapping[str, Any], version: Version, generation: int) -> None:
        """Take a peer's state over, whole.  Raises RegistrationError if the peers registered different things."""
        theirs: Sequence[str] = sorted(packed["registered"])
        if theirs != sorted(self.registered):
            raise RegistrationError(
                f"this worker registered {sorted(self.registered)}, its peer {theirs}: "
                "every worker at one coordinate must register the same names"
            )
        meshes = meshes_of(self.registered)
        for name, value in self.registered.items():
            value.load_state_dict(put_together(packed["registered"][name], meshes))
        put_random_state(packed["random"])
        self.partial = None
        self.committed, self.ready, self._trained = version, generation, version.step > 0
