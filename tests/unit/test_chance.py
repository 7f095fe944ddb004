"""When an accusation may be marked as unanswered."""

from __future__ import annotations

from reknit.rendezvous.session.chance import Chance, begin, weigh

ANSWER = 0.4
CALM = 0.0  # long ago


def follow(chance: Chance, looks: list[tuple[float, float]]) -> list[Chance]:
    """What comes of looks, each given as its delay after it was due and its duration."""
    found = []
    for late, duration in looks:
        looked = chance.due + late
        chance = weigh(chance, looked, looked + duration, CALM, ANSWER)
        found.append(chance)
    return found


def test_two_prompt_looks_that_find_it_standing_are_enough() -> None:
    half, whole = follow(begin(10.0, ANSWER), [(0.01, 0.01), (0.01, 0.01)])
    assert not half.unanswered
    assert half.due == 10.0 + ANSWER
    assert whole.unanswered


def test_nobody_is_marked_before_his_time_is_over() -> None:
    chance = weigh(begin(10.0, ANSWER), 10.0 + ANSWER - 0.001, 10.0 + ANSWER, CALM, ANSWER)
    assert not chance.unanswered


def test_a_look_that_is_answered_late_begins_the_time_anew() -> None:
    half, slow, again, whole = follow(begin(10.0, ANSWER), [(0, 0.01), (0, 3.0), (0, 0.01), (0, 0.01)])
    assert slow == begin(half.due + 3.0, ANSWER)
    assert [half.unanswered, slow.unanswered, again.unanswered, whole.unanswered] == [False, False, False, True]
    assert whole.since == half.due + 3.0


def test_a_look_that_comes_late_begins_the_time_anew() -> None:
    half, late = follow(begin(10.0, ANSWER), [(0, 0.01), (5.0, 0.01)])
    assert late == begin(half.due + 5.0 + 0.01, ANSWER)


def test_however_slow_the_store_it_is_looked_at_again_and_never_marked() -> None:
    chances = follow(begin(10.0, ANSWER), [(0, 0.3)] * 50)
    assert not any(chance.unanswered for chance in chances)
    assert chances[-1].due > 10.0 + 50 * 0.3


def test_the_time_runs_only_from_when_everybody_hears_the_store() -> None:
    chance = weigh(begin(10.0, ANSWER), 10.2, 10.21, 11.5, ANSWER)
    assert chance == begin(11.5, ANSWER)
    assert weigh(chance, chance.due, chance.due, 11.5, ANSWER).since == 11.5
