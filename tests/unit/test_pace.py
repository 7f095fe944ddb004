"""Who is slow: what a data group of simulated ranks knows after some votes, and what the vote's word carries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reknit.health.pace import ENOUGH, EVERY, KEPT, Pace
from reknit.runtime.recovery.ballot import Ballot, decode, encode


def vote(paces: list[Pace], seconds: list[float], step: int) -> None:
    """One step of a group: each adds its own time, and hears what the minimum of all words says, if it is time."""
    for pace, own in zip(paces, seconds, strict=True):
        pace.add(own)
    if step % EVERY:
        return
    ballot = decode(min(encode(0, rank, pace.told(step)) for rank, pace in enumerate(paces)))
    for pace in paces:
        if ballot.rank is not None:
            pace.hear(ballot.rank, ballot.seconds)


def group(size: int) -> list[Pace]:
    paces = [Pace() for _ in range(size)]
    for rank, pace in enumerate(paces):
        pace.regroup(rank, size)
    return paces


def known(pace: Pace) -> tuple[int, float]:
    slowest = pace.slowest
    assert slowest is not None
    return slowest.rank, slowest.ratio


def ratio(pace: Pace) -> float:
    assert pace.own is not None
    return pace.own.ratio


@pytest.mark.parametrize("size", [2, 3, 8])
def test_all_know_the_straggler_by_rank_and_itself_by_how_much(size: int) -> None:
    paces = group(size)
    seconds = [0.1] * (size - 1) + [0.25]
    for step in range(2 * EVERY * (size + 1)):
        vote(paces, seconds, step)
    for pace in paces:
        rank, times = known(pace)
        assert rank == size - 1
        assert times == pytest.approx(2.5, rel=1e-4)
    assert ratio(paces[-1]) == pytest.approx(2.5, rel=1e-4)
    assert paces[-1].own is not None
    assert paces[-1].own.behind == pytest.approx(0.15, rel=1e-3)
    assert ratio(paces[0]) == pytest.approx(1.0, rel=1e-4)


def test_in_a_large_group_a_new_straggler_is_known_as_soon_as_its_own_median_shows_it() -> None:
    size = 40
    paces = group(size)
    begun = 2 * EVERY * size
    for step in range(begun):
        vote(paces, [0.1] * size, step)
    slow = [0.1] * size
    slow[7] = 0.3
    for step in range(begun, begun + KEPT // 2 + 2 * EVERY):
        vote(paces, slow, step)
    assert {known(pace)[0] for pace in paces} == {7}
    assert known(paces[20])[1] == pytest.approx(3.0, rel=1e-4)


def test_one_slow_step_makes_no_straggler() -> None:
    paces = group(2)
    for step in range(KEPT):
        vote(paces, [0.1, 5.0 if step == 11 else 0.1], step)
    assert ratio(paces[1]) == pytest.approx(1.0, rel=1e-4)


def test_nothing_is_said_before_half_of_the_group_is_known() -> None:
    paces = group(5)
    vote(paces, [0.1] * 5, 0)
    assert paces[3].own is None
    assert paces[3].slowest is None


def test_in_a_group_of_hundreds_a_straggler_is_known_long_before_each_rank_has_told_its_time() -> None:
    paces, seconds = group(256), [0.01] * 255 + [0.05]
    for step in range(1, 2 * EVERY * (ENOUGH + 2)):
        vote(paces, seconds, step)
    rank, times = known(paces[0])
    assert (rank, round(times, 2)) == (255, 5.0)


def test_another_group_knows_others_but_what_this_rank_needs_stays() -> None:
    paces = group(3)
    for step in range(10 * EVERY):
        vote(paces, [0.1, 0.1, 0.4], step)
    paces[2].regroup(0, 1)
    assert ratio(paces[2]) == 1.0
    assert known(paces[2]) == (0, 1.0)


def test_alone_it_is_as_quick_as_the_group() -> None:
    (alone,) = group(1)
    vote([alone], [0.2], 0)
    assert ratio(alone) == 1.0


@given(st.floats(2e-9, 1e8), st.integers(0, 65535), st.integers(0, 1000))
def test_a_word_carries_a_time_a_rank_and_how_far_ahead(seconds: float, rank: int, ahead: int) -> None:
    word = encode(ahead, rank, seconds)
    assert 0 <= word < 2**63
    assert decode(word)[:2] == (ahead, rank)
    assert decode(word).seconds == pytest.approx(seconds, rel=1e-5)


@given(st.lists(st.tuples(st.integers(0, 3), st.none() | st.floats(1e-6, 1e4)), min_size=1, max_size=9))
def test_the_minimum_of_the_words_is_first_of_all_the_minimum_of_what_is_known(
    voters: list[tuple[int, float | None]],
) -> None:
    least = min(ahead for ahead, _ in voters)
    ballot = decode(min(encode(ahead, rank, seconds) for rank, (ahead, seconds) in enumerate(voters)))
    assert ballot.ahead == least
    told = {rank: seconds for rank, (ahead, seconds) in enumerate(voters) if ahead == least and seconds is not None}
    if not told:
        assert ballot.rank is None
    else:
        assert ballot.rank in told
        assert ballot.seconds == pytest.approx(max(told.values()), rel=1e-4)


def test_what_does_not_fit_is_left_out_but_never_the_vote() -> None:
    assert decode(encode(3, 70_000, 0.1)) == Ballot(3)
    assert decode(encode(3, 1, float("nan"))) == Ballot(3)
    assert decode(encode(3, 1, float("inf"))) == Ballot(3)
    assert decode(encode(10**30, 1, 0.1)).ahead == 2**20 - 1
