"""Who is a straggler: only after some steps and seconds, named once, and once more when it is over."""

from __future__ import annotations

from reknit.health.straggler import BEHIND, SECONDS, STEPS, Slow, Stragglers


def hear(stragglers: Stragglers, steps: range, slow: str, ratio: float = 2.0, teller: str = "a") -> list[str]:
    """One step a second."""
    told = [stragglers.hear(teller, Slow(slow, ratio, 0.1), step, float(step)) for step in steps]
    return [sentence for sentences in told for sentence in sentences]


def test_a_straggler_is_named_once_when_it_has_been_slow_for_long_enough() -> None:
    stragglers = Stragglers()
    assert not hear(stragglers, range(STEPS), "b")
    (sentence,) = hear(stragglers, range(STEPS, 3 * STEPS), "b")
    assert sentence.startswith("b is a straggler: for 20 steps it has taken 2.0 times as long")
    assert stragglers.names == {"b"}


def test_it_ends_when_it_has_kept_up_for_as_long() -> None:
    stragglers = Stragglers()
    hear(stragglers, range(2 * STEPS), "b")
    assert not hear(stragglers, range(2 * STEPS, 3 * STEPS), "b", 1.2)
    assert hear(stragglers, range(3 * STEPS, 4 * STEPS), "b", 1.2) == ["b is no straggler any more"]
    assert not stragglers.names


def test_one_that_is_slow_now_and_then_is_none() -> None:
    stragglers = Stragglers()
    for step in range(10 * STEPS):
        assert not stragglers.hear("a", Slow("b", 2.0 if step % 10 else 1.0, 0.1), step, float(step))


def test_steps_of_milliseconds_are_watched_for_some_seconds() -> None:
    stragglers = Stragglers()
    told = [stragglers.hear("a", Slow("b", 2.0, 0.1), step, step / 1000) for step in range(int(1000 * SECONDS) + 1)]
    assert [bool(sentences) for sentences in told].index(True) == 1000 * SECONDS


def test_two_workers_of_one_agent_that_know_of_the_same_one_say_so_once() -> None:
    stragglers = Stragglers()
    said = [
        sentence
        for step in range(8 * STEPS)
        for teller in ("a", "c")
        for sentence in stragglers.hear(teller, Slow("b", 2.0 if step < 3 * STEPS else 1.0, 0.1), step, float(step))
    ]
    assert [sentence.split(":")[0] for sentence in said] == ["b is a straggler", "b is no straggler any more"]


def test_another_straggler_takes_its_place() -> None:
    stragglers = Stragglers()
    hear(stragglers, range(2 * STEPS), "b")
    assert [s.split(":")[0] for s in hear(stragglers, range(2 * STEPS, 4 * STEPS), "c")] == [
        "b is no straggler any more",
        "c is a straggler",
    ]


def test_whoever_goes_back_to_an_earlier_step_begins_to_count_anew() -> None:
    stragglers = Stragglers()
    hear(stragglers, range(100, 100 + STEPS), "b")
    assert not hear(stragglers, range(STEPS), "b")


def test_a_worker_that_is_gone_tells_of_nobody() -> None:
    stragglers = Stragglers()
    hear(stragglers, range(2 * STEPS), "b")
    stragglers.forget("a")
    assert not stragglers.names


def test_a_few_milliseconds_are_noise() -> None:
    stragglers = Stragglers()
    for step in range(3 * STEPS):
        assert not stragglers.hear("a", Slow("b", 4.0, BEHIND / 2), step, float(step))
