"""The groups of one generation: the data group of this coordinate and the control rounds of this replica.

The replica's own default group belongs to its formation and outlives generations (`formation.py`).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from reknit.rendezvous.parts import View
from reknit.rendezvous.records import Name, Replica
from reknit.runtime.communicator.communicator import Communicator
from reknit.runtime.recovery.control import ReplicaRounds
from reknit.runtime.recovery.evidence import Evidence
from reknit.runtime.recovery.formation import Formation


@dataclass
class Groups:
    """What a worker holds of one generation; the groups are None until they are connected.

    `cancelled` frees the builds; `entered` is set when the comparison is entered; `urgent` says that this generation is
    over and its groups are interrupted.
    """

    view: View
    name: Name
    cancelled: threading.Event = field(default_factory=threading.Event)
    entered: bool = False
    urgent: bool = False
    data: Communicator | None = None
    rounds: ReplicaRounds | None = None
    formation: Formation | None = None
    verify_every: int = 0  # how often all of the job compare their states in this generation
    excused: int = 0  # the step at which they do not, as somebody was healed for what was found there
    evidence: Evidence = field(default_factory=Evidence)
    others: list[Communicator] = field(default_factory=list)  # what else was built, and ends with it

    @property
    def generation(self) -> int:
        """The plan's number."""
        return self.view.generation

    @property
    def replica(self) -> Replica:
        """This worker's replica."""
        assert self.view.replica is not None
        return self.view.replica

    @property
    def coordinate(self) -> int:
        """This worker's rank within its replica."""
        return self.replica.names.index(self.name)

    @property
    def data_rank(self) -> int:
        """This worker's rank in its data group: its replica's place among the replicas."""
        return self.peers.index(self.name)

    @property
    def peers(self) -> tuple[Name, ...]:
        """The members of the data group, by rank."""
        return tuple(peer.place.name for peer in self.view.peers)

    @property
    def since(self) -> int:
        """First generation of this worker's unbroken run of places."""
        return self.replica.places[self.coordinate].since

    def interrupt(self, formation_over: bool) -> None:
        """This generation is over (rules 6 and 7).  Called with the lock of `Recovery` held, from any thread."""
        self.urgent = True
        self.cancelled.set()
        for communicator in (self.data, *self.others):
            if communicator is not None:
                communicator.interrupt()
        if formation_over:
            if self.rounds is not None:
                self.rounds.interrupt()
            if self.formation is not None:
                self.formation.interrupt()

    def add(self, communicator: Communicator) -> None:
        """Let a communicator end with this generation."""
        self.others.append(communicator)
        if self.urgent:  # it may have come too late to be seen by the interrupt
            communicator.interrupt()

    def close(self) -> None:
        """Close what is between replicas, and what was added."""
        for communicator in (self.data, *self.others):
            if communicator is not None:
                communicator.close()

    def gather_evidence(self) -> None:
        """Ask every group whose connections are closed.  Ask early: those who leave close theirs, too."""
        self.evidence.ask(self.data, self.peers)
        self.evidence.ask(self.rounds, self.replica.names)
        self.evidence.ask(self.formation, self.replica.names)
