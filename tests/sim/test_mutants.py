"""No rule is there for nothing: without it, the search finds a way to lose, repeat or never finish something."""

from __future__ import annotations

import pytest
from tests.sim.mutants import WITHOUT, Mutant

pytestmark = pytest.mark.timeout(3600)


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(mutant, id=rule, marks=pytest.mark.long if mutant.long else ()) for rule, mutant in WITHOUT.items()],
)
def test_without_a_rule_something_goes_wrong(mutant: Mutant) -> None:
    verdict = mutant.verdict()
    assert verdict.what.startswith(("violation", "deadlock")), str(verdict)
    assert verdict.way
    if mutant.walks:
        assert Mutant(mutant.scenario, walks=mutant.walks, seed=mutant.seed).verdict().holds
