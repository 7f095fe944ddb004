"""Whom to put out when members cannot reach each other."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from reknit.rendezvous.complaints import Holders
from reknit.rendezvous.cut import Cut, cut, sentences
from reknit.rendezvous.eviction import Seat, can_go
from reknit.rendezvous.records import Name

Complaints = Mapping[Name, Collection[Name]]


def name(worker: str) -> Name:
    return Name(worker, "1")


def seats(replicas: int, pipe: int = 1, standing: int = 2) -> dict[Name, Seat]:
    """Workers a0, a1, … (replica a, by coordinate), b0, …: all are current."""
    return {
        name(f"{replica}{c}"): Seat(c, True, standing, 1, slot)
        for slot, replica in enumerate("abcdefgh"[:replicas])
        for c in range(pipe)
    }


def complain(told: Mapping[str, str]) -> dict[Name, tuple[Name, ...]]:
    return {name(by): tuple(name(of) for of in absent.split()) for by, absent in told.items()}


def links(pairs: Iterable[tuple[Name, Name]], everybody: Iterable[Name]) -> dict[Name, set[Name]]:
    """What all report when these connections are broken: each end complains of the other."""
    told: dict[Name, set[Name]] = {member: set() for member in everybody}
    for one, other in pairs:
        told[one].add(other)
        told[other].add(one)
    return told


def out(found: Cut) -> list[str]:
    assert not found.unresolved
    return [member.worker_id for member in found.out]


# ---------------------------------------------------------------- examples


def test_nobody_complains() -> None:
    assert cut(complain({"a0": "", "b0": ""}), seats(2)) == Cut(())


def test_who_cannot_reach_the_others_goes() -> None:
    assert out(cut(complain({"a0": "c0", "b0": "c0", "c0": "a0 b0"}), seats(3))) == ["c0"]


def test_evidence_from_several_is_enough_although_the_accused_complains_only_of_the_one_whose_store_it_needs() -> None:
    assert out(cut(complain({"a0": "c0", "b0": "c0", "c0": "a0"}), seats(3))) == ["c0"]


def test_who_does_not_even_report_goes_before_who_complains() -> None:
    assert out(cut(complain({"b0": "a0"}), seats(2))) == ["a0"]


def test_who_complains_of_many_while_nobody_misses_it_is_the_one_that_is_cut_off() -> None:
    assert out(cut(complain({"a0": "b0 c0 d0", "b0": "", "c0": "", "d0": ""}), seats(4))) == ["a0"]


def test_who_reported_and_missed_nobody_has_only_come_late() -> None:
    assert cut(complain({"a0": "c0", "b0": "c0", "c0": ""}), seats(3)) == Cut(())


def test_what_is_cut_is_a_host_so_all_of_its_members_go_and_not_those_who_miss_several_of_them() -> None:
    """The first stages of two replicas are on one host, their second stages on another, a third replica on a third."""
    agents = {"a0": "one", "b0": "one", "a1": "two", "b1": "two", "c0": "three", "c1": "three"}
    everybody = {member: replace(seat, agent=agents[member.worker_id]) for member, seat in seats(3, 2).items()}
    told = complain({"a0": "a1 c0", "b0": "b1 c0", "c0": "a0 b0", "c1": ""})
    assert out(cut(told, everybody)) == ["a0", "b0"]


def test_of_two_the_one_that_came_later_goes() -> None:
    both = seats(3)
    both[name("a0")] = replace(both[name("a0")], since=5)
    told = complain({"a0": "b0", "b0": "a0", "c0": ""})
    assert out(cut(told, both)) == ["a0"]
    assert out(cut(told, seats(3))) == ["b0"]


def test_hosts_that_cannot_reach_each_other_leave_one_of_two_replicas_whole() -> None:
    told = complain({"a0": "b0", "b0": "a0", "a1": "b1", "b1": "a1"})
    mixed = seats(2, pipe=2)
    mixed[name("a1")] = replace(mixed[name("a1")], since=5)
    mixed[name("b0")] = replace(mixed[name("b0")], since=3)
    assert out(cut(told, seats(2, pipe=2))) == ["b0", "b1"]
    assert out(cut(told, mixed)) == ["a0", "a1"]


def test_of_two_replicas_the_one_that_can_go_whole_goes() -> None:
    told = complain({"a0": "b0", "b0": "a0", "a1": "b1", "b1": "a1"})
    some = seats(2, pipe=2)
    some[name("b1")] = replace(some[name("b1")], standing=0)
    some[name("a0")] = replace(some[name("a0")], since=5)
    assert out(cut(told, some)) == ["b0", "b1"], "a1 alone holds the state of its coordinate"


def test_who_comes_first_is_taken_back_if_others_must_go_anyway() -> None:
    told = complain({"c0": "a0 b0 d0", "a0": "c0", "b0": "c0", "d0": "c0 e0", "e0": "d0 f0", "f0": "e0"})
    found = cut(told, seats(6))
    assert len(found.out) == 2
    assert name("c0") in found.out


def test_two_last_holders_that_cannot_reach_each_other_stay() -> None:
    found = cut(complain({"a0": "a1", "a1": "a0"}), seats(1, pipe=2))
    assert found == Cut((), ((name("a0"), name("a1")), (name("a1"), name("a0"))))


def test_nobody_goes_in_vain() -> None:
    some = seats(2, pipe=2, standing=0) | seats(1, pipe=2)
    told = complain({"a0": "a1", "a1": "a0 b1", "b1": "a1"})
    found = cut(told, some)
    assert found.out == (), "without b1, a0 and a1 still could not go on"
    assert (name("a0"), name("a1")) in found.unresolved


def test_who_has_no_seat_counts_for_nothing() -> None:
    assert cut(complain({"a0": "x", "y": "a0"}), seats(2)) == Cut(())


def test_half_of_a_large_job_that_is_cut_off_is_put_out_while_the_others_wait() -> None:
    """250 hosts of 8, a replica each, every member of which misses 8 of its own coordinate on the other side."""
    members = [[name(f"{host:03}-{c}") for c in range(8)] for host in range(250)]
    everybody = {m: Seat(c, True, 2, 1, host, f"{host}") for host, own in enumerate(members) for c, m in enumerate(own)}
    broken = [
        (members[one][c], members[125 + (one + k) % 125][c]) for one in range(125) for k in range(8) for c in range(8)
    ]
    began = time.process_time()
    found = cut(links(broken, everybody), everybody)
    assert time.process_time() - began < 1.0
    assert set(found.out) in ({m for own in members[:125] for m in own}, {m for own in members[125:] for m in own})


def test_the_sentence_names_both_sides() -> None:
    told = complain({"a0": "c0", "b0": "c0", "c0": "a0"})
    assert sentences([name("c0")], told) == {
        name("c0"): "c0 is put out: a0, b0 cannot reach it, and it cannot reach a0"
    }
    assert sentences([name("a0")], {name("a0"): [name("b0")]}) == {name("a0"): "a0 is put out: it cannot reach b0"}


# ---------------------------------------------------------------- properties


@st.composite
def one_cut_off(draw: st.DrawFn) -> tuple[dict[Name, set[Name]], dict[Name, Seat], Name]:
    """One that nobody can reach, and that says so, or of some of them, or does not report.

    Others may besides have missed some that had left before them for that reason; then it misses all of them.
    """
    everybody = seats(draw(st.integers(3, 8)))
    culprit, *others = draw(st.permutations(sorted(everybody)))
    told = {by: {culprit} for by in others}
    missed = draw(st.booleans())
    if missed:
        told = {by: {culprit, *draw(st.sets(st.sampled_from(others[: k + 1])))} - {by} for k, by in enumerate(others)}
    if draw(st.booleans()):
        told[culprit] = set(others) if missed else draw(st.sets(st.sampled_from(others), min_size=1))
    return told, {m: replace(seat, since=draw(st.integers(1, 9))) for m, seat in everybody.items()}, culprit


@settings(deadline=None)
@given(one_cut_off())
def test_one_that_is_cut_off_is_the_one_put_out(case: tuple[dict[Name, set[Name]], dict[Name, Seat], Name]) -> None:
    told, everybody, culprit = case
    assert cut(told, everybody) == Cut((culprit,))


@settings(deadline=None)
@given(st.integers(2, 5), st.integers(1, 3), st.data())
def test_a_host_that_is_cut_off_goes_with_all_its_members(replicas: int, pipe: int, data: st.DataObject) -> None:
    """The host has fewer replicas than the rest has; each member complains of all whom it has a connection to."""
    everybody = seats(replicas, pipe)
    inside = data.draw(st.integers(1, (replicas - 1) // 2 or 1))
    far = {m for m, seat in everybody.items() if (seat.slot or 0) < inside}
    if 2 * inside == replicas:
        return
    broken = [(a, b) for a in far for b in everybody.keys() - far if everybody[a].coordinate == everybody[b].coordinate]
    assert cut(links(broken, everybody), everybody) == Cut(tuple(sorted(far)))


@settings(deadline=None)
@given(st.integers(2, 4), st.integers(1, 3), st.data())
def test_one_broken_link_puts_out_one_of_its_ends_and_leaves_a_replica_whole(
    replicas: int, pipe: int, data: st.DataObject
) -> None:
    everybody = seats(replicas, pipe)
    everybody = {m: replace(seat, since=data.draw(st.integers(1, 3))) for m, seat in everybody.items()}
    one, other = data.draw(st.permutations(sorted(everybody)))[:2]
    found = cut(links([(one, other)], everybody), everybody)
    assert len(found.out) == 1
    assert set(found.out) < {one, other}
    assert whole_replicas(everybody, found.out)


@settings(deadline=None)
@given(st.integers(1, 3), st.data())
def test_two_hosts_that_cannot_reach_each_other_leave_one_whole(pipe: int, data: st.DataObject) -> None:
    everybody = {m: replace(seat, since=data.draw(st.integers(1, 3))) for m, seat in seats(2, pipe).items()}
    broken = [(name(f"a{c}"), name(f"b{c}")) for c in range(pipe)]
    found = cut(links(broken, everybody), everybody)
    assert len(found.out) == pipe
    assert whole_replicas(everybody, found.out)


def whole_replicas(everybody: Mapping[Name, Seat], gone: Sequence[Name]) -> set[int | None]:
    return {seat.slot for seat in everybody.values()} - {everybody[m].slot for m in gone}


@st.composite
def anything(draw: st.DrawFn) -> tuple[dict[Name, set[Name]], dict[Name, Seat]]:
    everybody = seats(draw(st.integers(1, 4)), draw(st.integers(1, 3)))
    names = st.sampled_from(sorted(everybody))
    everybody = {
        m: replace(seat, standing=draw(st.integers(0, 2)), since=draw(st.integers(1, 3)))
        for m, seat in everybody.items()
    }
    told = draw(st.dictionaries(names, st.sets(names, max_size=6), max_size=12))
    return {by: absent - {by} for by, absent in told.items()}, everybody


@settings(deadline=None, max_examples=300)
@given(anything())
def test_whatever_is_complained_of_no_coordinate_loses_its_last_or_best_holder(
    case: tuple[dict[Name, set[Name]], dict[Name, Seat]],
) -> None:
    told, everybody = case
    found = cut(told, everybody)
    assert found == cut(dict(reversed(told.items())), dict(reversed(everybody.items())))
    for coordinate in {seat.coordinate for seat in everybody.values()}:
        column = {m: seat.standing for m, seat in everybody.items() if seat.coordinate == coordinate}
        left = [standing for m, standing in column.items() if m not in found.out]
        assert left
        assert max(left) == max(column.values())
    assert set(found.out) <= {*told, *(of for absent in told.values() for of in absent)}


@settings(deadline=None)
@given(anything(), st.data())
def test_who_is_stuck_is_who_cannot_go(
    case: tuple[dict[Name, set[Name]], dict[Name, Seat]], data: st.DataObject
) -> None:
    everybody = case[1]
    names = sorted(everybody)
    holders, gone = Holders(dict(enumerate(everybody[m] for m in names))), set[Name]()
    while able := [m for m in names if m not in gone and can_go(m, everybody, gone)]:
        assert {names[m] for m in holders.stuck} == set(names) - gone - set(able)
        chosen = data.draw(st.sampled_from(able))
        gone.add(chosen)
        holders.go(names.index(chosen))
    assert {names[m] for m in holders.stuck} == set(names) - gone


@settings(deadline=None, max_examples=300)
@given(anything())
def test_afterwards_nobody_misses_anybody_who_missed_it_too(
    case: tuple[dict[Name, set[Name]], dict[Name, Seat]],
) -> None:
    told, everybody = case
    found = cut(told, everybody)
    mutual = {(by, of) for by, absent in told.items() for of in absent if by in told.get(of, ())}
    assert found.unresolved or not [pair for pair in mutual if not set(found.out).intersection(pair)]
