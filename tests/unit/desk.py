"""An agent that nobody has started: things are put before it one by one, and what it says is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reknit.rendezvous.parts import Head
from reknit.rendezvous.records import RUNNING, Axes, Member, Spec
from reknit.rendezvous.store.memory import MemoryStore
from reknit.runtime.agent import Agent
from reknit.runtime.config import Config
from reknit.runtime.events import EventLog
from reknit.runtime.ipc.server import Peer, PeerEvent


def peer(worker: str = "w0", number: int = 1, incarnation: str = "a", **hello: Any) -> Peer:
    return Peer(number, worker, incarnation, 4000 + number, 0, {"address": "127.0.0.1:5000", **hello})


def head(generation: int, **fields: Any) -> Head:
    usual: dict[str, Any] = {"reason": "why", "state": RUNNING, "broken": 0, "target": None, "restore": False}
    more: dict[str, Any] = {"origin": 0, "placed": 0, "replicas": 0, "writer": 1, "digest": ""}
    return Head(generation, **{**usual, **more, **fields})


class Desk:
    """A sidecar that nobody has started: things are put before it one by one."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.path = folder / "events"
        config = Config(None, etcd="127.0.0.1:1", spec=Spec(Axes(), 1, 2), events=self.path, **settings)
        self.log = EventLog(self.path)
        self.agent = Agent(config, MemoryStore(), self.log, folder / "socket")
        self.dropped: list[tuple[Peer, str]] = []
        self.sent: list[tuple[Peer, dict[str, Any]]] = []
        self.agent.station.server.drop = lambda peer, reason: self.dropped.append((peer, reason))  # type: ignore[method-assign]
        self.agent.station.server.send = self._send  # type: ignore[method-assign,assignment]

    def _send(self, peer: Peer, message: dict[str, Any]) -> bool:
        self.sent.append((peer, message))
        return True

    def attach(self, who: Peer) -> Peer:
        self.agent.take(PeerEvent("opened", who))
        return who

    def say(self, who: Peer, /, **message: Any) -> None:
        self.tell(who, message)

    def tell(self, who: Peer, message: dict[str, Any]) -> None:
        self.agent.take(PeerEvent("message", who, message))

    def record(self, worker_id: str) -> Member:
        return self.agent._session._members[worker_id]

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line, parse_constant=_refuse) for line in self.path.read_text().splitlines()]


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")
