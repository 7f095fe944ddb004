"""Where a job's records lie in the store, and the one small record that has no module of its own: an assignment."""

from __future__ import annotations

import re
from dataclasses import dataclass

from reknit.rendezvous.codec import Reader, dumps, loads
from reknit.rendezvous.errors import RecordError
from reknit.rendezvous.parts import HEAD
from reknit.rendezvous.records import FORMAT, Name

ROOT = "/reknit/"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,199}")


@dataclass(frozen=True)
class Keys:
    """The keys of one job; every part of a key that somebody chose is checked here."""

    job: str

    def __post_init__(self) -> None:
        check_name("job", self.job)

    @property
    def prefix(self) -> str:
        """What all of the job's keys begin with; `parts` names its keys relative to this."""
        return f"{ROOT}{self.job}/"

    @property
    def spec(self) -> str:
        """What the operator asks for."""
        return f"{self.prefix}spec"

    @property
    def leader(self) -> str:
        """The election: lease-bound; its creation's revision is the leader's fence."""
        return f"{self.prefix}leader"

    @property
    def head(self) -> str:
        """The newest plan's head."""
        return f"{self.prefix}{HEAD}"

    @property
    def plans(self) -> str:
        """The prefix of all generations' parts."""
        return f"{self.prefix}plans/"

    @property
    def histories(self) -> str:
        """The prefix of the generations' history: `history.py`."""
        return f"{self.prefix}history/"

    def history(self, generation: int) -> str:
        """One generation's history; such keys sort by their generation."""
        return f"{self.histories}{generation:020d}"

    @property
    def members(self) -> str:
        """The prefix of the members' records, which are lease-bound."""
        return f"{self.prefix}members/"

    @property
    def assignments(self) -> str:
        """The prefix of the assignments."""
        return f"{self.prefix}assignments/"

    @property
    def agents(self) -> str:
        """The prefix of the agents' own records, which are lease-bound."""
        return f"{self.prefix}agents/"

    @property
    def accusations(self) -> str:
        """The prefix of the accusations: `accusation.py`."""
        return f"{self.prefix}accusations/"

    @property
    def drains(self) -> str:
        """The prefix of the orders to leave: `draining.py`."""
        return f"{self.prefix}drains/"

    @property
    def look(self) -> str:
        """The sign that somebody looks at the job: `shows.py`."""
        return f"{self.prefix}look"

    @property
    def shows(self) -> str:
        """The prefix of what agents tell while somebody looks."""
        return f"{self.prefix}shows/"

    def show(self, agent: str) -> str:
        """What one agent tells while somebody looks."""
        return f"{self.shows}{check_name('agent', agent)}"

    def drain(self, worker_id: str) -> str:
        """The order to one worker to leave."""
        return f"{self.drains}{check_name('worker id', worker_id)}"

    def agent(self, name: str) -> str:
        """One agent's own record."""
        return f"{self.agents}{check_name('agent', name)}"

    def accusation(self, agent: str) -> str:
        """The accusation of one agent."""
        return f"{self.accusations}{check_name('agent', agent)}"

    def member(self, worker_id: str) -> str:
        """One member's record."""
        return f"{self.members}{check_name('worker id', worker_id)}"

    def assignment(self, worker_id: str) -> str:
        """One member's assignment."""
        return f"{self.assignments}{check_name('worker id', worker_id)}"


def check_name(what: str, name: str) -> str:
    """Return `name` if it can be a part of a key, of a command line and of a metric's label; else raise RecordError."""
    if not NAME.fullmatch(name):
        raise RecordError(
            f"a {what} must be 1 to 200 letters, digits and . _ : @ + -, the first a letter or digit, not {name!r:.80}"
        )
    return name


@dataclass(frozen=True)
class Assignment:
    """The coordinate (its index) for which the leader tells a fresh process to build its model."""

    name: Name
    coordinate: int


def encode_assignment(assignment: Assignment) -> bytes:
    """An assignment's value; the worker is named by its key."""
    return dumps({"format": FORMAT, "incarnation": assignment.name.incarnation, "coordinate": assignment.coordinate})


def decode_assignment(raw: bytes, key: str) -> Assignment:
    """The assignment at `key`; RecordError if it does not fit."""
    reader = Reader(loads(raw, key), key)
    worker_id = key.rpartition("/")[2]
    if not worker_id:
        raise RecordError(f"{key} names no worker")
    return Assignment(Name(worker_id, reader.text("incarnation")), reader.number("coordinate"))
