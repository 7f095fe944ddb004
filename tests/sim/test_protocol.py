"""The product's planner, comparison and reaction hold in every interleaving of small jobs, within each one's bounds."""

from __future__ import annotations

import pytest
from tests.sim.model import Model
from tests.sim.product import Product
from tests.sim.scenarios import BIG, QUICK, SCENARIOS
from tests.sim.search import search, walk
from tests.sim.state import Rules, Scenario

pytestmark = pytest.mark.timeout(3600)

SEARCHED = [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in SCENARIOS]


def model(scenario: Scenario) -> Model:
    return Model(scenario, Rules(), Product(scenario.stages))


@pytest.mark.parametrize("name", SEARCHED)
def test_every_interleaving_holds(name: str) -> None:
    verdict = search(model(SCENARIOS[name]))
    assert verdict.holds, str(verdict)


@pytest.mark.parametrize("name", BIG)
@pytest.mark.parametrize("count", [100, pytest.param(5000, marks=pytest.mark.long)])
def test_random_walks_through_bigger_jobs_hold(name: str, count: int) -> None:
    verdict = walk(model(BIG[name]), count)
    assert verdict.holds, str(verdict)
