"""Who hangs: the culprit and never those who wait for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reknit.health.verdict import (
    ALIVE,
    BUSY,
    DRAINING,
    HUNG,
    LONG,
    SILENT,
    SLOW,
    WAITS,
    Doing,
    Observation,
    Verdict,
    judge,
)
from reknit.rendezvous import records


def doing(kind: str, seconds: float, limit: float = 30.0, phase: str = "forward") -> Doing:
    return Doing(kind, phase, seconds, limit)


def one(
    worker: str, what: Doing | None = None, coordinate: int = 0, *, replica: int | None = None, **more: bool
) -> Observation:
    return Observation(worker, coordinate, what, replica=replica, **more)


def states(*observations: Observation) -> list[str]:
    return [verdict.state for verdict in judge(observations)]


def test_the_kinds_are_those_of_the_records() -> None:
    assert (WAITS, BUSY, LONG, SILENT) == (records.WAITS, records.BUSY, records.LONG, records.SILENT)


def test_the_culprit_is_named_and_not_the_one_that_waits_even_if_there_are_only_two() -> None:
    waits, busy = one("a", doing(WAITS, 31, phase="reduce")), one("b", doing(BUSY, 33))
    first, second = judge([waits, busy])
    assert (first.state, second.state) == (ALIVE, HUNG)
    assert second.reason == "b hangs: in forward for 33 s, while a waits (since 31 s)"


@pytest.mark.parametrize(
    ("waited", "state"), [(0.0, ALIVE), (4.9, ALIVE), (5.0, SLOW), (29.9, SLOW), (30.0, HUNG), (99.0, HUNG)]
)
def test_it_is_slow_from_a_sixth_of_the_limit_and_hung_from_the_limit(waited: float, state: str) -> None:
    assert states(one("a", doing(WAITS, waited)), one("b", doing(SILENT, 200.0)))[1] == state


def test_a_long_phase_is_announced_and_the_whole_job_may_be_busy() -> None:
    assert states(one("a", doing(WAITS, 500)), one("b", doing(LONG, 500))) == [ALIVE, ALIVE]
    assert states(one("a", doing(BUSY, 500)), one("b", doing(BUSY, 500)), one("c", doing(SILENT, 500))) == [ALIVE] * 3


def test_the_largest_limit_counts() -> None:
    """Also that of the one judged: it compiles, and says so by its limit."""
    assert states(one("a", doing(WAITS, 100, 30)), one("b", doing(BUSY, 100, 300))) == [ALIVE, SLOW]
    assert states(one("a", doing(WAITS, 100, 300)), one("b", doing(SILENT, 100, 30))) == [ALIVE, SLOW]
    assert states(one("a", doing(WAITS, 301, 300)), one("b", doing(SILENT, 301, 30))) == [ALIVE, HUNG]


def test_what_they_have_waited_for_before_is_not_its_fault() -> None:
    """An announced evaluation, or an outage of the store, has kept them waiting; then the step takes its time."""
    waiting = one("a", doing(WAITS, 120, 30))
    assert states(waiting, one("b", doing(BUSY, 4, 30))) == [ALIVE, ALIVE]
    assert states(waiting, one("b", doing(BUSY, 6, 30))) == [ALIVE, SLOW]
    assert states(waiting, one("b", doing(BUSY, 30, 30))) == [ALIVE, HUNG]


def test_one_that_has_finished_waits_only_for_who_is_behind_it() -> None:
    """After its loop a script may save its model for as long as it likes; one that stopped in the last step may not."""
    finished = one("a", replace(doing(WAITS, 100, 30), step=50, finished=True))
    assert states(finished, one("b", replace(doing(BUSY, 100, 30), step=50))) == [ALIVE, ALIVE]
    assert states(finished, one("b", replace(doing(SILENT, 100, 30), step=49))) == [ALIVE, HUNG]


def test_the_last_holder_of_a_coordinate_is_spared() -> None:
    stage = [one("a0", doing(BUSY, 40), 0), one("a1", doing(WAITS, 40), 1)]
    spared = judge(stage)[0]
    assert (spared.state, spared.spared) == (SLOW, True)
    assert "nobody else holds" in spared.reason
    newcomer = one("b0", None, 0, holds=False)
    assert states(*stage, newcomer)[0] == SLOW
    assert states(*stage, replace(newcomer, holds=True))[0] == HUNG
    # of two that hang together, one stays
    both = Counter(states(*stage, one("b0", doing(SILENT, 45), 0)))
    assert both == {HUNG: 1, SLOW: 1, ALIVE: 1}


def test_a_newcomer_that_hangs_takes_no_state_along() -> None:
    holder, newcomer = one("a", doing(WAITS, 40)), one("b", doing(SILENT, 40), holds=False)
    assert states(holder, newcomer) == [ALIVE, HUNG]


def test_who_drains_may_hang_too() -> None:
    waits = one("a", doing(WAITS, 40))
    assert states(waits, one("b", draining=True)) == [ALIVE, DRAINING]
    assert states(waits, one("b", doing(SILENT, 40), draining=True)) == [ALIVE, HUNG]


def test_many_who_wait_are_counted() -> None:
    culprit = one("z", doing(SILENT, 33, phase="backward"))
    verdict = judge([*(one(name, doing(WAITS, 31.4)) for name in "abcde"), culprit])[-1]
    assert verdict.reason == "z hangs: silent (backward) for 33 s, while a, b, c and 2 more wait (since 31 s)"


# ---------------------------------------------------------------- within a replica


def pipelines(first: Doing | None, second: Doing | None, *others: Doing | None) -> list[str]:
    """The states of replica 0's stages, beside a replica that has been waiting for 100 s."""
    stages = [one(f"a{i}", what, i, replica=0) for i, what in enumerate((first, second, *others))]
    waits = [one(f"b{i}", doing(WAITS, 100), i, replica=1) for i in range(len(stages))]
    return states(*stages, *waits)[: len(stages)]


def test_a_stage_that_waits_for_its_device_beside_a_silent_one_is_spared_until_that_one_is_out() -> None:
    assert pipelines(doing(BUSY, 40), doing(SILENT, 35)) == [ALIVE, HUNG]
    assert pipelines(doing(BUSY, 90), doing(SILENT, 35, 300)) == [ALIVE, ALIVE]  # it is not its time yet
    assert pipelines(doing(BUSY, 40), doing(WAITS, 35)) == [HUNG, ALIVE]


def test_of_mates_who_are_all_busy_one_is_put_out_the_one_that_has_been_so_for_longest() -> None:
    assert pipelines(doing(BUSY, 40), doing(BUSY, 33), doing(WAITS, 33)) == [HUNG, ALIVE, ALIVE]
    assert pipelines(doing(BUSY, 33), doing(BUSY, 40), doing(BUSY, 33)) == [ALIVE, HUNG, ALIVE]
    assert pipelines(doing(BUSY, 40), doing(BUSY, 40)) == [HUNG, ALIVE]
    assert pipelines(doing(SILENT, 40), doing(SILENT, 40)) == [HUNG, HUNG]


def test_a_mate_that_compiles_is_waited_for_by_a_stage_that_only_looks_busy() -> None:
    assert pipelines(doing(BUSY, 90), doing(BUSY, 95, 300)) == [ALIVE, SLOW]
    assert pipelines(doing(BUSY, 95), doing(BUSY, 90, 300)) == [SLOW, ALIVE]


def test_a_mate_in_an_announced_phase_excuses_and_what_it_cost_is_nobodys_fault() -> None:
    assert pipelines(doing(BUSY, 90), doing(LONG, 95)) == [ALIVE, ALIVE]
    for at in (None, doing(BUSY, 1), doing(WAITS, 4)):  # it has just ended
        assert pipelines(doing(BUSY, 90), at) == [ALIVE, ALIVE]
    assert pipelines(doing(BUSY, 90), doing(WAITS, 30)) == [HUNG, ALIVE]


def test_a_newcomer_and_one_that_has_made_the_step_excuse_nobody() -> None:
    busy, waits = one("a0", doing(BUSY, 40), 0, replica=0), one("b0", doing(WAITS, 40), 0, replica=1)
    newcomer = one("a1", doing(WAITS, 1), 1, replica=0, holds=False)
    assert states(busy, waits, newcomer)[0] == HUNG
    saves = one("a1", replace(doing(BUSY, 50), step=1), 1, replica=0)
    assert states(busy, waits, saves)[0] == HUNG


def test_a_busy_mate_that_has_to_be_left_does_not_shield_the_others() -> None:
    stages = [one("a0", doing(BUSY, 40), 0, replica=0), one("a1", doing(BUSY, 50), 1, replica=0)]
    assert states(*stages, one("b0", doing(WAITS, 40), 0, replica=1)) == [HUNG, SLOW, ALIVE]


def test_mates_are_only_those_of_the_same_replica() -> None:
    jobs = [one("a", doing(BUSY, 40), replica=0), one("b", doing(SILENT, 40), replica=1)]
    assert states(*jobs, one("c", doing(WAITS, 40), replica=2)) == [HUNG, HUNG, ALIVE]


# ---------------------------------------------------------------- what holds for all observations

times = st.floats(0, 1000)
doings = st.builds(Doing, st.sampled_from([WAITS, BUSY, LONG, SILENT]), st.just("forward"), times, st.floats(0, 400))
somebody = st.builds(
    Observation,
    st.just(""),
    st.integers(0, 2),
    st.none() | doings,
    holds=st.booleans(),
    draining=st.booleans(),
    replica=st.none() | st.integers(0, 2),
)
jobs = st.lists(somebody, max_size=8).map(lambda job: [replace(o, worker=f"w{i}") for i, o in enumerate(job)])


def judged(job: list[Observation]) -> dict[str, Verdict]:
    return {verdict.worker: verdict for verdict in judge(job)}


@given(jobs)
def test_each_gets_one_verdict_and_only_who_does_not_wait_can_be_hung(job: list[Observation]) -> None:
    verdicts = judge(job)
    assert [v.worker for v in verdicts] == [o.worker for o in job]
    for observed, verdict in zip(job, verdicts, strict=True):
        if verdict.state in (SLOW, HUNG):
            assert observed.doing is not None
            assert observed.doing.kind in (BUSY, SILENT)
        assert verdict.worker in verdict.reason


@given(jobs)
def test_where_nobody_waits_nobody_is_slow_or_hung(job: list[Observation]) -> None:
    calm = [o for o in job if o.doing is None or o.doing.kind != WAITS]
    assert not {v.state for v in judge(calm)} & {SLOW, HUNG}


@given(jobs)
def test_of_busy_mates_at_most_one_is_hung_unless_another_has_to_be_left(
    job: list[Observation],
) -> None:
    verdicts = judged([replace(o, holds=True, draining=False) for o in job])
    for replica in range(3):
        mates = [o for o in job if o.replica == replica and o.doing is not None]
        hung = [o for o in mates if o.doing and o.doing.kind == BUSY and verdicts[o.worker].state == HUNG]
        alone = [o for o in mates if sum(other.coordinate == o.coordinate for other in job) == 1]
        assert len(hung) <= 1 + len(alone)


@given(jobs)
def test_no_coordinate_loses_its_last_worker_nor_its_last_holder(job: list[Observation]) -> None:
    verdicts = judged(job)
    for coordinate in range(3):
        for among in (lambda o: True, lambda o: o.holds):
            before = [o for o in job if o.coordinate == coordinate and among(o)]
            after = [o for o in before if verdicts[o.worker].state != HUNG]
            assert after or not before


@given(jobs, times)
def test_who_is_hung_is_hung_later_too(job: list[Observation], more: float) -> None:
    def aged(o: Observation) -> Observation:
        return o if o.doing is None else replace(o, doing=replace(o.doing, seconds=o.doing.seconds + more))

    now, later = judged(job), judged([aged(o) for o in job])
    for worker, verdict in now.items():
        if verdict.state == HUNG:
            assert later[worker].state == HUNG
        if verdict.state == SLOW:
            assert later[worker].state in (SLOW, HUNG)
