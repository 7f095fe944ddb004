"""Asking an agent whether it still lives, and the record by which an agent is found.

A node that dies whole closes its workers' connections, which the survivors see at once, while its lease stands for
seconds.  So whoever has reason to doubt an agent accuses it, by a key that this agent watches; one that lives deletes
the key.  What is still there after a short while is marked as unanswered: the agent is gone, and its lease is revoked.
"""

from __future__ import annotations

from dataclasses import dataclass

from reknit.rendezvous.codec import Reader, clipped, dumps, loads
from reknit.rendezvous.keys import check_name
from reknit.rendezvous.records import FORMAT


@dataclass(frozen=True)
class Accusation:
    """`agent` is asked whether it lives.  `generation`: in which the accuser's worker lost sight of its workers.

    `reason` is a sentence for people.  `unanswered`: the accuser has waited long enough.
    """

    agent: str
    by: str
    generation: int
    reason: str
    unanswered: bool = False


@dataclass(frozen=True)
class AgentRecord:
    """An agent as the others see it.  `http`: where it serves its metrics (host:port), empty if nowhere.

    `node`: where it is, so that another life of the same agent is told from another agent of the same name.
    """

    agent: str
    host: str
    pid: int
    http: str = ""
    node: str = ""


def encode_accusation(accusation: Accusation) -> bytes:
    """An accusation's value; the accused is named by its key."""
    told = {"by": accusation.by, "generation": accusation.generation, "reason": clipped(accusation.reason)}
    return dumps({"format": FORMAT, **told, "unanswered": accusation.unanswered})


def decode_accusation(raw: bytes, key: str) -> Accusation:
    """The accusation at `key`; RecordError if it does not fit."""
    reader = Reader(loads(raw, key), key)
    accused = check_name("agent", key.rpartition("/")[2])
    generation = reader.generation("generation")
    return Accusation(accused, reader.text("by"), generation, reader.text("reason"), reader.flag("unanswered"))


def encode_agent(record: AgentRecord) -> bytes:
    """An agent's record; it is named by its key."""
    told = {"host": record.host, "pid": record.pid, "http": record.http, "node": record.node}
    return dumps({"format": FORMAT, **told})


def decode_agent(raw: bytes, key: str) -> AgentRecord:
    """The agent's record at `key`; RecordError if it does not fit."""
    reader = Reader(loads(raw, key), key)
    name = check_name("agent", key.rpartition("/")[2])
    where = reader.text("host"), reader.number("pid"), reader.text("http", ""), reader.text("node", "")
    return AgentRecord(name, *where)
