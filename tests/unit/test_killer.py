"""Kills are spread, seeded, and wait for full strength."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.demo_story import FIRST_PIDS, NEW_PID, VICTIM, WORKERS, write_story

from reknit.runtime.demo.killer import Order, Victim, decide, enough_steps, make_orders
from reknit.runtime.demo.situation import DEAD, FINISHED, TRAINING, WAITING, Situation
from reknit.runtime.demo.story import Event

ORDER = Order(step=2, fraction=0.5, pick=0.6)
LONG = 1000  # steps of the run: its end is far


def situation_after(events: list[Event]) -> Situation:
    situation = Situation()
    for event in events:
        situation.see(event)
    return situation


def until(event: str, generation: int, number: int = 1) -> list[Event]:
    """The story up to the `number`-th such event of that generation, included."""
    events = write_story()
    found = [i for i, line in enumerate(events) if (line["event"], line["generation"]) == (event, generation)]
    return events[: found[number - 1] + 1]


@given(st.integers(1, 20), st.integers(1, 2000), st.integers())
def test_orders_are_spread_over_the_run_and_leave_time_to_recover(kills: int, steps: int, seed: int) -> None:
    orders = make_orders(kills, steps, seed)
    assert len(orders) == kills
    assert list(orders) == sorted(orders, key=lambda order: order.step)
    assert all(0 <= order.step <= 0.85 * steps and 0 <= order.fraction < 1 and 0 <= order.pick < 1 for order in orders)
    for number, order in enumerate(orders):
        begin, end = ((0.05 + 0.8 * edge / kills) * steps for edge in (number, number + 1))
        assert begin - 1 <= order.step <= end


def test_the_seed_decides() -> None:
    assert make_orders(5, 300, 1) == make_orders(5, 300, 1)
    assert make_orders(5, 300, 1) != make_orders(5, 300, 2)


def test_every_worker_can_be_the_victim() -> None:
    picks = {int(make_orders(1, 300, seed)[0].pick * 6) for seed in range(100)}
    assert picks == set(range(6))


def test_steps_are_raised_only_if_they_are_too_few() -> None:
    assert enough_steps(kills=3, steps=300) == 300
    assert enough_steps(kills=10, steps=600) == 600
    assert enough_steps(kills=10, steps=20) > 400
    assert enough_steps(kills=0, steps=20) == 20


def test_at_full_strength_a_victim_is_picked_at_a_fraction_of_a_step_later() -> None:
    situation = situation_after(until("committed", 1, 12))  # both first steps, by all six
    ready = situation.reached[2]
    assert situation.step_seconds == pytest.approx(0.1)
    assert decide(ORDER, situation, 0, LONG, ready + 0.04) is None
    assert decide(ORDER, situation, 0, LONG, ready + 0.06) == Victim("worker-3", FIRST_PIDS["worker-3"])


def test_nobody_is_killed_before_the_ordered_step() -> None:
    situation = situation_after(until("committed", 1, 6))
    assert situation.is_full
    assert decide(ORDER, situation, 0, LONG, situation.now + 10) is None


def test_nobody_is_killed_before_all_have_committed() -> None:
    situation = situation_after(until("committed", 1, 5))
    assert decide(Order(0, 0.0, 0.0), situation, 0, LONG, situation.now + 10) is None


def test_after_a_kill_the_next_one_waits_for_all_replicas() -> None:
    order = Order(0, 0.0, 0.0)
    for events in (
        until("killed", 1),
        until("plan", 2),
        until("committed", 2, 8),  # two replicas train
        until("plan", 3),
        until("reinit_done", 3, 6),
        until("committed", 3, 5),  # of six
    ):
        situation = situation_after(events)
        assert decide(order, situation, 1, LONG, situation.now + 10) is None
    situation = situation_after(until("committed", 3, 6))
    assert decide(order, situation, 1, LONG, situation.now + 10) is not None


def test_the_newcomer_can_be_killed_by_its_own_process_id() -> None:
    situation = situation_after(until("committed", 3, 6))
    assert decide(ORDER, situation, 1, LONG, situation.now + 10) == Victim(VICTIM, NEW_PID)


def test_nobody_is_killed_when_the_run_is_nearly_over() -> None:
    situation = situation_after(until("committed", 1, 12))
    assert decide(ORDER, situation, 0, LONG, situation.now + 10) is not None
    assert decide(ORDER, situation, 0, situation.step + 1, situation.now + 10) is None


def test_the_situation_is_what_the_view_shows() -> None:
    situation = situation_after(until("committed", 1, 12))
    assert (situation.generation, situation.replicas, situation.step) == (1, 3, 2)
    assert situation.loss == pytest.approx(3 / 2)
    assert [situation.seats[replica, stage] for replica in range(3) for stage in range(2)] == WORKERS
    assert {worker.status for worker in situation.workers.values()} == {TRAINING}
    assert situation_after(until("killed", 1)).workers[VICTIM].status == DEAD
    newcomer = situation_after(until("plan", 2)).workers[VICTIM]
    assert (newcomer.status, newcomer.pid) == (WAITING, NEW_PID)
    assert {worker.status for worker in situation_after(write_story()).workers.values()} == {FINISHED}
