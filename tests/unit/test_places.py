"""The choice of places: who stays, who fills a hole, and who holds the state."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reknit.rendezvous.places import Candidate, Places, choose_places, newest_complete, places_for
from reknit.rendezvous.records import Name, Version


def name(text: str) -> Name:
    return Name(text, "1")


def head(*replicas: str) -> Places:
    return tuple(tuple(name(worker) for worker in replica.split()) for replica in replicas)


def seated(places: Places) -> list[str]:
    return [" ".join(n.worker_id for n in replica) for replica in places]


def placed(worker: str, coordinate: int = 0, ready: int = 5, **fields: object) -> Candidate:
    """Somebody who has had a place in generations 3 to 5 and is current, unless told otherwise."""
    usual = {"coordinate": coordinate, "placed": 5, "since": 3, "ready": ready}
    return Candidate(name(worker), **{**usual, **fields})  # type: ignore[arg-type]


def fresh(worker: str, coordinate: int | None = None, host: str = "") -> Candidate:
    return Candidate(name(worker), coordinate=coordinate, host=host)


def test_intact_replicas_stay_in_their_order() -> None:
    people = [placed("a"), placed("b"), placed("c"), fresh("d", 0)]
    assert seated(choose_places(head("c", "a", "b"), people, 4, 1)) == ["c", "a", "b", "d"]


def test_only_a_member_of_that_coordinate_fits_and_a_fresh_process_fits_anywhere() -> None:
    people = [placed("a0", 0), placed("a1", 1), placed("b0", 0), fresh("x", 0)]
    assert seated(choose_places(head("a0 a1", "b0 b1"), people, 2, 2)) == ["a0 a1"]
    assert seated(choose_places(head("a0 a1", "b0 b1"), [*people, fresh("y")], 2, 2)) == ["a0 a1", "b0 y"]


def test_a_fresh_process_is_not_spent_where_somebody_else_fits() -> None:
    people = [fresh("a"), fresh("z", 0)]
    assert seated(choose_places((), people, 1, 2)) == ["z a"]


def test_current_members_come_before_others_and_recent_before_old() -> None:
    people = [fresh("a", 0), placed("b", ready=0, placed=2), placed("c", ready=0, placed=4), placed("d")]
    here = head("d x", "y z")
    partners = [fresh(f"p{k}", 1) for k in range(4)]
    chosen = choose_places(here, people + partners, 4, 2)
    assert [replica.split()[0] for replica in seated(chosen)] == ["d", "c", "b", "a"]


def test_of_equals_the_one_on_the_same_host_is_taken() -> None:
    people = [fresh("a", 0, "h2"), fresh("b", 1, "h1"), fresh("c", 1, "h2"), fresh("d", 0, "h1")]
    assert seated(choose_places((), people, 2, 2)) == ["a c", "d b"]


def test_draining_members_give_way() -> None:
    people = [placed("a", draining=True), placed("b"), fresh("c", 0)]
    assert seated(choose_places(head("a", "b"), people, 2, 1)) == ["b", "c"]
    assert seated(choose_places(head("a", "b"), people[:2], 2, 1)) == ["b"]


@pytest.mark.parametrize("least", [1, 2])
def test_draining_members_stay_if_there_would_be_too_few_replicas(least: int) -> None:
    people = [placed("a", draining=True), placed("b")]
    assert len(choose_places(head("a", "b"), people, 2, 1, least)) == least


def test_all_drain_at_once_and_one_of_each_coordinate_stays_in_one_replica() -> None:
    people = [placed(f"{r}{c}", c, draining=True) for r in "ab" for c in (0, 1)] + [fresh("x", 0), fresh("y", 1)]
    assert seated(choose_places(head("b0 b1", "a0 a1"), people, 2, 2)) == ["b0 b1", "x y"]


def test_a_draining_member_stays_until_another_one_is_current() -> None:
    a, b = placed("a", draining=True), placed("b", since=5, ready=0)
    assert seated(choose_places(head("a", "b"), [a, b], 2, 1)) == ["a", "b"]
    assert seated(choose_places(head("a", "b"), [a, placed("b", since=5, ready=5)], 2, 1)) == ["b"]


def test_where_nobody_is_current_yet_nobody_is_drained() -> None:
    people = [placed("a", draining=True, ready=0), placed("b", ready=0), fresh("c", 0)]
    assert seated(choose_places(head("a", "b"), people, 2, 1)) == ["a", "b"]


def test_a_current_member_keeps_a_place_when_the_job_shrinks() -> None:
    people = [placed("n", since=5, ready=0), placed("o")]
    assert seated(choose_places(head("n", "o"), people, 1, 1)) == ["o"]


def test_another_incarnation_is_not_the_one_that_has_the_place() -> None:
    people = [Candidate(Name("a", "2"), coordinate=0), placed("b")]
    chosen = choose_places(head("a", "b"), people, 2, 1)
    assert [replica[0] for replica in chosen] == [name("b"), Name("a", "2")]


def test_the_newest_complete_version_compares_generation_first() -> None:
    old, new = Version(3, 9), Version(4, 2)
    people = [
        placed("a0", 0, versions=frozenset({old, new})),
        placed("a1", 1, versions=frozenset({old})),
        placed("b1", 1, versions=frozenset({new})),
    ]
    assert newest_complete(people, 2) == new
    assert newest_complete(people[:2], 2) == old
    assert newest_complete(people[:1], 2) is None
    assert newest_complete([], 1) is None


def test_places_are_made_around_the_holders_of_a_version() -> None:
    v = frozenset({Version(4, 2)})
    people = [placed("a", draining=True, versions=v), placed("b"), fresh("c")]
    assert seated(places_for(Version(4, 2), people, 2, 1)) == ["a", "b"]
    assert seated(places_for(Version(4, 2), people, 9, 1)) == ["a", "b", "c"]


# ---------------------------------------------------------------- properties

SIZES = st.integers(1, 3)


@st.composite
def companies(draw: st.DrawFn) -> tuple[Places, list[Candidate], int, int]:
    """A head, some of whose members have gone, and others beside them."""
    size, replicas = draw(SIZES), draw(st.integers(0, 3))
    seats: Places = tuple(tuple(name(f"m{r}{c}") for c in range(size)) for r in range(replicas))
    people = []
    for replica in seats:
        for coordinate, who in enumerate(replica):
            if draw(st.booleans()):
                since, ready = draw(st.integers(1, 5)), draw(st.integers(0, 5))
                people.append(Candidate(who, coordinate, 5, since, ready, draw(st.booleans()), "h1"))
    for k in range(draw(st.integers(0, 4))):
        fits = draw(st.none() | st.integers(0, size - 1))
        was = draw(st.integers(0, 4)) if fits is not None else 0
        people.append(Candidate(name(f"x{k}"), fits, was, min(was, 1), was, draw(st.booleans()), f"h{k % 2}"))
    return seats, draw(st.permutations(people)), draw(st.integers(1, 4)), size


@settings(deadline=None)
@given(companies(), st.integers(0, 5))
def test_a_choice_is_valid_stable_and_blind_to_the_order_of_members(
    company: tuple[Places, list[Candidate], int, int], most: int
) -> None:
    seats, people, wanted, size = company
    chosen = choose_places(seats, people, wanted, size, most=most)
    assert chosen == choose_places(seats, people[::-1], wanted, size, most=most)
    assert len(chosen) <= max(wanted, most)
    assert len(chosen) <= wanted or any(c.draining for c in people), "only who leaves makes one replica more useful"
    names = [who for replica in chosen for who in replica]
    assert len(set(names)) == len(names) == size * len(chosen)
    by_name = {c.name: c for c in people}
    assert all(by_name[who].fits(coordinate) for replica in chosen for coordinate, who in enumerate(replica))


@settings(deadline=None)
@given(companies())
def test_at_each_coordinate_a_current_member_keeps_a_place(company: tuple[Places, list[Candidate], int, int]) -> None:
    seats, people, wanted, size = company
    chosen = choose_places(seats, people, wanted, size)
    sat = {who: coordinate for replica in seats for coordinate, who in enumerate(replica)}
    current = {c.name for c in people if c.name in sat and c.ready >= c.since}
    for coordinate in range(size if chosen else 0):
        here = {who for who in current if sat[who] == coordinate}
        assert not here or here & {replica[coordinate] for replica in chosen}


@settings(deadline=None)
@given(companies())
def test_places_around_a_version_lose_none_that_a_complete_set_holds(
    company: tuple[Places, list[Candidate], int, int],
) -> None:
    _, people, wanted, size = company
    held = [
        Candidate(c.name, c.coordinate, draining=c.draining, versions=frozenset({Version(1, k % 3)}))
        for k, c in enumerate(people)
    ]
    best = newest_complete(held, size)
    if best is None:
        return
    chosen = places_for(best, held, wanted, size)
    by_name = {c.name: c for c in held}
    for coordinate in range(size):
        assert any(best in by_name[replica[coordinate]].versions for replica in chosen[:1])
