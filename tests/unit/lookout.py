"""A job in a store in memory, as somebody outside sees it: its records, and agents that answer a look."""

from __future__ import annotations

import logging
from dataclasses import replace

from tests.unit.planning import Job, running

from reknit.rendezvous import parts
from reknit.rendezvous.accusation import AgentRecord, encode_agent
from reknit.rendezvous.codec import encode_member, encode_spec
from reknit.rendezvous.history import encode_record, record_of
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.looking import Looker, Sight
from reknit.rendezvous.records import Member, Plan
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.shows import Show, Shown, encode_show
from reknit.rendezvous.store.memory import MemoryStore
from reknit.rendezvous.store.protocol import Event

KEYS = Keys("gpt")


class Lookout:
    """Two replicas of two stages, a0 a1 and b0 b1; each replica is of one agent, host-a or host-b.

    `answers`: what each agent tells at each look.
    """

    def __init__(self, job: Job | None = None) -> None:
        self.now = 1000.0
        self.store = MemoryStore(lambda: self.now)
        self.job = job or running(2, pipe=2)
        self.answers: dict[str, Show] = {}
        self.looks: list[float] = []
        self.waited = 0.0
        self.store.watch(KEYS.look, lambda snapshot: None, lambda news: self._looked(news[-1]))
        self.looker = Looker(
            self.store, KEYS, Rejected(logging.getLogger("test")), "test", clock=lambda: self.now, pause=self.wait
        )

    def wait(self, seconds: float) -> None:
        self.waited += seconds
        self.pass_time(seconds)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.store.tick()

    def _looked(self, event: Event) -> None:
        if event.entry is not None:
            self.looks.append(self.now)
            for show in self.answers.values():
                self.tell(show)

    def tell(self, show: Show) -> None:
        self.store.put(KEYS.show(show.agent), encode_show(show))

    def answer(self, *shown: Shown, agent: str = "host-a") -> None:
        self.answers[agent] = Show(agent, shown)

    def publish(self, plan: Plan | None = None) -> None:
        """Everything that lies in the store of such a job."""
        plan = plan or self.job.plan
        assert plan is not None
        places = {place.name for replica in plan.replicas for place in replica.places}
        replicas = tuple(
            replace(
                replica,
                places=tuple(
                    replace(p, agent=agent_of(p.name.worker_id), host="node", address="127.0.0.1:1")
                    for p in replica.places
                ),
            )
            for replica in plan.replicas
        )
        plan = replace(plan, replicas=replicas)
        head, found = parts.encode(plan)
        for key, value in found.items():
            self.store.put(KEYS.prefix + key, value)
        self.store.put(KEYS.head, head)
        self.store.put(KEYS.spec, encode_spec(self.job.spec))
        self.store.put(KEYS.history(plan.generation), encode_record(record_of(plan, 1.7e9 + plan.generation)))
        self.store.put(KEYS.leader, b"host-a")
        for member in self.members():
            self.put(member)
        for number, agent in enumerate(sorted({agent_of(name.worker_id) for name in places})):
            record = AgentRecord(agent, "node", 70 + number, f"127.0.0.1:{8000 + number}")
            self.store.put(KEYS.agent(agent), encode_agent(record))

    def members(self) -> list[Member]:
        return [
            replace(o.member, agent=agent_of(o.member.worker_id), host="node", address="127.0.0.1:1", pid=100 + number)
            for number, o in enumerate(self.job.seen.values())
        ]

    def put(self, member: Member) -> None:
        self.store.put(KEYS.member(member.worker_id), encode_member(member))

    def see(self, patience: float = 0.0) -> Sight:
        return self.looker.see(patience)


def agent_of(worker: str) -> str:
    return f"host-{worker[0]}"
