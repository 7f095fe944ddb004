"""What becomes of a worker's time: every second is counted once, and as what it was."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reknit.health.ledger import Ledger


def lost(ledger: Ledger) -> dict[str, float]:
    return {cause: seconds for cause, seconds in ledger.lost.items() if seconds}


def trained(now: float = 0.0) -> Ledger:
    """One that has come to its first generation at `now`."""
    ledger = Ledger(now)
    ledger.begin(now)
    ledger.has_place(now)
    ledger.arrived(now)
    return ledger


def test_a_life_without_trouble() -> None:
    ledger = Ledger(0.0)
    ledger.begin(0.0)
    ledger.has_no_place(4.0)
    ledger.has_place(6.0)
    ledger.arrived(7.0)
    ledger.committed(8.0)
    ledger.committed(10.0)
    ledger.end(10.5)
    assert ledger.productive == pytest.approx(3.5)
    assert lost(ledger) == {"start": 4.0, "wait": 2.0, "reinit": 1.0}


def test_an_attempt_that_a_loss_ends_is_lost_until_the_notice_and_then_the_way_is() -> None:
    ledger = trained()
    ledger.committed(1.0)
    ledger.must_leave(1.4)
    ledger.left(1.5)
    ledger.arrived(2.0)
    ledger.committed(3.0)
    assert ledger.productive == pytest.approx(2.0)
    assert lost(ledger) == {"retry": pytest.approx(0.4), "reinit": pytest.approx(0.6)}


def test_work_whose_step_is_rolled_forward_was_not_in_vain() -> None:
    ledger = trained()
    ledger.committed(1.0)
    ledger.left(1.5)
    ledger.committed(1.7, rolled_forward=True)
    ledger.arrived(2.0)
    assert ledger.productive == pytest.approx(1.5)
    assert lost(ledger) == {"reinit": pytest.approx(0.5)}


def test_a_step_that_is_committed_although_the_generation_is_over_counts() -> None:
    ledger = trained()
    ledger.must_leave(0.5)
    ledger.committed(1.0)
    ledger.must_leave(1.0)
    ledger.arrived(1.2)
    assert ledger.productive == pytest.approx(1.0)
    assert lost(ledger) == {"reinit": pytest.approx(0.2)}


def test_healing_is_told_apart_from_the_rest_of_the_way() -> None:
    ledger = Ledger(0.0)
    ledger.begin(0.0)
    ledger.has_place(1.0)
    ledger.healed(4.0, seconds=2.5)
    ledger.arrived(4.5)
    assert lost(ledger) == {"start": 1.0, "reinit": pytest.approx(1.0), "heal": pytest.approx(2.5)}


def test_a_pause_for_a_checkpoint_is_lost_even_if_it_is_told_later() -> None:
    ledger = trained()
    ledger.committed(1.0)
    ledger.paused(1.5)
    ledger.committed(2.0)
    ledger.committed(3.0)
    assert ledger.productive == pytest.approx(1.5)
    assert lost(ledger) == {"checkpoint": pytest.approx(1.5)}


def test_one_that_drains_works_to_the_end_of_its_step_and_then_waits() -> None:
    ledger = trained()
    ledger.has_no_place(0.5, draining=True)
    ledger.committed(1.0)
    ledger.must_leave(1.0)
    ledger.pass_time(3.0)
    ledger.end(4.0)
    assert ledger.productive == pytest.approx(1.0)
    assert lost(ledger) == {"drain": pytest.approx(3.0)}


def test_a_death_loses_the_work_at_hand_and_the_time_until_the_next_process_works() -> None:
    ledger = trained()
    ledger.committed(1.0)
    ledger.died(1.25)
    ledger.begin(2.0)
    ledger.has_place(5.0)
    ledger.arrived(6.0)
    ledger.committed(7.0)
    assert ledger.productive == pytest.approx(2.0)
    assert lost(ledger) == {"retry": 0.25, "start": pytest.approx(3.75), "reinit": pytest.approx(1.0)}


def test_a_scrape_counts_what_is_surely_lost_by_then_but_no_work_that_may_yet_count() -> None:
    ledger = Ledger(0.0)
    ledger.begin(0.0)
    ledger.pass_time(3.0)
    assert lost(ledger) == {"start": 3.0}
    ledger.has_place(4.0)
    ledger.arrived(4.0)
    ledger.pass_time(100.0)
    assert lost(ledger) == {"start": 4.0}
    ledger.committed(104.0)
    assert ledger.productive == pytest.approx(100.0)


def test_an_agent_that_comes_to_a_worker_which_trains_counts_from_then_on() -> None:
    ledger = Ledger(50.0)
    ledger.begin(50.0, trains=True)
    ledger.committed(51.0)
    assert ledger.productive == pytest.approx(1.0)
    assert not lost(ledger)


def test_a_spare_is_no_loss_of_the_jobs() -> None:
    ledger = Ledger(0.0)
    ledger.begin(0.0)
    ledger.has_no_place(1.0)
    ledger.has_no_place(3.0, spare=True)
    ledger.has_place(8.0)
    ledger.arrived(8.0)
    ledger.has_no_place(9.0, spare=True)
    ledger.committed(10.0)
    ledger.must_leave(10.0)
    ledger.pass_time(14.0)
    assert lost(ledger) == {"start": 1.0, "wait": 2.0, "spare": 9.0}
    assert ledger.lost_by_the_job == 3.0
    assert ledger.productive == 2.0


ACTS: list[tuple[str, dict[str, Any]]] = [
    ("begin", {}),
    ("has_no_place", {}),
    ("has_no_place", {"draining": True}),
    ("has_no_place", {"spare": True}),
    ("builds", {}),
    ("has_place", {}),
    ("must_leave", {}),
    ("left", {}),
    ("arrived", {}),
    ("committed", {}),
    ("committed", {"rolled_forward": True}),
    ("healed", {"seconds": 0.3}),
    ("died", {}),
    ("pass_time", {}),
]


@given(st.lists(st.tuples(st.sampled_from(ACTS), st.floats(0, 2)), max_size=40))
def test_whatever_happens_every_second_is_counted_once_and_no_counter_goes_back(
    story: list[tuple[tuple[str, dict[str, Any]], float]],
) -> None:
    ledger, now = Ledger(0.0), 0.0
    before = 0.0, dict[str, float]()
    for (act, options), later in story:
        now += later
        if act == "begin" and ledger.at != "start":
            ledger.died(now)
        getattr(ledger, act)(now, **options)
        assert ledger.productive >= before[0]
        assert all(ledger.lost[cause] >= seconds for cause, seconds in before[1].items())
        assert ledger.productive + sum(ledger.lost.values()) <= now + 1e-6
        before = ledger.productive, dict(ledger.lost)
    ledger.died(now)
    assert ledger.productive + sum(ledger.lost.values()) == pytest.approx(now, abs=1e-6)
