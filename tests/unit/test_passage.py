"""How long the phases of a way from one generation to the next took, by a clock that the test moves."""

from __future__ import annotations

import pytest

from reknit.runtime.recovery.passage import Passage


class Way:
    def __init__(self) -> None:
        self.now = 50.0
        self.passage = Passage(lambda: self.now)

    def after(self, seconds: float) -> Passage:
        self.now += seconds
        return self.passage


def test_a_plan_that_comes_while_it_works() -> None:
    way = Way()
    way.after(1.0).hear(seen=50.9)
    way.after(0.2).leave(unexpected=False)
    way.after(0.3).connected()
    phases = way.after(0.5).arrive(behind=False)
    assert phases == {"plan": pytest.approx(0.1), "interrupt": pytest.approx(0.2), "connect": 0.3, "sync": 0.5}


def test_a_connection_that_breaks_before_the_plan_is_known() -> None:
    way = Way()
    way.after(1.0).leave(unexpected=True)
    way.after(0.4).hear(seen=51.3)
    way.after(0.2).connected()
    phases = way.after(0.1).arrive(behind=False)
    expected = {"detect": 0.3, "plan": 0.1, "interrupt": 0.0, "connect": 0.2, "sync": 0.1}
    assert phases == pytest.approx(expected)
    assert sum(phases.values()) == pytest.approx(0.7), "nothing of the way is missing"


def test_plans_that_are_superseded_on_the_way_lengthen_it() -> None:
    way = Way()
    way.after(1.0).hear(seen=51.0)
    way.after(0.1).leave(unexpected=False)
    way.after(0.5).connected()
    way.after(0.1).hear(seen=51.7)
    way.after(0.0).leave(unexpected=False)
    way.after(0.5).connected()
    phases = way.after(0.1).arrive(behind=False)
    assert phases == pytest.approx({"plan": 0.0, "interrupt": 0.1, "connect": 1.1, "sync": 0.1})


def test_who_comes_from_nowhere_has_no_way() -> None:
    way = Way()
    way.after(1.0).hear(seen=50.5)
    way.after(1.0).connected()
    assert way.after(1.0).arrive(behind=False) == {}


def test_waiting_for_a_place_is_no_part_of_a_way() -> None:
    way = Way()
    way.after(1.0).hear()
    way.after(1.0).leave(unexpected=False)
    way.after(1.0).forget()
    way.after(100.0).hear()
    way.after(1.0).connected()
    assert way.after(1.0).arrive(behind=False) == {}


def test_a_newer_plan_that_is_known_on_arrival_begins_the_next_way() -> None:
    way = Way()
    way.after(1.0).hear()
    way.after(1.0).leave(unexpected=False)
    way.after(1.0).connected()
    way.after(1.0).arrive(behind=True)
    way.after(0.25).leave(unexpected=False)
    way.after(1.0).connected()
    assert way.after(1.0).arrive(behind=False)["interrupt"] == pytest.approx(0.25)


def test_an_agents_clock_that_runs_ahead_makes_no_negative_phase() -> None:
    way = Way()
    way.after(1.0).hear(seen=99.0)
    way.after(0.0).leave(unexpected=False)
    way.after(1.0).connected()
    assert min(way.after(1.0).arrive(behind=False).values()) == 0.0
