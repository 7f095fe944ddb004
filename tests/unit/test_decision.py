"""Recovery's decisions: what a comparison decides, how each comes to it, and what a newer plan means."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reknit.rendezvous.records import Version
from reknit.runtime.recovery.decision import Reaction, Row, Settling, decide, holders, reaction, settling

SEVEN, EIGHT = Version(2, 7), Version(2, 8)


def row(committed: Version | None, prepared: Version | None = None, at: int = 0, current: bool = True) -> Row:
    return Row(at, committed, prepared, current)


def test_all_at_one_version_go_on_from_it() -> None:
    assert decide(None, [row(SEVEN), row(SEVEN)], 1).version == SEVEN


def test_what_all_hold_prepared_is_rolled_forward_though_nobody_has_committed_it() -> None:
    decision = decide(None, [row(SEVEN, EIGHT), row(SEVEN, EIGHT)], 1)
    assert decision.version == EIGHT
    assert "roll forward" in decision.reason


def test_a_survivor_that_committed_is_followed() -> None:
    assert decide(None, [row(EIGHT), row(SEVEN, EIGHT)], 1).version == EIGHT


def test_what_one_current_member_lacks_nobody_has_committed() -> None:
    assert decide(None, [row(SEVEN, EIGHT), row(SEVEN)], 1).version == SEVEN


def test_a_later_generations_attempt_at_an_earlier_step_is_newer() -> None:
    other = Version(3, 8)
    assert decide(None, [row(SEVEN, EIGHT), row(SEVEN, other)], 1).version == SEVEN
    assert decide(None, [row(other), row(SEVEN, other)], 1).version == other


def test_who_is_not_current_has_no_say() -> None:
    stale = row(Version(1, 5), Version(1, 6), current=False)
    assert decide(None, [row(SEVEN, EIGHT), stale, row(None, current=True)], 1).version == EIGHT


def test_a_committed_version_that_a_current_member_lacks_is_for_the_leader() -> None:
    decision = decide(None, [row(EIGHT), row(SEVEN)], 1)
    assert decision.version is None
    assert str(EIGHT) in decision.reason


@pytest.mark.parametrize("table", [[], [row(SEVEN, at=0)], [row(SEVEN, at=0), row(SEVEN, at=1, current=False)]])
def test_every_coordinate_needs_a_current_member(table: list[Row]) -> None:
    assert decide(None, table, 2).version is None


def test_the_leaders_target_stands_above_the_table() -> None:
    assert decide(EIGHT, [row(SEVEN)], 1).version == EIGHT


versions = st.builds(Version, st.integers(1, 3), st.integers(0, 3))
rows = st.builds(Row, st.integers(0, 1), st.none() | versions, st.none() | versions, st.booleans())


@settings(deadline=None)
@given(st.lists(rows, max_size=6), st.randoms())
def test_the_same_table_in_any_order_decides_alike_and_all_current_ones_hold_the_decision(
    table: list[Row], random: Random
) -> None:
    decision = decide(None, table, 2)
    shuffled = list(table)
    random.shuffle(shuffled)
    assert decide(None, shuffled, 2) == decision
    say = [r for r in table if r.current and r.committed is not None]
    if decision.version is not None:
        assert all(decision.version in r.held for r in say)
        assert all(r.committed is not None and r.committed <= decision.version for r in say)
        assert {r.coordinate for r in say} == {0, 1}


@settings(deadline=None)
@given(st.lists(rows, min_size=1, max_size=6))
def test_a_comparison_repeated_after_some_have_rolled_forward_decides_the_same(table: list[Row]) -> None:
    version = decide(None, table, 2).version
    if version is None:
        return
    half = [
        r._replace(committed=version, prepared=None) if k % 2 and version in r.held else r for k, r in enumerate(table)
    ]
    assert decide(None, half, 2).version == version


def test_settling() -> None:
    assert settling(SEVEN, row(SEVEN, EIGHT)) is Settling.KEEP
    assert settling(EIGHT, row(SEVEN, EIGHT)) is Settling.ROLL_FORWARD
    assert settling(Version(3, 8), row(SEVEN, EIGHT)) is Settling.HEAL
    assert settling(SEVEN, row(None)) is Settling.HEAL


def test_whoever_holds_the_decision_heals() -> None:
    column = [row(None), row(SEVEN, EIGHT), row(SEVEN), row(EIGHT), row(Version(1, 8))]
    assert holders(EIGHT, column) == [1, 3]
    assert holders(Version(9, 9), column) == []
    assert holders(SEVEN, []) == []


@pytest.mark.parametrize(
    ("entered", "known", "broken", "stands", "expected"),
    [
        (True, 5, 5, True, Reaction.NONE),
        (True, 4, 9, True, Reaction.NONE),
        (True, 6, 5, True, Reaction.URGENT),
        (True, 6, 5, False, Reaction.URGENT_ALL),
        (False, 6, 5, True, Reaction.URGENT),
        (True, 7, 4, True, Reaction.GRACEFUL),
        (True, 7, 4, False, Reaction.GRACEFUL),
        (False, 7, 4, True, Reaction.SUPERSEDED),
    ],
)
def test_reactions_of_a_worker_in_generation_5(
    entered: bool, known: int, broken: int, stands: bool, expected: Reaction
) -> None:
    assert reaction(5, entered, known, broken, stands) is expected
