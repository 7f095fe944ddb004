"""What the bench reads off the events, and how its table judges."""

from __future__ import annotations

from typing import Any

import pytest
from tests.bench.checkpoints import AGAIN, WITH, WITHOUT, cost_of
from tests.bench.gap import Kill, stop_of
from tests.bench.goodput import goodput, steps_in
from tests.bench.losses import gap_of
from tests.bench.table import Figure, Spread, render


def event(t: float, name: str, worker: str | None, generation: int, **fields: Any) -> dict[str, Any]:
    return {"t": t, "event": name, "worker": worker, "generation": generation, **fields}


def committed(t: float, worker: str, generation: int, step: int, **fields: Any) -> dict[str, Any]:
    return event(t, "committed", worker, generation, step=step, version=[generation, step], **fields)


EVENTS = [
    event(0.5, "plan", None, 1, replicas=3),
    committed(0.98, "a", 1, 7),
    committed(0.99, "b", 1, 7),
    committed(0.985, "c", 1, 7),
    # c is killed at 1.0.
    event(1.002, "worker_died", "c", 1),
    event(1.005, "plan", None, 2, replicas=2),
    event(1.006, "reinit_begin", "a", 1),
    event(1.008, "reinit_begin", "b", 1),
    committed(1.020, "a", 1, 8, rolled_forward=True),
    event(1.021, "reinit_done", "a", 2, seconds=0.015),
    event(1.022, "reinit_done", "b", 2, seconds=0.014),
    committed(1.060, "b", 2, 9),
    committed(1.061, "a", 2, 9),
    event(1.500, "plan", None, 3, replicas=3),
    committed(1.700, "a", 3, 10),
    committed(1.701, "b", 3, 10),
    committed(1.702, "c", 3, 10),
]


def test_a_gap_ends_with_a_step_that_was_worked_on_in_the_next_generation() -> None:
    stop = stop_of(Kill(1.0, "c", 1), sorted(EVENTS, key=lambda e: float(e["t"])))
    assert stop.gap == pytest.approx(1.061 - 0.98)
    assert stop.any_commit == pytest.approx(1.060 - 0.99)  # b's, since a rolled forward at 1.020
    assert (stop.noticed, stop.planned, stop.begun, stop.done, stop.committed, stop.full) == pytest.approx(
        (0.002, 0.005, 0.008, 0.022, 0.061, 0.702)
    )
    assert (stop.before, stop.reinit) == pytest.approx((0.02, 0.015))


def test_a_job_that_does_not_come_back_is_no_measurement() -> None:
    with pytest.raises(ValueError, match="full strength"):
        stop_of(Kill(1.0, "c", 1), sorted(EVENTS, key=lambda e: float(e["t"]))[:-1])


def test_the_gap_of_a_node_loss_is_that_of_its_worst_survivor() -> None:
    gap, planned = gap_of(Kill(1.0, "c", 1), sorted(EVENTS, key=lambda e: float(e["t"])))
    assert (gap, planned) == pytest.approx((1.061 - 0.98, 0.005))
    # whoever was not there before the loss has no gap
    late = [committed(9.0, "d", 3, 11)]
    assert gap_of(Kill(1.0, "c", 1), [*EVENTS, *late])[0] == pytest.approx(gap)


def test_the_table_says_which_goals_hold() -> None:
    taken = Spread.of([0.001 * n for n in range(1, 21)])
    assert (taken.median, taken.p90, taken.worst) == pytest.approx((10.5, 18, 20))
    good, bad = Figure("x", 10.5, "stock", 7.0, goal=11), Figure("y", 12, goal=11)
    assert (good.holds, bad.holds, Figure("z", 1).holds) == (True, False, None)
    lines = render([("title", [good, bad])]).splitlines()
    assert lines[2] == "-- title"
    assert lines[3].split() == ["x", "10.5", "stock", "7.00", "1.50", "x", "<=", "11", "yes"]
    assert lines[4].split() == ["y", "12.0", "<=", "11", "NO"]


def test_a_goal_may_be_the_least_and_a_figure_no_time() -> None:
    figure = Figure("goodput", 98.5, goal=97, at_least=True, unit="%")
    assert figure.holds
    assert not Figure("goodput", 96.9, goal=97, at_least=True).holds
    assert render([("title", [figure])]).splitlines()[3].split() == ["goodput", "98.5", "%", ">=", "97", "%", "yes"]


def test_goodput_compares_a_minute_with_undisturbed_ones_beside_it() -> None:
    reached = {step: 0.1 * step + 0.05 for step in range(100)}  # ten a second, for ten seconds
    reached |= {100 + step: 10.05 + 0.2 * step for step in range(50)}  # then five a second
    reached |= {150 + step: 20.05 + 0.1 * step for step in range(100)}
    assert steps_in((0.0, 10.0), reached) == 100
    assert steps_in((10.0, 20.0), reached) == 50
    assert goodput((10.0, 20.0), [(0.0, 10.0), (20.0, 30.0)], reached) == pytest.approx(50)
    assert goodput((0.0, 10.0), [(20.0, 25.0)], reached) == pytest.approx(100)


def test_a_checkpoint_costs_what_its_own_turn_takes_longer() -> None:
    plain = [[0.030] * 4, [0.032] * 4]
    ours = [[0.040, 0.034, 0.030, 0.030], [0.042, 0.036, 0.032, 0.032]]  # copied in one process, waited for in another
    cost = cost_of({WITHOUT: plain, AGAIN: plain, WITH: ours})
    assert cost.step == pytest.approx(31)
    assert cost.more.values == pytest.approx((3.5, 3.5))
    assert cost.floor.values == pytest.approx((0, 0))
    assert cost.stop.values == pytest.approx((10, 10))
