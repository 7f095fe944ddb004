"""The books that `cut` keeps: who could not reach whom, and who holds what, kept up as members go one by one.

In a job of thousands all may complain of a hundred each, and the leader has to decide within a second.  So nothing here
is counted anew when somebody goes, and members are numbers: their positions in the order of their names.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping

from reknit.rendezvous.eviction import Seat
from reknit.rendezvous.records import Name


class Complaints:
    """Complaints between members that have a seat; those that are open, and how much trouble each member has by them.

    `absent[m]`: whom m could not reach; `missed[m]`: who could not reach m.  Of the open ones, `within[m]` concern it,
    `accused[m]` say that it could not be reached, and `trouble[m]` is with how many members.  `apart`: with how many
    other agents an agent's members have trouble.
    """

    def __init__(self, complaints: Mapping[Name, Collection[Name]], seats: Mapping[Name, Seat]) -> None:
        self.names = sorted(seats)
        number = {name: m for m, name in enumerate(self.names)}
        everybody = range(len(self.names))
        self.absent: list[set[int]] = [set() for _ in everybody]
        self.missed: list[set[int]] = [set() for _ in everybody]
        for by, named in complaints.items():
            if by in number:
                self.absent[number[by]] = {number[of] for of in named if of in number and of != by}
        for m in everybody:
            for of in self.absent[m]:
                self.missed[of].add(m)
        self.reported = {number[name] for name in complaints if name in number}
        self.content = {number[name] for name, named in complaints.items() if not named and name in number}
        self._open_absent = [set(those) for those in self.absent]
        self._open_missed = [set(those) for those in self.missed]
        self.accused = [len(those) for those in self.missed]
        self.within = [len(self.absent[m]) + len(self.missed[m]) for m in everybody]
        self.trouble = [len(self.absent[m] | self.missed[m]) for m in everybody]
        self._excused: set[int] = set()
        self._count_agents(seats)

    def _count_agents(self, seats: Mapping[Name, Seat]) -> None:
        agents = [seats[name].agent or name.worker_id for name in self.names]
        self.agent = [*map({agent: a for a, agent in enumerate(sorted(set(agents)))}.__getitem__, agents)]
        self.open: defaultdict[int, set[int]] = defaultdict(set)  # agent -> its members whom an open complaint concerns
        self._between: Counter[tuple[int, int]] = Counter()
        for m, named in enumerate(self.absent):
            if named or self.missed[m]:
                self.open[self.agent[m]].add(m)
            for a, count in Counter(self.agent[of] for of in named).items():
                self._between[self._pair(self.agent[m], a)] += count
        self.apart = Counter(agent for one, other in self._between if one != other for agent in (one, other))

    @staticmethod
    def _pair(one: int, other: int) -> tuple[int, int]:
        return (one, other) if one <= other else (other, one)

    def left(self) -> Iterator[tuple[Name, Name]]:
        """The open complaints, in order."""
        for m, named in enumerate(self._open_absent):
            for of in sorted(named):
                yield self.names[m], self.names[of]

    def drop_against(self, m: int) -> None:
        """The open complaints of this member were for nothing."""
        for by in list(self._open_missed[m]):
            self._settle(by, m)
            self.absent[by].discard(m)
            self.missed[m].discard(by)

    def settle_by(self, gone: int) -> None:
        """Settle what is settled by this member's going: see `cut`."""
        for by in list(self._open_missed[gone]):
            self._settle(by, gone)
        for of in list(self._open_absent[gone]):
            self._settle(gone, of)
        for m in self.missed[gone] - self._excused:
            self._excused.add(m)
            for by in self._open_missed[m] - self.absent[m]:
                self._settle(by, m)

    def _settle(self, by: int, of: int) -> None:
        self._open_absent[by].discard(of)
        self._open_missed[of].discard(by)
        mutual = of in self._open_missed[by]
        self.accused[of] -= 1
        for m in (by, of):
            self.within[m] -= 1
            self.trouble[m] -= not mutual
            if not self.within[m]:
                self.open[self.agent[m]].discard(m)
        pair = self._pair(self.agent[by], self.agent[of])
        self._between[pair] -= 1
        if not self._between[pair] and pair[0] != pair[1]:
            self.apart.subtract(pair)


class Holders:
    """Who is left of those who hold a state: `eviction.can_go`, as members go.

    `stuck`: those who cannot go, or not any more.
    """

    def __init__(self, seats: Mapping[int, Seat]) -> None:
        self._seats = seats
        self._left: defaultdict[int, defaultdict[tuple[int, bool], set[int]]] = defaultdict(lambda: defaultdict(set))
        for m, seat in seats.items():
            self._left[seat.coordinate][seat.standing, seat.placed].add(m)
        self.stuck = {m for coordinate in self._left for m in self._alone(coordinate)}

    def go(self, m: int) -> None:
        """This one goes."""
        seat = self._seats[m]
        self._left[seat.coordinate][seat.standing, seat.placed].discard(m)
        self.stuck |= self._alone(seat.coordinate)

    def _alone(self, coordinate: int) -> set[int]:
        """Those here besides whom nobody holds the state at least as well."""
        kinds = self._left[coordinate]
        return {
            m
            for (standing, placed), alike in kinds.items()
            if sum(len(those) for (s, p), those in kinds.items() if s >= standing and (p or not placed)) == 1
            for m in alike
        }
