"""Where a job stands, as its records in the store say, and what that means for whoever wants to strike it.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from reknit.rendezvous.accusation import AgentRecord
from reknit.rendezvous.records import RUNNING, Member, Name, Place, Plan


@dataclass(frozen=True)
class Job:
    """The newest plan (None: none yet, or it is just being read), and the records of members and agents by name."""

    plan: Plan | None = None
    members: Mapping[str, Member] = field(default_factory=dict)
    agents: Mapping[str, AgentRecord] = field(default_factory=dict)

    @property
    def generation(self) -> int:
        """The newest plan's number; 0 if there is none."""
        return self.plan.generation if self.plan is not None else 0

    def placed(self) -> list[tuple[int, Place, Member]]:
        """Who has a place and a record: the coordinate's index, the place, the record."""
        found = []
        for replica in self.plan.replicas if self.plan is not None else ():
            for index, place in enumerate(replica.places):
                member = self.members.get(place.name.worker_id)
                if member is not None and member.name == place.name:
                    found.append((index, place, member))
        return found

    def why_not_running(self) -> str:
        """Why not everybody who has a place trains in the newest generation; empty if all do."""
        plan = self.plan
        if plan is None:
            return "there is no plan"
        if plan.state != RUNNING or not plan.replicas:
            return f"generation {plan.generation} is {plan.state}: {plan.reason}"
        ready = {member.name for _, _, member in self.placed() if member.ready == plan.generation and not member.dead}
        late = sorted(plan.names - ready)
        return f"generation {plan.generation} waits for {join_names(late)}" if late else ""

    def outlives(self, victims: Iterable[Name]) -> bool:
        """Whether those who would be left hold every coordinate, so that the job goes on without the victims."""
        if self.plan is None or not self.plan.replicas:
            return False
        doomed = set(victims)
        held = {
            index
            for index, _, member in self.placed()
            if member.name not in doomed and not (member.dead or member.draining or member.finished)
        }
        return held == set(range(len(self.plan.replicas[0].places)))

    def recovered(self, generation: int, victims: Iterable[Name]) -> bool:
        """Whether all that have a place train in a newer generation than `generation`, and no victim has one."""
        if self.plan is None or self.plan.generation <= generation or self.plan.names & set(victims):
            return False
        return not self.why_not_running()


def join_names(names: Iterable[Name | str], most: int = 6) -> str:
    """The names as a list for people, not all if there are many."""
    spelled = [str(name) for name in names]
    rest = f" and {len(spelled) - most} more" if len(spelled) > most else ""
    return ", ".join(spelled[:most]) + rest
