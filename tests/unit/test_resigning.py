"""When a leader whose code fails again and again makes way."""

from __future__ import annotations

from reknit.rendezvous.leader.resigning import FAILURES, FIRST_REST, LONGEST_REST, Resigning


def fails(record: Resigning, times: int, steps: int = 0) -> Resigning:
    for _ in range(times):
        record = record.after(True, steps)
    return record


def test_a_leader_resigns_after_some_failures_in_a_row() -> None:
    assert fails(Resigning(), FAILURES - 1).rest is None
    assert fails(Resigning(), FAILURES).rest == FIRST_REST


def test_a_term_that_just_ends_is_no_failure() -> None:
    record = Resigning()
    for _ in range(10):
        record = record.after(False, 0)
    assert record.rest is None
    assert fails(fails(Resigning(), FAILURES - 1).after(False, 0), 1).rest == FIRST_REST, "nor a success"


def test_a_whole_step_in_between_begins_the_count_anew() -> None:
    record = fails(Resigning(), FAILURES - 1).after(False, 1)
    assert fails(record, FAILURES - 1).rest is None
    assert fails(Resigning(), 10, steps=1).rest is None, "each of these terms has done something"


def test_whoever_fails_again_rests_longer_until_it_succeeds() -> None:
    record, rests = Resigning(), []
    for _ in range(8):
        record = fails(record, FAILURES)
        rests.append(record.rest)
        record = record.resign()
    assert rests[:3] == [FIRST_REST, 2 * FIRST_REST, 4 * FIRST_REST]
    assert rests[-1] == LONGEST_REST
    assert fails(record.after(False, 1), FAILURES).rest == FIRST_REST
