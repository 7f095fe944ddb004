"""Builds the groups of one generation where the plan says that its members meet, and notes who did not come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.distributed as dist

from reknit.rendezvous.codec import split_address
from reknit.rendezvous.records import Axes, Coordinate, Name
from reknit.runtime.communicator.communicator import Communicator
from reknit.runtime.errors import Interrupted
from reknit.runtime.recovery.control import ReplicaRounds
from reknit.runtime.recovery.formation import Formation, form
from reknit.runtime.recovery.groups import Groups


class Wiring(Protocol):
    """How groups are built; `job` makes it out of the worker's settings."""

    pipe_backend: str
    device: torch.device
    axes: Axes

    def connect(
        self, address: tuple[str, int], prefix: str, rank: int, size: int, cancelled: threading.Event
    ) -> Communicator:
        """Build an interruptible gloo group; raises Interrupted."""

    def nccl_store(self, host: str, rounds: ReplicaRounds, rank: int) -> dist.Store:
        """A torch store that all members of a new formation reach; raises Interrupted."""


class Builder:
    """Builds a worker's groups.  Each is met at the meeting point of its first member.  Raises Interrupted."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring

    @property
    def uses_nccl(self) -> bool:
        """Whether this worker would use NCCL within its replica."""
        return self._wiring.pipe_backend == "nccl"

    def connect(self, groups: Groups) -> None:
        """The data group and the control rounds, at the same time."""
        in_parallel([lambda: self._connect_data(groups), lambda: self._connect_rounds(groups)], groups.cancelled)

    def form(self, groups: Groups) -> Formation:
        """The replica's default group, anew."""
        places, rounds = groups.replica.places, groups.rounds
        assert rounds is not None

        def connect(prefix: str, ranks: Sequence[int], cancelled: threading.Event | None) -> Communicator:
            return self._build_part(groups, prefix, ranks, cancelled)

        formation = form(
            groups.replica,
            groups.generation,
            groups.coordinate,
            self._wiring.pipe_backend,
            connect,
            lambda: self._wiring.nccl_store(split_address(places[0].address)[0], rounds, groups.coordinate),
            self._wiring.device,
        )
        try:
            formation.make_lines(self._wiring.axes.pipe, self._wiring.axes.model)
        except BaseException:
            formation.end()
            raise
        return formation

    def connect_ends(self, groups: Groups) -> Communicator:
        """The first and last stage of this replica, at model 0: those two call it.  It ends with the generation."""
        ends = [0, self._wiring.axes.index(Coordinate(self._wiring.axes.pipe - 1, 0))]
        made = self._build_part(groups, f"ends/{groups.generation}/{groups.replica.slot}", ends)
        groups.add(made)
        return made

    def _connect_data(self, groups: Groups) -> None:
        prefix = f"data/{groups.generation}/{groups.coordinate}"
        address = groups.view.peers[0].place.address
        groups.data = self._build(groups, address, prefix, groups.data_rank, groups.peers)

    def _connect_rounds(self, groups: Groups) -> None:
        places = groups.replica.places
        if len(places) == 1:
            groups.rounds = ReplicaRounds(None)
            return
        prefix = f"control/{groups.generation}/{groups.replica.slot}"
        communicator = self._build(groups, places[0].address, prefix, groups.coordinate, groups.replica.names)
        groups.rounds = ReplicaRounds(communicator)

    def _build_part(
        self, groups: Groups, prefix: str, ranks: Sequence[int], cancelled: threading.Event | None = None
    ) -> Communicator:
        """A group of some members of the replica."""
        places = [groups.replica.places[rank] for rank in ranks]
        names = [place.name for place in places]
        return self._build(groups, places[0].address, prefix, names.index(groups.name), names, cancelled)

    def _build(
        self,
        groups: Groups,
        address: str,
        prefix: str,
        rank: int,
        names: Sequence[Name],
        cancelled: threading.Event | None = None,
    ) -> Communicator:
        """One group of `names`, the first of whom serves the meeting at `address`."""
        try:
            return self._wiring.connect(split_address(address), prefix, rank, len(names), cancelled or groups.cancelled)
        except Interrupted as error:
            groups.evidence.add(error, names)
            raise


def in_parallel(tasks: Sequence[Callable[[], None]], cancelled: threading.Event) -> None:
    """Run all tasks, each on a thread; the first failure cancels the others and is raised when all have ended."""
    errors: list[BaseException] = []

    def run(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:
            errors.append(error)
            cancelled.set()

    threads = [threading.Thread(target=run, args=(task,), name="reknit-connect", daemon=True) for task in tasks[1:]]
    for thread in threads:
        thread.start()
    if tasks:
        run(tasks[0])
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
