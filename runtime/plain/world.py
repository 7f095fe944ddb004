"""What torchrun would tell each process of a world, made of a plan; and what the processes' hosts tell each other.

Pure.  One worker hosts one process; the world are the workers that have a place in the present generation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from reknit.rendezvous.parts import Peer
from reknit.rendezvous.records import Name, Place

ROLE = "default"


@dataclass(frozen=True)
class World:
    """One process's place: `group` is its agent's number.  `master`: the numeric address of rank 0's host.

    `local`: its rank among the `locals` processes of its agent that are in the world.  An agent may have more workers
    than have places, so its own numbers of them may lack 0, which some scripts rely on.
    """

    rank: int
    size: int
    group: int
    groups: int
    master: str
    local: int = 0
    locals: int = 1

    @classmethod
    def of(cls, peers: Sequence[Peer], name: Name) -> World:
        """From a data group; each agent's processes have ranks that follow each other, as torchrun's have."""
        places = [peer.place for peer in peers]
        agents = list(dict.fromkeys(_agent(place) for place in places))  # by their lowest data rank
        ordered = sorted(places, key=lambda place: (agents.index(_agent(place)), _number(place), place.name))
        rank = next(i for i, place in enumerate(ordered) if place.name == name)
        host = ordered[0].address.rpartition(":")[0].strip("[]")
        agent = _agent(ordered[rank])
        beside = [i for i, place in enumerate(ordered) if _agent(place) == agent]
        group = agents.index(agent)
        return cls(rank, len(ordered), group, len(agents), host, beside.index(rank), len(beside))

    def environment(self, port: int, restarts: int, max_restarts: int, job: str) -> dict[str, str]:
        """What torchrun sets."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local),
            "LOCAL_WORLD_SIZE": str(self.locals),
            "GROUP_RANK": str(self.group),
            "GROUP_WORLD_SIZE": str(self.groups),
            "ROLE_NAME": ROLE,
            "ROLE_RANK": str(self.rank),
            "ROLE_WORLD_SIZE": str(self.size),
            "MASTER_ADDR": self.master,
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RESTART_COUNT": str(restarts),
            "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
            "TORCHELASTIC_RUN_ID": job,
            "TORCHELASTIC_USE_AGENT_STORE": "False",
        }


def _agent(place: Place) -> str:
    return place.agent or place.host


def _number(place: Place) -> int:
    number = re.search(r"\d+$", place.name.worker_id)
    return int(number.group()) if number else 0


@dataclass(frozen=True)
class Word:
    """What each host says in a round; together they say the largest of each number.

    `newest`: minus the newest generation known, so that together it is what all know.  `failed`, `killed`: the rank
    whose process failed by itself, or was killed, plus 1.  `unfinished`: its process has not ended well yet.  `done`:
    once, those of all had.  `ending`: it still ends.  `port`: from rank 0, if all are to start now.  `restarts`: how
    many there have been.  `given_up`: there have been too many.  `teller`: who tells why they start again: the first
    rank that knows, counted from the end.
    """

    newest: int
    failed: int = 0
    killed: int = 0
    unfinished: int = 1
    done: int = 0
    ending: int = 0
    port: int = 0
    restarts: int = 0
    given_up: int = 0
    teller: int = 0

    def numbers(self) -> list[int]:
        """In the order of the fields."""
        return list(astuple(self))

    @property
    def why(self) -> str:
        """What went wrong, as the beginning of a sentence; empty if nothing did."""
        if self.killed:
            return f"the script of rank {self.killed - 1} was killed"
        return f"the script of rank {self.failed - 1} failed" if self.failed else ""
