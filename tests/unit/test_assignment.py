"""Coordinates for fresh processes: as many replicas as possible, and no restart that is not needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from reknit.rendezvous.assignment import LATE, assign, home, incomplete_homes, possible_replicas, surplus
from reknit.rendezvous.places import Candidate
from reknit.rendezvous.records import Name


def who(k: int) -> Name:
    return Name(f"w{k:02}", "1")


def company(*coordinates: int | None, draining: Sequence[int] = ()) -> list[Candidate]:
    """Members w00, w01, …; None: a fresh process."""
    return [Candidate(who(k), coordinate, draining=k in draining) for k, coordinate in enumerate(coordinates)]


def best(coordinates: Sequence[int | None], wanted: int, size: int) -> int:
    """By counting alone: how many replicas these members can make."""
    free = sum(c is None for c in coordinates)
    for replicas in range(wanted, 0, -1):
        if sum(max(0, replicas - list(coordinates).count(c)) for c in range(size)) <= free:
            return replicas
    return 0


def test_a_first_replica_is_given_coordinates_in_order() -> None:
    assert assign(company(None, None, None, None), {}, 2, 2) == {who(0): 0, who(1): 1, who(2): 0, who(3): 1}


def test_members_of_one_host_complete_one_replica() -> None:
    people = [Candidate(who(k), host=f"h{k % 2}") for k in range(4)]
    given = assign(people, {}, 2, 2)
    assert {given[who(0)], given[who(2)]} == {0, 1}


def test_members_of_one_host_complete_one_replica_in_whatever_order_hosts_come() -> None:
    first = [Candidate(Name(f"{host}0", "1"), host=host) for host in "ab"]
    before = assign(first, {}, 2, 2)
    later = [Candidate(Name(f"{host}1", "1"), host=host) for host in "ab"]
    given = before | assign([*first, *later], before, 2, 2)
    for host in "ab":
        assert {given[Name(f"{host}{k}", "1")] for k in range(2)} == {0, 1}


def test_a_host_new_to_the_job_is_waited_for_unless_everybody_is_there() -> None:
    people = [Candidate(who(k), host=f"h{k % 2}") for k in range(3)]
    arrived = {who(0): 1.0, who(1): 1.2, who(2): 1.4}
    assert incomplete_homes(people, arrived, {}, 2, 2, now=1.6, window=0.5) == {"host h0": 1.9, "host h1": 1.7}
    assert incomplete_homes(people, arrived, {}, 2, 2, now=1.8, window=0.5) == {"host h0": 1.9}
    assert incomplete_homes(people, arrived, {}, 1, 2, now=1.6, window=0.5) == {}, "the first host is enough"
    assert incomplete_homes(people[:2], arrived, {}, 1, 2, now=1.3, window=0.5) == {"host h0": 1.5, "host h1": 1.7}
    stream = {who(k): 1.0 + k for k in range(3)}
    assert incomplete_homes([*map(Candidate, stream)], stream, {}, 4, 2, now=3.1, window=0.5) == {}, "cut after four"


def test_a_host_that_has_or_lately_had_a_coordinate_is_not_waited_for() -> None:
    here = [Candidate(who(0), 0, host="h"), Candidate(who(1), host="h")]
    assert incomplete_homes(here, {who(1): 1.0}, {}, 2, 2, now=1.1, window=0.5) == {}
    died = {Name("w01", "before"): 1}
    assert incomplete_homes([Candidate(who(1), host="h")], {who(1): 1.0}, died, 2, 2, now=1.1, window=0.5) == {}


def test_those_whom_an_agent_is_known_to_start_are_waited_for_longer_than_the_window_but_not_for_ever() -> None:
    people = [Candidate(who(k), host="h", agent=f"a{k % 2}", team=2) for k in range(3)]
    arrived = {who(0): 1.0, who(1): 1.2, who(2): 1.4}
    assert incomplete_homes(people, arrived, {}, 2, 2, now=2.0, window=0.5) == {"agent a1": 1.2 + LATE}
    assert incomplete_homes(people, arrived, {}, 2, 2, now=1.2 + LATE, window=0.5) == {}


@settings(max_examples=200)
@given(st.data(), st.sampled_from([(2, 2, 2), (3, 2, 2), (4, 2, 2), (3, 4, 2), (3, 3, 3), (2, 8, 4)]))
def test_each_agents_workers_make_whole_replicas_however_they_come(
    data: st.DataObject, shape: tuple[int, int, int]
) -> None:
    agents, workers, size = shape
    everybody = [
        Candidate(Name(f"{agent}-{k}", "1"), host="one machine", agent=f"agent-{agent}", team=workers)
        for agent in range(agents)
        for k in range(workers)
    ]
    moments = st.lists(st.floats(0, LATE - 0.1), min_size=len(everybody), max_size=len(everybody))
    arrived = dict(zip((c.name for c in everybody), data.draw(moments), strict=True))
    wanted = len(everybody) // size
    told: dict[Name, int] = {}
    for now in sorted(
        {*arrived.values(), *(moment + wait for moment in arrived.values() for wait in (0.5, 2.0, LATE))}
    ):
        here = [c for c in everybody if arrived[c.name] <= now]
        waits = incomplete_homes(here, arrived, told, wanted, size, now, 0.5)
        told |= assign([c for c in here if home(c) not in waits], told, wanted, size)
    for agent in range(agents):
        column = Counter(told[c.name] for c in everybody if c.agent == f"agent-{agent}")
        assert set(column.values()) == {workers // size}
        assert len(column) == size


def test_where_more_are_together_they_make_a_replica_and_not_with_one_who_is_alone() -> None:
    people = [Candidate(Name(name, "1"), agent=name[0]) for name in ("a0", "b0", "b1")]
    assert assign(people, {}, 3, 2) == {Name("b0", "1"): 0, Name("b1", "1"): 1}


def test_a_hole_is_filled_and_who_is_not_needed_is_told_nothing() -> None:
    assert assign(company(0, 1, 0, None, None), {}, 2, 2) == {who(3): 1}
    assert assign(company(0, 1, None), {}, 1, 2) == {}
    assert assign(company(0, 1, None), {}, 2, 2) == {}, "one fresh process completes no replica of two"


def test_what_was_given_before_counts() -> None:
    assert assign(company(None, None), {who(0): 1}, 1, 2) == {who(1): 0}


def test_draining_members_are_replaced_and_given_nothing() -> None:
    assert assign(company(0, None, None, draining=(0, 1)), {}, 1, 1) == {who(2): 0}


def test_a_coordinate_that_does_not_exist_is_nobodys() -> None:
    assert assign(company(7, None), {}, 1, 1) == {who(1): 0}
    assert surplus(company(7, 0, 0), {who(1)}, {}, 2, 1) == ()


def test_survivors_of_one_coordinate_fill_another_one_by_restarting() -> None:
    people = company(0, 1, 0, 0)
    assert surplus(people, {who(0), who(1)}, {}, 2, 2) == (who(2),)
    assert surplus(people, {who(0), who(1)}, {}, 1, 2) == ()
    assert surplus(company(0, 1, 0), {who(0), who(1)}, {}, 2, 2) == (), "its own place would be empty"
    assert surplus([*people, Candidate(who(9))], {who(0), who(1)}, {}, 2, 2) == (), "a fresh process does it"


coordinates = st.lists(st.none() | st.integers(0, 2), max_size=12)


@settings(deadline=None)
@given(coordinates, st.integers(1, 5))
def test_assignment_leads_to_as_many_replicas_as_there_can_be(bound: list[int | None], wanted: int) -> None:
    people = company(*bound)
    given = assign(people, {}, wanted, 3)
    assert set(given) <= {c.name for c in people if c.coordinate is None}
    after = [given.get(c.name, c.coordinate) for c in people]
    whole = min(sum(coordinate == i for coordinate in after) for i in range(3))
    assert min(whole, wanted) == best(bound, wanted, 3)
    counts = [sum(coordinate == i for coordinate in bound) for i in range(3)]
    assert possible_replicas(counts, bound.count(None), wanted) == best(bound, wanted, 3)
    assert assign(people, given, wanted, 3) == {}, "and then there is nothing more to do"


@settings(deadline=None)
@given(coordinates, st.integers(1, 5), st.integers(0, 3))
def test_a_restart_is_never_of_a_placed_member_and_always_of_use(
    bound: list[int | None], wanted: int, replicas: int
) -> None:
    people = company(*bound)
    seats = [sorted(c.name for c in people if c.coordinate == i)[: min(replicas, wanted)] for i in range(3)]
    placed = {name for column in seats for name in column}
    named = surplus(people, placed, {}, wanted, 3)
    assert not placed & set(named)
    before = best(bound, wanted, 3)
    after = best([None if c.name in named else c.coordinate for c in people], wanted, 3)
    assert after > before if named else after == before
    for spared in named:
        fewer = set(named) - {spared}
        assert best([None if c.name in fewer else c.coordinate for c in people], wanted, 3) < after
